"""Encodes arriving records of an aggregate as words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.operators import codec
from headgate.tables.ports import I64, Table


@dataclass(frozen=True)
class KeptRows:
    """Holds the values of arriving records for one collection, in serving order."""

    present: codec.Mask
    """bool[n]: which records are."""
    keys: I64
    """int64[n, key_words]: what their rows' keys have beyond those of the aggregates."""
    strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    """strings of those words, not interned yet."""


@dataclass(frozen=True)
class Buffers:
    """Holds arriving buffers as words, in serving order; see `headgate.operators.aggregate`."""

    keys: I64
    """int64[n, key_words]."""
    key_strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    """strings of the key, not interned yet."""
    values: I64
    """int64[n, value_words]."""
    value_strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    """strings of the values, not interned yet."""
    kept: tuple[KeptRows, ...] = ()
    """One for each collection of the spec."""


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
