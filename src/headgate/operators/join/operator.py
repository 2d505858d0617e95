"""Runs a join of two streams over the key groups of one slot.

A row is ``[meta | key nulls, key words ..., side, number | nulls, expiry, matched, strings ..., other
words ...]``: every record that may still match is a row, identified by its number of arrival.
`expiry` is the watermark from which on no partner can arrive.

References
----------
[STRETCH] 2.1 and 4.2: J+ with one window per side and key. Differs: all records of a step are matched
at once. New left records meet old right records, then new right records meet all left records. This
yields each pair exactly once, as serving record by record does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.arriving import interned
from headgate.operators.groupwise import Groupwise, Share, joined, whole
from headgate.operators.join.match import SideRecords, bounds_of, ordered, pairs
from headgate.operators.join.spec import LEFT, RIGHT, JoinKind, JoinSpec
from headgate.operators.numbering import Distinct
from headgate.operators.spec import BEFORE_ALL_US, NEVER_US, Kind, Leaf, TimeKey
from headgate.operators.step import Request
from headgate.tables.ports import Table, TableLayout

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SIDE, MAY_MATCH, EXPIRY, FIRST_LEAF = 0, 1, 2, 3
"""Positions of an arriving record's values: side, whether it may match, expiry, then the leaves of the
left and of the right side."""

MET = "met"
"""Column of arriving records: true if the record has matched before. Without the column, none has."""

_NUMBER_SHIFT = 32
"""Bits of a record's number for its position in the step; the step's number fills the bits above."""


@dataclass(frozen=True)
class SideLayout:
    """Maps the leaves of one side to the words of a row's value part."""

    leaves: tuple[Leaf, ...]
    at: tuple[int, ...]
    """Word of each leaf; strings come first, so a word holds a string on both sides or on neither."""


@dataclass(frozen=True)
class JoinLayout:
    """Maps the parts of a joined row to its words."""

    table: TableLayout
    key_at: tuple[int, ...]
    """Word of each key leaf within the key part."""
    side_at: int
    """Word of the side within the key part; the number follows it."""
    expiry_at: int
    matched_at: int
    """`expiry_at`, `matched_at`: words of the value part."""
    sides: tuple[SideLayout, SideLayout]
    string_words: tuple[int, ...]
    """Words of a whole row that hold interned strings."""


def join_layout(spec: JoinSpec) -> JoinLayout:
    """Return the row layout of `spec`."""
    key_at, side_at = codec.positions(spec.keys)
    nulls = max(codec.null_words(len(leaves)) for leaves in spec.sides)
    first = nulls + 2
    strings = max(sum(x.kind is Kind.BYTES for x in leaves) for leaves in spec.sides)
    sides, ends = [], []
    for leaves in spec.sides:
        string, other, at = first, first + strings, []
        for leaf in leaves:
            if leaf.kind is Kind.BYTES:
                at.append(string)
                string += 1
            else:
                at.append(other)
                other += leaf.words
        sides.append(SideLayout(leaves, tuple(at)))
        ends.append(other)
    key_words = side_at + 2
    of_key = [1 + w for w, x in zip(key_at, spec.keys, strict=True) if x.kind is Kind.BYTES]
    of_sides = range(1 + key_words + first, 1 + key_words + first + strings)
    table = TableLayout(key_words, (0,) * max(ends))
    left, right = sides
    texts = (*of_key, *of_sides)
    return JoinLayout(table, key_at, side_at, nulls, nulls + 1, (left, right), texts)


@dataclass(frozen=True)
class _Arrived:
    """Holds one side's records of a step."""

    at: I64
    """int64[n], ascending: positions among all records of the step."""
    keys: codec.Words
    values: codec.Words
    groups: I64
    """int64[n]: key group of each record."""
    may_match: Mask
    """bool[n]."""
    expiry_us: I64
    """int64[n]."""
    numbers: I64
    """int64[n]."""
    met: Mask
    """bool[n]: records that matched before they arrived here."""


@dataclass(frozen=True)
class _Rows:
    """Holds one side's records in one key group: first the stored records, then the new ones."""

    rows: I64
    """int64[n, width]: as in the table; strings are interned."""
    index: I64
    """int64[m]: table rows of the m stored records."""
    matched: Mask
    """bool[n]: records that have matched in this step."""


class JoinOperator(Groupwise):
    """Runs one `JoinSpec`."""

    spec: JoinSpec
    layout: JoinLayout

    def __init__(self, spec: JoinSpec) -> None:
        self.spec = spec
        self.layout = join_layout(spec)
        self.string_words = self.layout.string_words
        self._value_start = 1 + self.layout.table.key_words
        self._key = slice(1, 1 + self.layout.side_at)
        self._side_at = 1 + self.layout.side_at
        self._expiry_at = self._value_start + self.layout.expiry_at
        self._matched_at = self._value_start + self.layout.matched_at

    @property
    def time(self) -> TimeKey | None:
        """Event time of a record."""
        return self.spec.time

    @property
    def shared(self) -> bool:
        """Return whether every slot gets every row: true without an equality condition."""
        return self.spec.shared

    @property
    def inputs(self) -> int:
        """Number of sides."""
        return 2

    @property
    def input_column(self) -> str:
        """Column that holds the side."""
        return f"v{SIDE}"

    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns: ``t``, ``k0 ..``, ``v0 ..`` (`SIDE` and so on)."""
        spec = self.spec
        fields = [pa.field("t", pa.int64())] if spec.time is not None else []
        fields += [pa.field(f"k{i}", codec.arrow_type(x)) for i, x in enumerate(spec.keys)]
        integers = (Leaf(Kind.INTEGER),) * FIRST_LEAF
        values = enumerate([*integers, *spec.sides[LEFT], *spec.sides[RIGHT]])
        return pa.schema(fields + [pa.field(f"v{i}", codec.arrow_type(x)) for i, x in values])

    def schema(self) -> pa.Schema:
        """Return the schema of the output: ``v0 ..``, left leaves, then right ones."""
        leaves = [x for side in (LEFT, RIGHT) for x in self._put_out(side)]
        return pa.schema([pa.field(f"v{i}", codec.arrow_type(x)) for i, x in enumerate(leaves)])

    def _put_out(self, side: int) -> tuple[Leaf, ...]:
        return self.spec.sides[side][: self.spec.put_out[side]]

    def holds_us(self, watermark_us: int) -> int:
        """Return the least event time of later output, when the watermark is `watermark_us`."""
        if self.spec.holds_us is None:
            return BEFORE_ALL_US
        return watermark_us + self.spec.holds_us

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return a side's stored records: ``k0 ..``, ``number``, `MET`, and all leaves, ``v0 ..``."""
        del emitted_us  # expired records are removed already
        live, strings = table.live(), codec.Strings(*table.strings())
        rows = table.rows[live[table.rows[live, self._side_at] == part]]
        here, layout = self.layout.sides[part], self.layout
        keys = codec.decode(rows[:, self._key], self.spec.keys, layout.key_at, strings)
        numbers = pa.array(np.ascontiguousarray(rows[:, self._side_at + 1]))
        met = pa.array(rows[:, self._matched_at] != 0)
        values = codec.decode(rows[:, self._value_start :], here.leaves, here.at, strings)
        names = [f"k{i}" for i in range(len(keys))] + ["number", MET]
        names += [f"v{i}" for i in range(len(values))]
        return pa.RecordBatch.from_arrays([*keys, numbers, met, *values], names=names)

    # -- arriving records ---------------------------------------------------------------------------

    def _read(self, request: Request, chosen: pa.Table) -> tuple[_Arrived, _Arrived]:
        sides = whole(chosen.column(f"v{SIDE}")).to_numpy()
        left, right = (self._arrived(request, chosen, sides, side) for side in (LEFT, RIGHT))
        return left, right

    def _arrived(self, request: Request, chosen: pa.Table, sides: I64, side: int) -> _Arrived:
        spec, layout = self.spec, self.layout
        at = np.flatnonzero(sides == side)
        rows = chosen.take(pa.array(at))
        first = FIRST_LEAF + (len(spec.sides[LEFT]) if side == RIGHT else 0)
        values = [whole(rows.column(f"v{first + i}")) for i in range(len(spec.sides[side]))]
        keys = [whole(rows.column(f"k{i}")) for i in range(len(spec.keys))]
        here = layout.sides[side]
        return _Arrived(
            at,
            _encoded(keys, spec.keys, layout.key_at, layout.side_at, len(at)),
            _encoded(values, here.leaves, here.at, len(layout.table.fresh), len(at)),
            whole(rows.column("g")).to_numpy(),
            whole(rows.column(f"v{MAY_MATCH}")).to_numpy() != 0,
            whole(rows.column(f"v{EXPIRY}")).to_numpy(),
            (request.turn << _NUMBER_SHIFT) + at,
            _met_before(rows),
        )

    def _rows(self, table: Table, side: int, arrived: _Arrived, start: int, stop: int) -> I64:
        """Return one key group's records of a step as rows, without the texts of their values."""
        rows = np.zeros((stop - start, self.layout.table.width), dtype=np.int64)
        keys = arrived.keys
        rows[:, self._key] = interned(table, keys.matrix, keys.strings, start, stop)
        rows[:, self._side_at] = side
        rows[:, self._side_at + 1] = arrived.numbers[start:stop]
        rows[:, self._value_start :] = arrived.values.matrix[start:stop]
        rows[:, self._expiry_at] = arrived.expiry_us[start:stop]
        rows[:, self._matched_at] = arrived.met[start:stop]
        return rows

    def _name_texts(
        self, table: Table, rows: I64, arrived: _Arrived, start: int, wanted: Mask
    ) -> None:
        """Intern the texts of those rows (from record `start` on) that are stored or emitted.

        Without an equality every key group sees every record; its table and changelog need few texts.
        """
        at = np.flatnonzero(wanted)
        if len(at) == 0:
            return
        strings = codec.picked(arrived.values.strings, start + at)
        words = interned(table, rows[at, self._value_start :], strings, 0, len(at))
        rows[at, self._value_start :] = words

    # -- one key group ------------------------------------------------------------------------------

    def _serve(
        self, table: Table, work: tuple[_Arrived, _Arrived], share: Share, watermark_us: int
    ) -> pa.RecordBatch | None:
        parts: list[pa.RecordBatch] = []
        if share.stop > share.start:
            parts += self._met(table, work, share)
        parts += self._expired(table, watermark_us)
        return joined([part for part in parts if part.num_rows], self.schema())

    def _met(
        self, table: Table, work: tuple[_Arrived, _Arrived], share: Share
    ) -> list[pa.RecordBatch]:
        """Match the arriving records, store those that may match later; return the output."""
        new, may, own, starts = [], [], [], []
        for side in (LEFT, RIGHT):
            first, last = np.searchsorted(work[side].at, [share.start, share.stop])
            starts.append(int(first))
            new.append(self._rows(table, side, work[side], int(first), int(last)))
            may.append(work[side].may_match[first:last])
            own.append(may[side] & (work[side].groups[first:last] == share.group))
        keys = Distinct(np.concatenate([n[m][:, self._key] for n, m in zip(new, may, strict=True)]))
        both = [self._with_old(table, keys, side, new[side]) for side in (LEFT, RIGHT)]
        ready = [self._keyed(keys, side, both[side], may[side]) for side in (LEFT, RIGHT)]
        left_at, right_at = self._pairs(both, ready, own[LEFT], len(keys.rows))
        both[LEFT].matched[left_at] = True
        both[RIGHT].matched[right_at] = True
        kind = self.spec.kind
        for side in (LEFT, RIGHT):
            old = len(both[side].index)
            fresh, met = both[side].rows[old:], both[side].matched[old:]
            wanted = own[side] | met | (~may[side] if side in kind.padded else False)
            self._name_texts(table, fresh, work[side], starts[side], wanted)
            new[side] = fresh
        put_out = [self._padded(table, side, new[side][~may[side]]) for side in kind.padded]
        if kind is JoinKind.LEFT_SEMI:
            put_out.append(self._columns(table, both[LEFT].rows[both[LEFT].matched], None))
        else:
            lefts, rights = both[LEFT].rows[left_at], both[RIGHT].rows[right_at]
            put_out.append(self._columns(table, lefts, rights))
        for side in (LEFT, RIGHT):
            self._keep(table, side, both[side], own[side])
        return put_out

    def _with_old(self, table: Table, keys: Distinct, side: int, new: I64) -> _Rows:
        """Return a side's records: the stored ones whose key has arrived, then the new ones."""
        live = table.live()
        live = live[table.rows[live, self._side_at] == side]
        if self.spec.keys:
            live = live[keys.find(table.rows[live, self._key]) >= 0]
        rows = np.concatenate([table.rows[live], new])
        return _Rows(rows, live, np.zeros(len(rows), dtype=np.bool_))

    def _keyed(self, keys: Distinct, side: int, records: _Rows, may_match: Mask) -> SideRecords:
        rows = records.rows
        of = keys.find(rows[:, self._key])
        of[len(records.index) :][~may_match] = -1
        comparisons, here = self.spec.comparisons, self.layout.sides[side]
        columns = []
        for comparison in comparisons:
            leaf = comparison.left if side == LEFT else comparison.right
            words = np.ascontiguousarray(rows[:, self._value_start + here.at[leaf]])
            columns.append(ordered(words, here.leaves[leaf].kind))
        bounds, possible = bounds_of(side, comparisons, columns, len(rows))
        of[~possible] = -1
        return SideRecords(of, bounds)

    def _pairs(
        self, both: list[_Rows], ready: list[SideRecords], own_left: Mask, keys: int
    ) -> tuple[I64, I64]:
        """Return the left and the right positions of all pairs."""
        old = [len(records.index) for records in both]
        lefts, rights = ready
        new_left, old_right = pairs(
            _part(lefts, old[LEFT], None), _part(rights, 0, old[RIGHT]), keys, probe_side=LEFT
        )
        stored = SideRecords(lefts.of.copy(), lefts.bounds)
        stored.of[old[LEFT] :][~own_left] = -1
        new_right, all_left = pairs(_part(rights, old[RIGHT], None), stored, keys, probe_side=RIGHT)
        return (
            np.concatenate([old[LEFT] + new_left, all_left]),
            np.concatenate([old_right, old[RIGHT] + new_right]),
        )

    def _keep(self, table: Table, side: int, records: _Rows, stored: Mask) -> None:
        """Mark stored records that have matched; store new records that may match later."""
        old, kind = len(records.index), self.spec.kind
        met, new_met = records.matched[:old], records.matched[old:]
        key_words = slice(1, self._value_start)
        if kind is JoinKind.LEFT_SEMI and side == LEFT:
            table.delete(records.index[met])
            stored = stored & ~new_met
        elif side in kind.padded:
            first = met & (records.rows[:old, self._matched_at] == 0)
            index = table.upsert(records.rows[:old][first][:, key_words])
            table.rows[index, self._matched_at] = 1
        new = records.rows[old:][stored]
        new[:, self._matched_at] |= new_met[stored]
        index = table.upsert(new[:, key_words])
        table.rows[index, self._value_start :] = new[:, self._value_start :]

    def _expired(self, table: Table, watermark_us: int) -> list[pa.RecordBatch]:
        """Remove expired records; return unmatched ones of outer sides, padded with nulls."""
        live = table.live()
        gone = live[table.rows[live, self._expiry_at] <= watermark_us]
        put_out = []
        for side in self.spec.kind.padded:
            rows = table.rows[gone]
            alone = (rows[:, self._side_at] == side) & (rows[:, self._matched_at] == 0)
            put_out.append(self._padded(table, side, rows[alone]))
        table.delete(gone)
        return put_out

    def _due_us(self, table: Table) -> int:
        expiry_us = table.rows[table.live(), self._expiry_at]
        return int(expiry_us.min(initial=NEVER_US))

    # -- output -------------------------------------------------------------------------------------

    def _padded(self, table: Table, side: int, rows: I64) -> pa.RecordBatch:
        return self._columns(table, *((rows, None) if side == LEFT else (None, rows)))

    def _columns(self, table: Table, lefts: I64 | None, rights: I64 | None) -> pa.RecordBatch:
        """Return left and right columns side by side; a side that is None consists of nulls."""
        strings = codec.Strings(*table.strings())
        records = lefts if lefts is not None else rights
        assert records is not None
        columns: list[pa.Array] = []
        for side, rows in ((LEFT, lefts), (RIGHT, rights)):
            leaves, here = self._put_out(side), self.layout.sides[side]
            if rows is None:
                columns += [pa.nulls(len(records), codec.arrow_type(x)) for x in leaves]
            else:
                words = rows[:, self._value_start :]
                columns += codec.decode(words, leaves, here.at[: len(leaves)], strings)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema())


def _met_before(rows: pa.Table) -> Mask:
    if MET not in rows.column_names:
        return np.zeros(rows.num_rows, dtype=np.bool_)
    flags: Mask = whole(rows.column(MET)).to_numpy(zero_copy_only=False)
    return flags


def _part(keyed: SideRecords, start: int, stop: int | None) -> SideRecords:
    return SideRecords(keyed.of[start:stop], keyed.bounds[:, start:stop])


def _encoded(
    columns: list[pa.Array], leaves: Sequence[Leaf], at: Sequence[int], width: int, count: int
) -> codec.Words:
    """Encode columns as words; without columns, the words are zeros."""
    if not columns:
        return codec.Words(np.zeros((count, width), dtype=np.int64), ())
    return codec.encode(columns, leaves, at, width)
