"""Changes the tables of many key groups in one call of compiled code.

If a step has few records per key group, a call of a kernel per group takes longer than its work.
Compiled code gets a table as the addresses of its parts. Without a compiler, callers cannot use this
module, and process one table after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.core.jit import jit, jit_enabled
from headgate.tables.kernels import (
    DONE,
    UNDO_COUNT,
    UNDO_VALID,
    hash_words,
    intern,
    least,
    upsert,
)
from headgate.tables.ports import I64, U8
from headgate.tables.table import BufferTable

ENABLED = jit_enabled()
"""True if there is compiled code."""

_COUNT_WORDS = 7

(
    _ROWS, _CAPACITY, _WIDTH, _LIMIT, _UNDO, _UNDO_ROWS, _COUNTS,
    _INDEX, _INDEX_SIZE, _OFFSETS, _OFFSET_COUNT, _HEAP, _HEAP_BYTES,
) = range(13)  # fmt: skip
"""Columns of `places`: addresses and lengths of a table's parts."""

if ENABLED:
    from numba import carray, types  # type: ignore[attr-defined]
    from numba.core import cgutils
    from numba.extending import intrinsic

    def _as_pointer(_: Any, address: Any) -> Any:
        def code(__: Any, builder: Any, ___: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return types.voidptr(address), code

    _pointer: Any = intrinsic(_as_pointer)
    """Turns an address into a pointer, in compiled code."""


def places(tables: list[BufferTable]) -> I64:
    """Return int64[n, 13]: addresses and lengths of the tables' parts; valid until a table grows."""
    return np.array([table.places() for table in tables], dtype=np.int64)


@jit
def _words(address: int, count: int) -> Any:
    return carray(_pointer(address), (count,), np.int64)


@jit
def _bytes(address: int, count: int) -> Any:
    return carray(_pointer(address), (count,), np.uint8)


@jit
def _matrix(address: int, rows: int, width: int) -> Any:
    return carray(_pointer(address), (rows, width), np.int64)


@jit
def rows_of(at: Any, i: int) -> Any:
    """Return the rows of table i."""
    return _matrix(at[i, _ROWS], at[i, _CAPACITY], at[i, _WIDTH])


@jit
def floats_of(at: Any, i: int) -> Any:
    """Return the rows of table i as floats, in the same memory."""
    return carray(_pointer(at[i, _ROWS]), (at[i, _CAPACITY], at[i, _WIDTH]), np.float64)


@jit
def offsets_of(at: Any, i: int) -> Any:
    """Return the offsets of the strings of table i."""
    return _words(at[i, _OFFSETS], at[i, _OFFSET_COUNT])


@jit
def heap_of(at: Any, i: int) -> Any:
    """Return the bytes of the strings of table i."""
    return _bytes(at[i, _HEAP], at[i, _HEAP_BYTES])


@jit
def intern_each(at: Any, first: int, edges: I64, offsets: I64, data: U8, out: I64) -> int:
    """Intern strings ``edges[i, 0]:edges[i, 1]`` in table i, from table `first` on.

    Returns
    -------
    int
        Number of finished tables, counted from table 0; less than all if the next table has no room.
    """
    for i in range(first, at.shape[0]):
        start, stop = edges[i, 0], edges[i, 1]
        _, reason = intern(
            _words(at[i, _INDEX], at[i, _INDEX_SIZE]),
            offsets_of(at, i),
            heap_of(at, i),
            offsets[start : stop + 1],
            data,
            0,
            _words(at[i, _COUNTS], _COUNT_WORDS),
            out[start:stop],
        )
        if reason != DONE:
            return i
    return int(at.shape[0])


@jit
def upsert_each(at: Any, first: int, edges: I64, fresh: I64, keys: I64, out: I64) -> int:
    """Find or create rows of keys ``edges[i, 0]:edges[i, 1]`` in table i; else as `intern_each`."""
    hashes = hash_words(keys)
    for i in range(first, at.shape[0]):
        start, stop = edges[i, 0], edges[i, 1]
        _, reason = upsert(
            rows_of(at, i),
            fresh,
            keys[start:stop],
            hashes[start:stop],
            0,
            at[i, _LIMIT],
            _matrix(at[i, _UNDO], at[i, _UNDO_ROWS], 1 + at[i, _WIDTH]),
            _words(at[i, _COUNTS], _COUNT_WORDS),
            out[start:stop],
        )
        if reason != DONE:
            return i
    return int(at.shape[0])


@jit
def least_each(at: Any, word: int) -> I64:
    """Return the least value of a word in each table."""
    found = np.empty(at.shape[0], dtype=np.int64)
    for i in range(at.shape[0]):
        found[i] = least(rows_of(at, i), word)
    return found


@jit
def changed_each(at: Any, string_words: I64) -> tuple[I64, I64, I64, I64, U8]:
    """Return the rows that a step has changed; the step must not have deleted rows.

    Parameters
    ----------
    at : int64[n, 13]
        Tables of one layout.
    string_words : int64[s]
        Words of a row that hold ids of strings, plus 1.

    Returns
    -------
    (int64[n + 1], int64[m, width], int64[m, width], int64[t + 1], uint8[])
        Index of each table's first row (all -1 if a table has no valid undo log); the rows as in
        `Section.rows`; the same rows with ids of the strings that follow; offsets and bytes of these
        strings, one string per id.
    """
    starts = np.zeros(at.shape[0] + 1, dtype=np.int64)
    for i in range(at.shape[0]):
        counts = _words(at[i, _COUNTS], _COUNT_WORDS)
        if counts[UNDO_VALID] == 0:
            starts[:] = -1
            break
        starts[i + 1] = starts[i] + counts[UNDO_COUNT]
    total = max(starts[at.shape[0]], 0)
    width = at[0, _WIDTH]
    rows = np.empty((total, width), dtype=np.int64)
    offsets = np.zeros(total * string_words.shape[0] + 1, dtype=np.int64)
    copied = np.empty((total, width), dtype=np.int64)
    strings = 0
    for i in range(at.shape[0] if total else 0):
        table = rows_of(at, i)
        undo = _matrix(at[i, _UNDO], at[i, _UNDO_ROWS], 1 + width)
        known = offsets_of(at, i)
        for j in range(starts[i], starts[i + 1]):
            for w in range(width):
                rows[j, w] = table[undo[j - starts[i], 0], w]
            rows[j, 0] &= 1
            copied[j] = rows[j]
            for s in range(string_words.shape[0]):
                one = rows[j, string_words[s]]
                if one > 0:
                    offsets[strings + 1] = offsets[strings] + known[one] - known[one - 1]
                    strings += 1
                    copied[j, string_words[s]] = strings
    data = np.empty(offsets[strings], dtype=np.uint8)
    strings = 0
    for i in range(at.shape[0] if total else 0):
        known = offsets_of(at, i)
        heap = heap_of(at, i)
        for j in range(starts[i], starts[i + 1]):
            for s in range(string_words.shape[0]):
                one = rows[j, string_words[s]]
                if one > 0:
                    data[offsets[strings] : offsets[strings + 1]] = heap[
                        known[one - 1] : known[one]
                    ]
                    strings += 1
    return starts, rows, copied, offsets[: strings + 1], data
