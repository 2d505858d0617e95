"""What begins a batch where the source is quiet: without a Python process, without a clock."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.spark.api import begin as beginning
from headgate.spark.jvm import tick
from headgate.spark.jvm.tick import Tick
from headgate.spark.step import steps
from headgate_lab.bench.common import descendants

BOUND_S = 240.0
"""Generous: on a busy machine a batch takes seconds. What is asserted is batches, not time."""


def put(folder: Path, first: int, files: int) -> None:
    """Add files of one number each."""
    folder.mkdir(exist_ok=True)
    for number in range(first, first + files):
        hidden = folder / f".{number}"
        hidden.write_text(f"{number}\n")
        hidden.rename(folder / f"{number}.csv")


@pytest.mark.parametrize("last", ["²", "9" * 5000, "9" * 19, "[" * 100_000, "", "-1"])
def test_an_offset_that_is_no_number_of_javas_is_none(tmp_path: Path, last: str) -> None:
    (tmp_path / "3").write_text("v1\n{}\n7")
    (tmp_path / "²").write_text("v1\n{}\n8")
    assert tick._last_offset(tmp_path) == 7
    (tmp_path / "4").write_text(f"v1\n{{}}\n{last}")
    assert tick._last_offset(tmp_path) == -1


def begin(spark: SparkSession, place: Path, name: str, **trigger: Any) -> Any:
    """Start to count the numbers of a folder, one file per batch."""
    reader = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1)
    counts = reader.csv(str(place / "in")).groupBy("id").count()
    writer = hg.writeStream(counts).outputMode("update").format("memory").queryName(name)
    writer = writer.option("checkpointLocation", str(place / "checkpoint")).slots(start=1)
    return writer.trigger(**trigger).start()


def await_batch(query: Any, number: int) -> None:
    deadline = time.monotonic() + BOUND_S
    while (query.lastProgress or {}).get("batchId", -1) < number:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def log_of(place: Path) -> dict[int, list[str]]:
    """Return the offsets of each batch in Spark's log."""
    files = [p for p in (place / "checkpoint" / "offsets").iterdir() if p.name.isdigit()]
    return {int(p.name): p.read_text().splitlines()[2:] for p in files}


def as_an_older_headgate_left_it(place: Path, ticks: int) -> None:
    """Give the log the offsets of the tick that was a Python source, the newest batch not committed."""
    for number in log_of(place):
        file = place / "checkpoint" / "offsets" / str(number)
        lines = file.read_text().splitlines()
        file.write_text("\n".join([*lines[:-1], json.dumps({"tick": ticks + number})]))
        (file.parent / f".{number}.crc").unlink(missing_ok=True)
    newest = max(log_of(place))
    for name in (str(newest), f".{newest}.crc"):
        (place / "checkpoint" / "commits" / name).unlink(missing_ok=True)


def runners() -> int:
    """Return how many processes read a Python source for the driver of this test."""
    found = 0
    for process in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            line = Path(f"/proc/{process}/cmdline").read_bytes()
            found += b"python_streaming_source_runner" in line
    return found


class NoNotes:
    """Keeps no note of Spark's log, as an older headgate kept none."""

    def __init__(self, *_: object) -> None: ...
    def begun(self, batch: int) -> None: ...
    def committed(self, step: int) -> None: ...
    def close(self) -> None: ...

    def note(self) -> dict[str, object]:
        return {}


def test_a_query_ticks_and_ends_and_goes_on_whatever_its_log_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "in", 0, 2)
    with monkeypatch.context() as older:
        older.setattr(steps, "LogKeeper", NoNotes)
        query = begin(spark, tmp_path, "ticks_0", availableNow=True)
        query.awaitTermination()
    # one file per batch, as in plain Spark
    assert [offsets[0] for offsets in log_of(tmp_path).values()] == [
        '{"logOffset":0}',
        '{"logOffset":1}',
    ]
    assert {row.id for row in spark.table("ticks_0").collect()} == {0, 1}

    # years ahead of any clock: what counts is that the next offset is another one
    as_an_older_headgate_left_it(tmp_path, ticks=2_000_000_000)
    query = begin(spark, tmp_path, "ticks_1", processingTime="0 seconds")
    try:
        quiet = max(log_of(tmp_path)) + 3
        await_batch(query, quiet)
        put(tmp_path / "in", 2, 1)
        query.processAllAvailable()
        (source,) = query.lastProgress["sources"]
    finally:
        query.stop()
    assert query.exception() is None
    assert {row.id for row in spark.table("ticks_1").collect()} >= {2}
    assert "FileStreamSource" in source["description"], "the tick is nobody's business"

    query = begin(spark, tmp_path, "ticks_2", availableNow=True)
    query.awaitTermination()
    ticks = [int(offsets[-1]) for _, offsets in sorted(log_of(tmp_path).items())]
    assert ticks == sorted(ticks)


def test_a_query_has_no_process_that_ticks(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path / "in", 0, 1)
    before = runners()
    query = begin(spark, tmp_path, "alone", processingTime="0 seconds")
    try:
        await_batch(query, 2)
        assert runners() <= before
    finally:
        query.stop()


def windows_of(spark: SparkSession, folder: Path) -> DataFrame:
    """Return counts by window of a stream of two files, of which the second closes the first's."""
    folder.mkdir()
    (folder / "1.csv").write_text("2026-01-01 00:00:01,a\n2026-01-01 00:00:02,a\n")
    (folder / "2.csv").write_text("2026-01-01 01:00:00,b\n")
    for number in (1, 2):
        os.utime(folder / f"{number}.csv", (1000 + number, 1000 + number))
    reader = spark.readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
    seen = reader.csv(str(folder)).withWatermark("ts", "5 seconds")
    return seen.groupBy(F.window("ts", "10 seconds"), "k").count()


@pytest.mark.parametrize("every", ["0 seconds", "1 second"])
def test_what_is_due_is_out_when_sparks_own_handle_says_so(
    spark: SparkSession, tmp_path: Path, every: str
) -> None:
    """A program that kept no handle takes Spark's: with a trigger at every tick it waited for ever."""
    name = f"due_{every[0]}"
    writer = hg.writeStream(windows_of(spark, tmp_path / "in")).format("memory").queryName(name)
    mine = writer.trigger(processingTime=every).start()
    (query,) = [one for one in spark.streams.active if str(one.id) == mine.id]
    waiting = threading.Thread(target=query.processAllAvailable, daemon=True)
    waiting.start()
    waiting.join(BOUND_S / 4)
    waited = not waiting.is_alive()
    query.stop()
    mine.stop()
    assert waited
    assert [(row.k, row["count"]) for row in spark.table(name).collect()] == [("a", 2)]


def test_what_is_due_is_out_when_spark_says_that_the_query_has_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    if not pyspark.__version__.startswith("4.3"):
        pytest.skip("a memory stream stands still under availableNow: headgate drains behind it")
    counts = windows_of(spark, tmp_path / "in")
    writer = hg.writeStream(counts).format("memory").queryName("due_at_the_end")
    mine = writer.trigger(availableNow=True).start()
    query = next((one for one in spark.streams.active if str(one.id) == mine.id), mine)
    query.awaitTermination()
    found = spark.table("due_at_the_end").collect()
    mine.awaitTermination()
    assert [(row.k, row["count"]) for row in found] == [("a", 2)]


@pytest.mark.parametrize(
    ("logged", "next_one"), [("7", 8), ('{"tick": 1763817890}', 1), ("-", 0), (None, 0)]
)
def test_a_tick_goes_on_from_the_log(
    spark: SparkSession, tmp_path: Path, logged: str | None, next_one: int
) -> None:
    log = tmp_path / "offsets"
    if logged is not None:
        log.mkdir()
        (log / "9").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":3}\n-')
        (log / "10").write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":4}}\n{logged}')
        (log / ".10.crc").write_bytes(b"of what was there")
        (log / ".11.tmp").write_text("Spark died here")
    tick = Tick(spark, tmp_path)
    assert int(tick._stream.currentOffset().offset()) == next_one
    if logged is not None and "tick" in logged:
        assert (log / "10").read_text().splitlines()[2:] == ['{"logOffset":4}', "0"]
        assert not (log / ".10.crc").exists()


class Ended:
    """A query that Spark has given up, and why."""

    isActive = False

    def __init__(self, why: str) -> None:
        self._why = why

    def exception(self) -> Exception:
        return RuntimeError(self._why)


LATE = "Python worker failed to connect back."


@pytest.mark.parametrize(
    ("outcomes", "python", "begun", "starts"),
    [
        ([LATE, LATE, "no such file"], True, False, 3),
        ([LATE, LATE, LATE], True, False, 3),
        (["no such file"], True, False, 1),
        ([LATE], True, True, 1),
        ([LATE], False, False, 1),
    ],
)
def test_a_source_whose_process_came_too_late_is_started_again(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str], python: bool, begun: bool, starts: int
) -> None:
    monkeypatch.setattr(beginning, "reads_python", lambda frame: python)
    started: list[Ended] = []

    def start() -> Any:
        started.append(Ended(outcomes[len(started)]))
        return started[-1]

    made: Any = beginning.begin(start, None, lambda: begun)  # type: ignore[arg-type]
    assert len(started) == starts
    assert made is started[-1]


def test_a_python_source_is_known_from_others(spark: SparkSession) -> None:
    made = spark.readStream.format("nexmark").option("rate", "10").load()
    rate = spark.readStream.format("rate").load()
    assert beginning.reads_python(made.select("event_type").union(rate.select("value")))
    assert not beginning.reads_python(rate)
