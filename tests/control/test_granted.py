"""A policy within a grant: what it may spend, what it asks for, and what it gives up."""

from __future__ import annotations

import pytest
from control_views import absurd_views, check, seen, view
from hypothesis import given
from hypothesis import strategies as st

from headgate.control import registry
from headgate.control.fleet.grant import Grant
from headgate.control.fleet.granted import Granted, GrantedPools, merged
from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import Interval, OperatorInterval
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.unified import Unified
from headgate.core.assignment import Assignment

HEAVY = [40.0] * 8
"""Of two slots that serve 100 each: four key groups at 160."""

LATE = {"latency_s": 3.0}


def granted(slots, policy=None):
    made = Granted(policy or StreamSwitch(0.0))
    made.grant = Grant({"op": slots})
    return made


def test_without_a_grant_the_policy_decides_as_it_would():
    alone = StreamSwitch(0.0).decide(seen(1.0, op=view(HEAVY, **LATE)))
    assert Granted(StreamSwitch(0.0)).decide(seen(1.0, op=view(HEAVY, **LATE))) == alone
    assert alone.changes["op"].assignment.slots == 3


def test_a_policy_spends_what_is_granted_and_no_more():
    policy = granted(3)
    first = policy.decide(seen(1.0, op=view(HEAVY, **LATE)))
    assert first.changes["op"].assignment.slots == 3
    second = policy.decide(seen(2.0, op=view(HEAVY, slots=3, **LATE)))
    assert second.changes.get("op") is None or second.changes["op"].assignment.slots == 3


def test_what_it_would_like_beyond_its_grant_is_its_request():
    policy = granted(2)
    policy.decide(seen(1.0, op=view(HEAVY, **LATE)))
    assert policy.requests == {"op": 4}
    many = granted(2, Unified(0.0))
    many.decide(seen(1.0, op=view(HEAVY, **LATE)))
    assert many.requests["op"] > 3


def test_a_request_stands_for_a_while_and_ends_with_slots_given_back():
    policy = granted(2)
    policy.decide(seen(1.0, op=view(HEAVY, **LATE)))
    policy.decide(seen(5.0, op=view([20.0] * 8)))
    assert policy.requests == {"op": 4}, "one good cycle says little"
    policy.decide(seen(12.0, op=view([20.0] * 8)))
    assert policy.requests == {}
    policy.decide(seen(13.0, op=view(HEAVY, **LATE)))
    assert policy.requests == {"op": 4}
    assert policy.decide(seen(14.0, op=view([1.0] * 8))).changes["op"].assignment.slots == 1
    assert policy.requests == {}


@pytest.mark.parametrize(("after_s", "stands"), [(9.9, True), (10.0, False), (10.1, False)])
def test_a_request_stands_for_ten_seconds(after_s, stands):
    policy = granted(2)
    policy.decide(seen(1.0, op=view(HEAVY, **LATE)))
    policy.decide(seen(1.0 + after_s, op=view([20.0] * 8)))
    assert bool(policy.requests) == stands


def test_a_policy_is_asked_64_times_for_one_slot_more_and_no_more_often():
    policy = granted(2)
    policy.decide(seen(1.0, op=view([90.0] * 160, **LATE)))
    assert policy.requests == {"op": 2 + 64}


def test_asking_what_it_would_like_changes_nothing_about_what_it_decides():
    asked, plain = granted(2, Unified(0.0)), Unified(0.0)
    rates = ([10.0] * 8, [20.0] * 8, HEAVY, HEAVY)
    for number, each in enumerate(rates):
        within = view(each, latency_s=3.0, slots_max=2)
        free = view(each, latency_s=3.0)
        assert asked.decide(seen(float(number), op=free)) == plain.decide(
            seen(float(number), op=within)
        )


def test_what_is_no_longer_granted_is_merged_away_least_loaded_slots_first():
    rates = [50.0, 50.0, 1.0, 1.0, 30.0, 30.0, 2.0, 2.0]
    observed = view(rates, slots=4)
    policy = granted(3)
    (change,) = policy.decide(seen(1.0, op=observed)).changes.values()
    check(seen(1.0, op=observed), policy.decide(seen(1.0, op=observed)))
    # the slots of the first and of the third pair are as they were
    kept = {change.assignment.slot_of[0], change.assignment.slot_of[4]}
    light = {change.assignment.slot_of[g] for g in (2, 3, 6, 7)}
    assert change.assignment.slots == 3
    assert len(light) == 1
    assert not light & kept


def test_a_policy_that_cannot_be_copied_has_no_requests_and_is_held_to_its_grant():
    class Own(StreamSwitch):
        def __deepcopy__(self, memo):
            raise TypeError

    policy = granted(2, Own(0.0))
    decision = policy.decide(seen(1.0, op=view(HEAVY, **LATE)))
    assert policy.requests == {}
    assert decision.changes.get("op") is None or decision.changes["op"].assignment.slots <= 2


@given(
    absurd_views(), st.integers(1, 12), st.sampled_from(["streamswitch", "unified", "threshold"])
)
def test_no_policy_ever_decides_beyond_its_grant(observed, slots, name):
    policy = granted(slots, registry.policy(name))
    observation = seen(1.0, op=observed)
    decision = policy.decide(observation)
    check(observation, decision) if observed.slots <= slots else None
    for change in decision.changes.values():
        assert change.assignment.slots <= slots
    if observed.slots > min(slots, observed.slots_max):
        assert decision.changes["op"].assignment.slots == min(slots, observed.slots_max)


@given(absurd_views(), st.integers(1, 12))
def test_merging_keeps_every_key_group_and_gives_up_as_many_slots_as_it_must(observed, slots):
    if slots < observed.slots:
        change = merged(observed, slots)
        assert change.assignment.slots == slots
        assert change.assignment.key_groups == observed.assignment.key_groups
        assert len(set(change.survivors)) == slots


class FailsBeyond(StreamSwitch):
    """Fails where more than two slots are allowed."""

    def decide(self, observation):
        if observation.operators["op"].slots_max > 2:
            raise ValueError("too many")
        return super().decide(observation)


def test_a_policy_that_fails_without_its_grant_decides_within_it_and_requests_nothing():
    policy = granted(2, FailsBeyond(0.0))
    assert policy.decide(seen(1.0, op=view(HEAVY, **LATE))).rule
    assert policy.requests == {}


# --- pools ---------------------------------------------------------------------------------------


def interval(rows, active=1, pool=8):
    one = OperatorInterval(active, pool, 0.01, float(rows), from_source=float(rows))
    return Interval(1.0, float(rows), {"map": one})


def test_a_pool_is_as_large_as_its_grant_and_asks_for_the_rest():
    pools = GrantedPools(Psps())
    pools.grant = Grant({"map": 3})
    assert pools.decide(interval(550)).active == {"map": 3}
    assert pools.requests == {"map": 6}
    assert not pools.decide(interval(550, active=3))
    assert pools.requests == {"map": 6}
    pools.grant = Grant({"map": 8})
    assert pools.decide(interval(550, active=3)).active == {"map": 6}
    assert pools.requests == {}


@pytest.mark.parametrize("slots", [1, 4])
def test_the_name_is_the_policys(slots):
    assert granted(slots).name == "streamswitch(0)"
    assert GrantedPools(Psps()).name == "psps(naive)"


@pytest.mark.parametrize("shares", [(0, 1), (0, 1, 2), (0, 1, 2, 3)])
def test_slots_that_share_a_key_group_are_given_up_as_well(shares):
    held = Assignment((0, 1, 2, 3), 4, 5, {0: shares})
    change = merged(view([4.0] * 4, assignment=held), 1)
    assert change.assignment == Assignment((0, 0, 0, 0), 1, 6)
