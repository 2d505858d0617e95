"""How a plan is walked from its top, and what its sources say; on plans that are made up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, plain_seq, source
from pyspark.errors import AnalysisException
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError, ConfigError, HeadgateError, UnsupportedQuery
from headgate.operators.spec import OutputMode
from headgate.spark.read import brokers, limits, logical, table_offsets, wording
from headgate.spark.read.logical import ModeRefused
from headgate.spark.read.reading import NodeReader, Reading

SPARK: Any = "the session"


class Read:
    """What the readers of nodes were given, and the operators that they made."""

    def __init__(self) -> None:
        self.of: list[tuple[Reading, Made, Any]] = []

    def read(self, reading: Reading, node: Made, upstream: Any) -> Any:
        self.of.append((reading, node, upstream))
        number, parents = reading.number, reading.feeds if upstream is None else (upstream,)
        leaf = source(kind=f"Placeholder{number}")
        return SimpleNamespace(
            id=f"op-{number}", output_plan=leaf, placeholder=leaf, input_plan=node, parents=parents
        )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Read:
    found = Read()
    reader = NodeReader(("Aggregate", "Join", "TransformWithStateInPySpark"), found.read)
    joins = NodeReader(
        ("Join",), found.read, applies=lambda node: all(c.isStreaming() for c in node.children())
    )
    readers = dict.fromkeys(reader.names, reader) | {"Join": joins}
    monkeypatch.setattr(logical, "_READERS", readers)
    monkeypatch.setattr(logical, "LIMIT_READER", NodeReader(("GlobalLimit",), found.read))
    monkeypatch.setattr(logical, "seq", plain_seq)
    monkeypatch.setattr(logical, "tree_patterns", lambda spark, names: names)
    monkeypatch.setattr(
        logical, "passing", lambda reading, plan: found.read(reading, plan, "passes")
    )
    monkeypatch.setattr(logical, "with_nullability_of_children", lambda spark, plan: plan)
    monkeypatch.setattr(logical, "without_watermarks", lambda spark, plan: Made("Unmarked", plan))
    for name in ("distinct", "without_cte", "without_distinct", "with_any_condition"):
        monkeypatch.setattr(logical, name, lambda spark, plan, *_: plan)
    monkeypatch.setattr(logical, "check_streaming", lambda *_: None)
    monkeypatch.setattr(logical, "analysed", lambda df: df.plan)
    return found


def read(plan: Made, mode: str = "append", *more: Any, **named: Any) -> Any:
    frame: Any = SimpleNamespace(sparkSession=SPARK, plan=plan, schema=T.StructType())
    return logical.read(frame, mode, *more, **named)


def kind(plan: Made) -> str:
    return str(plan.getClass().getSimpleName())


LEAF = source(attribute("k"))
TABLE = Made("LocalRelation", streams=False)


def test_what_stands_above_an_operator_is_kept_over_its_placeholder(made: Read) -> None:
    aggregate = Made("Aggregate", Made("Filter", LEAF))
    query = read(
        Made("Sort", Made("Project", Made("SubqueryAlias", aggregate))), "complete", "at", ("v",)
    )
    ((reading, node, upstream),) = made.of
    assert (node, upstream, reading.node, reading.feeds) == (aggregate, None, aggregate, ())
    assert (reading.number, reading.mode, reading.arrival, reading.ordered) == (
        0, OutputMode.COMPLETE, "at", ("v",),
    )  # fmt: skip
    assert (reading.whole_windows, reading.asks_kafka) == (False, True)
    assert query.notes == ["select() or withColumn()", "orderBy()"]
    kinds, plan = [], query.plan
    while plan.children():
        kinds.append(kind(plan))
        plan = plan.child()
    assert kinds == ["Unmarked", "Sort", "Project", "SubqueryAlias"]
    assert kind(plan) == "Placeholder0"
    assert query.mode is OutputMode.COMPLETE


def test_a_stateless_query_stays_as_it_is(made: Read) -> None:
    plan = Made("Project", LEAF)
    query = read(plan)
    assert (query.plan, query.operators, query.notes, made.of) == (plan, [], [], [])
    read(Made("Aggregate", LEAF), whole_windows=True, asks_kafka=False)
    reading = made.of[0][0]
    assert (reading.whole_windows, reading.asks_kafka) == (True, False)
    with pytest.raises(
        UnsupportedQuery, match=r"is not streaming; read its source with spark\.readSt"
    ):
        read(TABLE)


def test_an_operator_reads_another_in_one_job_where_rows_pass_between_them(made: Read) -> None:
    lower = Made("Aggregate", LEAF)
    read(Made("Aggregate", Made("Filter", Made("EventTimeWatermark", lower))))
    (first, _, _), (second, node, upstream) = made.of
    assert (first.number, second.number, second.feeds) == (0, 1, ())
    assert upstream.id == "op-0"
    assert kind(node.child().child().child()) == "Placeholder0"


def test_an_operator_reads_what_others_put_out_where_rows_do_not_pass(made: Read) -> None:
    lower = Made("Aggregate", LEAF)
    query = read(Made("Aggregate", Made("Generate", lower)))
    reading, _, upstream = made.of[1]
    assert upstream is None
    assert [op.id for op in reading.feeds] == ["op-0"]
    assert kind(query.operators[1].input_plan) == "Unmarked"
    made.of.clear()
    read(Made("Aggregate", Made("Generate", Made("Aggregate", Made("Filter", lower)))))
    assert [op.id for op in made.of[2][0].feeds] == ["op-1"], "and not what that one reads"
    made.of.clear()
    calls = Made("Project", lower, patterns=("PYTHON_UDF",))
    read(Made("Aggregate", Made("Filter", calls)))
    assert [op.id for op in made.of[1][0].feeds] == ["op-0"], "or it would get markers"
    made.of.clear()
    begins = Made("TransformWithStateInPySpark", lower, TABLE, hasInitialState=True)
    read(begins)
    assert [op.id for op in made.of[1][0].feeds] == ["op-0"]
    assert made.of[1][1].children()[1] is TABLE
    made.of.clear()
    read(Made("TransformWithStateInPySpark", lower, TABLE, hasInitialState=False))
    assert made.of[1][2].id == "op-0"


def test_a_branch_without_state_passes_by_beside_one_with_state(made: Read) -> None:
    query = read(Made("Union", Made("Aggregate", LEAF), Made("Filter", LEAF), TABLE))
    (_, _, _), (reading, node, how) = made.of
    assert (reading.number, kind(node), how) == (1, "Filter", "passes")
    union = query.plan.child()
    assert [kind(child) for child in union.children()] == [
        "Placeholder0",
        "Placeholder1",
        "LocalRelation",
    ]
    assert query.notes == ["union()"]
    made.of.clear()
    joined = read(Made("Join", Made("Aggregate", LEAF), LEAF, joinType="inner"))
    reading = made.of[2][0]
    assert [op.id for op in reading.feeds] == ["op-0", "op-1"], "two jobs, since two are read"
    assert [op.id for op in joined.operators] == ["op-0", "op-1", "op-2"]


def test_a_join_with_a_table_is_no_operator(made: Read) -> None:
    query = read(Made("Join", Made("Aggregate", LEAF), TABLE))
    assert [op.id for op in query.operators] == ["op-0"]
    assert query.notes == ["a join with a static table"]


def test_a_limit_counts_over_all_batches_in_append_mode_alone(made: Read) -> None:
    limited = Made("GlobalLimit", Made("Aggregate", LEAF))
    assert [op.id for op in read(limited).operators] == ["op-0", "op-1"]
    assert made.of[1][0].node is limited
    query = read(limited, "complete")
    assert [op.id for op in query.operators] == ["op-0"]
    assert query.notes == ["limit()"]


@pytest.mark.parametrize("name", ["FlatMapGroupsWithState", "TransformWithState"])
def test_state_of_scala_is_refused_above_and_below(made: Read, name: str) -> None:
    with pytest.raises(
        UnsupportedQuery, match=r"^cannot keep .* above a stateful operator; write it"
    ):
        read(Made(name, Made("Aggregate", LEAF)))
    for plan in (
        Made("Project", Made(name, LEAF)),
        Made("Aggregate", Made("Project", Made(name, LEAF))),
        Made("Union", Made("Aggregate", LEAF), Made(name, LEAF)),
    ):
        with pytest.raises(UnsupportedQuery, match=r"^cannot run .* elastically; write it"):
            read(plan)
    read(Made("Union", Made("Aggregate", LEAF), Made(name, TABLE)))


def test_spark_itself_judges_the_output_mode(made: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UnsupportedQuery, match='unknown output mode "all"; use append, update or compl'
    ):
        read(LEAF, "all")

    def refuse(spark: Any, plan: Any, mode: str) -> None:
        raise AnalysisException(f"\nnot {mode} here\nwith a plan")

    monkeypatch.setattr(logical, "check_streaming", refuse)
    with pytest.raises(ModeRefused, match=r"^not update here$"):
        read(LEAF, "update")


def test_a_tree_shows_what_becomes_an_operator(made: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def tree(plan: Made, becomes: Any) -> list[str]:
        asked.append(becomes(plan))
        return ["a line"]

    monkeypatch.setattr(logical, "tree", tree)
    limited = Made("GlobalLimit", Made("Aggregate", LEAF))
    for plan, mode in [
        (Made("Aggregate", LEAF), "update"), (limited, "append"), (limited, "complete"),
        (Made("GlobalLimit", LEAF), "append"), (Made("Project", Made("Aggregate", LEAF)), "append"),
    ]:  # fmt: skip
        frame: Any = SimpleNamespace(sparkSession=SPARK, plan=plan)
        assert logical.shown(frame, mode) == ["a line"]
    assert asked == [True, True, False, False, False]


# --- Words for nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "name", "instead"),
    [
        (Made("Sort"), "orderBy()", "sort in foreachBatch"),
        (Made("Project"), "select() or withColumn()", "drop it"),
        (Made("Repartition", shuffle=True, numPartitions=4), "repartition(4)", "do it in foreachBatch"),
        (Made("Repartition", shuffle=False, numPartitions=1), "coalesce(1)", "do it in foreachBatch"),
        (Made("Join", LEAF, LEAF), "a join of two streams", "join in foreachBatch, or below the"),
        (Made("Join", LEAF, TABLE), "a join with a static table", "join in foreachBatch, or below"),
        (Made("Odd", simpleString="~Odd [a#12L, b#3]"), "this part of the plan (Odd [a, b])", "drop it"),
        (Made("Odd", simpleString="x" * 99), f"this part of the plan ({'x' * 80})", "drop it"),
    ],
)  # fmt: skip
def test_a_node_is_named_as_its_user_wrote_it(plan: Made, name: str, instead: str) -> None:
    words = wording.wording(plan)
    assert words.name == name
    assert words.instead.startswith(instead)


# --- Sources ------------------------------------------------------------------------------------------


def leaf(table: str = "KafkaTable", **options: str) -> Made:
    def get(name: str) -> str | None:
        return {key.lower(): value for key, value in options.items()}.get(name.lower())

    return source(attribute("v"), table=Made(table), extraOptions=SimpleNamespace(get=get))


def reads(*leaves: Made) -> Made:
    return Made("Union", collectLeaves=list(leaves))


def test_limits_of_all_sources_are_listed_by_name() -> None:
    files = leaf("FileTable", maxFilesPerTrigger="1", path="p")
    more = leaf("FileTable", maxfilespertrigger="7")
    rate = leaf("RateTable", rowsPerSecond="5")
    assert limits.source_limits(reads(files, rate, more, TABLE)) == {"maxFilesPerTrigger": "1, 7"}
    assert limits.source_limits(reads(leaf(path="p"))) == {}


SERVERS = {"kafka.bootstrap.servers": "h:9092"}


def test_a_query_starts_only_where_a_broker_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_broker(servers: str) -> Exception | None:
        asked.append(servers)
        return OSError() if servers == "gone:1" else None

    monkeypatch.setattr(brokers, "no_broker", no_broker)
    brokers.check_brokers(reads(leaf(**SERVERS, subscribe="t"), leaf("RateTable")))
    assert asked == ["h:9092"]
    gone = leaf(**{"kafka.bootstrap.servers": "gone:1"}, subscribePattern="t.*")
    with pytest.raises(
        ConfigError, match=r"servers=gone:1 answers, .* reads subscribePattern=t\.\*; st"
    ):
        brokers.check_brokers(reads(leaf(**SERVERS), gone))
    brokers.check_brokers(reads(leaf()))
    assert asked[-1] == ""


def test_what_is_read_of_kafka_is_said_with_where() -> None:
    plan = reads(leaf(**SERVERS, assign="{}"), leaf("RateTable"), leaf(**SERVERS))
    assert brokers.kafka_sources(plan) == ["assign={} at h:9092", " at h:9092"]


# --- Tables that were streamed ------------------------------------------------------------------------


class Tables:
    """A session that says how its tables are read."""

    def __init__(self, files: str | None = "4") -> None:
        self.read = SimpleNamespace(format=lambda name: SimpleNamespace(
            option=lambda key, value: SimpleNamespace(load=lambda path: f"{name} {key}={value} {path}")
        ))  # fmt: skip
        self.asked: list[str] = []
        self.files = files

    def sql(self, text: str) -> str:
        return text

    def table(self, name: str) -> Tables:
        self.asked.append(name)
        return self

    def where(self, text: str) -> Tables:
        self.asked.append(text)
        return self

    selectExpr = where

    def collect(self) -> list[Any]:
        return [self]


def until(offset: Any, *, path: bool = False, tables: Any = None, **options: str) -> Any:
    text = json.dumps(offset) if isinstance(offset, dict) else offset
    return table_offsets.rows_until(tables or Tables(), text, "t", path=path, options=options)


def test_a_table_of_delta_is_read_at_the_last_version_that_was_read_whole() -> None:
    offset = {"reservoirVersion": 8, "index": -1}
    assert until(offset) == "SELECT * FROM t VERSION AS OF 7"
    assert until(offset, path=True, ignored="x") == "delta versionAsOf=7 t"
    for index in (0, 5):
        with pytest.raises(
            HeadgateError, match="stopped within a version of table t, which no batch"
        ):
            until({"reservoirVersion": 8, "index": index})


def test_a_table_of_iceberg_is_read_at_a_snapshot_that_was_read_whole() -> None:
    offset = {"snapshot_id": 77, "position": 4, "scan_all_files": False}
    tables = Tables()
    assert until(offset, tables=tables) == "SELECT * FROM t VERSION AS OF 77"
    assert tables.asked == [
        "t.snapshots",
        "snapshot_id = 77",
        "summary['added-data-files'] AS files",
    ]
    tables = Tables("9")
    with pytest.raises(HeadgateError, match="stopped within a version of table t"):
        until(offset | {"scan_all_files": True}, tables=tables)
    assert tables.asked[-1] == "summary['total-data-files'] AS files"
    assert (
        until(offset | {"position": 0}, tables=Tables(None)) == "SELECT * FROM t VERSION AS OF 77"
    )


@pytest.mark.parametrize("offset", [None, "7", '{"t":{"0":5}}', "[1]", "no JSON"])
def test_an_offset_of_another_source_is_of_no_table(offset: str | None) -> None:
    assert until(offset, readChangeFeed="true") is None


def test_a_stream_that_read_something_else_than_the_table_is_refused() -> None:
    offset = {"reservoirVersion": 8, "index": -1}
    with pytest.raises(
        HeadgateError, match="t was read with ReadChangeFeed, startingVersion, for which"
    ):
        until(offset, ReadChangeFeed="true", maxFilesPerTrigger="1", startingVersion="2")


@pytest.mark.parametrize("value", ["8; DROP TABLE t", True, 1.5, None])
def test_an_offset_that_is_no_number_becomes_no_part_of_a_statement(value: Any) -> None:
    for offset in (
        {"reservoirVersion": value, "index": -1},
        {"reservoirVersion": 8, "index": value},
        {"snapshot_id": value, "position": 4},
    ):
        with pytest.raises(
            CheckpointError, match=r"the offset of table t in the checkpoint says \w+="
        ):
            until(offset)
