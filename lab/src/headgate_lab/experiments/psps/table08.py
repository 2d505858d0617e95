"""Reproduces table VIII, figures 8 and 9: fixed numbers of replicas.

The paper shows [P]: one replica per operator processes a third, four nearly everything but with much
degradation, eight everything while saving nothing; PSPS saves more than half, processes nearly
everything and rises above 32 replicas to drain what waits at 900 s.
"""

from __future__ import annotations

from typing import Any

from headgate_lab.experiments.psps.runs import (
    KEEPING,
    Case,
    Load,
    by_system,
    draw_timelines,
    fixed,
    seeds,
    table,
)
from headgate_lab.experiments.registry import Request

__all__ = ["draw", "run"]

PSPS = (0.5617, 0.1831, 0.9987, 2098.91)
PAPER = {
    1: (0.8750, 0.5153, 0.3319, 196962.95),
    4: (0.5, 0.8559, 0.9874, 269.75),
    8: (0.0, 0.0, 1.0, 153.51),
}


def run(request: Request) -> dict[str, Any]:
    """Return PSPS with the paper's settings and with ours, and the fixed numbers."""
    cases = [
        Case("PSPS", paper=PSPS),
        Case("ours, nothing dropped", settings=KEEPING),
        *(fixed(replicas, paper) for replicas, paper in PAPER.items()),
    ]
    load = Load()
    found = table(cases, load, seeds(request.quick))
    ours = by_system(found, "ours, nothing dropped")
    return {
        **found,
        "reaches": {
            "more than 32 replicas": by_system(found, "PSPS")["replicas_most"]
            > load.application.overprovisioned,
            "ours drops nothing": ours["dropped"] == 0,
            "ours saves more than r = 4": ours["saved"] > by_system(found, "r = 4")["saved"],
            "ours processes more than r = 4": ours["processed"]
            > by_system(found, "r = 4")["processed"],
        },
    }


draw = draw_timelines
