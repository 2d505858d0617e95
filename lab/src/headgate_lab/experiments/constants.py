"""Compares policies with the best constant alone: the fewest slots that keep the SLO, known afterwards.

The loads have heavy-tailed costs or are the real traces. They run in the continuous simulator or in
micro-batches, which the oracle of `headgate_lab.experiments.loads` cannot handle. Micro-batches are
those of a query with ``budget("auto")`` and as many cores as slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headgate.control.registry import policy
from headgate.control.success import success_rates
from headgate.core.errors import ConfigError
from headgate.core.slo import SUCCESS
from headgate.whatif.oracle import Load
from headgate.whatif.parallel import run_all
from headgate.whatif.result import RunResult
from headgate_lab.experiments.loads import OPERATOR, run
from headgate_lab.workloads.loads import NamedLoad, traces
from headgate_lab.workloads.tails import COUNT, tailed

PARTS = ("tails", "tails-aside")
_TRACES = 2 * COUNT
"""Number of the first trace."""

_BOUNDS_S = (1.0, 2.0, 5.0, 10.0, 20.0)
_SLOTS_MOST = 24
"""Most slots of a constant. A load's bound is the least of `_BOUNDS_S` that this many slots keep."""

_SUCCESS_LESS, _SLOTS_MORE = 0.001, 0.05
_SUCCESS_FAR, _SLOTS_FAR = 0.005, 0.15
"""A policy is worse if its success falls short of the SLO by this much, or if it uses this share more
slots than the best constant; the second pair is *hardly worse* in docs/benchmarks.md. Both were fixed
before any result was seen."""


@dataclass(frozen=True)
class Comparison:
    """Names a load, and the policies that are to run on it.

    Attributes
    ----------
    number : int
        Of a load of `tailed`; from ``2 * COUNT`` on, of the traces.
    policies : tuple of str
    batches : bool
        Whether the engine works in micro-batches.
    data : Path or None
        Directory of the traces.
    """

    number: int
    policies: tuple[str, ...]
    batches: bool
    data: Path | None = None

    @property
    def named(self) -> NamedLoad:
        """Return the load."""
        if self.number < _TRACES:
            return tailed(self.number)
        assert self.data is not None
        return traces(self.data)[self.number - _TRACES]


def measure(
    policies: Sequence[str],
    part: str,
    *,
    batches: bool = False,
    data: Path | None = None,
    jobs: int | None = None,
    every: int = 1,
    halves: bool = False,
) -> dict[str, Any]:
    """Return a summary per policy (``rows``) and a row per load and policy (``loads``).

    Parameters
    ----------
    policies : sequence of str
    part : str
        One of `PARTS`, or ``traces``.
    batches, data
        As `Comparison`.
    jobs, every
        As `headgate_lab.experiments.loads.measure`.
    halves : bool
        Whether the second half of each load is judged, beside the best constant of the first half.
    """
    for text in policies:
        policy(text)
    if part not in (*PARTS, "traces"):
        msg = (
            f'part "{part}" has no comparison with constants alone; use {", ".join(PARTS)}, traces.'
        )
        raise ConfigError(msg)
    if part == "traces" and data is None:
        msg = "the traces are in no file of headgate; name their directory with --data."
        raise ConfigError(msg)
    if part == "traces":
        assert data is not None
        numbers = range(_TRACES, _TRACES + len(traces(data)))
    else:
        first = PARTS.index(part) * COUNT
        numbers = range(first, first + COUNT)
    works = [Comparison(n, tuple(policies), batches, data) for n in numbers[::every]]
    loads = [row for rows in run_all(halves_of if halves else rows_of, works, jobs) for row in rows]
    names = dict.fromkeys(row["policy"] for row in loads)
    summary = _summary_of_halves if halves else _summary
    return {
        "part": part,
        "mode": "micro-batch" if batches else "continuous",
        "rows": [summary(loads, name) for name in names],
        "loads": loads,
    }


def rows_of(work: Comparison) -> list[dict[str, Any]]:
    """Return one row per policy on one load."""
    named = work.named
    load, best = best_constant(named.load, batches=work.batches)
    rows = []
    for text in work.policies:
        row = row_of(load, run(load, text, batches=work.batches))
        head = {"load": named.name, "bound_s": load.bound_s, "policy": text}
        rows.append(
            head
            | row
            | {f"constant_{key}": value for key, value in best.items()}
            | {
                "no_worse": verdict(row, best, _SUCCESS_LESS, _SLOTS_MORE),
                "hardly_worse": verdict(row, best, _SUCCESS_FAR, _SLOTS_FAR),
            }
        )
    return rows


def halves_of(work: Comparison) -> list[dict[str, Any]]:
    """Return a row per policy on the second half of a load, and one of the first half's best constant.

    That is the constant that a user who knows only the past could choose.
    """
    named = work.named
    load, _ = bounded(named.load, batches=work.batches)
    middle_s = (load.from_s + load.duration_s) / 2.0

    def both(text: str) -> tuple[dict[str, float], dict[str, float]]:
        result = run(load, text, batches=work.batches)
        first = half_of(result, load.from_s, middle_s)
        return first, half_of(result, middle_s, load.duration_s)

    constants = [both(f"static({n})") for n in range(max(1, int(load.slots_mean)), _SLOTS_MOST + 1)]
    chosen = _fewest([first for first, _ in constants])
    best = _fewest([second for _, second in constants])
    candidates = {text: both(text)[1] for text in work.policies}
    candidates["first half's constant"] = constants[chosen][1]
    return [
        {"load": named.name, "bound_s": load.bound_s, "policy": text}
        | row
        | {f"constant_{key}": value for key, value in constants[best][1].items()}
        | {"no_worse": verdict(row, constants[best][1], _SUCCESS_LESS, _SLOTS_MORE)}
        for text, row in candidates.items()
    ]


def _fewest(rows: Sequence[dict[str, float]]) -> int:
    """Return the index of the first row that keeps the SLO, else of the most successful one."""
    kept = [number for number, row in enumerate(rows) if row["success"] >= SUCCESS]
    return kept[0] if kept else max(range(len(rows)), key=lambda number: rows[number]["success"])


def half_of(result: RunResult, begin_s: float, end_s: float) -> dict[str, float]:
    """Return the share of windows in time and the mean slots between two moments, in seconds."""
    settings, measures = result.settings[OPERATOR], result.operators[OPERATOR]
    part = slice(round(begin_s / result.delta_s), round(end_s / result.delta_s))
    success = success_rates(
        measures.completed[part],
        measures.latency_sum_s[part],
        measures.waiting(0, measures.completed.shape[1])[part],
        window_ticks=round(settings.window_s / result.delta_s),
        bound_s=settings.bound_s,
    )
    slots = float(measures.slots[part].mean())
    return {"success": round(float(success.mean), 5), "slots": round(slots, 3)}


def verdict(
    row: dict[str, float], best: dict[str, float], success_less: float, slots_more: float
) -> bool:
    """Return whether a policy is no worse than the best constant, within a tolerance.

    If no constant keeps the SLO, the success of the best one is enough.
    """
    return row["success"] >= min(SUCCESS, best["success"]) - success_less and row["slots"] <= best[
        "slots"
    ] * (1.0 + slots_more)


def best_constant(load: Load, *, batches: bool) -> tuple[Load, dict[str, float]]:
    """Return a load with its bound, and the row of the best constant.

    Where no constant keeps the SLO within any of the bounds, it is the most successful one.
    """
    load, most = bounded(load, batches=batches)
    rows = []
    for slots in range(max(1, int(load.slots_mean)), _SLOTS_MOST):
        rows.append(row_of(load, run(load, f"static({slots})", batches=batches)))
        if rows[-1]["success"] >= SUCCESS:
            return load, rows[-1]
    return load, max([*rows, most], key=lambda row: row["success"])


def bounded(load: Load, *, batches: bool) -> tuple[Load, dict[str, float]]:
    """Return a load with its bound, and the row of the most slots."""
    for bound_s in _BOUNDS_S:
        load = replace(load, bound_s=bound_s)
        most = row_of(load, run(load, f"static({_SLOTS_MOST})", batches=batches))
        if most["success"] >= SUCCESS:
            break
    return load, most


def row_of(load: Load, result: RunResult) -> dict[str, float]:
    """Return the shares of windows and of records in time, and the mean slots after the warm-up."""
    first = round(load.from_s / result.delta_s)
    return {
        "success": round(result.success(OPERATOR, from_s=load.from_s).mean, 5),
        "records_in_time": round(result.records_in_time(OPERATOR, load.bound_s), 5),
        "slots": round(float(result.operators[OPERATOR].slots[first:].mean()), 3),
    }


def _summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return counts, medians and worst tenths of one policy over all loads."""
    mine = [row for row in rows if row["policy"] == name]
    success, records, slots, constant = (
        np.array([row[key] for row in mine])
        for key in ("success", "records_in_time", "slots", "constant_slots")
    )
    ratio = slots / constant
    return {
        "policy": name,
        "loads": len(mine),
        "no_worse": sum(row["no_worse"] for row in mine),
        "hardly_worse": sum(row["hardly_worse"] for row in mine),
        "at_99": int((success >= SUCCESS).sum()),
        "success_median": round(float(np.median(success)), 5),
        "success_worst_tenth": round(float(np.quantile(success, 0.1)), 5),
        "records_in_time_median": round(float(np.median(records)), 5),
        "slots_mean": round(float(slots.mean()), 3),
        "to_constant_median": round(float(np.median(ratio)), 3),
        "to_constant_most": round(float(ratio.max()), 3),
    }


def _summary_of_halves(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return counts, medians and worst tenths of one policy over all second halves."""
    mine = [row for row in rows if row["policy"] == name]
    success, slots, constant = (
        np.array([row[key] for row in mine]) for key in ("success", "slots", "constant_slots")
    )
    return {
        "policy": name,
        "loads": len(mine),
        "no_worse": sum(row["no_worse"] for row in mine),
        "at_99": int((success >= SUCCESS).sum()),
        "success_median": round(float(np.median(success)), 5),
        "success_worst_tenth": round(float(np.quantile(success, 0.1)), 5),
        "slots_mean": round(float(slots.mean()), 3),
        "to_constant_median": round(float(np.median(slots / constant)), 3),
    }
