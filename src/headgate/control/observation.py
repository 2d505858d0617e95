"""Holds the input of a policy: the state of a job at the end of one control cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headgate.control.batch_times import BatchTimes
from headgate.core.assignment import Assignment
from headgate.core.slo import SUCCESS

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class OperatorView:
    """Holds the measured state of one operator, as the examiner computes it from valid counters.

    Every rate is finite and >= 0, every latency finite and >= 0 or NaN where nothing was completed.
    """

    assignment: Assignment
    """The assignment in force: N slots, G key groups."""
    slot_ids: tuple[int, ...]
    """Identity of each slot, shape [N]; see `Sample`."""
    latency_s: F64
    """float64[N]: l_i, in seconds: mean latency of the records that each slot completed in the
    window, plus the time that its records wait unread in the source."""
    group_latency_s: F64
    """float64[G]: l^k, in seconds: mean latency per key group, without the time in the source."""
    group_rate: F64
    """float64[G]: lambda^k: arrivals per second over the window."""
    service_rate: F64
    """float64[N]: mu_i: records per second of useful time, smoothed."""
    utilisation: F64
    """float64[N]: useful time over wall time in the window."""
    backlog: F64
    """float64[G]: records arrived and not yet completed, plus records that wait unread in the
    source."""
    bound_s: float
    """L: the bound on the mean latency, in seconds."""
    window_s: float
    """T: length of the window, in seconds."""
    alert_s: float
    """l: the alert threshold, in seconds; below `bound_s`."""
    floor_s: float = 0.0
    """Latency of a nearly idle operator, in seconds; 0 for a continuous engine. `latency_s`
    includes the floor, so policies compare ``latency_s - floor_s`` with `alert_s`."""
    slots_min: int = 1
    slots_max: int = 1
    """`slots_min`, `slots_max`: least and largest number of slots that the operator may have."""
    limit: str = ""
    """Why more than `slots_max` slots would be of no use; empty where a user set `slots_max`."""
    unsplittable: str = "the engine does not split key groups"
    """Why key groups cannot be split, as half a sentence; empty where they can. A split deals the
    records of one key group to several slots, and the group's owner merges their results."""
    entry_rate: F64 | None = None
    """float64[G] or None: rows per second that one share of a key group, after merging its own
    records, sends to the group's owner; None: unknown, and counted as 0."""
    arrived: F64 | None = None
    """float64[G] or None: records that have arrived since the start; None where only `group_rate`
    is known."""
    costs: F64 | None = None
    """float64[n, 2] or None: recent costs of records, oldest first. A row has the number of records
    that a slot processed together, and the useful seconds per record. None where only `service_rate`
    is known."""
    costs_seen: int = 0
    """Number of these measurements since the start, also of those that `costs` has no more."""
    success: float = SUCCESS
    """Share of windows in which the SLO wants the bound to hold, in (0, 1]."""
    held: bool = False
    """Whether a person holds the number of slots; then no policy and no grant changes it."""
    batch: BatchTimes | None = None
    """Times of the parts of a batch; None for a continuous engine."""

    @property
    def slots(self) -> int:
        """N, the number of slots."""
        return self.assignment.slots

    @property
    def splittable(self) -> bool:
        """Return whether key groups may be split over slots."""
        return not self.unsplittable

    @property
    def slot_rate(self) -> F64:
        """lambda_i: arrivals per second at each slot, shape [N].

        Each slot of a split key group gets its share; the owner also gets the rows that it merges.
        """
        rates = self.by_slot(self.group_rate)
        for group, shares in self.assignment.split.items():
            rates[shares[0]] += self.merging_rate(group, len(shares))
        return rates

    def by_slot(self, per_group: F64) -> F64:
        """Return the sum of a per-group quantity at each slot, shape [N]."""
        owners = np.asarray(self.assignment.slot_of)
        per_slot: F64 = np.bincount(owners, weights=per_group, minlength=self.slots).astype(
            np.float64
        )
        for group, shares in self.assignment.split.items():
            per_slot[shares[0]] -= per_group[group]
            per_slot[list(shares)] += per_group[group] / len(shares)
        return per_slot

    def merging_rate(self, group: int, shares: int) -> float:
        """Return the rows per second that a key group's owner merges if the group has `shares` shares.

        At most one row per record of the other shares: where all keys differ, a split gains nothing.
        """
        if self.entry_rate is None:
            return 0.0
        most = float(self.group_rate[group]) * (shares - 1) / shares
        return min(float(self.entry_rate[group]) * (shares - 1), most)


@dataclass(frozen=True)
class Observation:
    """Holds the state of a job at the end of one control cycle."""

    time_s: float
    """Time since the start of the job, in seconds."""
    operators: Mapping[str, OperatorView]
    """Stateful operators, upstream first."""
    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Operators that feed each operator; no entry for an operator that only sources feed."""
    end_to_end_s: float | None = None
    """Bound on the sum of the operators' latencies, in seconds; None where there is none."""
