"""Measures the latency floor of a job in micro-batches: the latency with hardly any load."""

from __future__ import annotations

import math
from collections import deque

from headgate.loop.floor import Floor

_PERIODS = 1.5
"""Least mean latency of a record, in batch periods: half a batch of waiting, and a batch of serving."""

_SHARE = 0.1
_STEPS = 128
"""The quantile, and the number of steps that it is taken over; as in `Floor`."""

_WARM_STEPS = 5
"""Number of first steps that do not count: the JVM and the workers are still loading."""

STEPS_MIN = 20
"""Steps before a floor is used: a floor that is too high would stop a policy. Chosen, not tuned."""


class BatchFloor:
    """Measures the floor of the operators that read the source.

    The floor is a low quantile of the mean latency over steps in which no records waited and slots were
    hardly busy. Without such a step, the floor is 1.5 times the part of a batch in which no slot works: a
    low quantile of this part over the steps in which no records waited, or else its least value over all
    steps. A step of a job that is behind does not count: then more than one batch of records waits. Nor
    does the latency of a step with records older than two batches, which waited where no counter sees
    them. So a floor never rises because records wait.

    References
    ----------
    `headgate.loop.floor`. Differs: the criterion is the time for which slots were busy in a step, not
    their utilisation, so that slots at a fixed rate, which are never busy, also have a floor under load.
    """

    def __init__(self) -> None:
        self._measured = Floor()
        self._beside_s: deque[float] = deque(maxlen=_STEPS)
        self._least_s = math.inf
        self._steps = 0
        self._last_ms: float | None = None
        self._busy_s = 0.0

    def add(
        self,
        started_ms: float,
        latency_s: float | None,
        busy_s: float,
        waiting: bool,
        behind: bool = False,
    ) -> None:
        """Take a committed step into account.

        Parameters
        ----------
        latency_s : float or None
            Mean latency of the records that the step served; None where it served none.
        busy_s : float    How long the slowest slot took.
        waiting : bool    Whether records waited before the step or after it.
        behind : bool
            Whether more records wait after the step than it served, in backlog and source together.
        """
        self._steps += 1
        last_ms, self._last_ms = self._last_ms, started_ms
        before_s, self._busy_s = self._busy_s, busy_s
        if last_ms is None or self._steps <= _WARM_STEPS or behind:
            return
        period_s = (started_ms - last_ms) / 1e3
        beside_s = max(0.0, period_s - before_s)
        self._least_s = min(self._least_s, beside_s)
        if not waiting:
            self._beside_s.append(beside_s)
        if latency_s is not None and not waiting and period_s > 0.0:
            self._measured.add(latency_s, busy_s / period_s, period_s=period_s)

    @property
    def value_s(self) -> float:
        """The floor in seconds; 0 before step `STEPS_MIN`."""
        if self._steps < STEPS_MIN:
            return 0.0
        if self._measured.value_s or math.isinf(self._least_s):
            return self._measured.value_s
        if not self._beside_s:
            return _PERIODS * self._least_s
        return _PERIODS * sorted(self._beside_s)[int(_SHARE * len(self._beside_s))]
