"""Matches rows of floating-point numbers that differ only by the sequence of their additions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

RELATIVE = 1e-9
"""Largest difference of two equal doubles, as a share of the larger. Chosen: a million additions in two
sequences differ by about 1e-13; one record more or less changes a sum of a million by 1e-6."""

RELATIVE_SINGLE = 1e-5
"""The same for numbers of 32 bits, which have seven digits. Chosen."""

FLOOR = 1e-14
"""Difference that is always allowed, as a share of 1 or of the column's largest value, if that is larger:
a sum that cancels out to about 0 has no exact digits. Chosen."""

FLOOR_OF_TYPICAL = 1e-6
"""Limit on that difference, as a share of the column's median: otherwise one outlier (a count of 2^63 for
"none", an overflow) would make all other rows equal. Larger: fewer digits of usual rows are compared.
Smaller: sums of large numbers that cancel out count as different. Chosen."""


def floor_of(largest: float, median: float) -> float:
    """Return the difference that two equal numbers of a column may always have.

    `largest`, `median`: of the column's absolute values, the median without zeros.
    """
    return max(FLOOR, min(FLOOR * largest, FLOOR_OF_TYPICAL * median))


def unmatched(want: F64, got: F64, relative: F64, floor: F64) -> tuple[list[int], list[int]]:
    """Return the rows of `want` and of `got` without a partner in a largest one-to-one matching.

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
    """Finds the rows of `got` that match a row of `want`."""

    def __init__(self, want: F64, got: F64, relative: F64, floor: F64) -> None:
        self._want, self._got, self._relative, self._floor = want, got, relative, floor
        # the column with most distinct values narrows the search
        distinct = [len(np.unique(column)) for column in got.T]
        self._by = int(np.argmax(distinct)) if distinct else -1
        self._order = np.argsort(got[:, self._by], kind="stable") if distinct else None
        self._sorted = None if self._order is None else got[self._order, self._by]

    def of(self, row: int) -> Sequence[int]:
        if self._order is None or self._sorted is None:
            return range(len(self._got))
        value = self._want[row]
        x = float(value[self._by])
        # a little wider than the tolerance, which also depends on the number in `got`
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
    """Give row `start` a partner; the rows on the path to it get other partners (Kuhn's matching)."""
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
