"""Reproduces figure 5: success against slots on the trading day, under (L, T) = (1 s, 1 s).

The paper shows [P]: the success of Switch(epsilon) above that of Static(n), DRS(epsilon) and
DRS-LB(epsilon) at equal numbers of executors; over 20 experiments the least spread over the 64
substreams; DRS and DRS-LB below Static; and beside the rivals with the closest numbers of executors,
Static(8), DRS-LB(0.4) and DRS(0.4), Switch(0.2) lower in 6, 1 and none of 64 substreams. Figure 6
gives Switch(0.2)'s numbers: 96.28 % with 8.40 executors.

Not in the paper: the service rate of a slot. It is fixed by Static alone (`exchange`), and
everything is shown for that rate times 0.8, 1 and 1.25. Nor ours, `packing`, which is shown beside
it: how few slots the day fits into if key groups may be dealt anew one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate_lab.experiments.registry import Request
from headgate_lab.experiments.streamswitch.exchange import SERVICE_RATE_PER_S, Trading, day_s
from headgate_lab.experiments.streamswitch.sweep import (
    FULL,
    PACKING,
    QUICK,
    SWITCH,
    Plan,
    curves,
    domination,
    family,
    flat,
    inner_box,
    rivals_below_static,
    success_at,
    sweep,
)

if TYPE_CHECKING:
    from headgate.report.plot import Figure

RATE_FACTORS = (1.0, 0.8, 1.25)
BASELINE = f"{SWITCH}(0.2)"
PAPER = {
    "success": 0.9628,
    "slots_mean": 8.40,
    "lower_than_static": 6,
    "lower_than_drs_lb": 1,
    "key_groups": 64,
}


def run(request: Request) -> dict[str, Any]:
    """Return the sweeps at the three service rates."""
    return measure(QUICK if request.quick else FULL)


def measure(plan: Plan, rate_factors: tuple[float, ...] = RATE_FACTORS) -> dict[str, Any]:
    """Return the sweeps at the given multiples of the service rate; the first must be 1."""
    variants = [Trading("", factor * SERVICE_RATE_PER_S) for factor in rate_factors]
    sweeps = dict(zip(rate_factors, sweep(plan, variants), strict=True))
    return {
        "mode": "continuous",
        "seed": variants[0].seed,
        "shorter": plan.shorter,
        "day_s": day_s(plan.shorter),
        "service_rate_per_s": round(SERVICE_RATE_PER_S, 2),
        "paper": PAPER,
        "reaches": reaches(sweeps[1.0]),
        "rates": [
            {
                "factor": factor,
                "service_rate_per_s": round(factor * SERVICE_RATE_PER_S, 2),
                "reaches": reaches(points),
                "dominates": domination(points),
                "below_static": rivals_below_static(points),
                "inner_box": inner_box(points),
                "points": points,
            }
            for factor, points in sweeps.items()
        ],
        "rows": [row for factor, points in sweeps.items() for row in flat(points, rate=factor)],
    }


def reaches(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Return whether Switch has the paper's success, or more, with the paper's slots, or fewer."""
    baseline = next(p for p in points if p["policy"] == BASELINE)
    at_paper = success_at(points, PAPER["slots_mean"])
    return {
        "policy": BASELINE,
        "success": baseline["success"],
        "slots_mean": baseline["slots_mean"],
        "met": _met(baseline),
        "success_at_the_papers_slots": None if at_paper is None else round(at_paper, 5),
        "met_by_some_epsilon": at_paper is not None and at_paper >= PAPER["success"],
        "met_by_ours": [p["policy"] for p in family(points, PACKING) if _met(p)],
    }


def _met(point: Mapping[str, Any]) -> bool:
    few: bool = point["slots_mean"] <= PAPER["slots_mean"]
    return few and bool(point["success"] >= PAPER["success"])


def draw(data: Mapping[str, Any]) -> Figure:
    """Return, per service rate, the curves and the boxes of the key groups' success."""
    rates = data["rates"]
    figure, axes = panels(2, len(rates))
    for column, rate in enumerate(rates):
        title = f"{rate['service_rate_per_s']:g} orders/s per slot"
        curves(axes[column], rate["points"], title)
        axes[column].plot(PAPER["slots_mean"], PAPER["success"], "k*", label="paper")
        axes[column].legend()
        ranked = sorted(rate["points"], key=lambda p: p["slots_mean"])
        boxes = axes[len(rates) + column]
        boxes.boxplot([p["groups"] for p in ranked], whis=(0, 100))
        boxes.set_xticks(
            range(1, len(ranked) + 1), [p["policy"] for p in ranked], rotation=90, fontsize=6
        )
        boxes.set(ylabel="success of 64 key groups")
    return figure
