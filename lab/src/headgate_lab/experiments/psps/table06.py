"""Reproduces table VI: the most events that may wait at an operator, q_size.

The paper shows [P]: short queues lower latency and lose a third of the events; 100,000 hardly any.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headgate_lab.experiments.psps.runs import PAPERS_OWN, Case, Load, draw_measures, seeds, table
from headgate_lab.experiments.registry import Request

__all__ = ["draw", "run"]

PAPER = {
    100: (0.6719, 0.1919, 0.6835, 29.91),
    1_000: (0.6656, 0.1375, 0.6922, 311.93),
    10_000: (0.6602, 0.1687, 0.7249, 1394.56),
    100_000: (0.5617, 0.1831, 0.9987, 2098.91),
}


def run(request: Request) -> dict[str, Any]:
    """Return a row for each size."""
    cases = [
        Case(f"q_size = {size}", settings=replace(PAPERS_OWN, queue_events=size), paper=paper)
        for size, paper in PAPER.items()
    ]
    return table(cases, Load(), seeds(request.quick))


draw = draw_measures
