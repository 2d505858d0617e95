"""How often latency was within its bound: from true latencies, never from an estimate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Success:
    """Success of each key group over a run.

    Attributes
    ----------
    rate : float64[G]
        Share of the windows with completions whose mean latency is within the bound; NaN for a
        group that completed nothing.
    windows : int
        How many windows there are, the same for every group.
    empty : int64[G]
        How many of them had no completion and are left out.
    """

    rate: F64
    windows: int
    empty: I64

    @property
    def mean(self) -> float:
        """Mean over the groups that completed something; NaN where none did."""
        known = self.rate[~np.isnan(self.rate)]
        return float(known.mean()) if len(known) else float("nan")


def success_rates(
    completed: F64, latency_sum_s: F64, *, window_ticks: int, bound_s: float
) -> Success:
    """Return how often the mean latency over a sliding window was at most the bound.

    Parameters
    ----------
    completed : float64[M, G]
        Records completed in each tick, per key group.
    latency_sum_s : float64[M, G]
        The sum of their true latencies: completion minus arrival, in seconds.
    window_ticks : int
        T in ticks, at least 1. Windows end at every tick from the `window_ticks`-th on; a run that
        is shorter has none.
    bound_s : float
        L, in seconds.

    References
    ----------
    StreamSwitch 6, "success rate": it leaves open the step of the windows, here one tick, and what
    a window without completions is, here left out and counted.
    """
    ticks, groups = completed.shape
    if ticks < window_ticks:
        return Success(np.full(groups, np.nan), 0, np.zeros(groups, dtype=np.int64))
    counts = _window_sums(completed, window_ticks)
    sums = _window_sums(latency_sum_s, window_ticks)
    busy = counts > 0.0
    within = busy & (sums <= bound_s * counts * (1.0 + _ROUNDING))
    counted = busy.sum(axis=0)
    with np.errstate(invalid="ignore"):
        rate: F64 = within.sum(axis=0) / counted
    return Success(rate, len(counts), len(counts) - counted)


def _window_sums(values: F64, window: int) -> F64:
    """Return the sum of each `window` successive rows: float64[M - window + 1, G].

    A window is the end of one block of `window` rows and the beginning of the next. Summing only
    within blocks keeps the error to that of one window, where a difference of running totals would
    carry that of the whole run.
    """
    ticks, groups = values.shape
    blocks = -(-ticks // window)
    padded = np.zeros((blocks * window, groups))
    padded[:ticks] = values
    blocked = padded.reshape(blocks, window, groups)
    beginning = np.cumsum(blocked, axis=1).reshape(padded.shape)
    end = np.cumsum(blocked[:, ::-1], axis=1)[:, ::-1].reshape(padded.shape)
    sums: F64 = end[: ticks - window + 1].copy()
    across = np.arange(len(sums)) % window != 0
    sums[across] += beginning[window - 1 : ticks][across]
    return sums
