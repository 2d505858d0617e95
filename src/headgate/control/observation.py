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
    """Holds the measured state of one operator, as the examiner computes it; valid by construction.

    Every rate is finite and >= 0, every latency finite and >= 0 or NaN where nothing was completed.
    """

    assignment: Assignment
    """What holds now: N slots, G key groups."""
    slot_ids: tuple[int, ...]
    """Identity of each slot, shape [N]; see `Sample`."""
    latency_s: F64
    """float64[N]: l_i: mean latency of the records each slot completed in the window, in seconds,
    and how long records wait to be read at that pace."""
    group_latency_s: F64
    """float64[G]: l^k: the same per key group."""
    group_rate: F64
    """float64[G]: lambda^k: arrivals per second over the window."""
    service_rate: F64
    """float64[N]: mu_i: records per second of useful time, smoothed."""
    utilisation: F64
    """float64[N]: useful time over wall time in the window."""
    backlog: F64
    """float64[G]: records arrived and not yet completed, and those that wait at the source to be
    read."""
    bound_s: float
    """L: the bound on the mean latency, in seconds."""
    window_s: float
    """T: length of the window, in seconds."""
    alert_s: float
    """l: the alert threshold, in seconds; below `bound_s`."""
    floor_s: float = 0.0
    """Latency of a nearly idle operator, in seconds; 0 for a continuous engine. `latency_s`
    contains it: policies compare ``latency_s - floor_s`` with `alert_s`."""
    slots_min: int = 1
    slots_max: int = 1
    """`slots_min`, `slots_max`: how many slots the operator may have."""
    limit: str = ""
    """Why no more than `slots_max` could be of use; empty where it is what a user gave."""
    unsplittable: str = "the engine does not split key groups"
    """Why the records of one key group may not be dealt to several slots, each of which merges its
    own, and the results be merged again, as a half sentence; empty where they may."""
    entry_rate: F64 | None = None
    """float64[G] or None: rows per second that a share of a key group sends to its owner once it
    has merged its records; None where it is not known, and taken to be nothing."""
    arrived: F64 | None = None
    """float64[G] or None: records that have arrived since the start; None where only `group_rate`
    is known."""
    costs: F64 | None = None
    """float64[n, 2] or None: what records have cost lately, oldest first: how many a slot completed
    together, and the useful seconds that each of them took; None where only `service_rate` is
    known."""
    costs_seen: int = 0
    """How many such measurements there have been, those included that `costs` has forgotten."""
    success: float = SUCCESS
    """Share of windows in which the SLO wants the bound to hold, in (0, 1]."""
    held: bool = False
    """Whether somebody holds the number of slots, so that no policy and no grant changes it."""
    batch: BatchTimes | None = None
    """How batches spend their time; None of a continuous engine."""

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

        Of a split key group every slot gets its share, and its owner the merged rows of the others.
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

        No more than one per record: where all keys differ, splitting gains nothing.
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
    """Operators that feed each operator; no entry for one fed by sources alone."""
    end_to_end_s: float | None = None
    """Bound on the sum of the operators' latencies; None where there is none."""
