"""Compares policies on PSPS's applications, tables IV to XII: its four measures, nothing dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import ReplicaPolicy
from headgate.control.pools.unified_pools import UnifiedPools
from headgate_lab.experiments.psps import workloads
from headgate_lab.experiments.psps.runs import KEEPING, Case, Load, row, run_once
from headgate_lab.experiments.unified.beside import Beside, Measure

INTERVAL_S = 10.0
"""Time between two decisions of ours, seconds. PSPS's own is 30 s, tuned by its authors (V-B). Both
policies are shown with both intervals; degradation is always counted over PSPS's."""

_PSPS_S = KEEPING.interval_s

MEASURES = (
    Measure("latency_ms"),
    Measure("saved", more=True),
    Measure("degradation"),
    Measure("processed", more=True, within=5e-4),
)

LOADS = {
    "tweets (IV, VIII, X)": Load(),
    "raw tweets (IX)": Load(workloads.tweets(), workloads.raw_bursts),
    "eight operators (XI)": Load(workloads.complex_tweets()),
    "DNS (XII)": Load(workloads.dns(), workloads.dns_bursts),
}


def compare(name: str, load: Load, seeds: Sequence[int]) -> Beside:
    """Return ours every 10 s and PSPS every 30 s, and both with the other's interval.

    Parameters
    ----------
    seeds : sequence of int
        One per run; rows are means.
    """

    def measured(make: Callable[[], ReplicaPolicy], interval_s: float) -> dict[str, Any]:
        case = Case(f"{make().name}, {interval_s:g} s", make)
        case = replace(case, settings=replace(KEEPING, interval_s=interval_s))
        found = row(case, load, [run_once(case, load, seed) for seed in seeds], window_s=_PSPS_S)
        values = {m.key: found[m.key] for m in MEASURES}
        return {"policy": case.system, **values, "dropped": found["dropped"]}

    also = [measured(Psps, INTERVAL_S), measured(UnifiedPools, _PSPS_S)]
    ours, psps = measured(UnifiedPools, INTERVAL_S), measured(Psps, _PSPS_S)
    return Beside(name, MEASURES, ours, [psps], also)
