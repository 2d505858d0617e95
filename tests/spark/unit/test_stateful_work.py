"""The steps of stateful operators, without Spark: what is due, told to slots, agreed on and noted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_steps import GROUPS, Spark, Steps, begun, report
from pyspark.sql import types as T

from headgate.core.assignment import Assignment
from headgate.core.errors import EngineError
from headgate.journal.hosts import SlotLost
from headgate.operators.spec import NEVER_US
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.step import stateful
from headgate.spark.step.outcome import Outcome

# --- What there is to do ------------------------------------------------------------------------------


def test_work_is_due_at_the_watermark_that_reaches_an_operator() -> None:
    steps = Steps()
    assert not steps.work.due(10**15, 0.0)
    steps.states["counts"].due_us[2] = 700
    assert not steps.work.due(999, 0.0)
    assert steps.work.due(1000, 0.0)


def test_work_by_the_clock_is_due_at_its_time_whatever_the_watermark() -> None:
    steps = Steps()
    steps.work.query.operators[1].spec.by_clock = True
    steps.states["counts"].due_us[0] = 5_000_000
    assert not steps.work.due(10**15, 4999.0)
    assert steps.work.due(0, 5000.0)


def test_work_is_due_where_records_wait() -> None:
    steps = Steps()
    assert not steps.work.waits
    assert steps.work.has_steps
    assert steps.work.attempts == 3
    steps.states["join"].backlog = {1: [["file", 0, 4, 0]]}
    steps.states["counts"].backlog = {0: [["file", 0, 3, 0]]}
    assert steps.work.due(0, 0.0)
    assert steps.work.waits
    assert steps.work.waiting_rows() == 7


@pytest.mark.parametrize(("pending", "running"), [(True, False), (False, True), (False, False)])
def test_boundaries_must_come_for_what_was_asked_for_and_for_what_moves(
    pending: bool, running: bool
) -> None:
    work = Steps().work
    work.changes = SimpleNamespace(pending=pending)
    work.migrations.running = running
    assert work.changing == (pending or running)


def test_every_fortieth_quiet_batch_in_turn_is_a_heartbeat() -> None:
    work = Steps().work
    beats = [n for n in range(1, 86) if work.quiet(0, 1.5, 60.0)]
    assert beats == [40, 80]
    work.prepare(begun())
    assert [n for n in range(1, 42) if work.quiet(0, 1.5, 60.0)] == [40], "a step counts as well"


def test_a_quiet_batch_is_told_and_its_time_is_nobodys_quota() -> None:
    steps = Steps(slot_rate=10.0)
    steps.work.quiet(0, 1.5, 4000.0)
    assert steps.said == ["quiet 1.5"]
    assert steps.work.prepare(begun(started_ms=5000.0))["quotas"]["join"] == [10, 10]


@pytest.mark.parametrize(("logged", "after"), [(None, 50), (40, 50), (60, 60)])
def test_the_watermark_never_goes_back_in_a_restart(logged: int | None, after: int) -> None:
    log = SimpleNamespace(next_watermark_us={3: logged}.get)
    latest = SimpleNamespace(watermarks={"evict_us": 50}, spark_batch=3)
    assert Steps().work.last_watermark_us(latest, log) == after


# --- A step begins ------------------------------------------------------------------------------------


def test_a_step_begins_with_the_assignments_and_quotas_in_force() -> None:
    steps = Steps()
    work = steps.work
    work.recorder.begun = steps.said.append
    assert work.prepare(begun()) == {
        "epoch": 0,
        "watermark_us": 1000,
        "assignments": {
            "join": {"slots": 2, "slot_of": [0, 0, 1, 1]},
            "counts": {"slots": 2, "slot_of": [0, 0, 1, 1]},
        },
        "quotas": {"join": [200, 200], "counts": [200, 200]},
    }
    assert steps.said == [begun()]


def test_the_last_step_serves_all_that_waits() -> None:
    assert Steps().work.prepare(begun(drain=True))["quotas"] == {"join": None, "counts": None}


def test_slots_that_share_all_records_have_no_quota() -> None:
    work = Steps().work
    work.query.operators[0].shared = True
    assert work.prepare(begun())["quotas"] == {"join": None, "counts": [200, 200]}


def test_a_rate_of_slots_counts_for_operators_that_read_the_source_only() -> None:
    work = Steps(slot_rate=10.0).work
    assert work.prepare(begun(started_ms=5000.0))["quotas"] == {
        "join": [20, 20],  # of the two seconds since it was served last
        "counts": [200, 200],
    }
    assert work.prepare(begun(started_ms=5500.0))["quotas"]["join"] == [5, 5]


def test_an_assignment_in_force_is_noted_and_one_on_its_way_only_told() -> None:
    steps = Steps()
    final = AssignmentRequest(Assignment((0, 1, 2, 0), 3), "user", "", ())
    moving = replace(final, state=RequestState.MOVING)
    steps.work._note_assigned({"join": final, "counts": moving}, 8)
    assert steps.said == [
        ("assignment", 8, "join", final),
        ("told", "join", final),
        ("told", "counts", moving),
    ]


def test_each_operator_of_a_chain_is_told_which_reads_it() -> None:
    work = Steps().work
    join, counts = work.query.operators
    join.spec, counts.spec = "a join", "counts"
    work._channel = SimpleNamespace(sender="sender")
    work.checkpoint.options = {"key": "secret"}
    work.query.chains, work._into_sink = [[join, counts]], True
    tasks = work._make_tasks()
    assert [(name, one.operator, one.spec) for name, one in tasks.items()] == [
        ("join", "join", "a join"),
        ("counts", "counts", "counts"),
    ]
    assert [one.next_operator for one in tasks.values()] == ["counts", None]
    assert {one.into_sink for one in tasks.values()} == {True}
    assert tasks["join"].store == {"key": "secret"}


def test_what_slots_put_out_is_rows_for_a_reader_and_nothing_for_the_checkpoint() -> None:
    work = Steps().work
    rows = T.StructType([T.StructField("k", T.LongType())])
    last = SimpleNamespace(raw_schema=rows)

    def columns(reader: str | None, *, into_sink: bool) -> list[str]:
        task = SimpleNamespace(next_operator=reader, into_sink=into_sink)
        return list(work._emitted_schema(last, task).names)

    assert columns(None, into_sink=False) == ["nothing"]
    assert columns(None, into_sink=True) == ["k"]
    markers = ["k", "m_to", "m_token", "m_us"]
    assert columns("counts", into_sink=False) == columns("counts", into_sink=True) == markers


def test_a_rehearsal_plans_all_chains_and_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    planned: list[Any] = []
    nothing = SimpleNamespace(sparkSession="session")
    steps.work.intake = SimpleNamespace(rehearsal=lambda: nothing)
    join, counts = steps.work.query.operators
    counts.feeds = (join,)
    steps.work._fed = lambda session, head, read: (session, head.id, read)
    steps.work._results.stored = lambda outputs, _: outputs.entries
    monkeypatch.setattr(stateful, "physical", planned.append)
    steps.work.rehearse()
    assert steps.chains["join"].asked == [(nothing, False)]
    assert steps.chains["counts"].asked == [(("session", "counts", []), False)]
    assert [chain.forgotten for chain in steps.chains.values()] == [1, 1]
    assert planned == [[]]
    steps.work.query.operators = []
    steps.work.rehearse()
    assert planned == [[]], "Catalyst does all"
    assert not steps.work.has_steps


def test_what_was_asked_for_is_in_force_with_the_step_that_begins() -> None:
    steps = Steps()
    asked = {name: f"request for {name}" for name in ("join", "counts", "other")}
    request = AssignmentRequest(Assignment((0, 1, 2, 0), 3), "user", "", ())
    steps.states["other"] = steps.states["join"]
    steps.work.changes = SimpleNamespace(
        epoch=3,
        requested={name: asked[name] for name in ("join", "counts")}.get,
        put_in_force=lambda governed: {"join": request} if governed == ["counts"] else {},
        arrange=lambda: steps.said.append("arrange"),
    )
    steps.work.migrations.governs = lambda name: name != "join"
    steps.work.migrations.begin = lambda step: {"counts": request} if step == 8 else {}
    steps.work._quotas = {}
    steps.work._put_requested(8)
    assert [told[1:] for told in steps.said] == [
        (8, "join", request),
        ("join", request),
        (8, "counts", request),
        ("counts", request),
    ]
    steps.said.clear()
    steps.work.arrived()
    assert steps.said == ["arrange"]


def test_batches_come_into_the_session_for_which_rows_are_planned() -> None:
    steps = Steps()
    settled: list[Any] = []
    steps.work.intake = SimpleNamespace(settle_in=lambda *told: settled.append(told))
    steps.chains["join"].into_slots, steps.chains["counts"].into_slots = ["a", "b"], ["c"]
    steps.work.settle_in("batch")
    assert settled == [("batch", ["a", "b", "c"])]


# --- A step is computed -------------------------------------------------------------------------------


class Batch:
    """A batch that says how often it is kept."""

    def __init__(self) -> None:
        self.kept: list[bool] = []
        self.sparkSession = "the batch's session"

    def persist(self) -> Batch:
        self.kept.append(True)
        return self

    def unpersist(self) -> None:
        self.kept.append(False)


def computing(*reports: Any, **begins: Any) -> tuple[Steps, Batch, Any]:
    """Return steps, a batch, and what comes of its computation when slots report so."""
    steps, batch = Steps(), Batch()
    coming = [list(reports[:2]), list(reports[2:])]
    steps.work._channel = SimpleNamespace(drain=lambda step, attempt: coming.pop(0))
    join, counts = steps.work.query.operators
    counts.feeds = (join,)
    steps.work._fed = lambda _, head, read: (head.id, [r.slot for r in read])
    laps: list[str] = []
    found = steps.work.compute(batch, begun(**begins), 2, SimpleNamespace(lap=laps.append))
    assert laps == ["plan", "slots"] * 2
    return steps, batch, found


ALL = [report(name, slot) for name in ("join", "counts") for slot in range(2)]


def test_chains_run_one_after_another_and_a_reader_gets_what_was_put_out_before() -> None:
    steps, batch, found = computing(*ALL)
    assert found == ALL
    assert steps.chains["join"].asked == [(batch, True)]
    assert steps.chains["counts"].asked == [(("counts", [0, 1]), True)]
    assert batch.kept == []
    assert [chain.counted for chain in steps.chains.values()] == [1, 1]
    assert computing(*ALL, latest=LATEST)[0].chains["join"].asked[0][1] is False


def test_a_batch_that_several_chains_read_is_kept_for_the_step() -> None:
    steps, batch = Steps(), Batch()
    steps.work.query.sources = [["join"], ["counts"]]
    steps.work._channel = SimpleNamespace(drain=lambda *_: [])
    with pytest.raises(EngineError, match="0 reports came from 2 slots of join"):
        steps.work.compute(batch, begun(), 1, SimpleNamespace(lap=lambda _: None))
    assert batch.kept == [True, False]


def test_jobs_are_described_to_those_who_look_at_spark() -> None:
    steps = Steps()
    steps.work._describe(8, steps.work.query.operators)
    properties = steps.work.spark.properties
    assert properties["spark.job.description"] == "clicks b8: join x2, counts x2, epoch 0"
    assert computing(*ALL)[0].work.spark.properties["spark.job.description"] == "clicks b8: sink"


def test_rows_go_straight_to_a_sink_that_takes_them_from_the_slots() -> None:
    steps = Steps()
    counted: list[str] = []
    straight = SimpleNamespace(count=lambda: counted.append("results"))
    steps.work._results.straight = lambda _: straight
    coming = [ALL[:2], ALL[2:]]
    steps.work._channel = SimpleNamespace(drain=lambda *_: coming.pop(0))
    steps.work._into_sink = True
    steps.work.compute(Batch(), begun(), 1, SimpleNamespace(lap=lambda _: None))
    assert counted == ["results", "results"]
    assert [chain.counted for chain in steps.chains.values()] == [0, 0]


def test_an_operator_reads_what_each_of_its_parents_has_put_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Steps().work
    left, right = (SimpleNamespace(id=name, raw_schema=name) for name in ("left", "right"))
    head = SimpleNamespace(id="counts", parents=(left, right))
    work._leaf_of = lambda parent, frame: (parent.id, frame)
    fed = SimpleNamespace(fed_input=lambda *told: told)
    monkeypatch.setattr(stateful, "exchange", fed)
    monkeypatch.setattr(stateful, "raw_frame", lambda _, schema, entries, *__: (schema, entries))
    output = SimpleNamespace(data=b"rows", name=None, length=4, crc32=0)
    reports = [report("left", 0, output=output), report("right", 1, output=None)]
    entry = {"operator": "left", "rows": 2, "inline": "output-left0"}
    put_out = {"left": ("left", ("left", [entry])), "right": ("right", ("right", []))}
    assert work._fed("session", head, reports) == ("session", head, put_out, GROUPS)


def test_an_operator_behind_another_is_no_further_than_what_that_one_holds() -> None:
    steps, _, _ = computing(report("join", 0, holds_us=900), report("join", 1), *ALL[2:])
    facts = {
        name: json.loads(steps.work.spark.properties[f"headgate.step.{name}"])
        for name in ("join", "counts")
    }
    assert (facts["join"]["watermark_us"], facts["counts"]["watermark_us"]) == (1000, 700)


LATEST: Any = SimpleNamespace(checksums={"backlog": {"late": 5}}.get)


def test_slots_are_told_all_that_a_step_is_to_know() -> None:
    steps = Steps()
    state = steps.states["join"]
    state.assignment = Assignment((0, 0, 1, 1), 2, split={1: (0, 1)})
    state.held, state.backlog = frozenset({3, 2}), {0: [["late", 0, 4, 0]], 1: []}
    state.emitted_us[1], state.stands_us = 60, {1: 70}
    state.full_steps[0] = state.steps[0] = 7
    steps.states["counts"].assignment = Assignment((0, 1, 2, 0), 3)
    steps.work._quotas = {"join": [5, 6], "counts": None}
    facts = steps.work._facts(steps.work.query.operators[0], begun(latest=LATEST), 2, 990)
    told = {
        "step": 8,
        "attempt": 2,
        "watermark_us": 990,
        "split": {"1": (0, 1)},
        "stands_us": {"1": 70},
        "held": [2, 3],
        "due_us": [NEVER_US] * 4,
        "backlog": {"0": [["late", 0, 4, 0]]},
        "waiting_crc32": {"late": 5},
        "quotas": [5, 6],
        "next_slots": 3,
        "keep_late": True,
        "show_keys": False,
        "delta_ms": 50.0,
        "bound_ms": 100.0,
        "origins": True,
        "timestamp_ms": 41,
        "time_limit_s": 7.0,
        "arrived_ms": 40.0,
        "faults": [{"kind": "any"}, {"operator": "join"}],
        "memory": None,
        "arena_root": "/arenas",
        "run_id": "run-1",
        "checkpoint": "/checkpoint",
    }
    assert {name: getattr(facts, name) for name in told} == told
    last = steps.work._facts(steps.work.query.operators[1], begun(), 1, 990)
    assert (last.next_slots, last.waiting_crc32) == (0, {})


def test_slots_of_a_cluster_have_arenas_of_their_own_host() -> None:
    work = Steps(memory_max=1000).work
    work.spark = Spark("spark://host:7077")
    work.run.spill = SimpleNamespace(path=Path("/spill/run-1"))
    places = work._places()
    assert places["arena_root"] is None
    assert places["memory"] == {"byte_count": 1000, "key_groups": GROUPS, "spill_root": "/spill"}


# --- A step is out ------------------------------------------------------------------------------------


def done(steps: Steps, emitted: int = 9) -> None:
    outcome: Any = Outcome(SimpleNamespace(step=8), ALL, {}, 1, emitted)  # type: ignore[arg-type]
    steps.work.done(outcome, begun())


def test_a_step_that_is_out_is_written_down_and_told() -> None:
    steps = Steps()
    done(steps)
    assert steps.said == [
        "out 9",
        ("observed", 6, "metrics"),
        ("committed", 5000.0, 40.0),
        ("settled", 5, set()),  # the most slots of any operator
    ]
    assert steps.chains["join"].learned == [(ALL[:2], 2)]
    assert steps.chains["counts"].learned == [(ALL[2:], 2)]


def test_a_step_without_rows_has_no_metrics_of_the_users() -> None:
    steps = Steps()
    done(steps, emitted=0)
    assert ("observed", 6, "metrics") not in steps.said
    steps.work._into_sink = True
    done(steps, emitted=0)
    assert ("observed", 6, "metrics") in steps.said
    assert "out 8" in steps.said, "what slots wrote into the sink themselves, they say"


def test_slots_are_on_the_hosts_where_they_are_placed() -> None:
    steps = Steps()
    steps.work._placements["counts"].active = True
    assert steps.work._hosts_in_use() == {"host0", "host1", "host2"}


def test_a_lost_slot_is_written_down_with_the_newest_epoch_and_told() -> None:
    steps = Steps()
    steps.states["counts"].assignment = Assignment((0, 1, 1, 0), 2, epoch=4)
    steps.work._losses.in_step = lambda _: [("counts", 1)]
    done(steps)
    assert SlotLost(8, "counts", 1, 4) in steps.said
    assert "lost counts 1" in steps.said


def test_a_failed_attempt_says_whose_slots_were_lost() -> None:
    steps, error = Steps(), EngineError("lost", transient=True)
    steps.states["counts"].assignment = Assignment((0, 1, 2, 0), 3)
    steps.work._agreed_on = ALL[:2]
    steps.work._channel = SimpleNamespace(drain=lambda *of: ALL[2:] if of == (8, 2) else [])
    asked: list[Any] = []

    def lost(*told: Any) -> list[tuple[str, int]]:
        asked.append(told)
        return [("join", 0)]

    steps.work._losses.in_attempt = lost
    steps.work.retry(8, 2, error)
    assert asked == [(error, [{"join": 2}, {"counts": 3}], ALL)]
    assert steps.said == ["retry 8, 2", SlotLost(8, "join", 0, 0), "lost join 0"]


def test_what_other_operators_have_read_is_delivered_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stateful, "replace", lambda r, output: f"{r.token} without output")
    monkeypatch.setattr(stateful, "next_manifest", lambda *told: told)
    work = Steps().work
    work.uuid, work.migrations.to_dict = "uuid", "migration"
    committed = work.manifest(begun(), ALL)
    assert committed[1:4] == ("uuid", 0, work.states)
    assert committed[4][:2] == ["join0 without output", "join1 without output"]
    assert committed[4][2:] == ALL[2:]
    assert committed[5] == "migration"


def test_a_step_that_is_final_is_told_to_what_moves_and_a_batch_passed_on_is_written() -> None:
    steps = Steps()
    steps.work.committed(8)
    steps.work.passed_on(3, {"sink": 1.0})
    assert steps.said == ["committed 8", ("stateless", 3, {"sink": 1.0})]


def test_migrations_go_on_that_the_newest_manifest_has() -> None:
    steps, restored = Steps(), []
    steps.work.migrations.restore = lambda *told: restored.append(told)
    steps.work._resume_migrations()
    assert restored == []
    operators = {"join": {"migration": {"to": 3}}, "counts": {}}
    steps.work.job.latest = SimpleNamespace(engine={"operators": operators})
    steps.work._resume_migrations()
    assert restored == [("join", {"to": 3})]
