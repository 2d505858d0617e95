"""Reproduces figure 1: utility against resources, where one cluster per job is 100 %.

The paper shows [P]: five jobs; with 40 % of the resources that single-tenant Storm needs to satisfy
all SLOs Henge has 93.5 % of the utility, with 60 % all of it; at 40 % multi-tenant Storm has 6.7
times less.

Parameters: the aggregate takes cores for 20 ms of its 40, so that a job needs more than one machine
and less than two [I]; latency 60 ms, utility 35 each. Resources are whole machines: what one job
needs alone is the fewest machines with which Henge brings it to its SLO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.control.fleet.view import FleetPolicy
from headgate.report.plot import panels
from headgate_lab.experiments.henge.fleets import STORM, heavy_page_load, within
from headgate_lab.experiments.registry import Request
from headgate_lab.rivals.shares import Unmanaged
from headgate_lab.sim.fleet.model import SimJob
from headgate_lab.sim.fleet.run import run_fleet

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"at 40 %": "93.5 %", "at 60 %": "100 %", "over multi-tenant Storm at 40 %": "6.7 times"}
_JOBS = 5
CPU_S = 0.020
_LAST_S = 600.0
_FULL = 0.99


def run(request: Request) -> dict[str, Any]:
    """Return the satisfaction at each share of the resources, under Henge and unmanaged."""
    return measure(3600.0 if request.quick else 7200.0)


def measure(length_s: float) -> dict[str, Any]:
    """Return the same of runs of some length."""
    alone = next(n for n in range(1, 10) if _satisfaction(1, n, Henge(), length_s) > _FULL)
    whole = alone * _JOBS
    rows = []
    for hosts in range(1, whole + 1):
        row = {"resources": hosts / whole, "hosts": hosts}
        for policy in (Henge(), Unmanaged()):
            found = _satisfaction(_JOBS, hosts, policy, length_s)
            row[policy.name.partition("(")[0]] = found
        rows.append(row)
    return {"mode": "fluid", "seed": 1, "hosts_alone": alone, "paper": PAPER, "rows": rows}


def _satisfaction(jobs: int, hosts: int, policy: FleetPolicy, length_s: float) -> float:
    """Return the share of the utility attained at the end of a run."""
    job = SimJob(heavy_page_load(CPU_S), within(0.060))
    fleet = {f"T{k}": job for k in range(1, jobs + 1)}
    run = run_fleet(replace(STORM, hosts=hosts), fleet, policy, length_s)
    return float(np.mean(run.satisfaction[run.between(length_s - _LAST_S, length_s)]))


def draw(data: Mapping[str, Any]) -> Figure:
    """Return satisfaction against resources."""
    figure, (axes,) = panels()
    shares = [100 * row["resources"] for row in data["rows"]]
    for name in ("henge", "unmanaged"):
        axes.plot(shares, [100 * row[name] for row in data["rows"]], "o-", label=name)
    axes.set(xlabel="resources, % of a cluster per job", ylabel="utility, %")
    axes.legend()
    return figure
