"""Fits the trend of a rate: a straight line through values measured at uneven times."""

from __future__ import annotations

from collections import deque

import numpy as np

_GROWTH_MAX = 2.0
"""The most that a trend multiplies a rate by: a line through noise may point anywhere."""

_SAMPLES_MIN = 3


class Trend:
    """Fits the recent trend of a rate; cycles of a control loop may come unevenly.

    `look_back_s`: how far back the line goes, seconds; it says nothing before half of that was
    seen.

    References
    ----------
    PSPS III describes DABS-Storm's forecast as a regression over intervals, which
    `headgate_lab.rivals.regression.Regression` is; differs in that times are given.
    """

    def __init__(self, look_back_s: float) -> None:
        self._look_back_s = look_back_s
        self._seen: deque[tuple[float, float]] = deque()

    def observe(self, time_s: float, rate: float) -> None:
        """Take in a rate, in records per second, seen at `time_s`; times ascend."""
        self._seen.append((time_s, rate))
        while self._seen[0][0] < time_s - self._look_back_s:
            self._seen.popleft()

    def growth(self, ahead_s: float) -> float:
        """Return the factor by which the rate will have grown `ahead_s` from now.

        Between 1 and 2: a falling rate is believed when it has fallen.
        """
        if len(self._seen) < _SAMPLES_MIN:
            return 1.0
        times_s, rates = np.array(self._seen).T
        if times_s[-1] - times_s[0] < self._look_back_s / 2 or not rates[-1] > 0.0:
            return 1.0
        offset_s = times_s - times_s.mean()
        slope = float((offset_s * rates).sum() / (offset_s * offset_s).sum())
        return min(max(1.0 + slope * ahead_s / float(rates[-1]), 1.0), _GROWTH_MAX)
