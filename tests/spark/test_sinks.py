"""What a sink is given means what it means under plain Spark, or is refused in one sentence."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.jvm import sparksinks
from headgate.spark.sinks.sinks import ConsoleSink

Write = Callable[[DataFrame], Any]


def plain(frame: DataFrame) -> Any:
    return frame.writeStream


def elastic(frame: DataFrame) -> Any:
    return hg.writeStream(frame).slots(start=2)


def put(folder: Path, number: int, times: list[tuple[int, int]]) -> None:
    """Write a file of (key, second); the stream reads one file per batch."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{number}.json"
    rows = ({"k": k, "t": f"2026-01-01 00:{t // 60:02d}:{t % 60:02d}"} for k, t in times)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(file, (1000 + number, 1000 + number))


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of three batches."""
    folder = tmp_path / "events"
    put(folder, 0, [(0, 1), (1, 2), (0, 3)])
    put(folder, 1, [(1, 21), (1, 22)])
    put(folder, 2, [(0, 300), (1, 301)])
    reader = spark.readStream.schema("k int, t timestamp").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder)).withWatermark("t", "1 second")


def per_key(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.count("*").alias("n"))


def per_window(events: DataFrame) -> DataFrame:
    counts = events.groupBy("k", F.window("t", "10 seconds")).agg(F.count("*").alias("n"))
    return counts.select("k", "n")


def finish(made: Any, checkpoint: Path, start: Callable[[Any], Any] = lambda w: w.start()) -> Any:
    made = made.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = start(made)
    query.awaitTermination()
    return query


# -- a sink that truncates ---------------------------------------------------------------------------


@pytest.fixture
def table_source(spark: SparkSession) -> str:
    """A data source in Python that keeps a table in one file, and whether it was told to replace it."""
    # in here, so that workers get the classes by value
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamWriter,
        DataSourceWriter,
        WriterCommitMessage,
    )

    class Rows(WriterCommitMessage):
        def __init__(self, rows: list[Any]) -> None:
            self.rows = rows

    class StreamWriter(DataSourceStreamWriter):
        def __init__(self, path: str, overwrite: bool) -> None:
            self.path, self.overwrite = path, overwrite

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return Rows([list(row) for row in iterator])

        def commit(self, messages: list[Any], batchId: int) -> None:
            file = Path(self.path)
            found = json.loads(file.read_text()) if file.exists() else {"rows": [], "batches": []}
            kept = [] if self.overwrite else found["rows"]
            found["rows"] = kept + [row for one in messages if one for row in one.rows]
            found["batches"] += [[batchId, self.overwrite]]
            file.write_text(json.dumps(found))

        def abort(self, messages: list[Any], batchId: int) -> None:
            pass

    class Writer(DataSourceWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            raise AssertionError("a batch writer, where a stream writes")

    class Table(DataSource):
        @classmethod
        def name(cls) -> str:
            return "one_file_table"

        def schema(self) -> str:
            return "k int, n bigint"

        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            return StreamWriter(self.options["path"], overwrite)

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            return Writer()

    spark.dataSource.register(Table)
    return "one_file_table"


def test_a_thread_that_writes_knows_the_session_and_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "metadata").write_text('{"id": "the query"}')
    other, frame = spark.newSession(), spark.range(1)
    stream, within = (sparksinks.WrittenStream(s, tmp_path) for s in (spark, other))
    within.early = True
    property_of = spark.sparkContext.getLocalProperty
    assert sparksinks.program_of_thread() is None
    assert not sparksinks.is_early_in_thread()
    with stream.numbered(7, frame):
        assert sparksinks.program_of_thread() is spark
        assert not sparksinks.is_early_in_thread()
        with within.numbered(8, frame):
            assert sparksinks.program_of_thread() is other
            assert sparksinks.is_early_in_thread()
            assert property_of("streaming.sql.batchId") == "8"
        assert sparksinks.program_of_thread() is spark
        assert property_of("streaming.sql.batchId") == "7"
        assert property_of("sql.streaming.queryId") == "the query"
    assert sparksinks.program_of_thread() is None
    assert property_of("streaming.sql.batchId") is None


@pytest.mark.parametrize("write", [plain, elastic])
def test_complete_mode_replaces_a_table_that_can_be_truncated(
    events: DataFrame, table_source: str, tmp_path: Path, write: Write
) -> None:
    made = write(per_key(events)).outputMode("complete").format(table_source)
    finish(made.option("path", str(tmp_path / "table")), tmp_path / "ck")
    found = json.loads((tmp_path / "table").read_text())
    assert sorted(found["rows"]) == [[0, 3], [1, 4]]
    assert found["batches"] == [[0, True], [1, True], [2, True]]


def test_append_mode_adds_to_that_table_with_consecutive_batches(
    events: DataFrame, table_source: str, tmp_path: Path
) -> None:
    made = elastic(per_window(events)).format(table_source).option("path", str(tmp_path / "table"))
    finish(made, tmp_path / "ck")
    found = json.loads((tmp_path / "table").read_text())
    assert sorted(found["rows"]) == [[0, 2], [1, 1], [1, 2]]
    assert found["batches"] == [[n, False] for n in range(len(found["batches"]))]


def test_a_mode_that_a_table_does_not_take_is_refused_and_leaves_no_checkpoint(
    events: DataFrame, table_source: str, tmp_path: Path
) -> None:
    made = elastic(per_key(events)).outputMode("update").format(table_source)
    with pytest.raises(
        ConfigError, match='"one_file_table" does not take update mode, as in Spark'
    ):
        finish(made.option("path", str(tmp_path / "table")), tmp_path / "ck")
    assert not (tmp_path / "ck").exists()


# -- tables ------------------------------------------------------------------------------------------


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    spark.sql(f"create database sinks_test location 'file:{tmp_path}/database'")
    yield "sinks_test"
    spark.sql("drop database sinks_test cascade")


def contents(spark: SparkSession, table: str) -> tuple[list[Any], list[str]]:
    """Return a table's rows and how it is partitioned."""
    frame = spark.table(table)
    columns = spark.catalog.listColumns(table)
    rows = sorted((row.k, row.n) for row in frame.collect())
    return rows, [column.name for column in columns if column.isPartition]


def test_a_table_is_made_and_filled_as_plain_spark_does(
    spark: SparkSession, events: DataFrame, database: str, tmp_path: Path
) -> None:
    def into(table: str) -> Callable[[Any], Any]:
        return lambda w: w.toTable(
            f"{database}.{table}", format="json", outputMode="append", partitionBy="K"
        )

    finish(plain(per_window(events)), tmp_path / "plain", into("theirs"))
    finish(elastic(per_window(events)), tmp_path / "elastic", into("ours"))
    expected = contents(spark, f"{database}.theirs")
    assert contents(spark, f"{database}.ours") == expected == ([(0, 2), (1, 1), (1, 2)], ["k"])
    # Spark's own log of files, so that a batch that comes again is skipped
    assert (tmp_path / "database" / "ours" / "_spark_metadata" / "0").exists()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_table_of_files_takes_append_mode_only(
    events: DataFrame, database: str, tmp_path: Path, mode: str
) -> None:
    made = elastic(per_key(events)).outputMode(mode)
    with pytest.raises(ConfigError, match=f"append mode only, as in Spark; got {mode}"):
        finish(made, tmp_path / "ck", lambda w: w.toTable(f"{database}.counts"))


def test_a_table_of_another_format_or_that_is_a_view_is_refused(
    spark: SparkSession, events: DataFrame, database: str, tmp_path: Path
) -> None:
    spark.sql(f"create table {database}.csvs (k int, n bigint) using csv")
    spark.sql(f"create view {database}.seen as select 1 as k")
    spark.range(1).createOrReplaceTempView("only_a_view")
    for table, why in (
        (f"{database}.csvs", r'of format "csv", the query writes "parquet"'),
        (f"{database}.seen", "is a view"),
        ("only_a_view", "is a temporary view"),
        ("a b", r"PARSE_SYNTAX_ERROR"),
    ):
        with pytest.raises(ConfigError, match=why):
            finish(elastic(per_window(events)), tmp_path / "ck", lambda w, t=table: w.toTable(t))
    assert not (tmp_path / "ck").exists()


def test_a_table_that_an_older_headgate_filled_is_not_hidden(
    spark: SparkSession, events: DataFrame, database: str, tmp_path: Path
) -> None:
    frame = spark.createDataFrame([(1, 2)], "k int, n bigint")
    frame.write.saveAsTable(f"{database}.older")
    path = f"file:{tmp_path}/database/older"

    def make() -> Any:
        schema = frame._jdf.queryExecution().analyzed().schema()
        return sparksinks.v1_sink(spark, "parquet", "append", {"path": path}, [], schema)

    outputs = sparksinks.KnownOutputs(lambda: 6, lambda: 6)
    made = sparksinks.FileTableSink(spark, make, tmp_path, f"{database}.older", path, outputs)
    made.begin()
    with pytest.raises(CheckpointError, match="filled by an older headgate"):
        made.write(7, frame)
    assert spark.table(f"{database}.older").count() == 1


@pytest.mark.parametrize(
    ("mode", "delivered", "told"), [("append", 2, 1), ("append", -1, 0), ("complete", 2, 0)]
)
def test_a_table_in_memory_that_begins_again_says_what_it_lacks(
    spark: SparkSession, mode: str, delivered: int, told: int
) -> None:
    sink = sparksinks.MemorySink(spark, "again", spark.range(1).toDF("k"), mode, lambda: delivered)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sink.begin()
    assert len(said) == told
    assert all(
        "begins without rows, though its query put out outputs up to 2" in str(w) for w in said
    )


# -- options that one of the two would leave aside ------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (lambda w: w.format("memory").queryName("m").partitionBy("k"), "takes no partitionBy"),
        (lambda w: w.foreachBatch(lambda *_: None).partitionBy("k"), "takes no partitionBy"),
        (lambda w: w.foreach(lambda _: None).partitionBy("k"), "takes no partitionBy"),
        (
            lambda w: w.format("memory").queryName("01: counts"),
            'format "memory" with the query\'s name',
        ),
        (lambda w: w.format("noop").partitionBy("nosuch"), 'partitionBy names "nosuch"'),
        (lambda w: w.format("noop").partitionBy("k").clusterBy("k"), "exclude each other"),
        (lambda w: w.format("console").option("numRows", "many"), 'numRows="many"'),
        (lambda w: w.format("console").option("truncate", "3"), 'truncate="3"'),
        (lambda w: w.format("jdbc"), "no streaming writer in Spark"),
        (lambda w: w.format("rate"), "cannot be written to"),
        (lambda w: w.format("hive"), "for tables only"),
        (lambda w: w.format("nosuch"), 'unknown format "nosuch": Spark has none of that name'),
    ],
)
def test_what_spark_refuses_is_refused_before_anything_is_written(
    events: DataFrame, tmp_path: Path, settings: Callable[[Any], Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        finish(settings(elastic(per_key(events)).outputMode("update")), tmp_path / "ck")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ck").exists()


def test_two_paths_are_refused(events: DataFrame, tmp_path: Path) -> None:
    made = elastic(per_window(events)).format("json").option("Path", "a")
    with pytest.raises(ConfigError, match="both say where to"):
        made.start(str(tmp_path / "b"))


def test_the_console_prints_the_rows_that_it_is_told_to(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    ConsoleSink({"numrows": "1", "truncate": "false"}).write(3, spark.range(2).coalesce(1))
    assert "Batch: 3\n" in (printed := capsys.readouterr().out)
    assert "only showing top 1 row" in printed


# -- row by row, and one batch only ---------------------------------------------------------------------


def test_foreach_gives_each_row_to_the_function_on_its_executor(
    events: DataFrame, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()

    class Keep:
        def open(self, partition_id: int, epoch_id: int) -> bool:
            self.file = (folder / f"{epoch_id}-{partition_id}").open("w")
            return True

        def process(self, row: Any) -> None:
            print(row.k, row.n, file=self.file)

        def close(self, error: Exception | None) -> None:
            self.file.close()

    made = elastic(per_window(events)).queryName("01: each row, by hand").foreach(Keep())
    query = finish(made, tmp_path / "ck")
    assert query.name == "01: each row, by hand"
    assert sorted("".join(f.read_text() for f in folder.iterdir()).splitlines()) == [
        "0 2",
        "1 1",
        "1 2",
    ]


def test_once_is_one_batch_of_all_there_is(
    spark: SparkSession, events: DataFrame, tmp_path: Path
) -> None:
    made = elastic(per_key(events)).outputMode("update").format("memory").queryName("at_once")
    query = made.option("checkpointLocation", str(tmp_path / "ck")).trigger(once=True).start()
    query.awaitTermination()
    assert sorted(spark.table("at_once").collect()) == [(0, 3), (1, 4)]
    assert sorted(one.name for one in (tmp_path / "ck" / "commits").glob("[0-9]*")) == ["0"]


def test_what_puts_nothing_out_leaves_its_schema_and_has_called_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As in plain Spark: who reads the answer finds an empty one, not that there is none."""
    put(tmp_path / "in", 0, [(0, 1), (1, 2)])
    stream = spark.readStream.schema("k int, t timestamp").json(str(tmp_path / "in"))
    frame = per_window(stream.withWatermark("t", "1 hour"))
    finish(elastic(frame).format("parquet").option("path", str(tmp_path / "out")), tmp_path / "ck")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert (found.schema, found.collect()) == (frame.schema, [])
    seen: list[tuple[int, int]] = []
    for _ in range(2):  # not again at the next start
        made = elastic(frame).foreachBatch(lambda rows, batch: seen.append((batch, rows.count())))
        finish(made, tmp_path / "ck2")
    assert seen == [(0, 0)]


def test_a_failing_sink_fails_the_query(events: DataFrame, tmp_path: Path) -> None:
    def fail(row: Any) -> None:
        msg = "not this row"
        raise ValueError(msg)

    with pytest.raises(StreamingQueryException, match="not this row"):
        finish(elastic(per_window(events)).foreach(fail), tmp_path / "ck")
