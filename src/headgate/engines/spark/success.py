"""How often an SLO was met, from true latencies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


class SuccessRate:
    """Share of sliding windows whose mean latency is within the bound, per key group.

    A window of length T ends at every tick, once T has passed. One in which a key group completed
    nothing is left out for that group.

    Parameters
    ----------
    key_groups : int
    window_ticks : int
        T / delta, rounded up.
    bound_ms : float
        L.

    Attributes
    ----------
    windows, met : float64[G]
        Windows with completions, and those of them within the bound.
    empty : int
        Windows left out, all key groups.

    References
    ----------
    StreamSwitch 6, "success rate".
    """

    def __init__(self, key_groups: int, window_ticks: int, bound_ms: float) -> None:
        self.windows: F64 = np.zeros(key_groups)
        self.met: F64 = np.zeros(key_groups)
        self.empty = 0
        self.set_bound(window_ticks, bound_ms)

    def set_bound(self, window_ticks: int, bound_ms: float) -> None:
        """Judge by another SLO from now on; the next window is full when its T has passed."""
        groups = len(self.windows)
        self._bound_ms = bound_ms
        self._records = np.zeros((window_ticks, groups))
        self._latency_ms = np.zeros((window_ticks, groups))
        self._seen = 0

    def add(self, completed: F64, latency_ms: F64) -> None:
        """Take a tick into account: completions and the sum of their latencies, per key group."""
        row = self._seen % len(self._records)
        self._records[row], self._latency_ms[row] = completed, latency_ms
        self._seen += 1
        if self._seen < len(self._records):
            return
        records, latency_ms = self._records.sum(axis=0), self._latency_ms.sum(axis=0)
        some = records > 0
        self.windows += some
        self.met += some & (latency_ms <= self._bound_ms * records)
        self.empty += int(len(some) - some.sum())

    def shares(self) -> F64:
        """Return the share of each key group that had windows, ascending by group."""
        some = self.windows > 0
        found: F64 = self.met[some] / self.windows[some]
        return found

    def worst(self) -> tuple[float, int]:
        """Return the least share and its key group; there must have been a window."""
        shares = self.shares()
        least = int(np.argmin(shares))
        return float(shares[least]), int(np.flatnonzero(self.windows)[least])
