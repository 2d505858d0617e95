"""Estimates the useful time that a record costs: its mean, and its variability."""

from __future__ import annotations

import math

import numpy as np

from headgate.control.observation import OperatorView
from headgate.control.slots.hindsight.demand import F64
from headgate.control.slots.rescaling import mean_service_rate

_LEAST_RATE = 1e-9
"""Records per second below which a service rate counts as unknown."""

_POOL = 2048
"""Number of stored costs that virtual records draw from; more remember a longer past."""

_MEMORY_S = 60.0
"""Seconds after which a measured cost counts about a third; longer: later, less noise. Chosen."""

_SURE = 3.0
"""Standard errors from the mean beyond which the mean of the newest costs replaces it. Chosen."""


class RecordCost:
    """Estimates the useful seconds of a record, and draws costs like the measured ones.

    The mean is all useful time over all records. A mean of rates, such as the smoothed service rate,
    would count cheap records too often. The mean forgets slowly, since a few costly records make up much
    of it, unless the newest measurements differ by more than chance explains.

    References
    ----------
    Differs from StreamSwitch 4.2, whose mu is the smoothed ratio of a tick's completions to its useful
    time.
    """

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._pool: F64 = np.zeros((_POOL, 2))
        self._held = 0
        self._place = 0
        self._drawn = 0
        self._seen = 0
        self._records = self._useful_s = 0.0
        self._of_tasks = False
        self._passed = 0.0

    def add(self, elapsed_s: float, view: OperatorView, stretch: float = 1.0) -> None:
        """Add the costs that a view has measured since the last view.

        In micro-batches a cost is measured over the many records of a task. `stretch`: factor on these
        costs, the time of a whole batch over its serving time (`BatchTimes.stretch`).
        """
        rate = mean_service_rate(view)
        if view.batch is not None:
            tasks = view.batch.tasks
            new = tasks[len(tasks) - min(view.batch.tasks_seen - self._seen, len(tasks)) :]
            self._seen = view.batch.tasks_seen
            self._of_tasks = True
            self._take(elapsed_s, new * (1.0, stretch))
            if self._records > 0.0:
                self.mean_s = self._useful_s / self._records
            elif rate > _LEAST_RATE:
                self.mean_s = 1.0 / rate
            return
        if view.costs is None:
            self.mean_s = 1.0 / rate if rate > _LEAST_RATE else self.mean_s
            return
        new = view.costs[len(view.costs) - min(view.costs_seen - self._seen, len(view.costs)) :]
        self._seen = view.costs_seen
        self._take(elapsed_s, new)
        if self._records > 0.0:
            self.mean_s = self._believed(view.costs)
        elif rate > _LEAST_RATE:
            self.mean_s = 1.0 / rate

    def _take(self, elapsed_s: float, new: F64) -> None:
        """Add measurements to the mean and to the pool of costs."""
        kept = math.exp(-elapsed_s / _MEMORY_S)
        self._records = self._records * kept + float(new[:, 0].sum())
        self._useful_s = self._useful_s * kept + float((new[:, 0] * new[:, 1]).sum())
        if len(new):
            places = (self._place + np.arange(len(new))) % _POOL
            self._pool[places] = new
            self._place = int(places[-1] + 1) % _POOL
            self._held = min(self._held + len(new), _POOL)

    def _believed(self, newest: F64) -> float:
        mean_s = self._useful_s / self._records
        records, each_s = newest[:, 0], newest[:, 1]
        total = float(records.sum())
        now_s = float((records * each_s).sum()) / total
        # the standard error of the mean, from the scatter of the measurements around it
        off = float((records * (each_s - now_s)).dot(records * (each_s - now_s)))
        error_s = math.sqrt(off) / total
        return now_s if abs(now_s - mean_s) > _SURE * error_s else mean_s

    @property
    def variability(self) -> float:
        """The squared coefficient of variation of a record's cost; 0 before the first measurement."""
        if not self._held or self.mean_s <= 0.0:
            return 0.0
        records, each_s = self._pool[: self._held].T
        off_s = each_s - self.mean_s
        # the variance of the mean cost of n records is the nth part of a record's variance
        return float((records * off_s * off_s).mean()) / self.mean_s**2

    @property
    def dear_s(self) -> float:
        """Return the 0.9-quantile of a task's useful time beyond the mean: the part of costly records."""
        if not self._held:
            return 0.0
        together, each_s = self._pool[: self._held].T
        return float(np.quantile(together * np.maximum(each_s - self.mean_s, 0.0), 0.9))

    def drawn(self, counts: F64) -> F64:
        """Return the mean cost of each number of records in `counts`, from the measured costs in turn."""
        if not self._held:
            return np.full(len(counts), self.mean_s)
        places = (self._drawn + np.arange(len(counts))) % self._held
        self._drawn = int(self._drawn + len(counts)) % self._held
        together, each_s = self._pool[places, 0], self._pool[places, 1]
        wide = np.minimum(np.sqrt(together / np.maximum(counts, 1.0)), 2.0)
        cost_s: F64 = np.maximum(self.mean_s + (each_s - self.mean_s) * wide, 0.05 * self.mean_s)
        return cost_s

    def dealt(self, counts: F64) -> tuple[F64, F64]:
        """Return the usual cost of a record of each key group, and the extra cost of costly records.

        A task does not tell which of its records was costly, and mostly it was one. So the record in the
        middle of a task gets all its time beyond the mean, and all other records cost the same. The
        records of `counts` pass through the stored tasks in turn, again and again. Result: float64[n],
        float64[n]: seconds of a usual record, and extra seconds of the group.
        """
        if not self._held or not self._of_tasks:
            return self.drawn(counts), np.zeros(len(counts))
        together, each_s = self._pool[: self._held].T
        total = float(together.sum())
        mean_s = max(float((together * each_s).sum()) / total, 1e-12)
        more_s = together * np.maximum(each_s - mean_s, 0.0)
        upto_s = np.concatenate([[0.0], np.cumsum(more_s)])
        middles = np.cumsum(together) - together / 2.0
        ends = self._passed + np.concatenate([[0.0], np.cumsum(counts)])
        self._passed = float(ends[-1]) % total
        laps, inside = np.divmod(ends, total)
        passed_s = laps * upto_s[-1] + upto_s[np.searchsorted(middles, inside)]
        believed = self.mean_s / mean_s
        usual_s = (mean_s - upto_s[-1] / total) * believed
        return np.full(len(counts), usual_s), np.diff(passed_s) * believed
