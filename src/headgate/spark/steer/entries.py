"""Estimates the rows that a share of a split key group would send to its owner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headgate.spark.job.reports import Report

F64 = npt.NDArray[np.float64]

_WEIGHT = 1 / 4
"""Weight of a new step. Chosen, not tuned: a few steps show how many keys a group has at a time."""


class EntryRates:
    """Estimates the entries that the records of each key group touch, per second.

    If a whole group were split, a share would touch at most as many entries as the owner does now.

    Attributes
    ----------
    per_s : float64[G]
    """

    def __init__(self, key_groups: int) -> None:
        self.per_s: F64 = np.zeros(key_groups)
        self._last_ms: float | None = None

    def add(self, reports: Sequence[Report], started_ms: float) -> None:
        """Add a step of one operator, which began at `started_ms`."""
        last_ms, self._last_ms = self._last_ms, started_ms
        if last_ms is None or started_ms <= last_ms:
            return
        touched = np.full(len(self.per_s), np.nan)
        for report in reports:
            for group, entries in report.touched_by_group.items():
                touched[group] = np.fmax(touched[group], entries)
        now = touched / (started_ms - last_ms) * 1e3
        # a group without a report had no rows, and keeps its estimate
        now = np.where(np.isnan(now), self.per_s, now)
        self.per_s = self.per_s + _WEIGHT * (now - self.per_s)
