"""Micro-batch mode: slots are queues that are served once per batch."""

from __future__ import annotations

import numpy as np
import pytest
from sim_jobs import NAME, Given, Scripted, change_to, fixed

from headgate.control.policy import Policy
from headgate.control.slots.static import Static
from headgate.core.assignment import spread
from headgate.core.errors import ProtocolError
from headgate.loop.settings import OperatorSettings
from headgate.whatif.measures import Measures
from headgate.whatif.microbatch import BatchOperator, MicroBatchEngine
from headgate.whatif.model import MicroBatch, OperatorModel
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.whatif.streams import Inflow
from headgate.workloads.arrivals import ArrivalFeed, ArrivalStream
from headgate.workloads.rates import ConstantRate
from headgate_lab.workloads.arrivals import RateArrivals

EVEN = np.full(8, 1 / 8)
ENGINE = MicroBatch(plan_s=0.1, task_s=0.02, commit_s=0.03, cores=2)
SETTINGS = {NAME: OperatorSettings(2.0, 1.0, 8)}


def run(
    arrivals: ArrivalStream,
    until_s: float,
    *,
    engine: MicroBatch = ENGINE,
    policy: Policy | None = None,
    model: OperatorModel | None = None,
) -> Measures:
    model = model or OperatorModel(fixed(0.001), key_groups=8, slots=2)
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    policy = policy or Static()
    simulation = Simulation(job, policy, SETTINGS, seed=1, micro_batch=engine)
    return simulation.run(until_s).operators[NAME]


def test_a_slot_serves_its_records_one_after_the_other() -> None:
    # t = 0      : nothing there; the engine looks again every 10 ms
    # t = 0.01   : batch of three records; tasks begin at 0.11, serve from 0.13 on, and end at
    #              0.13 + 2 * 0.001 (slot 0) and 0.13 + 0.001 (slot 1)
    # t = 0.162  : next batch, with the record of 0.1 s
    measures = run(Given([0.004, 0.005, 0.006, 0.1], [0, 0, 7, 7]), 1.0)
    first = 0.131 - 0.004 + 0.132 - 0.005
    assert measures.latency_sum_s[:, 0].sum() == pytest.approx(first)
    second = 0.131 - 0.006 + (0.162 + 0.1 + 0.02 + 0.001 - 0.1)
    assert measures.latency_sum_s[:, 7].sum() == pytest.approx(second)


def test_a_nearly_idle_job_has_a_floor_of_about_one_and_a_half_periods() -> None:
    measures = run(RateArrivals(ConstantRate(20.0), EVEN, poisson=True), 300.0)
    period_s = 0.1 + 0.02 + 0.03
    assert measures.latency_mean_s == pytest.approx(period_s / 2 + 0.12, rel=0.1)


def test_a_job_without_records_passes_the_time() -> None:
    measures = run(Given([], []), 5.0)
    assert measures.completed.sum() == 0
    assert (measures.slots == 2).all()


def test_more_slots_than_cores_take_turns() -> None:
    model = OperatorModel(fixed(0.001), key_groups=8, slots=4)
    burst = Given(np.full(400, 0.005), np.repeat(np.arange(8), 50))
    measures = run(burst, 2.0, model=model)
    by_slot = measures.latency_sum_s.sum(axis=0).reshape(4, 2).sum(axis=1) / 100
    # the mean record is done after half of the 100 that its slot serves
    assert by_slot == pytest.approx(0.105 + 0.02 + 0.0505 + np.array([0.0, 0.0, 0.12, 0.12]))


def test_a_slot_serves_its_quota_and_keeps_the_rest() -> None:
    engine = MicroBatch(
        plan_s=0.1, task_s=0.02, commit_s=0.03, budget_s=0.0505, initial_rate_per_s=1000.0
    )
    burst = Given(np.full(200, 0.005), np.zeros(200))
    measures = run(burst, 2.0, engine=engine)
    assert measures.completed.sum(axis=1)[:10].tolist() == [0, 50, 0, 50, 0, 50, 0, 50, 0, 0]


def test_a_hot_slot_delays_its_own_key_groups_only() -> None:
    engine = MicroBatch(budget_s=0.2, initial_rate_per_s=1000.0)
    shares = np.array([0.65, *[0.05] * 7])
    measures = run(RateArrivals(ConstantRate(900.0), shares), 60.0, engine=engine)
    mean_s = measures.latency_sum_s.sum(axis=0) / measures.completed.sum(axis=0)
    assert mean_s[0] > 5.0
    assert mean_s[1:].max() < 1.0
    assert measures.completed[:, 1:].sum() > 0.95 * measures.arrived[:, 1:].sum()


def test_a_slot_with_a_record_past_the_age_limit_serves_everything() -> None:
    engine = MicroBatch(budget_s=0.01, initial_rate_per_s=1000.0, backlog_age_max_s=3.0)
    burst = Given(np.full(2000, 0.005), np.zeros(2000))
    measures = run(burst, 10.0, engine=engine)
    done = measures.completed.sum(axis=1)
    assert done.sum() == 2000
    assert np.convolve(done, np.ones(20)).max() > 1500
    assert done.max() == 100  # 0.1 s of a slot that serves one after the other


def test_what_comes_after_the_last_boundary_has_arrived_and_waits() -> None:
    arrivals = RateArrivals(ConstantRate(400.0), EVEN)
    measures = run(arrivals, 5.0)
    assert measures.arrived.sum() == 2000
    assert 1800 < measures.completed.sum() < 2000


def test_a_change_holds_from_the_next_boundary_and_nobody_stops() -> None:
    before = spread(2, 8)
    change = change_to(before, [1, *before.slot_of[1:]], [0, 1])
    policy = Scripted([(2.0, change)])
    measures = run(RateArrivals(ConstantRate(400.0), EVEN), 5.0, policy=policy)
    (applied,) = measures.applied
    assert applied.took_s == 0.0
    assert applied.stopped_s == 0.0
    assert 2.0 <= applied.applied_s < 2.6
    assert measures.completed.sum() >= 400 * 5.0 * 0.85


def test_a_change_waits_for_the_trigger() -> None:
    engine = MicroBatch(plan_s=0.1, task_s=0.02, commit_s=0.03, trigger_s=1.0)
    before = spread(2, 8)
    policy = Scripted([(2.0, change_to(before, [1, *before.slot_of[1:]], [0, 1]))])
    arrivals = RateArrivals(ConstantRate(400.0), EVEN)
    (applied,) = run(arrivals, 5.0, policy=policy, engine=engine).applied
    begin_s = applied.applied_s - 1.0
    tasks_end_s = applied.decided_s - 0.03
    assert tasks_end_s == pytest.approx(begin_s + 0.1 + 0.02 + 200 * 0.001, abs=0.02)


def test_a_group_that_moved_costs_its_new_slot_once() -> None:
    engine = MicroBatch(plan_s=0.1, task_s=0.02, commit_s=0.03, moved_group_s=0.5)
    before = spread(2, 8)
    policy = Scripted([(2.0, change_to(before, [1, *before.slot_of[1:]], [0, 1]))])
    arrivals = RateArrivals(ConstantRate(40.0), EVEN)
    measures = run(arrivals, 6.0, policy=policy, engine=engine)
    tail_s = measures.quantiles_s[:, 2]
    assert (tail_s > 0.5).sum() in (1, 2)


def test_counters_are_told_up_to_the_beginning_of_the_last_batch() -> None:
    model = OperatorModel(fixed(0.001), key_groups=8, slots=2)
    feed = ArrivalFeed(RateArrivals(ConstantRate(400.0), EVEN), np.random.default_rng(0))
    inflow = Inflow(model, feed, np.random.default_rng(1))
    operator = BatchOperator(
        NAME, model, inflow, np.random.default_rng(2), engine=ENGINE, ticks=200, delta_s=0.1
    )
    engine = MicroBatchEngine({NAME: operator}, ENGINE, 0.1)
    told = 0
    for _ in range(40):
        begin_s = engine.time_s
        engine.advance()
        for sample in engine.collect()[NAME]:
            told += 1
            assert sample.tick == told
            assert sample.tick * 0.1 <= max(begin_s, 0.01) + 1e-9
            assert sample.arrived.sum() == int(sample.tick * 0.1 * 400.0 + 1e-6)
            assert (sample.completed <= sample.arrived).all()
    assert told > 50


def test_useful_time_tells_what_a_slot_can_serve_per_second_of_full_batches() -> None:
    engine = MicroBatch(plan_s=0.1, task_s=0.02, commit_s=0.03, budget_s=0.25)
    model = OperatorModel(fixed(0.001), key_groups=8, slots=2)
    feed = ArrivalFeed(RateArrivals(ConstantRate(5000.0), EVEN), np.random.default_rng(0))
    inflow = Inflow(model, feed, np.random.default_rng(1))
    operator = BatchOperator(
        NAME, model, inflow, np.random.default_rng(2), engine=engine, ticks=400, delta_s=0.1
    )
    overloaded = MicroBatchEngine({NAME: operator}, engine, 0.1)
    for _ in range(80):
        overloaded.advance()
    samples = overloaded.collect()[NAME]
    completed = samples[-1].completed - samples[50].completed
    useful_s = sum(sample.useful_s for sample in samples[51:])
    assert completed.sum() / useful_s.sum() == pytest.approx(1000.0 * 0.25 / 0.4, rel=0.02)
    wall_s = (samples[-1].tick - samples[50].tick) * 0.1
    assert useful_s == pytest.approx(wall_s, rel=0.05)


def test_useful_time_of_a_record_is_charged_in_the_tick_in_which_it_is_done() -> None:
    """A task of 0.4 s ends in one tick: with all of its time there, a record would cost four times it."""
    engine = MicroBatch(plan_s=0.1, task_s=0.02, commit_s=0.03)
    model = OperatorModel(fixed(0.001), key_groups=8, slots=2)
    burst = Given(np.full(800, 0.005), np.repeat(np.arange(8), 100))
    operator = BatchOperator(
        NAME,
        model,
        Inflow(model, ArrivalFeed(burst, np.random.default_rng(0)), np.random.default_rng(1)),
        np.random.default_rng(2),
        engine=engine,
        ticks=20,
        delta_s=0.1,
    )
    job = MicroBatchEngine({NAME: operator}, engine, 0.1)
    while job.time_s < 2.0:
        job.advance()
    before = np.zeros(8)
    ticks = 0
    for sample in job.collect()[NAME]:
        done = (sample.completed - before).sum()
        assert sample.useful_s.sum() == pytest.approx(done * 0.001)
        before, ticks = sample.completed, ticks + bool(done)
    assert ticks >= 4


def test_a_change_for_another_epoch_is_refused() -> None:
    model = OperatorModel(fixed(), key_groups=8, slots=2)
    inflow = Inflow(
        model, ArrivalFeed(Given([], []), np.random.default_rng(0)), np.random.default_rng(1)
    )
    operator = BatchOperator(
        NAME, model, inflow, np.random.default_rng(2), engine=ENGINE, ticks=10, delta_s=0.1
    )
    engine = MicroBatchEngine({NAME: operator}, ENGINE, 0.1)
    before = spread(2, 8)
    later = change_to(before, before.slot_of, [0, 1]).assignment
    with pytest.raises(ProtocolError, match="epoch 2 while epoch 0"):
        engine.apply(NAME, change_to(later, later.slot_of, [0, 1]))


def test_a_chain_is_served_stage_by_stage_within_one_batch() -> None:
    split = OperatorModel(fixed(0.001), key_groups=8, slots=2)
    count = OperatorModel(fixed(0.001), key_groups=8, slots=2, parents=("split",), selectivity=2.0)
    job = SimulatedJob({"split": split, "count": count}, {"split": Given([0.005], [0])})
    settings = dict.fromkeys(("split", "count"), SETTINGS[NAME])
    result = Simulation(job, Static(), settings, seed=1, micro_batch=ENGINE).run(1.0)
    assert result.operators["split"].latency_sum_s.sum() == pytest.approx(0.131 - 0.005)
    words = result.operators["count"]
    assert words.completed.sum() == 2
    done_s = words.origin_sum_s.sum() / 2 + 0.005
    assert words.latency_sum_s.sum() / 2 == pytest.approx(done_s - 0.131)
    assert 0.131 + 0.021 - 1e-9 <= done_s <= 0.131 + 0.022 + 1e-9
