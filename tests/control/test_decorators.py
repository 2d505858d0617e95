"""What goes around a policy: each limit by itself, on a policy that would do anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from control_views import absurd_views, check, seen, view
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.decorators import (
    ActionLimit,
    AdviseOnly,
    Cooldown,
    Decorator,
    Freezable,
    Hysteresis,
    involved,
)
from headgate.control.observation import Observation, OperatorView
from headgate.control.registry import policy
from headgate.control.slots.rescaling import rescaled
from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError


class Script:
    """A policy that wants what it was told to want, and remembers what it was shown."""

    name = "script"

    def __init__(self, **wanted: Any) -> None:
        self.wanted: dict[str, Any] = wanted
        self.seen: list[Observation] = []
        self.told: list[tuple[Any, ...]] = []

    def decide(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        changes = {n: c for n, c in self.wanted.items() if c and n in observation.operators}
        return Decision(changes, "Scripted.", "script") if changes else NOTHING

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        self.told.append(("applied", operator, took_s))

    def slot_failed(self, operator: str, slot_id: int) -> None:
        self.told.append(("failed", operator, slot_id))


FOUR = view([10.0] * 8, slots=4)
"""Slots 0 to 3 with groups (0, 1), (2, 3), (4, 5), (6, 7)."""


def balance(one: OperatorView, group: int, destination: int) -> Change:
    source = one.assignment.slot_of[group]
    new = one.assignment.remap({group: destination})
    return Change(ChangeKind.BALANCE, new, tuple(range(one.slots)), source, destination)


def to(one: OperatorView, slots: int) -> Change:
    change = rescaled(one, slots)
    assert change is not None
    return change


def after(one: OperatorView, change: Change, **changed: Any) -> OperatorView:
    """The same operator with `change` in force; new slots get new identities."""
    fresh = iter(range(max(one.slot_ids) + 1, 100))
    ids = tuple(next(fresh) if s is None else one.slot_ids[s] for s in change.survivors)
    made = view(
        one.group_rate.tolist(), assignment=change.assignment, latency_s=one.latency_s.max()
    )
    return replace(made, slot_ids=ids, **changed)


# all of them

AROUND = pytest.mark.parametrize(
    "around",
    [
        Decorator,
        AdviseOnly,
        Cooldown,
        Freezable,
        lambda p: ActionLimit(p, 3),
        lambda p: Hysteresis(p, 2),
    ],
)


@AROUND
def test_a_decorator_bears_the_name_inside_and_passes_news_on(around: Any) -> None:
    inner = Script()
    made = around(inner)
    made.applied("a", to(FOUR, 2), 0.5)
    made.slot_failed("a", 3)
    assert made.name.partition("(")[0] == "script"
    assert inner.told == [("applied", "a", 0.5), ("failed", "a", 3)]


def stacked(inner: Any, **changed: int) -> AdviseOnly:
    """Return all decorators around a policy, in the order the module recommends."""
    patient = Hysteresis(inner, changed.get("cycles", 2))
    limited = ActionLimit(Cooldown(patient), changed.get("per_minute", 1))
    return AdviseOnly(Freezable(limited), on=False)


@given(views=st.lists(absurd_views(), min_size=1, max_size=6))
def test_a_decorated_policy_returns_what_an_engine_can_do(views: list) -> None:
    made = stacked(policy("streamswitch"), cycles=1, per_minute=99)
    for time_s, one in enumerate(views):
        observation = seen(float(time_s), op=one)
        decision = made.decide(observation)
        check(observation, decision)
        if decision:
            made.applied("op", decision.changes["op"], 0.3)


def test_a_limit_stands_in_the_name_among_the_parameters_of_the_policy() -> None:
    assert Hysteresis(Script(), 3).name == "script(hysteresis=3)"
    inside = Cooldown(policy("streamswitch(0.3)"), 2.5)
    assert ActionLimit(inside, 6).name == "streamswitch(0.3, cooldown_s=2.5, per_minute=6)"
    assert AdviseOnly(Freezable(policy("static"))).name == "static"


def test_decorators_stack() -> None:
    inner = Script(a=to(FOUR, 2))
    made = stacked(inner)
    assert not made.decide(seen(0.0, a=FOUR))
    assert made.decide(seen(1.0, a=FOUR)).changes == inner.wanted
    assert not made.decide(seen(2.0, a=FOUR))


# involved


def test_a_balance_involves_its_two_slots() -> None:
    assert involved(FOUR, balance(FOUR, 0, 2)) == ((0, 2), (0, 2))


def test_a_scale_in_does_not_involve_the_slot_that_is_only_renumbered() -> None:
    # Slot 0 merges into slot 1; slot 3 takes its number.
    new = Assignment((1, 1, 1, 1, 2, 2, 0, 0), 3, 1)
    merge = Change(ChangeKind.SCALE_IN, new, (3, 1, 2), 0, 1)
    assert involved(FOUR, merge) == ((0, 1), (1,))


def test_a_scale_out_involves_its_source_and_the_new_slot() -> None:
    new = Assignment((0, 4, 1, 1, 2, 2, 3, 3), 5, 1)
    assert involved(FOUR, Change(ChangeKind.SCALE_OUT, new, (0, 1, 2, 3, None))) == ((0,), (0, 4))


def test_a_slot_without_key_groups_is_involved_where_it_comes_or_goes() -> None:
    same = FOUR.assignment.slot_of
    comes = Change(ChangeKind.SCALE_OUT, Assignment(same, 5, 1), (0, 1, 2, 3, None))
    assert involved(FOUR, comes) == ((), (4,))
    five = replace(FOUR, assignment=Assignment(same, 5, 1))
    goes = Change(ChangeKind.SCALE_IN, Assignment(same, 4, 2), (0, 1, 2, 3))
    assert involved(five, goes) == ((4,), ())


# hysteresis


def test_hysteresis_waits_until_a_decision_was_wanted_often_enough() -> None:
    made = Hysteresis(Script(a=to(FOUR, 8)), 3)
    acted = [bool(made.decide(seen(float(t), a=FOUR))) for t in range(6)]
    assert acted == [False, False, True, False, False, True]


def test_hysteresis_starts_anew_when_the_wish_goes_away_or_turns() -> None:
    inner = Script()
    made = Hysteresis(inner, 2)
    acted = []
    for wish in [to(FOUR, 8), None, to(FOUR, 8), to(FOUR, 2), to(FOUR, 3)]:
        inner.wanted["a"] = wish
        acted.append(bool(made.decide(seen(0.0, a=FOUR))))
    assert acted == [False, False, False, False, True]


def test_hysteresis_does_not_count_cycles_in_which_the_operator_was_not_seen() -> None:
    made = Hysteresis(Script(a=to(FOUR, 8)), 2)
    assert not made.decide(seen(0.0, a=FOUR))
    made.decide(seen(1.0, b=FOUR))
    assert made.decide(seen(2.0, a=FOUR))


# cool-down


def test_cool_down_holds_the_slots_of_a_change_and_frees_the_others() -> None:
    inner = Script(a=balance(FOUR, 0, 1))
    made = Cooldown(inner, 5.0)
    first = made.decide(seen(0.0, a=FOUR)).changes["a"]
    made.applied("a", first, 1.0)
    now = after(FOUR, first)
    inner.wanted["a"] = balance(now, 1, 2)  # from slot 0
    held = made.decide(seen(2.0, a=now))
    assert not held
    assert held.reason == "Scripted. Held back by cool-down: a: slot 0 is cooling down."
    inner.wanted["a"] = balance(now, 4, 3)
    assert made.decide(seen(2.1, a=now))
    inner.wanted["a"] = balance(now, 1, 2)
    assert not made.decide(seen(5.9, a=now))
    assert made.decide(seen(6.0, a=now))


def test_cool_down_follows_a_slot_by_identity_when_it_is_renumbered() -> None:
    inner = Script(a=balance(FOUR, 6, 2))
    made = Cooldown(inner, 5.0)
    first = made.decide(seen(0.0, a=FOUR)).changes["a"]
    made.applied("a", first, 0.0)
    made.decide(seen(0.1, a=after(FOUR, first)))
    # Elsewhere slot 0 vanished and slot 3, which is cooling down, took its number.
    renumbered = view([10.0] * 6, slots=3, slot_ids=(3, 1, 2))
    inner.wanted["a"] = balance(renumbered, 0, 1)
    assert not made.decide(seen(1.0, a=renumbered))


def test_cool_down_covers_a_new_slot() -> None:
    out = Change(
        ChangeKind.SCALE_OUT, Assignment((0, 4, 1, 1, 2, 2, 3, 3), 5, 1), (0, 1, 2, 3, None)
    )
    inner = Script(a=out)
    made = Cooldown(inner, 5.0)
    made.applied("a", made.decide(seen(0.0, a=FOUR)).changes["a"], 0.0)
    now = after(FOUR, out)
    inner.wanted["a"] = balance(now, 1, 2)
    assert not made.decide(seen(1.0, a=now))


def test_cool_down_takes_no_notice_of_a_change_that_it_did_not_pass() -> None:
    inner = Script(a=balance(FOUR, 0, 1))
    made = Cooldown(inner, 5.0)
    made.applied("a", to(FOUR, 2), 0.0)
    assert made.decide(seen(1.0, a=FOUR))


def test_cool_down_locks_nothing_for_a_change_that_replaced_the_one_it_passed() -> None:
    inner = Script(a=balance(FOUR, 0, 1))
    made = Cooldown(inner, 5.0)
    made.decide(seen(0.0, a=FOUR))
    made.applied("a", balance(FOUR, 4, 3), 0.0)
    assert made.decide(seen(1.0, a=after(FOUR, balance(FOUR, 4, 3))))


def test_cool_down_locks_nothing_once_yet_another_assignment_holds() -> None:
    inner = Script(a=balance(FOUR, 0, 1))
    made = Cooldown(inner, 5.0)
    made.applied("a", made.decide(seen(0.0, a=FOUR)).changes["a"], 0.0)
    later = replace(FOUR, assignment=replace(FOUR.assignment, epoch=7))
    inner.wanted["a"] = balance(later, 0, 1)
    assert made.decide(seen(1.0, a=later))


# action limit


def test_at_most_so_many_changes_pass_in_a_minute() -> None:
    made = ActionLimit(Script(a=to(FOUR, 8)), 2)
    times = [0.0, 10.0, 20.0, 59.9, 60.0, 60.1, 70.0]
    acted = [bool(made.decide(seen(t, a=FOUR))) for t in times]
    assert acted == [True, True, False, False, True, False, True]


def test_the_upstream_operator_has_the_last_change_of_the_minute() -> None:
    made = ActionLimit(Script(b=to(FOUR, 8), a=to(FOUR, 8)), 1)
    decision = made.decide(seen(0.0, a=FOUR, b=FOUR))
    assert list(decision.changes) == ["a"]
    assert decision.rule == "script"


# freeze and advice


def test_a_frozen_policy_is_not_asked() -> None:
    inner = Script(a=to(FOUR, 8))
    made = Freezable(inner)
    made.freeze(until_s=10.0)
    assert made.decide(seen(9.9, a=FOUR)).rule == "frozen"
    assert inner.seen == []
    assert made.decide(seen(10.0, a=FOUR))
    made.freeze()
    assert not made.decide(seen(1e9, a=FOUR))
    made.thaw()
    assert made.decide(seen(1e9, a=FOUR))


def test_advice_keeps_its_changes_and_counts_as_nothing() -> None:
    made = AdviseOnly(Script(a=to(FOUR, 8)))
    advice = made.decide(seen(0.0, a=FOUR))
    assert not advice
    assert advice.changes["a"].assignment.slots == 8
    made.on = False
    assert made.decide(seen(0.0, a=FOUR))


# parameters


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Hysteresis(p, 0), "hysteresis: cycles=0 is out of range"),
        (lambda p: Cooldown(p, 0.0), "cool-down: cooldown_s=0.0 is out of range; use more than 0"),
        (lambda p: ActionLimit(p, 0), "action limit: per_minute=0 is out of range"),
    ],
)
def test_a_parameter_out_of_range_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(Script())
