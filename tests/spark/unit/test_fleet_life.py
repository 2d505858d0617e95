"""Jobs that come, go and change while a fleet starts, decides or ends; without Spark."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import headgate as hg
from headgate.control.fleet.view import FleetDecision, FleetJob, FleetOperator, FleetView
from headgate.core.errors import ConfigError, EngineError, EngineGone
from headgate.core.slo import parse_slo
from headgate.core.utility import Custom, Intent, Metric, Utility
from headgate.spark.api.query import Query
from headgate.spark.fleet import admission
from headgate.spark.fleet import fleet as fleets
from headgate.spark.fleet import member as members
from headgate.spark.fleet.fleet_round import fleet_round
from headgate.spark.fleet.flows import Graph
from headgate.spark.fleet.member import JobState, Member, _reason
from headgate.spark.fleet.probe import Probe
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState
from headgate.spark.job.reports import Payload, Report
from headgate.spark.settings.query_settings import QuerySettings, SlotRange
from headgate.spark.steer.commands import Commands
from headgate.spark.steer.operator_slots import OperatorSlots
from headgate.spark.step.batch_thread import BatchThreads
from headgate.spark.worker.failure import QueryFailed

UTILITY = Utility(1.0, (Intent(Metric.JUICE, 0.5),))
LATE = RuntimeError("terminated with exception: Python worker failed to connect back.")


class Running:
    """A query that runs until it is stopped, or failed already."""

    def __init__(self, failure=None, slots=1):
        self.isActive, self.failure, self.slots = failure is None, failure, slots
        self._slots = SimpleNamespace(
            held=lambda: {"op": slots} if slots else {},
            changing=lambda: False,
            holds=dict,
            limit=lambda grant: None,
            requests=dict,
        )

    def stop(self):
        self.isActive = False

    def exception(self):
        return self.failure

    def _progress(self):
        return 1, True


class Job:
    """A writer whose query starts once `go` is set."""

    def __init__(self, name="job", *, queries=(), go=None):
        self.settings = QuerySettings(
            name=name, slos=(parse_slo("juice >= 0.5 over 1 min"),), slots=SlotRange(1, 8, 1)
        )
        self.df = self  # what a fleet hands on to whoever starts a query
        self.queries, self.started, self.starting = list(queries), [], threading.Event()
        self.go = go

    def told(self, **settings):
        self.settings = dataclasses.replace(self.settings, **settings)

    def start(self):
        self.starting.set()
        if self.go is not None:
            assert self.go.wait(30)
        self.started.append(self.queries.pop(0) if self.queries else Running())
        return self.started[-1]


@pytest.fixture(autouse=True)
def _starts_without_spark(monkeypatch):
    monkeypatch.setattr(admission, "has_stages", lambda job: False)
    monkeypatch.setattr(
        fleets, "start", lambda job, settings, watch=None, watch_pools=None: job.start()
    )


class Watching:
    """A policy that does nothing; keeps what it saw."""

    name = "watching"

    def __init__(self):
        self.views = []

    def decide(self, view):
        self.views.append(view)
        return FleetDecision(rule="watching")


def fleet_of(*, slots=8, **settings):
    conf = SimpleNamespace(get=lambda key, default: "FAIR")
    context = SimpleNamespace(
        getConf=lambda: conf,
        defaultParallelism=2,
        master="local[2]",
        getLocalProperty=lambda key: None,
        setLocalProperty=lambda key, value: None,
    )
    spark = SimpleNamespace(sparkContext=context)
    return hg.Fleet(spark, slots, policy=Watching(), **settings)


def member_of(view, slots=1):
    """A member that shows the policy `view`, a FleetJob or what fails."""
    member = Member("job", Running(slots=slots), None, UTILITY, 60.0)
    member.view = lambda granted: view()
    member.hosts = lambda seconds: {}
    return member


# --- while a fleet starts or ends ----------------------------------------------------------------


def test_a_job_that_is_added_while_others_start_is_started_too():
    go = threading.Event()
    first, second, fleet = Job("first", go=go), Job("second"), fleet_of(round_s=60.0)
    fleet.add(first)
    starting = threading.Thread(target=fleet.start)
    starting.start()
    assert first.starting.wait(30)
    fleet.add(second)
    go.set()
    starting.join(30)
    fleet.stop(5.0)
    assert second.started


@pytest.mark.parametrize("asked", ["jobs", "failures"])
def test_who_asks_hears_of_a_job_that_has_just_failed(asked):
    fleet, query = fleet_of(round_s=60.0), Running()
    fleet.add(Job(queries=[query]))
    fleet.start()
    assert fleet.jobs == {"job": JobState.RUNNING}
    query.isActive, query.failure = False, RuntimeError("the disk is full")
    told = getattr(fleet, asked)["job"]
    fleet.stop(5.0)
    assert told is JobState.FAILED if asked == "jobs" else "the disk is full" in told


def test_a_job_that_is_removed_while_it_starts_is_stopped():
    go = threading.Event()
    job, fleet = Job(go=go), fleet_of(round_s=60.0)
    fleet.start()
    adding = threading.Thread(target=fleet.add, args=(job,))
    adding.start()
    assert job.starting.wait(30)
    with pytest.raises(ConfigError, match='a job "job" is in the fleet already'):
        fleet.add(Job())
    fleet.remove("job")
    go.set()
    adding.join(30)
    fleet.stop(5.0)
    assert [query.isActive for query in job.started] == [False]
    assert fleet.jobs["job"] is JobState.GONE


def test_a_fleet_that_is_stopped_while_a_job_starts_leaves_no_query_behind():
    go = threading.Event()
    job, fleet = Job(go=go), fleet_of(round_s=60.0)
    fleet.start()
    adding = threading.Thread(target=fleet.add, args=(job,))
    adding.start()
    assert job.starting.wait(30)
    stopping = threading.Thread(target=fleet.stop, args=(30.0,))
    stopping.start()
    assert fleet._over.wait(30)
    go.set()
    stopping.join(30)
    adding.join(30)
    assert [query.isActive for query in job.started] == [False]
    assert fleet.jobs == {"job": JobState.GONE}


def test_a_job_that_takes_long_to_start_does_not_keep_the_others_from_their_rounds(monkeypatch):
    monkeypatch.setattr(fleets, "_PATIENCE_S", 0.0)
    go, fleet = threading.Event(), fleet_of(slots=8, round_s=0.01)
    first, second = Job("first"), Job("second", go=go)
    for job in (first, second):
        fleet.add(job)
    starting = threading.Thread(target=fleet.start)
    starting.start()
    assert second.starting.wait(30)
    while not fleet.policy.views:
        assert starting.is_alive()
    # one slot is the first job's, of which nothing is known yet, and one is kept for the other
    assert fleet.policy.views[0].slots_max == 8 - 2
    go.set()
    starting.join(30)
    fleet.stop(5.0)


def test_a_job_that_fails_is_shown_without_waiting_for_a_round():
    fleet, running = fleet_of(round_s=3600.0), Running()
    fleet.add(Job("job", queries=[running]))
    fleet.start()
    running.isActive, running.failure = False, QueryFailed("the column is gone.")
    assert fleet.jobs == {"job": JobState.FAILED}
    assert fleet.failures == {"job": "the column is gone."}
    fleet.stop(5.0)


def test_a_fleet_whose_jobs_ended_with_the_jvm_says_so_when_it_is_stopped():
    fleet, running = fleet_of(round_s=3600.0), Running()
    fleet.add(Job("job", queries=[running]))
    fleet.start()
    running.isActive, running.failure = False, EngineGone("Spark's JVM is gone.")
    with pytest.raises(EngineGone, match="JVM is gone"):
        fleet.stop(5.0)


def test_an_interrupt_while_a_fleet_starts_stops_the_jobs_that_run():
    fleet, first, second, third = fleet_of(round_s=60.0), Job("first"), Job("second"), Job("third")

    def interrupted():
        raise KeyboardInterrupt

    second.start = interrupted
    for job in (first, second, third):
        fleet.add(job)
    with pytest.raises(KeyboardInterrupt):
        fleet.start()
    assert [query.isActive for query in first.started] == [False]
    assert fleet.jobs == {"first": JobState.GONE}
    assert not third.started


def test_a_query_is_stopped_if_an_interrupt_comes_before_the_fleet_knows_of_it():
    fleet, query = fleet_of(round_s=60.0), Running()

    def interrupted():
        raise KeyboardInterrupt

    query._slots.held = interrupted
    fleet.add(Job(queries=[query]))
    with pytest.raises(KeyboardInterrupt):
        fleet.start()
    assert not query.isActive


def test_a_job_that_was_removed_is_not_started_again():
    fleet = fleet_of(round_s=60.0)
    late = Running(LATE)
    job = Job(queries=[late])
    late._progress = lambda: fleet.remove("job") or (1, True)
    late.isActive = True

    def stop():
        late.isActive = False

    late.stop = stop
    fleet.start()
    fleet.add(job)
    fleet.stop(5.0)
    assert len(job.started) == 1


def test_a_fleet_starts_once_and_takes_no_job_after_its_end():
    fleet = fleet_of(round_s=60.0).start()
    with pytest.raises(ConfigError, match="runs already"):
        fleet.start()
    fleet.stop(5.0)
    for late in (fleet.start, lambda: fleet.add(Job())):
        with pytest.raises(ConfigError, match=r"has been stopped; make another one"):
            late()


def test_all_jobs_are_gone_when_a_fleet_has_been_stopped():
    fleet = fleet_of(round_s=60.0)
    fleet.add(Job("one"))
    fleet.add(Job("two"))
    fleet.start().stop(5.0)
    assert fleet.jobs == {"one": JobState.GONE, "two": JobState.GONE}


def test_a_function_of_a_job_that_stops_its_fleet_is_not_waited_for():
    fleet, running, batch, ended = fleet_of(round_s=3600.0), Running(), BatchThreads(), []
    over = threading.Event()
    running.stop = lambda: over.wait(30) and Running.stop(running)  # at its batch's end
    fleet.add(Job("job", queries=[running]))
    fleet.start()

    def function():
        with batch.working():
            fleet.stop(60.0)
            ended.append(running.isActive)
        over.set()

    thread = threading.Thread(target=function)
    thread.start()
    thread.join(20)
    assert ended == [True]
    fleet.stop(30.0)  # from outside it waits
    assert fleet.jobs == {"job": JobState.GONE}


def test_a_job_that_could_not_start_and_runs_now_is_no_failure():
    broken, fleet = Job("other"), fleet_of(round_s=60.0)
    broken.queries = [None]
    broken.start = lambda: 1 / 0
    fleet.add(broken)
    fleet.add(Job("good"))
    fleet.start()
    assert list(fleet.failures) == ["other"]
    fleet.add(Job("other"))
    assert not fleet.failures
    fleet.stop(5.0)


def test_a_priority_may_change_before_the_fleet_starts():
    fleet = fleet_of(round_s=60.0)
    fleet.add(Job())
    fleet.set_priority("job", 7.0)
    fleet.start()
    assert fleet._members["job"].utility.maximum == 7.0
    fleet.stop(5.0)


@pytest.mark.parametrize("slots", ["many", "8", 2.5])
def test_a_budget_that_is_no_number_of_slots_is_refused(slots):
    with pytest.raises(ConfigError, match='use a whole number from 1 on, or "auto"'):
        fleet_of(slots=slots)


# --- what a fleet takes --------------------------------------------------------------------------


def test_a_writer_keeps_its_slos_and_can_be_added_again():
    fleet, job = fleet_of(round_s=60.0), Job()
    for _ in range(2):
        fleet.add(job)
        fleet.remove("job")
    assert len(job.settings.slos) == 1


def test_what_has_no_slots_to_give_is_refused():
    fleet = fleet_of(round_s=60.0)
    blind, plain = Job(), Job()
    blind.told(policy=SimpleNamespace(name="threshold"))
    plain.told(fallback="spark")
    with pytest.raises(ConfigError, match=r"has the policy threshold and no latency to steer by"):
        fleet.add(blind)
    with pytest.raises(ConfigError, match=r"plain Spark.*leave out \.fallback"):
        fleet.add(plain)
    stateless = Job(queries=[Running(slots=0)])
    fleet.start()
    with pytest.raises(
        ConfigError, match=r'job "job" has neither a stateful operator nor a Python'
    ):
        fleet.add(stateless)
    assert not stateless.started[0].isActive
    assert not fleet.jobs
    fleet.stop(5.0)


@pytest.mark.parametrize("every", ["5 minutes", "interval 5 seconds", "10 seconds"])
def test_a_job_that_would_keep_the_fleet_waiting_for_its_statistics_is_refused(every):
    fleet, job = fleet_of(round_s=10.0), Job()
    job.told(trigger={"processingTime": every})
    if every == "5 minutes":
        with pytest.raises(ConfigError, match=r"a batch every 300 s.* over 60 s; use a shorter"):
            fleet.add(job)
    else:
        fleet.add(job)


# --- rounds --------------------------------------------------------------------------------------


GRANT = {"op": 3}


def changing_member():
    changes = Changes({"op": OperatorState.fresh(1, 8)}, slots_max=8)
    query = Query.__new__(Query)
    query._work = SimpleNamespace(changes=changes)
    query._slots = OperatorSlots(changes, None, lambda event: None)
    query._end = SimpleNamespace(refuse_if_over=lambda act: None)
    query._commands = Commands(
        SimpleNamespace(), changes, None, lambda event: None, Path("journal"), lambda mode: None
    )
    member = Member("job", query, None, UTILITY, 60.0)
    assert not member.grant(GRANT, "henge", "")
    return changes, member


def test_a_job_is_changing_until_its_slots_are_in_force():
    changes, member = changing_member()
    assert member.changing(GRANT)
    changes.put_in_force()
    assert not member.changing(GRANT)


def test_a_change_that_was_given_up_by_a_freeze_is_not_waited_for():
    changes, member = changing_member()
    changes.freeze()
    assert not member.changing(GRANT)


def test_a_change_that_a_user_replaced_is_not_waited_for():
    changes, member = changing_member()
    member.query.scale(2, operator="op")
    changes.put_in_force()
    assert not member.changing(GRANT)


def test_slots_of_a_job_whose_statistics_cannot_be_read_are_not_given_away():
    fleet = fleet_of()
    fleet._members.update({"job": member_of(lambda: 1 / 0, slots=3)})
    fleet._round()
    assert fleet.policy.views[0].slots_max == 8 - 3


def test_a_users_utility_that_fails_does_not_stop_the_other_jobs():
    limited = Custom(lambda latency: 1.0 if latency <= 1.0 else {True: 0.5}[latency <= 1e4])
    own = Utility(1.0, (Intent(Metric.LATENCY, 1.0, limited),))
    broken = FleetJob(own, (1e5,), {"op": FleetOperator(2, 0.5)})
    good = FleetJob(UTILITY, (1.0,), {"op": FleetOperator(1, 0.5)})
    fleet = fleet_of()
    fleet._members.update({"broken": member_of(lambda: broken, 2), "good": member_of(lambda: good)})
    fleet._round()
    assert list(fleet.policy.views[0].jobs) == ["good"]
    assert fleet.policy.views[0].slots_max == 8 - 2


def test_a_fleet_goes_on_deciding_when_its_journal_cannot_be_written(tmp_path):
    fleet = fleet_of(round_s=0.01, journal=tmp_path / "fleet.jsonl")
    job = FleetJob(UTILITY, (1.0,), {"op": FleetOperator(1, 0.5)})
    fleet._members.update({"job": member_of(lambda: job)})
    fleet_round = threading.Event()

    def full(event):
        msg = "no space"
        raise EngineError(msg)

    def decide(view):
        fleet_round.set()
        return FleetDecision(rule="watching")

    fleet.policy.decide = decide
    fleet._journal.journal.write = full
    alive = []

    def run():
        fleet.start()
        assert fleet_round.wait(10)
        alive.append(fleet._thread.is_alive())
        fleet.stop(5.0)

    with pytest.warns(UserWarning, match="no space"):
        run()
    assert alive == [True]


def test_a_removed_job_is_not_taken_for_a_running_one_by_a_look_at_it():
    member = member_of(None)
    looks = iter([lambda: member.stop(lambda why: None)])
    member.query.stop = lambda: None
    member.query._progress = lambda: next(looks, lambda: None)() or (2, False)
    member.refresh()
    assert member.state is JobState.LEAVING


def test_what_slots_put_out_is_not_kept_for_the_window():
    payload = Payload(b"rows", None, 4, 0)
    names = {field.name: 0 for field in dataclasses.fields(Report)}
    bulky = {"changelog": payload, "output": payload, "waiting": payload, "late": payload}
    shape = {"operator": "op", "histogram": (), "useful_ms": 1.0, "phases_ms": {}}
    shape |= {"inputs": (), "ran": None}
    query = SimpleNamespace(operators=[])
    driver = SimpleNamespace(recorder=SimpleNamespace(last=None), states={}, query=query)
    probe = Probe(60.0, slots_min=1)
    probe.around(None, driver)
    probe.committed([Report(**{**names, **shape, **bulky})], 0.0, 0.0)
    (kept,) = probe._steps[0].reports
    assert (kept.operator, kept.useful_ms) == ("op", 1.0)
    assert [getattr(kept, name) for name in bulky] == [None] * 4


def test_a_job_is_shown_with_the_fewest_slots_that_its_user_allows(monkeypatch):
    monkeypatch.setattr(Graph, "of", lambda operators: Graph((), {}))
    probe = Probe(60.0, slots_min=2)
    operator = SimpleNamespace(id="op", upstream=None, parents=())
    driver = SimpleNamespace(
        query=SimpleNamespace(operators=[operator]),
        states={"op": OperatorState.fresh(4, 8)},
        config=SimpleNamespace(slot_rate=None, slots_max=8),
    )
    probe.around(None, driver)
    assert probe.operators()["op"].slots_min == 2


@pytest.mark.parametrize(
    ("progress", "looks"),
    [
        ([(0, False), (1, False), (1, True)], 3),  # the first batch is over and nothing follows
        ([(0, False), (1, False), (2, False)], 3),  # or the second has begun
        ([(0, True), (0, True), (1, True)], 3),  # idle before any batch is not done
    ],
)
def test_the_next_job_starts_after_the_first_batch_of_the_one_before(monkeypatch, progress, looks):
    clock = SimpleNamespace(now=0.0, sleeps=[])
    clock.monotonic = lambda: clock.now

    def sleep(seconds):
        clock.now += seconds
        clock.sleeps.append(seconds)

    clock.sleep = sleep
    monkeypatch.setattr(members, "time", clock)
    member = member_of(lambda: None)
    member.query._progress = lambda: progress[len(clock.sleeps)]
    member.await_first_batch(60.0)
    assert len(clock.sleeps) == looks - 1

    member.query._progress = lambda: (1, False)
    began_s = clock.now
    member.await_first_batch(5.0)
    assert 5.0 <= clock.now - began_s <= 6.0  # no longer than it is told

    member.query.isActive = False
    began_s = clock.now
    member.await_first_batch(5.0)
    assert clock.now == began_s


def test_a_round_tells_of_each_job_what_it_holds_was_granted_and_asked_for():
    operators = {"op": FleetOperator(slots=2, capacity=0.12345)}
    job = FleetJob(UTILITY, (0.5,), operators, 12.3456)
    members = {"job": member_of(lambda: job, slots=2), "gone": member_of(lambda: job)}
    members["gone"].state = JobState.GONE
    view = FleetView(3.0, {"job": job}, slots_max=8)
    (told,) = (found := fleet_round(view, members, 8, {"job": {"op": 3}})).jobs
    assert (told.job, told.state, told.slots, told.granted) == (
        "job",
        "running",
        {"op": 2},
        {"op": 3},
    )
    assert (told.values, told.capacity, told.input_rate) == ((0.5,), {"op": 0.1235}, 12.346)
    assert (told.utility, told.utility_max, told.met) == (
        round(job.attained, 6),
        UTILITY.maximum,
        job.met,
    )
    assert (found.slots, found.slots_max, found.utility) == (2, 8, told.utility)
    (silent,) = fleet_round(FleetView(3.0, {}, slots_max=8), {"job": members["job"]}, 8, {}).jobs
    assert (silent.utility, silent.met, silent.granted, silent.capacity) == (None, False, {}, {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "RuntimeError"),
        ("  no room\n\tat org.apache.spark.Foo", "no room"),
        ("Query [id = 1] terminated with exception: The disk is full.", "The disk is full."),
        (
            'Job aborted\nTraceback (most recent call last):\n  File "x.py", line 1\n'
            "ValueError: no\nmy.own.Error: n is 5\norg.apache.SparkException: Error: y\n at z",
            "my.own.Error: n is 5",
        ),
    ],
)
def test_of_a_failure_the_line_is_told_that_says_why(text, reason):
    assert _reason(RuntimeError(text)) == reason
