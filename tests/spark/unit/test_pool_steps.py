"""The steps of pools of replicas, and what their stages read; with parts that are made up."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.core.errors import ConfigError, EngineError, HeadgateError
from headgate.spark.api.pool_query import PoolQuery
from headgate.spark.job.phases import Phases
from headgate.spark.job.pools import PoolConfig, PoolState
from headgate.spark.job.reports import Payload, ReplicaReport
from headgate.spark.pools import dealing, pool_input, pools
from headgate.spark.pools.pools import PoolWork
from headgate.spark.read.stages import Hole, Pipeline, Stage
from headgate.spark.step.begun import Begun
from headgate.spark.step.output import Outputs
from headgate.spark.worker.facts import ReplicaFacts

CONFIG = PoolConfig(1, 4, 2, box_s=0.5, timeout_s=3.0, attempts=7)
SCHEMA = T.StructType([T.StructField("w", T.LongType())])


def stage(name: str, *parents: str, feeds: bool = False) -> Stage:
    holes = [Hole(parent, f"a hole for {parent}") for parent in parents]
    function: Any = f"function of {name}"
    return Stage(name, name, function, f"plan of {name}", holes, SCHEMA, feeds)


FIRST, SECOND = stage("map-0", feeds=True), stage("udf-1", "map-0")


def report(name: str, lane: int = 0, **more: Any) -> ReplicaReport:
    facts: dict[str, Any] = {
        "step": 5, "attempt": 2, "token": f"t-{name}-{lane}", "taken": 0, "arrived": 10, "served": 8,
        "waiting_rows": 2, "output": None, "waiting": None, "output_rows": 4, "useful_s": 0.2,
        "histogram": ((1.0, 8),), "latency_sum_ms": 9.0,
    }  # fmt: skip
    return ReplicaReport(operator=name, lane=lane, **{**facts, **more})


def begun(latest: Any = None) -> Begun:
    return Begun(5, 15, 0, ["7"], 0.0, 1.0, 0, drain=False, latest=latest)


class Made:
    """Work on two stages, of which one reads the other, and what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[Any] = []
        self.reports: list[ReplicaReport] = []
        self.properties: dict[str, str] = {}
        self.now_s = 100.0
        say = lambda what: lambda *given: self.did.append((what, *given))  # noqa: E731
        self.loop = SimpleNamespace(
            config=CONFIG, states={name: PoolState.fresh(CONFIG) for name in ("map-0", "udf-1")},
            recorder=SimpleNamespace(begun=say("begun"), batch=say("batch"), retry=say("retry")),
            between_batches=say("between batches"), blocked=False, lost=3, step=0, began_s=90.0,
            arrived=say("arrived"), dropped=lambda: {"too_old": 1},
        )  # fmt: skip
        self.work: Any = object.__new__(PoolWork)
        context = SimpleNamespace(setLocalProperty=self.properties.__setitem__)
        vars(self.work).update(
            spark=SimpleNamespace(sparkContext=context), loop=self.loop, config=CONFIG,
            states=self.loop.states, recorder=self.loop.recorder, uuid="job",
            pipeline=Pipeline([FIRST, SECOND], "above", [Hole("udf-1", "a hole")]),
            checkpoint=SimpleNamespace(location="place"), batches=deque(maxlen=3),
            observer=SimpleNamespace(quiet=say("quiet"), committed=say("committed")),
            intake=SimpleNamespace(settle_in=lambda batch: f"session of {batch}"),
            _sources=SimpleNamespace(of=lambda stage, batch: Said(f"{stage.id} of {batch}")),
            _inputs={"udf-1": SimpleNamespace(over=lambda rows_of: Said(f"over {rows_of('map-0')}"))},
            _top=SimpleNamespace(over=lambda rows_of: f"above {rows_of('udf-1')}"),
            _channel=SimpleNamespace(drain=lambda step, attempt: [
                one for one in self.reports if (one.step, one.attempt) == (step, attempt)
            ]),
            _maps={name: SimpleNamespace(apply=lambda rows: rows) for name in ("map-0", "udf-1")},
            _numbers={"map-0": 0, "udf-1": 1}, _session="a session", _results="a clone",
            _served_s=95.0, _plan=pools._Plan({}, 0.0),
        )  # fmt: skip
        monkeypatch.setattr(pools, "F", F)
        monkeypatch.setattr(pools, "run_through", lambda frame: self.did.append(str(frame)))
        monkeypatch.setattr(
            pools, "lane_of_rows", lambda state, config, rows, seed: f"lane({rows}, {seed})"
        )
        monkeypatch.setattr(
            pools, "raw_frame",
            lambda session, schema, entries, inline, checkpoint: Said(
                f"rows of {len(entries)} in {session} as {','.join(schema.names)}"
            ),
        )  # fmt: skip
        monkeypatch.setattr(pools.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(pools.time, "time", lambda: 1.5)

    def compute(self, **more: Any) -> list[ReplicaReport]:
        self.work.prepare(begun(**more))
        self.did.clear()
        reports: list[ReplicaReport] = self.work.compute("batch", begun(**more), 2, Phases())
        return reports


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def test_work_waits_as_long_as_rows_wait_at_a_replica(made: Made) -> None:
    work, state = made.work, made.loop.states["udf-1"]
    assert (work.attempts, work.waits, work.waiting_rows(), work.due(0, 0.0)) == (
        7,
        False,
        0,
        False,
    )
    state.backlog = {0: [["f", 0, 3]], 3: [["g", 5, 4]]}
    assert (work.waits, work.waiting_rows(), work.due(0, 0.0)) == (True, 7, True)
    assert work.last_watermark_us(None, None) == 0


def test_what_is_between_steps_is_passed_on(made: Made) -> None:
    work = made.work
    work.settle_in("batch")
    assert work._session == "session of batch"
    work.arrived()
    made.now_s = 107.0
    assert work.quiet(0, 0.0, 0.0) is False
    work.committed(4)
    work.retry(5, 1, "why")
    assert made.did == [("between batches",), ("quiet",), ("retry", 5, 1, "why")]
    assert (work._served_s, made.loop.step) == (107.0, 5)


def test_a_step_has_a_task_for_each_replica_that_is_active_or_holds_rows(made: Made) -> None:
    made.loop.states["udf-1"].backlog = {3: [["f", 0, 3]]}
    assert made.work.prepare(begun()) == {"lanes": {"map-0": [0, 1], "udf-1": [0, 1, 3]}}
    assert (made.work._plan.elapsed_s, made.work._served_s) == (5.0, 100.0)
    assert made.did[0][0] == "begun"


def test_stages_run_in_their_order_and_read_what_those_before_put_out(made: Made) -> None:
    output = Payload(b"rows", None, 4, 9)
    made.reports = [
        report("map-0", 0, output=output), report("map-0", 1), report("udf-1", 0),
        report("udf-1", 1, output=output, output_rows=6), report("map-0", 7, attempt=1),
    ]  # fmt: skip
    assert made.compute() == made.reports[:4]
    first = (
        "map-0 of batch.withColumn(headgate_lane, lane(None, 5)).repartitionById(2, headgate_lane)"
    )
    assert made.did[0].replace(pools.LANE, "headgate_lane") == first
    rows = f"rows of 1 in a session as w,{pools.ARRIVED}.withColumn({pools.ORIGIN}, 0)"
    assert made.did[1] == (
        f"over {rows}.withColumn({pools.LANE}, lane(4, 5)).repartitionById(2, {pools.LANE})"
    )
    plan = made.work._plan
    assert [entry["operator"] for entry in plan.outputs.entries] == ["udf-1"]
    assert set(plan.payloads) == {"output-t-map-0-0", "output-t-udf-1-1"}
    assert made.properties["spark.job.description"] == "b5: udf-1 x2, 2 tasks"


def test_a_step_without_a_report_of_each_replica_runs_again(made: Made) -> None:
    made.reports = [report("map-0", 0), report("udf-1", 1)]
    with pytest.raises(EngineError, match="1 reports came from 2 replicas of map-0") as failed:
        made.compute()
    assert failed.value.transient


def test_replicas_are_told_what_waits_for_them_and_how_much_they_may_serve(made: Made) -> None:
    state = made.loop.states["map-0"]
    state.backlog = {3: [["f", 0, 3]]}
    made.reports = [report("map-0", n) for n in range(3)] + [report("udf-1", n) for n in range(2)]
    latest: Any = Manifest(
        "job", 4, 14, 0, {}, {}, {}, {}, files=(FileEntry("backlog/f", 8, 77), FileEntry("late/g", 1, 2))
    )  # fmt: skip
    made.compute(latest=latest)
    facts = ReplicaFacts.from_json(made.properties[ReplicaFacts.PROPERTY + "map-0"])
    assert (facts.step, facts.attempt, facts.checkpoint) == (5, 2, "place")
    assert facts.backlog == [[], [], [["f", 0, 3]]]
    assert facts.waiting_crc32 == {"f": 77}
    assert facts.quotas == [None] * 3
    assert (facts.box_s, facts.now_ms, facts.timeout_s) == (0.5, 1500.0, 3.0)
    made.loop.blocked = True
    made.compute()
    facts = ReplicaFacts.from_json(made.properties[ReplicaFacts.PROPERTY + "map-0"])
    assert (facts.quotas, facts.waiting_crc32) == ([0] * 3, {})


def test_a_manifest_names_files_with_rows_that_still_wait(made: Made) -> None:
    made.work.prepare(begun())
    waits, gone = Payload(None, "w", 20, 5), Payload(None, "gone", 10, 6)
    reports = [
        report("map-0", 0, waiting=waits, waiting_rows=2), report("map-0", 1),
        report("udf-1", 1, waiting=gone, waiting_rows=4),
    ]  # fmt: skip
    state = made.loop.states["udf-1"]
    state.apply = lambda own, lanes: None
    found = made.work.manifest(begun(), reports)
    assert found.files == (FileEntry("backlog/w", 20, 5),)
    assert found.engine["pools"]["map-0"]["backlog"] == {"0": [["w", 0, 2]]}
    assert (found.job, found.step, found.engine["lost"]) == ("job", 5, 3)


def test_rows_beyond_a_queues_bound_are_refused_in_the_manifest(made: Made) -> None:
    made.work.prepare(begun())
    refused: list[Any] = []
    for state in made.loop.states.values():
        state.refuse = lambda *given: refused.append(given)
    made.work.manifest(begun(), [report("map-0")])
    assert refused == []
    made.work.config = PoolConfig(1, 4, 2, queue_max=50)
    made.work.manifest(begun(), [report("map-0")])
    assert refused == [(50, [report("map-0")], [0, 1]), (50, [], [0, 1])]


def test_what_the_last_stages_put_out_is_the_result_and_nobody_asks_when_it_arrived(
    made: Made,
) -> None:
    entries = [{"operator": name, "rows": 1, "inline": "x"} for name in ("udf-1", "map-0", "udf-1")]
    assert made.work.result(Outputs(entries, {})) == (
        f"above rows of 2 in a clone as w.withColumn({pools.ARRIVED}, None.cast(double))"
        f".withColumn({pools.ORIGIN}, 1)"
    )


def test_a_step_that_is_out_is_written_down_and_remembered(made: Made) -> None:
    work = made.work
    made.loop.states["udf-1"].backlog = {0: [["f", 0, 3]]}
    work.prepare(begun())
    made.did.clear()
    reports = [report("map-0", 0), report("map-0", 1), report("udf-1", 0), report("udf-1", 1)]
    outcome = SimpleNamespace(reports=reports, emitted=8, phases_ms={"plan": 2.0, "slots": 5.0})
    work.done(outcome, begun())
    (line,) = work.batches
    assert line == pools.BatchLine(
        at_s=10.0, arrived=20, emitted=8, waiting=3, lost=3, active={"map-0": 2, "udf-1": 2},
        lanes={"map-0": 2, "udf-1": 2}, took_ms=7.0, latency_sum_ms=18.0, histogram=((1.0, 16),),
        dropped={"too_old": 1},
    )  # fmt: skip
    lanes = {"map-0": [0, 1], "udf-1": [0, 1]}
    assert made.did == [
        ("arrived", 20),
        ("batch", outcome, work.states, [0, 1], 100.0, {"too_old": 1}),
        ("committed", reports, lanes, {"plan": 2.0, "slots": 5.0}, 1.0),
    ]


def test_work_is_made_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(name: str) -> Any:
        return lambda *given, **named: (name, *given, *named.values())

    for name in ("Grafts", "ArrowMap", "ReplicaTask", "Intake"):
        monkeypatch.setattr(pools, name, told(name))
    monkeypatch.setattr(
        pools, "SourceRows", lambda spark, of: SimpleNamespace(stream=[stage.id for stage in of])
    )
    monkeypatch.setattr(
        pools, "ReportChannel", lambda context: SimpleNamespace(sender=f"to {context}")
    )

    def planned(name: str, *parents: str, feeds: bool = False) -> Stage:
        made = stage(name, *parents, feeds=feeds)
        schema = SimpleNamespace(catalogString=lambda: f"struct of {name}")
        made.input_plan = SimpleNamespace(schema=lambda: schema)
        return made

    first, second = planned("map-0", feeds=True), planned("udf-1", "map-0")
    pipeline = Pipeline([first, second], "above", [Hole("udf-1", "a hole")])
    loop: Any = SimpleNamespace(config=CONFIG, states={"map-0": "a pool"}, recorder="a recorder")
    spark: Any = SimpleNamespace(sparkContext="the context")
    checkpoint: Any = SimpleNamespace(path="place", options={"o": "1"})
    monkeypatch.setattr(pools.time, "monotonic", lambda: 7.0)
    clone: Any = "a clone"
    work: Any = PoolWork(spark, clone, pipeline, loop, checkpoint, "job")
    assert (work.spark, work.loop, work.config, work.states) == (spark, loop, CONFIG, loop.states)
    assert (work.recorder, work.checkpoint, work.uuid) == ("a recorder", checkpoint, "job")
    assert work.columns == {"map-0": "struct of map-0", "udf-1": "struct of udf-1"}
    assert work.intake == ("Intake", ["map-0"], "place", "a clone", True, False)
    tasks = [made[1] for made in work._maps.values()]
    assert tasks == [
        ("ReplicaTask", "map-0", "function of map-0", "to the context", True, {"o": "1"}),
        ("ReplicaTask", "udf-1", "function of udf-1", "to the context", False, {"o": "1"}),
    ]
    assert work._inputs == {"udf-1": ("Grafts", spark, second.input_plan, second.holes)}
    assert work._top == ("Grafts", spark, "above", pipeline.holes)
    assert (work._numbers, work._served_s) == ({"map-0": 0, "udf-1": 1}, 7.0)
    assert (work._session, work._results, work.batches.maxlen) == (spark, "a clone", 10_000)


def test_a_pool_with_a_rate_serves_by_the_time_that_has_passed() -> None:
    state = PoolState.fresh(CONFIG)
    assert state.quotas(CONFIG, 2.0) == [None, None]
    assert state.quotas(PoolConfig(1, 4, 2, replica_rate=50.0), 2.0) == [100, 100]


# --- The handle ---------------------------------------------------------------------------------------


def test_replicas_are_asked_for_of_one_stage_or_of_all(made: Made) -> None:
    asked: list[Any] = []
    ended: list[str] = []
    made.loop.ask = lambda *given: asked.append(given)
    made.loop.decisions = deque([(1.0, "more load")])
    query: Any = object.__new__(PoolQuery)
    query._work = made.work
    query._end = SimpleNamespace(refuse_if_over=ended.append)
    query.activate(3)
    query.activate(2, stage="udf-1")
    query.scale(1, operator="map-0", by="fleet", reason="less load")
    assert asked == [
        ({"map-0": 3, "udf-1": 3}, "user", ""), ({"udf-1": 2}, "user", ""),
        ({"map-0": 1}, "fleet", "less load"),
    ]  # fmt: skip
    assert ended == ["activate"] * 3
    for replicas in (0, 5):
        with pytest.raises(ConfigError, match=f"replicas={replicas} is out of range; use 1 to 4"):
            query.activate(replicas)
    query.activate(4)
    with pytest.raises(ConfigError, match='no stage "x"; this query has map-0, udf-1'):
        query.activate(1, stage="x")
    assert query.replicas() == {"map-0": 2, "udf-1": 2}
    assert query.decisions() == [(1.0, "more load")]
    made.work.batches.append("a line")
    assert query.batches() == ["a line"]

    def over(act: str) -> None:
        raise HeadgateError("it has ended")

    query._end = SimpleNamespace(refuse_if_over=over)
    with pytest.raises(HeadgateError, match="it has ended"):
        query.activate(1)


# --- What stages read ---------------------------------------------------------------------------------


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "plan of a": {"x": T.LongType()}, "plan of b": {"y z": T.StringType(), "x": T.LongType()},
    }  # fmt: skip

    class Stream(Frame):
        def __init__(self, text: str, **of: Any) -> None:
            super().__init__(text, **of)
            self.known["select"] = lambda *columns: Stream.of(f"{text}.select", columns)

        @staticmethod
        def of(text: str, columns: Any) -> Any:
            said = Said(f"{text}({', '.join(map(str, columns))})")
            said.known["schema"] = [SimpleNamespace(dataType=f"the type of {columns[0]}")]
            return said

    monkeypatch.setattr(pool_input, "F", F)
    monkeypatch.setattr(pool_input, "of_rows", lambda spark, plan: Stream(plan, **kinds[plan]))


SPARK: Any = "the session"


@pytest.mark.usefixtures("frames")
def test_a_source_that_one_stage_reads_is_its_input_as_it_is() -> None:
    made = pool_input.SourceRows(SPARK, [stage("a")])
    assert str(made.stream) == "plan of a"
    batch: Any = "the batch"
    assert made.of(stage("a"), batch) == "the batch"


@pytest.mark.usefixtures("frames")
def test_stages_that_read_sources_have_their_rows_apart_in_one_stream() -> None:
    a, b = stage("a"), stage("b")
    made = pool_input.SourceRows(SPARK, [a, b])
    of_a, of_b = "struct(`x`.alias(f0))", "struct(`y z`.alias(f0), `x`.alias(f1))"
    none_a, none_b = (
        f"None.cast(the type of {of_a}.alias(s))",
        f"None.cast(the type of {of_b}.alias(s))",
    )
    which = "headgate_source"
    assert str(made.stream) == (
        f"plan of a.select(0.alias({which}), {of_a}.alias(s0), {none_b}.alias(s1)).union("
        f"plan of b.select(1.alias({which}), {none_a}.alias(s0), {of_b}.alias(s1)))"
    )
    batch: Any = Said("batch")
    assert str(made.of(b, batch)) == (
        f"batch.where(({which} = 1)).select(s1.f0.alias(y z), s1.f1.alias(x))"
    )
    assert str(made.of(a, batch)) == f"batch.where(({which} = 0)).select(s0.f0.alias(x))"


@pytest.mark.parametrize("holes", [["a"], ["a", "b"], ["a", "a", "b"]])
def test_each_hole_of_a_plan_has_the_rows_of_its_stage_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, holes: list[str]
) -> None:
    monkeypatch.setattr(pool_input, "computed_rows", lambda frame: f"rows of {frame}")
    monkeypatch.setattr(
        pool_input, "leaf", lambda session, output, rows: f"{output}: {rows} in {session}"
    )
    monkeypatch.setattr(
        pool_input, "replace_leaf", lambda spark, plan, old, new: [*plan, (str(old), new)]
    )
    monkeypatch.setattr(pool_input, "of_rows", lambda session, plan: (session, plan))

    class Graft:
        def __init__(self, spark: Any, plan: Any, leaf: Any) -> None:
            self.leaf = leaf

        def onto(self, new: Any) -> Any:
            return [(str(self.leaf), new)]

    monkeypatch.setattr(pool_input, "Graft", Graft)
    asked: list[str] = []

    def rows_of(name: str) -> Any:
        asked.append(name)
        return Said(name, sparkSession="its session")

    leaves = [Said(f"hole {n}") for n in range(len(holes))]
    made = pool_input.Grafts(
        SPARK, [], [Hole(name, leaf) for name, leaf in zip(holes, leaves, strict=True)]
    )
    found: Any = made.over(rows_of)
    assert found == (
        "its session",
        [
            (f"hole {n}", f"hole {n}.output(): rows of {name} in its session")
            for n, name in enumerate(holes)
        ],
    )
    assert asked == list(dict.fromkeys(holes))


@pytest.mark.parametrize(
    ("grouping", "place"),
    [
        ("shuffle", "floor(rand(9) * 3)"),
        (
            "least-work",
            "pmod(spark_partition_id() * 5 + (monotonically_increasing_id() & 8589934591), 3)",
        ),
    ],
)
def test_rows_are_dealt_by_an_expression(
    monkeypatch: pytest.MonkeyPatch, grouping: str, place: str
) -> None:
    monkeypatch.setattr(dealing, "F", F)
    monkeypatch.setattr(dealing, "stride", lambda count, active: count + active)
    state: Any = SimpleNamespace(
        grouping=grouping, active=[0, 1], order=lambda config, rows: [0, 1, 0] if rows == 12 else []
    )
    lane = dealing.lane_of_rows(state, CONFIG, 12, 9)
    assert str(lane) == f"element_at(array(0,1,0), cast({place} as int) + 1)"
