"""What the benchmarks of fleets make of a fleet's rounds and actions; nothing runs here."""

from __future__ import annotations

import pytest

from headgate.control.fleet.view import Action, FleetDecision, FleetJob, FleetOperator, FleetView
from headgate.core.errors import ConfigError
from headgate.core.utility import Intent, Metric, Utility
from headgate.journal.fleet import FleetDecided, FleetJobState, FleetRound
from headgate.workloads.rates import parse_rate
from headgate_lab.bench.fleet_utility import FleetUtilityParameters, times
from headgate_lab.bench.fleets import CutOff, all_met, all_met_s, outcome, shares, touched
from headgate_lab.bench.henge import HengeBenchParameters, begun_warm, day_steps, satisfied


def seen(time_s: float, **worth: float | None) -> FleetRound:
    """A round of jobs whose priority is 10."""
    jobs = tuple(
        FleetJobState(name, "running", utility, 10.0, met=utility == 10.0, slots={"op": 2})
        for name, utility in worth.items()
    )
    total = sum(job.utility or 0.0 for job in jobs)
    return FleetRound(time_s, jobs, total, 10.0 * len(jobs), 2, 8, congested=False)


def acted(action: Action, *jobs: str) -> FleetDecided:
    return FleetDecided(
        "p", str(action), "", "", True, {job: {"op": 3} for job in jobs}, time_s=7.0
    )


def test_all_met_is_from_when_on_nobody_missed_any_more():
    rounds = [seen(1, a=10, b=10), seen(2, a=10, b=4), seen(3, a=10, b=10), seen(4, a=10, b=10)]
    assert all_met_s(rounds) == 3
    assert all_met_s([*rounds, seen(5, a=4, b=10)]) is None
    assert all_met_s([]) is None


def test_a_run_may_end_when_all_jobs_met_their_slo_for_six_rounds() -> None:
    rounds = [seen(t, a=10 if t >= 3 else 4) for t in range(10)]
    assert all_met(rounds, after_s=3)
    assert not all_met(rounds, after_s=4)
    assert not all_met(rounds[:8], after_s=0)
    assert not all_met(rounds[3:6], after_s=0)


def test_rounds_in_which_a_job_has_not_reported_have_no_share():
    assert shares([seen(1, a=10, b=None), seen(2, a=10, b=5)]) == [0.75]


def test_only_reconfigurations_touch_a_job():
    actions = [acted(Action.RECONFIGURATION, "b"), acted(Action.REDUCTION, "a")]
    assert touched([*actions, acted(Action.RECONFIGURATION, "b")]) == ["b", "b"]


def test_an_outcome_is_the_mean_of_the_last_six_rounds():
    rounds = [seen(t, a=1.0 if t < 4 else 10.0) for t in range(10)]
    found = outcome(rounds, [acted(Action.RECONFIGURATION, "a")], {})
    assert (found["utility"], found["utility_max"], found["met"]) == (10.0, 10.0, 1)
    assert found["all_met_s"] == 4
    assert found["actions"][0]["slots"] == {"a": 3}
    assert found["jobs"]["a"]["utility"][0] == [0, 1.0]
    assert "failures" not in found


def test_a_run_in_which_nothing_was_heard_of_a_job_has_no_utility():
    found = outcome([seen(1, a=10, b=None)], [], {"b": "it broke"})
    assert found["utility"] is None
    assert found["failures"] == {"b": "it broke"}


class Seeing:
    """A policy that keeps whether jobs had reported."""

    name = "seeing"

    def __init__(self):
        self.reported = []

    def decide(self, view):
        self.reported.append(view.jobs["a"].reported)
        return FleetDecision()


def test_a_policy_that_is_cut_off_sees_no_statistics_until_it_is_over():
    inner = Seeing()
    policy = CutOff(inner, 10.0, 20.0)
    utility = Utility(1.0, (Intent(Metric.JUICE, 0.5),))
    job = FleetJob(utility, (1.0,), {"op": FleetOperator(1, 0.5)})
    for time_s in (9.0, 10.0, 19.0, 20.0):
        policy.decide(FleetView(time_s, {"a": job}, 4))
    assert inner.reported == [True, False, False, True]


def test_our_policies_are_compared_with_each_rival_where_slots_are_scarce():
    runs = {
        name: {"slots": slots, "policy": name, "utility": utility}
        for name, slots, utility in (
            ("henge", "scarce", 120.0),
            ("unified", "scarce", 100.0),
            ("equal-shares", "scarce", 40.0),
            ("first-come", "scarce", 80.0),
        )
    }
    runs["enough"] = {"slots": "enough", "policy": "henge", "utility": 210.0}
    assert times(runs) == {
        "henge": {"equal-shares": 3.0, "first-come": 1.5},
        "unified": {"equal-shares": 2.5, "first-come": 1.25},
    }
    runs["first-come"]["utility"] = 0.0
    assert times(runs)["henge"]["first-come"] is None


def test_a_days_hours_become_steps_of_a_rate_day_after_day():
    rate = parse_rate(day_steps([100.0, 300.0], hour_s=5.0, days=2))
    assert list(rate.rate_at([0.0, 6.0, 11.0, 16.0])) == [100.0, 300.0, 100.0, 300.0]


def test_days_may_begin_after_a_while_at_another_rate():
    rate = parse_rate(day_steps([100.0, 300.0], hour_s=5.0, days=2, before=(60.0, 200.0)))
    at_s = [0.0, 59.0, 61.0, 66.0, 71.0, 76.0]
    assert list(rate.rate_at(at_s)) == [200.0, 200.0, 100.0, 300.0, 100.0, 300.0]


def test_what_comes_before_the_days_is_not_counted():
    rounds = [seen(0.0, a=0.0), seen(58.0, a=5.0), seen(60.0, a=10.0), seen(62.0, a=10.0)]
    assert shares(begun_warm(rounds, 60.0)) == [1.0, 1.0]


def test_satisfaction_is_given_as_mean_and_percentiles_in_percent():
    assert satisfied([0.0, 0.5, 1.0]) == {"mean": 50.0, "p15": 15.0, "p50": 50.0, "p90": 90.0}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"only": "10"}, 'henge has no figure "10" on Spark; use 9, 11, 12, 13, 17'),
        ({"only": "12"}, "name its directory: --option data=DIR"),
        ({"round_s": 0.0}, "round_s=0.0 of henge must be above 0"),
    ],
)
def test_a_figure_that_cannot_run_is_refused_before_anything_does(given, says):
    with pytest.raises(ConfigError, match=says):
        HengeBenchParameters(**given)


def test_jobs_that_one_slot_could_serve_are_refused():
    with pytest.raises(ConfigError, match="rate=100 of fleet-utility must be above 100"):
        FleetUtilityParameters(rate=100)
