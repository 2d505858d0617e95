"""Defines the objects inside the journal's lines: operators, latencies, slots, SLOs, decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.journal.numbers import Count, Groups, Number, Whole


@dataclass(frozen=True)
class OperatorInfo:
    """A stateful operator of the query."""

    id: str
    """Name of the operator, unique within the job."""
    what: str
    """What it does, in words, as `explain` says it."""


@dataclass(frozen=True)
class Latency:
    """Latency of the records that one batch completed: from its arrival to its completion, each."""

    mean: Number
    """Mean, in ms."""
    p50: Number
    """Median, in ms."""
    p95: Number
    """95th percentile, in ms."""
    p99: Number
    """99th percentile, in ms."""
    max: Number
    """Largest, in ms."""


@dataclass(frozen=True)
class SlotStats:
    """Holds the figures of one slot in one batch."""

    slot: Whole
    """Number of the slot, from 0."""
    groups: Whole
    """Key groups it owned."""
    served: Count
    """Records it served."""
    backlog: Count
    """Records it has received and not yet served, after the batch."""
    useful_ms: Number
    """Time spent on records, without start-up and waiting, in ms."""
    latency_mean_ms: Number | None = None
    """Mean latency of the records it served, in ms; null where none is known."""
    latency_p95_ms: Number | None = None
    """95th percentile of the same, in ms."""
    computing_ms: Number | None = None
    """What of `useful_ms` its worker was on a core; null where that is not measured."""
    waited_ms: Number | None = None
    """What of it its worker waited for a core; 0 where the kernel does not say so."""
    operator: str = ""
    """The operator; empty in journals of an earlier release."""


@dataclass(frozen=True)
class SloState:
    """Holds the state of a job's SLO, from true latencies, since the job started."""

    state: str
    """``not ready``, ``steady``, ``changing`` or ``unreachable``: the worst of its operators."""
    frozen: bool
    """Whether assignments may not change."""
    success: Number | None
    """Share of windows within the bound, mean of all key groups; null before a first window."""
    success_worst: Number | None
    """The same of the key group with the least; null before a first window."""
    worst_group: Whole | None
    """That key group."""
    worst_operator: str | None
    """Its operator."""
    windows: Count
    """Windows judged, all key groups."""
    windows_empty: Count
    """Windows left out because nothing waited and nothing was completed in them."""
    wanted: Number
    """Share of windows that the SLO wants."""
    bound_ms: Number
    """The tightest bound in force, in ms."""
    floor_ms: Number
    """Measured latency floor, in ms, the largest of its operators; 0 while not measured."""
    loop_ms: Number
    """Processor time that the control loop has taken since the last batch, in ms."""
    cycles: Count
    """Cycles of the control loop in that time."""
    by_operator: dict[str, Number] = field(default_factory=dict)
    """Share of windows within the bound by operator; end to end, from the newest input to its results."""
    windows_met: Count | None = None
    """Windows of `windows` in which the SLO held; null in journals of an earlier release."""
    windows_of: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    """Windows judged, and those of them in which the SLO held, by operator."""
    windows_stalled: Count = 0
    """Windows judged although nothing was completed in them, since records waited: by the next
    completions, or missed as soon as those that wait are late. Journals of an earlier release left
    these out."""
    held_until_ms: Whole | None = None
    """Until when the policy may not change the number of slots, since a user holds it; ms since 1970,
    null where nobody does."""


@dataclass(frozen=True)
class Observed:
    """Holds the figures of one operator that a policy decided by."""

    operator: str
    """The operator."""
    slots: Groups
    """Slots it had."""
    latency_ms: Number | None
    """Mean latency of the slowest slot over the window, in ms; null when nothing was completed."""
    bound_ms: Number | None
    """Bound that it was compared with, in ms; null where there is none."""
    floor_ms: Number
    """Latency floor, in ms."""
    arrived_per_s: Number
    """Arrivals, records per second."""
    service_per_s: Number
    """Service rate of all slots, records per second of useful time."""
    utilisation: Number
    """Useful time over wall time, of the busiest slot."""
    backlog: Count
    """Records arrived and not yet completed, and those that wait at the source to be read."""


@dataclass(frozen=True)
class GroupRecords:
    """Counts records of one operator by key group."""

    operator: str
    """The operator."""
    groups: list[Whole]
    """Key groups with any, ascending."""
    records: list[Whole]
    """Records of each of them."""


@dataclass(frozen=True)
class Wish:
    """Holds the change of one operator that a decision wants."""

    operator: str
    """The operator."""
    kind: str
    """scale-out, scale-in, balance or rescale."""
    slots: Groups
    """Slots it shall have."""
    groups_moved: Count
    """Key groups that change their slot."""


@dataclass(frozen=True)
class MemoryUse:
    """Holds the size and the moves of a query's state on its hosts, where memory has a bound."""

    memory_bytes: Whole
    """Bytes of tables in memory after the batch, and of what undoes their last step; all hosts."""
    cold_bytes: Whole
    """Likewise in spill directories."""
    groups_back: Whole
    """Key groups that were moved into memory before the batch was served."""
    groups_away: Whole
    """Key groups that were moved out of it."""
    groups_cold: Whole
    """Key groups that were served where they lay on disk."""
    moving_ms: Number
    """What moving took the slot that moved longest, in ms."""
