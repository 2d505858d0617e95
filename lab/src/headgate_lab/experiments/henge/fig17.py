"""Reproduces figure 17: statistics stop arriving while Henge is still adapting.

The paper shows [P]: nine PageLoads, latency 70 ms, utility 35; nothing is heard of any job from 1020 to
1380 s; no wrong decision is made, fresh data are collected for five minutes (to 1680 s), and then all
SLOs are met.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headgate.control.fleet.henge import Henge
from headgate_lab.experiments.henge.fleets import (
    STORM,
    actions_of,
    all_met_s,
    draw_timeline,
    page_loads,
    timeline,
)
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.fleet.run import run_fleet

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"actions": "none from 1020 to 1680 s", "end": "all SLOs met"}
CUT_S = (1020.0, 1380.0)


def run(request: Request) -> dict[str, Any]:
    """Return when there were actions, and when all SLOs were met."""
    found = run_fleet(
        STORM,
        page_loads(9, 0.070),
        Henge(),
        4000.0,
        blind=lambda time_s: CUT_S[0] <= time_s < CUT_S[1],
    )
    times_s = [acted.time_s for acted in found.actions]
    return {
        "mode": "fluid",
        "seed": 1,
        "paper": PAPER,
        "reaches": {
            "actions_while_cut_or_collecting": sum(
                CUT_S[0] <= t < CUT_S[1] + 300.0 for t in times_s
            ),
            "first_action_after_s": min((t for t in times_s if t >= CUT_S[1]), default=None),
            "all_met_s": all_met_s(found),
        },
        "timeline": timeline(found),
        "rows": actions_of(found),
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return utility and load over time with the actions."""
    return draw_timeline(data)
