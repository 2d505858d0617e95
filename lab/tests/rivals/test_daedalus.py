"""Daedalus: capacities, forecasts and recoveries make a number of slots."""

from __future__ import annotations

import math

import numpy as np
import pytest
from control_views import seen, view

from headgate.control.decision import Decision
from headgate.control.observation import OperatorView
from headgate.control.slots.rescaling import rescaled
from headgate.core.errors import ConfigError
from headgate_lab.rivals.daedalus import Daedalus, recovery_s

MU = 100.0
QUICK = {"interval_s": 10.0, "grace_s": 0.0, "settle_s": 0.0, "warmup_s": 0.0}


def loaded(rate: float, slots: int = 2, *, skew: float = 0.0, waiting: float = 0.0) -> OperatorView:
    """Return an operator that gets `rate`; slots of 100 records/s are as busy as that makes them."""
    used = np.full(slots, rate / MU / slots)
    used[1:] -= skew
    return view([rate / 16] * 16, MU, slots=slots, utilisation=used, backlog=waiting / 16)


def last(made: Daedalus, views: list[OperatorView], start_s: float = 0.0) -> Decision:
    """Return the decision about the last of some views, one per second; nothing is decided before."""
    decisions = [made.decide(seen(start_s + s, it=one)) for s, one in enumerate(views)]
    assert not any(decisions[:-1])
    return decisions[-1]


def slots_after(decision: Decision) -> int | None:
    return decision.changes["it"].assignment.slots if decision else None


def test_the_fewest_slots_that_sustain_the_workload_are_taken_once_per_interval() -> None:
    out = last(Daedalus(**QUICK), [loaded(350.0)] * 11)
    assert slots_after(out) == 4
    assert slots_after(last(Daedalus(**QUICK), [loaded(90.0, 6)] * 11)) == 1
    assert not last(Daedalus(**QUICK), [loaded(150.0)] * 11)
    assert out.numbers == pytest.approx(
        {"it.workload": 350.0, "it.foreseen": 350.0, "it.capacity": 400.0, "it.recovery_s": 311.0}
    )
    assert out.reason == (
        "it gets 350.0 records/s, a line foresees at most 350.0, and 4 slots sustain 400.0 and have "
        "caught up 311.0 s after the change: 2 -> 4 slots."
    )


def test_skew_is_taken_into_account() -> None:
    # Of six slots one is 0.2 busier than the others: they sustain 500/s and not 600.
    even, skewed = loaded(290.0, 6), loaded(290.0, 6, skew=0.2)
    calm = QUICK | {"checkpoint_s": 0.0, "downtime_s": 0.0}
    assert slots_after(last(Daedalus(**calm), [even] * 11)) == 3
    assert slots_after(last(Daedalus(**calm), [skewed] * 11)) == 4


def test_a_change_must_sustain_the_whole_horizon_and_what_is_there_only_its_recovery() -> None:
    # A line from 100 to 110 in 10 s: 160 after a minute, 199 after 100 s.
    rising = [loaded(100.0 + s) for s in range(11)]
    short = QUICK | {"horizon_s": 90.0, "checkpoint_s": 0.0, "downtime_s": 0.0}
    long = short | {"horizon_s": 600.0}
    assert not last(Daedalus(**short), rising)
    # Two slots are there and will do for as long as it takes to recover: no time at all.
    assert not last(Daedalus(**long), rising)
    from_one = [loaded(100.0 + s, 1) for s in range(11)]
    assert slots_after(last(Daedalus(**short), from_one)) == 2
    assert slots_after(last(Daedalus(**long), from_one)) == 6


def test_what_does_not_sustain_the_workload_of_now_is_passed_over_though_less_is_foreseen() -> None:
    # From 300 to 200 in 10 s, so less than 190 from now on; 250 in the mean.
    falling = [loaded(300.0 - 10.0 * s, 3) for s in range(11)]
    assert not last(Daedalus(**QUICK), falling)


def test_slots_that_do_not_sustain_the_forecast_until_they_recover_are_too_few() -> None:
    # 120 and 180 by turns, which an autoregression knows after 60 s; two slots of 80 sustain 160.
    turns = [
        view([rate / 16] * 16, 80.0, utilisation=np.full(2, rate / 160.0))
        for rate in [120.0, 180.0] * 45 + [120.0]
    ]
    calm = QUICK | {"interval_s": 30.0, "checkpoint_s": 0.0, "downtime_s": 0.0}
    decision = last(Daedalus(**calm), turns)
    assert "arima" in decision.reason
    assert slots_after(decision) == 3


def test_a_number_that_recovers_too_late_is_passed_over() -> None:
    views = [loaded(350.0)] * 11
    # 40 s of 350 to catch up (30 s of downtime, a checkpoint of 10): 280 s with 50/s to spare.
    assert slots_after(last(Daedalus(target_recovery_s=312.0, **QUICK), views)) == 4
    assert slots_after(last(Daedalus(target_recovery_s=310.0, **QUICK), views)) == 5
    quick = QUICK | {"checkpoint_s": 0.0}
    assert slots_after(last(Daedalus(target_recovery_s=310.0, **quick), views)) == 4
    late = Daedalus(target_recovery_s=310.0, **quick)
    assert slots_after(last(late, [loaded(350.0, waiting=4000.0)] * 11)) == 5


def test_all_slots_are_taken_where_no_number_is_enough() -> None:
    decision = last(Daedalus(target_recovery_s=0.0, **QUICK), [loaded(350.0)] * 11)
    assert slots_after(decision) == 16
    assert "no number of slots sustains that and recovers in time: 2 -> 16" in decision.reason
    assert "it.recovery_s" not in decision.numbers


def test_no_scale_in_while_more_than_a_second_of_work_waits() -> None:
    assert not last(Daedalus(**QUICK), [loaded(90.0, 6, waiting=601.0)] * 11)
    assert slots_after(last(Daedalus(**QUICK), [loaded(90.0, 6, waiting=599.0)] * 11)) == 1


def test_nothing_changes_within_the_grace_of_a_change_and_of_the_start() -> None:
    made = Daedalus(**QUICK | {"grace_s": 25.0})
    decision = last(made, [loaded(350.0)] * 31)
    assert slots_after(decision) == 4
    made.applied("it", decision.changes["it"], 0.5)
    assert slots_after(last(made, [loaded(750.0, 4)] * 30, 31.0)) == 8


def test_soon_after_a_change_only_what_must_be_is_done() -> None:
    settling = QUICK | {"settle_s": 45.0}
    # Idle slots stay until all is settled; slots that are not enough do not.
    assert slots_after(last(Daedalus(**settling), [loaded(90.0, 6)] * 51)) == 1
    assert slots_after(last(Daedalus(**settling), [loaded(350.0)] * 11)) == 4
    # Nor do slots that will not be enough in the next interval.
    soon = [loaded(170.0 + 2 * s) for s in range(11)]
    assert slots_after(last(Daedalus(**settling), soon)) is not None
    later = [loaded(150.0 + 2 * s) for s in range(11)]
    assert not last(Daedalus(**settling), later)
    assert last(Daedalus(**QUICK), later)


def test_while_slots_warm_up_their_utilisation_counts_for_nothing() -> None:
    made = Daedalus(**QUICK | {"warmup_s": 25.0})
    cold = view([350.0 / 16] * 16, MU / 10, utilisation=np.full(2, 1.0))
    assert slots_after(last(made, [cold] * 25 + [loaded(350.0)] * 6)) == 4


def test_an_operator_whose_capacity_is_not_known_is_left_alone() -> None:
    assert not last(Daedalus(**QUICK), [view([50.0] * 16, 0.0)] * 11)


def test_downtimes_are_learned_from_changes_in_the_same_direction() -> None:
    made = Daedalus(target_recovery_s=110.0, **QUICK | {"checkpoint_s": 0.0})
    one = loaded(350.0)
    # 30 s of 350/s: 70 s with 150/s to spare.
    assert slots_after(last(made, [one] * 11)) == 5
    smaller, larger = rescaled(one, 1), rescaled(one, 3)
    assert smaller is not None
    assert larger is not None
    made.applied("it", smaller, 0.0)
    assert slots_after(last(made, [one] * 10, 11.0)) == 5
    # Ten seconds now, and then the mean of 10 and 14: 70 and 84 s with 50/s to spare.
    made.applied("it", larger, 10.0)
    first = last(made, [one] * 10, 21.0)
    assert first.numbers["it.recovery_s"] == pytest.approx(10.0 + 71.0)
    made.applied("it", larger, 14.0)
    again = last(made, [one] * 10, 31.0)
    assert again.numbers["it.recovery_s"] == pytest.approx(12.0 + 85.0)
    made.applied("other", larger, 500.0)
    assert slots_after(last(made, [one] * 10, 41.0)) == 4


def test_before_one_was_seen_a_scale_in_is_taken_to_stop_for_half_as_long_as_a_scale_out() -> None:
    # 15 s of 90/s, with 10/s to spare.
    decision = last(Daedalus(**QUICK | {"checkpoint_s": 0.0}), [loaded(90.0, 6)] * 11)
    assert decision.numbers["it.recovery_s"] == pytest.approx(15.0 + 136.0)


def test_samples_that_were_missed_are_those_of_the_next_one() -> None:
    # After 30 s without an observation the line has 30 values at 310: it hardly rises.
    made = Daedalus(**QUICK | {"interval_s": 40.0, "checkpoint_s": 0.0, "downtime_s": 0.0})
    rising = [loaded(300.0 + s) for s in range(11)]
    assert not any(made.decide(seen(float(s), it=one)) for s, one in enumerate(rising))
    decision = made.decide(seen(40.0, it=rising[-1]))
    assert decision.numbers["it.workload"] == pytest.approx((sum(range(300, 311)) + 30 * 310) / 41)


def test_a_slot_that_failed_is_learned_anew() -> None:
    made = Daedalus(**QUICK)
    slow = view([350.0 / 16] * 16, MU / 2, utilisation=np.full(2, 1.0))
    for second in range(10):
        assert not made.decide(seen(float(second), it=slow))
    made.slot_failed("it", 0)
    made.slot_failed("it", 1)
    made.slot_failed("other", 0)
    assert slots_after(made.decide(seen(10.0, it=loaded(350.0)))) == 4


@pytest.mark.parametrize(
    ("capacity", "downtime_s", "waiting", "expected_s"),
    [
        (20.0, 0.0, 0.0, 1.0),
        (20.0, 3.0, 0.0, 7.0),
        (20.0, 0.5, 0.0, 1.5),
        (20.0, 0.0, 25.0, 3.0),
        (20.0, 3.0, 1000.0, math.inf),
        (10.0, 0.0, 0.0, math.inf),
        (20.0, 500.0, 0.0, math.inf),
    ],
)
def test_recovery_takes_the_downtime_and_what_it_takes_to_catch_up(
    capacity: float, downtime_s: float, waiting: float, expected_s: float
) -> None:
    # Ten records per second, and what is caught up with must be more than what waits.
    assert recovery_s(capacity, np.full(60, 10.0), downtime_s, waiting) == pytest.approx(expected_s)


def test_a_second_in_which_more_arrives_than_is_sustained_adds_nothing() -> None:
    assert recovery_s(20.0, np.array([0.0, 99.0, 0.0, 0.0]), 0.0, 25.0) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_s", 0.0),
        ("horizon_s", 0.0),
        ("horizon_s", 1e300),
        ("checkpoint_s", 1e300),
        ("grace_s", -1.0),
        ("downtime_s", -1.0),
    ],
)
def test_a_parameter_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"daedalus: {name}="):
        Daedalus(**{name: value})
