"""Reproduces figure 13: cumulative suspension time.

The paper shows [P]: Megaphone's suspension grows slowest; Meces' is the greatest, as sub-groups of key
groups go back and forth: on Q7 55 of them, 6.25 times on average and up to 46 times; DRRS' is small,
thanks to record scheduling.

Parameters: as figure 10. Suspended is a slot whose every reachable record waits for state; slots add up
[R].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate_lab.experiments.drrs.compare import RIVALS, WORKLOADS, compare, scale_of
from headgate_lab.experiments.drrs.pictures import over_time
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "suspension": "Megaphone grows slowest, Meces is the greatest",
    "meces on q7": "55 sub-groups travel again, 6.25 times on average, up to 46 times",
}


def run(request: Request) -> dict[str, Any]:
    """Return suspension, and how often units travelled again, of each method on each workload."""
    return measure(tuple(WORKLOADS), request)


def measure(names: tuple[str, ...], request: Request) -> dict[str, Any]:
    """Return the same for some of the workloads."""
    found = compare(names, ("drrs", *RIVALS), request)
    rows = [
        {
            "workload": name,
            "method": outcome["method"],
            "suspension_s": round(outcome["suspension_s"], 2),
            "operation_s": round(outcome["operation_s"], 1),
            "units_again": outcome["units_again"],
            "trips_mean": round(outcome["trips_mean"], 2),
            "trips_max": outcome["trips_max"],
        }
        for name, outcomes in found.items()
        for outcome in outcomes
    ]
    return {
        **scale_of(request, names),
        "paper": PAPER,
        "rows": rows,
        "series": {
            n: {o["method"]: o["suspension_by_second"] for o in os} for n, os in found.items()
        },
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return cumulative suspension over time, one panel per workload."""
    return over_time(data["series"], "cumulative suspension, s")
