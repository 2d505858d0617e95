"""Whole simulations end as they were recorded: what any part of them computes shows in their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from sim_jobs import NAME, summary

from headgate.control.policy import Policy
from headgate.control.registry import policy
from headgate.core.slo import parse_slo
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import (
    Distribution,
    MicroBatch,
    OperatorModel,
    ServiceTime,
    SlotPool,
    TreatmentCost,
)
from headgate.whatif.result import RunResult
from headgate.whatif.simulate import Mode, WhatIf, simulate
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.rates import SineRate
from headgate.workloads.traces import Trace
from headgate_lab.workloads.arrivals import RateArrivals

pytestmark = pytest.mark.usefixtures("one_process")

Recorded = Callable[[str, Iterable[str]], None]


def shown(value: Any) -> str:
    """Return a value as text, numbers to six digits: the last ones are the machine's."""
    if isinstance(value, float):
        return f"{round(value, 9) + 0.0:.6g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def figures(result: RunResult) -> Iterator[str]:
    """Yield what a run measured, its changes, and what was decided."""
    for name, measures in result.operators.items():
        told = summary(result, name)
        yield f"{name}: {shown({key: part for key, part in told.items() if key != 'settings'})}"
        yield f"  settings {shown(told['settings'])}"
        ages = np.arange(measures.ticks)
        for field in ("arrived", "completed", "latency_sum_s", "origin_sum_s"):
            values = np.asarray(getattr(measures, field), dtype=float)
            by_group = values.sum(axis=0)
            mean_tick = float((values.sum(axis=1) * ages).sum() / max(values.sum(), 1e-9))
            yield f"  {field} {shown(by_group.tolist())}, in the mean at tick {mean_tick:.6g}"
        for applied in measures.applied:
            change = asdict(applied)
            change["change"] = f"{applied.change.kind} to {applied.change.assignment.slot_of}"
            yield f"  {shown(change)}"
    for decision in result.decisions:
        yield shown(decision)


def run(
    chosen: Policy, *, micro_batch: MicroBatch | None = None, until_s: float = 25.0, **model: Any
) -> RunResult:
    """Simulate two operators, one behind the other; a wave of records, most of them of few keys."""
    service = ServiceTime(0.004, Distribution.NORMAL, 0.001)
    first = OperatorModel(service, key_groups=8, slots=2, pool=SlotPool(0.75, 0.3), **model)
    second = OperatorModel(
        ServiceTime(0.002, Distribution.EXPONENTIAL), key_groups=6, parents=(NAME,), selectivity=0.7,
        shares=(0.3, 0.3, 0.1, 0.1, 0.1, 0.1), within_s=0.5,
    )  # fmt: skip
    arrivals = RateArrivals(SineRate(100.0, 500.0, 30.0), np.arange(1, 9) / 36, poisson=True)
    job = SimulatedJob({NAME: first, "after": second}, {NAME: arrivals})
    settings = {NAME: OperatorSettings(1.0, 1.0, 8), "after": OperatorSettings(0.5, 1.0, 6)}
    simulation = Simulation(
        job, chosen, settings, seed=5, micro_batch=micro_batch, end_to_end_s=2.0
    )
    return simulation.run(until_s)


COSTS = TreatmentCost(0.2, 0.02, 1e6, 100.0, 50e6, 5, 0.1)
BATCHES = MicroBatch(
    plan_s=0.1, read_s=1e-5, commit_s=0.05, task_s=0.02, moved_group_s=0.01, budget_s=0.3, cores=3,
    trigger_s=0.2, backlog_age_max_s=2.0, initial_rate_per_s=300.0, warm_up_s=(0.5, 0.2),
    jitter_s=(0.0, 0.03, -0.02), poll_s=0.02,
)  # fmt: skip
RUNS: dict[str, Callable[[], RunResult]] = {
    "streamswitch": lambda: run(policy("streamswitch(0.2)"), treatment=COSTS),
    "streamswitch-steps": lambda: run(policy("streamswitch(0.1, steps=4, cooldown_s=2)")),
    "static": lambda: run(policy("static(3)"), treatment=COSTS),
    "batches": lambda: run(policy("streamswitch(0.2)"), micro_batch=BATCHES),
    "batches-whole": lambda: run(policy("static(3)"), micro_batch=MicroBatch(cores=2)),
    "batches-quota": lambda: run(
        policy("streamswitch(0.2)"), micro_batch=MicroBatch(slot_rate_per_s=220.0)
    ),
    "even": lambda: run(policy("unified(0.1, even=1)"), treatment=COSTS),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_as_recorded(name: str, recorded: Recorded) -> None:
    recorded(name, figures(RUNS[name]()))


def trace() -> Trace:
    """Forty seconds of 16 key groups: a wave, a burst, and a key group that becomes hot."""
    seconds, groups = np.arange(40)[:, None], np.arange(16)
    counts = 8.0 + 6.0 * np.sin(seconds / 6.0) + groups % 3
    counts = counts + 25.0 * ((seconds >= 20) & (seconds < 24))
    counts[30:, 3] += 60.0
    return Trace(np.floor(counts).astype(np.int32), 1.0)


WHAT_IFS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("mean < 1 s over 1 s", {"oracle": True}),
    "p95": ("p95 < 2 s over 5 s", {"slots_max": 9, "oracle": True}),
    "batches": ("mean < 2 s over 2 s", {"mode": Mode.MICRO_BATCH, "engine": MicroBatch(cores=8)}),
    "short": ("mean < 300 ms over 1 s", {"slots_max": 3}),
}


@pytest.mark.parametrize("name", WHAT_IFS)
def test_what_would_have_been_is_as_recorded(name: str, recorded: Recorded) -> None:
    slo, changes = WHAT_IFS[name]
    policies = ["static(4)", "static(12)", "streamswitch(0.2)", "threshold"]
    found = simulate(WhatIf(trace(), parse_slo(slo), 50.0, **changes), policies, timelines=True)
    rows, lines = found.pop("rows"), found.pop("timelines")
    texts = [f"{key} {shown(value)}" for key, value in found.items()]
    texts += [shown(row) for row in rows]
    texts += [f"{name} {shown(values[::5])}" for line in lines for name, values in line.items()]
    recorded(f"what-if-{name}", texts)
