"""Measures the true figures of one operator: latencies, slots, changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change
from headgate.core.assignment import Assignment
from headgate.journal import histogram
from headgate.whatif.kernels import COUNT, LATENCY, SINCE_ORIGIN, WITHIN

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

QUANTILES = (0.0, 0.5, 0.99)
"""Quantiles of true latencies, per step of the timeline: about the least, the median, the tail."""


@dataclass(frozen=True)
class AppliedChange:
    """Holds a change that came into force."""

    decided_s: float
    applied_s: float
    """`decided_s`, `applied_s`: time of the decision, and time from which the change is in force."""
    change: Change
    before: Assignment
    """Assignment in force before the change."""
    stopped_s: float
    """Sum of the times for which involved slots stood still, in s."""
    involved: int
    """Number of slots that lost or got key groups, or ended."""

    @property
    def took_s(self) -> float:
        """Time from the decision to its coming into force: the switching time of one event."""
        return self.applied_s - self.decided_s

    @property
    def moved(self) -> tuple[int, ...]:
        """Key groups that changed their slot, ascending."""
        return moved_groups(self.before, self.change)


def moved_groups(before: Assignment, change: Change) -> tuple[int, ...]:
    """Return the key groups whose slot's identity differs after `change`, ascending."""
    pairs = zip(before.slot_of, change.assignment.slot_of, strict=True)
    return tuple(g for g, (old, new) in enumerate(pairs) if change.survivors[new] != old)


class Measures:
    """Holds the true figures of one operator, per tick and per step of a timeline.

    Parameters
    ----------
    ticks : int    How many ticks the run has.
    delta_s : float    Length of a tick.
    key_groups : int    G.
    step_s : float    Length of a step of the timeline; rounded up to whole ticks.
    has_parents : bool
        Whether records come from other operators, so that the time since their origin differs from
        the latency at this operator.
    counts_within : bool    Whether the records within a bound are counted, too.

    Attributes
    ----------
    arrived : int32[ticks, G]    Records per tick (not cumulative).
    slots, other_slots : float64[ticks]
        Slots in use at the end of each tick, including new slots of a change under way; and how many
        of these slots are of the pool's other type.
    histogram : int64[BUCKETS]    Latencies of all records; see `headgate.journal.histogram`.
    step_ticks : int    Ticks per step.
    quantiles_s : float64[steps, 3]
        `QUANTILES` of the latency in each step, within 5 %; NaN where nothing was completed.
    """

    def __init__(
        self,
        ticks: int,
        delta_s: float,
        key_groups: int,
        *,
        step_s: float = 1.0,
        has_parents: bool = False,
        counts_within: bool = False,
    ) -> None:
        self.delta_s = delta_s
        self.arrived: I32 = np.zeros((ticks, key_groups), dtype=np.int32)
        # Pages of the array take no memory before a tick writes to them.
        columns = WITHIN + 1 if counts_within else SINCE_ORIGIN + has_parents
        self._done: F64 = np.zeros((ticks, key_groups, columns))
        self.slots: F64 = np.zeros(ticks)
        self.other_slots: F64 = np.zeros(ticks)
        self.histogram: I64 = np.zeros(histogram.BUCKETS, dtype=np.int64)
        self.step_ticks = max(1, int(np.ceil(step_s / delta_s - 1e-9)))
        self.quantiles_s: F64 = np.full((-(-ticks // self.step_ticks), len(QUANTILES)), np.nan)
        self.applied: list[AppliedChange] = []

    @property
    def ticks(self) -> int:
        """Ticks of the run."""
        return len(self.slots)

    @property
    def completed(self) -> F64:
        """Records completed per tick (not cumulative), float64[ticks, G]."""
        return self._done[:, :, COUNT]

    @property
    def latency_sum_s(self) -> F64:
        """Return the sum of latencies at this operator by the tick of completion, float64[ticks, G]."""
        return self._done[:, :, LATENCY]

    @property
    def origin_sum_s(self) -> F64:
        """Return the sum of times since records, or their originals, reached the job; same shape."""
        return self._done[:, :, min(SINCE_ORIGIN, self._done.shape[2] - 1)]

    @property
    def within(self) -> F64:
        """Records completed per tick within the bound of `Queues.within_s`, float64[ticks, G]."""
        return self._done[:, :, WITHIN]

    def waiting(self, first: int, last: int) -> F64:
        """Return the records of key groups [first, last) that wait at the end of each tick.

        Result: float64[ticks, groups]: records arrived and not completed, also if in service.
        """
        arrived = self.arrived[:, first:last]
        waiting: F64 = np.cumsum(arrived - self.completed[:, first:last], axis=0)
        return waiting

    def row(self, tick: int) -> F64:
        """Return the row to which `Queues.serve` adds completions of tick `tick` (from 1).

        A tick after the end of the run gets a row that nobody reads.
        """
        row: F64 = self._done[tick - 1] if tick <= self.ticks else np.zeros_like(self._done[0])
        return row

    def close_step(self, step: int, counts: I64) -> None:
        """Take the latencies of step `step` (from 0), int64[BUCKETS], and set them to zero."""
        if step < len(self.quantiles_s):
            self.quantiles_s[step] = quantiles_s(counts)
        self.histogram += counts
        counts[:] = 0

    @property
    def slots_mean(self) -> float:
        """Return the time-average of the slots: the cost of the run."""
        return float(self.slots.mean())

    @property
    def latency_mean_s(self) -> float:
        """Mean latency of all records; NaN where none was completed."""
        records = int(self.completed.sum())
        return float(self.latency_sum_s.sum()) / records if records else float("nan")

    @property
    def total_quantiles_s(self) -> F64:
        """`QUANTILES` of the latencies of all records, shape [3]."""
        return quantiles_s(self.histogram)

    @property
    def stopped_share(self) -> float:
        """Share of slot time in which slots stood still for a change."""
        stopped_s = sum(a.stopped_s for a in self.applied)
        return stopped_s / (float(self.slots.sum()) * self.delta_s)

    @property
    def switching_share(self) -> float:
        """Share of slot time that belongs to changes, from decision to force.

        StreamSwitch 6.5 counts "time executors spend on switching operations"; with a barrier in the
        data that includes the way of the barrier, during which a slot still serves.
        """
        switching_s = sum(a.took_s * a.involved for a in self.applied)
        return switching_s / (float(self.slots.sum()) * self.delta_s)


def quantiles_s(counts: I64) -> F64:
    """Return `QUANTILES` of the latencies that `counts` holds, in seconds; NaN if there are none.

    Assumes that records are evenly spread within a bucket: at most 5 % off.
    """
    total = int(counts.sum())
    if total == 0:
        return np.full(len(QUANTILES), np.nan)
    upto = np.concatenate([[0], np.cumsum(counts)])
    edges_s = np.concatenate([[0.0], histogram.EDGES_MS / 1e3])
    rank = np.array(QUANTILES) * total
    rank[0] = 0.5  # the first record lies somewhere in the first bucket that is not empty
    bucket = np.minimum(np.searchsorted(upto, rank, side="left"), len(counts)) - 1
    inside = (rank - upto[bucket]) / np.maximum(counts[bucket], 1)
    quantiles: F64 = edges_s[bucket] + inside * (edges_s[bucket + 1] - edges_s[bucket])
    return quantiles
