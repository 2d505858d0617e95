"""Measures the share of windows that met an SLO, from true latencies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.control.limits import window_ticks
from headgate.core.slo import EACH_OPERATOR, Slo

F64 = npt.NDArray[np.float64]


class SuccessRate:
    """Measures the share of sliding windows in which an SLO holds.

    A window of length T ends at every tick, once T has passed. A mean is judged for each key group,
    unless the SLO is end-to-end; a percentile is judged for the whole operator. If records waited in
    a window but none was completed, the next completions judge the window, as in
    `headgate.control.success.success_rates`. Until then the window is missed as soon as the records
    have waited longer than the bound (for a mean: on average). A window without waiting records is
    left out.

    `slo`: an SLO of latency. `delta_s`: length of a tick. Raises `ConfigError`: the SLO's window is
    too long to store.

    Attributes
    ----------
    windows, met : float64[G] or float64[1]
        Windows that were judged, and the windows of these in which the SLO holds.
    empty : int    Windows left out, all key groups.
    stalled : int    Windows judged although no record was completed in them, all key groups.

    References
    ----------
    StreamSwitch 6, "success rate".
    """

    def __init__(self, slo: Slo, key_groups: int, delta_s: float) -> None:
        self._groups = key_groups
        self._delta_s = delta_s
        judged = key_groups if slo.scope == EACH_OPERATOR else 1
        self.windows: F64 = np.zeros(judged)
        self.met: F64 = np.zeros(judged)
        self.empty = 0
        self.stalled = 0
        # windows without completions: those not judged yet, and those missed so far
        self._open: F64 = np.zeros(judged)
        self._overdue: F64 = np.zeros(judged)
        # waiting time since the last completions; for a mean, summed over all waiting records
        self._waited_ms: F64 = np.zeros(judged)
        self.judge_by(slo)

    def judge_by(self, slo: Slo) -> None:
        """Judge by another SLO from now on; the first window is full when its T has passed."""
        ticks = window_ticks(slo.window_s, self._delta_s, len(self.windows))
        self._slo = slo
        self._records = np.zeros((ticks, len(self.windows)))
        self._good = np.zeros((ticks, len(self.windows)))
        self._seen = 0
        # Under another SLO, windows without completions can no longer be judged.
        self._open[:] = self._overdue[:] = self._waited_ms[:] = 0.0

    @property
    def bound_ms(self) -> float:
        """The bound in force."""
        return self._slo.bound * 1e3

    def add(self, completed: F64, latency_ms: F64, within: F64, waiting: F64) -> None:
        """Add a tick.

        `completed`, `latency_ms`, `within` (float64[G]): completions, the sum of their latencies,
        and the number of them within the bound. `waiting` (float64[G]): records that have arrived and
        are not completed at the end of the tick.
        """
        row = self._seen % len(self._records)
        good = latency_ms if self._slo.statistic == "mean" else within
        self._records[row], self._good[row] = self._pooled(completed), self._pooled(good)
        waiting = self._pooled(waiting)
        self._settle(self._records[row], self._good[row])
        self._seen += 1
        if self._seen >= len(self._records):
            records, total = self._records.sum(axis=0), self._good.sum(axis=0)
            some = records > 0
            stalled = ~some & (waiting > 0)
            self.windows += some
            self.met += some & self._holds(records, total)
            self._open += stalled
            self.empty += int(len(some) - (some | stalled).sum())
        self._wait(waiting)

    def _settle(self, records: F64, good: F64) -> None:
        """Judge the windows without completions by the first completions after them."""
        some = records > 0
        self._judge_open(some)
        self.met += self._overdue * (some & self._holds(records, good))
        self._overdue[some] = self._waited_ms[some] = 0.0

    def _wait(self, waiting: F64) -> None:
        """Add a tick to the waiting times, and judge the windows whose records are late now."""
        records = waiting if self._slo.statistic == "mean" else (waiting > 0).astype(np.float64)
        self._waited_ms = np.where(
            waiting > 0, self._waited_ms + self._delta_s * 1e3 * records, 0.0
        )
        self._judge_open(self._waited_ms > self.bound_ms * records)

    def _judge_open(self, judged: npt.NDArray[np.bool_]) -> None:
        self.windows += self._open * judged
        self.stalled += int((self._open * judged).sum())
        self._overdue += self._open * judged
        self._open[judged] = 0.0

    def _holds(self, records: F64, total: F64) -> npt.NDArray[np.bool_]:
        if self._slo.statistic == "mean":
            return total <= self._slo.bound * 1e3 * records
        return total >= self._slo.quantile * records

    def _pooled(self, values: F64) -> F64:
        return values if len(self.windows) == self._groups else values.sum(keepdims=True)

    def shares(self) -> F64:
        """Return the share of each key group that had windows, ascending by group."""
        some = self.windows > 0
        shares: F64 = self.met[some] / self.windows[some]
        return shares

    def worst(self) -> tuple[float, int]:
        """Return the least share and its key group; there must have been a window."""
        shares = self.shares()
        least = int(np.argmin(shares))
        return float(shares[least]), int(np.flatnonzero(self.windows)[least])
