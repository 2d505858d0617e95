"""StreamSwitch's two levels: who is severe, and what is done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from control_views import check, seen, view

from headgate.control.decision import ChangeKind, Decision
from headgate.control.observation import OperatorView
from headgate.control.slots.streamswitch import Health, StreamSwitch, healthiness
from headgate.core.assignment import Assignment, rescale
from headgate.core.errors import ConfigError

NAN = float("nan")


def decide(operator: OperatorView, epsilon: float = 0.2) -> Decision:
    """Return the decision about one operator, checked to be one that can be carried out."""
    observation = seen(0.0, counts=operator)
    decision = StreamSwitch(epsilon).decide(observation)
    check(observation, decision)
    assert decision.rule
    assert decision.reason.startswith("counts: ")
    assert all(np.isfinite(value) for value in decision.numbers.values())
    return decision


def kind(decision: Decision) -> ChangeKind | None:
    return decision.changes["counts"].kind if decision else None


def owned(*groups_of: Sequence[int]) -> Assignment:
    """Return the assignment in which slot i owns `groups_of[i]`."""
    slot_of = {group: slot for slot, groups in enumerate(groups_of) for group in groups}
    return Assignment(tuple(slot_of[group] for group in sorted(slot_of)), len(groups_of))


@pytest.mark.parametrize(
    ("latency_s", "projected_s", "health"),
    [
        (0.09, 0.9, Health.GOOD),
        (0.09, 1.0, Health.GOOD),
        (0.09, 1.1, Health.MODERATE),
        (0.10, 0.9, Health.GOOD),
        (0.10, 1.0, Health.GOOD),
        (0.10, 1.1, Health.MODERATE),
        (0.11, 0.9, Health.MODERATE),
        (0.11, 1.0, Health.MODERATE),
        (0.11, 1.1, Health.SEVERE),
        (0.11, float("inf"), Health.SEVERE),
        (NAN, 0.9, Health.MODERATE),
    ],
)
def test_severe_is_both_above_and_good_is_neither(
    latency_s: float, projected_s: float, health: Health
) -> None:
    """Equalities included."""
    operator = view([1.0, 1.0])
    found = healthiness(operator, np.array([latency_s]), np.array([projected_s]))
    assert found.tolist() == [health]


def test_latencies_are_judged_above_the_floor() -> None:
    """Latency l_i - 0.4 against l = 0.1; L against 0.4 + L_i."""
    operator = view([1.0, 1.0], floor_s=0.4)
    latency, projected = np.array([0.49, 0.51, 0.49, 0.51]), np.array([0.59, 0.59, 0.61, 0.61])
    found = healthiness(operator, latency, projected)
    assert found.tolist() == [Health.GOOD, Health.MODERATE, Health.MODERATE, Health.SEVERE]


# The nine ways through the two levels: mu = 1000, so 800 records/s are too many.
SEVERE = {"latency_s": [0.5, 0.05]}
PATHS = [
    # Slot 0 has 900; moving 300 leaves 600 and 400.
    (
        "severe, balance is moderate",
        "severe -> balance",
        view([300.0] * 3 + [50.0] * 3, 1000.0, **SEVERE),
    ),
    # Both slots drown and no move leaves slot 0 below 800.
    (
        "severe, balance stays severe",
        "severe -> scale-out",
        view([400.0] * 3 + [300.0] * 3, 1000.0, latency_s=[0.5, 0.5]),
    ),
    # Whatever leaves slot 0 makes slot 1 worse than slot 0 is.
    (
        "severe, no balance",
        "severe -> scale-out",
        view([450.0] * 2 + [500.0] * 2, 1000.0, **SEVERE),
    ),
    (
        "severe, no slot left",
        "severe, no slot left",
        view([450.0] * 2 + [500.0] * 2, 1000.0, slots_max=2, **SEVERE),
    ),
    ("severe, one group", "severe, cannot split", view([900.0, 50.0], 1000.0, **SEVERE)),
    ("moderate", "moderate", view([300.0] * 3 + [50.0] * 3, 1000.0)),
    ("good, scale-in stays good", "good -> scale-in", view([100.0] * 6, 1000.0)),
    ("good, scale-in is not good", "good", view([140.0] * 6, 1000.0)),
    ("good, one slot", "good", view([100.0] * 6, 1000.0, slots=1)),
]


@pytest.mark.parametrize(("rule", "operator"), [p[1:] for p in PATHS], ids=[p[0] for p in PATHS])
def test_each_way_through_the_two_levels(rule: str, operator: OperatorView) -> None:
    decision = decide(operator)
    assert decision.rule == rule
    assert bool(decision) == ("->" in rule)
    if decision:
        assert decision.changes["counts"].kind == rule.split(" -> ")[1]


def test_a_balance_that_leaves_one_slot_severe_is_not_taken() -> None:
    """Balancing would cure slot 0, but slot 1 is severe as well."""
    operator = view(
        [450.0, 450.0, 430.0, 430.0, 10.0, 10.0], 1000.0, slots=3, latency_s=[0.5, 0.5, 0.05]
    )
    decision = decide(operator)
    assert kind(decision) is ChangeKind.SCALE_OUT
    assert decision.changes["counts"].source == 0
    calm = replace(operator, latency_s=np.array([0.5, 0.05, 0.05]))
    assert kind(decide(calm)) is ChangeKind.BALANCE


def test_a_single_moderate_slot_forbids_a_scale_in() -> None:
    operator = view([1.0] * 6, 1000.0, slots=3)
    assert kind(decide(operator)) is ChangeKind.SCALE_IN
    tense = replace(operator, latency_s=np.array([0.05, 0.11, 0.05]))
    assert decide(tense).rule == "moderate"


def test_slots_that_have_nothing_to_do_are_good_and_merge() -> None:
    """The whole operator idle, no completion in the window."""
    assert kind(decide(view([0.0] * 4, 1000.0, latency_s=NAN))) is ChangeKind.SCALE_IN


def test_a_slot_that_completes_nothing_of_its_backlog_forbids_a_scale_in() -> None:
    assert decide(view([0.0] * 4, 1000.0, latency_s=NAN, backlog=1.0)).rule == "moderate"


def test_source_is_the_severe_slot_with_the_largest_projection() -> None:
    """Slot 0 is drowned but not slow yet; of the severe ones slot 2 is worse."""
    operator = view(
        [900.0, 900.0, 420.0, 420.0, 450.0, 450.0], 1000.0, slots=3, latency_s=[0.05, 0.5, 0.5]
    )
    assert decide(operator).changes["counts"].source == 2


@pytest.mark.parametrize(("mu", "source"), [(1000.0, 1), ([1000.0, 2000.0], 0)])
def test_of_overloaded_slots_the_source_has_the_largest_load(mu: Any, source: int) -> None:
    """Both project an infinite latency."""
    operator = view([225.0] * 4 + [425.0] * 4, mu, latency_s=0.5)
    assert decide(operator).changes["counts"].source == source


def test_equally_drowned_slots_go_by_number_on_every_run() -> None:
    operator = view([450.0] * 6, 1000.0, slots=3, latency_s=0.5)
    assert {decide(operator).changes["counts"].source for _ in range(5)} == {0}


def test_scale_out_moves_about_half_of_the_load() -> None:
    change = decide(view([100.0] * 20, 1000.0, latency_s=[0.5, 0.5])).changes["counts"]
    assert change.destination == 2
    assert len(change.assignment.groups_of(2)) == 5
    assert change.survivors == (0, 1, None)


def until_quiet(operator: OperatorView) -> tuple[OperatorView, Decision, int]:
    """Apply decisions at constant rates until there is none; return what is left and how many."""
    for count in range(50):
        decision = decide(operator)
        if not decision:
            return operator, decision, count
        change = decision.changes["counts"]
        service_rate = [
            operator.service_rate[change.source if old is None else old]  # type: ignore[index]
            for old in change.survivors
        ]
        assignment = change.assignment
        rates = np.bincount(
            assignment.slot_of, weights=operator.group_rate, minlength=assignment.slots
        )
        # Who is within the capacity works off its backlog before the next cycle.
        latency = np.where(rates < 0.8 * np.array(service_rate), 0.05, 0.5)
        operator = replace(
            operator,
            assignment=assignment,
            slot_ids=tuple(range(assignment.slots)),
            service_rate=np.array(service_rate),
            latency_s=latency,
            utilisation=np.zeros(assignment.slots),
        )
    pytest.fail("there is no end to the decisions")


@pytest.mark.parametrize("hot", [0, 7, 15])
def test_one_hot_key_is_left_alone_and_said_to_be_hopeless(hot: int) -> None:
    """A group with 120 % of a slot among cold ones; slots do not grow without end."""
    rates = [20.0] * 64
    rates[hot] = 1200.0
    operator, last, count = until_quiet(
        view(rates, 1000.0, slots=4, latency_s=[0.5, 0.05, 0.05, 0.05])
    )
    assert last.rule == "severe, cannot split"
    assert "cannot split" in last.reason
    assert operator.slots <= 5
    assert count <= 3
    slot = operator.assignment.slot_of[hot]
    assert operator.assignment.groups_of(slot) == (hot,)


def test_a_hopeless_group_does_not_wander_to_a_slot_that_seems_a_little_faster() -> None:
    operator = view([1200.0, 0.0, 0.0, 0.0], [1000.0, 1040.0], latency_s=[0.5, NAN], slots=2)
    assert decide(operator).rule == "severe, cannot split"


def test_a_group_that_a_faster_slot_can_hold_is_moved_there() -> None:
    operator = view([900.0, 10.0, 1.0, 1.0], [1000.0, 2000.0], latency_s=[0.5, 0.05])
    change = decide(operator).changes["counts"]
    assert change.kind is ChangeKind.BALANCE
    assert change.assignment.slot_of[0] == 1


def test_a_hot_key_does_not_make_the_cure_of_another_slot_look_insufficient() -> None:
    """Slot 0 holds nothing but a hot key; slot 1 can be cured by slot 2 without a new slot."""
    operator = view(
        [1200.0, 300.0, 300.0, 300.0, 50.0],
        1000.0,
        assignment=owned([0], [1, 2, 3], [4]),
        latency_s=[0.5, 0.5, 0.05],
    )
    decision = decide(operator)
    assert (kind(decision), decision.changes["counts"].source) == (ChangeKind.BALANCE, 1)


def test_other_groups_are_moved_away_from_two_hot_ones() -> None:
    operator = view(
        [1200.0, 1200.0, 50.0, 10.0],
        1000.0,
        assignment=owned([0, 1, 2], [3]),
        latency_s=[0.5, 0.05],
    )
    decision = decide(operator)
    assert kind(decision) is ChangeKind.BALANCE
    assert decision.changes["counts"].assignment.slot_of == (0, 0, 1, 1)


def test_a_single_group_on_a_slow_slot_does_not_make_a_balance_look_insufficient() -> None:
    """A slot with one group can give nothing away, though a faster slot could hold the group."""
    operator = view(
        [450.0, 300.0, 300.0, 300.0, 50.0],
        [500.0, 1000.0, 1000.0],
        assignment=owned([0], [1, 2, 3], [4]),
        latency_s=[0.5, 0.5, 0.05],
    )
    decision = decide(operator)
    assert (kind(decision), decision.changes["counts"].source) == (ChangeKind.BALANCE, 1)


def test_with_all_slots_taken_a_balance_that_cures_its_source_is_still_taken() -> None:
    """Slots 0 and 1 are severe; moving 300 from slot 0 to slot 2 cures slot 0."""
    operator = view(
        [300.0] * 3 + [430.0, 430.0] + [50.0],
        1000.0,
        assignment=owned([0, 1, 2], [3, 4], [5]),
        latency_s=[0.5, 0.5, 0.05],
    )
    assert kind(decide(operator)) is ChangeKind.SCALE_OUT
    assert kind(decide(replace(operator, slots_max=3))) is ChangeKind.BALANCE


def test_there_are_never_more_slots_than_key_groups() -> None:
    operator = view([500.0, 500.0, 0.0], 1000.0, assignment=owned([0, 1], [2], []))
    operator = replace(operator, latency_s=np.array([0.5, NAN, NAN]), slots_max=9)
    drowned = replace(operator, service_rate=np.array([1000.0, 1.0, 1.0]))
    assert decide(drowned).rule == "severe, no slot left"


def test_slots_min_is_respected() -> None:
    assert decide(view([0.0] * 4, 1000.0, slots_min=2)).rule == "good"


def test_a_bound_below_the_floor_is_unreachable_and_nothing_is_done() -> None:
    decision = decide(view([300.0] * 4, 1000.0, floor_s=1.0, latency_s=2.0))
    assert decision.rule == "unreachable"
    assert not decision


@pytest.mark.parametrize(("floor_s", "slots"), [(0.4, 1), (0.0, 4)])
def test_above_its_floor_an_idle_micro_batch_job_comes_down_to_one_slot(
    floor_s: float, slots: int
) -> None:
    """Every record takes 0.45 s in an idle job; with the floor set to 0 it never comes down."""
    operator = view([10.0] * 8, 1000.0, slots=4, latency_s=0.45, floor_s=floor_s)
    for _ in range(4):
        decision = decide(operator)
        if decision:
            assignment = decision.changes["counts"].assignment
            operator = view(
                [10.0] * 8, 1000.0, latency_s=0.45, floor_s=floor_s, assignment=assignment
            )
    assert operator.slots == slots


def test_each_operator_is_decided_in_turn() -> None:
    severe = view([300.0] * 3 + [50.0] * 3, 1000.0, latency_s=[0.5, 0.05])
    observation = seen(
        0.0, up=severe, middle=view([140.0] * 6, 1000.0), down=view([1.0] * 6, 1000.0)
    )
    decision = StreamSwitch().decide(observation)
    check(observation, decision)
    kinds = {name: change.kind for name, change in decision.changes.items()}
    assert kinds == {"up": ChangeKind.BALANCE, "down": ChangeKind.SCALE_IN}
    assert decision.rule == "severe -> balance, good -> scale-in"
    assert "middle" not in decision.reason
    assert decision.numbers["up.rate"] == 900.0
    assert decision.numbers["middle.slots"] == 2.0


def test_the_reason_names_slot_latencies_load_and_what_moves() -> None:
    decision = decide(view([300.0] * 3 + [50.0] * 3, 1000.0, latency_s=[0.5, 0.05]))
    assert decision.reason == (
        "counts: slot 0 (latency 0.5 s, alert 0.1 s; projected unbounded, bound 1 s; 900 of 1000 "
        "records/s) is severe; 1 key group, 33% of its load, moves to slot 1."
    )
    assert decision.numbers["counts.moved_share"] == pytest.approx(1 / 3)


def test_a_new_bound_counts_from_the_next_decision_on() -> None:
    operator = view([190.0] * 4, 1000.0, slots=1, latency_s=0.15)
    assert decide(operator).rule == "moderate"
    assert kind(decide(replace(operator, bound_s=0.02))) is ChangeKind.SCALE_OUT


def test_more_margin_asks_for_more_slots() -> None:
    operator = view([190.0] * 4, 1000.0, slots=1, latency_s=0.15)
    assert decide(operator, epsilon=0.2).rule == "moderate"
    assert kind(decide(operator, epsilon=0.4)) is ChangeKind.SCALE_OUT


def test_an_assignment_of_any_other_origin_is_understood() -> None:
    """After a rescale by hand one slot may own nothing."""
    operator = view([300.0] * 6, 1000.0, assignment=rescale(owned([0, 1, 2, 3, 4, 5], []), 3))
    assert decide(replace(operator, latency_s=np.full(3, 0.5))).rule == "moderate"


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, NAN])
def test_a_margin_out_of_range_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        StreamSwitch(epsilon)


def test_its_name_shows_the_margin() -> None:
    assert StreamSwitch(0.25).name == "streamswitch(0.25)"


def leap(operator: OperatorView, steps: int = 8) -> Decision:
    """Return a checked decision of several unit strategies."""
    observation = seen(0.0, counts=operator)
    decision = StreamSwitch(0.2, steps=steps).decide(observation)
    check(observation, decision)
    return decision


def test_with_several_steps_one_change_brings_all_the_slots_that_a_load_needs() -> None:
    operator = view([100.0] * 40, 1000.0, latency_s=0.5)
    change = leap(operator).changes["counts"]
    assert change.kind is ChangeKind.SCALE_OUT
    rates = np.bincount(change.assignment.slot_of, weights=operator.group_rate)
    assert (rates < 800.0).all()
    assert change.survivors == (0, 1) + (None,) * (change.assignment.slots - 2)


def test_several_steps_are_the_unit_strategies_one_after_the_other() -> None:
    """Both slots are slow: one is scaled out, and then the other one gives it some of its own."""
    operator = view([70.0] * 24, 1000.0, latency_s=0.5)
    once = decide(operator).changes["counts"]
    both = leap(operator).changes["counts"]
    assert leap(operator, steps=1).changes["counts"] == once
    assert (both.kind, both.assignment.slots) == (ChangeKind.SCALE_OUT, 3)
    assert both.assignment.groups_of(2) == once.assignment.groups_of(2)
    assert len(both.assignment.groups_of(1)) < len(once.assignment.groups_of(1))
    rates = np.bincount(both.assignment.slot_of, weights=operator.group_rate)
    assert (rates < 800.0).all()


def test_several_steps_inward_merge_for_as_long_as_all_stay_good() -> None:
    operator = view([20.0] * 40, 1000.0, slots=8, latency_s=0.01)
    change = leap(operator).changes["counts"]
    assert change.kind is ChangeKind.SCALE_IN
    assert change.assignment.slots == 2
    assert len(set(change.survivors)) == 2
    assert "6 slots are good" not in leap(operator).reason
    assert "with 5 more moves, 2 slots" in leap(operator).reason


def test_its_name_shows_several_steps() -> None:
    assert StreamSwitch(0.2, steps=8).name == "streamswitch(0.2, steps=8)"


def test_a_balance_that_only_moves_the_trouble_is_not_taken() -> None:
    """Of 1,000 slot 0 gives 500 to slot 1, which has 400: then slot 1 is the late one."""
    operator = view(
        [500.0, 500.0, 400.0],
        1000.0,
        assignment=owned([0, 1], [2]),
        latency_s=[0.5, 0.05],
        slots_max=2,
    )
    assert decide(operator).rule == "severe, no slot left"


def test_where_a_record_takes_longer_than_the_alert_slots_are_given_back() -> None:
    """A record takes 0.2 s, twice the threshold: eight slots with a tenth of the load scale in."""
    operator = view([0.1] * 40, 5.0, slots=8, latency_s=0.21)
    decision = StreamSwitch(0.2).decide(seen(0.0, it=operator))
    assert decision.changes["it"].kind is ChangeKind.SCALE_IN
    late = replace(operator, latency_s=np.full(8, 0.51))  # half the bound is late in any case
    assert StreamSwitch(0.2).decide(seen(0.0, it=late)).rule == "moderate"


def test_users_set_the_alert_threshold() -> None:
    operator = view([1.0] * 40, 100.0, slots=8, latency_s=0.21)
    assert StreamSwitch(0.2).decide(seen(0.0, it=operator)).rule == "moderate"
    relaxed = StreamSwitch(0.2, alert_s=0.3)
    assert relaxed.name == "streamswitch(0.2, alert_s=0.3)"
    assert relaxed.decide(seen(0.0, it=operator)).changes["it"].kind is ChangeKind.SCALE_IN
