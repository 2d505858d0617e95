"""Which sink a writer's target becomes, and what is refused of it, as in Spark; without a session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.installed import SINKS, Plugin
from headgate.spark.jvm import sparksinks
from headgate.spark.sinks import own_sink, sinks
from headgate.spark.sinks.ports import Target
from headgate.spark.sinks.sinks import sink_of

CONF: dict[str, str] = {}
SCHEMA = T.StructType([T.StructField("k", T.LongType()), T.StructField("Word", T.StringType())])
PLAN: Any = SimpleNamespace(
    schema=lambda: SimpleNamespace(
        fieldNames=lambda: SCHEMA.names,
        asNullable=lambda: SimpleNamespace(toDDL=lambda: "k BIGINT,Word STRING"),
    )
)


class Conf:
    """Settings of a session."""

    def __init__(self, **given: str) -> None:
        self._given = {"spark.sql.sources.default": "parquet", **given}

    def get(self, key: str, default: str | None = None) -> str | None:
        return self._given.get(key, default)


def session(**conf: str) -> Any:
    said: list[str] = []
    return SimpleNamespace(conf=Conf(**conf), sql=said.append, said=said)


def target(**given: Any) -> Target:
    facts: dict[str, Any] = {
        "file_format": None, "mode": "append", "name": None, "table": None, "partition_by": [],
        "options": {}, "function": None, "checkpoint": Path("place"), "last_output": lambda: None,
        "delivered": lambda: -1, "row_function": None, "cluster_by": [], "exactly_once": True,
    }  # fmt: skip
    return Target(**{**facts, **given})


class Known:
    """What a session knows of a format, and what sinks are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.older = self.files = self.makes_sinks = self.streams = False
        self.appends = True
        self.error: ConfigError | None = None
        self.made: list[tuple[Any, ...]] = []
        self.dedicated: Any = None
        for name in ("V1Sink", "V2Sink", "FileSink", "FileTableSink", "MemorySink"):
            monkeypatch.setattr(sparksinks, name, self._maker(name))
        monkeypatch.setattr(sparksinks, "v1_sink", lambda *given: ("v1", *given[1:5]))
        monkeypatch.setattr(sparksinks, "row_table", lambda spark, function, schema: "rows")
        monkeypatch.setattr(
            sparksinks, "check_mode", lambda *given: self.made.append(("mode", given[2]))
        )
        monkeypatch.setattr(sparksinks, "WrittenStream", lambda spark, place: f"stream in {place}")
        monkeypatch.setattr(sinks, "Format", self._format)
        monkeypatch.setattr(sinks, "writes_streams", lambda spark, table: self.streams)
        monkeypatch.setattr(sinks, "clustering", lambda spark, names: {"clusters": ",".join(names)})
        monkeypatch.setattr(sinks, "of_rows", lambda spark, plan: SimpleNamespace(schema=SCHEMA))
        for name in ("delta", "iceberg"):
            monkeypatch.setattr(sinks.table_sinks, name, lambda *_: self.dedicated)
        monkeypatch.setattr(sinks, "KafkaSink", self._maker("KafkaSink"))
        monkeypatch.setattr(sinks, "MergeSink", self._maker("MergeSink"))
        monkeypatch.setattr(sinks, "own_sink", lambda *given: None)

    def _maker(self, name: str) -> Any:
        def make(*given: Any) -> str:
            self.made.append((name, *given))
            return f"a {name}"

        return make

    def _format(self, spark: Any, name: str) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(
            older=self.older, is_files=self.files, makes_sinks=self.makes_sinks,
            table=lambda options, schema: "a table", appends=lambda table: self.appends,
        )  # fmt: skip


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    return Known(monkeypatch)


def chosen(of: Target, **conf: str) -> Any:
    return sink_of(session(**conf), of, PLAN)


# --- By name, by function -----------------------------------------------------------------------------


def test_names_that_are_headgates_have_their_own_sinks(known: Known) -> None:
    console = chosen(target(file_format="Console", options={"NumRows": "5"}))
    assert isinstance(console, sinks.ConsoleSink)
    assert console._rows == 5
    assert isinstance(chosen(target(file_format="noop")), sinks.NoopSink)
    delivered = lambda: 4  # noqa: E731
    memory = target(file_format="memory", name="t", mode="complete", delivered=delivered)
    assert chosen(memory) == "a MemorySink"
    assert known.made[-1][2] == "t"
    assert known.made[-1][4:] == ("complete", delivered)
    with pytest.raises(ConfigError, match=r'format "memory" needs a table name; add .queryName'):
        chosen(target(file_format="memory"))


def test_kafka_is_written_by_headgate_unless_at_least_once_is_enough(known: Known) -> None:
    of = target(file_format="kafka", options={"topic": "t"}, last_output=lambda: 7)
    assert chosen(of) == "a KafkaSink"
    options, schema, place, newest, _ = known.made[-1][1:]
    assert (options, schema, place, newest()) == ({"topic": "t"}, SCHEMA, Path("place"), 7)
    known.streams = True
    assert chosen(target(file_format="kafka", exactly_once=False)) == "a V2Sink"


def batch_function(df: Any, batch_id: int) -> None:
    """Take a batch."""


def row_function(row: Any) -> None:
    """Take a row."""


def test_functions_are_sinks_too(known: Known) -> None:
    made = chosen(target(function=batch_function, file_format="parquet"))
    assert isinstance(made, sinks.FunctionSink)
    assert (made._function, made._stream) == (batch_function, "stream in place")
    merge = hg.merge("t", on="k")
    assert chosen(target(function=merge, last_output="last")) == "a MergeSink"
    assert known.made[-1][2:] == (merge.spec, ("k", "Word"), Path("place"), "last")
    assert chosen(target(row_function=row_function)) == "a V2Sink"
    assert known.made[-1][2] == "rows"
    for wrong in (lambda: None, SimpleNamespace(process=lambda: None)):
        with pytest.raises(ConfigError, match=r"foreach|process"):
            chosen(target(row_function=wrong))
    with pytest.raises(ConfigError, match="function of foreachBatch"):
        chosen(target(function=row_function))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"file_format": "memory", "name": "t"}, "memory"),
        ({"file_format": "kafka"}, "kafka"),
        ({"function": batch_function}, "foreachBatch"),
        ({"row_function": row_function}, "foreach"),
    ],
)
def test_what_has_no_partitions_takes_no_names_of_them(
    known: Known, given: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=f'^"{what}" takes no partitionBy, as in Spark'):
        chosen(target(partition_by=["k"], **given))


def test_columns_are_those_of_the_result_in_its_spelling(known: Known) -> None:
    known.files = True
    files = {"file_format": "parquet", "options": {"path": "p"}}
    chosen(target(partition_by=["WORD", "k"], **files))
    assert known.made[-1][2] == ("v1", "parquet", "append", {"path": "p"}, ["Word", "k"])
    chosen(target(cluster_by=["K"], **files))
    assert known.made[-1][2][3] == {"path": "p", "clusters": "k"}
    with pytest.raises(
        ConfigError, match=r'partitionBy names "v", .* does not have; use one of k, Word'
    ):
        chosen(target(partition_by=["v"], **files))
    exact = {"spark.sql.caseSensitive": "true"}
    with pytest.raises(ConfigError, match='clusterBy names "K"'):
        chosen(target(cluster_by=["K"], **files), **exact)
    chosen(target(cluster_by=["k"], **files), **exact)
    with pytest.raises(ConfigError, match="clusterBy and partitionBy exclude each other"):
        chosen(target(partition_by=["k"], cluster_by=["k"], **files))


# --- Formats ------------------------------------------------------------------------------------------


def test_a_sink_of_files_has_a_path_and_takes_append_alone(known: Known) -> None:
    known.files = True
    assert chosen(target(options={"Path": "p"}, last_output=lambda: 3)) == "a FileSink"
    _, _, made, place, path, outputs = known.made[-1]
    assert (made[1], place, path) == ("parquet", Path("place"), "p")
    assert isinstance(outputs, sparksinks.KnownOutputs)
    with pytest.raises(
        ConfigError, match='format "JSON" takes append mode only, as in Spark; got upd'
    ):
        chosen(target(file_format="JSON", mode="update", options={"path": "p"}))
    with pytest.raises(ConfigError, match=r'needs a place to write to; .* instead of "pth"'):
        chosen(target(options={"pth": "p"}))
    with pytest.raises(ConfigError, match=r"needs a place to write to; add .option"):
        chosen(target(options={"path": ""}))
    with pytest.raises(ConfigError, match='format "Hive" is for tables only'):
        chosen(target(file_format="Hive"))


def test_a_format_has_the_sink_of_its_kind(known: Known) -> None:
    known.streams = True
    assert chosen(target(file_format="v2")) == "a V2Sink"
    assert known.made[-2:][0] == ("mode", "append")
    known.older = True
    assert chosen(target(file_format="v1")) == "a V1Sink", "an older one has no table"
    assert known.made[-1][4] is None
    known.dedicated = "a sink of Delta"
    assert chosen(target(file_format="v1")) == "a sink of Delta"
    known.older = False
    assert chosen(target(file_format="v2")) == "a sink of Delta"
    known.streams, known.makes_sinks, known.dedicated = False, True, None
    assert chosen(target(file_format="both")) == "a V1Sink"


def test_a_format_without_a_streaming_writer_is_appended_to_by_a_batch_writer(known: Known) -> None:
    options = {"url": "u", "checkpointLocation": "c", "QueryName": "q"}
    made = chosen(target(file_format="jdbc", options=options, partition_by=["k"]))
    assert isinstance(made, sinks.WriterSink)
    assert (made.description, made._partition_by, made._options) == ("jdbc", ["k"], {"url": "u"})
    with pytest.raises(
        ConfigError, match=r'format "jdbc" has no streaming writer .* got complete mode'
    ):
        chosen(target(file_format="jdbc", mode="complete"))
    known.appends = False
    with pytest.raises(ConfigError, match='format "jdbc" cannot be written to, as in Spark'):
        chosen(target(file_format="jdbc"))


def test_an_unknown_format_is_refused_with_those_that_there_are(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.error = ConfigError("[DATA_SOURCE_NOT_FOUND] it.")
    monkeypatch.setattr(sinks, "installed", lambda group: {})
    with pytest.raises(
        ConfigError, match=r'unknown format "jdcb": .* bring none; did you mean "jdbc"'
    ):
        chosen(target(file_format="jdcb"))
    monkeypatch.setattr(sinks, "installed", lambda group: {"mine": group, "ours": group})
    with pytest.raises(ConfigError, match="bring mine, ours; correct it, or install its package"):
        chosen(target(file_format="quite-another"))
    with pytest.raises(ConfigError, match='did you mean "mine"'):
        chosen(target(file_format="minee"))
    known.error = ConfigError("another one.")
    with pytest.raises(ConfigError, match=r"^another one"):
        chosen(target(file_format="jdcb"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("PARQUET", "exactly once, for readers that honour _spark_metadata"),
        ("console", "at least once"),
        ("jdbc", "its own: an output that comes again has the query's id"),
        ("Mine", "at least once: it does not recognise"),
    ],
)
def test_a_guarantee_is_that_of_the_sink(
    monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setattr(sinks, "installed", lambda group: {"mine": plugin("Plain")})
    assert sinks.guarantee(name).startswith(says)


def test_the_newest_output_is_the_checkpoints_or_sparks_newest_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sinks, "newest_batch", lambda place: 11 if place == Path("place") else 0)
    assert sinks.newest_output(target()) == 11
    assert sinks.newest_output(target(last_output=lambda: 4)) == 4
    assert sinks.newest_output(target(last_output=lambda: 0)) == 0


# --- Tables -------------------------------------------------------------------------------------------


class Tables:
    """The tables of a catalogue, of which one is named."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named = SimpleNamespace(
            is_temporary_view=False, exists=True, parts=["db", "t`1"], at=("catalog", "id"),
            full="spark_catalog.db.t", loaded=lambda: "the table",
        )  # fmt: skip
        self.kind, self.provider = "MANAGED", "parquet"
        self.files: Any = SimpleNamespace(
            tableType=lambda: SimpleNamespace(name=lambda: self.kind),
            provider=lambda: SimpleNamespace(get=lambda: self.provider),
            location=lambda: "where it lies",
        )
        monkeypatch.setattr(sinks, "NamedTable", lambda spark, name: self.named)
        monkeypatch.setattr(sinks, "of_session_catalog", lambda spark, table: self.files)
        monkeypatch.setattr(sinks, "path_of", lambda spark, location: f"path {location}")


@pytest.fixture
def tables(known: Known, monkeypatch: pytest.MonkeyPatch) -> Tables:
    known.files = True
    return Tables(monkeypatch)


def test_a_table_that_takes_streams_is_given_one(known: Known, tables: Tables) -> None:
    known.streams = True
    assert chosen(target(table="t")) == "a V2Sink"
    assert known.made[-1][2] == "the table"
    assert known.made[-1][-1] == ("catalog", "id")


def test_a_table_of_files_is_written_where_it_lies(known: Known, tables: Tables) -> None:
    assert chosen(target(table="t", options={"PATH": "other", "a": "b"})) == "a FileTableSink"
    _, _, make, place, full, path, _ = known.made[-1]
    assert (place, full, path) == (Path("place"), "spark_catalog.db.t", "path where it lies")
    assert make()[1:4] == ("parquet", "append", {"a": "b", "path": "path where it lies"})
    known.files, known.makes_sinks = False, True
    chosen(target(table="t"))
    assert (known.made[-1][0], known.made[-1][4]) == ("V1Sink", "spark_catalog.db.t")


def test_a_table_that_is_missing_is_made_as_sparks_writer_makes_it(
    known: Known, tables: Tables
) -> None:
    tables.named.exists = False
    with_session = session()
    sink_of(with_session, target(table="t", partition_by=["k"], options={"Path": "o'n"}), PLAN)
    sink_of(with_session, target(table="t", cluster_by=["word"], file_format="parquet"), PLAN)
    made = "CREATE TABLE `db`.`t``1` (k BIGINT,Word STRING) USING parquet"
    assert with_session.said == [
        f"{made} PARTITIONED BY (`k`) LOCATION 'o\\'n'", f"{made} CLUSTER BY (`Word`)",
    ]  # fmt: skip
    with pytest.raises(
        CheckpointError, match="table t does not exist, but this query has written 4 outputs"
    ):
        sink_of(with_session, target(table="t", last_output=lambda: 3), PLAN)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("temporary", "table t is a temporary view; name a table"),
        ("VIEW", "table t is a view; name a table"),
        ("none", "table t takes no streams, as in Spark; use foreachBatch"),
        ("orc", r'is of format "orc", the query writes "parquet"; add .format\("orc"\)'),
    ],
)
def test_what_is_no_table_for_this_query_is_refused(tables: Tables, kind: str, says: str) -> None:
    tables.named.is_temporary_view = kind == "temporary"
    tables.kind = "VIEW" if kind == "VIEW" else "MANAGED"
    tables.provider = "orc" if kind == "orc" else "parquet"
    tables.files = None if kind == "none" else tables.files
    with pytest.raises(ConfigError, match=says):
        chosen(target(table="t"))


# --- Sinks that headgate writes by itself ---------------------------------------------------------------


class Writer:
    """A batch writer, or a frame; each call returns it."""

    def __init__(self) -> None:
        self.did: list[Any] = []

    @property
    def write(self) -> Writer:
        return self

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Writer:
            self.did.append((name, *given, *named.items()))
            return self

        return call


def test_outputs_are_appended_computed_or_printed(capsys: pytest.CaptureFixture[str]) -> None:
    frame: Any = Writer()
    sinks.WriterSink("jdbc", ["k"], {"url": "u"}).write(3, frame)
    assert frame.did == [
        ("mode", "append"), ("format", "jdbc"), ("options", ("url", "u")),
        ("partitionBy", "k"), ("save",),
    ]  # fmt: skip
    frame = Writer()
    sinks.WriterSink("jdbc", [], {}).write(3, frame)
    assert ("partitionBy",) not in frame.did
    frame = Writer()
    sinks.NoopSink().write(3, frame)
    assert frame.did == [("format", "noop"), ("mode", "overwrite"), ("save",)]
    frame = Writer()
    sinks.ConsoleSink({"numrows": "5", "truncate": "false"}).write(3, frame)
    assert frame.did == [("show", 5, False)]
    line = "-" * 43
    assert capsys.readouterr().out == f"{line}\nBatch: 3\n{line}\n"


def test_a_function_is_called_within_the_step_that_it_is_given() -> None:
    did: list[Any] = []

    @contextmanager
    def numbered(batch: int, frame: Any) -> Iterator[None]:
        did.append(f"begin {batch}")
        yield
        did.append("end")

    stream: Any = SimpleNamespace(numbered=numbered, early=False)
    made = sinks.FunctionSink(lambda *given: did.append(given), stream)
    frame: Any = "the rows"
    made.write(3, frame)
    assert did == ["begin 3", ("the rows", 3), "end"]
    made.write_early()
    assert stream.early is True


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"numrows": "few"}, 'numRows="few" of format "console" is no whole number'),
        ({"truncate": "no"}, 'truncate="no" of format "console" is out of range'),
    ],
)
def test_a_console_is_told_numbers_and_words_that_it_knows(
    options: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        sinks.ConsoleSink(options)


# --- Sinks of packages --------------------------------------------------------------------------------


class Plain(hg.Sink):
    """A sink that takes options."""

    option_names = ("path", "batchSize")
    required_options = ("path",)
    output_modes = ("append", "update")

    def write(self, query: str, number: int, rows: Any) -> None:
        """Write nothing."""


class Once(Plain):
    """A sink that tells what comes again."""

    exactly_once = "each output replaces itself"


class NoSink:
    """No sink."""


def plugin(name: str) -> Plugin:
    return Plugin("sink", name.lower(), (EntryPoint(name.lower(), f"{__name__}:{name}", SINKS),))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {kind.__name__.lower(): plugin(kind.__name__) for kind in (Plain, Once, NoSink)}
    monkeypatch.setattr(own_sink, "installed", lambda group: known if group == SINKS else {})


def own(name: str, mode: str = "append", **options: str) -> Any:
    return own_sink.own_sink(name, options, mode, SCHEMA)


@pytest.mark.usefixtures("packages")
def test_a_sink_of_a_package_is_given_its_options_by_their_names() -> None:
    found, sink = own(
        "PLAIN", "update", PATH="p", batchsize="3", checkpointLocation="c", queryName="q"
    )
    assert (found.name, type(sink).__name__) == ("plain", "Plain")
    assert (sink.options, sink.mode, sink.schema) == (
        {"path": "p", "batchSize": "3"},
        "update",
        SCHEMA,
    )
    assert own("unknown") is None


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        (
            "plain",
            {"mode": "complete", "path": "p"},
            "takes append or update mode only; got complete",
        ),
        ("plain", {"path": "p", "batchSiz": "3"}, 'no option "batchSiz"; did you mean "batchSize"'),
        ("plain", {"path": "p", "other": "3"}, 'no option "other"; it takes path, batchSize'),
        ("plain", {}, r'needs option "path"; add .option\("path", ...\)\.'),
        ("nosink", {}, "is the class NoSink; derive it from hg.Sink"),
    ],
)
def test_what_a_sink_of_a_package_does_not_take_is_refused(
    name: str, given: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        own(name, **given)


def test_a_sink_of_a_package_guarantees_what_it_says() -> None:
    assert own_sink.guarantee_of_own(plugin("Once")) == "exactly once: each output replaces itself"
    assert own_sink.guarantee_of_own(plugin("Plain")).startswith(
        "at least once: it does not recognise"
    )


def test_a_package_that_brings_a_format_has_it_before_spark(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def found(name: str, options: Any, mode: str, schema: Any) -> Any:
        asked.append((name, options, mode, schema))
        return "its plugin", "its sink"

    monkeypatch.setattr(sinks, "own_sink", found)
    monkeypatch.setattr(sinks, "OwnSink", lambda *given: given)
    made = chosen(target(file_format="mine", options={"a": "b"}, last_output=lambda: 6))
    assert made[:3] == ("its plugin", "its sink", "stream in place")
    assert made[3]() == 6
    assert asked == [("mine", {"a": "b"}, "append", SCHEMA)]
    known.files = True
    assert chosen(target(file_format="parquet", options={"path": "p"})) == "a FileSink"
    with pytest.raises(ConfigError, match='"mine" takes no partitionBy'):
        chosen(target(file_format="mine", partition_by=["k"]))
