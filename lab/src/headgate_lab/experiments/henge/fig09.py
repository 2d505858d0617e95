"""Reproduces figures 9 and 10: jobs that miss their SLO reach it, the highest priority first.

The paper shows [P]: nine PageLoads, utilities 10 to 90, latency 60 ms; T9 first (950 s), all SLOs met
at 1800 s, 15 minutes after Henge was let loose. Ten with a hybrid SLO, juice 1.0 and latency 70 ms,
utility 35: 920 to 1710 s; nine needed one reconfiguration, T9 three.

Each is run twice: with a change of slots that restarts the job, as in the paper, and in place, as
headgate changes them, where what had waited must be served before the SLO can be met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headgate.core.utility import Intent, Metric, Utility
from headgate_lab.experiments.henge.fleets import (
    STORM,
    actions_of,
    all_met_s,
    draw_timeline,
    managed,
    page_load_job,
    timeline,
    within,
)
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.fleet.model import IN_PLACE, SimJob

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {
    "all met, figure 9": "1800 s, T9 first",
    "all met, figure 10": "1710 s, nine jobs after one reconfiguration, one after three",
}


def run(request: Request) -> dict[str, Any]:
    """Return the actions of figure 9, and when all jobs met their SLO in each run."""
    return measure(3600.0)


def measure(length_s: float) -> dict[str, Any]:
    """Return the same of runs of some length."""
    fleets = {"9": _by_priority(), "10": _hybrid()}
    clusters = {"restart": STORM, "in place": replace(STORM, change=IN_PLACE)}
    rows, settled = [], {}
    shown = managed(fleets["9"], length_s)
    for name, jobs in fleets.items():
        for kind, cluster in clusters.items():
            found = managed(jobs, length_s, cluster)
            touched = Counter(job for acted in found.actions for job in acted.jobs)
            settled[f"figure {name}, {kind}"] = {
                "all_met_s": all_met_s(found),
                "satisfaction": round(float(found.satisfaction[-1]), 4),
                "actions": found.kinds(),
                "jobs_by_actions": dict(Counter(touched.values())),
            }
    rows = actions_of(shown)
    return {
        "mode": "fluid",
        "seed": 1,
        "paper": PAPER,
        "reaches": settled,
        "timeline": timeline(shown),
        "rows": rows,
    }


def _by_priority() -> dict[str, SimJob]:
    return {f"T{k}": page_load_job(within(0.060, 10.0 * k)) for k in range(1, 10)}


def _hybrid() -> dict[str, SimJob]:
    intents = (Intent(Metric.JUICE, 1.0), Intent(Metric.LATENCY, 0.070))
    return {f"T{k}": page_load_job(Utility(35.0, intents)) for k in range(1, 11)}


def draw(data: Mapping[str, Any]) -> Figure:
    """Return figure 9's utility over time with its actions."""
    return draw_timeline(data)
