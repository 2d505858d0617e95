"""Programs as people have them, from reading to what they do with the answer; one line is ours."""

from __future__ import annotations

import functools
import json
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from test_written import WM, folder, session
from written import Given, write_streams

import headgate as hg

__all__ = ["folder", "session"]

pytestmark = pytest.mark.thorough

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def bag(rows: Any) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def given(spark: SparkSession, folder: Path, *, stream: bool = True) -> Given:
    return Given(spark, folder, stream=stream)


# -- foreachBatch -----------------------------------------------------------------------------------


def test_an_upsert_into_a_database(session: SparkSession, folder: Path, tmp_path: Path) -> None:
    """Update mode, one row a key, by a statement of the database's."""
    database = tmp_path / "db.sqlite"
    with sqlite3.connect(database) as db:
        db.execute(
            "CREATE TABLE totals (user TEXT, device TEXT, n INT, PRIMARY KEY (user, device))"
        )

    def upsert(frame: DataFrame, batch_id: int) -> None:
        if frame.isEmpty():
            return
        rows = [tuple(row) for row in frame.toLocalIterator()]
        with sqlite3.connect(database) as db:
            db.executemany(
                "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT (user, device) "
                "DO UPDATE SET n = excluded.n",
                rows,
            )

    counts = given(session, folder).events.groupBy("user", "device").count()
    query = (
        hg.writeStream(counts)
        .outputMode("update")
        .foreachBatch(upsert)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with sqlite3.connect(database) as db:
        found = bag(db.execute("SELECT * FROM totals"))
    batch = given(session, folder, stream=False).events.groupBy("user", "device").count()
    assert found == bag(tuple(row) for row in batch.collect())


class Store:
    """Writes a batch to two places, by way of a view of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[int] = []

    def write(self, frame: DataFrame, batch_id: int, *, label: str = "") -> None:
        frame.persist()
        frame.createOrReplaceTempView("updates")
        top = frame.sparkSession.sql(
            "SELECT user, n, rank() OVER (ORDER BY n DESC, user) AS place FROM updates"
        )
        top.where("place <= 2").withColumn("batch", F.lit(batch_id)).write.mode("append").json(
            str(self.path / "top")
        )
        frame.write.mode("overwrite").parquet(str(self.path / "all"))
        self.seen.append(frame.count())
        frame.unpersist()


def test_a_batch_goes_to_two_places_by_a_method_of_an_object(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    counts = given(session, folder).events.groupBy("user").agg(F.count("*").alias("n"))
    query = (
        hg.writeStream(counts)
        .outputMode("complete")
        .foreachBatch(functools.partial(store.write, label="x"))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    batch = given(session, folder, stream=False).events.groupBy("user")
    expected = batch.agg(F.count("*").alias("n"))
    assert bag(session.read.parquet(str(tmp_path / "all")).collect()) == bag(expected.collect())
    assert store.seen[-1] == expected.count()
    assert session.read.json(str(tmp_path / "top")).count() == 2 * len(store.seen)


# -- sources ----------------------------------------------------------------------------------------


def test_folders_by_day_with_a_header_become_a_table_and_are_read_again(
    session: SparkSession, tmp_path: Path
) -> None:
    for day in ("2026-03-01", "2026-03-02"):
        folder = tmp_path / "in" / f"day={day}"
        folder.mkdir(parents=True)
        lines = [f"{user},{n}" for n, user in enumerate(["ann", "bob", "cy", "ann"])]
        (folder / "part.csv").write_text("user,n\n" + "\n".join(lines))
    source = (
        session.readStream.format("csv")
        .schema("user string, n int, day date")
        .option("header", True)
        .option("maxFilesPerTrigger", 1)
        .load(str(tmp_path / "in"))
    )
    session.sql("DROP TABLE IF EXISTS by_day")
    query = (
        hg.writeStream(source.dropDuplicates(["user", "day"]))
        .partitionBy("day")
        .option("checkpointLocation", str(tmp_path / "first"))
        .option("path", str(tmp_path / "table"))
        .trigger(availableNow=True)
        .toTable("by_day", format="parquet")
    )
    query.awaitTermination()
    again = session.readStream.table("by_day").groupBy("day").agg(F.count("user").alias("users"))
    query = (
        hg.writeStream(again)
        .format("memory")
        .queryName("users_by_day")
        .outputMode("complete")
        .start()
    )
    query.processAllAvailable()
    query.stop()
    found = session.table("users_by_day").collect()
    session.sql("DROP TABLE by_day")
    assert sorted((str(row.day), row.users) for row in found) == [
        ("2026-03-01", 3),
        ("2026-03-02", 3),
    ]


def test_a_stream_named_in_sql(session: SparkSession, folder: Path, tmp_path: Path) -> None:
    session.sql("DROP TABLE IF EXISTS log")
    given(session, folder, stream=False).events.write.format("parquet").saveAsTable(
        "log", path=str(tmp_path / "table")
    )
    frame = session.sql("SELECT user, count(*) AS n FROM STREAM log GROUP BY user")
    assert frame.isStreaming
    query = hg.writeStream(frame).format("memory").queryName("by_name").outputMode("complete")
    running = query.trigger(once=True).start()
    running.awaitTermination()
    found = bag(session.sql("SELECT * FROM by_name").collect())
    expected = session.sql("SELECT user, count(*) AS n FROM log GROUP BY user").collect()
    session.sql("DROP TABLE log")
    assert found == bag(expected)


def test_lines_of_text_files_are_parsed(session: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(3):
        lines = [f"10.0.0.{n % 3} GET /{n % 2} {200 if n % 4 else 500}" for n in range(20)]
        (folder / f"{number}.log").write_text("\n".join(lines))
    lines = session.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
    parsed = lines.select(F.split("value", " ").alias("p")).select(
        F.col("p")[0].alias("host"),
        F.col("p")[2].alias("path"),
        F.col("p")[3].cast("int").alias("code"),
    )
    errors = parsed.where("code >= 500").groupBy("host", "path").count().orderBy("host", "path")
    found: list[Any] = []
    query = hg.writeStream(errors).outputMode("complete").trigger(availableNow=True)
    query = query.foreachBatch(lambda frame, batch: found.append(frame.collect()))
    query.start().awaitTermination()
    assert found[-1] == [
        Row(host=f"10.0.0.{n}", path="/0", count=c * 3) for n, c in ((0, 2), (1, 2), (2, 1))
    ]


def test_a_rate_source_is_counted_by_windows(session: SparkSession) -> None:
    ticks = session.readStream.format("rate").option("rowsPerSecond", 50).load()
    counts = (
        ticks.withWatermark("timestamp", "1 second")
        .groupBy(F.window("timestamp", "1 second"), (F.col("value") % 2).alias("odd"))
        .agg(F.count("*").alias("n"), F.min("value"), F.max("value"))
    )
    query = (
        hg.writeStream(counts)
        .format("memory")
        .queryName("rate_counts")
        .outputMode("append")
        .trigger(processingTime="500 milliseconds")
        .start()
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and session.table("rate_counts").count() < 4:
        time.sleep(0.2)
    query.stop()
    rows = session.table("rate_counts").collect()
    assert len(rows) >= 4
    assert all(row["n"] == (row["max(value)"] - row["min(value)"]) // 2 + 1 for row in rows)


# -- the life of a query ----------------------------------------------------------------------------


def test_a_nightly_job_goes_on_where_it_was(session: SparkSession, tmp_path: Path) -> None:
    """Each run takes the files that came since the last one."""
    write_streams(tmp_path / "all", 5)
    arrived = tmp_path / "in" / "events"
    arrived.mkdir(parents=True)
    names = sorted((tmp_path / "all" / "events").iterdir())
    for night in (names[:2], names[2:]):
        for name in night:
            (arrived / name.name).write_text(name.read_text())
        frame = given(session, tmp_path / "in").events.withWatermark("ts", WM)
        totals = frame.groupBy(F.window("ts", "30 seconds"), "device").agg(
            F.sum("value").alias("v")
        )
        query = (
            hg.writeStream(totals)
            .outputMode("append")
            .format("json")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
    batch = Given(session, tmp_path / "all", stream=False, last=False).events
    expected = batch.groupBy(F.window("ts", "30 seconds"), "device").agg(F.sum("value").alias("v"))
    found = session.read.schema(expected.schema).json(str(tmp_path / "out"))
    assert [
        (r.window.start, r.device, round(r.v, 6))
        for r in found.orderBy("window", "device").collect()
    ] == [
        (r.window.start, r.device, round(r.v, 6))
        for r in expected.orderBy("window", "device").collect()
    ]


class Seen(StreamingQueryListener):
    """As people write theirs: to a log, as JSON."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ended: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.lines.append(f"{event.name} {event.id} {event.runId} {event.timestamp}")

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        self.lines.append(progress.json)
        assert json.loads(progress.prettyJson)["batchId"] == progress.batchId
        assert progress.sources[0].numInputRows >= 0
        assert progress.sink.description

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.append((str(event.id), event.exception))


def test_a_query_is_watched_as_any_other(session: SparkSession, folder: Path) -> None:
    session.streams.resetTerminated()  # queries of other tests
    listener = Seen()
    session.streams.addListener(listener)
    counts = given(session, folder).events.groupBy("user").count()
    query = (
        hg.writeStream(counts).queryName("watched").format("memory").outputMode("complete").start()
    )
    assert query.isActive
    assert [str(one.id) for one in session.streams.active] == [str(query.id)]
    assert session.streams.get(query.id).name == "watched"
    query.processAllAvailable()
    assert session.streams.awaitAnyTermination(0.1) is False
    assert query.status["message"]
    rows = sum(one["numInputRows"] for one in query.recentProgress)
    state = query.lastProgress["stateOperators"][0]
    query.explain()
    query.stop()
    deadline = time.monotonic() + 30
    while not listener.ended and time.monotonic() < deadline:
        time.sleep(0.05)
    session.streams.removeListener(listener)
    assert rows == given(session, folder, stream=False).events.count()
    assert state["numRowsTotal"] == 5
    assert listener.ended == [(str(query.id), None)]
    assert listener.lines[0].startswith(f"watched {query.id} {query.runId}")
    assert sum(json.loads(line)["numInputRows"] for line in listener.lines[1:]) == rows


def test_two_queries_over_one_stream(session: SparkSession, folder: Path, tmp_path: Path) -> None:
    stream = given(session, folder).events
    raw = (
        hg.writeStream(stream.drop("tags")).format("parquet").option("path", str(tmp_path / "raw"))
    )
    raw = raw.option("checkpointLocation", str(tmp_path / "c1")).start()
    counts = hg.writeStream(stream.groupBy("action").count()).outputMode("complete")
    counts = counts.format("memory").queryName("live").start()
    for query in session.streams.active:
        query.processAllAvailable()
        query.stop()
    batch = given(session, folder, stream=False).events
    assert session.read.parquet(str(tmp_path / "raw")).count() == batch.count()
    assert bag(session.table("live").collect()) == bag(batch.groupBy("action").count().collect())
    assert not raw.isActive
    assert not counts.isActive


class ToFiles:
    """A writer for `foreach`, as in Spark's guide."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition_id: int, epoch_id: int) -> bool:
        self.lines: list[str] = []
        self.name = f"{epoch_id}-{partition_id}.txt"
        return True

    def process(self, row: Row) -> None:
        self.lines.append(json.dumps(row.asDict(), default=str))

    def close(self, error: Exception | None) -> None:
        if error is None:
            (self.folder / self.name).write_text("\n".join(self.lines))


def test_rows_go_out_by_an_object_with_open_process_and_close(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    once = given(session, folder).events.select("user", "action").distinct()
    query = hg.writeStream(once).foreach(ToFiles(out)).trigger(availableNow=True).start()
    query.awaitTermination()
    found = [json.loads(x) for p in out.iterdir() for x in p.read_text().splitlines()]
    expected = given(session, folder, stream=False).events.select("user", "action").distinct()
    assert bag(found) == bag(row.asDict() for row in expected.collect())


def per_user(key: tuple[str], frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"user": [key[0]], "rows": [len(frame)], "mean": [frame["value"].mean()]})


def test_frames_of_each_batch_by_key(session: SparkSession, folder: Path) -> None:
    """`applyInPandas` over a stream sees one batch at a time, in plain Spark too."""

    def run(writer: Any) -> Counter[str]:
        found: Counter[str] = Counter()
        writer = writer.foreachBatch(lambda frame, batch: found.update(bag(frame.collect())))
        writer.trigger(availableNow=True).start().awaitTermination()
        return found

    def frame() -> DataFrame:
        events = given(session, folder).events.select("user", "value")
        return events.groupBy("user").applyInPandas(
            per_user, "user string, rows bigint, mean double"
        )

    assert run(hg.writeStream(frame())) == run(frame().writeStream)


def alerts(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[frame["mean"] > 50].assign(text=lambda f: "high at " + f["device"])


def test_alerts_come_from_a_function_over_windows(session: SparkSession, folder: Path) -> None:
    means = (
        given(session, folder)
        .events.withWatermark("ts", WM)
        .groupBy(F.window("ts", "20 seconds"), "device")
        .agg(F.avg("value").alias("mean"))
        .select("device", F.round("mean", 6).alias("mean"))
    )
    made = means.mapInPandas(alerts, "device string, mean double, text string")
    query = hg.writeStream(made).format("memory").queryName("alerts").trigger(availableNow=True)
    query.start().awaitTermination()
    batch = Given(session, folder, stream=False, last=False).events
    expected = (
        batch.groupBy(F.window("ts", "20 seconds"), "device")
        .agg(F.round(F.avg("value"), 6).alias("mean"))
        .where("mean > 50")
        .select("device", "mean", F.concat(F.lit("high at "), "device").alias("text"))
    )
    assert bag(session.table("alerts").collect()) == bag(expected.collect())


@pytest.mark.parametrize("form", ["keywords", "start"])
def test_everything_may_be_said_in_start(
    session: SparkSession, folder: Path, tmp_path: Path, form: str
) -> None:
    frame = given(session, folder).events.select("user", "id")
    options = {"checkpointLocation": str(tmp_path / "checkpoint"), "compression": "none"}
    out = str(tmp_path / "out")
    if form == "keywords":
        query = hg.writeStream(frame).start(path=out, format="csv", queryName="said", **options)
    else:
        query = hg.writeStream(frame).options(**options).start(out, "csv", "append")
    query.processAllAvailable()
    query.stop()
    rows = session.read.schema("user string, id bigint").csv(out)
    assert rows.count() == given(session, folder, stream=False).events.count()
