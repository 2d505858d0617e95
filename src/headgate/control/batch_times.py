"""Splits a batch's time into a part that more slots shorten and a part that they do not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_TASKS = 256
"""Number of tasks that are remembered; more remember a longer past. Not tuned."""


@dataclass(frozen=True)
class BatchTimes:
    """Holds the times of the parts of a batch, and of its newest slot tasks; times in seconds."""

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
    """Number of tasks since the start, also of those that `tasks` has no more."""

    @property
    def fixed_s(self) -> float:
        """Seconds of a batch in which no slot serves."""
        return self.before_s + self.task_s + self.after_s

    def stretch(self, bound_s: float) -> float:
        """Return the time of a whole batch, divided by the time in which a slot serves.

        In that batch a slot spends its budget. Without a budget it is the longest batch whose records
        are within the bound: they wait for half a batch, and the next batch serves them.
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
