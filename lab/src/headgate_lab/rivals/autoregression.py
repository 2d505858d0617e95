"""Forecasts a series from its last values, after differencing until it is stationary."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headgate.control.limits import check_range
from headgate.core.errors import NotReady

F64 = npt.NDArray[np.float64]

_ORDER_MAX, _DIFFERENCES_MAX = 5, 2
_UNSTEADY = 0.463
"""Critical value of KPSS: a stationary series has a larger statistic with a probability of 5 %."""


class Autoregression:
    """Implements ARIMA(p, d, 0): a value differenced d times is a weighted sum of the last p, plus noise.

    `train` chooses p and d; the weights are computed anew for every forecast. An autoregression of Yule
    and Walker is always stable, so that only a trend (d = 2) lets a forecast grow without limit.

    Parameters
    ----------
    memory : int
        Number of values that are stored; >= 3.

    References
    ----------
    Kwiatkowski et al. 1992: the test that stops differencing. Akaike 1974: the order. Differs from
    ARIMA(p, d, q): past errors have no weights, which would need an iterative search; a longer
    autoregression replaces them.
    """

    def __init__(self, memory: int = 3600) -> None:
        check_range("autoregression", "memory", memory, 3)
        self._values: deque[float] = deque(maxlen=memory)
        self._order: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """``arima(2, 1, 0)``, or ``arima`` before it was trained."""
        return f"arima({self._order[0]}, {self._order[1]}, 0)" if self._order else "arima"

    def observe(self, value: float) -> None:
        """Add the next value, which is finite."""
        self._values.append(value)

    def train(self) -> None:
        """Choose p and d from the stored values."""
        values = np.array(self._values)
        differences = 0
        while differences < _DIFFERENCES_MAX and _kpss(values) > _UNSTEADY:
            values = np.diff(values)
            differences += 1
        count = len(values)
        most = min(_ORDER_MAX, count // 4)
        fits = list(_yule_walker(values - (0.0 if differences else _mean(values)), most))
        # Akaike's criterion: residual variance, and twice the number of weights.
        worth = [count * np.log(max(left, 1e-300)) + 2.0 * len(weights) for weights, left in fits]
        self._order = int(np.argmin(worth)), differences

    def path(self, ahead: int) -> F64:
        """Return the next `ahead` values, each >= 0; NotReady before it was trained."""
        if self._order is None:
            msg = "no autoregression has been trained yet."
            raise NotReady(msg)
        order, differences = self._order
        values, ends = np.array(self._values), []
        for _ in range(differences):
            ends.append(float(values[-1]))
            values = np.diff(values)
        # A differenced series gets no mean: a drift would be extrapolated over the horizon.
        mean = 0.0 if differences else _mean(values)
        *_, (weights, _) = _yule_walker(values - mean, order)
        recent = deque((values[::-1][: len(weights)] - mean).tolist(), maxlen=len(weights))
        found = np.zeros(ahead)
        for step in range(ahead if len(weights) else 0):
            found[step] = sum(w * value for w, value in zip(weights.tolist(), recent, strict=True))
            recent.appendleft(float(found[step]))
        found += mean
        for end in reversed(ends):
            found = end + np.cumsum(found)
        return np.maximum(found, 0.0)


def _mean(values: F64) -> float:
    return float(values.mean()) if len(values) else 0.0


def _kpss(values: F64) -> float:
    """Return the KPSS statistic of a series, 0 for a constant one."""
    count = len(values)
    if count < 3:  # noqa: PLR2004
        return 0.0
    off = values - values.mean()
    lags = int(4.0 * (count / 100.0) ** 0.25)
    spread = float(off @ off)
    for lag in range(1, min(lags, count - 1) + 1):
        spread += 2.0 * (1.0 - lag / (lags + 1.0)) * float(off[lag:] @ off[:-lag])
    wandered = np.cumsum(off)
    # Rounding errors of a constant must not count.
    if spread <= 1e-18 * float(values @ values):
        return 0.0
    return float(wandered @ wandered) / (count * spread)


def _yule_walker(values: F64, most: int) -> Iterator[tuple[F64, float]]:
    """Yield the weights, newest value first, and the variance left, for each order from 0 to `most`.

    Uses the recursion of Levinson and Durbin, which ends early if the residual variance is 0.
    """
    count = max(len(values), 1)
    alike = [float(values[lag:] @ values[: len(values) - lag]) / count for lag in range(most + 1)]
    weights: F64 = np.zeros(0)
    left = alike[0]
    yield weights, left
    for order in range(1, most + 1):
        if left <= 1e-12 * alike[0]:
            return
        echo = (alike[order] - float(weights @ np.array(alike[order - 1 : 0 : -1]))) / left
        weights = np.append(weights - echo * weights[::-1], echo)
        left *= 1.0 - echo * echo
        yield weights, left
