"""Reproduces table XI: an application of eight operators with a split.

The paper shows [P]: 74.5 % of five replicas per operator are saved, and its CPU consumption is 8.41 %
in place of 14.66 %, since every replica is a thread. Here replicas that wait cost nothing, so useful
time is equal; `replica_s` has the time for which replicas were active.
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
    """Return PSPS, ours and five replicas."""
    # The same tweets: the input does not know how long it is worked on.
    tweets_event_s = workloads.tweets().event_s
    application = workloads.complex_tweets()
    needed = workloads.bursts() * application.event_s / tweets_event_s
    cases = [
        Case("PSPS", paper=(0.745, 0.0911, 0.9970, 219.13)),
        Case("ours, nothing dropped", settings=KEEPING),
        fixed(5, (0.0, 0.0, 1.0, 31.99)),
    ]
    found = table(cases, Load(application, lambda _: needed), seeds(request.quick))
    return {**found, "paper_cpu_percent": {"PSPS": 8.41, "r = 5": 14.66}}


draw = draw_timelines
