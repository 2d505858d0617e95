"""Splits a batch's time into a part that more slots shorten and a part that they do not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_TASKS = 256
"""Number of newest slot tasks that are stored; a larger value covers a longer time. Not tuned."""


@dataclass(frozen=True)
class BatchTimes:
    """Holds the times of the parts of an operator's batches, in seconds, and its newest slot tasks.

    The newest slot tasks are of many batches.
    """

    before_s: float
    """From the beginning of a batch to its first slot task, if the batch had no records."""
    record_s: float
    """Time that each record adds to `before_s`."""
    task_s: float
    """Fixed time of a slot task."""
    after_s: float
    """From the end of the last slot task to the beginning of the next batch."""
    budget_s: float
    """Time that a slot may serve in a batch; infinite without a budget."""
    cores: int
    """Number of slot tasks that run at once."""
    tasks: F64
    """float64[n, 2]: records and seconds per record of the newest tasks, oldest first."""
    tasks_seen: int
    """Number of tasks with records since the start, including those that `tasks` no longer has."""

    @property
    def fixed_s(self) -> float:
        """Time of a batch without records, in seconds; the time for each record is in `record_s`."""
        return self.before_s + self.task_s + self.after_s

    def stretch(self, bound_s: float) -> float:
        """Return the time of a whole batch, divided by the time in which a slot serves.

        In this batch a slot serves for its whole budget. Without a budget, this is the longest batch
        whose records meet the bound: on average a record waits for half a batch, and then a whole batch
        serves it. The slot then serves for at least a tenth of the bound.
        """
        serving_s = self.budget_s
        if math.isinf(serving_s):
            serving_s = max(bound_s / 1.5 - self.fixed_s, 0.1 * bound_s)
        return (self.fixed_s + serving_s) / serving_s


@dataclass
class TaskLog:
    """Stores the newest tasks of an operator's slots."""

    seen: int = 0
    """Number of tasks since the start."""
    _ring: F64 = field(default_factory=lambda: np.zeros((_TASKS, 2)))

    def add(self, records: float, took_s: float) -> None:
        """Add a task of so many records that took so long; a task without records does not count."""
        if records > 0:
            self._ring[self.seen % _TASKS] = records, max(took_s, 0.0) / records
            self.seen += 1

    def newest(self) -> F64:
        """Return the stored tasks, oldest first: float64[n, 2], as `BatchTimes.tasks`."""
        if self.seen <= _TASKS:
            return self._ring[: self.seen].copy()
        return np.roll(self._ring, -(self.seen % _TASKS), axis=0)
