"""A key group with 60 % of all records in the simulator: only a split keeps its bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim_jobs import NAME

from headgate.control.slots.streamswitch import StreamSwitch
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import Distribution, MicroBatch, OperatorModel, ServiceTime
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.rates import ConstantRate, RateFunction, StepRate
from headgate_lab.workloads.arrivals import RateArrivals

SHARES = np.array([0.6, *[0.4 / 15] * 15])
ENGINES = {"continuous": None, "micro-batch": MicroBatch(slot_rate_per_s=1000.0, trigger_s=0.2)}


def run(
    engine: str, unsplittable: str = "", rate: RateFunction | None = None, until_s: float = 60.0
) -> RunResult:
    """3,000 records/s, 1,800 of them of one group; a slot serves 1,000."""
    # tasks of a batch share two cores, so there the slots' rate is what limits them
    mean_s = 0.001 if engine == "continuous" else 0.0001
    service = ServiceTime(mean_s, Distribution.NORMAL, mean_s / 10)
    model = OperatorModel(service, key_groups=16, slots=2)
    arrivals = RateArrivals(rate or ConstantRate(3000.0), SHARES, poisson=True)
    bound = 1.0 if engine == "continuous" else 2.0
    settings = OperatorSettings(bound, 1.0, 10, initial_service_rate=1000.0)
    settings = replace(settings, unsplittable=unsplittable)
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    policy = StreamSwitch(0.1)
    simulation = Simulation(job, policy, {NAME: settings}, seed=1, micro_batch=ENGINES[engine])
    return simulation.run(until_s)


def split_at_end(result: RunResult) -> int:
    applied = result.operators[NAME].applied
    return len(applied[-1].change.assignment.shares_of(0)) if applied else 1


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_hot_group_keeps_its_bound_once_it_is_split(engine: str) -> None:
    split, whole = run(engine), run(engine, "it is none that can be merged")
    assert split_at_end(split) >= 2
    assert split_at_end(whole) == 1
    assert split.success(NAME, from_s=30.0).mean > 0.95
    assert whole.success(NAME, from_s=30.0).rate[0] < 0.1
    group = split.operators[NAME]
    assert group.completed.sum() >= 0.97 * group.arrived.sum()


def test_a_group_that_is_hot_no_more_becomes_whole() -> None:
    result = run("micro-batch", rate=StepRate(((0.0, 3000.0), (40.0, 600.0))), until_s=160.0)
    kinds = [applied.change.kind for applied in result.operators[NAME].applied]
    assert "split" in kinds
    assert split_at_end(result) == 1
