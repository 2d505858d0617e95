"""Rules played on the measured load, and the policy that follows the one that did best."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from control_views import seen, view
from worlds import World

from headgate.control.slots.hindsight.cost import RecordCost
from headgate.control.slots.hindsight.demand import Mean, Most, Quantiles
from headgate.control.slots.hindsight.hindsight import Hindsight
from headgate.control.slots.hindsight.kernels import pack, play
from headgate.control.slots.hindsight.rules import Rules
from headgate.control.slots.unified import Unified

GROUPS = 16


def even(rate: float) -> np.ndarray:
    """Return the same rate for all key groups, together so much."""
    return np.full(GROUPS, rate / GROUPS)


def test_a_mean_forgets_what_is_older_than_its_window() -> None:
    mean = Mean(1.0)
    for _ in range(20):
        mean.add(0.1, 0.3, 3.0)
    assert mean.slots == pytest.approx(3.0)
    for _ in range(10):
        mean.add(0.1, 0.0, 0.0)
    assert mean.slots == 0.0


def test_what_is_sure_of_a_few_records_is_nothing() -> None:
    few, many = Mean(0.3), Mean(0.3)
    for _ in range(3):
        few.add(0.1, 0.1, 1.0)
        many.add(0.1, 0.1, 100.0)
    assert few.surely == 0.0
    assert many.surely == pytest.approx(many.slots * (1.0 - 2.0 / math.sqrt(300.0)))


def test_the_most_is_held_and_then_forgotten() -> None:
    most = Most(3.0)
    found = [most.add(float(s), v) for s, v in enumerate([1.0, 5.0, 2.0, 3.0, 1.0, 1.0])]
    assert found == [1.0, 5.0, 5.0, 5.0, 5.0, 3.0]


def test_quantiles_are_those_of_time() -> None:
    found = Quantiles(1e9)
    for value, for_s in ((1.0, 60.0), (4.0, 35.0), (9.0, 5.0)):
        found.add(for_s, value)
    half, most = found.at(np.array([0.5, 0.9]))
    assert half == pytest.approx(1.0, rel=0.05)
    assert most == pytest.approx(4.0, rel=0.05)


def test_groups_are_dealt_by_load() -> None:
    load = np.array([5.0, 4.0, 3.0, 3.0, 1.0])
    row, total = np.zeros(5, dtype=np.int64), np.zeros(4)
    pack(np.argsort(-load, kind="stable"), load, 2, row, total)
    assert sorted(total[:2].tolist()) == [8.0, 8.0]
    assert np.bincount(row, weights=load).tolist() == [8.0, 8.0]


def one_rule(wanted: float, slots: int, work_s: float, waiting_s: float, calm_s: float = 99.0):  # type: ignore[no-untyped-def]
    """Return late weight, slots and waiting of one rule after a cycle of 0.1 s."""
    state = np.array([[waiting_s, *[0.0] * 7]])
    now, late, changed = np.array([slots]), np.zeros(1), np.zeros(1)
    packing = np.zeros((9, 4), dtype=np.int64)
    packing[2:] = [0, 1, 0, 1]
    play(
        0.1, 0.2, 1.0, np.array([0, 1]), np.full(2, work_s), np.full(2, 0.01), np.ones(2),
        np.array([wanted]), np.array([wanted]), 5.0, np.array([calm_s]), 8, packing, now, state,
        np.zeros(8), late, changed,
    )  # fmt: skip
    return float(late[0]), int(now[0]), state[0]


def test_work_waits_where_it_exceeds_the_time() -> None:
    late, slots, waiting_s = one_rule(2.0, 2, 0.3, 0.0)
    assert (late, slots) == (0.0, 2)
    assert waiting_s[:2].tolist() == pytest.approx([0.2, 0.2])


def test_only_groups_of_the_slot_that_is_behind_are_late() -> None:
    assert one_rule(2.0, 2, 0.01, 1.2)[0] == 1.0


def test_a_change_shares_out_what_waits_and_stops_the_slots() -> None:
    _, slots, waiting_s = one_rule(4.0, 2, 0.0, 1.2)
    assert slots == 4
    assert waiting_s[:4].tolist() == pytest.approx([1.2 / 4 + 0.2 - 0.1] * 4)


def test_slots_that_were_added_rest_before_they_go() -> None:
    assert one_rule(1.0, 4, 0.0, 0.0, calm_s=1.0)[1] == 4
    assert one_rule(1.0, 4, 0.0, 0.0, calm_s=6.0)[1] == 1
    assert one_rule(1.9, 4, 0.0, 0.0, calm_s=6.0)[1] == 3


def test_a_burst_that_half_the_bound_absorbs_is_not_chased() -> None:
    """Two slots of work for 0.3 s wait 0.2 s on one slot and a bit; for 3 s they do not."""
    rules = Rules(8, 1.0, 1e3, 0.1)
    curve = next(i for i, rule in enumerate(rules.all) if not rule.constant and not rule.signal)

    def after(cycles: int) -> float:
        for number in range(300):
            rules.wanted(number * 0.1, 0.1, 0.02, 10.0)
        for number in range(cycles):
            wanted, _ = rules.wanted(30.0 + number * 0.1, 0.1, 0.2, 100.0)
        return float(wanted[curve])

    assert after(3) < 1.0
    assert after(30) > 1.7


def test_the_mean_cost_is_of_records_and_not_of_rates() -> None:
    """Nine records of 1 ms and one of 91 ms take 10 ms each; the mean of rates says 1.1 ms."""
    operator = view([1.0] * 4, 901.0)
    costs = np.array([[1.0, 0.001]] * 9 + [[1.0, 0.091]])
    cost = RecordCost()
    cost.add(0.1, replace(operator, costs=costs, costs_seen=10))
    assert cost.mean_s == pytest.approx(0.01)
    assert cost.variability == pytest.approx((9 * 0.009**2 + 0.081**2) / 10 / 0.01**2)


def test_one_record_is_enough_for_a_mean_cost_and_is_not_forgotten() -> None:
    operator = view([1.0] * 4, 100.0)
    cost = RecordCost()
    cost.add(0.1, replace(operator, costs=np.empty((0, 2)), costs_seen=0))
    assert cost.mean_s == 0.01  # nothing but the service rate is known
    measured = replace(operator, costs=np.array([[1.0, 0.5]]), costs_seen=1)
    for elapsed_s in (0.1, 60.0):
        cost.add(elapsed_s, measured)
        assert cost.mean_s == pytest.approx(0.5)


def test_a_record_that_takes_longer_needs_more_to_spare() -> None:
    rules = Rules(8, 1.0, 1e3, 0.1)
    rules.expect(0.001, 0.0, 1.0)
    assert rules.spare == 0.1
    rules.expect(0.1, 0.0, 1.0)
    once = rules.spare
    rules.expect(0.1, 1.0, 1.0)
    assert 0.1 < once < rules.spare


@pytest.mark.jit
def test_a_steady_load_gets_few_slots_and_is_left_alone() -> None:
    world = World(Unified(), lambda s: even(280.0), slots=8).run(120.0)
    assert world.mean_slots(60.0) <= 4.2
    assert world.changes(60.0) <= 1
    assert world.late_share(60.0) == 0.0


def test_a_leap_follows_the_last_two_seconds_and_not_the_last_four() -> None:
    rules = Rules(8, 1.0, 1e3, 0.1)
    lean = [i for i, rule in enumerate(rules.all) if rule.lean and rule.rung == 1.0]
    for number in range(100):
        busy_s = 0.1 if number < 70 else 0.5  # for three seconds five slots are busy
        wanted, leap = rules.wanted(number * 0.1, 0.1, busy_s, 1e4 * busy_s)
    least = leap[lean].min()
    assert least == pytest.approx(5.0 * (1.0 + rules.spare), rel=0.01)
    assert wanted[lean].min() < least


@pytest.mark.jit
def test_a_leap_takes_one_change_and_is_hardly_late() -> None:
    world = World(Unified(), lambda s: even(250.0 if s < 60.0 else 900.0)).run(70.0)
    (first, decision), *_ = [found for found in world.decisions if found[0] >= 60.0]
    assert first - 60.0 < 1.0
    assert decision.changes["it"].assignment.slots >= 9
    assert world.late_share(60.0) < 0.1


@pytest.mark.jit
def test_bursts_that_come_again_and_again_are_waited_for() -> None:
    """Every 20 s eight slots of work come for 3 s: slots stay, where a slow load's are given back."""

    def bursty(s: float) -> np.ndarray:
        return even(800.0 if s % 20.0 < 3.0 else 100.0)

    world = World(Unified(), bursty, took_s=1.0).run(300.0)
    assert world.changes(200.0) <= 2
    assert world.mean_slots(200.0) <= 9.0
    assert world.late_share(200.0) < 0.05
    calm = World(Unified(), lambda s: even(800.0 if s < 40.0 else 100.0)).run(120.0)
    assert calm.mean_slots(110.0) <= 2.0


@pytest.mark.jit
@pytest.mark.parametrize("stays_s", [20.0, 40.0])
def test_groups_that_take_turns_in_being_hot_are_kept_apart(stays_s: float) -> None:
    """Four groups of 32 bring 0.6 slots each, the others 0.8 together: 3.2 slots of work."""

    def wandering(s: float) -> np.ndarray:
        rates = np.full(32, 3.0)
        rates[(5 * int(s // stays_s) + np.arange(4)) % 32] = 60.0
        return rates

    world = World(Unified(), wandering, slots=8).run(240.0)
    assert world.mean_slots(120.0) <= 8.0
    assert world.late_share(120.0) < 0.05


def test_what_was_served_long_ago_asks_for_no_slots() -> None:
    """Ten slots of work came for a minute, and a tenth of that for 15 s since."""
    rules = Rules(8, 1.0, 1800.0, 0.1)
    for cycle in range(750):
        wanted, _ = rules.wanted(0.1 * cycle, 0.1, 1.0 if cycle < 600 else 0.1, 10.0)
    names = [str(rule) for rule in rules.all]
    assert wanted[names.index("what half the bound needs and 10% more")] < 1.5


@pytest.mark.jit
def test_what_waits_is_load() -> None:
    """28,898 records wait, 100/s come, a record takes 10 ms: slots are added until they are served."""
    policy = Unified()
    operator = view([100.0 / GROUPS] * GROUPS, 100.0, slots=2, latency_s=18.2, bound_s=6.0)
    waiting = replace(operator, backlog=np.full(GROUPS, 28_898.0 / GROUPS))
    decision = policy.decide(seen(1.0, it=waiting))
    assert decision.changes["it"].assignment.slots >= 14
    assert "28898 records wait" in decision.reason
    assert decision.rule
    assert not Unified().decide(seen(1.0, it=operator))


@pytest.mark.jit
def test_a_handful_of_records_does_not_move_slots() -> None:
    """Five records a second on two slots: 1.2 changes a second were made of that noise."""
    world = World(Unified(), lambda s: even(5.0), record_s=0.1, slots=2).run(180.0)
    assert world.changes(30.0) <= 6
    assert world.late_share(60.0) < 0.02


@pytest.mark.jit
def test_what_chance_brings_to_a_slot_moves_no_key_groups() -> None:
    """Four slots of work in 32 groups, by chance now more here and now there."""
    world = World(Unified(), lambda s: np.full(32, 400.0 / 32), slots=5).run(180.0)
    assert world.changes(60.0) <= 2
    assert world.late_share(60.0) == 0.0


def relieved(of_slot: list[float], waiting_s: float = 0.0) -> bool:
    """Return whether the first of four slots with so much load is relieved in the end."""
    policy, arrived, found = Unified(), np.zeros(GROUPS), []
    rates = np.repeat(of_slot, 4) * 100.0 / 4
    backlog = np.zeros(GROUPS)
    for cycle in range(400):
        arrived = arrived + rates * 0.1
        backlog[:4] = waiting_s * 100.0 / 4 if cycle == 399 else 0.0
        operator = view(
            rates.tolist(), 100.0, slots=4, arrived=arrived, slots_min=4, slots_max=4,
            latency_s=0.01,
        )  # fmt: skip
        decision = policy.decide(seen(cycle * 0.1, it=replace(operator, backlog=backlog)))
        found.append(bool(decision))
    return any(found[-100:])


@pytest.mark.jit
def test_a_slot_is_relieved_if_that_takes_much_of_its_load() -> None:
    assert relieved([1.2, 0.2, 0.2, 0.2])
    assert not relieved([0.99, 0.6, 0.9, 0.6])


@pytest.mark.jit
def test_a_slot_that_will_soon_be_rid_of_what_waits_is_not_relieved() -> None:
    assert not relieved([0.1] * 4, waiting_s=0.9)
    assert relieved([0.1] * 4, waiting_s=2.0)


@pytest.mark.jit
def test_it_keeps_to_the_slots_that_are_allowed() -> None:
    limits = {"slots_min": 3, "slots_max": 5}
    world = World(Unified(), lambda s: even(100.0 if s < 60.0 else 900.0), options=limits).run(90.0)
    assert min(world.history) == 3
    assert max(world.history) == 5


@pytest.mark.jit
def test_as_on_spark_a_floor_is_no_wait_and_a_change_between_batches_stops_nobody() -> None:
    """Batches of a second: what is seen has a floor, and a change takes as long as it."""
    policy = Unified()
    arrived = np.zeros(GROUPS)
    slots = 6
    held = view([1.0] * GROUPS, slots=slots).assignment
    for batch in range(90):
        arrived = arrived + 200.0 / GROUPS
        operator = view(
            [200.0 / GROUPS] * GROUPS, 100.0, assignment=held, latency_s=1.6, floor_s=1.5,
            bound_s=4.0, arrived=arrived, limit="the cores are the limit", slots_max=8,
        )  # fmt: skip
        decision = policy.decide(seen(float(batch), it=operator))
        if decision:
            held = decision.changes["it"].assignment
            policy.applied("it", decision.changes["it"], 1.4)
    assert 2 <= held.slots <= 3


@pytest.mark.jit
def test_the_same_observations_give_the_same_decisions() -> None:
    def reasons() -> list[str]:
        world = World(Unified(), lambda s: even(300.0 + 200.0 * math.sin(s / 9.0))).run(90.0)
        return [f"{at}: {found.reason}" for at, found in world.decisions]

    once = reasons()
    assert once == reasons()
    assert all(" rule" in reason or "slot" in reason for reason in once)


@pytest.mark.jit
@pytest.mark.slow
def test_a_decision_for_64_slots_and_1024_groups_takes_less_than_ten_milliseconds() -> None:
    random, policy = np.random.default_rng(1), Unified()
    arrived, took_s = np.zeros(1024), []
    for cycle in range(200):
        arrived = arrived + random.poisson(4.0, 1024)
        operator = view([40.0] * 1024, 1000.0, slots=64, arrived=arrived, slots_max=64)
        costs = np.tile([[60.0, 0.001]], (256, 1))
        operator = replace(operator, costs=costs, costs_seen=64 * (cycle + 1))
        began_s = time.process_time()
        policy.decide(seen(cycle * 0.1, it=operator))
        took_s.append(time.process_time() - began_s)
    assert float(np.median(took_s)) < 0.01


@pytest.mark.parametrize(
    ("really", "wanted"),
    [
        ((0.0, 0.0, 0.0, 0.0), 1.0),
        ((1.0, 2.0, 0.0, 0.0), 1.0),  # nothing was expected
        ((0.0, 0.0, 1.0, 2.0), 1.0),  # nothing was measured
        ((3.0, 4.0, 1.0, 4.0), 3.0),
    ],
)
def test_late_records_are_set_against_those_that_were_expected(
    really: tuple[float, ...], wanted: float
) -> None:
    rules = SimpleNamespace(_really=np.array(really), missed=0.0, _time_s=10.0)
    assert Hindsight.off.fget(rules) == wanted  # type: ignore[attr-defined]
