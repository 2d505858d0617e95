"""Reproduces figure 15: twenty more jobs every two hours.

The paper shows [P]: five PageLoads, latency 70 ms, utility 35, and twenty more at 2, 4, 6 and 8 h; each
time the average utility falls and Henge brings it to its maximum again. With five jobs alone it stays
low there, which the paper puts down to a smaller state space; older jobs are touched less than new
ones.

Parameters: 20 machines [I]: the paper's ten could not hold that many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate_lab.experiments.henge.fleets import (
    STORM,
    actions_of,
    draw_timeline,
    managed,
    page_load_job,
    timeline,
    within,
)
from headgate_lab.experiments.registry import Request

if TYPE_CHECKING:
    from headgate.report.plot import Figure

PAPER = {"utility": "at its maximum again after each arrival, but low with the first five jobs"}
_EVERY_S = 7200.0


def run(request: Request) -> dict[str, Any]:
    """Return, after each arrival, how long it took and which jobs were touched."""
    return measure(4 if request.quick else 20, _EVERY_S)


def measure(more: int, every_s: float) -> dict[str, Any]:
    """Return the same with some number of further jobs, every so often."""
    jobs = {f"T0-{k}": page_load_job(within(0.070)) for k in range(5)}
    for wave in range(1, 5):
        late = page_load_job(within(0.070), arrives_s=wave * every_s)
        jobs |= {f"T{wave}-{k}": late for k in range(more)}
    found = managed(jobs, 5 * every_s, replace(STORM, hosts=20))
    waves = []
    for wave in range(5):
        start_s, end_s = wave * every_s, (wave + 1) * every_s
        part = found.satisfaction[found.between(start_s, end_s)]
        full = np.flatnonzero(part > 0.99)  # noqa: PLR2004 - the maximum, but for noise
        acts = [a for a in found.actions if start_s <= a.time_s < end_s]
        older = sum(not job.startswith(f"T{wave}-") for a in acts for job in a.jobs)
        waves.append(
            {
                "start_s": start_s,
                "jobs": len(found.utility[found.between(start_s, end_s)][-1]),
                "least": round(float(part.min()), 4),
                "at_the_end": round(float(part[-1]), 4),
                "full_after_s": float(full[0] + 1) * 10.0 if len(full) else None,
                "actions": len(acts),
                "on_older_jobs": older,
            }
        )
    return {
        "mode": "fluid",
        "seed": 1,
        "paper": PAPER,
        "timeline": timeline(found),
        "actions": actions_of(found),
        "rows": waves,
    }


def draw(data: Mapping[str, Any]) -> Figure:
    """Return utility and load over time with the actions."""
    return draw_timeline({"timeline": data["timeline"], "rows": data["actions"]})
