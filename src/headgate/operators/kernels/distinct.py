"""Numbers distinct rows of words, and looks rows up in a numbered set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

I64 = npt.NDArray[np.int64]


@jit
def _same(left: I64, i: int, right: I64, j: int) -> bool:
    for word in range(left.shape[1]):
        if left[i, word] != right[j, word]:
            return False
    return True


@jit
def number(rows: I64, hashes: I64, index: I64, first: I64, of: I64) -> int:
    """Assign numbers to distinct rows by their first occurrence; return the count of distinct rows.

    Parameters
    ----------
    rows : int64[n, w]
    hashes : int64[n]    Not negative; equal for equal rows.
    index : int64[power of two]
        All 0, longer than n. Hash table that receives number + 1 of each distinct row.
    first : int64[n]    Receives the index of the first occurrence of each distinct row.
    of : int64[n]    Receives the number of each row.
    """
    mask = len(index) - 1
    count = 0
    for i in range(len(rows)):
        position = hashes[i] & mask
        while index[position] != 0 and not _same(rows, i, rows, first[index[position] - 1]):
            position = (position + 1) & mask
        if index[position] == 0:
            first[count] = i
            count += 1
            index[position] = count
        of[i] = index[position] - 1
    return count


@jit
def look_up(rows: I64, hashes: I64, known: I64, index: I64, of: I64) -> None:
    """Write to `of` each row's number in `known` (int64[k, w], distinct rows of `number`), or -1."""
    mask = len(index) - 1
    for i in range(len(rows)):
        position = hashes[i] & mask
        while index[position] != 0 and not _same(rows, i, known, index[position] - 1):
            position = (position + 1) & mask
        of[i] = index[position] - 1
