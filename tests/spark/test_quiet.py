"""Results come out when they are due, also from a stream that has gone quiet."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
BOUND_S = 60.0
"""Generous: on a busy machine a batch takes seconds. What is asserted is steps, not time."""

SCHEMA = "id bigint, ts timestamp, k string"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


def put(folder: Path, number: int, seconds: list[float], keys: int = 3) -> None:
    """Add a file of one record per event time (seconds after START), whole or not at all."""
    folder.mkdir(exist_ok=True)
    times = [START + dt.timedelta(seconds=s) for s in seconds]
    table = pa.table(
        {
            "id": pa.array(range(len(times)), pa.int64()),
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "k": [f"k{i % keys}" for i in range(len(times))],
        }
    )
    hidden = folder / f".{number}"
    pq.write_table(table, hidden)
    hidden.rename(folder / f"{number}.parquet")


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).parquet(str(folder))


def windows(frame: DataFrame) -> DataFrame:
    counted = frame.withWatermark("ts", "5 seconds").groupBy(F.window("ts", "10 seconds"), "k")
    return counted.agg(F.count("*").alias("n"))


def start(frame: DataFrame, name: str, checkpoint: Path, **how: Any) -> Any:
    writer = hg.writeStream(frame).format("memory").queryName(name)
    writer = writer.option("checkpointLocation", str(checkpoint)).slots(start=2)
    if "budget" in how:
        writer = writer.budget(how.pop("budget"))
    return writer.outputMode(how.pop("mode", "append")).trigger(**how).start()


def steps(query: Any) -> list[dict[str, Any]]:
    """Return the journal's batches."""
    found = []
    for line in query.journal.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # else it is being written
            event = json.loads(line)
            if event["event"] == "batch":
                found.append(event)
    return found


def wait_until(true: Callable[[], Any], query: Any) -> None:
    deadline = time.monotonic() + BOUND_S
    while not true():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, steps(query)[-3:]
        time.sleep(0.05)


def total(spark: SparkSession, name: str) -> int:
    return spark.table(name).agg(F.coalesce(F.sum("n"), F.lit(0))).collect()[0][0]


def after_the_last_data(query: Any) -> list[dict[str, Any]]:
    batches = steps(query)
    last = max(i for i, batch in enumerate(batches) if batch["arrived"])
    return batches[last + 1 :]


def test_windows_close_within_two_steps_of_the_last_data(
    session: SparkSession, tmp_path: Path
) -> None:
    # The last data's batch moves the watermark to 30 - 5 s, which is in force one batch later.
    put(tmp_path / "in", 0, [1, 2, 3, 11, 12, 30])
    query = start(
        windows(stream(session, tmp_path / "in")),
        "quiet",
        tmp_path / "checkpoint",
        processingTime="200 milliseconds",
    )
    try:
        wait_until(lambda: total(session, "quiet") == 5, query)
        quiet = after_the_last_data(query)
        assert [i for i, batch in enumerate(quiet) if batch["emitted"]][-1] < 2
        assert sum(batch["emitted"] for batch in quiet) == 5
        assert quiet[-1]["backlog"] == 0
    finally:
        query.stop()


def test_a_quiet_stream_with_nothing_due_costs_no_steps(
    session: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, [1, 30])
    query = start(
        windows(stream(session, tmp_path / "in")),
        "still",
        tmp_path / "checkpoint",
        processingTime="200 milliseconds",
    )
    try:
        wait_until(lambda: total(session, "still") == 1, query)
        before, ticked = len(steps(query)), query.lastProgress["batchId"]
        wait_until(lambda: query.lastProgress["batchId"] >= ticked + 2, query)
        assert len(steps(query)) == before
    finally:
        query.stop()


def test_a_record_behind_the_watermark_of_a_quiet_batch_is_late(
    session: SparkSession, tmp_path: Path
) -> None:
    """Before it nothing was due: the window of 25 is open, and that of 1 was never there."""
    put(tmp_path / "in", 0, [25])
    query = start(
        windows(stream(session, tmp_path / "in")),
        "behind",
        tmp_path / "checkpoint",
        processingTime="200 milliseconds",
    )
    try:
        wait_until(lambda: query.lastProgress, query)
        ticked = query.lastProgress["batchId"]
        wait_until(lambda: query.lastProgress["batchId"] >= ticked + 3, query)
        put(tmp_path / "in", 1, [1])
        wait_until(lambda: len(steps(query)) > 1, query)
        assert [batch["late"] for batch in steps(query)] == [0, 1]
    finally:
        query.stop()


def test_a_burst_over_budget_is_served_while_the_source_is_quiet(
    session: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, [i / 1000 for i in range(8_000)], keys=40)
    query = start(
        stream(session, tmp_path / "in").groupBy("k").agg(F.count("*").alias("n")),
        "burst",
        tmp_path / "checkpoint",
        processingTime="100 milliseconds",
        budget="1 ms",
        mode="complete",
    )
    try:
        wait_until(lambda: steps(query) and steps(query)[0]["backlog"] > 0, query)
        query.scale(3)
        wait_until(lambda: total(session, "burst") == 8_000, query)
        batches = steps(query)
        backlog = [batch["backlog"] for batch in batches]
        assert backlog == sorted(backlog, reverse=True)
        assert backlog[-1] == 0
        assert sum(batch["arrived"] for batch in batches[1:]) == 0
        assert sum(batch["served"] for batch in batches) == 8_000
    finally:
        query.stop()


def test_windows_behind_a_backlog_wait_for_it_and_then_come_out(
    session: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, [*(i / 1000 for i in range(8_000)), 30])
    query = start(
        windows(stream(session, tmp_path / "in")),
        "behind",
        tmp_path / "checkpoint",
        processingTime="100 milliseconds",
        budget="1 ms",
    )
    try:
        wait_until(lambda: total(session, "behind") == 8_000, query)
        rows = {row.k: row.n for row in session.table("behind").collect()}
        assert rows == {"k0": 2667, "k1": 2667, "k2": 2666}
        assert steps(query)[-1]["backlog"] == 0
    finally:
        query.stop()


def test_available_now_ends_by_itself_with_everything_out(
    session: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", 0, [1, 2, 11, 30])
    query = start(
        windows(stream(session, tmp_path / "in")),
        "finite",
        tmp_path / "checkpoint",
        availableNow=True,
        budget="1 ms",
    )
    assert query.awaitTermination(BOUND_S)
    assert total(session, "finite") == 3
    assert steps(query)[-1]["backlog"] == 0


def test_a_finite_stream_goes_on_where_it_ended(session: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", str(tmp_path / "out")
    seen = []
    for number, seconds in enumerate([[1, 2, 11, 30], [21, 31, 60], [61]]):
        put(folder, number, [float(s) for s in seconds], keys=1)
        made = hg.writeStream(windows(stream(session, folder))).format("parquet")
        made = made.option("path", out).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = made.slots(start=2).trigger(availableNow=True).start()
        assert query.awaitTermination(BOUND_S)
        rows = session.read.parquet(out).collect()
        seen.append(sorted((row.window.start.astimezone(dt.UTC).second, row.n) for row in rows))
    # 21 is not late, the window from 20 being open at 25; the last run's watermark is 56 s
    first, second = [(0, 2), (10, 1)], [(20, 1), (30, 2)]
    assert seen == [first, first + second, first + second]


def test_a_batch_that_is_delivered_again_moves_the_watermark_all_the_same(
    session: SparkSession, tmp_path: Path
) -> None:
    """A sink that fails ends the query behind the manifest and before Spark's commit, as a kill does."""
    put(tmp_path / "in", 0, [1, 2, 25])
    put(tmp_path / "in", 1, [100])
    reader = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    failed: list[int] = []
    found: list[tuple[int, int]] = []

    def sink(frame: DataFrame, batch: int) -> None:
        if not failed:
            failed.append(batch)
            msg = "the sink is not there"
            raise RuntimeError(msg)
        seconds = F.unix_seconds("window.start") - int(START.timestamp())
        found.extend(tuple(row) for row in frame.select(seconds, "n").collect())

    def run() -> None:
        frame = windows(reader.parquet(str(tmp_path / "in")))
        writer = hg.writeStream(frame).slots(start=2).trigger(availableNow=True).foreachBatch(sink)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink is not there"):
        run()
    run()
    assert sorted(found) == [(0, 1), (0, 1), (20, 1)], (
        "the window at 20 s is due by the second file"
    )


@pytest.mark.parametrize("how", ["once", "no batches without data"])
def test_windows_are_held_back_until_records_come_where_spark_does_so(
    session: SparkSession, tmp_path: Path, how: str
) -> None:
    setting = "spark.sql.streaming.noDataMicroBatches.enabled"
    trigger: dict[str, Any] = {"once": True} if how == "once" else {"availableNow": True}
    session.conf.set(setting, str(how == "once").lower())
    folder = tmp_path / "in"
    found: dict[str, list[int]] = {"spark": [], "headgate": []}

    def run(engine: str) -> None:
        rows: list[Any] = []
        frame = windows(stream(session, folder))
        writer: Any = frame.writeStream if engine == "spark" else hg.writeStream(frame)
        writer = writer.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / engine)).trigger(**trigger)
        writer.start().awaitTermination()
        found[engine].append(len(rows))

    try:
        # windows that end at 10 s are due after the first start, those up to 40 s after the last
        for seconds in ([1.0, 2.0, 30.0], [], [50.0]):
            if seconds:
                put(folder, len(found["spark"]), seconds)
            run("spark")
            run("headgate")
    finally:
        session.conf.unset(setting)
    assert found["headgate"] == found["spark"] == [0, 0, 2]
