"""Measures the latency floor of a job: the latency that even an idle job has."""

from __future__ import annotations

import math
from collections import deque

_IDLE = 0.25
"""Utilisation up to which a cycle counts as nearly idle; chosen, not tuned."""

_SHARE = 0.1
"""The quantile: low, so that a pause does not raise the floor; not 0, as a minimum may be an outlier."""

_QUEUED = 3.0
"""Longest wait of records in an idle job, in multiples of the least latency seen. Chosen, not tuned."""

_PERIODS = 2.0
"""Largest latency in batch periods if the job keeps up: a record waits for one batch and is served in the
next. An older record was in a queue."""

_CYCLES = 128
"""Number of nearly idle cycles in the quantile; a slower engine raises the floor after about so many."""


class Floor:
    """Computes a running low quantile of the mean latency of nearly idle cycles.

    A micro-batch makes a record wait for the next batch and then for the batch's fixed cost, about
    1.5 batch periods in all, however small the load. Policies subtract that floor, or else no job would
    ever be good enough to lose a slot. Cycles with a queue do not count: their records are older than two
    periods, or records of more than two periods wait.

    `value_s` is the floor in seconds, 0 before the first nearly idle cycle; `least_s` is the least
    latency of any cycle.
    """

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=_CYCLES)
        self.value_s = 0.0
        self.least_s = math.inf

    def add(
        self,
        latency_s: float,
        utilisation: float,
        waiting_s: float = 0.0,
        period_s: float = math.inf,
    ) -> None:
        """Take one cycle into account.

        Parameters
        ----------
        latency_s : float    Mean latency of the records completed in the window, in seconds.
        utilisation : float    Useful time over wall time, of the busiest slot.
        waiting_s : float
            Waiting records, as seconds of arrivals. In an idle job this is about the latency; several
            times the least latency means a queue, and the cycle does not count.
        period_s : float
            Time between the beginnings of the previous batch and this one, in seconds.
        """
        if max(latency_s, waiting_s) > _PERIODS * period_s:
            return
        self.least_s = min(self.least_s, latency_s)
        if waiting_s > _QUEUED * self.least_s:
            return
        if not utilisation <= _IDLE:  # NaN, an unknown utilisation, does not count either
            return
        self._latencies_s.append(latency_s)
        ordered = sorted(self._latencies_s)
        self.value_s = ordered[int(_SHARE * len(ordered))]
