"""What the batch answer beside a job's output reads: up to where the job came; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, plain_seq
from pyspark.errors import AnalysisException
from pyspark.sql import types as T
from said_columns import F

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import CheckpointError, ConfigError, HeadgateError
from headgate.operators.spec import AggregateSpec
from headgate.spark.api import verify as verifying
from headgate.spark.api.verify import BatchSession


class Rows:
    """A DataFrame, and what its reader was told."""

    isStreaming = False
    sparkSession = "the session"

    def __init__(self, *said: Any) -> None:
        self.said = list(said)


class Reader:
    """A batch reader of Spark's; each call returns another one."""

    fails: Exception | None = None

    def __init__(self, *said: Any) -> None:
        self.said = said

    def format(self, source: str) -> Reader:
        return Reader(*self.said, source)

    def option(self, key: str, value: Any) -> Reader:
        return Reader(*self.said, (key, value))

    def schema(self, schema: str) -> Reader:
        return Reader(*self.said, f"schema {schema}")

    def load(self, *path: str) -> Rows:
        if Reader.fails is not None:
            raise Reader.fails
        return Rows(*self.said, ("load", *path))

    table = load

    def parquet(self, path: str, **options: Any) -> Rows:
        return Rows(*self.said, ("parquet", path, options))


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setattr(verifying, "DataFrame", Rows)
    monkeypatch.setattr(verifying, "installed", lambda group: {"ticks": group})
    monkeypatch.setattr(Reader, "fails", None)
    return Reader()


def session(reader: Reader, until: list[str | None], since: list[str | None] | None = None) -> Any:
    spark: Any = SimpleNamespace(read=reader, version="4.1.2")
    return BatchSession(spark, until, since or [])


def test_a_session_reads_each_source_up_to_its_own_end_and_is_otherwise_itself(
    reader: Reader,
) -> None:
    spark = session(reader, ["7", None, "9"])
    assert spark.version == "4.1.2"
    assert [spark.readStream.format("ticks").load().said for _ in range(4)] == [
        ["ticks", ("until", "7"), ("load",)],
        ["ticks", ("load",)],
        ["ticks", ("until", "9"), ("load",)],
        ["ticks", ("until", "9"), ("load",)],
    ]


def test_only_installed_sources_are_told_where_to_end(reader: Reader) -> None:
    stream = session(reader, ["7"]).readStream.schema("a int")
    assert stream.format("ticks").load().said == [
        "schema a int",
        "ticks",
        ("until", "7"),
        ("load",),
    ]
    stream = session(reader, ["7"]).readStream.schema("a int")
    assert stream.format("json").load("in").said == [
        "schema a int",
        "json",
        ("load", "in"),
    ]


def test_kafka_is_read_from_where_its_source_began_whatever_the_stream_was_told(
    reader: Reader,
) -> None:
    stream = session(reader, ['{"t": {"0": 9, "1": 4}}'], ['{"t": {"0": 3}}']).readStream
    given = {"startingOffsets": "earliest", "MaxOffsetsPerTrigger": 5, "subscribe": "t"}
    rows = stream.options(**given).load(format="kafka", minPartitions="3")
    assert rows.said == [
        ("subscribe", "t"), "kafka", ("minPartitions", "3"),
        ("startingOffsets", '{"t": {"0": 3, "1": -2}}'),
        ("endingOffsets", '{"t": {"0": 9, "1": 4}}'),
        ("load",),
    ]  # fmt: skip


def test_kafka_without_a_log_is_read_whole(reader: Reader) -> None:
    assert session(reader, [None]).readStream.format("kafka").load().said == ["kafka", ("load",)]


@pytest.mark.parametrize(
    ("since", "starts"),
    [
        (None, {"t": {"0": -2, "1": -2}}),
        ('{"t": {"0": 5}}', {"t": {"0": 5, "1": -2}}),
        ('{"u": {"0": 5}}', {"t": {"0": -2, "1": -2}}),
    ],
)
def test_a_partition_that_was_not_there_at_first_is_read_from_its_beginning(
    since: str | None, starts: dict[str, Any]
) -> None:
    until = '{"t": {"0": 9, "1": 4}}'
    start, end = verifying.kafka_range(since, until)
    assert (json.loads(start), end) == (starts, until)


def test_a_table_is_read_at_the_version_that_the_job_had_read(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def rows_until(_: Any, offset: str, table: str, *, path: bool, options: Any) -> Rows | None:
        asked.append((offset, table, path, dict(options)))
        return Rows("at a version") if offset == "11" or path else None

    monkeypatch.setattr(verifying, "rows_until", rows_until)
    spark = session(reader, ["11", "12"])
    known = spark.readStream.option("ignoreDeletes", True).table("t")
    assert known.said == spark.readStream.format("delta").load("place").said == ["at a version"]
    assert asked == [("11", "t", False, {"ignoreDeletes": "True"}), ("12", "place", True, {})]
    files = spark.readStream.parquet("files", mergeSchema=True)
    assert files.said == [("parquet", "files", {"mergeSchema": True})]
    assert len(asked) == 2, "files are no table"
    assert spark.readStream.table("t").said == [("load", "t")], "of another kind"


def test_a_source_that_has_no_batch_is_named_and_any_other_failure_goes_on(reader: Reader) -> None:
    Reader.fails = AnalysisException("parquet is not a valid Spark SQL Data Source.")
    with pytest.raises(HeadgateError, match=r'^source "parquet" cannot be read a second time'):
        session(reader, [None]).readStream.load()
    stream = session(reader, [None]).readStream.format("socket")
    Reader.fails = AnalysisException("socket is not a valid Spark SQL Data Source.")
    with pytest.raises(HeadgateError, match=r'^source "socket" cannot be read a second time'):
        stream.load()
    Reader.fails = AnalysisException("path does not exist")
    with pytest.raises(AnalysisException, match="path does not exist"):
        stream.load()


# --- Spark's log --------------------------------------------------------------------------------------

LOG = 'v1\n{}\n{"t":{"0":9}}\n-\n7'


def test_offsets_of_a_batch_are_read_by_source(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(LOG)
    assert verifying.end_offsets(tmp_path, 3) == ['{"t":{"0":9}}', None, "7"]
    assert verifying.end_offsets(tmp_path, 4) == [None]


def test_where_a_source_began_is_read_behind_what_spark_writes_first(tmp_path: Path) -> None:
    for number, text in enumerate(['\x00v1\n{"t":{"0":3}}', "v1\nnothing"]):
        (tmp_path / "sources" / str(number)).mkdir(parents=True)
        (tmp_path / "sources" / str(number) / "0").write_text(text)
    assert verifying.start_offsets(tmp_path, 3) == ['{"t":{"0":3}}', None, None]
    assert verifying.start_offsets(tmp_path, 1) == ['{"t":{"0":3}}']


def carrying(texts: dict[str, str], **engine: Any) -> Manifest:
    return Manifest(
        job="j", step=1, spark_batch=3, epoch=0, assignments={}, watermarks={}, heads={},
        sections={}, engine={"spark": {"texts": texts}, **engine},
    )  # fmt: skip


def test_a_manifest_on_a_store_has_where_sources_began_and_came(tmp_path: Path) -> None:
    store = Checkpoint(tmp_path)
    latest = carrying({"offsets/3": LOG, "sources/1/0": '\x00v1\n{"t":1}'})
    assert verifying.carried_offsets(latest, 3) == ['{"t":{"0":9}}', None, "7"]
    assert verifying.carried_offsets(latest, 4) == [None]
    assert verifying.carried_offsets(None, 3) == [None]
    assert verifying.carried_starts(store, latest, 2) == [None, '{"t":1}']
    assert verifying.carried_starts(store, None, 2) == [None, None]


# --- The comparison as a whole ------------------------------------------------------------------------


class Asked:
    """A comparison of what a job put out, in which all is made up but its order."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.read = place, list[Any]()
        self.compared: Any = None
        self.latest: Manifest | None = None
        self.journal: list[Any] = []
        self.shared = False
        monkeypatch.setattr(verifying, "Checkpoint", self._store)
        kinds = {"require_session": "the session", "require_frame": SimpleNamespace}
        for name, kind in kinds.items():
            monkeypatch.setattr(verifying, name, self._require(kind))
        monkeypatch.setattr(verifying, "journal_at", lambda _: _Within(place))
        monkeypatch.setattr(verifying, "read_journal", lambda _: self.journal)
        monkeypatch.setattr(verifying, "Batch", SimpleNamespace)
        monkeypatch.setattr(verifying, "report_progress", lambda *_: _Within(None))
        monkeypatch.setattr(verifying, "read", lambda df, mode: f"the query of {df} in {mode}")
        monkeypatch.setattr(verifying, "closed", lambda rows, query, latest: (rows, query, latest))
        monkeypatch.setattr(verifying, "compare", self._compare)
        monkeypatch.setattr(verifying, "carried_offsets", lambda *got: ["carried", got[1]])
        monkeypatch.setattr(verifying, "carried_starts", lambda *got: ["carried since", got[2]])

    @staticmethod
    def _require(kind: Any) -> Any:
        def check(value: Any, what: str) -> None:
            if value != kind and type(value) is not kind:
                raise ConfigError(what)

        return check

    def _store(self, _: str) -> Any:
        files = SimpleNamespace(shared=self.shared)
        return SimpleNamespace(latest=lambda: self.latest, files=files, path=self.place)

    def _compare(self, expected: Any, output: Any) -> dict[str, Any]:
        self.compared = expected
        return {"verified": True}

    def build(self, spark: Any, **options: Any) -> str:
        if isinstance(spark, BatchSession):
            self.read.append((spark._until, spark._since, options))
            return "the answer"
        return "the stream"

    def verified(self, **more: Any) -> dict[str, Any]:
        given: dict[str, Any] = {"spark": "the session", "build": self.build}
        given |= {"checkpoint": str(self.place), "output": SimpleNamespace(isStreaming=False)}
        return verifying.verify(**{**given, **more})


class _Within:
    def __init__(self, made: Any) -> None:
        self.made = made

    def __enter__(self) -> Any:
        return self.made

    def __exit__(self, *_: object) -> None: ...


def batch(number: int, late: int = 0) -> Any:
    return SimpleNamespace(spark_batch=number, late=late)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    (tmp_path / "offsets").mkdir()
    for number in (3, 5):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\nend of {number}")
    made = Asked(tmp_path, monkeypatch)
    made.journal = [batch(4, late=2), "another event", batch(5, late=1)]
    return made


def test_a_query_without_state_is_compared_up_to_the_last_batch_of_its_journal(
    asked: Asked,
) -> None:
    assert asked.verified() == {"verified": True, "dropped": {"late": 3}}
    assert asked.read == [(["end of 5"], [None], {})]
    assert asked.compared == "the answer"


def test_a_query_with_state_is_compared_up_to_its_manifest_where_windows_are_closed(
    asked: Asked,
) -> None:
    asked.latest = carrying({})
    asked.verified(options={"n": 7})
    assert asked.read == [(["end of 3"], [None], {"n": 7})]
    assert asked.compared == ("the answer", "the query of the stream in append", asked.latest)
    asked.verified(mode="update")
    assert asked.compared == "the answer", "all windows count in other modes"
    asked.verified(mode="update", reference=lambda spark, **_: "rows of the user's own")
    assert asked.compared == "rows of the user's own"


def test_a_checkpoint_on_a_store_has_offsets_in_its_manifest_and_an_epoch_its_own(
    asked: Asked,
) -> None:
    asked.shared, asked.latest = True, carrying({})
    asked.verified()
    assert asked.read == [(["carried", 3], ["carried since", 2], {})]
    asked.shared, asked.latest = False, carrying({}, real_time={}, sources=["a", "b"])
    asked.verified()
    assert asked.read[1] == (["a", "b"], [None, None], {})


def test_what_cannot_be_compared_is_refused_before_anything_is_read(asked: Asked) -> None:
    wrong = {"spark": "none", "build": "a query", "output": Rows(), "checkpoint": ""}
    for what, value in [*wrong.items(), ("output", SimpleNamespace(isStreaming=True))]:
        with pytest.raises(ConfigError, match=rf"^hg\.verify: {what}"):
            asked.verified(**{what: value})
    asked.journal = ["another event"]
    with pytest.raises(CheckpointError, match="holds no batch yet; let the job run first"):
        asked.verified()
    assert asked.read == []


# --- Windows that are closed --------------------------------------------------------------------------


def operator(name: str, at: int | None, *, aggregate: bool = True) -> Any:
    spec = object.__new__(AggregateSpec) if aggregate else "a join"
    return SimpleNamespace(id=name, spec=spec, time_output=at)


@pytest.mark.parametrize(
    ("aggregates", "bounds", "whole"),
    [(2, [(1, 5), (None, 3)], True), (3, [(None, 3)], False)],
)
def test_a_window_is_closed_when_every_key_group_has_put_it_out(
    monkeypatch: pytest.MonkeyPatch, aggregates: int, bounds: list[Any], whole: bool
) -> None:
    """Where a table of the user's is aggregated too, only the upper aggregates are the stream's."""
    lower, upper, join = operator("a", 1), operator("b", None), operator("j", 0, aggregate=False)
    query: Any = SimpleNamespace(operators=[lower, join, upper], last=[upper, join])
    plan = Made("Project", *(Made("Aggregate") for _ in range(aggregates)))
    found: list[Any] = []

    def closed(spark: Any, of: Any, given: Any, *, whole: bool) -> str:
        found.extend((spark, of, list(given), whole))
        return "closed"

    monkeypatch.setattr(verifying, "analysed", lambda rows: plan)
    monkeypatch.setattr(verifying, "of_rows", lambda spark, plan: (spark, plan))
    monkeypatch.setattr(verifying, "_closed", closed)
    facts = {"a": {"emitted_us": [9, 5, 7]}, "b": {"emitted_us": [3]}, "j": {"emitted_us": [1]}}
    latest = carrying({}, operators=facts)
    rows: Any = Rows()
    assert verifying.closed(rows, query, latest) == ("the session", "closed")
    assert found == ["the session", plan, bounds, whole]


@pytest.mark.parametrize(
    ("whole", "filtered"),
    [(True, ["lower until 5", "upper until 7"]), (False, ["upper until 5"])],
)
def test_of_aggregates_above_each_other_all_or_the_upper_ones_have_closed_windows(
    monkeypatch: pytest.MonkeyPatch, whole: bool, filtered: list[str]
) -> None:
    did: list[str] = []

    def frame(spark: Any, plan: Any) -> Any:
        field = SimpleNamespace(name=plan.label(), dataType="a timestamp")
        where = lambda condition: did.append(str(condition))  # noqa: E731
        return SimpleNamespace(schema=SimpleNamespace(fields=["k", field]), where=where)

    lower = Made("Aggregate", label="lower")
    upper = Made("Aggregate", Made("Project", lower, label="between"), label="upper")
    monkeypatch.setattr(verifying, "F", F)
    monkeypatch.setattr(verifying, "seq", plain_seq)
    monkeypatch.setattr(verifying, "of_rows", frame)
    monkeypatch.setattr(verifying, "analysed", lambda _: Made("Filter", label="filtered"))
    bounds = iter([(1, 5), (1, 7)])
    spark: Any = "the session"
    assert verifying._closed(spark, upper, bounds, whole=whole).label() == "filtered"
    assert did == [
        f"((unix_micros(`{name}`) + rand().cast(long)) <= {until})"
        for name, _, until in (said.split() for said in filtered)
    ]


def test_a_window_ends_where_its_column_says_and_an_aggregate_without_time_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[str] = []
    window = T.StructType([T.StructField("end", T.TimestampType())])
    fields = [SimpleNamespace(name="w", dataType=window)]
    frame = SimpleNamespace(
        schema=SimpleNamespace(fields=fields), where=lambda condition: did.append(str(condition))
    )
    monkeypatch.setattr(verifying, "F", F)
    monkeypatch.setattr(verifying, "of_rows", lambda *_: frame)
    monkeypatch.setattr(verifying, "analysed", lambda _: "filtered")
    plan, spark = Made("Aggregate"), Any
    for bounds in ([(None, 3)], []):
        assert verifying._closed(spark, plan, iter(bounds), whole=True) is plan  # type: ignore[arg-type]
    assert verifying._closed(spark, plan, iter([(0, 3)]), whole=True) == "filtered"  # type: ignore[arg-type]
    assert did == ["((unix_micros(`w`.getField(end)) + rand().cast(long)) <= 3)"]
