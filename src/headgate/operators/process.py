"""A processor over the key groups of one slot: its entries as rows of their tables.

A row is ``[meta | key nulls, key words ..., variable, entry nulls, entry words ... | value nulls, value
words ...]``: the key of a row is (key, variable, entry), so that an entry is found, undone and logged by
itself. All variables share one width; what a variable does not need is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.aggregate import NEVER_US, interned
from headgate.operators.numbering import Distinct
from headgate.operators.processor import (
    Keyed,
    ProcessorSpec,
    State,
    Variable,
    fitted,
    from_number,
    number_leaf,
    to_number,
)
from headgate.operators.spec import Kind, Leaf
from headgate.state.ports import Table, TableLayout

if TYPE_CHECKING:
    from headgate.operators.serve import Step

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EntryLayout:
    """Where everything lies in a row.

    Attributes
    ----------
    table : TableLayout
    key_at : tuple of int
        Word of each key leaf within the key part.
    variable_at : int
        Word of the variable's number within the key part; the words of the key are before it, those
        of the entry after it.
    entry_leaves, value_leaves : tuple of tuple of Leaf
        Per variable.
    string_words : tuple of int
        Words of a whole row that hold interned strings.
    """

    table: TableLayout
    key_at: tuple[int, ...]
    variable_at: int
    entry_leaves: tuple[tuple[Leaf, ...], ...]
    value_leaves: tuple[tuple[Leaf, ...], ...]
    string_words: tuple[int, ...]


def entry_layout(keys: tuple[Leaf, ...], variables: tuple[Variable, ...]) -> EntryLayout:
    """Return where the entries of `variables` lie."""
    key_at, at = [], 1
    for leaf in keys:
        key_at.append(at)
        at += leaf.words
    entries = tuple(_leaves(variable.entry) for variable in variables)
    values = tuple(_leaves(variable.values) for variable in variables)
    entry_words = 1 + max((len(leaves) for leaves in entries), default=0)
    value_words = 1 + max((len(leaves) for leaves in values), default=0)
    strings = [1 + w for w, x in zip(key_at, keys, strict=True) if x.kind is Kind.BYTES]
    table = TableLayout(key_words=at + 1 + entry_words, fresh=(0,) * value_words)
    return EntryLayout(table, tuple(key_at), at, entries, values, tuple(strings))


def _leaves(schema: pa.Schema) -> tuple[Leaf, ...]:
    leaves = [number_leaf(column.type) for column in schema]
    return tuple(leaf for leaf in leaves if leaf is not None)


@dataclass(frozen=True)
class _Group:
    """One key group during a step.

    Attributes
    ----------
    group : int
    table : Table
        Begun.
    start : int
        Its first row among those chosen.
    base : int
        Position of its first key among the keys of the call.
    keys : Distinct
        Its keys as words.
    """

    group: int
    table: Table
    start: int
    base: int
    keys: Distinct

    @property
    def end(self) -> int:
        """Position behind its last key."""
        return self.base + len(self.keys.rows)

    def of(self, positions: I64) -> tuple[int, int]:
        """Return from where to where ascending `positions` are this group's."""
        ends = np.searchsorted(positions, [self.base, self.end])
        return int(ends[0]), int(ends[1])


class ProcessorOperator:
    """Runs one `ProcessorSpec`; holds no state of its own."""

    def __init__(self, spec: ProcessorSpec) -> None:
        self.spec = spec
        self._variables = spec.variables
        self.layout: EntryLayout = entry_layout(spec.keys, self._variables)
        self._value_start = 1 + self.layout.table.key_words

    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns: ``k0 ..`` as leaves, ``v0 ..`` in their own types."""
        fields = [pa.field(f"k{i}", codec.arrow_type(x)) for i, x in enumerate(self.spec.keys)]
        inputs = enumerate(self.spec.processor.inputs)
        return pa.schema(fields + [pa.field(f"v{i}", column.type) for i, column in inputs])

    def schema(self) -> pa.Schema:
        """Return the schema of what is put out: ``v0 ..``."""
        return pa.schema([pa.field(f"v{i}", x.type) for i, x in enumerate(self.spec.outputs)])

    def run(self, step: Step, chosen: pa.Table, starts: I64) -> pa.RecordBatch:
        """Serve `chosen`, rows ``starts[g]:starts[g + 1]`` of which are key group g's, in one call.

        The groups are held all at once; what the call changed is written afterwards, group by group.
        """
        words = self._key_words(chosen)
        held: list[_Group] = []
        taken: list[int] = []
        output = pa.RecordBatch.from_pylist([], schema=self.schema())
        changes: list[_Change] = []
        try:
            for group, state in step.request.groups.items():
                start, stop = int(starts[group]), int(starts[group + 1])
                if start < stop or state.snapshot:
                    table = step.acquire(group)
                    taken.append(group)
                    table.begin()
                    keys = Distinct(interned(table, words.matrix, words.strings, start, stop))
                    base = held[-1].end if held else 0
                    held.append(_Group(group, table, start, base, keys))
            if held and held[-1].end:
                output, changes = self._served(chosen, held)
            for one in held:
                self._write(one, changes)
                step.half_written(one.group)
                step.commit(
                    one.group,
                    one.table,
                    watermark_us=step.request.watermark_us,
                    due_us=int(NEVER_US),
                    strings=self.layout.string_words,
                )
        finally:
            for group in taken:
                step.release(group)
        return output

    def _served(self, chosen: pa.Table, held: list[_Group]) -> tuple[pa.RecordBatch, list[_Change]]:
        """Call the processor with the keys of `held`; return what goes out and what changed."""
        by_key = [np.argsort(one.keys.of, kind="stable") for one in held]
        order = [one.start + rows for one, rows in zip(held, by_key, strict=True)]
        of = [one.base + one.keys.of[rows] for one, rows in zip(held, by_key, strict=True)]
        first = [one.start + one.keys.first for one in held]
        state = State(self._variables, self._entries(held), held[-1].end)
        output = self._call(chosen, _joined(order), _joined(first), _joined(of), state)
        return output, self._encoded(state)

    def rehearse(self) -> None:
        """Call the processor with no keys at all, so that what it compiles or loads is there."""
        arriving = self.input_schema().empty_table()
        nothing = _joined([])
        state = State(self._variables, self._entries([]), 0)
        self._call(arriving, nothing, nothing, nothing, state)
        self._encoded(state)
        words = np.zeros((1, self.layout.variable_at), dtype=np.int64)
        Distinct(words).find(words)

    # -- what the call is given ---------------------------------------------------------------------

    def _key_words(self, chosen: pa.Table) -> codec.Words:
        columns = [_whole(chosen.column(f"k{i}")) for i in range(len(self.spec.keys))]
        return codec.encode(columns, self.spec.keys, self.layout.key_at, self.layout.variable_at)

    def _call(
        self, chosen: pa.Table, order: I64, first: I64, of: I64, state: State
    ) -> pa.RecordBatch:
        """Call the processor with its keys and its rows, by key, each key's in the order they came."""
        processor = self.spec.processor
        columns = [
            from_number(_whole(chosen.column(f"k{i}")).take(pa.array(first)), column.type)
            for i, column in enumerate(processor.keys)
        ]
        keys = pa.RecordBatch.from_arrays(columns, schema=processor.keys)
        inputs = [
            _whole(chosen.column(f"v{i}")).take(pa.array(order)).cast(column.type)
            for i, column in enumerate(processor.inputs)
        ]
        batch = pa.RecordBatch.from_arrays(inputs, schema=processor.inputs)
        what = f"the output of {type(processor).__name__}"
        output = fitted(
            processor.handleBatch(keys, Keyed(of, batch), state), self.spec.outputs, what
        )
        return pa.RecordBatch.from_arrays(output.columns, schema=self.schema())

    def _entries(self, held: list[_Group]) -> Mapping[str, Keyed]:
        """Return the entries of all keys of the call, per variable."""
        rows_of, of_of = [], []
        key_words = self.layout.variable_at
        for one in held:
            live = one.table.live()
            of = one.keys.find(one.table.rows[live, 1 : 1 + key_words])
            mine = of >= 0
            rows_of.append(one.table.rows[live[mine]])
            of_of.append(one.base + of[mine])
        width = self.layout.table.width
        rows = np.concatenate([np.zeros((0, width), dtype=np.int64), *rows_of])
        of = _joined(of_of)
        order = np.argsort(of, kind="stable")
        rows, of = rows[order], of[order]
        found = {}
        for index, variable in enumerate(self._variables):
            mine = rows[:, 1 + key_words] == index
            found[variable.name] = Keyed(of[mine], self._decoded(index, rows[mine]))
        return found

    def _decoded(self, index: int, rows: I64) -> pa.RecordBatch:
        layout, variable = self.layout, self._variables[index]
        nothing = codec.Strings(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8))
        columns = []
        for leaves, at in (
            (layout.entry_leaves[index], 2 + layout.variable_at),
            (layout.value_leaves[index], self._value_start),
        ):
            positions = range(1, 1 + len(leaves))
            columns += codec.decode(rows[:, at:], leaves, positions, nothing)
        typed = [from_number(c, f.type) for c, f in zip(columns, variable.schema, strict=True)]
        return pa.RecordBatch.from_arrays(typed, schema=variable.schema)

    # -- what the call changed ----------------------------------------------------------------------

    def _encoded(self, state: State) -> list[_Change]:
        """Return all changes as words, removals first, each by key."""
        changes = []
        for index, variable in enumerate(self._variables):
            mine = state.changes[variable.name]
            for of, rows in mine.removed:
                changes.append(self._change(index, of, rows, put=False))
            for of, rows in mine.put:
                changes.append(self._change(index, of, rows, put=True))
        return changes

    def _change(self, index: int, of: I64, rows: pa.RecordBatch, *, put: bool) -> _Change:
        layout = self.layout
        order = np.argsort(of, kind="stable")
        entry = np.zeros((len(of), layout.table.key_words - layout.variable_at), dtype=np.int64)
        entry[:, 0] = index
        leaves = layout.entry_leaves[index]
        entry[:, 1 : 2 + len(leaves)] = _numbers(rows, 0, leaves)
        values = None
        if put:
            value_leaves = layout.value_leaves[index]
            values = np.zeros((len(of), len(layout.table.fresh)), dtype=np.int64)
            values[:, : 1 + len(value_leaves)] = _numbers(rows, len(leaves), value_leaves)
            values = values[order]
        return _Change(of[order], entry[order], values)

    def _write(self, one: _Group, changes: list[_Change]) -> None:
        for change in changes:
            start, stop = one.of(change.of)
            if start == stop:
                continue
            keys = np.concatenate(
                [one.keys.rows[change.of[start:stop] - one.base], change.entry[start:stop]], axis=1
            )
            if change.values is None:
                index = one.table.find(keys)
                one.table.delete(index[index >= 0])
            else:
                index = one.table.upsert(keys)
                one.table.rows[index, self._value_start :] = change.values[start:stop]


@dataclass(frozen=True)
class _Change:
    """Entries to put (with values) or to remove.

    Attributes
    ----------
    of : int64[n], ascending
        Position of each entry's key in the call.
    entry : int64[n, variable and entry words]
    values : int64[n, value words] or None
    """

    of: I64
    entry: I64
    values: I64 | None


def _numbers(rows: pa.RecordBatch, first: int, leaves: tuple[Leaf, ...]) -> I64:
    """Return int64[n, 1 + leaves]: null bits and words of the columns from `first` on."""
    if not leaves:
        return np.zeros((rows.num_rows, 1), dtype=np.int64)
    columns = [to_number(rows.column(first + i), leaf) for i, leaf in enumerate(leaves)]
    at = range(1, 1 + len(leaves))
    return codec.encode(columns, leaves, at, 1 + len(leaves)).matrix


def _joined(parts: list[I64]) -> I64:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return one contiguous array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else column.combine_chunks()
