"""Reproduces table XII, figure 14: DNS traffic.

The paper shows [P]: PSPS processes more than one replica per operator does, with a latency lower by
29.44 %, and saves 60.62 % of three replicas per operator. Not in the paper: the times of the
operators, and the traffic but for its look: bursts of seconds.
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
    """Return one replica, PSPS and ours."""
    cases = [
        fixed(1, (0.6666, 0.4521, 0.9759, 476.12)),
        Case("PSPS", paper=(0.6062, 0.3734, 0.9884, 335.95)),
        Case("ours, nothing dropped", settings=KEEPING),
    ]
    return table(cases, Load(workloads.dns(), workloads.dns_bursts), seeds(request.quick))


draw = draw_timelines
