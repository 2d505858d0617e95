"""Rate functions: the ends of each number, and a count that is the integral of the rate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest

from headgate.core.duration import LONGEST_S
from headgate.core.errors import ConfigError
from headgate.core.input import RATE_MAX
from headgate.workloads.rates import (
    ConstantRate,
    ExchangeRate,
    RateFunction,
    SineRate,
    SpikeRate,
    SquareRate,
    StepRate,
    parse_rate,
)

MANY = RATE_MAX / 4
NUMBERS: list[tuple[str, Callable[[float], RateFunction], float, float]] = [
    ("rate", ConstantRate, 1e-6, RATE_MAX),
    ("first", lambda n: SquareRate(n, 1.0), 0.0, MANY),
    ("next", lambda n: SquareRate(1.0, n), 0.0, MANY),
    ("first + next", lambda n: SquareRate(n, 0.0), 1e-6, RATE_MAX),
    ("period", lambda n: SquareRate(1.0, 1.0, n), 1e-6, LONGEST_S),
    ("base", lambda n: SineRate(n, 1.0), 0.0, MANY),
    ("amplitude", lambda n: SineRate(1.0, n), 0.0, MANY),
    ("base + amplitude", lambda n: SineRate(0.0, n), 1e-6, RATE_MAX),
    ("period", lambda n: SineRate(1.0, 1.0, n), 1e-6, LONGEST_S),
    ("step", lambda n: StepRate(((0.0, 1.0), (n, 1.0))), 5e-324, LONGEST_S),
    ("rate", lambda n: StepRate(((0.0, n), (1.0, 1.0))), 0.0, RATE_MAX),
    ("last rate", lambda n: StepRate(((0.0, 1.0), (1.0, n))), 1e-6, RATE_MAX),
    ("base", lambda n: SpikeRate(n, 1.0, 0.0, 1.0), 1e-6, RATE_MAX),
    ("factor", lambda n: SpikeRate(1.0, n, 0.0, 1.0), 0.0, RATE_MAX),
    ("base x factor", lambda n: SpikeRate(2.0, n, 0.0, 1.0), 0.0, RATE_MAX / 2),
    ("start", lambda n: SpikeRate(1.0, 1.0, n, LONGEST_S), 0.0, LONGEST_S / 2),
    ("stop", lambda n: SpikeRate(1.0, 1.0, 0.0, n), 5e-324, LONGEST_S),
    ("speed", lambda n: ExchangeRate(speed=n), 1e-6, 1e4),
    ("load", lambda n: ExchangeRate(load=n), 1e-6, 1e4),
]


def test_a_rate_may_have_several_lines() -> None:
    assert str(parse_rate("steps(5,\n10s=7)")) == str(parse_rate("steps(5, 10s=7)"))


@pytest.mark.parametrize(("name", "make", "least", "most"), NUMBERS)
def test_a_number_of_a_rate_has_ends(
    name: str, make: Callable[[float], RateFunction], least: float, most: float
) -> None:
    make(least)
    make(most)
    beyond = [-1.0, math.nan] if name != "step" else [-1.0]
    beyond += [] if most in (MANY, LONGEST_S / 2) else [most * 1.001]
    beyond += [0.0, 0.99e-6] if least == 1e-6 else []
    # a number that is wrong itself is named, and not the sum that it is part of
    refusing = "|".join(map(re.escape, {name, *re.split(r" [+x] |last ", name)} - {""}))
    for value in beyond:
        with pytest.raises(ConfigError, match=rf"^({refusing})(s begin| of a rate function is) "):
            make(value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: ConstantRate(0.0),
            "rate of a rate function is 0; give a finite number above zero",
        ),
        (lambda: StepRate(((0.0, -1.0), (1.0, 1.0))), "is -1; give a finite number zero or above"),
        (lambda: ConstantRate(2e9), "below 1e+09."),
        (lambda: SpikeRate(1.0, 1.0, 3.0, 3.0), "spike stops at 3 s, not after its start at 3 s"),
        (lambda: StepRate(()), "steps begin at [] s; begin with 0"),
        (lambda: StepRate(((1.0, 1.0),)), "steps begin at [1.0] s; begin with 0"),
        (lambda: StepRate(((0.0, 1.0), (0.0, 1.0))), "let each be later than the last"),
        (lambda: parse_rate("9" * 10_001), "is longer than 10,000 characters; use fewer steps."),
        (lambda: parse_rate("spike(base=1, factor=x, start=1s, stop=2s)"), '"x"; write a number.'),
        (lambda: parse_rate("sine(base=x, amplitude=1)"), "of records/s without unit."),
        (lambda: parse_rate("steps()"), "has no first rate; write it as steps(10000, 60s=30000)."),
        (lambda: parse_rate("steps(60s=1)"), "has no first rate"),
        (lambda: parse_rate("steps(1, 5)"), 'step "5" of rate "steps(1, 5)" has no time'),
        (lambda: parse_rate("step(1)"), 'unknown shape "step"; did you mean "steps"'),
        (lambda: parse_rate("zzz(1)"), 'unknown shape "zzz"; use sine or spike.'),
        (lambda: parse_rate("zzz"), "; see parse_rate for the shapes."),
        (lambda: parse_rate("spik"), 'did you mean "spike"'),
        (lambda: parse_rate("sine(zzz=1)"), "of sine; use base, amplitude, period."),
        (lambda: parse_rate("spike(base=1)"), "lacks factor, start, stop of spike"),
    ],
)
def test_what_is_no_rate_is_refused_with_the_remedy(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make()
    assert says in str(refused.value)


def test_what_may_be_left_out_has_its_default() -> None:
    assert parse_rate("square(first=1, next=2)") == SquareRate(1.0, 2.0, 600.0)
    assert parse_rate("sine(base=1, amplitude=2)") == SineRate(1.0, 2.0, 600.0)
    assert parse_rate("exchange()") == ExchangeRate(1.0, 1.0)
    assert parse_rate("spike(base=1, factor=2, start=0s, stop=1 s)").rate_at(0.5) == 2.0
    assert parse_rate("9" * 9) == ConstantRate(999_999_999.0)


SHAPES: list[tuple[RateFunction, float]] = [
    (ConstantRate(3.5), 100.0),
    (SquareRate(2.0, 30.0, 7.0), 40.0),
    (SquareRate(0.0, 30.0, 7.0), 40.0),
    (SineRate(5.0, 20.0, 9.0), 50.0),
    (StepRate(((0.0, 4.0), (3.0, 0.0), (8.0, 11.0))), 30.0),
    (SpikeRate(10.0, 3.0, 0.0, 2.0), 20.0),
    (SpikeRate(10.0, 0.0, 4.0, 9.0), 20.0),
    (ExchangeRate(speed=1000.0, load=0.01), 20.0),
    (ExchangeRate(), 300.0),
]


@pytest.mark.parametrize(("rate", "until_s"), SHAPES)
def test_what_is_due_is_the_integral_of_the_rate(rate: RateFunction, until_s: float) -> None:
    at_s = np.linspace(0.0, until_s, 400_001)
    middles_s = (at_s[1:] + at_s[:-1]) / 2
    whole = np.concatenate([[0.0], np.cumsum(rate.rate_at(middles_s) * np.diff(at_s))])
    some = slice(0, None, 20_000)
    off = rate.count(at_s[some]) - whole[some]
    assert off.min() >= -1.01 - 2e-4 * whole[-1]
    assert off.max() <= 0.01 + 2e-4 * whole[-1]


def test_an_exchange_opens_with_a_rush_and_is_calm_in_mid_session() -> None:
    rate = ExchangeRate()
    opening, later, middle, close = rate.rate_at([0.0, 5.0, 3600.0, 7199.999])
    assert opening == pytest.approx(979.0 * 1.6 + 75_000.0)
    assert later == pytest.approx(
        979.0 * (1 + 0.3 * (3 * (1 - 10 / 7200) ** 2 - 1)) + 75_000.0 / math.e
    )
    assert middle == pytest.approx(979.0 * 0.7)
    assert close == pytest.approx(979.0 * 1.6, rel=1e-4)
    assert rate.rate_at(7200.0) == pytest.approx(opening)
    assert rate.count(14_400.0) == pytest.approx(14.85e6, rel=1e-3)
    assert ExchangeRate(speed=2.0, load=3.0).rate_at(1800.0) == pytest.approx(3.0 * middle)
    assert ExchangeRate(speed=2.0, load=3.0).count(7200.0) == pytest.approx(
        1.5 * rate.count(14_400.0), abs=3
    )
