"""Reproduces figure 11: two spikes of the input that users do not notice.

The paper shows [P]: two PageLoads A and B, latency 80 ms, utility 35 each; B's input doubles from 3600
to 7200 s, then A's until 10,800 s; the total stays at 70, and output follows input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate_lab.experiments.henge.fleets import (
    actions_of,
    draw_timeline,
    managed,
    page_load_job,
    timeline,
    within,
)
from headgate_lab.experiments.registry import Request
from headgate_lab.workloads.topologies import page_load

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"utility": "70 of 70 during both spikes"}
_SPIKE_S = 3600.0


def run(request: Request) -> dict[str, Any]:
    """Return total utility before, during and after the spikes."""
    return measure(900.0 if request.quick else _SPIKE_S)


def measure(spike_s: float) -> dict[str, Any]:
    """Return the same with spikes of some length; the first begins at 3600 s."""
    ends_s = [_SPIKE_S, _SPIKE_S + spike_s, _SPIKE_S + 2 * spike_s]
    base = page_load().rate

    def doubled(start_s: float, end_s: float, time_s: float) -> float:
        return 2.0 * base if start_s <= time_s < end_s else base

    jobs = {
        "A": page_load_job(within(0.080), lambda t: doubled(ends_s[1], ends_s[2], t)),
        "B": page_load_job(within(0.080), lambda t: doubled(ends_s[0], ends_s[1], t)),
    }
    found = managed(jobs, ends_s[2] + 1200.0)
    phases = {
        "before": found.between(_SPIKE_S - 600.0, _SPIKE_S),
        "B's spike": found.between(ends_s[0], ends_s[1]),
        "A's spike": found.between(ends_s[1], ends_s[2]),
        "after": found.between(ends_s[2], ends_s[2] + 1200.0),
    }
    return {
        "mode": "fluid",
        "seed": 1,
        "paper": PAPER,
        "reaches": {
            name: {
                "utility_mean": round(float(np.mean(found.total[part])), 3),
                "utility_least": round(float(np.min(found.total[part])), 3),
            }
            for name, part in phases.items()
        },
        "timeline": timeline(found),
        "rows": actions_of(found),
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return utility and load over time."""
    return draw_timeline(data)
