"""Brings key groups to hosts in the background, in a thread that lives as long as there is work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from headgate.spark.move.host_tasks import GroupOrder, OrderDone, TaskAnswer

Place = tuple[str, int, str]
"""Operator, key group, arena."""

_GROUPS_PER_ERRAND = 64
"""Most orders for a host at once; a task stops in any case when its time slice is over."""


@dataclass(frozen=True)
class Lags:
    """Holds limits for the number of steps that a copy is behind."""

    caught_up: int = 1
    """Up to this lag a copy has caught up, and its group can be routed."""
    served: int = 4
    """Up to this lag a slot can serve from the copy: it applies the missing sections itself."""
    kept: int = 2
    """From this lag on, a copy that waits for its group's route is brought up to date, so that it
    does not fall behind by more than `served` meanwhile."""


OF_EPOCHS = Lags(caught_up=4, served=12)
"""Limits if a step is an epoch: a host task lasts at least two epochs, and its copy is three epochs
behind at the next boundary. Not tuned."""

_SLICE_OF_BATCH = 0.5
_SLICE_S = (0.1, 1.0)
"""Part of a batch in which a host task may hold a core, and its bounds in seconds. Chosen: a shorter
task brings a single key group of 4 MB, and Spark takes longer to start the task than it works."""

_TRIES = 3
"""Failures of one order after which the migration gets the error."""

_PATIENCE_S = 60.0
"""Time for which host tasks may fail, or run on other hosts, before the migration gets an error: a host
whose cores are all taken by a long batch is not lost."""

_PAUSE_S = 0.25
"""Pause between two host tasks if one has failed, or if no copy is behind."""


class Urgency(IntEnum):
    """Ranks key groups: the least rank is copied first."""

    INSTALL = 0
    PREFETCH = 1
    DROP = 2


@dataclass
class Delivery:
    """Holds the progress of a request to bring a key group to a host, or to delete it there."""

    urgency: Urgency
    known_step: int | None = None
    """The newest step whose changes are in the copy; None before the first time."""
    token: str = ""
    """Token of the copy."""
    moved_bytes: int = 0
    dropped: bool = False
    failures: int = 0
    problem: str = ""
    """Why the request has failed for good; empty until then."""

    def lag_steps(self, token: str, step: int) -> int | None:
        """Return how many steps the copy is behind `token`, the group's state after `step`.

        None if there is no copy yet. A copy of a group that has not changed since is not behind.
        """
        if self.known_step is None:
            return None
        return 0 if self.token == token else step - self.known_step


@dataclass(frozen=True)
class StepHeads:
    """Holds the tokens of key groups after a step."""

    step: int
    of: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]]
    """By operator: per key group its token, and the step whose manifest holds its newest section."""


class Copier(Protocol):
    """Copies and deletes key groups on hosts; `HostTasks` does."""

    def run(self, work: dict[str, Sequence[GroupOrder]], slice_s: float) -> list[TaskAnswer]:
        """Carry out the orders of each host."""


class CopyThread:
    """Keeps the requested copies on hosts near the newest state; the batches' thread may call it.

    `host_tasks`: makes a `Copier`; called before the first orders, and after orders have failed.

    Attributes
    ----------
    arena_of : dict of str to str    Arena by host, as last reported.
    lags : Lags    The limits for batches; real time sets `OF_EPOCHS`.
    """

    def __init__(self, host_tasks: Callable[[], Copier]) -> None:
        self.arena_of: dict[str, str] = {}
        self.lags = Lags()
        self._make = host_tasks
        self._host_tasks: Copier | None = None
        self._works: dict[Place, Delivery] = {}
        self._under_way: set[Place] = set()
        self._unknown: set[str] = set()
        self._missed_since: dict[str, float] = {}
        self._heads: StepHeads | None = None
        self._committed_s = time.monotonic()
        self._slice_s = _SLICE_S[0]
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    # -- the batches' side ------------------------------------------------------------------------

    def knows(self, hosts: Sequence[str]) -> bool:
        """Return whether the arenas of `hosts` are known; if not, request them."""
        with self._changed:
            self._unknown |= set(hosts) - set(self.arena_of)
            if self._unknown:
                self._wake()
            return not self._unknown.intersection(hosts)

    def arenas(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the arena of each host; all are known."""
        with self._changed:
            return tuple(self.arena_of[host] for host in hosts)

    def committed(self, heads: StepHeads) -> None:
        """Record the tokens of key groups after a step."""
        now_s = time.monotonic()
        with self._changed:
            least, most = _SLICE_S
            part_s = _SLICE_OF_BATCH * (now_s - self._committed_s)
            self._slice_s = min(most, max(least, part_s))
            self._committed_s = now_s
            self._heads = heads
            self._changed.notify()

    def want(self, place: Place, urgency: Urgency) -> Delivery:
        """Request a key group on a host, or its deletion there; return the request's progress."""
        with self._changed:
            work = self._works.get(place)
            if work is None or (work.urgency is Urgency.DROP) != (urgency is Urgency.DROP):
                work = self._works[place] = Delivery(urgency)
            work.urgency, work.problem, work.failures = urgency, "", 0
            self._wake()
            return work

    def result_of(self, place: Place) -> Delivery | None:
        """Return the progress of a request; None without a request."""
        return self._works.get(place)

    def forget(self, place: Place) -> None:
        """Withdraw a request."""
        with self._changed:
            self._works.pop(place, None)

    def busy(self, operator: str, group: int) -> bool:
        """Return whether a host task may have the key group's file open on some host at present."""
        with self._changed:
            return any((o, g) == (operator, group) for o, g, _ in self._under_way)

    def stop(self) -> None:
        """End the thread; a running host task may go on for its time slice."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout=5.0)

    def _wake(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(
                target=self._run, name="headgate-copy-thread", daemon=True
            )
            self._thread.start()
        self._changed.notify()

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping or not (self._works or self._unknown):
                    self._thread = None
                    return
                heads = self._heads
                asked = self._choose(heads)
                if not asked:
                    self._changed.wait(_PAUSE_S)
                    continue
            answers = self._run_host_tasks(asked)
            with self._changed:
                self._under_way.clear()
                for answer in answers:
                    self._take(answer, heads)
                if any(answer.host != answer.wished for answer in answers):
                    self._changed.wait(_PAUSE_S)

    def _run_host_tasks(self, asked: dict[str, Sequence[GroupOrder]]) -> list[TaskAnswer]:
        """Run a host task; return no answers if it fails."""
        try:
            if self._host_tasks is None:
                self._host_tasks = self._make()
            return self._host_tasks.run(asked, self._slice_s)
        except Exception as error:  # an executor may be gone; Spark itself has tried four times
            self._host_tasks = None
            said = str(error).splitlines() or [""]
            with self._changed:
                for host in asked:
                    self._missed(host, f"{type(error).__name__}: {said[0]}"[:300])
                self._changed.wait(_PAUSE_S)
            return []

    def _choose(self, heads: StepHeads | None) -> dict[str, Sequence[GroupOrder]]:
        """Return the orders for each host, the most urgent first."""
        host_of = {arena: host for host, arena in self.arena_of.items()}
        asked: dict[str, list[GroupOrder]] = {host: [] for host in self._unknown}
        for place, work in sorted(self._works.items(), key=lambda item: item[1].urgency):
            operator, group, arena = place
            host = host_of.get(arena)
            if (
                host is None
                or work.problem
                or not _behind(work, operator, group, heads, self.lags.kept)
            ):
                continue
            orders = asked.setdefault(host, [])
            if len(orders) < _GROUPS_PER_ERRAND:
                orders.append(_order(work, operator, group, heads))
                self._under_way.add(place)
        return dict(asked)

    def _take(self, answer: TaskAnswer, heads: StepHeads | None) -> None:
        if answer.host != answer.wished:
            why = answer.problem or f"no task was run on host {answer.wished}"
            self._missed(answer.wished, why)
            return
        self._missed_since.pop(answer.host, None)
        self._unknown.discard(answer.host)
        self.arena_of[answer.host] = answer.arena
        for done in answer.done:
            work = self._works.get((done.order.operator, done.order.group, answer.arena))
            if work is not None and (work.urgency is Urgency.DROP) == (not done.order.token):
                _note(work, done, heads)

    def _missed(self, host: str, problem: str) -> None:
        """Record that a host task for `host` failed; after `_PATIENCE_S`, fail the host's requests."""
        now_s = time.monotonic()
        if now_s - self._missed_since.setdefault(host, now_s) < _PATIENCE_S:
            return
        del self._missed_since[host]
        self._unknown.discard(host)  # a caller that still needs the arena requests it again
        arena = self.arena_of.get(host)
        for place, work in self._works.items():
            if place[2] == arena:
                work.problem = problem


def _behind(work: Delivery, operator: str, group: int, heads: StepHeads | None, kept: int) -> bool:
    if work.urgency is Urgency.DROP:
        return not work.dropped
    if heads is None:
        return False
    lag = work.lag_steps(heads.of[operator][0][group], heads.step)
    return lag is None or lag >= (1 if work.urgency is Urgency.INSTALL else kept)


def _order(work: Delivery, operator: str, group: int, heads: StepHeads | None) -> GroupOrder:
    if work.urgency is Urgency.DROP or heads is None:
        return GroupOrder(operator, group)
    tokens, steps = heads.of[operator]
    return GroupOrder(operator, group, tokens[group], steps[group])


def _note(work: Delivery, done: OrderDone, heads: StepHeads | None) -> None:
    if done.problem:
        work.failures += 1
        if work.failures >= _TRIES:
            work.problem = done.problem
        return
    work.failures = 0
    work.moved_bytes += done.moved_bytes
    if done.order.token and heads is not None:
        work.known_step, work.token = heads.step, done.order.token
    else:
        work.dropped = True
