"""Computes the share of windows in which true latencies, never estimates, were within the bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Success:
    """Holds the success of each key group over a run."""

    rate: F64
    """float64[G]: windows within the bound, as a share of the windows that are judged; NaN for a
    group without judged windows."""
    windows: int
    """Number of windows, the same for every group."""
    empty: I64
    """int64[G]: windows that are not judged: no record waited and none was completed."""
    stalled: I64
    """int64[G]: windows that are judged although no record was completed: records waited."""

    @property
    def mean(self) -> float:
        """Mean rate of the groups that had records; NaN where none did."""
        known = self.rate[~np.isnan(self.rate)]
        return float(known.mean()) if len(known) else float("nan")

    @property
    def worst(self) -> float:
        """The least rate of the groups that had records; NaN where none did."""
        known = self.rate[~np.isnan(self.rate)]
        return float(known.min()) if len(known) else float("nan")


def success_rates(
    completed: F64, latency_sum_s: F64, waiting: F64, *, window_ticks: int, bound_s: float
) -> Success:
    """Return how often the mean latency over a sliding window was at most the bound.

    A window without completions in which records waited has no mean latency of its own. The mean
    latency of the next tick with completions judges the window; without such a tick the window is
    missed. So a stall counts for as long as it lasts, and records that are never served are late.
    Only a window in which no record waited and none was completed is not judged.

    Parameters
    ----------
    completed : float64[M, G]    Records completed in each tick, per key group.
    latency_sum_s : float64[M, G]
        Sum of the true latencies of these records: completion minus arrival, in seconds.
    waiting : float64[M, G]    Records arrived and not completed at the end of each tick.
    window_ticks : int
        T in ticks, at least 1. A window ends at every tick from the `window_ticks`-th on; a shorter
        run has no window.
    bound_s : float    L, in seconds.

    References
    ----------
    StreamSwitch 6, "success rate". The paper does not say how far windows lie apart (here one tick),
    nor how a window without completions counts.
    """
    ticks, groups = completed.shape
    if ticks < window_ticks:
        none = np.zeros(groups, dtype=np.int64)
        return Success(np.full(groups, np.nan), 0, none, none)
    counts = _window_sums(completed, window_ticks)
    sums = _window_sums(latency_sum_s, window_ticks)
    busy = counts > 0.0
    within = busy & (sums <= bound_s * counts * (1.0 + _ROUNDING))
    # Without a completion in the window, a record that waited in it still waits at its end.
    stalled = ~busy & (waiting[window_ticks - 1 :] > 0.0)
    within |= stalled & _next_within(completed, latency_sum_s, bound_s)[window_ticks - 1 :]
    judged = busy.sum(axis=0) + stalled.sum(axis=0)
    with np.errstate(invalid="ignore"):
        rate: F64 = within.sum(axis=0) / judged
    return Success(rate, len(counts), len(counts) - judged, stalled.sum(axis=0))


def _next_within(completed: F64, latency_sum_s: F64, bound_s: float) -> Flags:
    """Return whether the next tick with completions is within the bound: bool[M, G]; False if none."""
    ticks = len(completed)
    some = completed > 0.0
    own = some & (latency_sum_s <= bound_s * completed * (1.0 + _ROUNDING))
    number = np.where(some, np.arange(ticks)[:, None], ticks)
    following = np.minimum.accumulate(number[::-1], axis=0)[::-1]
    padded = np.concatenate([own, np.zeros((1, completed.shape[1]), dtype=np.bool_)])
    flags: Flags = np.take_along_axis(padded, following, axis=0)
    return flags


def _window_sums(values: F64, window: int) -> F64:
    """Return the sum of each `window` successive rows: float64[M - window + 1, G].

    A window is the end of one block of `window` rows and the beginning of the next block. Sums
    within blocks have the rounding error of one window; differences of running totals would have
    the error of the whole run.
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
