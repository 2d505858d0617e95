"""Continuous mode: each record is served as a queue by the book would serve it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_jobs import (
    NAME,
    Given,
    change_to,
    fixed,
    make_engine,
    run_engine,
    simulate_plainly,
)

from headgate.control.estimators.examiner import Examiner
from headgate.core.assignment import spread
from headgate.core.errors import ProtocolError
from headgate.whatif.model import (
    Distribution,
    OperatorModel,
    ServiceTime,
    SlotPool,
    TreatmentCost,
)
from headgate.whatif.queues import Queues
from headgate.workloads.rates import ConstantRate, SpikeRate, StepRate
from headgate_lab.workloads.arrivals import RateArrivals

EVEN = np.full(8, 1 / 8)


def bursty(per_s: float = 300.0) -> RateArrivals:
    shares = np.arange(1, 9) / 36
    return RateArrivals(SpikeRate(per_s, 3.0, 1.0, 2.0), shares, poisson=True)


def test_an_m_m_1_queue_has_the_mean_latency_of_the_book() -> None:
    model = OperatorModel(ServiceTime(0.01, Distribution.EXPONENTIAL), key_groups=8, slots=2)
    arrivals = RateArrivals(ConstantRate(140.0), EVEN, poisson=True)
    operator = run_engine(make_engine(model, arrivals, until_s=1500.0), 1500.0)
    assert operator.measures.latency_mean_s == pytest.approx(1 / (100 - 70), rel=0.03)


def test_fixed_service_waits_half_as_long_as_exponential() -> None:
    model = OperatorModel(fixed(), key_groups=8, slots=2)
    arrivals = RateArrivals(ConstantRate(140.0), EVEN, poisson=True)
    operator = run_engine(make_engine(model, arrivals, until_s=1500.0), 1500.0)
    waiting_s = operator.measures.latency_mean_s - 0.01
    assert waiting_s == pytest.approx(0.01 * 0.7 / (2 * (1 - 0.7)), rel=0.04)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    delta_s=st.sampled_from([0.02, 0.1, 0.5]),
    barrier=st.sampled_from([0, 10**6]),
    kind=st.sampled_from(["out", "balance", "in"]),
)
def test_every_record_is_done_when_the_plain_simulator_says(
    seed: int, delta_s: float, barrier: int, kind: str
) -> None:
    chance = np.random.default_rng(seed)
    count, until_s = 400, 6.0
    times_s = np.sort(chance.random(count) * 3.0)
    groups = chance.integers(0, 8, count)
    cost = TreatmentCost(sync_s=0.13, per_group_s=0.02, delay_s=0.05, barrier_records=barrier)
    service = ServiceTime(0.02, Distribution.EXPONENTIAL, cap_per_s=200.0)
    model = OperatorModel(
        service, key_groups=8, slots=3, treatment=cost, pool=SlotPool(alpha=0.6, beta=0.4)
    )
    engine = make_engine(model, Given(times_s, groups), until_s=until_s * 4, delta_s=delta_s)
    operator = engine.operators[NAME]
    before = operator.queues.assignment
    speeds = operator.queues.clocks[:, 2].tolist()
    of_0 = before.groups_of(0)
    target = {
        "out": dict.fromkeys(of_0[:1], 3),
        "balance": dict.fromkeys(of_0[:2], 1),
        "in": dict.fromkeys(of_0, 1),
    }[kind]
    moved = [target.get(g, s) for g, s in enumerate(before.slot_of)]
    survivors: list[int | None] = [0, 1, 2]
    if kind == "out":
        survivors = [0, 1, 2, None]
    elif kind == "in":
        survivors = [2, 1]  # the last slot takes the number of the one that ends
        moved = [{1: 1, 2: 0}[s] for s in moved]
    model_at = round(1.0 / delta_s)
    operator = run_engine(engine, until_s * 4, {model_at: change_to(before, moved, survivors)})
    drawn_s = service.draw(np.random.default_rng([0, 1]).spawn(2)[1], count)
    demand_s = np.maximum(drawn_s, service.least_s)
    if kind == "out":
        speeds.append(float(operator.queues.clocks[3, 2]))
    records = list(zip(times_s.tolist(), groups.tolist(), demand_s.tolist(), strict=True))
    plain = simulate_plainly(records, before.slot_of, speeds, (1.0, target, cost))
    for group in range(8):
        expected = [d.done_s - d.arrival_s for d in plain if d.group == group]
        assert operator.measures.completed[:, group].sum() == len(expected)
        assert operator.measures.latency_sum_s[:, group].sum() == pytest.approx(sum(expected))
    ticks = np.array([int(np.ceil(d.done_s / delta_s - 1e-9)) for d in plain])
    per_tick = np.bincount(ticks - 1, minlength=operator.measures.ticks)
    assert operator.measures.completed.sum(axis=1).tolist() == per_tick.tolist()


def test_nothing_is_lost_and_nothing_is_made_up_while_slots_come_and_go() -> None:
    chance = np.random.default_rng(4)
    times_s, groups = np.sort(chance.random(4000) * 8.0), chance.integers(0, 8, 4000)
    model = OperatorModel(fixed(), key_groups=8, slots=3)
    engine = make_engine(model, Given(times_s, groups), until_s=60.0)
    operator = engine.operators[NAME]
    queues, measures = operator.queues, operator.measures
    for tick in range(1, 601):
        engine.advance()
        before = queues.assignment
        if tick % 10 == 0 and tick <= 120:
            slots = int(chance.integers(1, 7))
            kept = chance.permutation(before.slots)[:slots].tolist()
            survivors = kept + [None] * (slots - len(kept))
            engine.apply(NAME, change_to(before, chance.integers(0, slots, 8), survivors))
        assert queues.held == queues.backlog.sum()
    assert len(measures.applied) == 12
    assert queues.held == 0
    sent = np.bincount(groups, minlength=8).tolist()
    assert queues.arrived.tolist() == measures.arrived.sum(axis=0).tolist() == sent
    assert queues.completed.tolist() == measures.completed.sum(axis=0).tolist() == sent
    assert measures.histogram.sum() == 4000


def test_only_source_and_destination_stop() -> None:
    model = OperatorModel(fixed(), key_groups=8, slots=4)
    before = spread(4, 8)
    change = change_to(before, [1, *before.slot_of[1:]], [0, 1, 2, 3])
    still = run_engine(make_engine(model, bursty(), until_s=4.0), 4.0)
    moving = run_engine(make_engine(model, bursty(), until_s=4.0), 4.0, {10: change})
    same = (still.measures.latency_sum_s == moving.measures.latency_sum_s).all(axis=0)
    assert same.tolist() == [False] * 4 + [True] * 4


def test_a_change_takes_synchronising_groups_state_and_delay() -> None:
    cost = TreatmentCost(
        sync_s=0.2,
        per_group_s=0.01,
        group_bytes=5e6,
        record_bytes=0.0,
        bandwidth_bytes_per_s=50e6,
        delay_s=0.3,
    )
    model = OperatorModel(fixed(), key_groups=8, slots=2, treatment=cost)
    before = spread(2, 8)
    change = change_to(before, [1, 1, *before.slot_of[2:]], [0, 1])
    operator = run_engine(make_engine(model, Given([], []), until_s=3.0), 3.0, {10: change})
    (applied,) = operator.measures.applied
    assert applied.took_s == pytest.approx(0.2 + 2 * 0.01 + 2 * 5e6 / 50e6 + 0.3)
    assert applied.stopped_s == pytest.approx(2 * applied.took_s)
    assert applied.moved == (0, 1)


def test_state_that_has_grown_takes_longer_to_move() -> None:
    cost = TreatmentCost(sync_s=0.0, per_group_s=0.0, record_bytes=1e6, bandwidth_bytes_per_s=1e8)
    model = OperatorModel(fixed(0.001), key_groups=8, slots=2, treatment=cost)
    before = spread(2, 8)
    change = change_to(before, [1, *before.slot_of[1:]], [0, 1])
    arrivals = Given(np.linspace(0.0, 0.5, 30), np.zeros(30))
    operator = run_engine(make_engine(model, arrivals, until_s=3.0), 3.0, {10: change})
    assert operator.measures.applied[0].took_s == pytest.approx(30 * 1e6 / 1e8)


def test_a_barrier_in_the_data_waits_for_the_records_in_front_of_it() -> None:
    arrivals = Given(np.full(100, 0.05), np.zeros(100))
    before = spread(2, 8)
    change = change_to(before, [1, *before.slot_of[1:]], [0, 1])
    took_s = {}
    for records in (0, 20, 10**6):
        cost = TreatmentCost(sync_s=0.1, per_group_s=0.0, barrier_records=records)
        model = OperatorModel(fixed(0.02), key_groups=8, slots=2, treatment=cost)
        engine = make_engine(model, arrivals, until_s=6.0)
        took_s[records] = run_engine(engine, 6.0, {1: change}).measures.applied[0].took_s
    # The record in service at 0.1 s is done at 0.11 s; then 20 or the remaining 97 of 0.02 s each.
    assert took_s[0] == pytest.approx(0.01 + 0.1)
    assert took_s[20] == pytest.approx(0.01 + 0.1 + 20 * 0.02)
    assert took_s[10**6] == pytest.approx(0.01 + 0.1 + 97 * 0.02)


def test_a_second_change_during_the_first_is_refused() -> None:
    engine = make_engine(OperatorModel(fixed(), key_groups=8, slots=2), bursty(), until_s=1.0)
    before = spread(2, 8)
    engine.advance()
    engine.apply(NAME, change_to(before, [1, *before.slot_of[1:]], [0, 1]))
    with pytest.raises(ProtocolError, match="epoch 1 while epoch 0 is in force or changing"):
        engine.apply(NAME, change_to(before, [1, *before.slot_of[1:]], [0, 1]))


def test_a_slot_that_survives_keeps_its_identity_and_a_new_one_gets_a_new_identity() -> None:
    engine = make_engine(OperatorModel(fixed(), key_groups=8, slots=3), bursty(), until_s=4.0)
    before = spread(3, 8)
    run_engine(engine, 2.0, {5: change_to(before, [1] * 4 + [0] * 4, [2, 1])})
    after = engine.assignment(NAME)
    engine.apply(NAME, change_to(after, [2, *after.slot_of[1:]], [0, 1, None]))
    for _ in range(20):
        engine.advance()
    samples = engine.collect()[NAME]
    assert list(dict.fromkeys(sample.slot_ids for sample in samples)) == [
        (0, 1, 2),
        (2, 1),
        (2, 1, 3),
    ]


def test_slots_of_the_other_type_come_with_their_probability_and_their_speed() -> None:
    model = OperatorModel(fixed(), key_groups=512, slots=512, pool=SlotPool(alpha=0.5, beta=0.25))
    engine = make_engine(model, Given([0.0], [0], of=512), until_s=0.1)
    engine.advance()
    operator = engine.operators[NAME]
    assert operator.measures.other_slots[0] == pytest.approx(128, abs=30)
    assert operator.queues.completed[0] == 1


def test_a_rate_limit_holds_in_proportion_to_speed() -> None:
    service = ServiceTime(1e-6, cap_per_s=100.0)
    pool = SlotPool(alpha=0.5, beta=1.0)
    model = OperatorModel(service, key_groups=8, slots=1, pool=pool)
    arrivals = RateArrivals(ConstantRate(1000.0), EVEN)
    operator = run_engine(make_engine(model, arrivals, until_s=10.0), 10.0)
    assert operator.queues.completed.sum() == pytest.approx(500, abs=1)


def test_the_estimate_is_within_delta_of_the_true_latency() -> None:
    delta_s, window = 0.1, 10
    service = ServiceTime(0.008, Distribution.NORMAL, 0.001)
    model = OperatorModel(service, key_groups=8, slots=2)
    arrivals = RateArrivals(StepRate(((0.0, 150.0), (10.0, 260.0), (25.0, 150.0))), EVEN)
    engine = make_engine(model, arrivals, until_s=40.0)
    measures, examiner = engine.operators[NAME].measures, Examiner(8, delta_s, 1.0)
    compared = 0
    for tick in range(1, 401):
        engine.advance()
        for sample in engine.collect()[NAME]:
            examiner.add(sample)
        if tick < 2 * window:
            continue
        estimate_s = examiner.view(bound_s=1.0, alert_s=0.1).group_latency_s
        completed = measures.completed[tick - window : tick].sum(axis=0)
        true_s = measures.latency_sum_s[tick - window : tick].sum(axis=0) / completed
        assert np.abs(estimate_s - true_s)[completed > 0].max() <= delta_s
        compared += 1
    assert measures.latency_mean_s > 2 * delta_s
    assert compared == 381


def test_useful_time_tells_the_service_rate_of_each_slot() -> None:
    pool = SlotPool(alpha=0.5, beta=0.5)
    service = ServiceTime(0.004, Distribution.NORMAL, 0.0005)
    model = OperatorModel(service, key_groups=8, slots=8, pool=pool)
    engine = make_engine(model, RateArrivals(ConstantRate(400.0), EVEN), until_s=60.0)
    operator = run_engine(engine, 60.0)
    examiner = Examiner(8, 0.1, 1.0)
    for sample in engine.collect()[NAME]:
        examiner.add(sample)
    speeds = operator.queues.clocks[:, 2]
    assert set(speeds) == {0.5, 1.0}
    estimate = examiner.view(bound_s=1.0, alert_s=0.1).service_rate
    assert estimate == pytest.approx(250.0 * speeds, rel=0.05)


def test_slots_that_did_not_stand_still_for_a_change_are_not_held_up_by_it() -> None:
    assignment = spread(2, 4)
    queues = Queues(assignment, np.ones(2), 0.0)
    at_s, demand_s = np.zeros(4), np.full(4, 1.0)
    queues.enqueue((at_s, at_s, demand_s, np.arange(4)), np.zeros(4, np.int32))
    queues.stop([0], 0)
    queues.reassign(replace(assignment, epoch=1), (0, 1), np.zeros(0), resume_s=10.0)
    queues.serve(5.0, measure := np.zeros((4, 2)))
    assert measure[:, 0].tolist() == [0.0, 0.0, 1.0, 1.0]
