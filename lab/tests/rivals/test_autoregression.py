"""What is forecast from a series' own last values, and when a line takes its place."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError, NotReady
from headgate_lab.rivals.autoregression import Autoregression
from headgate_lab.rivals.workload import CheckedForecast, line, wape


def trained(values: object) -> Autoregression:
    made = Autoregression()
    for value in np.asarray(values, dtype=float).tolist():
        made.observe(value)
    made.train()
    return made


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0.0, 1.0, count)


def test_a_steady_series_returns_to_its_mean_by_its_weights() -> None:
    values, shocks = [0.0], noise(3000)
    for shock in shocks.tolist():
        values.append(0.8 * values[-1] + shock)
    made = trained([50.0 + value for value in values])
    assert made.name == "arima(1, 0, 0)"
    mean, last = 50.0 + np.mean(values), 50.0 + values[-1]
    path = made.path(400)
    assert path[:3] == pytest.approx([mean + 0.8**k * (last - mean) for k in (1, 2, 3)], abs=0.2)
    assert path[-1] == pytest.approx(mean, abs=1e-3)


def test_a_series_that_wanders_is_differenced_and_stays_where_it_is() -> None:
    made = trained(500.0 + np.cumsum(noise(900)))
    assert made.name == "arima(0, 1, 0)"
    assert len(set(made.path(50).tolist())) == 1


def test_the_weights_follow_what_comes_after_the_training() -> None:
    made = trained(np.tile([10.0, 20.0], 100))
    assert made.path(2) == pytest.approx([10.0, 20.0], abs=0.2)
    made.observe(10.0)
    assert made.path(2) == pytest.approx([20.0, 10.0], abs=0.2)


def test_a_constant_goes_on_and_nothing_is_below_zero() -> None:
    assert trained([0.1] * 70).path(3) == pytest.approx([0.1] * 3)
    falling = np.linspace(300.0, 1.0, 300)
    assert trained(falling + 0.01 * noise(300)).path(500).min() >= 0.0


def test_nothing_is_forecast_before_the_training_and_too_short_a_memory_is_refused() -> None:
    with pytest.raises(NotReady, match="trained"):
        Autoregression().path(1)
    with pytest.raises(ConfigError, match="autoregression: memory="):
        Autoregression(2)


@given(st.lists(st.sampled_from([0.0, 5e-324, 0.3, 7.0, 1e15]), min_size=1, max_size=70))
def test_whatever_it_sees_a_path_is_finite(values: list[float]) -> None:
    path = trained(values).path(200)
    assert np.isfinite(path).all()
    assert (path >= 0.0).all()


@pytest.mark.parametrize(
    ("seen", "foreseen", "error"),
    [
        ([10.0, 30.0], [15.0, 25.0], 0.25),
        ([10.0], [15.0, 99.0], 0.5),
        ([0.0], [0.0], 0.0),
        ([0.0], [1.0], math.inf),
        ([], [1.0], math.inf),
        ([1.0], None, math.inf),
    ],
)
def test_wape_is_the_errors_over_the_values(
    seen: list[float], foreseen: list[float] | None, error: float
) -> None:
    assert wape(seen, None if foreseen is None else np.array(foreseen)) == pytest.approx(error)


def test_a_line_is_drawn_out_and_not_below_zero() -> None:
    assert line([1.0, 2.0, 3.0], 2) == pytest.approx([4.0, 5.0])
    assert line([3.0, 2.0, 1.0], 3) == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)
    assert line([7.0], 2) == pytest.approx([7.0, 7.0])


def interval(made: CheckedForecast, values: list[float]) -> None:
    made.latest.clear()
    for value in values:
        made.observe(value)
    made.renew()


def test_the_first_forecast_is_a_line_over_two_thirds_of_the_horizon_since_none_was_checked() -> (
    None
):
    made = CheckedForecast(30)
    interval(made, [5.0] * 60)
    assert (made.by, len(made.path)) == ("a line", 20)
    interval(made, [5.0] * 60)
    assert (made.by, len(made.path)) == ("arima(0, 0, 0)", 30)


def test_a_line_takes_the_place_of_a_forecast_that_was_off_by_a_quarter() -> None:
    made = CheckedForecast(90)
    interval(made, [8.0, 12.0] * 30)
    for off, by in [(1.2, "arima"), (1.4, "a line")]:
        expected = made._foreseen
        assert expected is not None
        interval(made, (expected[:60] * off).tolist())
        assert made.by.startswith(by)


def test_fifteen_forecasts_off_by_a_tenth_train_anew() -> None:
    made = CheckedForecast(60)
    interval(made, [10.0] * 60)
    trainings: list[int] = []
    train = made._model.train
    made._model.train = lambda: (trainings.append(1), train())[1]  # type: ignore[method-assign]
    for count in range(1, 16):
        # A step up each time: what was foreseen is always too little.
        interval(made, [10.0 * 2.0**count] * 60)
        assert bool(trainings) == (count > 14)


def test_nothing_is_foretold_before_the_first_value() -> None:
    with pytest.raises(NotReady, match="no autoregression has been trained yet"):
        Autoregression().path(3)
    with pytest.raises(NotReady, match="no value has been observed"):
        _ = CheckedForecast(3).mean
