"""Rows of floats are matched one to one, within a tolerance."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core.near import FLOOR, RELATIVE, floor_of, unmatched


def left(want: list[list[float]], got: list[list[float]]) -> tuple[list[int], list[int]]:
    width = len((want or got)[0])
    relative, floor = np.full(width, RELATIVE), np.full(width, FLOOR)
    sides = [np.array(side, dtype=float).reshape(len(side), width) for side in (want, got)]
    return unmatched(*sides, relative, floor)


@pytest.mark.parametrize(
    ("want", "got", "rest"),
    [
        ([[0.1 + 0.2]], [[0.3]], ([], [])),
        ([[1.0]], [[1.0 + 1e-8]], ([0], [0])),
        ([[5.6e-17]], [[0.0]], ([], [])),
        ([[1.0], [1.0]], [[1.0]], ([1], [])),
        ([[1.0]], [[1.0], [1.0]], ([], [1])),
        # sorted by the first number alone these would be paired crosswise
        ([[1.0, 5.0], [1.0 + 1e-15, 3.0]], [[1.0 + 1e-15, 5.0], [1.0, 3.0]], ([], [])),
        ([[1e300]], [[1e300 * (1 + 1e-12)]], ([], [])),
        ([], [[1.0]], ([], [0])),
    ],
)
def test_rows_match_within_the_tolerance_and_by_count(
    want: list[list[float]], got: list[list[float]], rest: tuple[list[int], list[int]]
) -> None:
    assert left(want, got) == rest


def test_a_row_gives_up_its_partner_where_it_has_another() -> None:
    step = RELATIVE * 0.9
    want = [[1.0 + step], [1.0]]
    got = [[1.0 + step], [1.0 + 2 * step]]
    assert left(want, got) == ([], [])


@pytest.mark.parametrize(
    ("largest", "median", "floor"),
    [
        (0.0, 0.0, FLOOR),  # nothing but zeros
        (5e-17, 1e-17, FLOOR),  # sums that all cancel out
        (1e9, 10.0, 1e-5),
        (1e19, 10.0, 1e-5),  # one outlier is no reason to take 10 for 90,000
        (1e19, 1e19, 1e5),
    ],
)
def test_one_large_number_does_not_widen_the_tolerance_of_all_others(
    largest: float, median: float, floor: float
) -> None:
    assert floor_of(largest, median) == pytest.approx(floor)


def test_rows_without_numbers_match_by_count() -> None:
    none = np.zeros((3, 0))
    assert unmatched(none, none[:2], np.zeros(0), np.zeros(0)) == ([2], [])
