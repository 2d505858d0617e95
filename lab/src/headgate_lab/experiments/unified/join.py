"""Compares policies on STRETCH's random phases, figure 11: slots and latency of a join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headgate.control.registry import policy
from headgate.whatif.parallel import run_all
from headgate_lab.experiments.stretch.fig10 import COMPARISONS_PER_S, SLOTS_MAX
from headgate_lab.experiments.stretch.fig11 import POLICY as PREDICTIVE
from headgate_lab.experiments.stretch.fig11 import SPIKE_S, WINDOW_S, phases
from headgate_lab.experiments.unified.beside import Beside, Measure
from headgate_lab.sim.join import JoinModel, JoinRun, simulate_join

POLICY = "unified(0.2, 2, even=1)"
"""Slots share memory, so moves are free; it looks as far ahead as STRETCH's own second controller."""

BOUND_S = 0.1
"""Bound of the mean latency: the alert threshold of the simulated exchange. Chosen."""

MEASURES = (
    Measure("slots"),
    Measure("latency_ms", within=0.05),
    Measure("latency_ms_p99", within=0.5),
    Measure("spike_s"),
)


def compare(seeds: Sequence[int], length_s: float) -> Beside:
    """Return ours and STRETCH's two controllers; rows are means over the seeds."""
    policies = [POLICY, "threshold", PREDICTIVE]
    found = run_all(_measured, [(name, seed, length_s) for name in policies for seed in seeds])
    each = len(seeds)
    rows = [_mean(found[k : k + each]) for k in range(0, len(found), each)]
    return Beside(f"join, {length_s:g} s of phases", MEASURES, rows[0], rows[1:])


def _measured(item: tuple[str, int, float]) -> dict[str, Any]:
    name, seed, length_s = item
    rate = phases(seed, length_s)
    arrival_s = rate.time_of(np.arange(int(rate.count(length_s))))
    run = simulate_join(
        JoinModel(WINDOW_S, COMPARISONS_PER_S),
        arrival_s,
        policy(name),
        length_s,
        slots_max=SLOTS_MAX,
        bound_s=BOUND_S,
    )
    return {"policy": run.policy, **_measures(run)}


def _measures(run: JoinRun) -> dict[str, float]:
    latency_ms = 1e3 * run.latency_s
    return {
        "slots": float(run.slots.mean()),
        "latency_ms": float(latency_ms.mean()),
        "latency_ms_p99": float(np.quantile(latency_ms, 0.99)),
        "spike_s": float((run.timeline(1.0)["latency_mean_s"] > SPIKE_S).sum()),
        "changes": float(len(run.switches)),
    }


def _mean(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = [key for key in rows[0] if key != "policy"]
    means = {key: round(float(np.mean([row[key] for row in rows])), 3) for key in keys}
    return {"policy": rows[0]["policy"], **means}
