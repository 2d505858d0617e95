"""Success rates: hand-made windows, and a second implementation."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.control.success import success_rates


def column(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=float)[:, None]


def none(completed: np.ndarray) -> np.ndarray:
    """Return that nothing waits at the end of any tick."""
    return np.zeros_like(completed)


def test_share_of_windows_whose_mean_latency_is_within_the_bound() -> None:
    """Windows of two ticks, by hand::

    completed     1    1    0    0    2
    latency sum   0.5  2.5  -    -    1.0
    windows of 2  [mean 1.5]
                       [2.5]
                            [none]
                                 [0.5]
    """
    completed = column([1, 1, 0, 0, 2])
    found = success_rates(
        completed, column([0.5, 2.5, 0, 0, 1.0]), none(completed), window_ticks=2, bound_s=1.0
    )
    assert found.windows == 4
    assert found.empty.tolist() == [1]
    assert found.rate.tolist() == [pytest.approx(1 / 3)]


def test_a_mean_equal_to_the_bound_is_within_it() -> None:
    """Also where the sum of ten times 0.7 s is a little more than 7 s."""
    completed = column([1] * 30)
    latency = column([0.7] * 30)
    found = success_rates(completed, latency, none(completed), window_ticks=10, bound_s=0.7)
    assert found.rate.tolist() == [1.0]


def test_windows_of_one_tick_are_the_ticks() -> None:
    completed = column([1, 1, 1])
    latency = column([0.5, 2.0, 0.5])
    found = success_rates(completed, latency, none(completed), window_ticks=1, bound_s=1.0)
    assert found.rate.tolist() == [pytest.approx(2 / 3)]


def test_each_group_counts_by_itself_and_one_without_completions_not_at_all() -> None:
    completed = np.array([[1.0, 1.0, 0.0]] * 4)
    latency = np.array([[0.5, 2.0, 0.0]] * 4)
    found = success_rates(completed, latency, none(completed), window_ticks=2, bound_s=1.0)
    assert found.rate[:2].tolist() == [1.0, 0.0]
    assert np.isnan(found.rate[2])
    assert found.empty.tolist() == [0, 0, 3]
    assert found.mean == 0.5


def test_a_run_shorter_than_the_window_has_no_success() -> None:
    found = success_rates(column([1]), column([0.5]), column([0]), window_ticks=2, bound_s=1.0)
    assert found.windows == 0
    assert np.isnan(found.mean)


def test_a_window_in_which_records_waited_and_none_was_completed_is_missed() -> None:
    """By hand::

    arrived       1    .    .    .    .
    completed     .    .    .    1    .
    latency                     3.0
    windows of 1  miss miss miss miss [left out]
    """
    found = success_rates(
        column([0, 0, 0, 1, 0]),
        column([0, 0, 0, 3.0, 0]),
        column([1, 1, 1, 0, 0]),
        window_ticks=1,
        bound_s=1.0,
    )
    assert found.rate.tolist() == [0.0]
    assert found.stalled.tolist() == [3]
    assert found.empty.tolist() == [1]


def test_a_record_that_is_served_within_its_bound_misses_no_window_on_its_way() -> None:
    """Where serving one takes several ticks, there are windows in which it is on its way."""
    completed = column([0, 0, 0, 1, 0])
    latency, waiting = column([0, 0, 0, 0.4, 0]), column([1, 1, 1, 0, 0])
    found = success_rates(completed, latency, waiting, window_ticks=1, bound_s=1.0)
    assert found.rate.tolist() == [1.0]
    assert found.stalled.tolist() == [3]


def test_records_that_are_never_served_are_late() -> None:
    completed, latency = column([1, 0, 0, 0]), column([0.1, 0, 0, 0])
    found = success_rates(completed, latency, column([0, 5, 9, 9]), window_ticks=1, bound_s=1.0)
    assert found.rate.tolist() == [0.25]
    assert (found.mean, found.worst) == (0.25, 0.25)


@pytest.mark.parametrize("window", [1, 3, 7, 50])
def test_agrees_with_a_loop_over_windows(window: int) -> None:
    """Two implementations agree."""
    rng = np.random.default_rng(window)
    completed = rng.poisson(0.4, (50, 5)).astype(float)
    latency = completed * rng.exponential(0.8, completed.shape)
    waiting = rng.poisson(0.7, completed.shape).astype(float)
    found = success_rates(completed, latency, waiting, window_ticks=window, bound_s=0.7)
    for group in range(5):
        within = []
        for end in range(window, 51):
            count = completed[end - window : end, group].sum()
            if count:
                within.append(latency[end - window : end, group].sum() / count <= 0.7)
            elif waiting[end - 1, group]:
                later = [i for i in range(end, 50) if completed[i, group]]
                next_mean = latency[later[0], group] / completed[later[0], group] if later else 9.9
                within.append(next_mean <= 0.7)
        assert found.empty[group] == 51 - window - len(within)
        if within:
            assert found.rate[group] == pytest.approx(np.mean(within))
