"""Reproduces table IX: tweets that were not smoothed.

The paper shows [P]: results as with smoothed tweets, less stable; PSPS processes several times what
one replica does. The paper does not show the raw stream. Here it is the smoothed one times a factor that
varies from second to second.
"""

from __future__ import annotations

from typing import Any

from headgate_lab.experiments.psps import workloads
from headgate_lab.experiments.psps.runs import (
    KEEPING,
    Case,
    Load,
    draw_timelines,
    fixed,
    seeds,
    table,
)
from headgate_lab.experiments.registry import Request

__all__ = ["draw", "run"]


def run(request: Request) -> dict[str, Any]:
    """Return PSPS, ours and one replica."""
    cases = [
        Case("PSPS", paper=(0.745, 0.4, 0.9791, 2501.46)),
        Case("ours, nothing dropped", settings=KEEPING),
        fixed(1, (0.875, 0.6706, 0.2822, 48379.95)),
    ]
    return table(cases, Load(replicas_needed=workloads.raw_bursts), seeds(request.quick))


draw = draw_timelines
