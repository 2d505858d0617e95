"""How much of a slot task's time its records took: the fixed cost of an Arrow batch taken away.

A task with five records takes nearly as long as one with five hundred. Time per record taken from
such tasks would make a slot with little to do look slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from headgate.spark.job.reports import Report

_DECAY = 0.9
"""Weight of a batch against the next one: the fit looks back about ten batches. Chosen, not tuned."""

_FIXED_MS = 20.0
"""Fixed cost of a task assumed at first: 5 to 30 ms were measured here."""

_PERIODS = 32
"""Batches whose time beside the slots' is remembered. Chosen, not tuned."""

_SERVING_SHARE_MIN = 0.2
"""A budget that the fixed cost nearly fills still serves; keeps the rate away from zero."""


class CostFit:
    """Fits ``useful time = a + b x records`` over the recent tasks of one slot.

    Least squares, older tasks weighing less. One made-up task without records and with the least time
    seen so far keeps `a` defined while the load, and so every task, is the same.
    """

    def __init__(self) -> None:
        self._least_ms = _FIXED_MS
        self._sums = np.zeros(5)
        """Weighted sums of 1, x, y, x*x, x*y."""

    def add(self, records: int, useful_ms: float) -> None:
        """Take a task into account; one without records says nothing about them."""
        if records <= 0:
            return
        self._least_ms = min(self._least_ms, useful_ms)
        x, y = float(records), useful_ms
        self._sums = self._sums * _DECAY + np.array([1.0, x, y, x * x, x * y])

    @property
    def fixed_ms(self) -> float:
        """The fixed cost a of a task, in ms; never above its mean."""
        return self._line()[0]

    @property
    def record_ms(self) -> float:
        """The cost b of a record, in ms; 0 while none is known."""
        return self._line()[1]

    def _line(self) -> tuple[float, float]:
        tasks, x, y, xx, xy = (float(v) for v in self._sums)
        if x == 0.0:
            return self._least_ms, 0.0
        weight, y_all = tasks + 1.0, y + self._least_ms
        slope = (weight * xy - x * y_all) / (weight * xx - x * x)
        fixed = (y_all - slope * x) / weight
        if slope > 0.0 and fixed >= 0.0:
            return fixed, slope
        # more records in less time, or a negative start: noise; all the time is the records'
        return 0.0, y / x


class UsefulTime:
    """Returns the useful time of slot tasks in seconds, of one operator.

    It is what the records took of the time that the slot has for them: ``b x records``, times the
    wall time per time of serving. A slot serves ``(budget - a) / b`` records in a batch that takes
    the budget and what every batch takes beside the slots, and with more slots than cores they take
    turns. So completions / useful time is what the slot can sustain, and useful time / wall time
    is 1 when it can do no more.

    Parameters
    ----------
    slot_rate : float or None
        Records per second that a slot serves in an experiment: useful time is served / rate.
    budget_s : callable
        Returns the budget at present, or None: without one a batch takes as long as it takes, and
        its fixed part weighs nothing.
    cores : int

    References
    ----------
    StreamSwitch 4.2 takes mu = completions / useful time, and assumes a cost per record only.
    """

    def __init__(
        self, slot_rate: float | None, budget_s: Callable[[], float | None], cores: int
    ) -> None:
        self._slot_rate = slot_rate
        self._budget_s = budget_s
        self._cores = max(cores, 1)
        self._fits: list[CostFit] = []
        self._beside_ms: deque[float] = deque(maxlen=_PERIODS)
        self._last_ms: float | None = None
        self._slowest_ms = 0.0

    def add(self, reports: Sequence[Report], started_ms: float, slots: int) -> list[float]:
        """Take the tasks of a batch into account, and return the useful time of each, in s.

        Parameters
        ----------
        reports : sequence of Report
            Of this operator's slots.
        started_ms : float
            When the batch began, by the wall clock.
        slots : int
        """
        if self._slot_rate is not None:
            return [report.work / self._slot_rate for report in reports]
        while len(self._fits) < slots:
            self._fits.append(CostFit())
        for report in reports:
            self._fits[report.slot].add(report.work, report.useful_ms)
        waves = -(-slots // self._cores)
        slowest_ms = max((r.useful_ms for r in reports), default=0.0) * waves
        if self._last_ms is not None:
            self._beside_ms.append(max(0.0, started_ms - self._last_ms - self._slowest_ms))
        self._last_ms, self._slowest_ms = started_ms, slowest_ms
        return [self._useful_s(report, waves) for report in reports]

    def renumber(self, survivors: Sequence[int | None]) -> None:
        """Take note of a new assignment; parameters as of `Change.survivors`."""
        fits = self._fits
        self._fits = [fits[s] if s is not None and s < len(fits) else CostFit() for s in survivors]

    def _useful_s(self, report: Report, waves: int) -> float:
        fit = self._fits[report.slot]
        useful_s = fit.record_ms * report.work / 1e3 * waves
        budget_s = self._budget_s()
        if budget_s is None or not self._beside_ms:
            return useful_s
        budget_ms = budget_s * 1e3
        # a low quantile: while a source is quiet, the time between batches is not spent on anything
        beside_ms = sorted(self._beside_ms)[len(self._beside_ms) // 4]
        serving_ms = max(budget_ms - fit.fixed_ms, _SERVING_SHARE_MIN * budget_ms)
        return useful_s * (budget_ms + beside_ms) / serving_ms
