"""Predicts arrivals within a horizon, by an autoregression if it was accurate lately, else by a line."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headgate.core.errors import NotReady
from headgate_lab.rivals.autoregression import Autoregression

F64 = npt.NDArray[np.float64]

_POOR, _BAD, _BAD_RUNNING = 0.25, 0.10, 15
"""An autoregression is used while the last forecast's WAPE is below `_POOR`; after `_BAD_RUNNING`
consecutive forecasts at or above `_BAD` it is retrained."""

_FIRST = 60
"""Values of the first training: a minute at the paper's one value per second."""

_REACH = 2.0 / 3.0
"""Length of the line's forecast, as a share of the horizon: 600 of 900 s in the authors' code."""


class CheckedForecast:
    """Judges its last forecast at the end of each interval, and makes the next.

    Parameters
    ----------
    ahead : int
        Number of values to forecast; >= 1.

    Attributes
    ----------
    latest : list of float
        The values since the last forecast.
    path : float64[n]
        The forecast: `ahead` values, or two thirds of them for a line; >= 0.
    by : str
        Name of the method of the forecast.

    References
    ----------
    Daedalus, as `headgate_lab.rivals.daedalus`: forecast over 15 minutes, checked by its
    weighted absolute percentage error; a regression replaces a poor forecast.
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._model = Autoregression()
        self._bad = self._seen = 0
        self._foreseen: F64 | None = None
        self.latest: list[float] = []
        self.path: F64 = np.zeros(1)
        self.by = ""

    @property
    def mean(self) -> float:
        """Mean of the latest values; NotReady without any."""
        if not self.latest:
            msg = "no value has been observed in this interval."
            raise NotReady(msg)
        return sum(self.latest) / len(self.latest)

    def observe(self, value: float) -> None:
        """Add the next value, which is finite."""
        self._model.observe(value)
        self.latest.append(value)
        self._seen += 1

    def renew(self) -> None:
        """Judge the last forecast by the latest values, and make the next."""
        missed = wape(self.latest, self._foreseen)
        trained = self._foreseen is not None
        self._bad = self._bad + 1 if trained and missed >= _BAD else 0
        if self._bad >= _BAD_RUNNING if trained else self._seen >= _FIRST:
            self._model.train()
            trained = True
        self._foreseen = self._model.path(self._ahead) if trained else None
        if missed < _POOR and self._foreseen is not None:
            self.path, self.by = self._foreseen, self._model.name
        else:
            self.path, self.by = line(self.latest, math.ceil(self._ahead * _REACH)), "a line"


def wape(seen: list[float], foreseen: F64 | None) -> float:
    """Return the sum of errors relative to the sum of values; infinite without values to compare."""
    count = 0 if foreseen is None else min(len(seen), len(foreseen))
    if foreseen is None or not count:
        return math.inf
    missed = float(np.abs(foreseen[:count] - np.array(seen[:count])).sum())
    total = sum(seen[:count])
    return missed / total if total > 0.0 else math.inf if missed else 0.0


def line(values: list[float], ahead: int) -> F64:
    """Return the next `ahead` values of the regression line through `values`, at least 0."""
    count = len(values)
    if count < 2:  # noqa: PLR2004
        return np.full(ahead, values[0] if values else 0.0)
    slope, start = np.polyfit(np.arange(count), values, 1)
    drawn: F64 = start + slope * np.arange(count, count + ahead)
    return np.maximum(drawn, 0.0)
