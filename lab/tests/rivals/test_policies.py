"""Laws that every rival keeps, and three of the rivals that choose a number of slots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_views import seen, view
from policy_laws import PolicyLaws

from headgate.control.registry import policy
from headgate.control.slots.threshold import Threshold
from headgate.core.errors import ConfigError
from headgate.core.installed import POLICIES, installed
from headgate_lab.rivals.dhalion import Dhalion
from headgate_lab.rivals.ds2 import Ds2
from headgate_lab.rivals.predictive import Predictive

EAGER = {
    "conttune": "conttune(interval_s=0.5)",
    "daedalus": "daedalus(interval_s=0.5, warmup_s=0, grace_s=0, settle_s=0)",
    "dhalion": "dhalion(interval_s=0.5)",
    "drs": "drs(0.2, interval_s=0.5)",
    "drs-lb": "drs-lb(0.2, interval_s=0.5)",
    "ds2": "ds2(interval_s=0.5, warmup=0)",
    "hpa": "hpa",
    "packing": "packing",
    "predictive": "predictive",
}


def test_every_rival_is_known_by_name() -> None:
    assert set(EAGER) == set(installed(POLICIES))


@pytest.mark.parametrize("text", EAGER.values())
class TestLaws(PolicyLaws):
    pass


@pytest.mark.parametrize("limits", ["", "(hysteresis=2, cooldown_s=30, per_minute=6)"])
@pytest.mark.parametrize("name", EAGER)
def test_the_name_of_a_policy_makes_the_same_policy_again(name: str, limits: str) -> None:
    made = policy(name + limits)
    assert policy(made.name).name == made.name


# predictive


def test_predictive_is_threshold_where_nothing_waits_and_no_window_fills() -> None:
    band = (0.9, 0.7, 0.45)
    for rate in (1.0, 40.0, 80.0, 95.0, 300.0):
        observation = seen(0.0, a=view([rate] * 8, slots=4))
        one, other = Predictive(*band).decide(observation), Threshold(*band).decide(observation)
        assert one.changes == other.changes


def test_predictive_counts_what_waits() -> None:
    # 1.5 slots of arrivals are 75 % of 2; 500 records to be done in 5 s are one slot more.
    made = Predictive(catch_up_s=5.0)
    rates = [37.5] * 4
    assert not made.decide(seen(0.0, a=view(rates, slots=2)))
    decision = made.decide(seen(1.0, a=view(rates, slots=2, backlog=125.0)))
    assert decision.changes["a"].assignment.slots == 4
    assert decision.numbers["a.pending"] == pytest.approx(1.0)


def test_predictive_sees_the_window_fill_after_a_step() -> None:
    made = Predictive(window_s=10.0, ahead_s=9.0)
    for second in range(12):
        assert not made.decide(seen(100.0 + second, a=view([18.75] * 8, slots=2)))
    # Twice the arrivals: 3 slots now; 10 s at the new rate hold twice what 9 s at the old and 1 s at
    # the new one do, so 3 x 20 / 11 then: ceil(5.45 / 0.75).
    risen = made.decide(seen(112.0, a=view([37.5] * 8, slots=2)))
    assert risen.numbers["a.current"] == pytest.approx(3.0)
    assert risen.numbers["a.foreseen"] == pytest.approx(3.0 * 20 / 11)
    assert risen.changes["a"].assignment.slots == 8


def test_predictive_lets_slots_go_only_when_their_work_has_gone() -> None:
    made = Predictive(window_s=10.0, ahead_s=10.0)
    for second in range(12):
        made.decide(seen(100.0 + second, a=view([75.0] * 4, slots=4)))
    # Half the arrivals are 1.5 slots; that they will be 0.75 when the window has emptied is no reason.
    fallen = made.decide(seen(112.0, a=view([37.5] * 4, slots=4)))
    assert fallen.changes["a"].assignment.slots == 2


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"window_s": -1.0}, "window_s"),
        ({"ahead_s": -1.0}, "ahead_s"),
        ({"catch_up_s": 0.0}, "catch_up_s"),
        ({"low": 0.9}, "low"),
    ],
)
def test_predictive_refuses_what_is_out_of_range(bad: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=f"predictive: {named}="):
        Predictive(**bad)


# ds2


def test_ds2_gives_every_operator_of_a_chain_its_slots_in_one_decision() -> None:
    # a gets 400/s, processes 200/s of it and sends 2 records for each: b sees 400/s and will get
    # 800/s as soon as a keeps up.
    a = view([100.0] * 4, 100.0, slots=2, utilisation=view([1.0] * 4).utilisation * 0 + 1.0)
    b = view([100.0] * 4, 300.0, slots=1)
    made = Ds2(interval_s=1.0, warmup=0)
    chain = {"b": ("a",)}
    assert not made.decide(seen(0.0, chain, a=a, b=b))
    decision = made.decide(seen(1.0, chain, a=a, b=b))
    assert {n: c.assignment.slots for n, c in decision.changes.items()} == {"a": 4, "b": 3}


def test_ds2_scales_in_as_well() -> None:
    made = Ds2(interval_s=1.0, warmup=0)
    idle = view([25.0] * 4, 100.0, slots=4)
    assert not made.decide(seen(0.0, a=idle))
    assert made.decide(seen(1.0, a=idle)).changes["a"].assignment.slots == 1


def test_ds2_ignores_its_warm_up_after_a_change() -> None:
    made = Ds2(interval_s=1.0, warmup=1)
    busy = view([100.0] * 4, 100.0, slots=2)
    decisions = [made.decide(seen(float(t), a=busy)) for t in range(3)]
    assert [bool(d) for d in decisions] == [False, False, True]
    made.applied("a", decisions[2].changes["a"], 0.1)
    assert [bool(made.decide(seen(float(t), a=busy))) for t in range(3, 6)] == [False, False, True]


def test_ds2_acts_on_the_median_of_its_activation_window() -> None:
    made = Ds2(interval_s=1.0, warmup=0, activation=3)
    # The first interval is two cycles long, the others one.
    rates = [75.0, 75.0, 25.0, 100.0]
    decisions = [
        made.decide(seen(float(t), a=view([rate] * 4, 100.0, slots=2)))
        for t, rate in enumerate(rates)
    ]
    assert [bool(d) for d in decisions] == [False, False, False, True]
    assert decisions[3].changes["a"].assignment.slots == 3


def test_ds2_waits_until_the_whole_job_can_be_seen() -> None:
    made = Ds2(interval_s=1.0, warmup=0)
    busy = view([100.0] * 4)
    for time_s in range(4):
        assert not made.decide(seen(float(time_s), {"b": ("a",)}, b=busy))


# dhalion


def looks(made: Dhalion, one: object, start_s: float = 0.0) -> object:
    """Two cycles, the second at the end of an interval of 1 s."""
    assert not made.decide(seen(start_s, a=one))
    return made.decide(seen(start_s + 1.0, a=one))


def test_dhalion_doubles_an_operator_under_constant_backpressure() -> None:
    pressed = view([100.0] * 8, 100.0, slots=2, backlog=100.0)
    decision = looks(Dhalion(interval_s=1.0), pressed)
    assert decision.rule == "under-provisioned -> rescale"
    assert decision.changes["a"].assignment.slots == 4


def test_dhalion_grows_by_backpressure_over_the_time_without() -> None:
    made = Dhalion(interval_s=3.0)
    pressed = view([100.0] * 16, 100.0, slots=8, backlog=100.0)
    calm = view([100.0] * 16, 100.0, slots=8)
    for time_s, one in enumerate([calm, calm, pressed]):
        assert not made.decide(seen(float(time_s), a=one))
    # 2 of 4 cycles: 8 x (1 + 1/1) is 16; 1 of 4: 8 x (1 + 1/3) is 11.
    decision = made.decide(seen(3.0, a=calm))
    assert decision.changes["a"].assignment.slots == 11


def test_dhalion_moves_groups_away_from_a_slot_that_gets_far_more() -> None:
    skewed = view([90.0, 90.0, 10.0, 10.0, 10.0, 10.0], 100.0, slots=3, backlog=100.0)
    decision = looks(Dhalion(interval_s=1.0), skewed)
    assert decision.rule == "skew -> balance"
    assert decision.changes["a"].source == 0


def test_dhalion_moves_groups_away_from_a_slot_that_is_far_slower() -> None:
    slow = view([40.0] * 6, [30.0, 100.0, 100.0], slots=3, backlog=100.0)
    decision = looks(Dhalion(interval_s=1.0), slow)
    assert decision.rule == "slow slot -> balance"
    assert decision.changes["a"].source == 0


def test_dhalion_shrinks_an_operator_whose_queues_stayed_empty() -> None:
    decision = looks(Dhalion(interval_s=1.0), view([1.0] * 20, 100.0, slots=10))
    assert decision.rule == "over-provisioned -> rescale"
    assert decision.changes["a"].assignment.slots == 8


def test_dhalion_leaves_short_queues_alone() -> None:
    assert not looks(Dhalion(interval_s=1.0), view([1.0] * 4, 100.0, slots=2, backlog=20.0))


def test_dhalion_does_not_repeat_what_did_not_help() -> None:
    made = Dhalion(interval_s=1.0, blacklist_s=10.0)
    skewed = view([90.0, 90.0, 10.0, 10.0, 10.0, 10.0], 100.0, slots=3, backlog=100.0)
    assert looks(made, skewed).rule == "skew -> balance"
    assert looks(made, skewed, 2.0).rule == "under-provisioned -> rescale"
    # Both are blacklisted now; after their time the first is tried again.
    assert not looks(made, skewed, 4.0)
    assert looks(made, skewed, 20.0).rule == "skew -> balance"


def test_dhalion_repeats_what_helped_a_little() -> None:
    made = Dhalion(interval_s=1.0)
    skewed = view([90.0, 90.0, 10.0, 10.0, 10.0, 10.0], 100.0, slots=3, backlog=100.0)
    assert looks(made, skewed).rule == "skew -> balance"
    assert not made.decide(seen(2.0, a=replace(skewed, backlog=skewed.backlog * 0.0)))
    assert made.decide(seen(3.0, a=skewed)).rule == "skew -> balance"


def test_dhalion_does_not_shrink_again_what_it_had_to_grow() -> None:
    made = Dhalion(interval_s=1.0)
    calm = view([1.0] * 20, 100.0, slots=10)
    assert looks(made, calm).rule == "over-provisioned -> rescale"
    assert looks(made, view([100.0] * 20, 100.0, slots=8, backlog=100.0), 2.0)
    assert not looks(made, calm, 4.0)
