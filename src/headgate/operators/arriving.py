"""Encodes arriving records of an aggregate as words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headgate.operators import codec
from headgate.tables.ports import I64, Table


@dataclass(frozen=True)
class KeptRows:
    """Holds the values of arriving records for one collection, in the sequence of service."""

    present: codec.Mask
    """bool[n]: true for records that have a value for the collection."""
    keys: I64
    """int64[n, key_words]: the words that the collection adds to the key of the record's aggregates."""
    strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    """Strings of `keys`, not interned yet."""


@dataclass(frozen=True)
class Buffers:
    """Holds arriving aggregation buffers as words, in the sequence of service."""

    keys: I64
    """int64[n, key_words]."""
    key_strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    """Strings of `keys`, not interned yet."""
    values: I64
    """int64[n, value_words]."""
    value_strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...]
    """Strings of `values`, not interned yet."""
    kept: tuple[KeptRows, ...] = ()
    """Values for the collections of the spec, one element per collection."""


def interned(
    table: Table,
    matrix: I64,
    strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...],
    start: int,
    stop: int,
) -> I64:
    """Return the words of records ``start:stop``; strings are replaced by the table's ids + 1."""
    part = matrix[start:stop]
    if not strings:
        return part
    part = part.copy()
    for word, column, null in strings:
        ids = table.intern(column.offsets[start : stop + 1], column.data) + 1
        part[:, word] = ids if null is None else np.where(null[start:stop], 0, ids)
    return part
