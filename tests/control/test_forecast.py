"""Forecasts of what arrives next."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from headgate.control.estimators.forecast import (
    Blend,
    Forecaster,
    HoltWinters,
    LastChange,
    Naive,
    Smoothed,
    daily_blend,
)
from headgate.control.pools.unified_pools import burst_blend
from headgate.core.errors import ConfigError, NotReady
from headgate_lab.rivals.regression import Regression

ALL: list[Callable[[], Forecaster]] = [
    Naive,
    Regression,
    lambda: HoltWinters(4),
    lambda: Smoothed(0.3),
    LastChange,
    lambda: daily_blend(4),
]


def mean_error(forecaster: Forecaster, values: list[float], skip: int) -> float:
    """Mean absolute error of the forecasts one interval ahead, after the first `skip` values."""
    errors = []
    for n, value in enumerate(values):
        if n > skip:
            errors.append(abs(forecaster.forecast() - value))
        forecaster.observe(value)
    return float(np.mean(errors))


def days(count: int, trend: float = 0.0, noise: float = 0.0) -> list[float]:
    """Days of 24 values between 200 and 1800, with growth per value and noise."""
    hours = np.arange(24 * count)
    random = np.random.default_rng(3).normal(0.0, 1.0, len(hours))
    wave = 1000.0 - 800.0 * np.cos(2.0 * np.pi * hours / 24.0)
    return [float(v) for v in wave + trend * hours + noise * random]


@pytest.mark.parametrize("make", ALL)
def test_without_a_value_there_is_no_forecast(make: Callable[[], Forecaster]) -> None:
    with pytest.raises(NotReady):
        make().forecast()


@pytest.mark.parametrize("make", ALL)
def test_a_constant_series_is_forecast_exactly(make: Callable[[], Forecaster]) -> None:
    forecaster = make()
    for _ in range(40):
        forecaster.observe(7.0)
    assert forecaster.forecast(3) == pytest.approx(7.0)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("missing", [math.nan, -1.0, math.inf])
def test_a_missing_value_does_no_harm(make: Callable[[], Forecaster], missing: float) -> None:
    forecaster = make()
    forecaster.observe(missing)
    with pytest.raises(NotReady):
        forecaster.forecast()
    for n in range(40):
        forecaster.observe(missing if n % 7 == 3 else 7.0)
    assert forecaster.forecast() == pytest.approx(7.0)


@pytest.mark.parametrize("make", ALL)
def test_no_forecast_is_negative(make: Callable[[], Forecaster]) -> None:
    forecaster = make()
    for value in [90.0, 60.0, 30.0, 0.0] * 2 + [0.0, 0.0]:
        forecaster.observe(value)
        assert forecaster.forecast(5) >= 0.0


def test_the_naive_forecast_is_the_last_value() -> None:
    forecaster = Naive()
    for value in [1.0, 5.0, 3.0]:
        forecaster.observe(value)
    assert forecaster.forecast(9) == 3.0


def test_a_regression_continues_a_line_and_forgets_what_is_older() -> None:
    forecaster = Regression(window=4)
    for value in [999.0, 10.0, 20.0, 30.0, 40.0]:
        forecaster.observe(value)
    assert forecaster.forecast() == pytest.approx(50.0)
    assert forecaster.forecast(3) == pytest.approx(70.0)
    assert forecaster.name == "regression(4)"


def test_holt_winters_repeats_a_season_exactly() -> None:
    forecaster = HoltWinters(period=4)
    for value in [10.0, 20.0, 40.0, 30.0] * 3:
        forecaster.observe(value)
    assert [forecaster.forecast(h) for h in (1, 2, 3, 4, 5)] == pytest.approx([10, 20, 40, 30, 10])


def test_holt_winters_keeps_its_season_in_place_where_a_value_is_missing() -> None:
    forecaster = HoltWinters(period=4)
    for value in [10.0, 20.0, 40.0, 30.0] * 2 + [10.0, math.nan, 40.0]:
        forecaster.observe(value)
    assert forecaster.forecast() == pytest.approx(30.0)


def test_holt_winters_continues_an_undamped_trend() -> None:
    forecaster = HoltWinters(period=2, damping=1.0)
    for n in range(12):
        forecaster.observe(10.0 * n)
    assert [forecaster.forecast(h) for h in (1, 2, 3)] == pytest.approx([120, 130, 140])


def test_a_damped_trend_levels_out() -> None:
    forecaster = HoltWinters(period=2, damping=0.5)
    for n in range(4):
        forecaster.observe(10.0 * n)
    assert forecaster.forecast(40) == pytest.approx(forecaster.forecast(60), abs=1e-6)


def test_before_two_periods_the_forecast_is_the_last_value() -> None:
    forecaster = HoltWinters(period=4)
    for value in [10.0, 20.0, 40.0]:
        forecaster.observe(value)
    assert forecaster.forecast() == 40.0


def test_holt_winters_follows_a_change_of_level() -> None:
    forecaster = HoltWinters(period=4)
    for value in [10.0] * 8 + [50.0] * 40:
        forecaster.observe(value)
    assert forecaster.forecast() == pytest.approx(50.0, rel=0.02)


@pytest.mark.parametrize(("trend", "noise"), [(0.0, 0.0), (2.0, 0.0), (1.0, 60.0)])
def test_holt_winters_beats_the_naive_floor_on_days(trend: float, noise: float) -> None:
    values = days(10, trend, noise)
    floor = mean_error(Naive(), values, skip=48)
    assert mean_error(HoltWinters(24), values, skip=48) < 0.7 * floor


@pytest.mark.parametrize("change", [{"period": 1}, {"alpha": 1.2}, {"damping": -0.1}])
def test_parameters_out_of_range_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="holt-winters"):
        HoltWinters(**({"period": 4} | change))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="window=1"):
        Regression(1)


def test_a_rise_goes_on_and_a_fall_goes_on_in_part() -> None:
    forecaster = LastChange(0.5)
    forecaster.observe(100.0)
    forecaster.observe(140.0)
    assert (forecaster.forecast(), forecaster.forecast(2)) == (180.0, 220.0)
    forecaster.observe(100.0)
    assert forecaster.forecast() == 80.0


def test_a_smoothed_level_beats_the_naive_floor_on_noise() -> None:
    values = [1000.0 + 100.0 * v for v in np.random.default_rng(3).normal(0.0, 1.0, 300)]
    assert mean_error(Smoothed(0.2), values, 20) < 0.85 * mean_error(Naive(), values, 20)


def test_a_blend_is_close_to_the_best_of_its_forecasts_whatever_the_stream() -> None:
    noise = [1000.0 + 100.0 * v for v in np.random.default_rng(3).normal(0.0, 1.0, 240)]
    for values in (noise, days(10), days(10, noise=60.0)):
        best = min(
            mean_error(each, values, 72)
            for each in (Naive(), Smoothed(0.35), Smoothed(0.6), HoltWinters(24))
        )
        assert mean_error(daily_blend(24), values, 72) < 1.1 * best + 1e-3
        assert mean_error(daily_blend(24), values, 72) < mean_error(Naive(), values, 72)


def test_a_blend_changes_over_when_the_stream_does() -> None:
    #  a level with noise, then a straight rise
    noisy = [100.0 + v for v in np.random.default_rng(3).normal(0.0, 9.0, 80)]
    blend = Blend([Smoothed(0.1), Naive()])
    for value in noisy:
        blend.observe(value)
    assert abs(blend.forecast() - 100.0) < 6.0
    for value in range(100, 2000, 20):
        blend.observe(float(value))
    assert blend.forecast() == pytest.approx(1980.0, abs=1.0)


def test_a_burst_that_ended_says_nothing_where_none_lasts() -> None:
    """Each interval has bursts of its own, 100 in the mean: after one of 500 that is still expected."""
    blend = burst_blend()
    for value in np.random.default_rng(3).exponential(100.0, 300):
        blend.observe(float(value))
    blend.observe(500.0)
    assert blend.forecast() < 200.0


def test_a_blend_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="forecasters=0"):
        Blend([])
