"""A rate's count and its inverse agree to the last event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import ConfigError
from headgate.workloads.rates import (
    ConstantRate,
    RateFunction,
    SineRate,
    SpikeRate,
    SquareRate,
    StepRate,
    parse_rate,
)

per_s = st.floats(0.0, 1e6, allow_subnormal=False).map(lambda x: 0.0 if x < 1e-3 else x)
above = st.floats(1e-2, 1e6)
period = st.floats(1e-1, 1e4)
rates: st.SearchStrategy[RateFunction] = st.one_of(
    st.builds(ConstantRate, above),
    st.builds(SquareRate, per_s, above, period),
    st.builds(SineRate, per_s, above, period),
    st.builds(
        lambda b, f, t, n: SpikeRate(b, f, t, t + n), above, st.floats(0, 50), period, period
    ),
    st.builds(
        lambda a, b, c, t: StepRate(((0.0, a), (t, b), (2 * t, c))), per_s, per_s, above, period
    ),
)


@given(rate=rates, first=st.integers(0, 10**8))
def test_time_of_an_event_never_decreases(rate: RateFunction, first: int) -> None:
    assert (np.diff(rate.time_of(np.arange(first, first + 500))) >= 0).all()


@given(rate=rates, t_s=st.lists(st.floats(0, 1e5), min_size=1, max_size=20))
def test_count_never_decreases_and_is_what_time_of_says(
    rate: RateFunction, t_s: list[float]
) -> None:
    at_s = np.sort(np.array(t_s))
    count = rate.count(at_s)
    assert count.dtype == np.int64
    assert (np.diff(count) >= 0).all()
    assert (rate.time_of(count) > at_s).all()
    some = count > 0
    assert (rate.time_of(count[some] - 1) <= at_s[some]).all()


@given(rate=rates, event=st.integers(0, 10**8))
def test_an_event_counts_from_the_moment_it_is_due(rate: RateFunction, event: int) -> None:
    due_s = rate.time_of(event)
    assert rate.count(due_s) >= event + 1
    assert rate.count(np.nextafter(due_s, -1.0)) <= event or due_s == 0.0


def test_nothing_is_due_at_the_start_and_all_of_a_second_at_its_end() -> None:
    assert ConstantRate(10.0).count([-1.0, 0.0, 0.05, 0.1, 0.95, 1.0]).tolist() == [
        0,
        0,
        0,
        1,
        9,
        10,
    ]


def test_square_emits_its_two_rates_by_turns() -> None:
    # rate   100 |▔▔▔▔|____|▔▔▔▔|      10 after 5 s, 100 before
    #            0    5   10   15
    square = SquareRate(100.0, 10.0, 10.0)
    assert square.count([5.0, 10.0, 15.0, 20.0]).tolist() == [500, 550, 1050, 1100]
    assert square.rate_at([0.0, 4.9, 5.0, 9.9, 10.0]).tolist() == [100, 100, 10, 10, 100]


def test_sine_follows_its_integral_within_a_record() -> None:
    base, amplitude, period_s = 0.0, 30_000.0, 600.0
    t_s = np.linspace(0, 1800, 10_001)
    wave = amplitude * period_s / (2 * np.pi) * (1 - np.cos(2 * np.pi * t_s / period_s))
    exact = (base + amplitude) * t_s + wave
    assert np.abs(SineRate(base, amplitude, period_s).count(t_s) + 0.5 - exact).max() < 1.5


def test_spike_multiplies_the_base_while_it_lasts() -> None:
    spike = SpikeRate(100.0, 5.0, 10.0, 12.0)
    assert spike.count([10.0, 11.0, 12.0, 13.0]).tolist() == [1000, 1500, 2000, 2100]
    assert spike.rate_at([9.9, 10.0, 12.0]).tolist() == [100, 500, 100]
    assert SpikeRate(100.0, 5.0, 0.0, 1.0).count(2.0) == 600


def test_nothing_is_due_while_the_rate_is_zero() -> None:
    steps = StepRate(((0.0, 10.0), (1.0, 0.0), (5.0, 10.0)))
    assert steps.count([1.0, 3.0, 5.0, 6.0]).tolist() == [10, 10, 10, 20]
    assert steps.time_of([9, 10]).tolist() == [1.0, 5.1]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20000", ConstantRate(20000.0)),
        (" 2e4 ", ConstantRate(20000.0)),
        ("constant(rate=5)", ConstantRate(5.0)),
        ("sine(base=0, amplitude=30000, period=10 min)", SineRate(0.0, 30000.0, 600.0)),
        ("sine(base=1,amplitude=2)", SineRate(1.0, 2.0)),
        ("square(first=1, next=2)", SquareRate(1.0, 2.0)),
        ("spike(base=10,factor=5,start=60s,stop=70s)", SpikeRate(10.0, 5.0, 60.0, 70.0)),
        ("spike(base=10,factor=5,start=0s,stop=500ms)", SpikeRate(10.0, 5.0, 0.0, 0.5)),
        ("steps(10, 60s=30, 90s=5)", StepRate(((0.0, 10.0), (60.0, 30.0), (90.0, 5.0)))),
    ],
)
def test_parses(text: str, rate: RateFunction) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "above zero"),
        ("-5", "above zero"),
        ("12/s", "without unit"),
        ("sin(base=1, amplitude=2)", 'did you mean "sine"'),
        ("spkie", 'did you mean "spike"'),
        ("sine(base=1, amplitud=2)", 'did you mean "amplitude"'),
        ("sine(base=1, base=2)", "twice"),
        ("sine(base=1)", "lacks amplitude"),
        ("sine(base=1, amplitude=-2)", "zero or above"),
        ("sine(base=1, amplitude=2, period=600)", "no unit"),
        ("sine(base=0, amplitude=0)", "above zero"),
        ("spike(base=10, factor=x, start=1s, stop=2s)", "factor"),
        ("spike(base=10, factor=2, start=2s, stop=1s)", "later stop"),
        ("steps()", "no first rate"),
        ("steps(10, 60s)", "no time"),
        ("steps(10, 60s=20, 30s=5)", "later than the last"),
        ("steps(10, 60s=0)", "above zero"),
        ("", "number"),
        ("nan", "neither"),
        ("1e999", "finite"),
    ],
)
def test_refuses_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rate(text)
