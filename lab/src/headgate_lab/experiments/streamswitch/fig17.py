"""Reproduces figure 17: figure 5 under (L, T) = (1 s, 5 s) and (5 s, 1 s).

The paper shows [P]: Switch above Static, DRS and DRS-LB as before, and its success at any fixed
margin higher than under (1 s, 1 s): by 0.5 % for T = 5 s and by 1 % for L = 5 s on average.

Parameters as in figure 5, at the service rate that Static fixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.report.plot import panels
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch.exchange import SERVICE_RATE_PER_S, Trading
from headgate_lab.experiments.streamswitch.sweep import (
    FULL,
    QUICK,
    SWITCH,
    Plan,
    curves,
    domination,
    family,
    flat,
    point,
    sweep,
)

if TYPE_CHECKING:
    from headgate.report.plot import Figure

SLOS_S = ((1.0, 5.0), (5.0, 1.0))
"""L and T."""
PAPER = {
    "dominates": True,
    "gain": {"T = 5 s": 0.005, "L = 5 s": 0.01},
}


def run(request: Request) -> dict[str, Any]:
    """Return the sweeps under both SLOs, and what Switch gains over (1 s, 1 s)."""
    return measure(QUICK if request.quick else FULL)


def measure(plan: Plan) -> dict[str, Any]:
    """Return the same for the policies of a plan."""
    base = Trading("", SERVICE_RATE_PER_S)
    variants = [replace(base, bound_s=bound, window_s=window) for bound, window in SLOS_S]
    strict = run_all(
        point,
        [
            replace(base, policy=f"{SWITCH}({epsilon:g})", shorter=plan.shorter)
            for epsilon in plan.epsilons
        ],
    )
    sweeps = sweep(plan, variants)
    slos: list[dict[str, Any]] = [
        {
            "bound_s": bound_s,
            "window_s": window_s,
            "dominates": domination(points),
            "gain": _gain(points, strict),
            "points": points,
        }
        for (bound_s, window_s), points in zip(SLOS_S, sweeps, strict=True)
    ]
    rows = flat(strict, bound_s=1.0, window_s=1.0)
    for slo in slos:
        rows += flat(slo["points"], bound_s=slo["bound_s"], window_s=slo["window_s"])
    return {
        "mode": "continuous",
        "seed": base.seed,
        "shorter": plan.shorter,
        "service_rate_per_s": round(SERVICE_RATE_PER_S, 2),
        "paper": PAPER,
        "slos": slos,
        "rows": rows,
    }


def _gain(points: Sequence[dict[str, Any]], strict: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how much higher Switch's success is than under (1 s, 1 s): mean, and per margin."""
    before = {p["policy"]: p["success"] for p in strict}
    gains = {p["policy"]: p["success"] - before[p["policy"]] for p in family(points, SWITCH)}
    each = {name: round(gain, 5) for name, gain in gains.items()}
    return {"mean": round(float(np.mean(list(gains.values()))), 5), **each}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the curves under both SLOs."""
    figure, axes = panels(1, len(data["slos"]))
    for panel, slo in zip(axes, data["slos"], strict=True):
        title = f"(L, T) = ({slo['bound_s']:g} s, {slo['window_s']:g} s)"
        curves(panel, slo["points"], title)
        panel.legend()
    return figure
