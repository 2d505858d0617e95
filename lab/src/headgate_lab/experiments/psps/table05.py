"""Reproduces table V: the age at which an event is dropped, t_out.

The paper shows [P]: a short timeout lowers latency and the share processed; 30 s loses hardly
anything. Ours: without a timeout, which is headgate's default, nothing is lost.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headgate_lab.experiments.psps.runs import PAPERS_OWN, Case, Load, draw_measures, seeds, table
from headgate_lab.experiments.registry import Request

__all__ = ["draw", "run"]

PAPER = {
    1: (0.6164, 0.1000, 0.9030, 369.35),
    5: (0.5875, 0.1038, 0.9303, 946.69),
    10: (0.5633, 0.1056, 0.9529, 1298.45),
    30: (0.5617, 0.1831, 0.9987, 2098.91),
}


def run(request: Request) -> dict[str, Any]:
    """Return a row for each timeout, and one without."""
    cases = [
        Case(f"t_out = {age} s", settings=replace(PAPERS_OWN, timeout_s=float(age)), paper=paper)
        for age, paper in PAPER.items()
    ]
    cases.append(Case("none", settings=replace(PAPERS_OWN, timeout_s=math.inf)))
    return table(cases, Load(), seeds(request.quick))


draw = draw_measures
