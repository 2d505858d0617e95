"""Reproduces figure 18: joins that keep records for 30 s.

The paper shows [P]: eight such jobs, latency 100 ms, utility 50; the total of 400 is reached by 2444 s,
memory stays below 36 % on average and is flat from then on.

Parameters: 200 records/s of 20 KB per job [I].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.report.plot import panels
from headgate_lab.experiments.henge.fleets import (
    actions_of,
    all_met_s,
    managed,
    mark_actions,
    timeline,
    within,
)
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.fleet.model import SimJob
from headgate_lab.workloads.topologies import retained_join

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"total": "400 by 2444 s", "memory": "below 36 %, flat once converged"}


def run(request: Request) -> dict[str, Any]:
    """Return when the total is reached, and the memory taken."""
    jobs = {f"T{k}": SimJob(retained_join(), within(0.100, 50.0)) for k in range(1, 9)}
    found = managed(jobs, 5000.0)
    late = found.memory[found.between(3500.0, 5000.0)]
    return {
        "mode": "fluid",
        "seed": 1,
        "paper": PAPER,
        "reaches": {
            "utility": round(float(found.total[-1]), 2),
            "all_met_s": all_met_s(found),
            "memory_most": round(max(found.memory), 4),
            "memory_converged": round(late[-1], 4),
            "memory_growth_converged": round(late[-1] - late[0], 6),
        },
        "timeline": timeline(found),
        "rows": actions_of(found),
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return utility and memory over time."""
    figure, axes = panels(1, 2)
    found = data["timeline"]
    for panel, name in zip(axes, ("utility", "memory"), strict=True):
        panel.plot(found["time_s"], found[name])
        panel.set(xlabel="time, s", ylabel=name)
        mark_actions(panel, data["rows"])
    return figure
