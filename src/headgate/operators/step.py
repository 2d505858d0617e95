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
"""Columns of arriving records beside ``k0 ..`` and ``v0 ..``: key group, slice start (microseconds),
number of records in the row, arrivals of the first and of the last of these records (ms since 1970)."""

MERGED = "m"
"""Column of waiting rows: true if a slot with a share of a split key group has merged the row's records
and counted them as served."""


@dataclass(frozen=True)
class GroupState:
    """Holds the state of a key group before the step."""

    token: str
    """Name of the group's state."""
    emitted_us: int
    """Watermark up to which the group has emitted."""
    due_us: int
    """Watermark, or time stamp (`OperatorSpec.by_clock`), at which the group must emit or remove rows."""
    snapshot: bool = False
    """True if this step writes the whole state to the changelog, not only the changes."""
    stands_us: int | None = None
    """For a split group: the watermark that decides in this step whether its records are late, at all
    slots with a share of the group; the group emits up to this watermark at most. For a group whose
    split has just ended: the watermark that decides whether its records are late. Else None."""
    split: bool = False


@dataclass(frozen=True)
class Request:
    """Holds the driver's request to one slot in one step."""

    token: str
    """Name of the state after this execution of the task; 32 hexadecimal digits, never used before."""
    watermark_us: int
    """The operator's watermark."""
    groups: Mapping[int, GroupState]
    """The key groups that the slot owns."""
    chain: Callable[[int], Chain]
    """``chain(group)`` returns the `Chain` that leads to the group's token."""
    quota_records: int | None = None
    """Largest number of rows to serve; None serves all."""
    turn: int = 0
    """Number of the step; see `fair_shares`."""
    delta_ms: float = 0.0
    """Length of a tick of the control loop; 0 counts no records by tick."""
    bound_ms: float = 0.0
    """Largest latency of a served record that meets the bound of the SLO; 0 counts none."""
    origins: bool = False
    """True if the result must have `inputs`, `newest_ms` and `results`."""
    timestamp_ms: int = 0
    """Begin of the step, ms since 1970; the same in every attempt. A processor's processing time."""
    time_limit_s: float = 0.0
    """Longest time that one call of a processor may take; 0 for no limit."""
    held: frozenset[int] = frozenset()
    """Key groups on hold: their records join the backlog, their watermark stays."""
    shares: Mapping[int, int] = field(default_factory=dict)
    """Key groups of other slots of which this slot has a share, with their `GroupState.stands_us`.
    The slot merges the records of a share with each other; the merged rows wait for the owner."""


@dataclass(frozen=True)
class GroupDone:
    """Holds the state of a key group after the step; only groups that changed are reported."""

    emitted_us: int
    due_us: int
    rows: int
    """Entries in the group's table."""


@dataclass(frozen=True)
class InputCounts:
    """Holds the counts of one input of an operator; a join has two inputs, the left one first."""

    arrived: int
    executed: int
    """`arrived`, `executed`: new records, and records that the step finished: served ones, and ones
    dropped as late."""
    newest_ms: float
    """Latest arrival of a new record, ms since 1970; NaN if unknown."""


@dataclass
class Served:
    """Holds the result of a slot's work in a step."""

    output: pa.RecordBatch = field(init=False)
    """pyarrow.RecordBatch: rows that the step emits, in the operator's ``schema()``."""
    waiting: pa.Table
    """pyarrow.Table: new records that were not served, by key group, in the sequence of service; they
    join the group's backlog."""
    late: pa.Table
    """pyarrow.Table: records dropped because all their windows were emitted before; ``emitted`` is the
    watermark of the record's group."""
    partly_late: pa.Table
    """pyarrow.Table: served records of which some windows were emitted before; ``emitted`` as in
    `late`."""
    groups: dict[int, GroupDone] = field(default_factory=dict)
    """Groups whose state has a new token."""
    sections: dict[int, Section] = field(default_factory=dict)
    """Changelog sections of these groups."""
    arrived_records: int = field(kw_only=True)
    served_records: int = 0
    late_records: int = 0
    served_rows: int = 0
    touched_rows: int = 0
    """`served_rows`, `touched_rows`: rows served, and distinct entries that they changed. The ratio
    shows the gain of aggregating rows before they reach the slot."""
    taken: dict[int, int] = field(default_factory=dict)
    """Rows that were served from each group's backlog and leave it."""
    served_by_group: dict[int, int] = field(default_factory=dict)
    """Records served, by group."""
    touched_by_group: dict[int, int] = field(default_factory=dict)
    """Entries of a group that the step created, changed or removed."""
    holds_us: int = int(NEVER_US)
    """Least event time of the slot's later output, microseconds; the next operator relies on it."""
    apart: pa.Table | None = None
    """pyarrow.Table or None: merged rows of the slot's shares of other slots' key groups, by group; they
    join the backlog of the groups' owners. None if the slot served no share."""
    apart_holds_us: dict[int, int] = field(default_factory=dict)
    """Largest watermark that this slot's waiting records allow, by split group."""
    merged_rows: int = 0
    """Served rows that another slot had merged; `served_records` does not count their records."""
    latency: tuple[F64, F64] = (np.zeros(0), np.zeros(0))
    """(float64[n], float64[n]): latency in ms, and weight in records, of the served records."""
    counts: Counts | None = None
    """Arrivals and completions by tick; None if `Request.delta_ms` is 0."""
    inputs: tuple[InputCounts, ...] = ()
    """Counts of each input. Empty, like `newest_ms` and `results`, unless `Request.origins` is set."""
    newest_ms: dict[int, dict[int, float]] = field(default_factory=dict)
    """Latest arrival of a served record by key group and slice, ms since 1970; empty unless the
    operator waits for time."""
    results: dict[int, dict[int, int]] = field(default_factory=dict)
    """Number of emitted results by key group and window end; empty unless the operator waits."""


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
        """Count a group's results by the end of their window, if the request asks for origins."""
        if self.request.origins and len(ends_us):
            ends, counts = np.unique(ends_us, return_counts=True)
            self.served.results[group] = dict(zip(ends.tolist(), counts.tolist(), strict=True))

    def half_written(self, group: int) -> None:
        """Call `on_group` for a group that is written and not committed yet; for fault tests."""
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
            Changed rows, as for `Table.section`; not for a snapshot.
        """
        snapshot = self.request.groups[group].snapshot
        # before `compact`, which forgets the changed rows
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
        """Release a group's table; without a `commit` the table stays dirty."""
        self.store.release(group)


def slice_starts(time: TimeKey | None, table: pa.Table) -> I64:
    """Return the start of each arriving record's slice, microseconds; zeros without a time."""
    if time is None:
        return np.zeros(table.num_rows, dtype=np.int64)
    starts: I64 = table.column(TIME).to_numpy()
    return starts
