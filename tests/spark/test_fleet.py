"""A fleet on Spark: slots by a policy, and jobs that fail, hang, come and go beside others.

The policy is scripted, so that what is tested is the fleet; deadlines are generous and no time is
asserted.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate.control.fleet.view import Action, FleetDecision, FleetJob, FleetOperator
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.core.utility import Intent, Metric, Utility
from headgate.journal import AssignmentChange, FleetDecided, FleetJobChanged, FleetRound, read
from headgate.spark.fleet import admission
from headgate.spark.fleet import fleet as fleets
from headgate.spark.fleet.hosts import HostTime
from headgate.spark.fleet.member import JobState, Member, _reason
from headgate.spark.settings.query_settings import QuerySettings, SlotRange

pytestmark = pytest.mark.timeout(300)


class Scripted:
    """A policy that wants what it is told; keeps what it saw."""

    name = "scripted"

    def __init__(self):
        self.wants = {}
        self.views = []

    def decide(self, view):
        self.views.append(view)
        wants = {
            job: slots
            for job, slots in self.wants.items()
            if job in view.jobs and view.slots[job] != {**view.slots[job], **slots}
        }
        return FleetDecision(Action.RECONFIGURATION, wants, "the test wants it", "script")


def writer(spark, folder, name, function=None):
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    counts = rows.groupBy((F.col("value") % 7).alias("key")).count()
    made = (
        hg.writeStream(counts)
        .queryName(name)
        .slo("mean < 30 s over 10 s", "juice >= 0.5 over 1 min")
        .slots(max=8, start=1)
        .keyGroups(8)
        .outputMode("update")
        .option("checkpointLocation", str(folder / name))
    )
    return made.format("noop") if function is None else made.foreachBatch(function)


def wait_for(condition, deadline_s=60):
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


def fails(frame, batch):
    msg = "the sink is gone"
    raise ValueError(msg)


@pytest.fixture(scope="module")
def run(spark, tmp_path_factory):
    """What one fleet went through: a job fails; another comes, hangs in its second batch, and leaves."""
    folder = tmp_path_factory.mktemp("fleet")
    policy, release = Scripted(), threading.Event()
    journal = folder / "fleet.jsonl"
    limits = {"round_s": 0.5, "hang_s": 4.0, "actions_per_minute": 3}
    fleet = hg.Fleet(spark, 8, policy=policy, journal=journal, **limits)
    fleet.add(writer(spark, folder, "good"), priority=10.0)
    fleet.add(writer(spark, folder, "bad", fails))
    found = SimpleNamespace(fleet=fleet, policy=policy)

    def blocks(frame, batch):
        if batch > 0:
            release.wait(120)

    try:
        fleet.start()
        found.query = fleet.query("good")
        (operator,) = found.query.assignment()
        found.operator = operator
        found.failed = wait_for(lambda: fleet.jobs["bad"] is JobState.FAILED)
        policy.wants = {"good": {operator: 3}}
        found.scaled = wait_for(lambda: found.query.assignment()[operator].slots == 3)
        fleet.add(writer(spark, folder, "stuck", blocks), priority=5.0)
        found.joined = wait_for(lambda: any("stuck" in view.jobs for view in policy.views))
        pools = spark.sparkContext._jsc.sc().getAllPools()
        found.pools = {pools.apply(i).name() for i in range(pools.size())}
        found.hung = wait_for(lambda: fleet.jobs["stuck"] is JobState.HUNG)
        # the state is looked at afresh, what the policy sees is a round's
        wait_for(lambda: "stuck" not in policy.views[-1].jobs)
        found.view = policy.views[-1]
        fleet.remove("stuck")
        found.leaving = fleet.jobs["stuck"]
        policy.wants = {"good": {operator: 2}}
        found.went_on = wait_for(lambda: found.query.assignment()[operator].slots == 2)
        release.set()
        found.gone = wait_for(lambda: fleet.jobs["stuck"] is JobState.GONE)
        found.freed = wait_for(lambda: policy.views[-1].slots_max == 8)
        policy.wants = {"good": {operator: 1}}
        wait_for(lambda: found.query.assignment()[operator].slots == 1)
        policy.wants = {"good": {operator: 2}}
        found.limited = wait_for(
            lambda: any(isinstance(e, FleetDecided) and e.rule == "limit" for e in read(journal))
        )
        fleet.set_priority("good", 20.0)
        wait_for(lambda: fleet.rounds[-1].utility == 20.0)
        found.failure = found.query.exception()
    finally:
        release.set()
        fleet.stop()
    found.events = list(read(journal))
    return found


def test_a_job_gets_the_slots_that_the_policy_grants(run):
    assert run.scaled
    changes = [e for e in read(run.query.journal) if isinstance(e, AssignmentChange)]
    assert (changes[0].slots_after, changes[0].by) == (3, "scripted")
    assert changes[0].reason == "the test wants it"


def test_each_job_has_a_pool_of_its_own(run):
    assert {"good", "stuck"} <= run.pools


def test_a_job_that_fails_is_set_aside_and_its_slots_are_free_again(run):
    assert run.failed
    assert "bad" not in run.view.jobs
    said = [e.why for e in run.events if isinstance(e, FleetJobChanged) and e.state == "failed"]
    assert said == ["ValueError in test_fleet.py line 77"]


def test_a_job_that_hangs_keeps_its_slots_and_stops_nobody(run):
    assert run.hung
    assert "stuck" not in run.view.jobs
    assert run.view.slots_max == 8 - 1


def test_a_job_may_come_and_leave_while_others_run(run):
    assert run.joined
    assert run.leaving is JobState.LEAVING
    assert run.went_on
    assert run.failure is None


def test_a_removed_job_that_hangs_gives_its_slots_back_when_it_has_ended(run):
    assert run.gone
    assert run.freed


def test_the_policy_sees_intents_slots_and_load(run):
    job = run.view.jobs["good"]
    assert job.met
    # what arrives while a batch runs a little longer than usual is not served yet
    assert job.values[1] == pytest.approx(1.0, abs=0.1)
    assert run.view.slots["good"] == {run.operator: 3}
    assert 0.0 <= job.operators[run.operator].capacity <= 1.0
    assert job.input_rate > 1.0


def test_actions_per_minute_are_bounded(run):
    acted = [e for e in run.events if isinstance(e, FleetDecided) and e.slots]
    assert run.limited
    assert len(acted) == 3


def test_the_journal_has_each_jobs_utility_over_time_with_the_priority_it_had_then(run):
    rounds = [e for e in run.events if isinstance(e, FleetRound)]
    seen = [job for each in rounds for job in each.jobs if job.job == "good" and job.utility]
    assert {job.utility_max for job in seen} == {10.0, 20.0}
    assert seen[-1].utility == 20.0
    assert rounds[-1].slots_max == 8


class Stub:
    """A member of a fleet, without a query."""

    def __init__(self, job, runnable_s=0.0, name="stub"):
        self.job, self.state, self.utility = job, JobState.RUNNING, UTILITY
        self.runnable = runnable_s
        self.name, self.slots, self.requests, self.granted = name, {"op": 1}, {}, None

    def unspent(self, granted, rounds):
        return {}

    def changing(self, granted):
        return False

    def refresh(self):
        return False

    def hosts(self, seconds):
        return {"here": HostTime(self.runnable * seconds)}

    def grant(self, slots, by, why):
        self.granted = slots
        return ""

    def view(self, granted):
        if self.job is None:
            msg = "its counts are gone"
            raise RuntimeError(msg)
        return self.job


UTILITY = Utility(1.0, (Intent(Metric.JUICE, 0.5),))


def stubs(**jobs):
    conf = SimpleNamespace(get=lambda key, default: "FAIR")
    context = SimpleNamespace(
        getConf=lambda: conf,
        defaultParallelism=2,
        master="local[2]",
        getLocalProperty=lambda key: None,
        setLocalProperty=lambda key, value: None,
    )
    fleet = hg.Fleet(SimpleNamespace(sparkContext=context), policy=Scripted())
    fleet._members.update({name: Stub(job, name=name) for name, job in jobs.items()})
    return fleet


def test_a_job_whose_statistics_cannot_be_read_does_not_hide_the_others():
    job = FleetJob(UTILITY, (1.0,), {"op": FleetOperator(1, 0.5)})
    fleet = stubs(broken=None, good=job)
    fleet._round()
    assert list(fleet.policy.views[0].jobs) == ["good"]


def test_nothing_is_decided_for_a_while_after_an_action():
    job = FleetJob(UTILITY, (1.0,), {"op": FleetOperator(1, 0.5)})
    fleet = stubs(job=job)
    fleet.limits = replace(fleet.limits, cooldown_s=60.0)
    fleet._look()
    fleet._act(FleetDecision(Action.RECONFIGURATION, {"job": {"op": 2}}), fleet._members)
    assert fleet._members["job"].granted == {"op": 2}
    fleet._round()
    assert fleet.policy.views == []
    fleet._next_action_s -= 60.0
    fleet._round()
    assert len(fleet.policy.views) == 1


@pytest.mark.parametrize(("tasks", "congested"), [((1.0, 0.9), False), ((1.0, 1.1), True)])
def test_the_cluster_is_congested_while_more_slot_tasks_are_runnable_than_there_are_cores(
    tasks, congested
):
    job = FleetJob(UTILITY, (1.0,), {"op": FleetOperator(1, 0.5)})
    fleet = stubs()
    fleet._members.update({f"{n}": Stub(job, runnable, f"{n}") for n, runnable in enumerate(tasks)})
    fleet._round()
    (view,) = fleet.policy.views
    assert view.congested is congested
    assert fleet.rounds[-1].congested is congested


class Starting:
    """The writer of a query that fails a few times before it runs; a stand-in, without Spark."""

    def __init__(self, *failures):
        self.failures, self.starts = list(failures), []
        slos = (parse_slo("juice >= 0.5 over 1 min"),)
        self.settings = QuerySettings(name="late", slos=slos, slots=SlotRange(1, 8, 1))
        self.df = self  # what a fleet hands on to whoever starts a query

    def start(self):
        self.starts.append("one more")
        failure = self.failures.pop(0) if self.failures else None
        return SimpleNamespace(
            isActive=failure is None,
            exception=lambda: failure,
            _progress=lambda: (1, True),
            _slots=SimpleNamespace(held=lambda: {"op": 1}, limit=lambda grant: None, requests=dict),
            stop=lambda: None,
        )


LATE = RuntimeError("terminated with exception: Python worker failed to connect back.")


@pytest.mark.parametrize(
    ("failures", "starts"),
    [((), 1), ((LATE,), 2), ((LATE,) * 5, 3), ((ValueError("the column is gone"),), 1)],
)
def test_a_job_whose_python_workers_come_too_late_is_started_again(monkeypatch, failures, starts):
    monkeypatch.setattr(admission, "has_stages", lambda job: False)
    monkeypatch.setattr(fleets, "start", lambda job, settings, watch: job.start())
    fleet, writer = stubs(), Starting(*failures)
    fleet.add(writer)
    fleet._start("late")
    assert len(writer.starts) == starts


def test_a_job_that_refuses_its_slots_does_not_keep_the_others_from_theirs():
    asked = []
    refusing, granting = Member.__new__(Member), Member.__new__(Member)
    for member, scale in ((refusing, {}.__getitem__), (granting, asked.append)):
        member.own_policy = False
        member.query = SimpleNamespace(
            scale=lambda n, scale=scale, **how: scale(n),
            _slots=SimpleNamespace(held=lambda: {"op": 1}, holds=dict, limit=lambda grant: None),
        )
    assert refusing.grant({"op": 3}, "henge", "")
    assert not granting.grant({"op": 3}, "henge", "")
    assert asked == [3]


def test_the_budget_is_twice_the_cores_where_none_is_given():
    assert stubs().limits.slots == 4


def test_a_session_that_schedules_first_in_first_out_is_refused():
    conf = SimpleNamespace(get=lambda key, default: default)
    fifo = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    with pytest.raises(ConfigError, match="schedules first in"):
        hg.Fleet(fifo)


def test_a_job_without_a_name_or_with_a_policy_that_has_nothing_to_steer_by_is_refused(run, spark):
    rows = spark.readStream.format("rate").load().groupBy("value").count()
    with pytest.raises(ConfigError, match="needs a name"):
        run.fleet.add(hg.writeStream(rows).slo("juice >= 0.9"))
    with pytest.raises(ConfigError, match=r"no latency to steer by.*leave out \.policy"):
        run.fleet.add(hg.writeStream(rows).queryName("own").policy("threshold").slo("juice >= 0.9"))
    with pytest.raises(ConfigError, match="needs an SLO"):
        run.fleet.add(hg.writeStream(rows).queryName("none"))
    with pytest.raises(ConfigError, match='no job "god" is in the fleet; did you mean "good"'):
        run.fleet.remove("god")


def test_a_stateless_query_without_a_policy_runs_on_pools_under_psps(spark, tmp_path):
    fleet = hg.Fleet(spark, 4, policy=Scripted(), round_s=0.5)
    rows = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    stage = rows.select("value").mapInArrow(lambda batches: batches, "value long")
    made = hg.writeStream(stage).queryName("stage").slo("throughput >= 10/s").slots(max=4, start=1)
    made = made.format("noop").option("checkpointLocation", str(tmp_path / "stage"))
    assert made.settings.replica_policy is None
    fleet.add(made.trigger(processingTime="500 milliseconds"))
    fleet.start()
    try:
        assert wait_for(lambda: any(job.values for one in fleet.rounds for job in one.jobs))
        (job,) = fleet.rounds[-1].jobs
        assert job.slots == {"map-0": 1}
        assert fleet.grants["stage"]["map-0"] >= 1
    finally:
        fleet.stop()


def test_a_failure_is_told_without_what_spark_says_about_every_query():
    says = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: The disk is full."
    assert _reason(RuntimeError(says)) == "The disk is full."
