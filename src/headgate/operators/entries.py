"""Lays out a processor's entries in the tables of key groups, and finds the entries of keys.

A row is ``[meta | key nulls, key words ..., variable, number | nulls, numbers ..., texts ...]``. The
entries of a key and variable are numbered without gaps, so a lookup by row key finds each entry without
a scan of the table. A key's *head* (variable -1, number 0) has two words per list or map: the number of
its first entry, and the number of entries. A value has number 0 and needs no head. A list's entries are
numbered in their sequence. In a map, the last entry takes the number of a removed entry.

The columns of all variables share the same words: first the columns that are not texts, then interned
texts, which begin at the same word for all variables. So text words are the same in every row. An entry
with a time to live has one more word, after its other non-text columns: the time when the entry ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.leaves import from_leaf, from_leaves, leaf_of, to_leaf
from headgate.operators.processor import Variable
from headgate.operators.spec import Kind, Leaf
from headgate.tables.ports import Table, TableLayout

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

HEAD = -1
"""Variable number of a head row."""

_ENDS = Leaf(Kind.INTEGER)
"""Leaf of the time at which an entry's time to live ends, ms."""


@dataclass(frozen=True)
class Columns:
    """Holds the columns of one variable."""

    variable: Variable
    number: int
    """The variable's index, which a row's variable word holds."""
    leaves: tuple[Leaf, ...]
    """Leaves of the entry's columns; then, with a time to live, the leaf of its end."""
    at: tuple[int, ...]
    """Word of each leaf within the value part."""
    head_at: int
    """Word in a head's value part that holds the number of this variable's first entry. The next word
    holds the count. 0 for a single value, which needs no head."""

    @property
    def ends_at(self) -> int:
        """Word of the end within the value part; 0 if entries have no time to live."""
        return 0 if self.variable.ttl_ms is None else self.at[-1]

    def encoded(self, rows: pa.RecordBatch, ends_ms: int, width: int) -> codec.Words:
        """Return entries as value parts; texts are not interned yet."""
        arrays = [to_leaf(c, x) for c, x in zip(rows.columns, self.leaves, strict=False)]
        if self.ends_at:
            arrays.append(pa.array(np.full(rows.num_rows, ends_ms)))
        if not self.leaves:
            return codec.Words(np.zeros((rows.num_rows, width), dtype=np.int64), ())
        return codec.encode(arrays, self.leaves, self.at, width)

    def decoded(self, words: I64, texts: pa.Array, texts_from: int, per_row: int) -> pa.RecordBatch:
        """Return value parts as rows.

        Parameters
        ----------
        words : int64[n, value words]
        texts : pyarrow large_binary[n * per_row]    Strings for the text words of each row.
        texts_from : int    The first text word.
        """
        schema = self.variable.schema
        columns = []
        for number, (column, leaf, word) in enumerate(
            zip(schema, self.leaves, self.at, strict=False)
        ):
            if leaf.kind is Kind.BYTES:
                place = np.arange(len(words)) * per_row + (word - texts_from)
                values = texts.take(pa.array(place))
            else:
                null_word, bit = codec.null_at(number)
                bits = np.column_stack(
                    [(words[:, null_word] >> bit) & 1, words[:, word : word + leaf.words]]
                )
                (values,) = codec.decode(bits, (leaf,), (1,), _NO_TEXTS)
            columns.append(from_leaf(values, column.type))
        if not columns:
            return pa.RecordBatch.from_arrays([pa.nulls(len(words))], names=[""])
        return pa.RecordBatch.from_arrays(columns, schema=schema)


_NO_TEXTS = codec.Strings(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint8))


@dataclass(frozen=True)
class EntryLayout:
    """Maps the parts of an entry to the words of a row."""

    table: TableLayout
    keys: tuple[Leaf, ...]
    key_at: tuple[int, ...]
    """Word of each key leaf within the key part."""
    variable_at: int
    """Word of the variable within the key part; the number follows it."""
    variables: tuple[Columns, ...]
    texts_from: int
    """The first text word of the value part."""
    string_words: tuple[int, ...]
    """Words of a whole row that hold interned strings."""

    @property
    def value_at(self) -> int:
        """First word of the value part in a whole row."""
        return 1 + self.table.key_words

    @property
    def texts(self) -> int:
        """Number of text words of a row."""
        return len(self.table.fresh) - self.texts_from

    @property
    def headed(self) -> tuple[Columns, ...]:
        """Variables whose entries a key's head counts (lists and maps)."""
        return tuple(columns for columns in self.variables if columns.head_at)


def entry_layout(keys: tuple[Leaf, ...], variables: tuple[Variable, ...]) -> EntryLayout:
    """Return the layout for the entries of `variables`."""
    key_at, at = codec.positions(keys)
    leaves = [_leaves(variable) for variable in variables]
    headed = [i for i, variable in enumerate(variables) if not variable.single]
    numbers = [sum(x.words for x in own if x.kind is not Kind.BYTES) for own in leaves]
    texts = [sum(1 for x in own if x.kind is Kind.BYTES) for own in leaves]
    first = max(map(codec.null_words, map(len, leaves)), default=1)
    texts_from = max(1 + 2 * len(headed), first + max(numbers, default=0))
    words = texts_from + max(texts, default=0)
    columns = tuple(
        Columns(
            variable, index, own, _places(own, first, texts_from),
            1 + 2 * headed.index(index) if index in headed else 0,
        )
        for index, (variable, own) in enumerate(zip(variables, leaves, strict=True))
    )  # fmt: skip
    strings = [1 + w for w, x in zip(key_at, keys, strict=True) if x.kind is Kind.BYTES]
    table = TableLayout(key_words=at + 2, fresh=(0,) * words)
    strings += range(1 + table.key_words + texts_from, table.width)
    return EntryLayout(table, tuple(keys), tuple(key_at), at, columns, texts_from, tuple(strings))


def _leaves(variable: Variable) -> tuple[Leaf, ...]:
    leaves = [leaf_of(column.type) for column in variable.schema]
    ends = [] if variable.ttl_ms is None else [_ENDS]
    return (*(leaf for leaf in leaves if leaf is not None), *ends)


def _places(leaves: Sequence[Leaf], first: int, texts_from: int) -> tuple[int, ...]:
    number, text, at = first, texts_from, []
    for leaf in leaves:
        if leaf.kind is Kind.BYTES:
            at.append(text)
            text += 1
        else:
            at.append(number)
            number += leaf.words
    return tuple(at)


@dataclass(frozen=True)
class Found:
    """Holds the entries of some keys of one table."""

    of: I64
    """int64[n]: position of each entry's key among the requested keys."""
    rows: I64
    """int64[n, width]: whole rows; rows of one key and variable are sorted by number."""
    heads: I64
    """int64[keys, 2 * headed variables]: first number and count per list or map; 0 without a head."""
    texts: pa.Array
    """pyarrow large_binary[n * texts]: strings for the text words of each row."""


def find(layout: EntryLayout, table: Table, keys: I64) -> Found:
    """Return the entries of `keys` (int64[k, variable_at]: null bits and words) in `table`."""
    count = len(keys)
    headed = layout.headed
    heads = np.zeros((count, 2 * len(headed)), dtype=np.int64)
    if headed:
        at = table.find(row_keys(keys, np.arange(count), HEAD, np.zeros(count, dtype=np.int64)))
        there = at >= 0
        start = layout.value_at + 1
        heads[there] = table.rows[at[there], start : start + heads.shape[1]]
    of_parts, asked = [], []
    for columns in layout.variables:
        if columns.head_at:
            first, length = heads[:, columns.head_at - 1], heads[:, columns.head_at]
            of = np.repeat(np.arange(count), length)
            number = np.arange(len(of)) - np.repeat(np.cumsum(length) - length, length) + first[of]
        else:
            of, number = np.arange(count), np.zeros(count, dtype=np.int64)
        of_parts.append(of)
        asked.append(row_keys(keys, of, columns.number, number))
    if not asked:
        return Found(
            _NONE, np.zeros((0, layout.table.width), np.int64), heads, _texts(layout, table, [])
        )
    at = table.find(np.concatenate(asked))
    there = at >= 0
    rows = table.rows[at[there]]
    return Found(np.concatenate(of_parts)[there], rows, heads, _texts(layout, table, rows))


_NONE: I64 = np.zeros(0, dtype=np.int64)


def row_keys(keys: I64, of: I64, variable: int, number: I64) -> I64:
    """Return the key parts of rows: the words of ``keys[of]``, the variable, and the numbers."""
    made = np.empty((len(of), keys.shape[1] + 2), dtype=np.int64)
    made[:, :-2] = keys[of]
    made[:, -2] = variable
    made[:, -1] = number
    return made


def _texts(layout: EntryLayout, table: Table, rows: I64 | list[I64]) -> pa.Array:
    if not layout.texts or len(rows) == 0:
        return pa.array([], pa.large_binary())
    ids = np.asarray(rows)[:, layout.table.width - layout.texts :].ravel()
    return named(table, ids)


def named(table: Table, ids: I64) -> pa.Array:
    """Return the strings for `ids` of a table (id + 1; 0 for null) as large_binary."""
    offsets, data = table.strings()
    pool = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    none = ids == 0
    return pool.take(pa.array(ids - 1, mask=none if none.any() else None))


def decoded_keys(layout: EntryLayout, table: Table, keys: I64, schema: pa.Schema) -> pa.RecordBatch:
    """Return keys (int64[k, variable_at]) as columns of `schema`."""
    offsets, data = table.strings()
    columns = codec.decode(keys, layout.keys, layout.key_at, codec.Strings(offsets, data))
    return pa.RecordBatch.from_arrays(from_leaves(columns, schema), schema=schema)


def ended(layout: EntryLayout, rows: I64, now_ms: int) -> Mask:
    """Return a mask of rows (int64[n, width]) that are entries whose time to live is over."""
    over = np.zeros(len(rows), dtype=np.bool_)
    for columns in layout.variables:
        if columns.ends_at:
            same = rows[:, layout.value_at - 2] == columns.number
            over |= same & (rows[:, layout.value_at + columns.ends_at] <= now_ms)
    return over
