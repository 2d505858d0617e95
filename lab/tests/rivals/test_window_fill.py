"""The contents of a window after a step of the rate, by hand."""

from __future__ import annotations

import pytest

from headgate_lab.rivals.window_fill import WindowFill


def filled(rates: list[float], window_s: float = 10.0) -> WindowFill:
    fill = WindowFill(window_s)
    for second, rate in enumerate(rates):
        fill.observe(100.0 + second, rate)
    return fill


def test_at_a_constant_rate_a_window_does_not_grow() -> None:
    assert filled([5.0] * 30).growth(4.0, 5.0) == pytest.approx(1.0)


def test_after_a_step_the_window_grows_until_it_is_filled_at_the_new_rate() -> None:
    # 10 s hold 8 s at 5/s and 2 s at 15/s; 4 s later 4 s at 5/s and 6 s at 15/s.
    assert filled([5.0] * 20 + [15.0] * 2).growth(4.0, 15.0) == pytest.approx(110 / 70)
    assert filled([5.0] * 20 + [15.0] * 10).growth(4.0, 15.0) == pytest.approx(1.0)


def test_beyond_the_window_nothing_more_is_foreseen() -> None:
    fill = filled([5.0] * 20 + [15.0])
    assert fill.growth(99.0, 15.0) == fill.growth(10.0, 15.0) == pytest.approx(150 / 60)


def test_what_came_before_the_first_observation_is_taken_to_have_come_at_its_rate() -> None:
    assert filled([5.0]).growth(4.0, 5.0) == pytest.approx(1.0)


def test_at_the_start_of_a_job_the_window_is_empty() -> None:
    fill = WindowFill(10.0)
    fill.observe(1.0, 5.0)
    assert fill.growth(2.0, 5.0) == pytest.approx(3.0)
    fill.observe(9.0, 5.0)
    assert fill.growth(2.0, 5.0) == pytest.approx(10 / 9)


@pytest.mark.parametrize("window_s", [0.0, 10.0])
def test_without_a_window_or_records_there_is_no_growth(window_s: float) -> None:
    assert WindowFill(window_s).growth(4.0, 5.0) == 1.0
    assert filled([0.0] * 20, window_s).growth(4.0, 5.0) == 1.0


def test_a_clock_that_stands_still_changes_nothing() -> None:
    fill = filled([5.0] * 20)
    fill.observe(119.0, 100.0)
    assert fill.growth(4.0, 5.0) == pytest.approx(1.0)
