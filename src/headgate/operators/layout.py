"""Maps each leaf of an `AggregateSpec` to the words of a row, as arrays for the kernels.

A row is ``[meta | key nulls, key words ..., slice start | value nulls, value words ...]``; null bits take
as many words as they need (`codec.null_at`). If values of records are stored one by one
(`AggregateSpec.kept`), each value has a row of its own. The key of such a row has three more parts: a tag
(0 for the aggregates' row, else 1 + the number of the collection), the record's place if the collection
is a list, and the words of the value. The row's last value word counts equal values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.operators.codec import null_at, null_words, positions
from headgate.operators.spec import AggregateSpec, Kind, Leaf, Op
from headgate.tables.ports import TableLayout

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """Holds the positions of all leaves."""

    table: TableLayout
    key_at: tuple[int, ...]
    """Word of each key leaf within the key part."""
    time_at: int
    """Word of the slice start within the key part, or -1."""
    value_at: tuple[int, ...]
    """Word of each value leaf within the value part."""
    value_leaves: tuple[Leaf, ...]
    leaves: I64
    """int64[L, 5]: per value leaf: word, words, kind, null bit, word of the null bit."""
    ops: I64
    """int64[A, 6]: per aggregate: op, first leaf, leaves, first extra leaf, extra leaves, checked."""
    string_words: tuple[int, ...]
    """Words of a whole row that hold interned strings."""
    tag_at: int
    place_at: int
    """`tag_at`, `place_at`: words within the key part, -1 without collections; the words of the
    collections' leaves follow."""
    kept_at: tuple[tuple[int, ...], ...]
    """Word of each leaf within the key part, by collection."""
    count_at: int
    """Word within the value part that counts equal values, -1 without collections."""

    @property
    def value_start(self) -> int:
        """First word of the value part in a whole row."""
        return 1 + self.table.key_words


def row_layout(spec: AggregateSpec) -> RowLayout:
    """Return the row layout of `spec`."""
    key_at, at = positions(spec.keys)
    time_at = -1
    if spec.time is not None:
        time_at, at = at, at + 1
    tag_at = place_at = -1
    kept_at: list[tuple[int, ...]] = []
    if spec.kept:
        tag_at, place_at, at = at, at + 1, at + 2
    for kept in spec.kept:
        words, width = positions(kept.leaves)
        kept_at.append(tuple(at + word - 1 for word in words))
        at += width - 1
    key_words = at
    value_leaves = tuple(leaf for a in spec.aggregates for leaf in a.all_leaves)
    value_at, value_words = positions(value_leaves)
    leaves = np.array(
        [
            (word, leaf.words, int(leaf.kind), *reversed(null_at(number)))
            for number, (word, leaf) in enumerate(zip(value_at, value_leaves, strict=True))
        ],
        dtype=np.int64,
    ).reshape(-1, 5)
    ops: list[list[int]] = []
    nulls = [0] * null_words(len(value_leaves))
    begins: list[tuple[int, float | int | None]] = []
    first = 0
    for aggregate in spec.aggregates:
        count, extra = len(aggregate.leaves), len(aggregate.extra)
        if aggregate.program is not None:
            begins += zip(range(first, first + count), aggregate.program.initial, strict=True)
        row = (aggregate.op, first, count, first + count, extra, aggregate.checked)
        ops.append([int(x) for x in row])
        for i in range(count + extra):
            if aggregate.program is None and not _starts_at_zero(aggregate.op, i):
                _set_null(nulls, first + i)
        first += count + extra
    count_at = -1
    if spec.kept:
        # one more aggregate: the count of equal values, which no arriving column holds
        count_at, value_words = value_words, value_words + 1
        # COUNT reads no null bit, so any bit serves
        leaves = np.vstack([leaves, [(count_at, 1, int(Kind.INTEGER), 0, 0)]])
        ops.append([int(Op.COUNT), first, 1, first + 1, 0, 0])
    words_of = [0] * (value_words - len(nulls))
    for leaf, value in begins:
        if value is None:
            _set_null(nulls, leaf)
        else:
            is_float = value_leaves[leaf].kind is Kind.FLOAT
            kind = np.float64 if is_float else np.int64
            words_of[value_at[leaf] - len(nulls)] = int(np.array(value, dtype=kind).view(np.int64))
    fresh = (*nulls, *words_of)
    strings = [1 + w for w, x in zip(key_at, spec.keys, strict=True) if x.kind is Kind.BYTES]
    for kept, words in zip(spec.kept, kept_at, strict=True):
        strings += [1 + w for w, x in zip(words, kept.leaves, strict=True) if x.kind is Kind.BYTES]
    value_start = 1 + key_words
    strings += [
        value_start + w for w, x in zip(value_at, value_leaves, strict=True) if x.kind is Kind.BYTES
    ]
    return RowLayout(
        table=TableLayout(key_words=key_words, fresh=fresh),
        key_at=key_at,
        time_at=time_at,
        value_at=value_at,
        value_leaves=value_leaves,
        leaves=leaves,
        ops=np.array(ops, dtype=np.int64).reshape(-1, 6),
        string_words=tuple(strings),
        tag_at=tag_at,
        place_at=place_at,
        kept_at=tuple(kept_at),
        count_at=count_at,
    )


def _set_null(nulls: list[int], leaf: int) -> None:
    word, bit = null_at(leaf)
    nulls[word] |= 1 << bit


def _starts_at_zero(op: Op, leaf_index: int) -> bool:
    """Return whether a fresh buffer's leaf is 0 instead of null."""
    return (
        op in (Op.COUNT, Op.REGISTERS)
        or (op is Op.SUM_DECIMAL and leaf_index == 1)
        or (op in (Op.FIRST, Op.LAST) and leaf_index == 0)
    )
