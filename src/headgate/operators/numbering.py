"""Numbers the distinct rows of a matrix of words, and looks up the numbers of other rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.operators.kernels.distinct import look_up, number
from headgate.tables.kernels import hash_words

I64 = npt.NDArray[np.int64]


class Distinct:
    """Numbers the distinct rows of int64[n, w] by their first occurrence.

    Attributes
    ----------
    first : int64[k]    Index of each distinct row's first occurrence.
    of : int64[n]    The number of each row.
    rows : int64[k, w]
    """

    def __init__(self, rows: I64) -> None:
        rows = np.ascontiguousarray(rows)
        self._index = np.zeros(1 << (2 * len(rows) + 1).bit_length(), dtype=np.int64)
        first = np.empty(len(rows), dtype=np.int64)
        self.of: I64 = np.empty(len(rows), dtype=np.int64)
        count = number(rows, hash_words(rows), self._index, first, self.of)
        self.first: I64 = first[:count]
        self.rows: I64 = rows[self.first]

    def find(self, rows: I64) -> I64:
        """Return the number of each of `rows` (int64[m, w]); -1 for a row without a number."""
        rows = np.ascontiguousarray(rows)
        of = np.empty(len(rows), dtype=np.int64)
        look_up(rows, hash_words(rows), self.rows, self._index, of)
        return of
