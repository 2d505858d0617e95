"""Holds one job of a fleet: its query, intents, state and granted slots."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.control.fleet.grant import Grant
from headgate.control.fleet.view import FleetJob, FleetOperator
from headgate.core.duration import at_text
from headgate.core.errors import HeadgateError
from headgate.core.utility import Utility
from headgate.spark.api.query import Query
from headgate.spark.fleet.hosts import HostTime
from headgate.spark.fleet.pool_probe import PoolProbe
from headgate.spark.fleet.probe import Probe
from headgate.spark.worker.failure import says

_RAISED = re.compile(r"(?!py4j|org\.|java\.)[\w.]*(Error|Exception): \S")
"""Matches the last line of a Python traceback; exceptions of the JVM around it add nothing."""

_SPARKS_WORDS = "terminated with exception: "

_POLL_S = 0.05

_LATE_WORKER = "Python worker failed to connect back"
"""Spark's error if a Python process needs more than 10 s to start."""

_STOP_S = 30.0
"""Time after which the journal says that a removed query has not stopped."""


class JobState(StrEnum):
    """Names the state of a job in its fleet."""

    RUNNING = "running"
    HUNG = "hung"
    """A batch has lasted too long: the job keeps its slots, and no decision concerns it."""

    FAILED = "failed"
    LEAVING = "leaving"
    """The job was removed, and keeps its slots until its query has stopped."""

    GONE = "gone"


@dataclass(frozen=True)
class _Batch:
    """Holds the number of the newest batch, and the time when it was first seen or last idle."""

    number: int
    since_s: float


class Member:
    """Holds a job of a fleet.

    Parameters
    ----------
    utility : Utility    Intents and priority of the job; replaced when the priority changes.
    hang_s : float    Time without the end of a batch after which the job counts as hung, in seconds.
    own_policy : bool
        Whether the job's own policy uses up to the granted slots; else the job holds exactly these.
    """

    def __init__(
        self,
        name: str,
        query: Query,
        probe: Probe | PoolProbe,
        utility: Utility,
        hang_s: float,
        *,
        own_policy: bool = False,
    ) -> None:
        self.name = name
        self.own_policy = own_policy
        self.query = query
        self.utility = utility
        self.state = JobState.RUNNING
        self.why = ""
        self._probe = probe
        self._hang_s = hang_s
        self._batch = _Batch(-1, time.monotonic())
        self._lock = threading.Lock()
        self._granted: dict[str, int] = {}
        self._granted_s = time.monotonic()
        self._spent: deque[tuple[float, dict[str, int]]] = deque()

    def set_priority(self, priority: float) -> None:
        """Give the job another maximum utility."""
        self.utility = replace(self.utility, maximum=priority)

    def refresh(self) -> bool:
        """Update the job's state from its query; return whether the state changed."""
        before = self.state
        if not self.query.isActive:
            left = self.state is JobState.LEAVING
            failure = self.query.exception()
            self.why = "" if failure is None else _reason(failure)
            self.state = JobState.FAILED if failure is not None and not left else JobState.GONE
        else:
            stuck = self._stuck()
            with self._lock:  # a user may remove the job meanwhile
                if self.state in (JobState.RUNNING, JobState.HUNG):
                    self.state = JobState.HUNG if stuck else JobState.RUNNING
                    self.why = f"no batch ended for {self._hang_s:g} s" if stuck else ""
        return self.state is not before

    def _stuck(self) -> bool:
        number, idle = self.query._progress()
        now_s = time.monotonic()
        if idle or number != self._batch.number:
            self._batch = _Batch(number, now_s)
        return now_s - self._batch.since_s > self._hang_s

    def await_first_batch(self, timeout_s: float) -> None:
        """Wait until the query has done its first batch or ended; no longer than `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        while self.query.isActive and time.monotonic() < until_s:
            begun, idle = self.query._progress()
            if begun > 1 or (begun == 1 and idle):
                return
            time.sleep(_POLL_S)

    @property
    def came_too_late(self) -> bool:
        """Return whether the query failed because its Python workers started too late for Spark."""
        failure = None if self.query.isActive else self.query.exception()
        return says(failure, _LATE_WORKER)

    @property
    def slots(self) -> dict[str, int]:
        """Slots of each operator by the assignments in force."""
        return self.query._slots.held()

    @property
    def requests(self) -> dict[str, int]:
        """Slots that the job's own policy requests, of operators where these exceed the grant."""
        return self.query._slots.requests() if self.own_policy else {}

    def changing(self, granted: Mapping[str, int]) -> bool:
        """Return whether the job's grant is not in force yet.

        A job without a policy holds the granted slots, unless a user asked for fewer; a job with a policy
        may hold any number up to the grant. Operators whose slots a user has frozen do not count: a hold
        may last for hours, and the fleet decides nothing while one job changes.
        """
        holds = self.query._slots.holds()
        held = {op: n for op, n in self.query._slots.held().items() if op not in holds}
        over = any(slots > granted.get(operator, slots) for operator, slots in held.items())
        return over or (not self.own_policy and self.query._slots.changing())

    def unspent(self, granted: Mapping[str, int], seconds: float) -> dict[str, int]:
        """Return the most slots that the job's own policy used for `seconds`, if fewer than granted.

        Called once a round.
        """
        if not self.own_policy:
            return {}
        now_s = time.monotonic()
        if granted != self._granted:
            self._granted, self._granted_s = dict(granted), now_s
        self._spent.append((now_s, self.slots))
        while self._spent[0][0] < now_s - seconds:
            self._spent.popleft()
        if now_s - self._granted_s < seconds:
            return {}
        most = {op: max(held.get(op, n) for _, held in self._spent) for op, n in granted.items()}
        return {op: n for op, n in most.items() if n < granted[op]}

    def view(self, granted: Mapping[str, int]) -> FleetJob:
        """Return the job for the fleet's policy, with the granted slots as its slots."""
        self._probe.note_progress(self.query.lastProgress)
        values = self._probe.values(self.utility.intents)
        requests = self.requests
        operators = {
            name: self._within(operator, granted.get(name, operator.slots), requests.get(name))
            for name, operator in self._probe.operators().items()
        }
        return FleetJob(self.utility, values, operators, input_rate=self._probe.input_rate())

    def _within(self, operator: FleetOperator, granted: int, request: int | None) -> FleetOperator:
        """Return an operator with the granted slots, and its capacity as a share of these."""
        if not self.own_policy:
            return replace(operator, slots=granted)
        # granted slots that the policy does not use are idle
        capacity = operator.capacity * min(operator.slots, granted) / granted
        return replace(operator, slots=granted, capacity=capacity, request=request or granted)

    def hosts(self, seconds: float) -> dict[str, HostTime]:
        """Return by host how long the job's tasks were runnable within the last `seconds`."""
        return self._probe.hosts(seconds)

    def grant(self, granted: Mapping[str, int], by: str, reason: str) -> str:
        """Limit each operator to the granted slots; return why that failed, or an empty text.

        A job without its own policy also gets as many slots as granted.
        """
        held = self.slots
        refused = self.limit(granted, by, reason)
        for operator, count in granted.items():
            if refused or self.own_policy or held.get(operator) == count:
                continue
            if (until_s := self.query._slots.holds().get(operator)) is not None:
                refused = f"somebody holds the slots of {operator} until {at_text(until_s)}"
                continue
            try:
                self.query.scale(count, operator=operator, by=by, reason=reason)
            except Exception as error:  # any error: other jobs still need their slots
                refused = str(error)
        return refused

    def limit(self, granted: Mapping[str, int], by: str, reason: str) -> str:
        """Limit each operator to the granted slots; return why that failed, or an empty text."""
        try:
            self.query._slots.limit(Grant(dict(granted), by, reason))
        except Exception as error:
            return str(error)
        return ""

    def stop(self, late: Callable[[str], None]) -> None:
        """Ask the query to stop, and do not wait for it.

        `late`: called with a reason if the query has not stopped after a while.
        """
        with self._lock:
            self.state = JobState.LEAVING

        def stop() -> None:
            with contextlib.suppress(HeadgateError):  # the next `refresh` reads the failure
                self.query.stop()

        def work() -> None:
            worker = threading.Thread(target=stop, daemon=True)
            worker.start()
            began_s = time.monotonic()
            worker.join(_STOP_S)
            if self.query.isActive:
                late(
                    f"its batch has not ended {time.monotonic() - began_s:.0f} s after it was asked to"
                )

        threading.Thread(target=work, name=f"headgate-leave-{self.name}", daemon=True).start()


def _reason(failure: Exception) -> str:
    """Return the reason of a failure in one line, without the traceback and the query's name."""
    lines = [line.strip() for line in str(failure).strip().splitlines()]
    raised = [line for line in lines if _RAISED.match(line)]
    text = raised[-1] if raised else lines[0] if lines else type(failure).__name__
    return text.rpartition(_SPARKS_WORDS)[2]
