"""Reproduces figure 2: on-the-fly scaling and its bound.

The paper shows [P]: compared with no scaling, OTFS has 3.47 times the mean latency and 4.8 times the
peak, Unbound 1.25 and 1.14 times: propagation, suspension and dependency are what scaling costs.

Parameters: the workload is not named; NEXMark Q7 here [I]. Ours beside it: OTFS all at once, and
stopping, restarting and reading the state back, with 10 s for the restart [I].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate_lab.experiments.drrs.compare import NO_SCALE, compare, scale_of
from headgate_lab.experiments.drrs.pictures import latency_over_time
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "otfs fluid": {"mean": 3.47, "peak": 4.8},
    "unbound": {"mean": 1.25, "peak": 1.14},
}
METHODS = (NO_SCALE, "otfs fluid", "otfs at once", "unbound", "stop-restart")
_WORKLOAD = "q7"


def run(request: Request) -> dict[str, Any]:
    """Return mean and peak latency of each method as multiples of those without scaling."""
    outcomes = compare([_WORKLOAD], METHODS, request)[_WORKLOAD]
    still = outcomes[0]
    rows = [
        {
            "method": outcome["method"],
            "mean_s": round(outcome["mean_s"], 4),
            "peak_s": round(outcome["peak_s"], 4),
            "mean_ratio": round(outcome["mean_s"] / still["mean_s"], 2),
            "paper_mean_ratio": PAPER.get(outcome["method"], {}).get("mean"),
            "peak_ratio": round(outcome["peak_s"] / still["peak_s"], 2),
            "paper_peak_ratio": PAPER.get(outcome["method"], {}).get("peak"),
        }
        for outcome in outcomes
    ]
    return {
        **scale_of(request, [_WORKLOAD]),
        "workload": _WORKLOAD,
        "interval_s": still["interval_s"],
        "paper": PAPER,
        "rows": rows,
        "series": {o["method"]: o["latency_by_second"] for o in outcomes},
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return latency over time, by method."""
    return latency_over_time({_WORKLOAD: data["series"]})
