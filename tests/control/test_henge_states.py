"""Henge's state machine, edge by edge: figure 4, sections 5.1 to 5.3 and 8.4.2."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from henge_cluster import Cluster, Job, by_slots, constant, kinds, parameters, touched

from headgate.control.fleet.henge import ClusterState, Henge
from headgate.control.fleet.view import Action, FleetView


def spoiler() -> dict[str, Job]:
    """A job that every further slot makes slower, and one that meets its SLO with ten."""
    return {
        "bad": Job(lambda slots: 1.5 + slots / 4.0, priority=20.0),
        "good": Job(constant(0.5), constant(0.1), slots=10),
    }


def test_a_cluster_at_its_maximum_converges_after_four_more_rounds() -> None:
    cluster = Cluster({"a": Job(constant(0.5))})
    states = []
    for _ in range(6):
        cluster.round()
        states.append(cluster.henge.state)
    assert states == [ClusterState.NOT_CONVERGED] * 4 + [ClusterState.CONVERGED] * 2


def test_a_miss_during_the_four_rounds_starts_them_again() -> None:
    job = Job(constant(0.5))
    cluster = Cluster({"a": job})
    cluster.run(3)
    job.latency_s = constant(1.1)
    cluster.round()
    job.latency_s = constant(0.5)
    cluster.run(4)
    assert cluster.henge.state is ClusterState.NOT_CONVERGED
    cluster.round()
    assert cluster.henge.state is ClusterState.CONVERGED


@pytest.mark.parametrize("congested", [True, False])
@pytest.mark.parametrize("meets", [True, False])
def test_after_a_drop_a_reduction_follows_only_if_all_conditions_hold(
    congested: bool, meets: bool
) -> None:
    jobs = spoiler()
    if not meets:
        jobs["good"].latency_s = constant(1.1)
    cluster = Cluster(jobs, congested=congested)
    assert cluster.until_action().action is Action.RECONFIGURATION
    then = cluster.until_action()
    assert then.action is (Action.REDUCTION if congested and meets else Action.REVERSION)
    assert "fell from" in then.reason


def test_a_reduction_is_made_of_all_jobs_that_meet_their_slo() -> None:
    jobs = spoiler() | {"fine": Job(constant(0.9), constant(0.2), slots=1)}
    jobs["also"] = Job(constant(0.5), constant(0.3), slots=20)
    cluster = Cluster(jobs, congested=True)
    cluster.until_action()
    assert cluster.until_action().slots == {"good": {"work": 2}, "also": {"work": 4}}


def test_a_cluster_is_congested_when_most_of_its_hosts_are() -> None:
    def view(hosts_congested: int) -> FleetView:
        return FleetView(0.0, {}, 1, hosts=4, hosts_congested=hosts_congested)

    assert [view(n).congested for n in range(5)] == [False, False, False, True, True]


def test_a_drop_after_the_reduction_means_reversion() -> None:
    cluster = Cluster(spoiler(), congested=True)
    cluster.run(40)
    wanted = [Action.RECONFIGURATION, Action.REDUCTION, Action.RECONFIGURATION, Action.REVERSION]
    assert kinds(cluster.actions) == wanted
    assert cluster.henge.state is ClusterState.CONVERGED


@pytest.mark.parametrize(("rate", "action"), [(100.0, Action.REVERSION), (110.0, None)])
def test_a_drop_of_a_job_whose_input_changed_is_not_blamed_on_the_action(
    rate: float, action: Action | None
) -> None:
    #  "a" hardly gains; meanwhile "b" becomes late, and only in one case its input tells why
    jobs = {"a": Job(constant(2.0), priority=20.0), "b": Job(constant(0.5), constant(0.2))}
    cluster = Cluster(jobs)
    cluster.until_action()
    jobs["b"] = Job(constant(1.5), constant(0.2), input_rate=rate)
    cluster.jobs["b"] = jobs["b"]
    following = cluster.run(8)
    assert (following[0][1].action if following else None) is action


@pytest.mark.parametrize(("blame", "actions"), [(True, 2), (False, 1)])
def test_a_job_that_was_falling_already_may_be_left_out_of_the_judgement(
    blame: bool, actions: int
) -> None:
    #  what waits at "late" grows, whatever is done for "a", which meets its SLO with 11 slots
    waits_s = itertools.accumulate(itertools.repeat(0.5))
    late = Job(lambda slots: 2.0 + next(waits_s), constant(0.2), priority=200.0)
    jobs = {"a": Job(by_slots(10.0), priority=30.0), "late": late}
    cluster = Cluster(jobs, parameters({"blame_falling": blame}))
    cluster.run(40)
    wanted = [Action.RECONFIGURATION, Action.REVERSION][:actions]
    assert kinds(cluster.actions) == wanted
    assert jobs["a"].slots == (1 if blame else 11)


@pytest.mark.parametrize(("growth", "reverted"), [(1.0005, True), (1.0015, False)])
def test_a_job_is_falling_that_lost_more_than_a_thousandth_in_a_round(
    growth: float, reverted: bool
) -> None:
    #  "late" loses half of its utility when "a" gets slots, and a little in every round before
    ages_s = itertools.accumulate(itertools.repeat(growth), lambda age_s, by: age_s * by)
    late = Job(lambda slots: next(ages_s) * (4.0 if cluster.actions else 2.0), priority=200.0)
    jobs = {"a": Job(by_slots(10.0), priority=30.0), "late": late}
    cluster = Cluster(jobs, parameters({"blame_falling": False, "patience_rounds": 3}))
    cluster.until_action()
    cluster.run(33)
    assert (Action.REVERSION in kinds(cluster.actions)) == reverted


@pytest.mark.parametrize(("busy", "reverted"), [(1.0, False), (0.9, True)])
def test_a_job_that_cannot_keep_up_is_no_evidence_though_it_becomes_late_only_later(
    busy: float, reverted: bool
) -> None:
    #  "b" still meets its SLO when "a" gets slots, and gets later in every round
    ages_s = itertools.accumulate(itertools.repeat(0.3), initial=0.0)
    a = Job(by_slots(10.0), priority=10.0)
    b = Job(lambda slots: next(ages_s), constant(busy), priority=60.0, slots_max=1)
    cluster = Cluster({"a": a, "b": b}, parameters({"blame_falling": False}))
    cluster.run(33)
    assert touched(cluster.actions)[0] == "a"
    assert (Action.REVERSION in kinds(cluster.actions)) == reverted


def test_a_job_that_was_reduced_is_evidence_though_it_cannot_keep_up() -> None:
    #  "good" becomes late nine rounds after it was left with two slots, when "bad" has got more again
    ages_s = itertools.chain(itertools.repeat(0.5, 9), itertools.count(1.5, 0.5))
    jobs = {
        "bad": Job(lambda slots: {1: 2.0, 11: 2.5}.get(slots, 1.9), priority=20.0),
        "good": Job(
            lambda slots: 0.5 if slots > 2 else next(ages_s),
            lambda slots: 0.1 if slots > 2 else 1.0,
            priority=60.0,
            slots=10,
        ),
    }
    cluster = Cluster(jobs, parameters({"blame_falling": False}), congested=True)
    cluster.run(60)
    wanted = [Action.RECONFIGURATION, Action.REDUCTION, Action.RECONFIGURATION, Action.REVERSION]
    assert kinds(cluster.actions)[:4] == wanted


def test_a_job_that_serves_its_backlog_first_keeps_the_slots_it_got() -> None:
    #  however many slots it has, it gets later for a while
    ages_s = itertools.accumulate(itertools.repeat(0.5))
    job = Job(lambda slots: 1.0 + next(ages_s), priority=30.0)
    cluster = Cluster({"a": job}, parameters({"blame_falling": False}))
    cluster.run(33)  # judged after 300 s, since it never settles
    assert kinds(cluster.actions) == [Action.RECONFIGURATION]
    assert job.slots == 11


def test_a_reversion_restores_the_best_configuration_on_record_of_all_jobs() -> None:
    #  "a" meets its SLO with 21 slots, "bad" then makes things worse.
    jobs = spoiler() | {"a": Job(by_slots(12.0), priority=30.0)}
    cluster = Cluster(jobs)
    assert touched(cluster.run(40)) == ["a", "a", "bad", "bad"]
    assert kinds(cluster.actions)[-1] is Action.REVERSION
    assert [jobs[name].slots for name in ("a", "bad", "good")] == [21, 1, 10]
    assert cluster.henge.state is ClusterState.CONVERGED


def test_a_reversion_does_not_go_back_above_the_budget() -> None:
    #  "good" came with more slots than there are, and does less well with what a reduction leaves it.
    good = Job(lambda slots: 0.5 if slots > 6 else 1.5, constant(0.1), slots=30)
    cluster = Cluster({"good": good, "bad": Job(constant(2.0), slots=5)}, slots_max=21)
    cluster.run(60)
    assert kinds(cluster.actions) == [Action.REDUCTION]
    assert cluster.view().slots_free >= 0


def test_after_a_reversion_the_cluster_is_left_alone() -> None:
    cluster = Cluster(spoiler())
    cluster.run(40)
    assert kinds(cluster.actions) == [Action.RECONFIGURATION, Action.REVERSION]
    assert cluster.run(1000) == []


def test_where_no_action_can_help_the_best_configuration_is_kept() -> None:
    idle = Job(constant(2.0), constant(0.1))
    cluster = Cluster({"a": idle})
    assert cluster.run(50) == []
    assert cluster.henge.state is ClusterState.CONVERGED
    assert cluster.henge.indicators.oversubscribed


def test_no_slot_left_counts_as_congestion() -> None:
    jobs = {"a": Job(by_slots(3.0)), "b": Job(constant(0.5), constant(0.1), slots=10)}
    cluster = Cluster(jobs, slots_max=10 + 11)
    first = cluster.until_action()
    assert (first.action, first.rule) == (Action.REDUCTION, "does not fit -> reduction")
    assert "none is left" in first.reason
    assert touched(cluster.run(30)) == ["a"]
    assert cluster.utility == 20.0


def test_a_request_that_fits_only_in_part_counts_as_congestion() -> None:
    cluster = Cluster(spoiler(), slots_max=2 * 5 + 1 + 10 + 7)
    assert cluster.until_action().slots == {"bad": {"work": 8}}
    assert cluster.until_action().action is Action.REDUCTION


def test_no_slot_left_and_nothing_to_reduce_ends_the_search() -> None:
    cluster = Cluster({"a": Job(by_slots(3.0)), "b": Job(constant(0.5))}, slots_max=12)
    assert cluster.run(30) == []
    assert cluster.henge.state is ClusterState.CONVERGED


def test_a_drop_of_more_than_five_percent_forgets_history() -> None:
    job = Job(by_slots(5.0))
    cluster = Cluster({"a": job})
    cluster.run(30)
    assert cluster.henge.state is ClusterState.CONVERGED
    best_before = job.slots
    #  The load triples and more slots only make it worse: the old best is not on record any more.
    job.latency_s = lambda slots: 2.0 + slots / 100.0
    job.slots = best_before
    cluster.run(40)
    assert kinds(cluster.actions)[1:] == [Action.RECONFIGURATION, Action.REVERSION]
    assert job.slots == best_before
    assert cluster.henge.state is ClusterState.CONVERGED


def test_a_converged_cluster_acts_in_the_round_in_which_its_patience_ends() -> None:
    # a misses its SLO whatever it gets, which convergence accepts; then it becomes worse by itself
    job = Job(constant(2.0))
    cluster = Cluster({"a": job})
    cluster.run(60)
    assert cluster.henge.state is ClusterState.CONVERGED
    job.latency_s = constant(4.0)
    for _ in range(cluster.parameters.patience_rounds - 1):
        cluster.round()
        assert cluster.henge.state is ClusterState.CONVERGED
    cluster.round()
    assert cluster.henge.state is not ClusterState.CONVERGED


def test_forgotten_configurations_are_never_restored() -> None:
    #  11 slots were worth 10.0; after the change nothing is, whatever the slots.
    job = Job(by_slots(5.0))
    cluster = Cluster({"a": job})
    cluster.run(30)
    job.latency_s = lambda slots: 5.0 - slots / 100.0
    cluster.run(60)
    assert Action.REVERSION not in kinds(cluster.actions)
    assert job.slots > 11


def test_a_dip_of_one_round_does_not_leave_the_converged_state() -> None:
    job = Job(constant(0.5))
    cluster = Cluster({"a": job})
    cluster.run(10)
    job.latency_s = constant(2.0)
    cluster.round()
    assert cluster.henge.state is ClusterState.CONVERGED
    job.latency_s = constant(0.5)
    assert cluster.run(20) == []


def test_a_new_miss_in_the_converged_state_is_acted_upon() -> None:
    jobs = {"small": Job(constant(0.9), priority=1.0), "big": Job(constant(0.5), priority=99.0)}
    cluster = Cluster(jobs)
    cluster.run(10)
    assert cluster.henge.state is ClusterState.CONVERGED
    jobs["small"].latency_s = by_slots(1.1)  # 0.1 % of the total utility
    assert touched(cluster.run(5)) == ["small"]


def test_a_miss_that_convergence_accepted_is_not_acted_upon() -> None:
    jobs = {"late": Job(constant(2.0), constant(0.1)), "b": Job(constant(0.5))}
    cluster = Cluster(jobs)
    cluster.run(10)
    jobs["late"].capacity = constant(0.9)
    assert cluster.run(100) == []


def test_a_miss_that_began_as_the_cluster_converged_is_acted_upon() -> None:
    jobs = {"late": Job(constant(2.0), constant(0.1)), "b": Job(constant(0.9))}
    cluster = Cluster(jobs)
    cluster.round()
    jobs["b"].latency_s = by_slots(1.1)
    cluster.round()
    assert cluster.henge.state is ClusterState.CONVERGED
    assert touched(cluster.run(3)) == ["b"]


@pytest.mark.parametrize(("factor", "second"), [(1.05, False), (1.2, True), (0.8, True)])
def test_a_second_reduction_needs_a_change_of_input_by_ten_percent(
    factor: float, second: bool
) -> None:
    cluster = Cluster(spoiler(), congested=True)
    cluster.until_action()
    assert cluster.until_action().action is Action.REDUCTION
    cluster.jobs["good"].slots = 10
    cluster.jobs["good"].input_rate *= factor
    assert cluster.until_action().action is Action.RECONFIGURATION
    wanted = Action.REDUCTION if second else Action.REVERSION
    assert cluster.until_action().action is wanted


def test_a_job_that_comes_allows_another_reduction() -> None:
    cluster = Cluster(spoiler(), congested=True)
    cluster.run(40)
    assert kinds(cluster.actions).count(Action.REDUCTION) == 1
    cluster.jobs["good"].slots = 10
    cluster.jobs["new"] = Job(constant(0.5), constant(0.1), slots=5)
    cluster.run(40)
    assert kinds(cluster.actions).count(Action.REDUCTION) == 2


def test_a_job_that_comes_is_helped_in_a_converged_cluster() -> None:
    cluster = Cluster({"a": Job(constant(0.5))})
    cluster.run(10)
    cluster.jobs["b"] = Job(by_slots(5.0))
    assert touched(cluster.run(20)) == ["b"]


def test_a_job_that_leaves_while_its_slots_are_judged_is_forgotten() -> None:
    cluster = Cluster({"a": Job(by_slots(5.0), priority=20.0), "b": Job(by_slots(5.0))})
    cluster.until_action()
    del cluster.jobs["a"]
    assert touched(cluster.run(20)) == ["b"]


def test_a_job_without_a_first_report_does_not_stop_the_others() -> None:
    cluster = Cluster({"a": Job(by_slots(5.0)), "b": Job(constant(0.5), silent=True)})
    assert list(cluster.until_action().slots) == ["a"]


def test_no_action_is_taken_without_fresh_statistics_and_for_five_minutes_after() -> None:
    #  cut 100 to 460 s ─────► no decision ─────► fresh from 460 s ── 300 s ──► 760 s
    jobs = {"a": Job(by_slots(50.0)), "b": Job(constant(0.5))}
    cluster = Cluster(jobs)
    cluster.run(10)
    before = len(cluster.actions)
    jobs["b"].silent = True
    cluster.run(36)
    jobs["b"].silent = False
    assert cluster.time_s == 460.0
    assert set(cluster.rules[10:]) == {"no statistics"}
    cluster.until_action()
    assert len(cluster.actions) == before + 1
    assert cluster.actions[-1][0] == 760.0


def test_an_empty_fleet_and_one_that_has_not_reported_do_nothing() -> None:
    henge = Henge(parameters())
    assert henge.decide(FleetView(0.0, {}, 10)).rule == "no jobs"
    cluster = Cluster({"a": Job(by_slots(5.0), silent=True)})
    assert cluster.run(5) == []


def test_a_job_restarted_with_other_operators_is_a_new_job() -> None:
    cluster = Cluster({"a": Job(by_slots(5.0)), "b": Job(constant(0.5))})
    cluster.run(30)
    jobs = cluster.view().jobs
    renamed = {("new" if op == "work" else op): o for op, o in jobs["a"].operators.items()}
    changed = replace(cluster.view(), jobs=jobs | {"a": replace(jobs["a"], operators=renamed)})
    cluster.henge.decide(changed)
    assert cluster.henge.state is ClusterState.NOT_CONVERGED


def test_a_smaller_budget_starts_the_search_afresh() -> None:
    cluster = Cluster({"a": Job(by_slots(5.0))})
    cluster.run(30)
    assert cluster.henge.state is ClusterState.CONVERGED
    cluster.slots_max = 12
    cluster.round()
    assert cluster.henge.state is ClusterState.NOT_CONVERGED
    assert cluster.run(20) == []


def test_a_loss_of_less_than_five_percent_does_not_leave_the_converged_state() -> None:
    #  No slots help b, so it is accepted as it is; then the total falls from 15 to 14.76.
    late = Job(constant(2.0), constant(0.1))
    cluster = Cluster({"a": Job(constant(0.5)), "b": late})
    cluster.run(10)
    assert cluster.henge.state is ClusterState.CONVERGED
    late.latency_s = constant(2.1)
    cluster.run(10)
    assert set(cluster.rules[-10:]) == {"converged"}
