"""One query of a fleet: its intents, how it stands, and what its end means to the others."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.control.fleet_view import FleetJob
from headgate.core.errors import HeadgateError
from headgate.core.utility import Utility
from headgate.spark.fleet.hosts import HostTime
from headgate.spark.fleet.probe import Probe
from headgate.spark.query import Query
from headgate.spark.worker.failure import says

_RAISED = re.compile(r"(?!py4j|org\.|java\.)[\w.]*(Error|Exception): \S")
"""How the last line of a Python traceback begins; those of the JVM around it say nothing more."""

_SPARKS_WORDS = "terminated with exception: "

_POLL_S = 0.05

_LATE_WORKER = "Python worker failed to connect back"
"""What Spark says when a Python process needs more than 10 s to appear."""

_STOP_S = 30.0
"""How long a removed query may take to stop before the journal says that it does not."""


class JobState(StrEnum):
    """How a query stands to its fleet."""

    RUNNING = "running"
    HUNG = "hung"
    """Its batch has not ended for too long: it keeps its slots, and nothing is decided about it."""

    FAILED = "failed"
    LEAVING = "leaving"
    """Removed, and not stopped yet: it keeps its slots until it has."""

    GONE = "gone"


@dataclass(frozen=True)
class _Batch:
    """The newest batch that was seen, and since when."""

    number: int
    since_s: float


class Member:
    """A query in a fleet.

    Parameters
    ----------
    name : str
    query : Query
    probe : Probe
    utility : Utility
        Its intents and its priority; replaced when the priority changes.
    hang_s : float
        How long a batch may take before the query counts as hung, in seconds.
    """

    def __init__(
        self, name: str, query: Query, probe: Probe, utility: Utility, hang_s: float
    ) -> None:
        self.name = name
        self.query = query
        self.utility = utility
        self.state = JobState.RUNNING
        self.why = ""
        self._probe = probe
        self._hang_s = hang_s
        self._batch = _Batch(-1, time.monotonic())
        self._lock = threading.Lock()

    def set_priority(self, priority: float) -> None:
        """Give the job another maximum utility."""
        self.utility = replace(self.utility, maximum=priority)

    def refresh(self) -> bool:
        """Look how the query stands; return whether that changed."""
        before = self.state
        if not self.query.isActive:
            left = self.state is JobState.LEAVING
            failure = self.query.exception()
            self.why = "" if failure is None else _reason(failure)
            self.state = JobState.FAILED if failure is not None and not left else JobState.GONE
        else:
            stuck = self._stuck()
            with self._lock:  # a user may remove it meanwhile
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
        """Whether Spark gave up waiting for its Python workers before anything was done."""
        failure = None if self.query.isActive else self.query.exception()
        return says(failure, _LATE_WORKER)

    @property
    def holds_slots(self) -> bool:
        """Whether its slots are taken although nothing can be decided about it."""
        return self.state in (JobState.HUNG, JobState.LEAVING)

    @property
    def slots(self) -> dict[str, int]:
        """Slots of each operator, in force."""
        return {name: a.slots for name, a in self.query.assignment().items()}

    @property
    def changing(self) -> bool:
        """Whether slots that were asked for, and not given up since, are not in force yet."""
        changes = self.query._work.changes
        return any(changes.newest(op).slots != count for op, count in self.slots.items())

    def view(self) -> FleetJob:
        """Return what a policy may see of it."""
        self._probe.look(self.query.lastProgress)
        values = self._probe.values(self.utility.intents)
        return FleetJob(
            self.utility, values, self._probe.operators(), input_rate=self._probe.input_rate()
        )

    def hosts(self, seconds: float) -> dict[str, HostTime]:
        """Return how long its tasks were runnable within the last `seconds`, by host."""
        return self._probe.hosts(seconds)

    def grant(self, slots: dict[str, int], by: str, reason: str) -> str:
        """Ask for other numbers of slots; return why that was refused, empty where it was not."""
        for operator, count in slots.items():
            try:
                self.query.scale(count, operator=operator, by=by, reason=reason)
            except Exception as error:  # whatever it was, other jobs wait for their slots
                return str(error)
        return ""

    def stop(self, late: Callable[[str], None]) -> None:
        """Ask the query to stop, and do not wait for it.

        Parameters
        ----------
        late : callable
            Called with why, if it has not stopped after a while.
        """
        with self._lock:
            self.state = JobState.LEAVING

        def stop() -> None:
            with contextlib.suppress(HeadgateError):  # the next look at it says why it failed
                self.query.stop()

        def work() -> None:
            worker = threading.Thread(target=stop, daemon=True)
            worker.start()
            worker.join(_STOP_S)
            if worker.is_alive():
                late(f"its batch has not ended {_STOP_S:g} s after it was asked to")

        threading.Thread(target=work, name=f"headgate-leave-{self.name}", daemon=True).start()


def _reason(failure: Exception) -> str:
    """Return one line that says what failed, without the traceback and the query's name around it."""
    lines = [line.strip() for line in str(failure).strip().splitlines()]
    raised = [line for line in lines if _RAISED.match(line)]
    found = raised[-1] if raised else lines[0] if lines else type(failure).__name__
    return found.rpartition(_SPARKS_WORDS)[2]
