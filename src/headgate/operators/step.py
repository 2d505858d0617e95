"""Defines `Request`, `Served` and `SlotStep`: input, result and context of a slot's work in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.counts import Counts
from headgate.operators.spec import NEVER_US, TimeKey
from headgate.tables.ports import I64, Chain, Section, Store, Table

F64 = npt.NDArray[np.float64]

GROUP, TIME, RECORDS, ARRIVED_FIRST, ARRIVED_LAST = "g", "t", "n", "a0", "a1"
"""Columns of arriving records beside ``k0 ..`` and ``v0 ..``: key group, slice start (microseconds), the
number of records that a row stands for, when the first and the last of them arrived (ms)."""

MERGED = "m"
"""Column of rows that wait: true where a row is the merged records of a share of a split key group, which
were counted as served when they were merged."""


@dataclass(frozen=True)
class GroupState:
    """Holds the state of a key group before the step."""

    token: str
    """Names the group's state."""
    emitted_us: int
    """Watermark up to which the group has emitted."""
    due_us: int
    """Watermark at which the group has something to emit or to remove."""
    snapshot: bool = False
    """True where this step shall log the whole state instead of the change."""
    stands_us: int | None = None
    """For a split group: the watermark by which its records are judged late in this step, at all
    slots that have a share of the group, and up to which it may emit. Of a group that was split
    until now: the watermark by which its records are judged late. None for other groups."""
    split: bool = False


@dataclass(frozen=True)
class Request:
    """Holds the driver's request to one slot in one step."""

    token: str
    """Names the state after this execution of the task; 32 hexadecimal digits, never used before."""
    watermark_us: int
    """The operator's watermark."""
    groups: Mapping[int, GroupState]
    """The key groups that the slot owns."""
    chain: Callable[[int], Chain]
    """``chain(group)`` is the `Chain` that leads to the group's token."""
    quota_records: int | None = None
    """The most rows to serve; None serves all."""
    turn: int = 0
    """Number of the step; see `fair_shares`."""
    delta_ms: float = 0.0
    """Length of the time slots in which records are counted for the control loop; 0 counts none."""
    bound_ms: float = 0.0
    """Latency up to which a served record counts as within the bound of an SLO; 0 counts none."""
    origins: bool = False
    """Whether the answer has the counts of each input, and the records that results are made of."""
    timestamp_ms: int = 0
    """Time at which the step began; the same in every attempt. A processor's processing time."""
    time_limit_s: float = 0.0
    """The longest that one call of a processor may take; 0 for any time."""
    held: frozenset[int] = frozenset()
    """Key groups that are not served: their records join the backlog, their watermark stays."""
    shares: Mapping[int, int] = field(default_factory=dict)
    """Key groups of other slots of which this slot has a share, with their `GroupState.stands_us`.
    The slot merges the records of a share among themselves, and the results wait for the owner."""


@dataclass(frozen=True)
class GroupDone:
    """Holds the state of a key group after the step; only groups that changed are reported."""

    emitted_us: int
    due_us: int
    rows: int
    """Entries in its table."""


@dataclass(frozen=True)
class InputCounts:
    """Holds the counts of one input of an operator; a join has two inputs, the left one first."""

    arrived: int
    executed: int
    """`arrived`, `executed`: new records, and records that were dealt with: served, or turned away
    as late."""
    newest_ms: float
    """Arrival of the newest of the new records, ms since 1970; NaN where that is not known."""


@dataclass
class Served:
    """Holds the result of a slot's work in a step."""

    output: pa.RecordBatch = field(init=False)
    """pyarrow.RecordBatch: The rows that the step emits: the operator's ``schema()``."""
    waiting: pa.Table
    """pyarrow.Table: New records not served, by key group in serving order: they join the group's
    backlog."""
    late: pa.Table
    """pyarrow.Table: Records refused because all their windows have been emitted; ``emitted`` is
    the watermark that each of them met."""
    partly_late: pa.Table
    """pyarrow.Table: Records served of which some windows were emitted already; ``emitted`` as
    above."""
    groups: dict[int, GroupDone] = field(default_factory=dict)
    """Groups whose state has a new token."""
    sections: dict[int, Section] = field(default_factory=dict)
    """Their part of the changelog."""
    arrived_records: int = field(kw_only=True)
    served_records: int = 0
    late_records: int = 0
    served_rows: int = 0
    touched_rows: int = 0
    """`served_rows`, `touched_rows`: rows merged, and the distinct entries that they went to: the
    gain of aggregating first."""
    taken: dict[int, int] = field(default_factory=dict)
    """Rows served from each group's backlog; they leave it."""
    served_by_group: dict[int, int] = field(default_factory=dict)
    """Records served, by group."""
    touched_by_group: dict[int, int] = field(default_factory=dict)
    """Entries of a group that the step created, changed or removed."""
    holds_us: int = int(NEVER_US)
    """The least watermark of the slot's groups, on which the next operator may count."""
    apart: pa.Table | None = None
    """pyarrow.Table or None: The merged rows of the slot's shares of others' key groups, by group:
    they join the backlog of the groups' owners. None where the slot served no share."""
    apart_holds_us: dict[int, int] = field(default_factory=dict)
    """Of each split group: the watermark that the backlog at this slot allows."""
    merged_rows: int = 0
    """Rows served that had been merged at another slot; their records are not among the served."""
    latency: tuple[F64, F64] = (np.zeros(0), np.zeros(0))
    """(float64[n], float64[n]): Latency in ms and weight in records, of the served records."""
    counts: Counts | None = None
    """Arrivals and completions by time slot; None where the request asked for none."""
    inputs: tuple[InputCounts, ...] = ()
    """Empty where the request does not ask for origins, as the two that follow."""
    newest_ms: dict[int, dict[int, float]] = field(default_factory=dict)
    """Arrival of the newest served record of each key group and slice; of operators that wait for
    time."""
    results: dict[int, dict[int, int]] = field(default_factory=dict)
    """Number of emitted results of each key group's windows, by the window's end; likewise."""


@dataclass(frozen=True)
class SlotStep:
    """Gives an operator its context in a step: the tables of key groups, and the log of their changes."""

    store: Store
    request: Request
    served: Served
    on_group: Callable[[int], None] | None

    def acquire(self, group: int) -> Table:
        """Return a group's table, held until `release`."""
        return self.store.acquire(
            group, self.request.groups[group].token, self.request.chain(group)
        )

    def note_results(self, group: int, ends_us: I64) -> None:
        """Note when the window of each of a group's results ends, if the request asks for origins."""
        if self.request.origins and len(ends_us):
            ends, counts = np.unique(ends_us, return_counts=True)
            self.served.results[group] = dict(zip(ends.tolist(), counts.tolist(), strict=True))

    def half_written(self, group: int) -> None:
        """Say that a group is written and not committed yet, for fault tests."""
        if self.on_group is not None:
            self.on_group(group)

    def commit(
        self,
        group: int,
        table: Table,
        *,
        watermark_us: int,
        due_us: int,
        strings: tuple[int, ...],
        rows: I64 | None = None,
    ) -> None:
        """Log the changes of a group, and give its state the step's token.

        Parameters
        ----------
        watermark_us, due_us : int
            As in `GroupDone`.
        strings : tuple of int
            Words of a row that hold interned strings.
        rows : int64[n, width], optional
            The changed rows, as `Table.section` takes them; not of a snapshot.
        """
        snapshot = self.request.groups[group].snapshot
        # a full section has all rows, and compacting forgets which
        touched = len(table.changed() if rows is None else rows)
        if snapshot:
            table.compact(strings)
        section = table.section(self.request.token, full=snapshot, rows=rows)
        self.served.sections[group] = section
        self.served.groups[group] = GroupDone(watermark_us, due_us, table.live_count)
        self.served.touched_rows += touched
        self.served.touched_by_group[group] = touched
        self.store.commit(group, self.request.token)

    def release(self, group: int) -> None:
        """Give a group up; without a `commit` its table is left dirty."""
        self.store.release(group)


def slice_starts(time: TimeKey | None, table: pa.Table) -> I64:
    """Return the start of each arriving record's slice, microseconds; zeros where there is no time."""
    if time is None:
        return np.zeros(table.num_rows, dtype=np.int64)
    starts: I64 = table.column(TIME).to_numpy()
    return starts
