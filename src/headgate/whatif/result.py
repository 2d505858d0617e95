"""Holds the result of a simulated run, and computes its success and its timeline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.control.success import Success, success_rates
from headgate.journal import histogram
from headgate.loop.settings import OperatorSettings
from headgate.whatif.measures import Measures

F64 = npt.NDArray[np.float64]

_GROUPS_AT_ONCE = 16
"""Key groups whose windows are summed together, so that long runs fit into memory."""


@dataclass(frozen=True)
class RunResult:
    """Holds the figures and the decisions of one run."""

    policy: str
    """Name of the policy."""
    seed: int
    mode: str
    """*continuous* or *micro-batch*."""
    delta_s: float
    """Length of a tick."""
    settings: Mapping[str, OperatorSettings]
    """SLO and limits, by operator."""
    operators: Mapping[str, Measures]
    """True figures, by operator."""
    decisions: list[dict[str, Any]]
    """Entries of the `DecisionLog`."""

    def success(
        self,
        operator: str,
        *,
        bound_s: float | None = None,
        window_s: float | None = None,
        from_s: float = 0.0,
    ) -> Success:
        """Return how often each key group was within its bound, from true latencies.

        `bound_s`, `window_s`: default: the operator's settings; windows are rounded up to whole
        ticks. `from_s`: leaves out the windows that begin earlier: a warm-up.
        """
        measures = self.operators[operator]
        return self._success(operator, measures.latency_sum_s, bound_s, window_s, from_s)

    def percentile_success(
        self, operator: str, quantile: float, *, window_s: float, from_s: float = 0.0
    ) -> Success:
        """Return how often a share of the records was within the bound, of the operator as a whole.

        Parameters
        ----------
        operator : str    An operator whose model has the bound (`OperatorModel.within_s`).
        quantile : float    The share: 0.95 of a p95.
        window_s, from_s
            See `success`.
        """
        measures = self.operators[operator]
        first = math.ceil(from_s / self.delta_s - 1e-9)
        completed = measures.completed.sum(axis=1, keepdims=True)
        late = completed - measures.within.sum(axis=1, keepdims=True)
        waiting = np.cumsum(measures.arrived.sum(axis=1, keepdims=True) - completed, axis=0)
        return success_rates(
            completed[first:],
            late[first:],
            waiting[first:],
            window_ticks=math.ceil(window_s / self.delta_s - 1e-9),
            bound_s=1.0 - quantile,
        )

    def end_to_end_success(
        self, operator: str, *, bound_s: float, window_s: float, from_s: float = 0.0
    ) -> Success:
        """Return the success for the time from the job's first operator to the end of `operator`."""
        measures = self.operators[operator]
        return self._success(operator, measures.origin_sum_s, bound_s, window_s, from_s)

    def _success(
        self,
        operator: str,
        latency_sum_s: F64,
        bound_s: float | None,
        window_s: float | None,
        from_s: float,
    ) -> Success:
        settings = self.settings[operator]
        window_s = settings.window_s if window_s is None else window_s
        bound_s = settings.bound_s if bound_s is None else bound_s
        window = math.ceil(window_s / self.delta_s - 1e-9)
        first = math.ceil(from_s / self.delta_s - 1e-9)
        measures = self.operators[operator]
        parts = [
            success_rates(
                measures.completed[first:, start : start + _GROUPS_AT_ONCE],
                latency_sum_s[first:, start : start + _GROUPS_AT_ONCE],
                measures.waiting(start, start + _GROUPS_AT_ONCE)[first:],
                window_ticks=window,
                bound_s=bound_s,
            )
            for start in range(0, measures.completed.shape[1], _GROUPS_AT_ONCE)
        ]
        return Success(
            np.concatenate([part.rate for part in parts]),
            parts[0].windows,
            np.concatenate([part.empty for part in parts]),
            np.concatenate([part.stalled for part in parts]),
        )

    def kinds(self, operator: str) -> dict[str, int]:
        """Return how many changes of each kind came into force."""
        applied = self.operators[operator].applied
        return dict(sorted(Counter(str(a.change.kind) for a in applied).items()))

    def records_in_time(self, operator: str, bound_s: float) -> float:
        """Return the share of all records whose latency is at most a bound; NaN where none came.

        Differs from success, where each window and key group counts the same: if bursts are late, most
        windows may be in time, and most records late. Latencies within 5 % of the bound are an estimate.
        Waiting records at the end count as late, except as many as arrived within the last bound.
        """
        measures = self.operators[operator]
        done = int(measures.completed.sum())
        ticks = math.ceil(bound_s / self.delta_s)
        recent = int(measures.arrived[-ticks:].sum())
        late = max(0, int(measures.arrived.sum()) - done - recent)
        within = histogram.share_within(histogram.sparse_of(measures.histogram), bound_s * 1e3)
        if within is None:
            return 0.0 if late else math.nan
        return within * done / (done + late)

    def timeline(self, operator: str) -> dict[str, F64]:
        """Return the figures of a plot over time, one entry per step of the operator's measures.

        Result: dict of str to float64[steps]: ``time_s`` (end of the step), ``arrivals_per_s``,
        ``completions_per_s``, ``slots``, ``latency_mean_s``, ``latency_min_s``, ``latency_p50_s``,
        ``latency_p99_s`` (within 5 %, NaN where nothing was completed) and ``backlog``.
        """
        measures = self.operators[operator]
        starts = np.arange(0, measures.ticks, measures.step_ticks)
        ends = np.minimum(starts + measures.step_ticks, measures.ticks)
        length_s = (ends - starts) * self.delta_s
        arrived = np.add.reduceat(measures.arrived.sum(axis=1), starts)
        completed = np.add.reduceat(measures.completed.sum(axis=1), starts)
        latency_s = np.add.reduceat(measures.latency_sum_s.sum(axis=1), starts)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_s = np.where(completed > 0, latency_s / completed, np.nan)
        quantiles = dict(zip(("min", "p50", "p99"), measures.quantiles_s.T, strict=True))
        return {
            "time_s": ends * self.delta_s,
            "arrivals_per_s": arrived / length_s,
            "completions_per_s": completed / length_s,
            "slots": np.add.reduceat(measures.slots, starts) / (ends - starts),
            "latency_mean_s": mean_s,
            **{f"latency_{name}_s": values for name, values in quantiles.items()},
            "backlog": np.cumsum(arrived - completed),
        }
