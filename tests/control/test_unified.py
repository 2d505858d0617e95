"""The unified policy where moves are free, and that all it decides can be carried out."""

from __future__ import annotations

import pytest
from control_views import absurd_views, check, seen, view
from hypothesis import given

from headgate.control.decision import Decision
from headgate.control.estimators.trend import Trend
from headgate.control.observation import OperatorView
from headgate.control.slots.unified import Unified
from headgate.core.errors import ConfigError


def test_a_trend_needs_half_its_time_and_is_bounded() -> None:
    trend = Trend(5.0)
    for time_s, rate in ((0.0, 1.0), (1.0, 100.0), (2.0, 200.0)):
        trend.observe(time_s, rate)
    assert trend.growth(1.0) == 1.0
    trend.observe(3.0, 300.0)
    assert trend.growth(1.0) == pytest.approx(1.0 + 99.7 / 300, rel=0.01)
    assert trend.growth(1000.0) == 2.0


def evenly(operator: OperatorView, epsilon: float = 0.1) -> int | None:
    """Return the slots that a policy for free moves gives, None where it leaves them."""
    change = Unified(epsilon, 0.0, even=1).decide(seen(0.0, it=operator)).changes.get("it")
    return None if change is None else change.assignment.slots


def test_a_rise_is_met_as_far_as_it_is_foreseen() -> None:
    """1,700 records/s fit into two slots, the 2,000 of a second later do not."""

    def after(ahead_s: float) -> Decision:
        policy = Unified(0.1, ahead_s, even=1)
        for second, load in enumerate([500.0, 800.0, 1100.0, 1400.0, 1700.0]):
            operator = view([load / 40] * 40, 1000.0, slots=2)
            decision = policy.decide(seen(float(second), it=operator))
        return decision

    assert after(1.0).changes["it"].assignment.slots == 3
    assert not after(0.0)


def test_where_moves_are_free_no_record_has_to_be_late_first() -> None:
    """2,100 records/s do not fit into two slots of 1,000; one more, and a tenth of margin, do."""
    operator = view([2100.0 / 40] * 40, 1000.0, slots=2, latency_s=0.001)
    assert evenly(operator) == 3


def test_where_moves_are_free_slots_are_evenly_loaded_at_once() -> None:
    operator = view([7000.0 / 40] * 40, 1000.0, slots=2)
    change = Unified(0.1, 0.0, even=1).decide(seen(0.0, it=operator)).changes["it"]
    loads = [len(change.assignment.groups_of(slot)) for slot in range(change.assignment.slots)]
    assert change.assignment.slots == 8
    assert loads == [5] * 8


def test_what_waits_is_served_within_the_window() -> None:
    """900 records/s fit into one slot; 2,000 that wait as well, within 1 s, need three or four."""
    assert evenly(view([900.0 / 40] * 40, 1000.0, slots=1)) is None
    assert evenly(view([900.0 / 40] * 40, 1000.0, slots=1, backlog=50.0)) == 4


def test_slots_are_given_back_once_more_than_the_margin_is_spare() -> None:
    """With a margin of 0.2, 6,000 records/s want 8 slots and 5,500 want 7: of ten, 8 may not be left."""
    assert evenly(view([6000.0 / 40] * 40, 1000.0, slots=10), 0.2) is None
    assert evenly(view([5500.0 / 40] * 40, 1000.0, slots=10), 0.2) == 7
    assert evenly(view([100.0 / 40] * 40, 1000.0, slots=10, slots_min=3), 0.2) == 3


def test_a_bound_that_no_slot_can_meet_asks_for_as_many_as_keep_up() -> None:
    """A record alone takes 0.1 s, the bound is 0.05 s."""
    assert evenly(view([35.0 / 40] * 40, 10.0, slots=2, bound_s=0.05), 0.0) == 4


def test_records_that_grow_dearer_are_foreseen() -> None:
    """A record takes 1, 1.1, ... 1.8 ms; of 1,000/s two slots cope with 1.8 ms, and not with 2.2."""
    policy = Unified(0.0, 4.0, even=1)
    for second in range(9):
        operator = view([1000.0 / 40] * 40, 1000.0 / (1.0 + second / 10.0), slots=2)
        decision = policy.decide(seen(float(second), it=operator))
    assert decision.changes["it"].assignment.slots == 3


def test_without_a_service_rate_nothing_is_decided() -> None:
    assert evenly(view([100.0] * 40, 0.0)) is None


@given(absurd_views())
def test_every_decision_is_one_that_can_be_carried_out(operator: OperatorView) -> None:
    for policy in (Unified(), Unified(0.2, 2.0, even=1)):
        for second in range(4):
            observation = seen(float(second), it=operator)
            check(observation, policy.decide(observation))


@pytest.mark.parametrize("goal", [1.0, 1.5, 2.0, -0.1])
def test_a_goal_that_no_rule_could_be_chosen_for_is_refused(goal: float) -> None:
    with pytest.raises(ConfigError, match=rf"unified.*goal={goal:g}"):
        Unified(goal=goal)


def test_no_key_is_split_where_the_floor_alone_is_above_the_bound() -> None:
    policy = Unified(0.1)
    for second in range(60):
        operator = view([5.0, 1.0, 1.0, 1.0], 100.0, floor_s=2.0, latency_s=2.1, unsplittable="")
        change = policy.decide(seen(float(second), it=operator)).changes.get("it")
        assert change is None or not change.assignment.split, second


def test_no_key_is_split_where_one_record_alone_takes_longer_than_the_bound() -> None:
    """A split divides the queue of a key, not a record; a key that piles up is split all the same."""
    split = {}
    for rate in (0.5, 20.0):
        policy, decisions = Unified(0.1), []
        for second in range(60):
            operator = view([rate, 0.1, 0.1, 0.1], 2.0, bound_s=0.3, slots=2, unsplittable="")
            change = policy.decide(seen(float(second), it=operator)).changes.get("it")
            decisions.append(change is not None and bool(change.assignment.split))
        split[rate] = any(decisions)
    assert split == {0.5: False, 20.0: True}
