"""Reproduces table IV: the length of an interval, td.

The paper shows [P]: with longer intervals latency and degradation grow, because replicas are adapted
later; the processed and the saved share hardly change.

With t_out = 30 s, as in V-B, the processed share cannot stay the same: events that wait for half an
interval of 120 s are too old. So each length is also run without a timeout.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from headgate.control.pools.psps import Psps
from headgate_lab.experiments.psps.runs import PAPERS_OWN, Case, Load, draw_measures, seeds, table
from headgate_lab.experiments.registry import Request

__all__ = ["draw", "run"]

PAPER = {
    30: (0.5617, 0.1831, 0.9987, 2098.91),
    60: (0.5390, 0.4332, 0.9979, 5271.01),
    120: (0.5219, 0.9221, 0.9976, 17068.33),
    180: (0.5563, 0.8028, 0.9992, 22364.86),
}

_SETTINGS = {"": PAPERS_OWN, ", no t_out": replace(PAPERS_OWN, timeout_s=math.inf)}


def run(request: Request) -> dict[str, Any]:
    """Return a row for each length."""
    cases = [
        Case(f"td = {td} s{label}", Psps, replace(settings, interval_s=float(td)), paper)
        for label, settings in _SETTINGS.items()
        for td, paper in PAPER.items()
    ]
    return table(cases, Load(), seeds(request.quick))


draw = draw_measures
