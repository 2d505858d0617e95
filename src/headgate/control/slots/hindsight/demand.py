"""Measures the number of slots that the load keeps busy: means over windows, maxima and quantiles."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_SURE = 2.0
"""Number of standard deviations by which `Mean.surely` lowers a count of records, because the count may
be high by chance; with a larger value, fewer bursts count as load."""

_LEAST, _GROWTH, _BUCKETS = 0.01, 1.04, 300
"""Buckets of the histogram: first edge in slots, ratio of edges, and number; 0.01 to 1,240 slots."""


class Mean:
    """Computes the mean work per second over the last `window_s` seconds.

    `window_s`: seconds; > 0.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float, float]] = deque()
        self._work_s = self._span_s = self._records = 0.0

    def add(self, elapsed_s: float, work_s: float, records: float) -> None:
        """Add the arrivals of the last `elapsed_s` seconds."""
        self._seen.append((elapsed_s, work_s, records))
        self._span_s += elapsed_s
        self._work_s += work_s
        self._records += records
        while len(self._seen) > 1 and self._span_s - self._seen[0][0] >= self._window_s * 0.999:
            old_s, old_work_s, old_records = self._seen.popleft()
            self._span_s -= old_s
            self._work_s = max(self._work_s - old_work_s, 0.0)
            self._records = max(self._records - old_records, 0.0)

    @property
    def slots(self) -> float:
        """Seconds of work per second: the number of slots that the load keeps busy."""
        return self._work_s / self._span_s if self._span_s else 0.0

    @property
    def surely(self) -> float:
        """Lower estimate of `slots`, with the count of records lowered by `_SURE` deviations."""
        if self._records <= 0.0:
            return 0.0
        sure = max(0.0, self._records - _SURE * math.sqrt(self._records))
        return self.slots * sure / self._records


class Most:
    """Computes the maximum of a value over the last `hold_s` seconds."""

    def __init__(self, hold_s: float) -> None:
        self._hold_s = hold_s
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, time_s: float, value: float) -> float:
        """Add a value, and return the maximum."""
        seen = self._seen
        while seen and seen[-1][1] <= value:
            seen.pop()
        seen.append((time_s, value))
        while seen[0][0] < time_s - self._hold_s:
            seen.popleft()
        return seen[0][1]


class Quantiles:
    """Computes quantiles of a value over time; older values count less.

    `memory_s`: seconds in which the weight of a value falls to 1/e, about a third.
    """

    def __init__(self, memory_s: float) -> None:
        self._memory_s = memory_s
        self._weight: F64 = np.zeros(_BUCKETS)
        self._edges: F64 = _LEAST * _GROWTH ** np.arange(_BUCKETS, dtype=np.float64)

    def add(self, elapsed_s: float, value: float) -> None:
        """Add a value that lasted for `elapsed_s` seconds."""
        place = 0
        if value > _LEAST:
            place = min(math.ceil(math.log(value / _LEAST) / math.log(_GROWTH)), _BUCKETS - 1)
        self._weight *= math.exp(-elapsed_s / self._memory_s)
        self._weight[place] += elapsed_s

    def at(self, shares: F64) -> F64:
        """Return the quantiles of the value at these shares of the time."""
        upto = np.cumsum(self._weight)
        places = np.searchsorted(upto, shares * upto[-1])
        values: F64 = self._edges[np.minimum(places, _BUCKETS - 1)]
        return values
