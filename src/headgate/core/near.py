"""Matches rows of floating-point numbers that differ by no more than another order of addition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

RELATIVE = 1e-9
"""How far two doubles may be apart, as a share of the larger. Chosen: a million additions in another
order differ by about 1e-13; a record more or less changes a sum of a million by 1e-6."""

RELATIVE_SINGLE = 1e-5
"""The same for numbers of 32 bits, which have seven digits. Chosen."""

FLOOR = 1e-14
"""How far two numbers may be apart, as a share of the column's largest, or of 1 where that is smaller:
a sum that cancels out to 0 has no digits of its own. Chosen."""

FLOOR_OF_TYPICAL = 1e-6
"""At most this share of the column's median, or one outlier (a count of 2^63 for "none", an overflow)
would make all other rows equal to anything. With more, fewer digits of ordinary rows are compared; with
less, a sum of large numbers that cancels out is told as different. Chosen."""


def floor_of(largest: float, median: float) -> float:
    """Return how far two numbers of a column may be apart whatever they are.

    `largest`, `median`: of the column's absolute values, the second one without zeros.
    """
    return max(FLOOR, min(FLOOR * largest, FLOOR_OF_TYPICAL * median))


def unmatched(want: F64, got: F64, relative: F64, floor: F64) -> tuple[list[int], list[int]]:
    """Return which rows have no partner, where as many as possible are matched one to one.

    Rows of `want` and of `got`.

    `want`, `got` (float64[rows, numbers]): finite numbers. `relative`, `floor` (float64[numbers]):
    numbers match within ``relative * larger`` or ``floor``.
    """
    near = _Candidates(want, got, relative, floor)
    of_want = [-1] * len(want)
    of_got = [-1] * len(got)
    for start in range(len(want)):
        _augment(start, near, of_want, of_got)
    return (
        [row for row, partner in enumerate(of_want) if partner < 0],
        [row for row, partner in enumerate(of_got) if partner < 0],
    )


class _Candidates:
    """Finds the rows of one side that are near a row of the other."""

    def __init__(self, want: F64, got: F64, relative: F64, floor: F64) -> None:
        self._want, self._got, self._relative, self._floor = want, got, relative, floor
        # the number that tells most rows apart narrows the search
        distinct = [len(np.unique(column)) for column in got.T]
        self._by = int(np.argmax(distinct)) if distinct else -1
        self._order = np.argsort(got[:, self._by], kind="stable") if distinct else None
        self._sorted = None if self._order is None else got[self._order, self._by]

    def of(self, row: int) -> Sequence[int]:
        if self._order is None or self._sorted is None:
            return range(len(self._got))
        value = self._want[row]
        x = float(value[self._by])
        # a little wider than the tolerance, which depends on the other number, too
        width = 2 * max(self._relative[self._by] * abs(x), self._floor[self._by])
        low = int(np.searchsorted(self._sorted, x - width, "left"))
        high = int(np.searchsorted(self._sorted, x + width, "right"))
        rows = self._order[low:high]
        other = self._got[rows]
        larger = np.maximum(np.abs(other), np.abs(value))
        near = np.abs(other - value) <= np.maximum(self._relative * larger, self._floor)
        numbers: list[int] = rows[near.all(axis=1)].tolist()
        return numbers


def _augment(start: int, near: _Candidates, of_want: list[int], of_got: list[int]) -> None:
    """Give row `start` a partner, perhaps one whose own finds another (Kuhn's matching)."""
    came_from: dict[int, int] = {}
    queue = [start]
    for row in queue:
        for partner in near.of(row):
            if partner in came_from:
                continue
            came_from[partner] = row
            if of_got[partner] >= 0:
                queue.append(of_got[partner])
                continue
            at = partner
            while True:
                before = came_from[at]
                of_got[at], of_want[before], at = before, at, of_want[before]
                if before == start:
                    return
