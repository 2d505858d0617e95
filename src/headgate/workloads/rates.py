"""Computes the number of records that a source emits over time: a rate and its exact cumulative count.

Every rate function is a piecewise linear curve, "records due by t": exact for stepped rates, within a
fraction of a record for the sine. Event number i (from 0) is due at the earliest time at which the
curve reaches i + 1. `count` is defined by `time_of`, so that the two agree to the last bit of a
float.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.core.duration import LONGEST_S, parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import RATE_MAX, shown

__all__ = [
    "ConstantRate",
    "ExchangeRate",
    "RateFunction",
    "SineRate",
    "SpikeRate",
    "SquareRate",
    "StepRate",
    "parse_rate",
]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

SINE_KNOTS = 4096
"""Knots per period. Chosen: between knots the curve is off by at most (period/4096)^2/8 * 2 pi
A/period records: 0.9 for A = 30,000/s and period = 600 s, against 20 slices a second in the code of
StreamSwitch."""


@dataclass(frozen=True)
class _Curve:
    """Holds the records due by a time t, piecewise linear from (0, 0)."""

    times_s: F64
    """float64[K]: knots, strictly increasing; the first is 0."""
    counts: F64
    """float64[K]: records due by each knot, never decreasing; the first is 0."""
    tail_per_s: float
    """Slope after the last knot; 0 means that the curve repeats instead."""

    def value(self, t_s: F64) -> F64:
        """Return the records due by `t_s`, as a real number."""
        if self.tail_per_s:
            beyond_s = np.maximum(t_s - self.times_s[-1], 0.0)
            tail: F64 = np.interp(t_s, self.times_s, self.counts) + beyond_s * self.tail_per_s
            return tail
        period_s, total = self.times_s[-1], self.counts[-1]
        cycles = np.floor(t_s / period_s)
        due: F64 = cycles * total + np.interp(t_s - cycles * period_s, self.times_s, self.counts)
        return due

    def inverse(self, target: F64) -> F64:
        """Return the earliest time at which the curve reaches `target` > 0, in seconds."""
        period_s, total = float(self.times_s[-1]), float(self.counts[-1])
        if self.tail_per_s:
            # The tail begins at the last knot, not where the total is reached: a flat piece may precede.
            beyond_s = period_s + (target - total) / self.tail_per_s
            return np.where(target > total, beyond_s, self._inside(np.minimum(target, total)))
        cycles = np.ceil(target / total) - 1.0
        return cycles * period_s + self._inside(target - cycles * total)

    def _inside(self, target: F64) -> F64:
        if len(self.times_s) == 1:
            return np.zeros_like(target)
        # The right end of the piece with counts[j - 1] < target <= counts[j], so that no flat
        # piece is ever chosen and the division is safe.
        j = np.clip(np.searchsorted(self.counts, target, side="left"), 1, len(self.counts) - 1)
        left, right = self.counts[j - 1], self.counts[j]
        start_s, stop_s = self.times_s[j - 1], self.times_s[j]
        share = (target - left) / np.where(right > left, right - left, 1.0)
        return np.minimum(start_s + share * (stop_s - start_s), stop_s)


class RateFunction(ABC):
    """Computes records per second over time since the start of a stream."""

    @abstractmethod
    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the rate at `t_s` >= 0.

        Result: float64[...]: records/s, >= 0.

        `t_s` (float64[...]): seconds since the start.
        """

    @abstractmethod
    def _curve(self) -> _Curve: ...

    def count(self, t_s: npt.ArrayLike) -> I64:
        """Return how many events are due by `t_s`, that time included.

        Result: int64[...]: exactly the number of events i with ``time_of(i) <= t_s``; never
        decreasing in `t_s`.

        `t_s` (float64[...]): seconds since the start; no event is due before the start.
        """
        time_s = np.maximum(np.asarray(t_s, dtype=np.float64), 0.0)
        due = np.floor(_curve(self).value(time_s)).astype(np.int64)
        # The curve is right up to rounding, so the loop corrects `due` by one or two at most.
        while True:
            late = (due > 0) & (self.time_of(np.maximum(due - 1, 0)) > time_s)
            early = self.time_of(due) <= time_s
            if not (late.any() or early.any()):
                return due
            due = due - late + (early & ~late)

    def time_of(self, event: npt.ArrayLike) -> F64:
        """Return when each event is due.

        Result: float64[...]: seconds since the start, never decreasing in `event`.

        `event` (int64[...]): event numbers, from 0.
        """
        return _curve(self).inverse(np.asarray(event, dtype=np.float64) + 1.0)


@lru_cache
def _curve(rate: RateFunction) -> _Curve:
    """Return the curve of `rate`, built once per process: every batch needs it."""
    return rate._curve()


@dataclass(frozen=True)
class ConstantRate(RateFunction):
    """Emits at one rate for ever."""

    per_s: float
    """Records/s; > 0."""

    def __post_init__(self) -> None:
        _check("rate", self.per_s, above_zero=True)

    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the rate, whatever the time."""
        return np.full(np.shape(t_s), float(self.per_s))

    def time_of(self, event: npt.ArrayLike) -> F64:
        """Return ``(event + 1) / rate``."""
        return (np.asarray(event, dtype=np.float64) + 1.0) / self.per_s

    def _curve(self) -> _Curve:
        return _Curve(np.zeros(1), np.zeros(1), float(self.per_s))


@dataclass(frozen=True)
class SquareRate(RateFunction):
    """Alternates two rates, one for each half of a period (NEXMark's SQUARE)."""

    first_per_s: float
    """Records/s in the first half; >= 0."""
    next_per_s: float
    """Records/s in the second half; >= 0, and above 0 if the first is 0."""
    period_s: float = 600.0
    """Seconds; > 0. Default: NEXMark's generator."""

    def __post_init__(self) -> None:
        _check("first", self.first_per_s)
        _check("next", self.next_per_s)
        _check("period", self.period_s, above_zero=True, most=LONGEST_S)
        _check("first + next", self.first_per_s + self.next_per_s, above_zero=True)

    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the rate of the half period that `t_s` is in."""
        phase_s = np.mod(np.asarray(t_s, dtype=np.float64), self.period_s)
        return np.where(phase_s < self.period_s / 2, self.first_per_s, self.next_per_s) * 1.0

    def _curve(self) -> _Curve:
        half_s = self.period_s / 2
        times_s = np.array([0.0, half_s, self.period_s])
        counts = np.cumsum([0.0, self.first_per_s * half_s, self.next_per_s * half_s])
        return _Curve(times_s, counts, 0.0)


@dataclass(frozen=True)
class SineRate(RateFunction):
    """Follows ``base + amplitude * (sin(2 pi t / period) + 1)``: between base and base + 2 amplitude.

    References
    ----------
    StreamSwitch's load generator. Differs: there a new rate each second in 20 slices; here the
    cumulative count is exact at 4096 points of each period and linear between them.
    """

    base_per_s: float
    """The lowest rate, records/s; >= 0."""
    amplitude_per_s: float
    """Half of the distance from lowest to highest rate, records/s; >= 0."""
    period_s: float = 600.0
    """Seconds; > 0. Default: StreamSwitch, figures 10 to 13."""

    def __post_init__(self) -> None:
        _check("base", self.base_per_s)
        _check("amplitude", self.amplitude_per_s)
        _check("period", self.period_s, above_zero=True, most=LONGEST_S)
        _check("base + amplitude", self.base_per_s + self.amplitude_per_s, above_zero=True)

    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the exact sine; the cumulative count follows it closely."""
        angle = 2 * np.pi * np.asarray(t_s, dtype=np.float64) / self.period_s
        rate: F64 = self.base_per_s + self.amplitude_per_s * (np.sin(angle) + 1.0)
        return rate

    def _curve(self) -> _Curve:
        share = np.linspace(0.0, 1.0, SINE_KNOTS + 1)
        wave = (1.0 - np.cos(2 * np.pi * share)) * self.period_s / (2 * np.pi)
        wave[-1] = 0.0
        mean_per_s = self.base_per_s + self.amplitude_per_s
        counts = mean_per_s * self.period_s * share + self.amplitude_per_s * wave
        # Where the rate touches 0 the counts differ by less than their rounding.
        return _Curve(share * self.period_s, np.maximum.accumulate(counts), 0.0)


@dataclass(frozen=True)
class StepRate(RateFunction):
    """Changes the rate at given times; the last rate lasts for ever."""

    steps: tuple[tuple[float, float], ...]
    """Pairs (start in s, records/s), ascending from 0. The last rate is above 0: a stream's number of
    events says where it ends."""

    def __post_init__(self) -> None:
        starts_s = [start_s for start_s, _ in self.steps]
        ascending = all(a < b for a, b in pairwise(starts_s))
        if not self.steps or starts_s[0] != 0.0 or not ascending:
            msg = f"steps begin at {starts_s} s; begin with 0 and let each be later than the last."
            raise ConfigError(msg)
        for start_s, per_s in self.steps:
            _check("step", start_s, most=LONGEST_S)
            _check("rate", per_s)
        _check("last rate", self.steps[-1][1], above_zero=True)

    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the rate of the step that `t_s` is in."""
        starts_s, rates = np.array(self.steps, dtype=np.float64).T
        step = np.searchsorted(starts_s, np.asarray(t_s, dtype=np.float64), side="right") - 1
        at: F64 = rates[np.maximum(step, 0)]
        return at

    def _curve(self) -> _Curve:
        starts_s, rates = np.array(self.steps, dtype=np.float64).T
        counts = np.concatenate(([0.0], np.cumsum(np.diff(starts_s) * rates[:-1])))
        return _Curve(starts_s, counts, float(rates[-1]))


@dataclass(frozen=True)
class SpikeRate(RateFunction):
    """Multiplies a base rate between two times."""

    base_per_s: float
    """Records/s outside the spike; > 0."""
    factor: float
    """Factor of the base rate during the spike; >= 0. Below 1 the spike is a dip."""
    start_s: float
    """Begin of the spike, seconds since the start; >= 0."""
    stop_s: float
    """End of the spike, seconds since the start; later than its begin."""

    def __post_init__(self) -> None:
        _check("base", self.base_per_s, above_zero=True)
        _check("factor", self.factor)
        _check("start", self.start_s, most=LONGEST_S)
        _check("stop", self.stop_s, most=LONGEST_S)
        _check("base x factor", self.base_per_s * self.factor)
        if self.stop_s <= self.start_s:
            msg = (
                f"spike stops at {self.stop_s:g} s, not after its start at {self.start_s:g} s; "
                "choose a later stop."
            )
            raise ConfigError(msg)

    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the base rate, or the multiple of it during the spike."""
        return self._steps().rate_at(t_s)

    def _curve(self) -> _Curve:
        return self._steps()._curve()

    def _steps(self) -> StepRate:
        high = (self.start_s, self.base_per_s * self.factor)
        before = () if self.start_s == 0.0 else ((0.0, self.base_per_s),)
        return StepRate((*before, high, (self.stop_s, self.base_per_s)))


@dataclass(frozen=True)
class ExchangeRate(RateFunction):
    """Follows a stock exchange: two sessions of 7,200 s, each with a rush when it opens.

    ``979 * u(t') + 75,000 * exp(-t' / 5 s)`` per second, t' since the opening, where u falls from 1.6
    to 0.7 in mid-session and rises again to 1.6 at the close, 1 on average: 14.85 million orders in
    14,400 s. Then it repeats.

    References
    ----------
    [STREAMSWITCH] 6.1, figure 4: the day's total and the height of the rushes. Differs: a formula
    instead of the recorded day.
    """

    speed: float = 1.0
    """Seconds of the day per second; > 0. Shortens the day, and does not change the rates."""
    load: float = 1.0
    """Factor of all rates; > 0."""

    def __post_init__(self) -> None:
        _check("speed", self.speed, above_zero=True, most=_SPEED_MAX)
        _check("load", self.load, above_zero=True, most=_SPEED_MAX)

    def rate_at(self, t_s: npt.ArrayLike) -> F64:
        """Return the exact formula; the cumulative count follows it closely."""
        since_s = np.mod(np.asarray(t_s, dtype=np.float64) * self.speed, _SESSION_S)
        centred = 2 * since_s / _SESSION_S - 1
        shape = 1.0 + _SWING * (3 * centred**2 - 1)
        rush = _RUSH_PER_S * np.exp(-since_s / _RUSH_S)
        rate: F64 = self.load * (_BASE_PER_S * shape + rush)
        return rate

    def _curve(self) -> _Curve:
        # close together in the rush, every 10 s after it
        since_s = np.concatenate((np.linspace(0, 60, 1201), np.arange(70, _SESSION_S + 1, 10.0)))
        share = since_s / _SESSION_S
        slow = (1 - _SWING) * share + _SWING * ((2 * share - 1) ** 3 + 1) / 2
        rush = _RUSH_PER_S * _RUSH_S * (1 - np.exp(-since_s / _RUSH_S))
        counts = _BASE_PER_S * _SESSION_S * slow + rush
        return _Curve(since_s / self.speed, counts * (self.load / self.speed), 0.0)


_SPEED_MAX = 1e4
"""Largest speed and load of the exchange: at this speed a session lasts 0.7 s."""

_SESSION_S = 7200.0
_BASE_PER_S, _RUSH_PER_S, _RUSH_S = 979.0, 75_000.0, 5.0
_SWING = 0.3
"""Depth of a session's slow wave: a zero-mean parabola, chosen to look like figure 4."""


_SMALLEST = 1e-6
"""Smallest value above zero: a record in eleven days, a microsecond, a millionth of a speed."""


def _check(name: str, value: float, *, above_zero: bool = False, most: float = RATE_MAX) -> None:
    """Refuse a value that no source can emit: the search for a time would not end."""
    if not 0.0 <= value <= most or (above_zero and value < _SMALLEST):
        bound = "above zero" if above_zero else "zero or above"
        msg = (
            f"{name} of a rate function is {value:g}; give a finite number {bound}, below {most:g}."
        )
        raise ConfigError(msg)


_CHARACTERS = 10_000


def parse_rate(text: str) -> RateFunction:
    """Return the rate function that `text` describes.

    `text`: a number of records/s (``20000``), or one of ``constant(rate=20000)``,
    ``square(first=.., next=.., period=600s)``, ``sine(base=.., amplitude=.., period=600s)``,
    ``spike(base=.., factor=.., start=60s, stop=70s)``, ``exchange(speed=1, load=1)``,
    ``steps(10000, 60s=30000, 90s=5000)``. Rates are records/s, times carry their unit; ``period``,
    ``speed`` and ``load`` may be left out. Raises `ConfigError`: a shape or argument is unknown, or an
    argument is missing, malformed or out of range.
    """
    if len(text) > _CHARACTERS:
        msg = (
            f'rate "{shown(text, 60)}" is longer than {_CHARACTERS:,} characters; use fewer steps.'
        )
        raise ConfigError(msg)
    stripped = text.strip()
    call = re.fullmatch(r"([A-Za-z_]\w*)\s*\((.*)\)", stripped, flags=re.DOTALL)
    if call is None:
        if stripped[:1].isalpha():
            shape = re.split(r"\W", stripped, maxsplit=1)[0]
            hint = nearest(shape, [*_SHAPES, "steps"]) or "; see parse_rate for the shapes."
            msg = f'rate "{text}" is neither a number nor a shape such as sine(...){hint}'
            raise ConfigError(msg)
        return ConstantRate(_number("rate", stripped, text))
    shape, arguments = call[1], [part.strip() for part in call[2].split(",") if part.strip()]
    if shape == "steps":
        return _parse_steps(arguments, text)
    if shape not in _SHAPES:
        known = nearest(shape, [*_SHAPES, "steps"]) or "; use sine or spike."
        msg = f'rate "{text}" has the unknown shape "{shape}"{known}'
        raise ConfigError(msg)
    build, fields = _SHAPES[shape]
    return build(**_parse_arguments(arguments, shape, fields, text))


_Parser = Callable[[str, str, str], float]


def _number(key: str, value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        msg = f'{key} of rate "{text}" is "{value}"; write a number of records/s without unit.'
        if key == "factor":
            msg = f'factor of rate "{text}" is "{value}"; write a number.'
        raise ConfigError(msg) from None


def _time_s(key: str, value: str, text: str) -> float:
    # Zero is no duration, but it is a time.
    if re.fullmatch(r"0+(\.0*)?\s*[A-Za-z]*", value):
        return 0.0
    try:
        return parse_duration_s(value)
    except ConfigError as error:
        msg = f'{key} of rate "{text}" is unreadable: {error}'
        raise ConfigError(msg) from error


_SHAPES: dict[str, tuple[Callable[..., RateFunction], Mapping[str, tuple[str, _Parser]]]] = {
    "constant": (ConstantRate, {"rate": ("per_s", _number)}),
    "square": (
        SquareRate,
        {
            "first": ("first_per_s", _number),
            "next": ("next_per_s", _number),
            "period": ("period_s", _time_s),
        },
    ),
    "sine": (
        SineRate,
        {
            "base": ("base_per_s", _number),
            "amplitude": ("amplitude_per_s", _number),
            "period": ("period_s", _time_s),
        },
    ),
    "spike": (
        SpikeRate,
        {
            "base": ("base_per_s", _number),
            "factor": ("factor", _number),
            "start": ("start_s", _time_s),
            "stop": ("stop_s", _time_s),
        },
    ),
    "exchange": (ExchangeRate, {"speed": ("speed", _number), "load": ("load", _number)}),
}
_OPTIONAL = ("period", "speed", "load")


def _parse_arguments(
    arguments: list[str], shape: str, fields: Mapping[str, tuple[str, _Parser]], text: str
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = (part.strip() for part in argument.partition("="))
        if not equals or key not in fields:
            known = nearest(key, fields) or f"; use {', '.join(fields)}."
            msg = f'rate "{text}" has the unknown argument "{key}" of {shape}{known}'
            raise ConfigError(msg)
        name, parse = fields[key]
        if name in values:
            msg = f'rate "{text}" gives "{key}" twice; give it once.'
            raise ConfigError(msg)
        values[name] = parse(key, value, text)
    missing = [k for k, (name, _) in fields.items() if name not in values and k not in _OPTIONAL]
    if missing:
        msg = f'rate "{text}" lacks {", ".join(missing)} of {shape}; give every argument by name.'
        raise ConfigError(msg)
    return values


def _parse_steps(arguments: list[str], text: str) -> StepRate:
    if not arguments or "=" in arguments[0]:
        msg = f'rate "{text}" has no first rate; write it as steps(10000, 60s=30000).'
        raise ConfigError(msg)
    steps = [(0.0, _number("first rate", arguments[0], text))]
    for argument in arguments[1:]:
        start, equals, rate = (part.strip() for part in argument.partition("="))
        if not equals:
            msg = f'step "{argument}" of rate "{text}" has no time; write it as 60s=30000.'
            raise ConfigError(msg)
        steps.append((_time_s("step", start, text), _number("rate", rate, text)))
    return StepRate(tuple(steps))
