"""Reproduces table VII: load-aware grouping against shuffle.

The paper shows [P]: latency 60.18 % and degradation 57.73 % lower than with shuffle. Its row for
shuffle equals, to the last digit, table IV's for load-aware grouping with td = 60 s: at least one of
the two is a copy. Both readings are run: shuffle with td = 30 s, and with td = 60 s.

No run drops events: with t_out = 30 s latency would be lower where more is dropped.

Ours: a load that does not change shows what grouping alone is worth, since on a bursty trace most of
the waiting comes from replicas that are late, which no grouping helps: at the trace's mean, near its
peak, and with a third of the replicas slower by a fifth, as on hosts that others use too. *Least
work* looks at what waits at each event, load-aware at the beginning of each interval. On the bursts
themselves that waiting goes where replicas are not late: *foreseen* has the same groupings under the
unified policy, at the same interval.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from headgate.control.pools.unified_pools import UnifiedPools
from headgate.whatif.model import SlotPool
from headgate_lab.experiments.psps import workloads
from headgate_lab.experiments.psps.runs import (
    PAPERS_OWN,
    Case,
    Load,
    by_system,
    draw_measures,
    less,
    seeds,
    table,
)
from headgate_lab.experiments.registry import Request
from headgate_lab.sim.replicas.model import GroupingKind

__all__ = ["draw", "run"]

_STEADY = {
    "steady 2.8": (2.8, SlotPool()),
    "steady 6.3": (6.3, SlotPool()),
    "steady 6.3, unequal": (6.3, SlotPool(0.8, 0.33)),
}
"""Replicas needed by a constant load, and how fast replicas are."""

_KEPT = replace(PAPERS_OWN, timeout_s=math.inf, queue_events=None)
_WANTED = 0.6
_FORESEEN = (GroupingKind.SHUFFLE, GroupingKind.LOAD_AWARE, GroupingKind.LEAST_WORK)


def run(request: Request) -> dict[str, Any]:
    """Return a row for each grouping under each load, and by how much latency is lower."""
    chosen = seeds(request.quick)
    found = table(_bursty(), Load(), chosen)
    for label, (needed, replicas) in _STEADY.items():
        steady = np.full(int(workloads.UNTIL_S), needed)
        load = Load(workloads.tweets(replicas), lambda _, steady=steady: steady)  # type: ignore[misc]
        cases = [
            Case(
                f"{label}: {kind}",
                settings=replace(_KEPT, grouping=kind, active=math.ceil(needed)),
            )
            for kind in GroupingKind
        ]
        found["rows"] += table(cases, load, chosen)["rows"]
    return {**found, "reaches": _reaches(found)}


def _bursty() -> list[Case]:
    cases = [
        Case(
            f"bursts: {kind}",
            settings=replace(_KEPT, grouping=kind),
            paper={
                GroupingKind.LOAD_AWARE: (0.5617, 0.1831, 0.9987, 2098.91),
                GroupingKind.SHUFFLE: (0.5390, 0.4332, 0.9979, 5271.01),
            }.get(kind, ()),
        )
        for kind in GroupingKind
    ]
    slow = replace(_KEPT, grouping=GroupingKind.SHUFFLE, interval_s=60.0)
    foreseen = [
        Case(f"bursts, foreseen: {kind}", UnifiedPools, replace(_KEPT, grouping=kind))
        for kind in _FORESEEN
    ]
    return [*cases, Case("bursts: shuffle, td = 60 s", settings=slow), *foreseen]


def _reaches(found: dict[str, Any]) -> dict[str, Any]:
    """Return the relative decrease of latency against shuffle, per load and grouping."""
    lower: dict[str, float] = {}
    for label in ("bursts", *_STEADY):
        shuffled = by_system(found, f"{label}: shuffle")["latency_ms"]
        for kind in (GroupingKind.LOAD_AWARE, GroupingKind.LEAST_WORK):
            ours = by_system(found, f"{label}: {kind}")["latency_ms"]
            lower[f"{label}: {kind}"] = less(ours, shuffled)
    late = by_system(found, "bursts: shuffle")["latency_ms"]
    for kind in _FORESEEN:
        ours = by_system(found, f"bursts, foreseen: {kind}")["latency_ms"]
        lower[f"bursts, foreseen: {kind} against PSPS with shuffle"] = less(ours, late)
    printed = by_system(found, "bursts: shuffle, td = 60 s")["latency_ms"]
    ours = by_system(found, "bursts: load-aware")["latency_ms"]
    lower["bursts: load-aware against the printed row"] = less(ours, printed)
    return {
        "paper": 0.6018,
        "lower": lower,
        "met": sorted(key for key, share in lower.items() if share >= _WANTED),
    }


draw = draw_measures
