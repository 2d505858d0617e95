"""A key group that no slot can serve alone: split over slots, refused with a reason, made whole again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from control_views import check, seen, view

from headgate.control.decision import ChangeKind, Decision
from headgate.control.estimators.examiner import Examiner
from headgate.control.observation import OperatorView
from headgate.control.sample import Sample
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.unified import Unified
from headgate.core.assignment import Assignment, rescale, spread
from headgate.core.errors import ConfigError

HOT = 2
RATES = [10.0, 10.0, 150.0, 10.0, 10.0, 10.0, 10.0, 10.0]
"""Group 2 has 150 of 220 records/s; a slot serves 100, of which 80 are to be used."""


def hot(**given: Any) -> OperatorView:
    """Slot 0 has groups 0 to 3, slot 1 the rest; slot 0 is late."""
    held = Assignment((0, 0, 0, 0, 1, 1, 1, 1), 2)
    given = {"latency_s": [3.0, 0.05], "unsplittable": "", "assignment": held} | given
    return view(RATES, 100.0, **given)


def decide(operator: OperatorView, policy: Any = None, at_s: float = 0.0) -> Decision:
    observation = seen(at_s, counts=operator)
    decision: Decision = (policy or StreamSwitch()).decide(observation)
    for change in decision.changes.values():
        if change.kind is not ChangeKind.SPLIT:
            check(observation, decision)
    return decision


def test_a_group_that_no_slot_can_serve_is_split_over_the_fewest() -> None:
    """Two shares have 75 each, alone within 80; slot 1 has 40, so that 115 would not fit there."""
    decision = decide(hot())
    change = decision.changes["counts"]
    assert change.kind is ChangeKind.SPLIT
    assert decision.rule == "severe -> split"
    assert change.assignment.split == {HOT: (0, 2)}
    assert change.assignment.slot_of == hot().assignment.slot_of
    assert change.survivors == (0, 1, None)
    assert "key group 2 alone is 68% of the load" in decision.reason
    assert "split over 2 slots, 1 of them new" in decision.reason


def test_slots_with_room_come_before_new_ones() -> None:
    idle = replace(hot(), assignment=Assignment((0, 0, 0, 0, 0, 0, 0, 0), 2))
    change = decide(idle).changes["counts"]
    assert change.assignment.split == {HOT: (0, 1)}
    assert change.assignment.slots == 2


def test_where_no_slot_more_is_allowed_the_others_take_shares_as_they_are() -> None:
    change = decide(hot(slots_max=2)).changes["counts"]
    assert change.assignment.split == {HOT: (0, 1)}
    assert change.assignment.slots == 2


def test_what_depends_on_order_stays_whole_and_the_decision_says_why() -> None:
    held = Assignment((1, 1, 0, 1, 1, 1, 1, 1), 2)
    operator = hot(
        assignment=held, unsplittable="first and last depend on the order of the records"
    )
    decision = decide(operator)
    assert not decision
    assert decision.rule == "severe, cannot split"
    assert "key group 2 alone is 68% of the load" in decision.reason
    assert "first and last depend on the order" in decision.reason


def test_the_papers_treatments_alone_on_request() -> None:
    assert StreamSwitch(split=0).name == "streamswitch(0.2, split=0)"
    assert decide(hot(), StreamSwitch(split=0)).rule == "severe -> balance"


def test_a_group_that_a_slot_can_serve_is_moved_and_not_split() -> None:
    rates = np.array([10.0, 30.0, 60.0, 10.0, 0.0, 0.0, 0.0, 0.0])
    assert decide(replace(hot(), group_rate=rates)).rule == "severe -> balance"


def test_the_load_of_a_split_group_is_divided_and_its_owner_merges() -> None:
    split = Assignment((0, 0, 0, 0, 1, 1, 1, 1), 3, 1, {HOT: (0, 1, 2)})
    operator = view(RATES, 100.0, assignment=split)
    assert operator.slot_rate.tolist() == [80.0, 90.0, 50.0]
    merging = replace(operator, entry_rate=np.full(8, 4.0))
    assert merging.slot_rate.tolist() == [88.0, 90.0, 50.0]
    # where hardly two records have the same key, the owner would merge them all again
    assert replace(operator, entry_rate=np.full(8, 1e6)).slot_rate.tolist() == [180.0, 90.0, 50.0]


def test_no_split_where_merging_gains_nothing() -> None:
    decision = decide(hot(entry_rate=np.full(8, 1e6)))
    assert all(not change.assignment.split for change in decision.changes.values())


def after_patience(operator: OperatorView) -> Decision:
    """Return what is decided about an operator that has been as it is for five windows."""
    policy = StreamSwitch()
    for at_s in range(5):
        decide(operator, policy, at_s)
    return decide(operator, policy, 5.0)


def good(rate: float, shares: int = 3) -> OperatorView:
    slots = tuple(range(shares))
    held = Assignment((0, 0, 0, 0, 1, 1, 1, 1), 3, 1, {HOT: slots})
    rates = np.array([5.0, 5.0, rate, 5.0, 5.0, 5.0, 5.0, 5.0])
    return replace(hot(assignment=held, latency_s=0.05), group_rate=rates)


@pytest.mark.parametrize(
    ("rate", "shares"),
    [
        (150.0, 3),  # 75 with 5 more groups, and a quarter more: 93.75 would be too much for two
        (100.0, 2),  # 1.25 times 50, with 15 and 20
        (40.0, 1),
        (60.0, 2),  # 1.25 times 60 and 15 are 90: whole, it would have no room to grow
    ],
)
def test_a_split_ends_only_with_room_to_spare(rate: float, shares: int) -> None:
    decision = after_patience(good(rate))
    change = decision.changes.get("counts")
    held = good(rate).assignment if change is None else change.assignment
    assert len(held.shares_of(HOT)) == shares
    assert held.slots == 3
    if change is not None:
        assert decision.rule == "good -> split"
        # and what it leads to is no reason for a split
        after = replace(good(rate), assignment=change.assignment, latency_s=np.full(3, 3.0))
        assert decide(after).rule != "severe -> split"


def test_what_waits_of_a_key_group_is_its_load_when_its_split_would_end() -> None:
    """Of 40 records/s and 100 that wait to be served within 1 s no slot would have room for all."""
    assert not after_patience(good(40.0)).changes["counts"].assignment.split
    backlog = np.zeros(8)
    backlog[HOT] = 100.0
    change = after_patience(replace(good(40.0), backlog=backlog)).changes.get("counts")
    assert change is None or len(change.assignment.shares_of(HOT)) > 1


def test_a_split_ends_after_five_windows_and_a_cycle_in_which_it_was_needed_begins_them_anew() -> (
    None
):
    policy = StreamSwitch()
    for at_s, rate in ((0.0, 40.0), (4.9, 40.0), (5.0, 150.0), (5.1, 40.0), (10.0, 40.0)):
        # that the shares are late by a step is no reason to keep it
        slow = replace(good(rate), latency_s=np.full(3, 0.9))
        assert decide(slow, policy, at_s).rule == "moderate"
    reason = decide(good(40.0), policy, 10.0).reason
    assert "key group 2 can be whole again instead of split over 3" in reason
    assert reason.endswith("if that stays so for 0.1 s more.")
    assert decide(good(40.0), policy, 10.1).rule == "good -> split"


def test_a_split_does_not_end_while_another_slot_is_severe_and_cannot_be_relieved() -> None:
    policy, held = StreamSwitch(), Assignment((0, 0, 0, 0, 0, 0, 0, 1), 2, 1, {HOT: (0, 1)})
    rates = np.array([0.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 200.0])
    operator = hot(assignment=held, latency_s=[0.05, 3.0], slots_max=2, unsplittable="")
    operator = replace(operator, group_rate=rates)
    for at_s in (0.0, 5.0):
        decision = decide(operator, policy, at_s)
        assert decision.rule.startswith("severe")


def test_where_a_split_ended_too_soon_the_next_end_waits_twice_as_long() -> None:
    policy = StreamSwitch()
    whole = replace(good(40.0), assignment=Assignment((0, 0, 0, 0, 1, 1, 1, 1), 3, 2))
    decide(good(40.0), policy, 0.0)
    assert decide(good(40.0), policy, 5.0).rule == "good -> split"
    decide(whole, policy, 6.0)
    decide(good(40.0), policy, 7.0)
    assert decide(good(40.0), policy, 16.9).rule != "good -> split"
    assert decide(good(40.0), policy, 17.0).rule == "good -> split"
    # and a split that only grows says nothing of its end
    other = StreamSwitch()
    decide(good(40.0, 2), other, 0.0)
    decide(good(40.0, 3), other, 1.0)
    assert decide(good(40.0, 3), other, 5.0).rule == "good -> split"


def test_a_slot_without_a_share_merges_into_one_that_has() -> None:
    held = Assignment((0, 0, 0, 0, 2, 2, 2, 2), 3, 1, {HOT: (0, 1)})
    rates = np.array([5.0, 5.0, 70.0, 5.0, 1.0, 1.0, 1.0, 1.0])
    operator = replace(hot(assignment=held, latency_s=0.05), group_rate=rates)
    change = decide(operator).changes["counts"]
    assert change.kind is ChangeKind.SCALE_IN
    assert change.assignment.split == {HOT: (0, 1)}
    assert change.assignment.slots == 2


def test_a_split_group_that_grows_gets_more_shares() -> None:
    held = Assignment((1, 1, 0, 1, 1, 1, 1, 1), 3, 1, {HOT: (0, 2)})
    rates = np.array([1.0, 1.0, 210.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    operator = replace(hot(assignment=held, latency_s=[3.0, 0.05, 3.0]), group_rate=rates)
    assert decide(operator).changes["counts"].assignment.split == {HOT: (0, 2, 1)}


def test_unified_splits_too() -> None:
    assert decide(hot(), Unified(ahead_s=0.0)).changes["counts"].assignment.split


@pytest.mark.parametrize(
    "split", [{HOT: (0,)}, {HOT: (1, 0)}, {HOT: (0, 0)}, {HOT: (0, 2)}, {9: (0, 1)}]
)
def test_an_assignment_refuses_shares_that_cannot_be(split: dict[int, tuple[int, ...]]) -> None:
    with pytest.raises(ConfigError, match="cannot be split over slots"):
        Assignment((0, 0, 0, 0, 1, 1, 1, 1), 2, 0, split)


def test_scaling_by_hand_keeps_the_shares_that_have_a_slot() -> None:
    held = Assignment((0, 0, 0, 0, 1, 1, 2, 2), 3, 1, {HOT: (0, 1, 2)})
    assert rescale(held, 2).split == {HOT: (0, 1)}
    assert rescale(held, 1).split == {}
    assert held.remap({HOT: 1}).split == {HOT: (1, 2)}


def test_each_share_counts_its_part_of_what_its_owner_completed() -> None:
    """Slot 0 owns the group, slot 1 has half of its records: both work half the time, at 100/s."""
    examiner = Examiner(2, 0.1, 0.5)
    held = Assignment((0, 1), 2, 0, {0: (0, 1)})
    for tick in range(1, 40):
        counted = np.array([10.0 * tick, 0.0])
        spent = np.array([0.05, 0.05])
        examiner.add(Sample(tick, held, (0, 1), counted, counted, spent))
    seen_now = examiner.view(bound_s=1.0, alert_s=0.1)
    assert seen_now.service_rate == pytest.approx([100.0, 100.0])
    assert seen_now.slot_rate == pytest.approx([50.0, 50.0])
    assert not np.isnan(seen_now.latency_s).any()


def test_what_a_slot_serves_is_its_work_over_its_time_whoever_completes_it() -> None:
    """In every second step slot 0 completes, in one go, what slot 1 did one step before."""
    examiner = Examiner(2, 0.1, 1.0)
    held = Assignment((0, 1), 2, 0, {0: (0, 1)})
    for tick in range(1, 60):
        arrived = np.array([20.0 * tick, 1.0 * tick])
        completed = np.array([40.0 * (tick // 2), 1.0 * tick])
        spent, worked = np.array([0.1, 0.11]), np.array([10.0, 11.0])
        sample = Sample(tick, held, (0, 1), arrived, completed, spent, worked)
        examiner.add(sample)
    assert examiner.view(bound_s=1.0, alert_s=0.1).service_rate == pytest.approx([100.0, 100.0])


def test_a_whole_assignment_has_no_shares() -> None:
    assert spread(2, 8).split == {}
    assert spread(2, 8).waiting_at(1) == (4, 5, 6, 7)
