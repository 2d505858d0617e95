"""Forecasts by a straight line, as DABS-Storm does."""

from __future__ import annotations

from collections import deque

import numpy as np

from headgate.control.estimators.forecast import is_present, nothing_seen
from headgate.control.limits import check_range


class Regression:
    """Forecasts by a straight line through the last values, by least squares.

    Parameters
    ----------
    window : int    Number of values; >= 2.

    References
    ----------
    DABS-Storm, as PSPS III describes it: the input is predicted by a regression function.
    """

    def __init__(self, window: int = 6) -> None:
        check_range("regression", "window", window, 2)
        self._values: deque[float] = deque(maxlen=window)

    @property
    def name(self) -> str:
        """``regression(6)``."""
        return f"regression({self._values.maxlen})"

    def observe(self, value: float) -> None:
        """Add a value; a missing value is replaced by the forecast, if there is one."""
        if is_present(value):
            self._values.append(value)
        elif self._values:
            self._values.append(self.forecast())

    def forecast(self, ahead: int = 1) -> float:
        """Return the line's value `ahead` values after the last one, at least 0."""
        count = len(self._values)
        if count == 0:
            raise nothing_seen()
        values = np.array(self._values)
        if count == 1:
            return float(values[0])
        slope, start = np.polyfit(np.arange(count), values, 1)
        return max(0.0, float(start + slope * (count - 1 + ahead)))
