"""The steps of a query in real time, without Spark: pipe, slots and sink are made up."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from made_up_steps import GROUPS, Spark, Steps, begun, report
from pyspark.sql import types as T

from headgate.core.assignment import Assignment
from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import NEVER_US
from headgate.operators.step import GROUP
from headgate.spark.move.copy_thread import Lags
from headgate.spark.realtime import work as module
from headgate.spark.realtime.epoch_lines import EpochRecorder
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.work import RealTimeWork
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.step.stateful import StatefulWork

ROWS = pa.table({"v": [1, 2]})


@dataclass(frozen=True)
class Task:
    """A slot's task as micro-batches have it."""

    sender: Any = "sender"
    next_operator: str | None = "counts"


@dataclass(frozen=True)
class Committed:
    """A manifest as far as the work of epochs looks at it."""

    step: int = 8
    spark_batch: int = 6
    engine: dict[str, Any] = field(default_factory=dict)
    files: tuple[()] = ()
    payloads: dict[str, bytes] = field(default_factory=dict)


def epochs(**config: Any) -> Steps:
    steps = Steps(RealTimeWork, **config)
    work = steps.work
    work._lines = SimpleNamespace(
        look=lambda: steps.said.append("look"), flush=lambda: steps.said.append("line")
    )
    work._agents = None
    work.pipe = SimpleNamespace(newest_us={})
    work.intake = SimpleNamespace(session="session")
    work._between, work._routed, work._newest_us = {}, {}, {}
    work._backlog_ends, work.next_us, work._seen_us, work.delivered = "", 0, 0, 7
    work._plan = PipePlan((), (20,), True)
    work.feeds = SimpleNamespace(reached=lambda sources, ends: sources == ends)
    work.before_commit = lambda made: steps.said.append(made.step)
    return steps


# --- The pipe begins ----------------------------------------------------------------------------------


def beginning(monkeypatch: pytest.MonkeyPatch, *, broadcasts: bool = False) -> tuple[Steps, Any]:
    """Return steps whose pipe is to begin, and what was made for it."""
    steps, made = epochs(), SimpleNamespace(pipes=[], closed=0)
    steps.work.recorder = object.__new__(EpochRecorder)
    steps.work.checkpoint.options = {}
    steps.work._tasks = {"join": Task(), "counts": Task(next_operator=None)}
    steps.work._copy_thread = SimpleNamespace(lags=None)

    def close() -> None:
        made.closed += 1

    def pipe(*told: Any) -> Any:
        made.pipes.append(told)
        return SimpleNamespace(has_broadcasts=broadcasts)

    hosts = SimpleNamespace(meeting="meeting", close=close)
    monkeypatch.setattr(module, "OneHost", lambda *_: hosts)
    monkeypatch.setattr(RealTimeWork, "_agents_of", lambda *_: hosts)
    monkeypatch.setattr(module, "SparkJob", lambda *told: told)
    monkeypatch.setattr(module, "Pipe", pipe)
    assert steps.work.prepare_slots()
    return steps, made


def of_branches(*operators: str) -> tuple[Any, Any]:
    """Return a plan of so many branches, and feeds of two tasks for the first, three for the next."""
    plan = SimpleNamespace(branches=[SimpleNamespace(operator=name) for name in operators])
    shares = [SimpleNamespace(count=n) for n in range(2, 2 + len(operators))]
    return plan, SimpleNamespace(shares=shares)


def test_a_pipe_has_the_slots_of_all_operators_and_routers_of_those_that_read_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, made = beginning(monkeypatch)
    steps.work.query.operators[1].shared = True
    plan, feeds = of_branches("join", "join")
    steps.work.begin(plan, feeds, 500)
    (job, _, tasks, routers, name, _) = made.pipes[0]
    assert job[3:] == ({"counts"}, "meeting", "clicks")
    assert (routers, name) == ({"join": 5, "counts": 0}, "clicks")
    assert tasks == {name: Task(sender=None, next_operator=None) for name in ("join", "counts")}
    assert (steps.work.next_us, steps.work._seen_us, steps.work.delivered) == (500, 500, -1)
    assert steps.work._copy_thread.lags == Lags(caught_up=4, served=12)
    assert made.closed == 0


def test_a_pipe_goes_on_where_the_newest_manifest_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, _ = beginning(monkeypatch)
    steps.work.job.latest = Committed(engine={"real_time": {"seen_watermark_us": 900}})
    steps.work.begin(*of_branches("join"), 500)
    assert (steps.work.next_us, steps.work._seen_us, steps.work.delivered) == (500, 900, 8)


def test_only_on_one_host_slots_are_prepared_ahead_of_the_pipe() -> None:
    """On a cluster agents do it, one on each host."""
    steps = epochs()
    steps.work.spark = Spark("spark://h:7077")
    assert not steps.work.prepare_slots()


def test_what_starts_slots_ends_where_no_pipe_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, made = beginning(monkeypatch)

    def refuse(*_: Any) -> Any:
        raise OSError("no port")

    monkeypatch.setattr(module, "SparkJob", refuse)
    with pytest.raises(OSError, match="no port"):
        steps.work.begin(*of_branches("join"), 0)
    assert made.closed == 1


def test_a_broadcast_variable_reaches_no_slot_of_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, made = beginning(monkeypatch, broadcasts=True)
    steps.work.begin(*of_branches("join"), 0)
    steps.work.spark = Spark("spark://h:7077")
    with pytest.raises(UnsupportedQuery, match="a broadcast variable in a stateful function"):
        steps.work.begin(*of_branches("join"), 0)
    assert made.closed == 1


@pytest.mark.parametrize(("shares", "ends"), [(True, "newest behind 3"), (False, "")])
def test_sources_of_one_watermark_are_read_up_to_now_before_it_moves(
    shares: bool, ends: str
) -> None:
    steps = epochs()
    work = steps.work
    work._plan = SimpleNamespace(shares_watermark=lambda same: shares and same == (0, 1))
    work.feeds = SimpleNamespace(same_as=(0, 1), newest=lambda at: f"newest behind {at}")
    work.changes = SimpleNamespace(withdraw=lambda: steps.said.append("withdraw"))
    work.pipe.start = lambda *told: steps.said.append(told)
    work.start("3")
    assert work._backlog_ends == ends
    assert steps.said == ["withdraw", ("3", work.assignments)]
    assert work.assignments["join"] == steps.states["join"].assignment


# --- What there is to do ------------------------------------------------------------------------------


def test_an_epoch_is_computed_once_and_the_query_fails_after_so_many() -> None:
    work = epochs().work
    assert (work.attempts, work.allowed_failures, work.has_batches) == (1, 3, False)


def test_the_loop_rests_until_a_clock_makes_something_due(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = epochs()
    monkeypatch.setattr(time, "time", lambda: 100.0)
    steps.states["join"].due_us[1] = 101_000_000  # by the watermark: no time of a clock
    assert steps.work.rest_s() == NEVER_US / 1e6 - 100
    steps.work.query.operators[1].spec.by_clock = True
    steps.states["counts"].due_us[2] = 104_500_000
    assert steps.work.rest_s() == 4.5
    steps.states["counts"].due_us[0] = 99_000_000
    assert steps.work.rest_s() == 0


def test_agents_are_looked_after_always_and_the_line_where_nothing_waits() -> None:
    steps = epochs()
    steps.work._agents = SimpleNamespace(look=lambda: steps.said.append("agents"))
    steps.work.look(quiet=False)
    assert steps.said == ["agents"]
    steps.work._observer.quiet = lambda ms: steps.said.append(abs(ms / 1e3 - time.time()) < 60)
    steps.work.look(quiet=True)
    assert steps.said == ["agents", "agents", "look", True]
    steps.work._agents = None
    steps.work.look(quiet=False)
    assert len(steps.said) == 4


def test_the_journals_lines_are_about_all_operators_and_deliveries() -> None:
    steps = epochs()
    steps.work._lines.follow = lambda *told: steps.said.append(told)
    took = steps.said.copy
    steps.work.record(took)
    assert steps.said == [(steps.states, took)]


# --- Assignments --------------------------------------------------------------------------------------


def test_executors_are_wanted_for_the_slots_that_are_or_shall_be() -> None:
    steps = epochs()
    newest = {"join": Assignment((0,) * GROUPS, 1), "counts": Assignment((0, 1, 2, 0), 3)}
    steps.work.changes = SimpleNamespace(newest=newest.get)
    assert steps.work.wanted_slots == {"join": 2, "counts": 3}


def test_what_moves_is_announced_beside_what_was_asked_for() -> None:
    work = epochs().work
    moved, asked = Assignment((0, 1, 1, 0), 2), Assignment((0, 1, 2, 0), 3)
    work.migrations.announce = lambda step: {"join": moved} if step == 8 else {}
    work.migrations.governs = lambda name: name == "counts"
    work.migrations.ending = True
    work.changes = SimpleNamespace(announce=lambda names: dict.fromkeys(names, asked))
    assert work.announce(8) == {"join": moved, "counts": asked}
    assert work.must_hold_still


@pytest.mark.parametrize("changes", [True, False])
@pytest.mark.parametrize("still", [True, False])
def test_a_change_of_assignments_ends_the_journals_line(
    still: bool, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = epochs()

    def put(by: str) -> None:
        steps.said.append(by)
        if changes:
            steps.states["join"].assignment = Assignment((0, 1, 2, 0), 3)

    def announced() -> dict[str, Any]:
        put("announced")
        return {}

    def begin(step: int, *, still: bool) -> dict[str, Any]:
        steps.said.append((step, still))
        return {}

    monkeypatch.setattr(StatefulWork, "_put_requested", lambda _, step: put("asked for"))
    steps.work.changes = SimpleNamespace(put_announced=announced)
    steps.work.migrations.begin = begin
    steps.work.change(8, still=still)
    line = ["line"] if changes else []
    assert steps.said == (["asked for"] if still else ["announced", (8, False)]) + line


def test_a_step_that_begins_changes_no_assignment() -> None:
    steps = epochs()
    steps.work.changes = SimpleNamespace(epoch=4)
    steps.work.recorder.begun = steps.said.append
    assert steps.work.prepare(begun())["epoch"] == 4
    assert steps.said == [begun()]


# --- An epoch is computed -----------------------------------------------------------------------------


def test_operators_serve_an_epoch_in_turn_and_read_what_their_parents_put_out() -> None:
    steps = epochs()
    join, counts = steps.work.query.operators
    counts.parents = (join,)
    served: list[Any] = []
    of = {name: [report(name, 0, holds_us=600)] for name in ("join", "counts")}

    def serve(name: str, facts: Any, rows: Any, meanwhile: Any) -> list[Any]:
        served.append((name, facts.watermark_us, facts.attempt, rows))
        meanwhile()
        return of[name]

    steps.work.pipe.serve = serve
    steps.work._from_driver = lambda op, read, first: (op.id, read, first)
    laps: list[str] = []
    clock = SimpleNamespace(lap=laps.append)
    assert steps.work.compute(None, begun(), 2, clock) == [*of["join"], *of["counts"]]
    assert served == [
        ("join", 1000, 2, ("join", [], True)),
        ("counts", 600, 2, ("counts", of["join"], True)),
    ]
    assert (laps, steps.said) == (["plan", "slots"], ["look", "look"])
    steps.work.compute(None, begun(latest=SimpleNamespace(checksums=lambda _: {})), 2, clock)
    assert served[-1][-1] == ("counts", of["join"], False)


def rows_of(parts: dict[int, bytes]) -> dict[int, list[int]]:
    return {n: pa.ipc.open_stream(part).read_all()["v"].to_pylist() for n, part in parts.items()}


def test_rows_go_to_the_slots_of_their_key_groups_and_none_to_others() -> None:
    steps = epochs()
    steps.states["join"].assignment = Assignment((2, 0, 2, 1), 3)
    table = pa.table({GROUP: pa.array([0, 1, 2, 1], pa.int32()), "v": [10, 11, 12, 13]})
    parts = steps.work._to_slots(steps.work.query.operators[0], table)
    assert rows_of(parts) == {0: [11, 13], 2: [10, 12]}


def stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def reading(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> tuple[Any, Any]:
    """Return work, and an operator behind a parent, whose plans by Spark are made up as texts."""
    work = epochs().work
    work._fed = lambda session, op, read: Frame(f"{session}: {op.id} of {len(read)}")
    work._to_slots = lambda op, table: f"{op.id}: {table}"
    exchange = SimpleNamespace(
        with_initial=lambda frame, op, groups: Frame(f"{frame.text}, {op.initial} {groups}"),
        initial_rows=lambda session, initial, groups: Frame(f"{session}: {initial} {groups}"),
    )
    monkeypatch.setattr(module, "exchange", exchange)
    work._in_place = lambda op: None
    parent = SimpleNamespace(id="join", raw_schema=T.StructType())
    told = {"id": "counts", "parents": (parent,), "initial": None, **facts}
    return work, SimpleNamespace(**told)


@dataclass(frozen=True)
class Frame:
    """A DataFrame that says how it was made."""

    text: str

    def toArrow(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("facts", "first", "rows"),
    [
        ({}, False, "counts: session: counts of 1"),
        ({"initial": "state"}, False, "counts: session: counts of 1"),
        ({"initial": "state"}, True, "counts: session: counts of 1, state 4"),
        ({"parents": (), "initial": "state"}, True, "counts: session: state 4"),
        ({"parents": (), "initial": "state"}, False, {}),
        ({"parents": ()}, True, {}),
    ],
)
def test_the_driver_sends_what_comes_of_no_source(
    facts: dict[str, Any], first: bool, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, op = reading(monkeypatch, **facts)
    assert work._from_driver(op, ["report"], first=first) == rows


def test_a_narrow_plan_is_computed_here_except_beside_an_initial_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, op = reading(monkeypatch, initial="state")
    work._in_place = lambda _: SimpleNamespace(rows=lambda table: table)
    work._routed = {"counts": pa.schema({"v": pa.int32()})}
    work._to_slots = lambda _, table: (table.schema, table["v"].to_pylist())
    inline = SimpleNamespace(data=stream(ROWS), name=None, length=0, crc32=0)
    read = [report("join", 0, output=inline)]
    assert work._from_driver(op, read, first=False) == (work._routed["counts"], [1, 2])
    assert work._from_driver(op, [report("join", 0, output=None)], first=False) == {}
    work._to_slots = lambda _, table: table
    assert work._from_driver(op, read, first=True) == "session: counts of 1, state 4"


def test_a_plan_between_two_operators_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    work, op = reading(monkeypatch)
    del work._in_place
    schema = T.StructType([T.StructField("k", T.LongType())])
    op.parents = (SimpleNamespace(
        id="join", raw_schema=schema, placeholder=SimpleNamespace(output=lambda: "columns")
    ),)  # fmt: skip
    work.intake.session = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "Europe/Paris"))
    work.run.path = Path("/run")
    monkeypatch.setattr(module, "no_rows", lambda *_: "no rows")
    monkeypatch.setattr(module, "internal_rows", lambda frame: frame)
    monkeypatch.setattr(module, "leaf", lambda _, columns, rows: f"{columns} of {rows}")
    between: list[Any] = []

    def narrow(*told: Any) -> str:
        between.append(told)
        return "narrow"

    monkeypatch.setattr(module, "NarrowPlan", SimpleNamespace(of=narrow))
    stamps = T.StructType([T.StructField("at", T.TimestampType())])
    frame = SimpleNamespace(schema=stamps)
    fed = SimpleNamespace(fed_input=lambda _, op, holes, groups: frame if holes else None)
    monkeypatch.setattr(module, "exchange", fed)
    assert [work._in_place(op), work._in_place(op)] == ["narrow", "narrow"]
    assert between == [(frame, "columns of no rows", schema, Path("/run/rows-counts"))]
    assert work._routed["counts"].field("at").type.tz == "Europe/Paris"


def test_a_plan_of_two_operators_or_of_types_of_a_library_is_left_to_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, op = reading(monkeypatch)
    del work._in_place
    (parent,) = op.parents
    op.parents = (parent, parent)
    assert work._in_place(op) is None
    named = SimpleNamespace(raw_schema=SimpleNamespace(json=lambda: '{"type": "udt"}'))
    assert work._in_place(SimpleNamespace(id="other", parents=(named,))) is None


# --- An epoch is committed, and out -------------------------------------------------------------------


def committing(steps: Steps, monkeypatch: pytest.MonkeyPatch, sources: list[str]) -> Any:
    monkeypatch.setattr(StatefulWork, "manifest", lambda *_: Committed(engine={"late": []}))
    made = steps.work.manifest(begun(sources=sources), [])
    assert made.engine.pop("late") == []
    return made.engine["real_time"]


def test_a_manifest_has_the_watermark_of_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = epochs()
    assert committing(steps, monkeypatch, []) == {"next_watermark_us": 0, "delivered": 7}
    steps.work.pipe.newest_us = {0: 50_000}
    assert committing(steps, monkeypatch, []) == {"next_watermark_us": 30_000, "delivered": 7}
    steps.work.pipe.newest_us = {0: 40_000}  # a record that is older
    assert committing(steps, monkeypatch, [])["next_watermark_us"] == 30_000
    assert steps.said == [8, 8, 8]


def test_a_watermark_of_several_sources_stays_until_what_they_had_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = epochs()
    steps.work._backlog_ends = json.dumps(["7"])
    steps.work.pipe.newest_us = {0: 50_000}
    assert committing(steps, monkeypatch, ["6"]) == {
        "next_watermark_us": 0,
        "seen_watermark_us": 30_000,
        "delivered": 7,
    }
    assert committing(steps, monkeypatch, ["7"])["next_watermark_us"] == 30_000
    steps.work.pipe.newest_us = {0: 60_000}
    assert committing(steps, monkeypatch, ["6"])["next_watermark_us"] == 40_000, "as ever"


def outputs(step: int, rows: int = 2) -> Committed:
    entries = [{"operator": "counts", "rows": rows, "inline": "rows"}]
    engine = {"outputs": entries, "sink_batch": step - 1}
    return Committed(step, step + 1, engine, payloads={"rows": stream(ROWS)})


class Sink:
    """A sink that takes frames."""

    def __init__(self, said: list[Any]) -> None:
        self._said = said

    def write(self, batch: int, frame: Any) -> None:
        self._said.append((batch, frame))


def test_epochs_go_to_a_sink_one_by_one_and_those_without_rows_not_at_all() -> None:
    steps = epochs()
    work = steps.work
    work._results.at_hand = lambda outputs, _: f"{outputs.rows} rows"
    work.write_to(Sink(steps.said))
    assert not work.delivers_together
    work.deliver([outputs(3), outputs(4, rows=0), outputs(5)])
    work.put_early(outputs(6))
    observed = [("observed", 4, "metrics"), ("observed", 6, "metrics")]
    assert steps.said == [(2, "2 rows"), observed[0], (4, "2 rows"), observed[1]]


class ToKafka(KafkaSink):
    """Kafka's sink; keeps what it is given."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.early: list[Any] = []

    @property
    def is_early(self) -> bool:
        return bool(self.early)

    def write_table(self, batch: int, table: pa.Table) -> None:
        self.said.append((batch, table["v"].to_pylist()))

    def begin_early(self, table: pa.Table) -> None:
        self.early.append(table["v"].to_pylist())

    def settle_early(self) -> None:
        self.said.append(self.early.pop())


def to_kafka(narrow: Any) -> tuple[Any, ToKafka]:
    work, sink = epochs().work, ToKafka()
    work.run.path = Path("/run")
    above = {(sink.in_columns, Path("/run/results")): narrow}
    work._results.project_rows = lambda columns, file: above[(columns, file)]
    work.write_to(sink)
    return work, sink


def test_epochs_go_to_kafka_as_one() -> None:
    work, sink = to_kafka(SimpleNamespace(rows=lambda table: table))
    assert work.delivers_together
    work.deliver([outputs(3), outputs(4), outputs(5, rows=0)])
    assert sink.said == [(3, [1, 2, 1, 2])]
    work.deliver([outputs(6, rows=0)])
    assert sink.said == [(3, [1, 2, 1, 2])]


def test_what_was_put_out_early_is_only_settled() -> None:
    work, sink = to_kafka(SimpleNamespace(rows=lambda table: table))
    work.put_early(outputs(3, rows=0))
    first = Committed(engine={"outputs": [], "empty": True, "sink_batch": 0})
    work.put_early(first)
    work.deliver([first])
    assert (sink.said, sink.early) == ([], [])
    work.put_early(outputs(4))
    assert sink.early == [[1, 2]]
    work.deliver([outputs(4)])
    assert (sink.said, sink.early) == ([[1, 2]], [])


def test_epochs_whose_results_are_no_narrow_plan_go_to_kafka_one_by_one() -> None:
    work, sink = to_kafka(None)
    given: list[Any] = []
    sink.write = lambda *told: given.append(told)  # type: ignore[method-assign]
    work._results.at_hand = lambda outputs, _: f"{outputs.rows} rows"
    work.put_early(outputs(2))
    work.deliver([outputs(3)])
    assert (work.delivers_together, given, sink.early) == (False, [(2, "2 rows")], [])
