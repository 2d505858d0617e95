"""Rivals of a fleet policy that knows utilities."""

from __future__ import annotations

from headgate.control.fleet.view import FleetJob, FleetOperator, FleetView
from headgate.core.utility import Intent, Metric, Utility
from headgate_lab.rivals.shares import EqualShares, FirstCome, Unmanaged

UTILITY = Utility(10.0, (Intent(Metric.LATENCY, 1.0),))


def job(latency_s: float, **capacity: float) -> FleetJob:
    operators = {name: FleetOperator(slots=2, capacity=c) for name, c in capacity.items()}
    return FleetJob(UTILITY, (latency_s,), operators)


def view(slots_max: int, time_s: float = 0.0, **jobs: FleetJob) -> FleetView:
    return FleetView(time_s, jobs, slots_max)


def test_unmanaged_jobs_keep_what_they_have():
    assert not Unmanaged().decide(view(100, a=job(9.0, work=1.0)))


def test_equal_shares_divides_the_budget_evenly_and_a_job_by_its_work():
    decision = EqualShares().decide(
        view(20, a=job(9.0, light=0.1, heavy=0.9), b=job(0.1, work=0.5))
    )
    assert decision.slots == {"a": {"heavy": 8}, "b": {"work": 10}}


def test_equal_shares_counts_a_saturated_operator_twice_since_its_need_is_not_known():
    decision = EqualShares().decide(view(12, a=job(9.0, one=0.9, full=1.0)))
    assert decision.slots["a"] == {"one": 4, "full": 8}


def test_equal_shares_divides_evenly_where_nothing_has_worked_yet():
    decision = EqualShares().decide(view(8, a=job(9.0, one=0.0, other=0.0)))
    assert decision.slots == {"a": {"one": 4, "other": 4}}


def test_equal_shares_leaves_each_operator_what_its_user_wants_at_least():
    bounded = FleetOperator(slots=4, capacity=0.1, slots_min=3)
    busy = FleetOperator(slots=4, capacity=0.9)
    late = FleetJob(UTILITY, (9.0,), {"bounded": bounded, "busy": busy})
    assert EqualShares().decide(view(6, a=late)).slots == {"a": {"busy": 3, "bounded": 3}}


def test_equal_shares_waits_until_its_last_division_is_seen_to_work():
    policy = EqualShares(every_s=60.0)
    assert policy.decide(view(20, a=job(9.0, work=0.5)))
    assert not policy.decide(view(40, 30.0, a=job(9.0, work=0.5)))
    assert policy.decide(view(40, 60.0, a=job(9.0, work=0.5)))


def test_first_come_serves_in_the_order_of_submission_whatever_the_priority():
    first, second = job(9.0, work=0.6), job(9.0, work=0.6)
    assert list(FirstCome().decide(view(100, z=first, a=second)).slots) == ["z"]


def test_first_come_gives_what_is_left_and_then_nothing():
    policy = FirstCome()
    assert policy.decide(view(5, a=job(9.0, work=0.6))).slots == {"a": {"work": 5}}
    assert not policy.decide(view(2, 100.0, a=job(9.0, work=0.6)))


def test_first_come_gives_nothing_where_nothing_is_wanted_and_the_budget_is_overdrawn():
    assert not FirstCome().decide(view(1, a=job(9.0, work=0.1)))


def test_first_come_leaves_a_job_that_meets_its_slo_alone():
    assert not FirstCome().decide(view(100, a=job(0.5, work=0.9)))
