"""Holds what the experiments of the Henge paper share: jobs, clusters, and results of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.control.fleet.henge import Henge
from headgate.core.utility import Intent, Metric, Utility
from headgate.report.plot import panels
from headgate_lab.sim.fleet.model import RESTART, Cluster, Rate, SimJob
from headgate_lab.sim.fleet.run import FleetRun, run_fleet
from headgate_lab.workloads.topologies import Topology, page_load

if TYPE_CHECKING:
    from headgate.report.plot import Axes, Figure

STORM = Cluster(change=RESTART)
"""Ten machines [P] on which a change of slots restarts the job."""

WORKERS = 2
"""Machines that a PageLoad runs on: its workers in the authors' code [R]."""

_POINTS = 300
"""Points of a timeline that go into the JSON."""


def within(bound_s: float, priority: float = 35.0) -> Utility:
    """Return the utility of a latency SLO; the paper's maximum is mostly 35."""
    return Utility(priority, (Intent(Metric.LATENCY, bound_s),))


def processing_all(priority: float) -> Utility:
    """Return the utility of the SLO juice = 1."""
    return Utility(priority, (Intent(Metric.JUICE, 1.0),))


def page_load_job(utility: Utility, rate: Rate | None = None, *, arrives_s: float = 0.0) -> SimJob:
    """Return a PageLoad on two machines."""
    return SimJob(page_load(), utility, rate, hosts=WORKERS, arrives_s=arrives_s)


def heavy_page_load(cpu_s: float) -> Topology:
    """Return a PageLoad whose aggregate takes cores for `cpu_s` of its 40 ms per record."""
    topology = page_load()
    aggregate = replace(topology.operators["aggregate"], cpu_s=cpu_s)
    return replace(topology, operators={**topology.operators, "aggregate": aggregate})


def page_loads(count: int, bound_s: float, priority: float = 35.0) -> dict[str, SimJob]:
    """Return equal PageLoad jobs, T1 to T`count`."""
    utility = within(bound_s, priority)
    return {f"T{k}": page_load_job(utility) for k in range(1, count + 1)}


def managed(
    jobs: Mapping[str, SimJob], length_s: float, cluster: Cluster = STORM, seed: int = 1
) -> FleetRun:
    """Return a run under Henge with its own parameters."""
    return run_fleet(cluster, jobs, Henge(), length_s, seed=seed)


def actions_of(run: FleetRun) -> list[dict[str, Any]]:
    """Return the actions as rows: time, kind, jobs, reason, and the total utility just before."""
    total = run.total
    at = {time_s: k for k, time_s in enumerate(run.time_s)}
    return [
        {
            "time_s": acted.time_s,
            "action": str(acted.decision.action),
            "jobs": ",".join(acted.jobs),
            "utility": round(float(total[at[acted.time_s]]), 2),
            "reason": acted.decision.reason,
        }
        for acted in run.actions
    ]


def timeline(run: FleetRun) -> dict[str, list[float]]:
    """Return total utility, satisfaction, load, slots and memory over time, thinned out."""
    every = max(1, len(run.time_s) // _POINTS)
    columns = {
        "time_s": np.array(run.time_s),
        "utility": run.total,
        "satisfaction": run.satisfaction,
        "load": np.array(run.load),
        "slots": np.array(run.slots),
        "memory": np.array(run.memory),
    }
    return {name: [round(float(x), 4) for x in values[::every]] for name, values in columns.items()}


def all_met_s(run: FleetRun) -> float | None:
    """Return the time from which every job met its SLO until the end; None if there is none."""
    short = [k for k, met in enumerate(run.met) if met < len(run.utility[k])]
    if not short:
        return 0.0
    return run.time_s[short[-1] + 1] if short[-1] + 1 < len(run.time_s) else None


def settled_s(run: FleetRun) -> float | None:
    """Return when the policy first called the cluster converged; None if it never did."""
    found = [t for t, rule in zip(run.time_s, run.rules, strict=True) if rule.endswith("converged")]
    return found[0] if found else None


def quantiles(values: Any, *, percents: tuple[int, ...]) -> dict[str, float]:
    """Return percentiles of shares, in percent."""
    return {f"p{q}": round(100.0 * float(np.percentile(values, q)), 2) for q in percents}


def draw_timeline(data: Mapping[str, Any]) -> Figure:
    """Return total utility with the actions as lines, and load with slots below it."""
    figure, axes = panels(2)
    found = data["timeline"]
    axes[0].plot(found["time_s"], found["utility"])
    mark_actions(axes[0], data["rows"])
    axes[0].set(xlabel="time, s", ylabel="total utility")
    axes[1].plot(found["time_s"], found["load"], label="runnable slots per core")
    axes[1].set(xlabel="time, s", ylabel="load")
    slots = axes[1].twinx()
    slots.plot(found["time_s"], found["slots"], color="tab:orange")
    slots.set_ylabel("slots")
    return figure


_COLOURS = {"reconfiguration": "0.6", "reduction": "tab:red", "reversion": "tab:purple"}


def mark_actions(panel: Axes, rows: Any) -> None:
    """Draw each action as a vertical line: grey, red for a reduction, purple for a reversion."""
    for row in rows:
        panel.axvline(row["time_s"], color=_COLOURS[row["action"]], linewidth=0.6)
