"""What attained performance is worth: Henge section 4."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError, NotReady
from headgate.core.utility import (
    SHAPES,
    Custom,
    Intent,
    Linear,
    Lognormal,
    Metric,
    Piecewise,
    Shape,
    Step,
    Utility,
    shape_named,
)


def latency(threshold: float, shape: Shape | None = None) -> Intent:
    return Intent(Metric.LATENCY, threshold, shape or SHAPES["knee"])


def test_twice_the_latency_is_worth_half() -> None:
    utility = Utility(35.0, (latency(0.060),))
    assert utility.current([0.120]) == pytest.approx(17.5)


@pytest.mark.parametrize("value", [0.0, 0.03, 0.060])
def test_at_or_under_the_threshold_a_latency_is_worth_everything(value: float) -> None:
    assert latency(0.060).share(value) == 1.0
    assert latency(0.060).met(value)


def test_throughput_is_worth_its_ratio_to_the_threshold() -> None:
    intent = Intent(Metric.THROUGHPUT, 40_000.0)
    assert intent.share(10_000.0) == 0.25
    assert intent.share(50_000.0) == 1.0


def test_a_hybrid_is_worth_the_mean_of_its_intents() -> None:
    utility = Utility(35.0, (Intent(Metric.JUICE, 1.0), latency(0.070)))
    assert utility.current([0.5, 0.070]) == pytest.approx(35.0 * 0.75)
    assert not utility.met([0.5, 0.070])
    assert utility.met([1.0, 0.070])


def test_the_priority_of_a_job_scales_its_utility_and_may_change() -> None:
    before = Utility(10.0, (latency(1.0),))
    after = dataclasses.replace(before, maximum=20.0)
    assert after.current([2.0]) == 2 * before.current([2.0]) == 10.0


def test_a_percentile_belongs_to_a_latency_only() -> None:
    assert Intent(Metric.LATENCY, 1.0, percentile=99.0).share(2.0) == 0.5
    with pytest.raises(ConfigError, match=r"percentile=99 of juice has no meaning"):
        Intent(Metric.JUICE, 0.9, percentile=99.0)
    with pytest.raises(ConfigError, match=r"percentile=100 of latency"):
        Intent(Metric.LATENCY, 0.9, percentile=100.0)


@pytest.mark.parametrize(
    ("shape", "value", "expected"),
    [
        (Linear(), 1.5, 0.5),
        (Linear(), 3.0, 0.0),
        (Linear(span=4.0), 3.0, 0.5),
        (Step(), 1.001, 0.0),
        (Step(missed=0.3), 1.001, 0.3),
        (Lognormal(), math.e, math.erfc(1 / math.sqrt(2))),
        (Piecewise(((1.0, 1.0), (2.0, 0.5), (4.0, 0.0))), 3.0, 0.25),
        (Piecewise(((1.0, 1.0), (1.0, 0.4), (2.0, 0.2))), 1.0, 1.0),
        (Piecewise(((1.0, 1.0), (1.0, 0.4), (2.0, 0.2))), 1.5, 0.3),
        (Custom(lambda s: 1.0 if s <= 1.0 else 0.1), 5.0, 0.1),
    ],
)
def test_each_shape_gives_its_share_of_a_missed_latency(
    shape: Shape, value: float, expected: float
) -> None:
    assert latency(1.0, shape).share(value) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "expected"), [("knee", 0.5), ("linear", 0.5), ("step", 0.0), ("lognormal", 0.488)]
)
def test_each_shape_gives_its_share_of_half_the_juice(shape: str, expected: float) -> None:
    intent = Intent(Metric.JUICE, 1.0, shape_named(shape))
    assert intent.share(0.5) == pytest.approx(expected, abs=1e-3)
    assert intent.share(0.0) == 0.0


@given(
    name=st.sampled_from(sorted(SHAPES)),
    metric=st.sampled_from(Metric),
    pair=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    threshold=st.floats(1e-3, 1.0),
)
def test_utility_never_rises_as_performance_gets_worse(
    name: str, metric: Metric, pair: tuple[float, float], threshold: float
) -> None:
    intent = Intent(metric, threshold, shape_named(name))
    better, worse = sorted(pair, reverse=not metric.falls)
    assert 0.0 <= intent.share(worse) <= intent.share(better) <= 1.0
    assert (intent.share(better) == 1.0) or not intent.met(better)


def test_a_utility_that_rises_with_latency_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"utility of latency rises .* make it monotone"):
        latency(1.0, Custom(lambda s: 1.0 if s <= 1.0 else min(1.0, s / 100.0)))


def test_a_utility_that_falls_with_throughput_is_refused() -> None:
    with pytest.raises(ConfigError, match="make it monotone"):
        Intent(Metric.THROUGHPUT, 10.0, Custom(lambda r: 1.0 if r >= 10.0 else 0.5 - r / 20.0))


def test_a_piecewise_utility_must_be_full_at_the_threshold() -> None:
    with pytest.raises(ConfigError, match="make it 1 where the threshold is met"):
        latency(2.0, Piecewise(((1.0, 1.0), (3.0, 0.0))))


@pytest.mark.parametrize("result", [1.5, -0.1, math.nan])
def test_a_share_outside_zero_to_one_is_refused(result: float) -> None:
    with pytest.raises(ConfigError, match="keep it between 0 and 1"):
        latency(1.0, Custom(lambda s: 1.0 if s <= 1.0 else result))


def test_a_users_function_that_fails_for_a_value_is_refused_with_that_value() -> None:
    with pytest.raises(ConfigError, match=r"fails for 0: ZeroDivisionError.* give a share"):
        latency(1.0, Custom(lambda s: min(1.0, 1.0 / s)))


def test_a_users_function_that_gives_no_share_for_an_extreme_value_is_told_so() -> None:
    intent = latency(1.0, Custom(lambda s: 1.0 if s <= 1.0 else 0.5 if s < 1e4 else math.nan))
    with pytest.raises(ConfigError, match="gives nan for 100000; keep it between 0 and 1"):
        intent.share(1e5)


def test_a_users_function_of_juice_is_asked_for_no_more_than_all_of_it() -> None:
    assert Intent(Metric.JUICE, 1.0, Custom(lambda share: share**2)).share(0.5) == 0.25


def test_unsorted_points_are_refused() -> None:
    with pytest.raises(ConfigError, match="sort the points"):
        Piecewise(((2.0, 0.5), (1.0, 1.0)))


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_a_threshold_that_is_not_above_zero_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="use a number above 0"):
        latency(threshold)


def test_settings_out_of_range_are_refused_with_their_name() -> None:
    with pytest.raises(ConfigError, match=r"juice threshold 1.2 is above 1"):
        Intent(Metric.JUICE, 1.2)
    with pytest.raises(ConfigError, match="priority"):
        Utility(0.0, (latency(1.0),))
    with pytest.raises(ConfigError, match="needs an intent"):
        Utility(1.0, ())
    with pytest.raises(ConfigError, match="missed=1"):
        Step(missed=1.0)
    with pytest.raises(ConfigError, match="span"):
        Linear(span=0.0)
    with pytest.raises(ConfigError, match="sigma"):
        Lognormal(sigma=-1.0)


def test_an_unknown_shape_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match='did you mean "linear"'):
        shape_named("liner")
    with pytest.raises(ConfigError, match="module:function"):
        shape_named("zzz")


def test_nothing_measured_is_worth_no_number() -> None:
    with pytest.raises(NotReady):
        latency(1.0).share(math.nan)


def test_an_infinite_latency_is_worth_nothing() -> None:
    assert [latency(1.0, shape).share(math.inf) for shape in SHAPES.values()] == [0.0] * 4
