"""Measures the time of a round with a hundred jobs: the simulation, and the decision.

This is no figure of the paper. A hundred PageLoads run on 40 machines of 8 cores; a round simulates 10 s
of all their queues, then observes and decides.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.report.plot import panels
from headgate_lab.experiments.henge.fleets import STORM, page_loads
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.fleet.simulation import FleetSimulation

if TYPE_CHECKING:
    from headgate.report.plot import Figure

_ROUND_S = 10.0


def run(request: Request) -> dict[str, Any]:
    """Return the time of a round by jobs."""
    return measure((100,) if request.quick else (10, 50, 100, 200), 50)


def measure(counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Return the same for some numbers of jobs, over some rounds."""
    rows = []
    for count in counts:
        simulation = FleetSimulation(replace(STORM, hosts=40, cores=8.0))
        for name, job in page_loads(count, 0.070).items():
            simulation.add(name, job)
        henge, took_ms = Henge(), []
        simulation.advance(_ROUND_S)  # compiles
        for _ in range(rounds):
            began_s = time.perf_counter()
            simulation.advance(_ROUND_S)
            view = simulation.view()
            seen_s = time.perf_counter()
            henge.decide(view)
            decided_s = time.perf_counter()
            took_ms.append(((seen_s - began_s) * 1e3, (decided_s - seen_s) * 1e3))
        simulated, decided = np.median(took_ms, axis=0)
        whole = np.array(took_ms).sum(axis=1)
        rows.append(
            {
                "jobs": count,
                "simulate_ms": round(float(simulated), 2),
                "decide_ms": round(float(decided), 2),
                "round_ms": round(float(np.median(whole)), 2),
                "round_ms_most": round(float(whole.max()), 2),
            }
        )
    return {"mode": "fluid", "seed": 1, "paper": "none", "rounds": rounds, "rows": rows}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return the time of a round against jobs."""
    figure, (axes,) = panels()
    jobs = [row["jobs"] for row in data["rows"]]
    axes.plot(jobs, [row["round_ms"] for row in data["rows"]], "o-")
    axes.set(xlabel="jobs", ylabel="a round, ms", ylim=(0, None))
    return figure
