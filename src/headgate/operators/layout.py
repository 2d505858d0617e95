"""Where each leaf of an `AggregateSpec` lies in a row, as arrays for the kernels.

A row is ``[meta | key nulls, key words ..., slice start | value nulls, value words ...]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.operators.codec import positions
from headgate.operators.spec import AggregateSpec, Kind, Leaf, Op
from headgate.state.ports import TableLayout

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """Positions of all leaves.

    Attributes
    ----------
    table : TableLayout
    key_at : tuple of int
        Word of each key leaf within the key part (word 0 there holds the null bits).
    time_at : int
        Word of the slice start within the key part, or -1.
    value_at : tuple of int
        Word of each value leaf within the value part (word 0 there holds the null bits).
    value_leaves : tuple of Leaf
    leaves : int64[L, 4]
        Per value leaf: word, words, kind, null bit.
    ops : int64[A, 6]
        Per aggregate: op, first leaf, leaves, first extra leaf, extra leaves, checked.
    string_words : tuple of int
        Words of a whole row that hold interned strings.
    """

    table: TableLayout
    key_at: tuple[int, ...]
    time_at: int
    value_at: tuple[int, ...]
    value_leaves: tuple[Leaf, ...]
    leaves: I64
    ops: I64
    string_words: tuple[int, ...]

    @property
    def value_start(self) -> int:
        """First word of the value part in a whole row."""
        return 1 + self.table.key_words


def row_layout(spec: AggregateSpec) -> RowLayout:
    """Return where everything in `spec` lies."""
    key_at, at = positions(spec.keys)
    time_at = -1
    if spec.time is not None:
        time_at, at = at, at + 1
    key_words = at
    value_leaves = tuple(leaf for a in spec.aggregates for leaf in a.all_leaves)
    value_at, value_words = positions(value_leaves)
    leaves = np.array(
        [
            (word, leaf.words, int(leaf.kind), bit)
            for bit, (word, leaf) in enumerate(zip(value_at, value_leaves, strict=True))
        ],
        dtype=np.int64,
    ).reshape(-1, 4)
    ops, nulls = [], 0
    first = 0
    for aggregate in spec.aggregates:
        count, extra = len(aggregate.leaves), len(aggregate.extra)
        row = (aggregate.op, first, count, first + count, extra, aggregate.checked)
        ops.append([int(x) for x in row])
        for i in range(count + extra):
            if not _starts_at_zero(aggregate.op, i):
                nulls |= 1 << (first + i)
        first += count + extra
    fresh = (nulls, *([0] * (value_words - 1)))
    strings = [1 + w for w, x in zip(key_at, spec.keys, strict=True) if x.kind is Kind.BYTES]
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
    )


def _starts_at_zero(op: Op, leaf_index: int) -> bool:
    """Whether a fresh buffer's leaf is 0 instead of null."""
    return (
        op is Op.COUNT
        or (op is Op.SUM_DECIMAL and leaf_index == 1)
        or (op in (Op.FIRST, Op.LAST) and leaf_index == 0)
    )
