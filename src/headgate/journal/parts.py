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
    """Description of the operator, in the words of `explain`."""


@dataclass(frozen=True)
class Latency:
    """Latency of the records that one batch completed: each record's time from arrival to completion."""

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
    """Key groups that the slot owned."""
    served: Count
    """Records that the slot served."""
    backlog: Count
    """Records that the slot has received and not yet served, after the batch."""
    useful_ms: Number
    """Time spent on records, without start-up and waiting, in ms."""
    latency_mean_ms: Number | None = None
    """Mean latency of the served records, in ms; null if no latency is known."""
    latency_p95_ms: Number | None = None
    """95th percentile of the latency of the served records, in ms."""
    computing_ms: Number | None = None
    """Part of `useful_ms` in which the slot's worker ran on a core, in ms; null if not measured."""
    waited_ms: Number | None = None
    """Part of `useful_ms` in which the worker waited for a core, in ms; 0 if the kernel does not tell."""
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
    """Share of windows within the bound, mean of all key groups; null before the first window."""
    success_worst: Number | None
    """Least share of windows within the bound of any key group; null before the first window."""
    worst_group: Whole | None
    """Key group with the least share."""
    worst_operator: str | None
    """Operator of `worst_group`."""
    windows: Count
    """Judged windows, of all key groups."""
    windows_empty: Count
    """Windows that are not judged, because no record waited and none was completed in them."""
    wanted: Number
    """Share of windows that the SLO demands."""
    bound_ms: Number
    """The tightest bound in force, in ms."""
    floor_ms: Number
    """Measured latency floor, in ms, the largest of its operators; 0 while not measured."""
    loop_ms: Number
    """Processor time that the control loop has taken since the last batch, in ms."""
    cycles: Count
    """Cycles of the control loop since the last batch."""
    by_operator: dict[str, Number] = field(default_factory=dict)
    """Share of windows within the bound by operator; end to end, from the newest input to its results."""
    windows_met: Count | None = None
    """Judged windows in which the SLO held; null in journals of an earlier release."""
    windows_of: dict[str, tuple[Count, Count]] = field(default_factory=dict)
    """Judged windows, and judged windows in which the SLO held, by operator."""
    windows_stalled: Count = 0
    """Windows that are judged without a completion in them, because records waited. The next completions
    judge them, or they are missed as soon as the waiting records are late. Journals of an earlier release
    do not count them."""
    held_until_ms: Whole | None = None
    """Until when the policy may not change the number of slots, because a user holds it; ms since
    1970, null without such a hold."""


@dataclass(frozen=True)
class Observed:
    """Holds the figures of one operator on which a policy's decision is based."""

    operator: str
    """The operator."""
    slots: Groups
    """Slots of the operator."""
    latency_ms: Number | None
    """Mean latency of the slowest slot over the window, in ms; null without a completion."""
    bound_ms: Number | None
    """Bound of the latency, in ms; null without a bound."""
    floor_ms: Number
    """Latency floor, in ms."""
    arrived_per_s: Number
    """Arrivals, records per second."""
    service_per_s: Number
    """Service rate of all slots, records per second of useful time."""
    utilisation: Number
    """Useful time over wall time, of the busiest slot."""
    backlog: Count
    """Records that have arrived and are not completed, and records that the source has not read yet."""


@dataclass(frozen=True)
class GroupRecords:
    """Counts records of one operator by key group."""

    operator: str
    """The operator."""
    groups: list[Whole]
    """Key groups with at least one record, ascending."""
    records: list[Whole]
    """Records of each of these key groups."""


@dataclass(frozen=True)
class Wish:
    """Holds the change that a decision asks for, of one operator."""

    operator: str
    """The operator."""
    kind: str
    """scale-out, scale-in, balance or rescale."""
    slots: Groups
    """New number of slots."""
    groups_moved: Count
    """Key groups that change their slot."""


@dataclass(frozen=True)
class MemoryUse:
    """Holds the size and the moves of a query's state on its hosts, if memory has a bound."""

    memory_bytes: Whole
    """Bytes of tables and of their undo files in memory after the batch; all hosts."""
    cold_bytes: Whole
    """The same in spill directories."""
    groups_back: Whole
    """Key groups that were moved into memory before the batch was served."""
    groups_away: Whole
    """Key groups that were moved out of memory."""
    groups_cold: Whole
    """Key groups that were served on disk."""
    moving_ms: Number
    """Longest time that one slot spent on moves, in ms."""
