"""Fits the trend of a rate: a straight line through values measured at uneven times."""

from __future__ import annotations

from collections import deque

import numpy as np

_GROWTH_MAX = 2.0
"""Largest factor by which a trend grows a rate: a line through noise may have any slope. Chosen."""

_SAMPLES_MIN = 3


class Trend:
    """Fits the recent trend of a rate; the times between values may differ.

    `look_back_s`: time that the line covers, seconds; there is no trend before half of it was seen.

    References
    ----------
    PSPS III describes DABS-Storm's forecast as a regression over intervals of one length; see
    `headgate_lab.rivals.regression.Regression`. Differs: each value has its own time.
    """

    def __init__(self, look_back_s: float) -> None:
        self._look_back_s = look_back_s
        self._seen: deque[tuple[float, float]] = deque()

    def observe(self, time_s: float, rate: float) -> None:
        """Add the rate at `time_s`, in records per second; times ascend."""
        self._seen.append((time_s, rate))
        while self._seen[0][0] < time_s - self._look_back_s:
            self._seen.popleft()

    def growth(self, ahead_s: float) -> float:
        """Return the factor by which the rate will have grown `ahead_s` from now.

        Between 1 and 2: a fall of the rate is never forecast.
        """
        if len(self._seen) < _SAMPLES_MIN:
            return 1.0
        times_s, rates = np.array(self._seen).T
        if times_s[-1] - times_s[0] < self._look_back_s / 2 or not rates[-1] > 0.0:
            return 1.0
        offset_s = times_s - times_s.mean()
        slope = float((offset_s * rates).sum() / (offset_s * offset_s).sum())
        return min(max(1.0 + slope * ahead_s / float(rates[-1]), 1.0), _GROWTH_MAX)
