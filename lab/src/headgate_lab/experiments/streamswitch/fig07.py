"""Reproduces figures 7 to 9: the load that single decisions move, and their effect on latency.

The paper shows [P]: at minute 56.80 a scale-out that moves 6 substreams, about half of the load, at
57.69 a balance that moves 3, about a quarter, and at 57.97 (caption) or 59.97 (text) a scale-in
that moves all 5 of its executor; each time the latency of what moved overshoots 1 s slightly and is
back soon after.

Shown here: the same for every decision of the first 70 minutes of the day, medians per kind, and
the decision of each kind nearest to those times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.report.plot import panels
from headgate.whatif.measures import AppliedChange, Measures
from headgate.whatif.result import F64
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
MINUTES = {"scale-out": 56.80, "balance": 57.69, "scale-in": 57.97}
PAPER = {
    "scale-out": {"minute": 56.80, "groups": 6, "share": 0.5},
    "balance": {"minute": 57.69, "groups": 3, "share": 0.25},
    "scale-in": {"minute": 57.97, "groups": 5, "share": 1.0},
    "latency": "overshoots 1 s slightly, then recovers",
}
_BOUND_S = 1.0
_LOOK_S = 30.0
"""Time after a change for which its key groups are observed."""
_LENGTH_MIN = 70.0
_CALM_MIN = 10.0
"""The opening is left out of the medians: there, a moved key group's new slot is overloaded, too."""


def run(request: Request) -> dict[str, Any]:
    """Return the share that each decision moved and the latency of what it moved."""
    return measure(12.0 if request.quick else 1.0)


def measure(shorter: float) -> dict[str, Any]:
    """Return the same for a day that is `shorter` times shorter."""
    until_s = _LENGTH_MIN * 60.0 / shorter
    trading = Trading(POLICY, SERVICE_RATE_PER_S, shorter=shorter, until_s=until_s)
    measures = simulate(trading).operators[OPERATOR]
    calm_s = _CALM_MIN * 60.0 / shorter
    changes = [_seen(a, measures) for a in measures.applied if a.decided_s >= calm_s]
    by_kind = {kind: [c for c in changes if c["kind"] == kind] for kind in MINUTES}
    examples = {
        kind: _nearest(found, MINUTES[kind] * 60.0 / shorter)
        for kind, found in by_kind.items()
        if found
    }
    return {
        "mode": "continuous",
        "seed": trading.seed,
        "shorter": shorter,
        "service_rate_per_s": round(SERVICE_RATE_PER_S, 2),
        "paper": PAPER,
        "rows": [_row(kind, found) for kind, found in by_kind.items() if found],
        "examples": examples,
    }


def _nearest(changes: Sequence[dict[str, Any]], at_s: float) -> dict[str, Any]:
    return min(changes, key=lambda change: abs(float(change["at_s"]) - at_s))


def _row(kind: str, changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shares = [c["share"] for c in changes]
    recoveries = [c["recovered_s"] for c in changes if c["recovered_s"] is not None]
    return {
        "kind": kind,
        "count": len(changes),
        "groups_median": float(np.median([c["groups"] for c in changes])),
        "share_median": round(float(np.median(shares)), 3),
        "share_lower_quartile": round(float(np.quantile(shares, 0.25)), 3),
        "share_upper_quartile": round(float(np.quantile(shares, 0.75)), 3),
        "overshoot_median_s": round(float(np.median([c["overshoot_s"] for c in changes])), 3),
        "over_bound": round(float(np.mean([c["overshoot_s"] > _BOUND_S for c in changes])), 4),
        "recovered_median_s": round(float(np.median(recoveries)), 1) if recoveries else None,
        "recovered": round(len(recoveries) / len(changes), 4),
    }


def _seen(applied: AppliedChange, measures: Measures) -> dict[str, Any]:
    """Return what one change moved, and the mean latency of that in each second around it."""
    moved = list(applied.moved)
    (source,) = {applied.before.slot_of[g] for g in moved}
    held = list(applied.before.groups_of(source))
    tick = round(applied.decided_s / measures.delta_s)
    second = round(1.0 / measures.delta_s)
    recent = slice(max(tick - 5 * second, 0), max(tick, 1))
    rate = measures.arrived[recent].sum(axis=0)
    latency_s = _latency_s(measures, moved, tick, second)
    over = latency_s > _BOUND_S
    late = np.flatnonzero(over)
    recovered = not over[-1]
    return {
        "kind": str(applied.change.kind),
        "at_s": round(applied.decided_s, 1),
        "took_s": round(applied.took_s, 3),
        "groups": len(moved),
        "of_groups": len(held),
        "share": round(float(rate[moved].sum() / max(rate[held].sum(), 1)), 4),
        "overshoot_s": round(float(np.nanmax(latency_s, initial=0.0)), 3),
        "recovered_s": (float(late[-1] + 1) if len(late) else 0.0) if recovered else None,
        "latency_s": [None if np.isnan(v) else round(float(v), 4) for v in latency_s],
    }


def _latency_s(measures: Measures, groups: list[int], tick: int, second: int) -> F64:
    """Return the mean latency of `groups` in each second after a tick; NaN where none completed."""
    span = slice(tick, min(tick + round(_LOOK_S * second), measures.ticks))
    count = measures.completed[span][:, groups].sum(axis=1)
    total = measures.latency_sum_s[span][:, groups].sum(axis=1)
    starts = np.arange(0, len(count), second)
    with np.errstate(invalid="ignore"):
        latency: F64 = np.add.reduceat(total, starts) / np.add.reduceat(count, starts)
    return latency


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the latency of what moved after the example of each kind."""
    figure, axes = panels(1, len(data["examples"]))
    for panel, (kind, example) in zip(axes, data["examples"].items(), strict=True):
        latency_s = [np.nan if v is None else v for v in example["latency_s"]]
        panel.plot(np.arange(1, len(latency_s) + 1), latency_s, "o-", ms=3)
        panel.axhline(_BOUND_S, color="k", ls=":")
        panel.set(
            xlabel="seconds since the decision",
            ylabel="mean latency of what moved, s",
            title=f"{kind}: {example['groups']} groups, {example['share']:.0%} of the load",
        )
    return figure
