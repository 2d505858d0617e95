"""Encodes arriving records of an aggregate as words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.operators import codec
from headgate.tables.ports import I64, Table


@dataclass(frozen=True)
class KeptRows:
    """Holds the values of arriving records for one collection, in serving order.

    Attributes
    ----------
    present : bool[n]
        Which records are.
    keys : int64[n, key_words]
        What their rows' keys have beyond those of the aggregates.
    strings : strings of those words, not interned yet
    """

    present: codec.Mask
    keys: I64
    strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]


@dataclass(frozen=True)
class Buffers:
    """Holds arriving buffers as words, in serving order; see `headgate.operators.aggregate`.

    Attributes
    ----------
    keys : int64[n, key_words]
    key_strings : strings of the key, not interned yet
    values : int64[n, value_words]
    value_strings : strings of the values, not interned yet
    kept : tuple of KeptRows
        One for each collection of the spec.
    """

    keys: I64
    key_strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    values: I64
    value_strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    kept: tuple[KeptRows, ...] = ()


def interned(
    table: Table,
    matrix: I64,
    strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...],
    start: int,
    stop: int,
) -> I64:
    """Return records ``start:stop`` with their strings replaced by the table's ids + 1."""
    part = matrix[start:stop]
    if not strings:
        return part
    part = part.copy()
    for word, column, null in strings:
        ids = table.intern(column.offsets[start : stop + 1], column.data) + 1
        part[:, word] = ids if null is None else np.where(null[start:stop], 0, ids)
    return part
