"""Drawn courses of both engines: time, floor, queues and samples after each step, as recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from sim_jobs import Given

from headgate.control.decision import Change, ChangeKind
from headgate.control.slots.static import Static
from headgate.core.assignment import Assignment, rescale
from headgate.core.errors import ProtocolError
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import (
    Distribution,
    MicroBatch,
    OperatorModel,
    ServiceTime,
    SlotPool,
    TreatmentCost,
)
from headgate.whatif.simulation import SimulatedJob, Simulation

Recorded = Callable[[str, Iterable[str]], None]
GROUPS = 6
UNTIL_S = 24.0


def shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(shown, value)) + "]"
    return f"{round(float(value), 7) + 0.0:.6g}"


def arrivals(dice: random.Random, load: float) -> Given:
    """Records that come evenly, in bursts on round times, or not at all for a while."""
    times: list[float] = []
    for second in range(int(UNTIL_S)):
        count = int(load * dice.choice([0, 0.3, 1, 1, 2]))
        times += [second + dice.choice([dice.random(), 0.0, 0.5]) for _ in range(count)]
    return Given(sorted(times), [dice.choice([0, 0, 0, *range(GROUPS)]) for _ in times], of=GROUPS)


def job(dice: random.Random, load: float) -> SimulatedJob:
    """One or two sources, and mostly an operator behind them."""
    models, fed = {}, {}
    for name in ("a", "b")[: dice.choice([1, 1, 2])]:
        drawn = ServiceTime(0.8 / load, Distribution.NORMAL, 0.1 / load)
        service = dice.choice([ServiceTime(0.5 / load), drawn])
        pool = dice.choice([SlotPool(), SlotPool(0.5, 0.5)])
        cost = dice.choice([TreatmentCost(), TreatmentCost(0.2, 0.02, 1e6, 100.0, 50e6, 5, 0.1)])
        models[name] = OperatorModel(service, GROUPS, dice.randint(1, 3), pool, cost)
        fed[name] = arrivals(dice, load)
    if dice.random() < 0.6:
        shares = dice.choice([None, (0.5, 0.3, 0.1, 0.1, 0.0, 0.0)])
        models["c"] = OperatorModel(
            ServiceTime(0.5 / load, Distribution.EXPONENTIAL), GROUPS, 2, parents=tuple(models),
            selectivity=dice.choice([0.4, 1.0, 1.7]), shares=shares, within_s=0.5,
        )  # fmt: skip
    return SimulatedJob(models, fed)


def changed(dice: random.Random, now: Assignment) -> Change:
    """As many slots, fewer or more, of which some are new; at times with a key group that is split."""
    slots = dice.choice([1, 2, 3, 4, now.slots])
    after = rescale(now, slots)
    split = {}
    if dice.random() < 0.5 and slots > 1:
        others = sorted({*range(slots)} - {after.slot_of[0]})
        split = {0: (after.slot_of[0], *dice.sample(others, dice.randint(1, len(others))))}
    after = Assignment(after.slot_of, slots, after.epoch, split)
    survivors = [slot if slot < now.slots else None for slot in range(slots)]
    if dice.random() < 0.2:
        survivors[-1] = None
    return Change(ChangeKind.RESCALE, after, tuple(survivors))


ENGINES: dict[str, MicroBatch | None] = {
    "continuous": None,
    "whole": MicroBatch(cores=1, poll_s=0.05),
    "trigger": MicroBatch(0.1, 1e-4, 0.05, 0.03, 0.02, trigger_s=0.5, cores=3),
    "budget": MicroBatch(budget_s=0.2, initial_rate_per_s=80.0, backlog_age_max_s=4.0),
    "warm": MicroBatch(0.1, warm_up_s=(0.5, 0.2), jitter_s=(0.0, 0.03, -0.2), budget_s=0.05),
    "rate": MicroBatch(slot_rate_per_s=60.0, moved_group_s=0.05, trigger_s=0.3),
}


def steps(name: str, seed: int) -> Iterator[str]:
    """Yield what there is to see after each step of an engine, and in the end."""
    dice = random.Random(f"{name} {seed}")
    work = job(dice, load=dice.choice([30.0, 100.0]))
    settings = dict.fromkeys(work.operators, OperatorSettings(1.0, 1.0, GROUPS))
    micro_batch = ENGINES[name]
    simulation = Simulation(work, Static(), settings, seed=seed, micro_batch=micro_batch)
    engine: Any = simulation._engine(round(UNTIL_S / 0.1))
    weights, last = np.arange(1, GROUPS + 1), {}
    while engine.time_s < UNTIL_S - 1e-9:
        applied = engine.advance()
        told = [f"{shown(engine.time_s)} s", *(f"{n} since {shown(at)}" for n, at in applied)]
        for operator, samples in engine.collect().items():
            for sample in samples[-1:]:
                counts = [weights @ sample.arrived, weights @ sample.completed]
                told.append(f"{operator} {sample.tick} {sample.slot_ids} {shown(counts)} "
                            f"{shown(sample.useful_s.tolist())}")  # fmt: skip
                last[operator] = sample.batch
            told += [f"of {len(samples)}"] * (len(samples) > 1)
        held = [op.queues.held for op in engine.operators.values()]
        line = "; ".join([*told, f"held {shown(held)}"])
        if micro_batch is not None:
            line += f", floor {shown(engine.floor_s)}"
        if micro_batch is not None or round(engine.time_s * 10) % 4 == 0 or applied:
            yield line
        if dice.random() < (0.25 if micro_batch is not None else 0.04):
            operator = dice.choice(sorted(engine.operators))
            try:
                engine.apply(operator, changed(dice, engine.assignment(operator)))
            except ProtocolError as error:
                yield f"  {error}"
    engine.finish()
    for operator, of in engine.operators.items():
        measures = of.measures
        ticks, sums = np.arange(1, measures.ticks + 1), []
        for field in ("arrived", "completed", "latency_sum_s", "slots", "other_slots"):
            values = np.asarray(getattr(measures, field), dtype=float)
            sums.append(np.atleast_1d(values.T @ ticks).tolist())
        quantiles = np.nan_to_num(measures.quantiles_s, nan=-1.0)
        yield f"{operator}: {shown(sums)}"
        yield f"  {shown((quantiles.T @ np.arange(1, len(quantiles) + 1)).tolist())}"
        yield f"  {shown(of.queues.histogram.nonzero()[0].tolist())}, {len(measures.applied)} changes"
        if last.get(operator) is not None:
            times = last[operator]
            yield f"  {shown([times.before_s, *np.ravel(times.tasks)])}"


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_goes_on_as_recorded(name: str, recorded: Recorded) -> None:
    recorded(f"engine-{name}", [line for seed in range(3) for line in steps(name, seed)])


def test_a_model_of_which_nothing_more_is_said_is_as_recorded(recorded: Recorded) -> None:
    service = ServiceTime(1.0)
    recorded("models", map(repr, [OperatorModel(service), MicroBatch(), TreatmentCost(), service]))
