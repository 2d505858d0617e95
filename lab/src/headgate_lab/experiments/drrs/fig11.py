"""Reproduces figure 11: throughput while scaling.

The paper shows [P]: throughput dips when scaling begins, overshoots while what has queued up is worked
off, and settles at the input rate; with DRRS it varies least and is back soonest.

Parameters: as figure 10; throughput is what the sources put out [P]. Chosen [I]: it has settled once no
second within the next ten differs from the input rate by more than a twentieth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate_lab.experiments.drrs.compare import RIVALS, WORKLOADS, Case, compare, scale_of
from headgate_lab.experiments.drrs.pictures import over_time
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "shape": "dips, overshoots, settles at the input rate",
    "drrs": "varies least and is back soonest, on all three workloads",
}
SETTLED_SHARE = 0.05
SETTLED_S = 10


def run(request: Request) -> dict[str, Any]:
    """Return how deep throughput dips, how high it overshoots, and when it settles."""
    return measure(tuple(WORKLOADS), request)


def measure(names: tuple[str, ...], request: Request) -> dict[str, Any]:
    """Return the same for some of the workloads."""
    found = compare(names, ("drrs", *RIVALS), request)
    rows = []
    for name, outcomes in found.items():
        rate = Case(name, "drrs", request.quick).load().records_per_s
        for outcome in outcomes:
            series = outcome["throughput"]
            rows.append(
                {
                    "workload": name,
                    "method": outcome["method"],
                    "dip": round(min(series[:-1]) / rate, 3),
                    "overshoot": round(max(series[:-1]) / rate, 3),
                    "settled_s": settled_s(series[:-1], rate),
                }
            )
    return {
        **scale_of(request, names),
        "paper": PAPER,
        "rows": rows,
        "series": {n: {o["method"]: o["throughput"] for o in os} for n, os in found.items()},
    }


def settled_s(series: list[int], rate: float) -> int | None:
    """Return the first second from which throughput is the input rate; None if it never is."""
    off = np.abs(np.asarray(series) / rate - 1.0) > SETTLED_SHARE
    for second in range(len(series) - SETTLED_S + 1):
        if not off[second : second + SETTLED_S].any():
            return second
    return None


def draw(data: Mapping[str, Any]) -> Figure:
    """Return throughput over time, one panel per workload."""
    return over_time(data["series"], "records/s")
