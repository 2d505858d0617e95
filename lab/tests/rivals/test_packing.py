"""Packing: key groups go where they fit best, many in one change, onto as few slots as that takes."""

from __future__ import annotations

import numpy as np
from control_views import check, seen, view

from headgate.control.decision import Change, ChangeKind
from headgate.control.observation import OperatorView
from headgate.core.assignment import Assignment
from headgate_lab.rivals.packing import Packing

LATE_S = 0.5
"""Above the alert threshold of 0.1 s."""


def decided(one: OperatorView, epsilon: float = 0.2) -> Change | None:
    observation = seen(1.0, op=one)
    decision = Packing(epsilon).decide(observation)
    check(observation, decision)
    return decision.changes.get("op")


def loads(one: OperatorView, change: Change) -> list[float]:
    found = np.bincount(
        np.array(change.assignment.slot_of), one.group_rate, change.assignment.slots
    )
    return [float(rate) for rate in found]


def test_slots_are_filled_to_the_margin_and_all_that_are_spare_close_in_one_change() -> None:
    # 6 slots of 100/s, 40/s each: 240/s fit into four slots of 79/s, and into no three.
    one = view([10.0] * 24, slots=6)
    change = decided(one)
    assert change is not None
    assert change.kind is ChangeKind.SCALE_IN
    assert change.assignment.slots == 4
    assert max(loads(one, change)) <= 0.8 * 100.0 - 1.0


def test_without_a_margin_fewer_slots_do() -> None:
    one = view([10.0] * 24, slots=6)
    change = decided(one, 0.0)
    assert change is not None
    assert change.assignment.slots == 3


def test_a_slot_is_emptied_into_several_others() -> None:
    # No two of the three slots fit into one: StreamSwitch has nothing to join.
    assignment = Assignment((0, 0, 0, 1, 1, 1, 2, 2, 2, 2), 3)
    one = view([20.0, 20.0, 15.0, 20.0, 20.0, 15.0, 10.0, 10.0, 10.0, 10.0], assignment=assignment)
    change = decided(one)
    assert change is not None
    assert sorted(loads(one, change)) == [75.0, 75.0]
    assert change.survivors == (0, 1)


def test_a_filled_slot_may_grow_into_its_margin_before_anything_moves() -> None:
    one = view([45.0, 45.0, 5.0, 5.0], assignment=Assignment((0, 0, 1, 1), 2), latency_s=LATE_S)
    assert decided(one) is None


def test_a_severe_slot_gives_its_largest_groups_to_the_slot_that_they_fill_best() -> None:
    # 105/s of 100/s. What is above 79/s fits into slots 1 (40/s) and 2 (10/s); 1 is the fuller one.
    assignment = Assignment((0, 0, 0, 1, 2), 3)
    one = view(
        [30.0, 45.0, 30.0, 40.0, 10.0], assignment=assignment, latency_s=[LATE_S, 0.05, 0.05]
    )
    change = decided(one)
    assert change is not None
    assert change.kind is ChangeKind.BALANCE
    assert change.assignment.slot_of == (0, 2, 0, 1, 2)  # 45/s fit into slot 2 only
    smaller = view([30.0, 39.0, 36.0, 40.0, 10.0], assignment=assignment, latency_s=one.latency_s)
    change = decided(smaller)
    assert change is not None
    assert change.assignment.slot_of == (0, 1, 0, 1, 2)


def test_several_severe_slots_are_relieved_at_once() -> None:
    assignment = Assignment((0, 0, 0, 1, 1, 1, 2), 3)
    one = view([35.0] * 6 + [5.0], assignment=assignment, latency_s=LATE_S)
    change = decided(one)
    assert change is not None
    assert loads(one, change) == [70.0, 70.0, 75.0]


def test_what_fits_nowhere_gets_a_new_slot_with_half_of_the_load() -> None:
    assignment = Assignment((0, 0, 0, 0, 1, 1), 2)
    one = view([30.0] * 4 + [35.0] * 2, assignment=assignment, latency_s=LATE_S)
    change = decided(one)
    assert change is not None
    assert change.kind is ChangeKind.SCALE_OUT
    assert change.survivors == (0, 1, None)
    assert loads(one, change) == [60.0, 70.0, 60.0]


def test_no_more_slots_than_are_allowed() -> None:
    one = view([40.0] * 6, slots=2, slots_max=2, latency_s=LATE_S)
    assert decided(one) is None


def test_a_moderate_slot_is_left_alone_and_the_others_are_packed() -> None:
    assignment = Assignment((0, 0, 1, 1, 2, 2), 3)
    one = view([15.0] * 6, assignment=assignment, latency_s=[LATE_S, 0.05, 0.05])
    change = decided(one)
    assert change is not None
    assert change.assignment.slot_of == (0, 0, 1, 1, 1, 1)
    assert change.survivors == (0, 2)


def test_a_group_that_no_slot_can_bear_stays_and_asks_for_one_slot_at_the_most() -> None:
    one = view([150.0, 10.0, 10.0], slots=1, latency_s=LATE_S)
    change = decided(one)
    assert change is not None
    assert change.assignment.slot_of[0] == 0
    after = view([150.0, 10.0, 10.0], assignment=change.assignment, latency_s=[LATE_S, 0.05])
    while (change := decided(after)) is not None:
        assert change.assignment.slots <= 2
        after = view([150.0, 10.0, 10.0], assignment=change.assignment, latency_s=[LATE_S, 0.05])
    assert after.assignment.slots == 2


def test_its_reason_says_how_much_moves() -> None:
    decision = Packing().decide(seen(1.0, op=view([10.0] * 24, slots=6)))
    assert decision.rule == "good -> scale-in"
    assert decision.reason == "op: 8 key groups move to 3 slots, so that 4 slots do."
    assert decision.numbers["op.moved_groups"] == 8.0
