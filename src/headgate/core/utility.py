"""Computes a job's utility: the gain of the job's owner from the performance that the job attains."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from headgate.core.errors import ConfigError, NotReady, nearest


class Metric(StrEnum):
    """Names the quantity that an intent limits; only a quantity that a user of the job can see."""

    LATENCY = "latency"
    """Seconds from the arrival of the latest contributing input to the sink; smaller is better."""

    JUICE = "juice"
    """Share of the input that the job processes, in [0, 1]; larger is better."""

    THROUGHPUT = "throughput"
    """Records processed per second; larger is better."""

    @property
    def falls(self) -> bool:
        """Return whether utility falls as the metric rises."""
        return self is Metric.LATENCY


class Shape(Protocol):
    """Computes the share of the maximum utility that a measured value attains."""

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the share of the maximum utility, in [0, 1]; 1 at `threshold`."""


def _met(value: float, threshold: float, falls: bool) -> bool:
    return value <= threshold if falls else value >= threshold


def _check_positive(what: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        msg = f"{what} is {value!r}; use a number above 0."
        raise ConfigError(msg)


@dataclass(frozen=True)
class Knee:
    """Gives 1 once the threshold is met; else x / threshold for a rate, threshold / x for a latency.

    References
    ----------
    Henge 4, equations 1 and 2, figure 3.
    """

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the share: hyperbolic in a latency, linear in a rate."""
        if _met(value, threshold, falls):
            return 1.0
        return threshold / value if falls else value / threshold


@dataclass(frozen=True)
class Linear:
    """Falls in a straight line from 1 at the threshold to 0."""

    span: float = 1.0
    """Distance from the threshold at which the share is 0, in thresholds; > 0. With 1, the share is 0
    for a latency from twice the threshold on, and for a juice of 0."""

    def __post_init__(self) -> None:
        _check_positive("span of a linear utility", self.span)

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the share."""
        if _met(value, threshold, falls):
            return 1.0
        return max(0.0, 1.0 - abs(value - threshold) / threshold / self.span)


@dataclass(frozen=True)
class Step:
    """Gives 1 when the threshold is met, else a constant."""

    missed: float = 0.0
    """The share when the threshold is missed; in [0, 1)."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.missed < 1.0:
            msg = f"step utility: missed={self.missed!r} is out of range; use 0 to below 1."
            raise ConfigError(msg)

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the share."""
        return 1.0 if _met(value, threshold, falls) else self.missed


@dataclass(frozen=True)
class Lognormal:
    """Falls like the upper half of a lognormal: erfc(ln(miss) / (sigma sqrt 2)), miss >= 1."""

    sigma: float = 1.0
    """Spread; > 0. With 1 (chosen, not tuned), a miss of twice the threshold has a share of 49 %."""

    def __post_init__(self) -> None:
        _check_positive("sigma of a lognormal utility", self.sigma)

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the share."""
        if _met(value, threshold, falls):
            return 1.0
        if not falls and value <= 0.0:
            return 0.0
        miss = value / threshold if falls else threshold / value
        return math.erfc(math.log(miss) / (self.sigma * math.sqrt(2.0)))


@dataclass(frozen=True)
class Piecewise:
    """Joins points by straight lines, flat outside them."""

    points: tuple[tuple[float, float], ...]
    """(value in the metric's unit, share), values ascending. Two points of one value are a jump; the
    value itself has the larger share of the two."""

    def __post_init__(self) -> None:
        values = [value for value, _ in self.points]
        if not values or values != sorted(values) or not all(map(math.isfinite, values)):
            msg = f"piecewise utility: the values {values} do not ascend; sort the points by value."
            raise ConfigError(msg)

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the share; the points already contain `threshold` and `falls`."""
        at = [share for x, share in self.points if x == value]
        if at:
            return max(at)
        below = [point for point in self.points if point[0] < value]
        above = [point for point in self.points if point[0] > value]
        if not below:
            return above[0][1]
        if not above:
            return below[-1][1]
        (x0, y0), (x1, y1) = below[-1], above[0]
        return y0 + (y1 - y0) * (value - x0) / (x1 - x0)


@dataclass(frozen=True)
class Custom:
    """Calls the user's own function."""

    function: Callable[[float], float]
    """Takes the measured value, in the metric's unit, and returns a share in [0, 1]; 1 where the
    threshold is met. It may jump, but must be monotone. `Intent` checks this on a grid over six
    decades, and does not see an error between two points of the grid."""

    def share(self, value: float, threshold: float, *, falls: bool) -> float:
        """Return the function's share; raise ConfigError where it fails, or returns no share."""
        try:
            share = float(self.function(value))
        except Exception as error:  # whatever a user's function raises
            msg = (
                f"the utility function fails for {value:g}: {type(error).__name__}: {error}; let it "
                "give a share from 0 to 1 for every value from 0 on."
            )
            raise ConfigError(msg) from error
        if not 0.0 <= share <= 1.0:
            msg = f"the utility function gives {share!r} for {value:g}; keep it between 0 and 1."
            raise ConfigError(msg)
        return share


SHAPES: dict[str, Shape] = {
    "knee": Knee(),
    "linear": Linear(),
    "step": Step(),
    "lognormal": Lognormal(),
}
"""The shapes with only default parameters, by their names in a scenario."""


def shape_named(name: str) -> Shape:
    """Return a shape of `SHAPES`; raise ConfigError for an unknown name."""
    if name not in SHAPES:
        hint = nearest(name, SHAPES) or f"; use {', '.join(SHAPES)}, or module:function."
        msg = f'unknown utility "{name}"{hint}'
        raise ConfigError(msg)
    return SHAPES[name]


@dataclass(frozen=True)
class Intent:
    """Holds one requirement of a job: a metric, a threshold, and the cost of missing it.

    Raises `ConfigError`: a threshold or percentile out of range, or a shape that is not monotone,
    leaves [0, 1], or is below 1 at the threshold.

    References
    ----------
    Henge 4 and 5.5 (tail latencies).
    """

    metric: Metric
    threshold: float
    """Seconds, a share in (0, 1], or records per second; > 0."""
    shape: Shape = field(default_factory=Knee)
    percentile: float | None = None
    """Percentile of the latency that the threshold limits, in (0, 100); None is the mean."""

    def __post_init__(self) -> None:
        _check_positive(f"{self.metric} threshold", self.threshold)
        if self.metric is Metric.JUICE and self.threshold > 1.0:
            msg = f"juice threshold {self.threshold:g} is above 1; use a share such as 0.95."
            raise ConfigError(msg)
        if self.percentile is not None:
            in_range = 0.0 < self.percentile < 100.0  # noqa: PLR2004 (a percentile)
            if self.metric is not Metric.LATENCY or not in_range:
                msg = (
                    f"percentile={self.percentile:g} of {self.metric} has no meaning; "
                    "use a number between 0 and 100, with a latency only."
                )
                raise ConfigError(msg)
        _check_shape(self)

    def met(self, value: float) -> bool:
        """Return whether `value` satisfies the threshold."""
        return _met(value, self.threshold, self.metric.falls)

    def share(self, value: float) -> float:
        """Return the share of the maximum utility that `value` attains.

        Raises `NotReady`: `value` is NaN, so there is no measurement.
        """
        if math.isnan(value):
            msg = f"{self.metric} has not been measured yet."
            raise NotReady(msg)
        return self.shape.share(value, self.threshold, falls=self.metric.falls)


@dataclass(frozen=True)
class Utility:
    """Computes the utility of a job: its priority times the degree to which its intents are met.

    References
    ----------
    Henge 4 (priority = maximum utility), 5.5 (changing priorities), 8.1.1 (a hybrid SLO is worth
    the mean of its utilities, whose maxima are equal).
    """

    maximum: float
    """The job's priority: its utility when every intent is met; > 0. It may change while the job
    runs (``dataclasses.replace``)."""
    intents: tuple[Intent, ...]
    """One intent, or several for a hybrid SLO."""

    def __post_init__(self) -> None:
        _check_positive("priority", self.maximum)
        if not self.intents:
            msg = "a utility needs an intent; give a latency, juice or throughput threshold."
            raise ConfigError(msg)

    def met(self, values: Sequence[float]) -> bool:
        """Return whether every intent is met by its value."""
        pairs = zip(self.intents, values, strict=True)
        return all(intent.met(value) for intent, value in pairs)

    def current(self, values: Sequence[float]) -> float:
        """Return the utility attained, in [0, maximum].

        `values`: the measured value of each intent, in the sequence of `intents`. Raises `NotReady`:
        a value is NaN.
        """
        shares = [intent.share(v) for intent, v in zip(self.intents, values, strict=True)]
        return self.maximum * sum(shares) / len(shares)


_DECADES = 3
_POINTS_PER_DECADE = 100


def _check_shape(intent: Intent) -> None:
    """Raise ConfigError where the shape is not monotone, leaves [0, 1], or misses 1 at the threshold."""
    steps = range(-_DECADES * _POINTS_PER_DECADE, _DECADES * _POINTS_PER_DECADE + 1)
    grid = [0.0, *(intent.threshold * 10.0 ** (k / _POINTS_PER_DECADE) for k in steps)]
    if intent.metric is Metric.JUICE:
        grid = [value for value in grid if value <= 1.0]
    if not intent.metric.falls:
        grid.reverse()
    best_first = [(value, intent.share(value)) for value in grid]
    for value, share in best_first:
        # A NaN is in no range, so it is refused here too.
        if not 0.0 <= share <= 1.0:
            msg = f"utility of {intent.metric} {value:g} is {share!r}; keep it between 0 and 1."
            raise ConfigError(msg)
    if intent.share(intent.threshold) < 1.0:
        msg = (
            f"utility of {intent.metric} is {intent.share(intent.threshold):g} at its threshold "
            f"{intent.threshold:g}; make it 1 where the threshold is met."
        )
        raise ConfigError(msg)
    for (better, high), (worse, low) in itertools.pairwise(best_first):
        if low > high:
            msg = (
                f"utility of {intent.metric} rises from {high:g} at {better:g} to {low:g} at "
                f"{worse:g}, which is worse; make it monotone."
            )
            raise ConfigError(msg)
