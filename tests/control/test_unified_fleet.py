"""The unified policy over a fleet: what jobs will need, and who gets it under a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headgate.control.fleet.unified_fleet import UnifiedFleet, UnifiedFleetParameters, _service_rate
from headgate.control.fleet.view import FleetDecision, FleetJob, FleetOperator, FleetView
from headgate.core.utility import Intent, Metric, Utility

NOW = UnifiedFleetParameters(epsilon=0.2, ahead_s=0.0, observe_s=0.0)
"""Without a forecast, so that a single round says it all."""

#  source ─► work: 10 records/s and slot; a record alone takes 0.1 s, the bound is 0.2 s


def job(
    rate: float, slots: int, *, priority: float = 35.0, latency_s: float = 0.1, beside: int = 1
) -> FleetJob:
    """A job with one operator that works, and one of `beside` slots with next to nothing to do."""
    capacity = min(1.0, rate / (10.0 * slots))
    operators = {
        "source": FleetOperator(1, 0.0, source=True),
        "work": FleetOperator(slots, capacity, slots_max=40),
        "pass": FleetOperator(beside, min(1.0, rate / (1000.0 * beside))),
    }
    utility = Utility(priority, (Intent(Metric.LATENCY, 0.2),))
    return FleetJob(utility, (latency_s,), operators, rate)


def decided(jobs: Mapping[str, FleetJob], budget: int = 1000) -> FleetDecision:
    return UnifiedFleet(NOW).decide(FleetView(0.0, jobs, budget))


def test_all_jobs_that_are_short_get_slots_in_one_decision() -> None:
    """A slot may be given 5 records/s: 20 and 60 of them want 4 and 12, and a fifth of margin."""
    decision = decided({"a": job(20.0, 3), "b": job(60.0, 10), "c": job(10.0, 4)})
    assert decision.slots == {"a": {"work": 5}, "b": {"work": 15}}


def test_a_job_is_given_slots_before_it_misses_its_slo() -> None:
    policy = UnifiedFleet(UnifiedFleetParameters(epsilon=0.2, observe_s=0.0))
    rising = [policy.decide(FleetView(t, {"a": job(20.0 + t / 4, 8)}, 99)) for t in (0.0, 30.0)]
    ahead = policy.decide(FleetView(60.0, {"a": job(35.0, 8)}, 99))
    assert not any(rising)
    assert ahead.slots["a"]["work"] > 8
    assert not decided({"a": job(35.0, 8)})


def test_the_first_fifteen_minutes_are_only_watched() -> None:
    policy = UnifiedFleet()
    assert not policy.decide(FleetView(0.0, {"a": job(60.0, 10)}, 99))
    assert not policy.decide(FleetView(890.0, {"a": job(60.0, 10)}, 99))
    assert policy.decide(FleetView(900.0, {"a": job(60.0, 10)}, 99))


def test_a_change_gives_back_what_the_same_job_can_spare() -> None:
    alone = decided({"a": job(20.0, 8, beside=30)})
    with_it = decided({"a": job(20.0, 3, beside=30)})
    assert not alone
    assert with_it.slots["a"]["pass"] < 30
    assert with_it.slots["a"]["work"] == 5


def test_where_the_budget_is_short_others_give_back_what_they_can_spare() -> None:
    jobs = {"short": job(20.0, 3), "rich": job(10.0, 30)}
    assert decided(jobs, 100).slots == {"short": {"work": 5}}
    tight = decided(jobs, 37)
    assert tight.slots["rich"]["work"] < 30
    assert tight.slots["short"] == {"work": 5}


def test_margins_shrink_until_all_fit() -> None:
    """Each wants 2 more slots, and 2 are left: one for each is what they need."""
    jobs = {"a": job(20.0, 3, priority=10.0), "b": job(20.0, 3, priority=90.0)}
    assert decided(jobs, 14).slots == {"a": {"work": 5}, "b": {"work": 5}}
    bare = decided(jobs, 12)
    assert bare.slots == {"a": {"work": 4}, "b": {"work": 4}}
    assert bare.rule == "forecast -> reconfiguration"


def test_where_not_all_fit_the_one_with_most_utility_per_slot_is_served_first() -> None:
    """Each needs one more slot, and one is left."""
    jobs = {"a": job(20.0, 3, priority=10.0), "b": job(20.0, 3, priority=90.0)}
    decision = decided(jobs, 11)
    assert decision.slots == {"b": {"work": 4}}
    assert decision.rule == "short -> division"


def behind(job: FleetJob, backlog_s: float, capacity: float | None = None) -> FleetJob:
    """Return the job with a backlog, and perhaps with slots that are busy for another share."""
    work = job.operators["work"]
    work = replace(work, backlog_s=backlog_s, capacity=capacity or work.capacity)
    return replace(job, operators={**job.operators, "work": work})


def test_who_cannot_be_served_shares_what_is_left_by_need() -> None:
    """13 slots serve all that comes. With their backlogs a and b need 9 each, and share 9 beside c."""
    jobs = {
        "a": behind(job(18.0, 4), 190.0),
        "b": behind(job(24.0, 5), 120.0),
        "c": job(18.0, 2),
    }
    assert decided(jobs, 6 + 13).slots == {"a": {"work": 5}, "b": {"work": 4}, "c": {"work": 4}}


def test_where_slots_cannot_serve_all_that_comes_the_rest_goes_to_one_job() -> None:
    """Of 12 slots c is given the 4 that it needs. Shares of the other 8 would serve neither a nor b."""
    decision = decided({"a": job(39.0, 4), "b": job(59.0, 6), "c": job(18.0, 2)}, 6 + 12)
    assert decision.slots == {"a": {"work": 7}, "b": {"work": 1}, "c": {"work": 4}}


def test_slots_that_catch_up_are_as_fast_as_before() -> None:
    """Eight busy slots have 24 records/s to serve and 56 that waited: the input is no measure of them."""
    policy = UnifiedFleet(replace(NOW, observe_s=10.0))
    policy.decide(FleetView(0.0, {"a": behind(job(24.0, 8), 20.0, 1.0)}, 99))
    decision = policy.decide(FleetView(10.0, {"a": behind(job(24.0, 8), 13.0, 1.0)}, 99))
    assert decision.rule == "projected within"


def test_right_after_a_change_busy_slots_are_as_fast_as_before() -> None:
    """60 records/s at five slots that each serve 10 want 12 slots, and a fifth of margin."""
    policy = UnifiedFleet(NOW)
    policy.decide(FleetView(0.0, {"a": job(20.0, 3)}, 99))
    assert policy.decide(FleetView(10.0, {"a": job(60.0, 5)}, 99)).slots["a"]["work"] == 15


def test_a_job_that_falls_behind_is_not_left_alone() -> None:
    """Its last change is half a minute ago, and its operator works all the time."""
    policy = UnifiedFleet(NOW)
    assert policy.decide(FleetView(0.0, {"a": job(20.0, 3)}, 99))
    assert policy.decide(FleetView(30.0, {"a": job(60.0, 5)}, 99)).slots["a"]["work"] > 5


def test_a_division_is_left_alone_for_a_while() -> None:
    policy = UnifiedFleet(NOW)
    a = job(20.0, 3, priority=10.0)
    assert policy.decide(FleetView(0.0, {"a": a, "b": job(20.0, 3, priority=90.0)}, 11))
    after = {"a": a, "b": job(20.0, 4, priority=90.0)}
    rules = [policy.decide(FleetView(t, after, 11)).rule for t in (10.0, 70.0)]
    assert rules == ["divided", "short -> division"]


def test_a_job_is_left_alone_while_its_last_change_takes_effect() -> None:
    policy = UnifiedFleet(NOW)
    first = policy.decide(FleetView(0.0, {"a": job(20.0, 3)}, 99))
    assert first
    assert not policy.decide(FleetView(30.0, {"a": job(40.0, 5)}, 99))
    assert policy.decide(FleetView(60.0, {"a": job(40.0, 5)}, 99))


def test_a_backlog_that_grows_says_how_much_too_slow_an_operator_is() -> None:
    """Two slots serve 20 of 40 records/s, so that each 10 s leave 10 s of work behind."""
    policy = UnifiedFleet(UnifiedFleetParameters(epsilon=0.0, ahead_s=0.0, observe_s=10.0))
    for time_s, backlog_s in ((0.0, 5.0), (10.0, 15.0)):
        work = FleetOperator(2, 1.0, backlog_s=backlog_s, slots_max=40)
        seen = FleetJob(job(1.0, 1).utility, (5.0,), {"work": work}, 40.0)
        decision = policy.decide(FleetView(time_s, {"a": seen}, 99))
    # 40 records/s at 5 per slot, and the 300 that wait within 300 s.
    assert decision.slots == {"a": {"work": 9}}


def test_a_job_that_has_not_reported_is_left_out() -> None:
    silent = FleetJob(job(1.0, 1).utility, None, {"work": FleetOperator(1, 1.0)}, 50.0)
    assert not decided({"a": silent})


def test_who_was_served_is_served_until_rid_of_what_waits() -> None:
    """Else the slots go to and fro between jobs that are late, and none is ever rid of its backlog."""
    policy = UnifiedFleet(NOW)
    first = policy.decide(FleetView(0.0, {"a": job(18.0, 2), "b": job(39.0, 4)}, 4 + 6))
    assert first.slots["a"]["work"] == 4
    # now a needs more than it holds for what waits there, and b would need fewer slots than a
    a = behind(job(18.0, 4), 50.0, 1.0)
    then = policy.decide(FleetView(70.0, {"a": a, "b": job(18.0, 2)}, 4 + 6))
    assert then.rule == "short -> division"
    assert then.slots.get("a", {"work": 4})["work"] >= 4


def test_without_a_rate_of_before_lost_records_leave_the_rate_of_the_input() -> None:
    operator = FleetOperator(2, 1.0, backlog_s=0.0, slots_max=16)
    assert _service_rate(operator, 20.0, 500.0, 7.0, 10.0) == 7.0
    assert _service_rate(operator, 20.0, 500.0, None, 10.0) == 10.0
