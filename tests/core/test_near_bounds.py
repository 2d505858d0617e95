"""Tests how far apart two equal numbers may be."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.core import near
from headgate.core.near import floor_of, unmatched


@pytest.mark.parametrize(
    ("relative", "share"), [(near.RELATIVE, 1e-9), (near.RELATIVE_SINGLE, 1e-5)]
)
def test_numbers_are_equal_up_to_a_share_of_the_larger(relative: float, share: float) -> None:
    for got, rest in ((1 + 0.9 * share, ([], [])), (1 + 1.1 * share, ([0], [0]))):
        numbers = np.array([[1000.0]]), np.array([[1000.0 * got]])
        assert unmatched(*numbers, np.array([relative]), np.array([near.FLOOR])) == rest


def test_numbers_about_zero_are_equal_up_to_the_floor() -> None:
    for got, rest in ((0.9e-14, ([], [])), (1.1e-14, ([0], [0]))):
        numbers = np.array([[0.0]]), np.array([[got]])
        assert unmatched(*numbers, np.array([1e-9]), np.array([near.FLOOR])) == rest


def test_one_outlier_makes_no_other_rows_equal() -> None:
    assert floor_of(1e9, 1.0) == pytest.approx(1e-6)
    assert floor_of(1e9, 1e3) == pytest.approx(1e-5)
    assert floor_of(0.5, 0.5) == pytest.approx(1e-14)
