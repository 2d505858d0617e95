"""Splits a batch's time into a part that more slots shorten and a part that they do not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_TASKS = 256
"""Tasks that are remembered: more than a batch has. Not tuned."""


@dataclass(frozen=True)
class BatchTimes:
    """Times of a batch, and what its slot tasks took."""

    before_s: float
    """From the beginning of a batch to its first slot task, without any record, seconds."""
    record_s: float
    """What each record adds to that, before the slots."""
    task_s: float
    """Fixed time of a slot task."""
    after_s: float
    """From the end of the last slot task to the beginning of the next batch."""
    budget_s: float
    """Time that a slot may serve in a batch; infinite without a budget."""
    cores: int
    """Slot tasks that run at once."""
    tasks: F64
    """float64[n, 2]: records and seconds per record of the newest tasks, oldest first."""
    tasks_seen: int
    """How many tasks there have been, those included that `tasks` has forgotten."""

    @property
    def fixed_s(self) -> float:
        """Seconds of a batch in which no slot serves."""
        return self.before_s + self.task_s + self.after_s

    def stretch(self, bound_s: float) -> float:
        """Return how much longer a slot takes for its records than it serves them.

        In a batch of which the budget is spent; without one, in the longest batch whose records wait for
        it, and are served in it, within the bound.
        """
        serving_s = self.budget_s
        if math.isinf(serving_s):
            serving_s = max(bound_s / 1.5 - self.fixed_s, 0.1 * bound_s)
        return (self.fixed_s + serving_s) / serving_s


@dataclass
class TaskLog:
    """The newest tasks of an operator's slots."""

    seen: int = 0
    """How many there have been."""
    _ring: F64 = field(default_factory=lambda: np.zeros((_TASKS, 2)))

    def add(self, records: float, took_s: float) -> None:
        """Take a task into account; one without records is none."""
        if records > 0:
            self._ring[self.seen % _TASKS] = records, max(took_s, 0.0) / records
            self.seen += 1

    def newest(self) -> F64:
        """Return them, oldest first."""
        if self.seen <= _TASKS:
            return self._ring[: self.seen].copy()
        return np.roll(self._ring, -(self.seen % _TASKS), axis=0)
