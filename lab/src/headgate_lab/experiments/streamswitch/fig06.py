"""Reproduces figures 6 and 18: four hours under Switch(0.2), on Samza and on Flink.

The paper shows [P]: on Samza 96.28 % with 8.40 executors, on Flink 95.24 % with 8.39; mostly load
balancing, scaling out at the openings and toward the close; mean and P99 latency mostly tens to
hundreds of milliseconds, with P99 above 1 s now and then, above all at the openings.

The engines differ in how a change waits: Samza's coordinator stops executors at once, Flink's
barrier comes behind the records that wait in the network buffers (`exchange`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.report.plot import panels
from headgate.whatif.decisions import finite
from headgate.whatif.parallel import run_all
from headgate.whatif.result import F64, RunResult
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch.exchange import (
    OPERATOR,
    SERVICE_RATE_PER_S,
    Trading,
    simulate,
)

if TYPE_CHECKING:
    from headgate.report.plot import Figure

POLICY = "streamswitch(0.2)"
PAPER = {
    "samza": {"success": 0.9628, "slots_mean": 8.40},
    "flink": {"success": 0.9524, "slots_mean": 8.39},
    "latency": "mean and P99 mostly tens to hundreds of milliseconds; P99 above 1 s at openings",
}
RATE_FACTORS = (1.0, 1.25)
"""Of the service rate: as chosen by Static, and near where the paper's slots are reached."""
_POINTS = 720
"""Of a timeline; 20 s each over the whole day."""
_OPENING_S = 300.0
"""Length of an opening, in a session of two hours."""


def run(request: Request) -> dict[str, Any]:
    """Return success, slots, latencies and changes on both engines."""
    return measure(24.0 if request.quick else 1.0)


def measure(shorter: float, rate_factors: tuple[float, ...] = RATE_FACTORS) -> dict[str, Any]:
    """Return the same for a day that is `shorter` times shorter."""
    runs = [
        Trading(POLICY, factor * SERVICE_RATE_PER_S, shorter=shorter, barrier=barrier)
        for factor in rate_factors
        for barrier in (False, True)
    ]
    found = run_all(_observe, runs)
    return {
        "mode": "continuous",
        "seed": runs[0].seed,
        "shorter": shorter,
        "service_rate_per_s": round(SERVICE_RATE_PER_S, 2),
        "paper": PAPER,
        "rows": [row for row, _ in found],
        "timelines": [timeline for _, timeline in found],
    }


def _observe(trading: Trading) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers of one run and its timelines."""
    result = simulate(trading)
    measures = result.operators[OPERATOR]
    series = result.timeline(OPERATOR)
    session_s = measures.ticks * measures.delta_s / 2
    opening = np.mod(series["time_s"], session_s) <= _OPENING_S / trading.shorter
    p99_s = series["latency_p99_s"]
    kinds = result.kinds(OPERATOR)
    row = {
        "engine": "flink" if trading.barrier else "samza",
        "rate": round(trading.service_rate_per_s / SERVICE_RATE_PER_S, 3),
        "success": round(result.success(OPERATOR).mean, 5),
        "slots_mean": round(measures.slots_mean, 3),
        "latency_mean_median_s": _median(series["latency_mean_s"]),
        "latency_p99_median_s": _median(p99_s),
        "late_at_openings": _share_late(p99_s[opening]),
        "late_else": _share_late(p99_s[~opening]),
        "balances": kinds.get("balance", 0),
        "scale_outs": kinds.get("scale-out", 0),
        "scale_ins": kinds.get("scale-in", 0),
        "switching_s": round(float(np.mean([a.took_s for a in measures.applied] or [0.0])), 4),
    }
    return row, {"engine": row["engine"], "rate": row["rate"], **_drawn(result, series)}


def _median(values: F64) -> float:
    return round(float(np.nanmedian(values)), 4)


def _share_late(p99_s: F64) -> float:
    """Return the share of the timeline's steps whose P99 latency is above the bound of 1 s."""
    return round(float(np.mean(p99_s[~np.isnan(p99_s)] > 1.0)), 4)


def _drawn(result: RunResult, series: Mapping[str, F64]) -> dict[str, Any]:
    steps = len(series["time_s"])
    starts = np.unique(np.linspace(0, steps, _POINTS, endpoint=False).astype(int))
    counts = np.diff(np.append(starts, steps))
    balances = [
        round(a.applied_s, 1)
        for a in result.operators[OPERATOR].applied
        if str(a.change.kind) == "balance"
    ]
    means = {
        name: np.add.reduceat(np.nan_to_num(series[name]), starts) / counts
        for name in ("time_s", "arrivals_per_s", "slots", "latency_mean_s")
    }
    p99_s = np.maximum.reduceat(np.nan_to_num(series["latency_p99_s"]), starts)
    return {
        "balances_s": balances,
        **{
            name: [finite(round(float(v), 4)) for v in values]
            for name, values in {**means, "latency_p99_s": p99_s}.items()
        },
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return, per run, slots with the balances marked, and mean and P99 latency."""
    lines = data["timelines"]
    figure, axes = panels(2, len(lines))
    for column, line in enumerate(lines):
        minutes = np.array(line["time_s"]) / 60.0
        slots, latency = axes[column], axes[len(lines) + column]
        slots.plot(minutes, line["slots"])
        at = np.array(line["balances_s"]) / 60.0
        slots.plot(at, np.interp(at, minutes, line["slots"]), "o", mfc="none", ms=3)
        slots.set(ylabel="slots", title=f"{line['engine']}, rate x {line['rate']:g}")
        latency.plot(minutes, line["latency_p99_s"], lw=0.6, label="P99, most of a step")
        latency.plot(minutes, line["latency_mean_s"], lw=0.6, label="mean")
        latency.axhline(1.0, color="k", ls=":")
        latency.set(xlabel="time, min", ylabel="latency, s", yscale="log")
        latency.legend()
    return figure
