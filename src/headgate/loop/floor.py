"""Measures the latency floor of a job: the latency that even an idle job has."""

from __future__ import annotations

import math
from collections import deque

_IDLE = 0.25
"""Utilisation up to which a cycle counts as nearly idle; chosen, not tuned."""

_SHARE = 0.1
"""The quantile: low, so that a pause does not raise the floor; not the least, which may be luck."""

_QUEUED = 3.0
"""Least latencies of arrivals that may wait in a job that is idle. Chosen, not tuned."""

_PERIODS = 2.0
"""Batch periods that a record of a job that keeps up may take: it waits for one batch and is served in
the next. A record that is older had been waiting before."""

_CYCLES = 128
"""How many nearly idle cycles are remembered: a slower engine becomes the new floor after them."""


class Floor:
    """Computes a running low quantile of the mean latency of nearly idle cycles.

    A micro-batch makes a record wait for the next batch and then for the batch's fixed cost, about
    1.5 batch periods in all, however small the load. A bound is judged above that floor, or else no
    job would ever look healthy enough to give a slot back. Only a job that keeps up shows it: a cycle
    whose records are older than two periods, or of which more wait than come in that time, is left out.

    `value_s` is the floor in seconds, 0 until a nearly idle cycle was seen; `least_s` the least latency
    of any cycle.
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
        latency_s : float
            Mean latency of the records completed in the window, in seconds.
        utilisation : float
            Useful time over wall time, of the busiest slot.
        waiting_s : float
            Seconds of arrivals that wait. In an idle job they wait as long as the latency is; where
            it is several times the least one seen, records queue, and the cycle says nothing.
        period_s : float
            From the beginning of the batch before to that of this one, in seconds.
        """
        if max(latency_s, waiting_s) > _PERIODS * period_s:
            return
        self.least_s = min(self.least_s, latency_s)
        if waiting_s > _QUEUED * self.least_s:
            return
        if not utilisation <= _IDLE:  # also where it is not known
            return
        self._latencies_s.append(latency_s)
        ordered = sorted(self._latencies_s)
        self.value_s = ordered[int(_SHARE * len(ordered))]
