"""Reproduces figure 14: each mechanism alone, on Twitch.

The paper shows [P]: against all of DRRS, decoupling and re-routing alone has a peak 30 % and a mean
22 % higher, record scheduling alone 18 and 15 %, subscale division alone 23 and 18 % and the largest
fluctuations.

Parameters: as figure 10. A mechanism that is off is the generalised on-the-fly scaling of II-B: signals
injected at the sources and aligned, groups one after the other, no buffer [R]. Ours beside it: none of
the three.

Guessed, since the paper does not say [I]: a fixed 20 ms per transfer, and a load of 0.7 on the slots
before scaling (0.85 elsewhere: the busiest slot here has more than the mean). Differs:
every record is timed; the paper's code times every 1,000th [R]. With 5, 20 and 80 ms the order is the
same: in the peak all, subscale, decoupling, scheduling, none, in the mean all, subscale, scheduling,
decoupling, none (`compare.orders`, quick). The paper has scheduling before subscale in both; so has the
mean here at a load of 0.85, at which the busiest slot has 0.998 of what it can serve and nothing is
steady before (0.6: the same order as 0.7, but for none before decoupling in the mean).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate_lab.experiments.drrs.compare import compare, scale_of
from headgate_lab.experiments.drrs.pictures import latency_over_time
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

VARIANTS = {
    "all": "drrs",
    "decoupling": "only decoupling",
    "scheduling": "only scheduling",
    "subscale": "only subscale",
    "none": "otfs fluid",
}
PAPER = {"decoupling": (30.0, 22.0), "scheduling": (18.0, 15.0), "subscale": (23.0, 18.0)}
"""Percentages by which peak and mean are above those of all three mechanisms together."""

_WORKLOAD = "twitch"


def run(request: Request) -> dict[str, Any]:
    """Return peak and mean of each variant, and by how much they are above all of DRRS."""
    outcomes = compare([_WORKLOAD], list(VARIANTS.values()), request)[_WORKLOAD]
    whole = outcomes[0]
    rows = []
    for variant, outcome in zip(VARIANTS, outcomes, strict=True):
        peak, mean = PAPER.get(variant, (None, None))
        known = [v for v in outcome["latency_by_second"] if v is not None]
        rows.append(
            {
                "on": variant,
                "peak_s": round(outcome["peak_s"], 3),
                "peak_more": _more(outcome["peak_s"], whole["peak_s"]),
                "peak_paper": peak,
                "mean_s": round(outcome["mean_s"], 4),
                "mean_more": _more(outcome["mean_s"], whole["mean_s"]),
                "mean_paper": mean,
                "deviation_s": round(float(np.std(known)), 4),
                "suspension_s": round(outcome["suspension_s"], 2),
                "operation_s": round(outcome["operation_s"], 1),
            }
        )
    return {
        **scale_of(request, [_WORKLOAD]),
        "workload": _WORKLOAD,
        "interval_s": whole["interval_s"],
        "paper": PAPER,
        "rows": rows,
        "series": {v: o["latency_by_second"] for v, o in zip(VARIANTS, outcomes, strict=True)},
    }


def _more(value: float, than: float) -> float:
    return round(100.0 * (value / than - 1.0), 1)


def draw(data: Mapping[str, Any]) -> Figure:
    """Return latency over time, by variant."""
    return latency_over_time({_WORKLOAD: data["series"]})
