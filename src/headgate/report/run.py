"""Reads a run from its journal: totals, one slim row per batch, the last batches in full."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections import Counter, deque
from typing import NamedTuple

from headgate.journal.histogram import RunLatencies, Sparse
from headgate.journal.parts import SloState
from headgate.journal.reader import read
from headgate.journal.schema import (
    Applied,
    AssignmentChange,
    Batch,
    BatchBegun,
    Decided,
    Event,
    NotReadyToDecide,
    Restart,
    Retry,
    Start,
    Stop,
)

RECENT_BATCHES = 10
"""Number of last batches over which the views average rates, latency and phases ("now")."""

EVENTS_KEPT = 50
"""Newest events that a run stores for event lines; a view shows the last few."""


_UNSHOWN = (Batch, BatchBegun, Decided, Applied, NotReadyToDecide)
"""Events without an event line; the line of an assignment shows the outcome of a decision."""


class BatchRow(NamedTuple):
    """Holds the few figures of a batch that stay for the whole run, so that days fit in memory."""

    step: int
    """headgate's number of the batch."""
    at_ms: int
    """Wall clock at the batch's end, ms since 1970."""
    duration_ms: float
    """Time of the whole trigger inside headgate, in ms."""
    slots: int
    """Slots that the batch ran with."""
    start_index: int
    """Number of the run's start events before the batch; a restart raises it."""
    phases_ms: dict[str, float]
    """Parts of the batch, in ms."""


class Run:
    """Collects the figures of a journal's last run, event by event.

    A run begins with the first start event, or with a start event after a clean stop. A start event
    after a crash continues the run and counts as a restart of the query. A step that comes a second
    time is a redelivery of a committed batch and is not counted again.

    Attributes
    ----------
    start : Start or None    The latest start event; None before the first.
    began_ms : int    Wall clock of the run's first event.
    ended_ms : int    Wall clock of the latest event.
    rows : list of BatchRow    Every batch, by step.
    latencies : RunLatencies    Latencies of all records of the run.
    recent : deque of Batch    The last batches in full; at most `RECENT_BATCHES`.
    changes : list of AssignmentChange    Every change of the assignment, one per step and target.
    split : dict of (str, int) to int
        Number of slots over which a key group of an operator is split now; without whole groups.
    begun : BatchBegun or None
        The batch that runs; None if the latest batch is committed, or in an earlier release's journal.
    stop : Stop or None    Set while the last event is a stop.
    slo : SloState or None    State of the SLO at the latest batch; None without an SLO.
    decisions : Counter of str
        Changes that a policy decided, by kind; advice of any kind counts as ``advised``.
    dropped : Counter of str    Rows that pools of replicas dropped, by reason.
    switching_ms : list of float
        Time from the decision of each change until it came into force, in ms.
    """

    def __init__(self) -> None:
        self.start: Start | None = None
        self._clear()

    def _clear(self) -> None:
        """Reset everything but `start`, for a new run."""
        self.began_ms = self.ended_ms = 0
        self.rows: list[BatchRow] = []
        self.recent: deque[Batch] = deque(maxlen=RECENT_BATCHES)
        self.changes: list[AssignmentChange] = []
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.split: dict[tuple[str, int], int] = {}
        self.begun: BatchBegun | None = None
        self.stop: Stop | None = None
        self.latencies = RunLatencies()
        self.arrived = self.served = self.emitted = self.late = 0
        self.slo: SloState | None = None
        self.loop_ms = 0.0
        self.cycles = 0
        self.decisions: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.switching_ms: list[float] = []
        self.retries = self.starts = self._resumes = 0
        self._worked_since_start = False

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Run:
        """Return the last run of a journal, dead or alive."""
        run = cls()
        for event in read(path):
            run.absorb(event)
        return run

    @property
    def last(self) -> Batch | None:
        """The latest batch."""
        return self.recent[-1] if self.recent else None

    @property
    def has_batches(self) -> bool:
        """Return whether a batch was committed since the latest start."""
        return self._worked_since_start

    def latest(self) -> Run:
        """Return a copy with the latest batches and changes only, to which later events add nothing."""
        copied = copy.copy(self)
        copied.recent = self.recent.copy()
        copied.rows, copied.changes = self.rows[-RECENT_BATCHES - 1 :], self.changes[-EVENTS_KEPT:]
        return copied

    @property
    def histogram(self) -> Sparse:
        """Latencies of all records of the run."""
        return self.latencies.histogram

    def group_records(self) -> tuple[Counter[int], int]:
        """Return the records of key groups over the last batches, and of all groups together.

        Counts arrived records where the journal has them: a slot with a budget serves no more of a
        hot group than of others. Else counts served records, of the hottest groups of each batch.
        """
        groups: Counter[int] = Counter()
        for batch in self.recent:
            for arrived in batch.arrivals:
                groups.update(dict(zip(arrived.groups, arrived.records, strict=True)))
        if groups:
            return groups, groups.total()
        for batch in self.recent:
            groups.update(dict(batch.hottest))
        return groups, sum(batch.served for batch in self.recent)

    def slots_of(self, group: int) -> int:
        """Return the number of slots over which a key group is split; 1 where it is whole."""
        return max((n for (_, split), n in self.split.items() if split == group), default=1)

    @property
    def query_restarts(self) -> int:
        """Return the number of times that the query started again within the run."""
        return max(0, self.starts - 1) + self._resumes

    def absorb(self, event: Event) -> None:
        """Take in the next event of the journal."""
        if isinstance(event, Start):
            if self.start is None or (self.stop is not None and self.stop.error is None):
                self._clear()
                self.began_ms = event.at_ms
            self.start = event
            self.starts += 1
            self._worked_since_start = False
        elif isinstance(event, Batch):
            self._absorb_batch(event)
        elif isinstance(event, AssignmentChange):
            event = self._absorb_change(event)
        elif isinstance(event, Decided):
            self.decisions.update(w.kind if event.acts else "advised" for w in event.wishes)
        elif isinstance(event, Applied):
            self.switching_ms.append(event.took_ms)
        elif isinstance(event, Retry):
            self.retries += 1
        elif isinstance(event, Restart) and self._worked_since_start:
            # Without a batch since the start event, the restart is that start, already counted.
            self._resumes += 1
        if isinstance(event, BatchBegun):
            self.begun = event
        elif isinstance(event, Batch | Start | Stop):
            self.begun = None
        self.stop = event if isinstance(event, Stop) else None
        self.ended_ms = max(self.ended_ms, event.at_ms)
        if not isinstance(event, _UNSHOWN):
            self.events.append(event)

    def _absorb_change(self, change: AssignmentChange) -> AssignmentChange:
        """Add a change; return its sum with the changes of other operators at the same step.

        A query with several operators writes a line per operator, but readers see one change.
        """
        changed = {(change.operator, group): len(slots) for group, *slots in change.split}
        others = {at: n for at, n in self.split.items() if at[0] != change.operator}
        self.split = others | changed
        last = self.changes[-1] if self.changes else None
        if last is not None and (last.step, last.slots_before, last.slots_after) == (
            change.step,
            change.slots_before,
            change.slots_after,
        ):
            change = dataclasses.replace(
                last,
                epoch=change.epoch,
                groups_moved=last.groups_moved + change.groups_moved,
                bytes_moved=last.bytes_moved + change.bytes_moved,
                split=(*last.split, *change.split),
            )
            self.changes.pop()
            if self.events and self.events[-1] is last:
                self.events.pop()
        self.changes.append(change)
        return change

    def _absorb_batch(self, batch: Batch) -> None:
        """Count a batch, unless its step was counted before."""
        self._worked_since_start = True
        if self.rows and batch.step <= self.rows[-1].step:
            return
        self.recent.append(batch)
        self.rows.append(
            BatchRow(
                batch.step,
                batch.at_ms,
                batch.duration_ms,
                batch.slots,
                self.starts,
                batch.phases_ms,
            )
        )
        self.arrived += batch.arrived
        self.served += batch.served
        self.emitted += batch.emitted
        self.late += batch.late
        if batch.dropped:  # an update costs a microsecond, even an empty one
            self.dropped.update(batch.dropped)
        mean_ms = None if batch.latency_ms is None else batch.latency_ms.mean
        self.latencies.add(batch.histogram, mean_ms, batch.served)
        if batch.slo is not None:
            self.slo = batch.slo
            self.loop_ms += batch.slo.loop_ms
            self.cycles += batch.slo.cycles
