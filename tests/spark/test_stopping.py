"""A query that is told to stop ends, whoever says so and whatever its user's code does meanwhile.

What was under way is done or broken off; broken off, the next start does it again, once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.spark.api import ending

WAIT_S = 300
REPLACES = "spark.sql.streaming.stopActiveRunOnRestart"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(ending, "_RAISES_AFTER_S", 1.0)
    monkeypatch.setattr(ending, "_AGAIN_S", 0.2)


def put(folder: Path, number: int) -> None:
    """Write a file of four rows; the stream reads one file per batch."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{number}.json"
    file.write_text("".join(json.dumps({"v": number * 4 + i}) + "\n" for i in range(4)))
    os.utime(file, (1000 + number, 1000 + number))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        put(tmp_path / "in", number)
    return tmp_path / "in"


def counts(spark: SparkSession, folder: Path) -> DataFrame:
    stream = spark.readStream.schema("v long").option("maxFilesPerTrigger", 1).json(str(folder))
    return stream.groupBy("v").agg(F.count("*").alias("n"))


def writer(frame: DataFrame, checkpoint: Path, function: Callable[[DataFrame, int], Any]) -> Any:
    made = hg.writeStream(frame).slots(start=2).keyGroups(8).outputMode("update")
    return made.foreachBatch(function).option("checkpointLocation", str(checkpoint))


def collected(into: dict[int, list[int]]) -> Callable[[DataFrame, int], None]:
    def function(frame: DataFrame, number: int) -> None:
        into[number] = sorted(row.v for row in frame.collect())

    return function


def left() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [
        name for name in names if name in ("headgate-stop", "headgate-end", "headgate-stop-now")
    ]


def test_a_function_that_stops_its_query_ends_it_with_its_batch(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    box: dict[str, Any] = {}
    begun, seen = threading.Event(), {}

    def function(frame: DataFrame, number: int) -> None:
        begun.wait(WAIT_S)
        with pytest.raises(EngineError, match="own function waits for its query"):
            box["query"].awaitTermination()
        collected(seen)(frame, number)
        if number == 1:
            box["query"].stop()
            box["query"].stop()

    query = box["query"] = writer(counts(spark, folder), tmp_path / "ck", function).start()
    begun.set()
    assert query.awaitTermination(WAIT_S)
    assert not query.isActive
    assert query.exception() is None
    query.stop()
    assert sorted(seen) == [0, 1]
    assert not left()
    # the checkpoint is free, and what was done is not done again
    again: dict[int, list[int]] = {}
    more = writer(counts(spark, folder), tmp_path / "ck", collected(again))
    more = more.trigger(availableNow=True).start()
    assert more.awaitTermination(WAIT_S)
    assert again == {2: [8, 9, 10, 11]}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_function_that_exits_ends_its_query_with_a_sentence(
    spark: SparkSession, folder: Path, tmp_path: Path, error: BaseException
) -> None:
    def function(frame: DataFrame, number: int) -> None:
        raise error

    query = writer(counts(spark, folder), tmp_path / "ck", function).start()
    kind = type(error).__name__
    said = rf"own function ended with {kind} in test_stopping\.py line \d+; call the query's stop"
    with pytest.raises(EngineError, match=said):
        query.awaitTermination(60)
    assert not query.isActive
    query.stop()


def test_sparks_own_handle_stops_too_and_what_was_broken_off_is_done_again(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    seen: dict[int, list[int]] = {}
    hangs = threading.Event()

    def function(frame: DataFrame, number: int) -> None:
        if number == 1:
            hanging_job(frame, hangs)
        collected(seen)(frame, number)

    query = writer(counts(spark, folder), tmp_path / "ck", function).start()
    assert hangs.wait(WAIT_S)
    for active in spark.streams.active:
        active.stop()
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None
    assert sorted(seen) == [0]
    assert json.loads(query.journal.read_text().splitlines()[-1])["reason"] == "stopped"


def hanging_job(frame: DataFrame, seen: threading.Event) -> None:
    """User's code in a Python worker."""

    @F.udf("long")
    def hang(value: int) -> int:
        time.sleep(600)
        return value

    seen.set()
    frame.select(hang("v")).collect()


def hanging_loop(frame: DataFrame, seen: threading.Event) -> None:
    """User's code in the driver, which catches what it can."""
    seen.set()
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


@pytest.mark.parametrize("hang", [hanging_job, hanging_loop])
def test_code_that_does_not_return_is_broken_off_and_its_batch_done_again_once(
    spark: SparkSession,
    folder: Path,
    tmp_path: Path,
    hang: Callable[[DataFrame, threading.Event], None],
) -> None:
    seen, hangs = {}, threading.Event()

    def function(frame: DataFrame, number: int) -> None:
        if number == 1:
            hang(frame, hangs)
        collected(seen)(frame, number)

    query = writer(counts(spark, folder), tmp_path / "ck", function).start()
    assert hangs.wait(WAIT_S)
    stops = [threading.Thread(target=query.stop) for _ in range(3)]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join(WAIT_S)
        assert not stop.is_alive()
    assert query.awaitTermination(1)
    assert query.exception() is None
    assert sorted(seen) == [0]
    assert not left()
    again: dict[int, list[int]] = {}
    more = writer(counts(spark, folder), tmp_path / "ck", collected(again))
    more = more.trigger(availableNow=True).start()
    assert more.awaitTermination(WAIT_S)
    assert again == {1: [4, 5, 6, 7], 2: [8, 9, 10, 11]}


@pytest.mark.parametrize(
    "hang", [hanging_job, pytest.param(hanging_loop, marks=pytest.mark.thorough)]
)
def test_an_output_in_real_time_that_does_not_return_is_broken_off_and_comes_again(
    spark: SparkSession, tmp_path: Path, hang: Callable[[DataFrame, threading.Event], None]
) -> None:
    hangs, numbers = threading.Event(), list[int]()
    query = in_real_time(spark, tmp_path / "ck", lambda frame, _: hang(frame, hangs))
    assert hangs.wait(WAIT_S)
    query.stop()
    assert query.awaitTermination(1)
    assert query.exception() is None
    query = in_real_time(spark, tmp_path / "ck", lambda _, number: numbers.append(number))
    _run_until(lambda: bool(numbers))
    query.stop()
    assert numbers[0] == 0


def in_real_time(
    spark: SparkSession, checkpoint: Path, function: Callable[[DataFrame, int], Any]
) -> Any:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    made = writer(rows.selectExpr("value % 5 AS v").groupBy("v").count(), checkpoint, function)
    return made.trigger(realTime="1 minute").start()


def test_a_function_that_exits_in_real_time_ends_its_query_with_a_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = in_real_time(spark, tmp_path / "ck", lambda *_: sys.exit(3))
    with pytest.raises(EngineError, match="own function ended with SystemExit in test_stopping"):
        query.awaitTermination(WAIT_S)
    numbers = list[int]()
    query = in_real_time(spark, tmp_path / "ck", lambda _, number: numbers.append(number))
    _run_until(lambda: bool(numbers))
    query.stop()
    assert numbers[0] == 0


def test_code_in_a_slot_s_way_that_does_not_return_is_broken_off(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    entered = tmp_path / "entered"

    @F.udf("long")
    def hang(value: int) -> int:
        entered.touch()
        time.sleep(600)
        return value

    stream = spark.readStream.schema("v long").json(str(folder)).select(hang("v").alias("v"))
    query = writer(stream.groupBy("v").count(), tmp_path / "ck", collected({})).start()
    until_s = time.monotonic() + WAIT_S
    while not entered.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    query.stop()
    assert query.awaitTermination(1)
    assert query.exception() is None


def test_a_stop_says_what_it_cannot_end_and_the_query_ends_when_that_returns(
    spark: SparkSession, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_GIVES_UP_AFTER_S", 2.0)
    hangs, go = threading.Event(), threading.Event()

    def function(frame: DataFrame, number: int) -> None:
        hangs.set()
        go.wait(WAIT_S)  # no step of Python code, from which could be raised

    query = writer(counts(spark, folder), tmp_path / "ck", function).start()
    assert hangs.wait(WAIT_S)
    with pytest.raises(
        EngineError, match=r"has not ended 2 s after stop.*checkpoint is held until"
    ):
        query.stop()
    assert query.isActive
    go.set()
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None
    query.stop()


def test_a_listener_and_a_handler_of_a_signal_may_stop(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            query.stop()
            stopped.set()

    seen, stopped, listener = {}, threading.Event(), Listener()
    spark.streams.addListener(listener)
    try:
        query = writer(counts(spark, folder), tmp_path / "ck", collected(seen)).start()
        assert stopped.wait(WAIT_S)
        assert query.awaitTermination(WAIT_S)
    finally:
        spark.streams.removeListener(listener)
    before = signal.signal(signal.SIGUSR1, lambda *_: query.stop())
    try:
        query = writer(counts(spark, folder), tmp_path / "ck", collected(seen)).start()
        timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert query.awaitTermination(WAIT_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert query.exception() is None


_AT_EXIT = """
import atexit, sys
from pyspark.sql import SparkSession
import headgate as hg
spark = hg.session(master="local[1]")
frame = spark.readStream.format("rate").load().groupBy("value").count()
made = hg.writeStream(frame).outputMode("update").format("noop")
query = made.option("checkpointLocation", sys.argv[1]).start()
query.processAllAvailable()
atexit.register(lambda: (query.stop(), print("stopped", query.isActive)))
"""


@pytest.mark.thorough
def test_a_stop_at_exit_ends_the_query(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, str(tmp_path / "ck")],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert run.stdout.splitlines()[-1] == "stopped False", run.stderr[-2000:]


@pytest.fixture
def kept(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(REPLACES)


def test_a_cell_that_is_run_again_replaces_its_query_as_plain_spark_does(
    spark: SparkSession, folder: Path, tmp_path: Path, kept: None
) -> None:
    (tmp_path / "linked").symlink_to(tmp_path)
    checkpoints = itertools.cycle((tmp_path / "ck", tmp_path / "linked" / "ck"))

    def cell(session: SparkSession, name: str | None = None) -> Any:
        made = writer(counts(session, folder), next(checkpoints), lambda *_: None)
        return (made.queryName(name) if name else made).start()

    first = cell(spark)
    first.processAllAvailable()
    second = cell(spark, "counts")
    assert second.isActive
    assert not first.isActive
    assert first.exception() is None
    assert second.id == first.id
    # a name is refused where it is active, also on the same checkpoint
    with pytest.raises(ConfigError, match='queryName "counts" is that of a query which is active'):
        cell(spark, "counts")
    assert second.isActive
    third = cell(spark.newSession(), "counts")
    assert third.isActive
    assert not second.isActive
    spark.conf.set(REPLACES, "false")
    with pytest.raises(
        CheckpointError, match=r'ck is in use by query "counts" of this very process; stop'
    ):
        cell(spark)
    assert third.isActive
    # what cannot run stops nothing
    spark.conf.unset(REPLACES)
    other = writer(counts(spark, folder).where("n > 0"), tmp_path / "ck", lambda *_: None)
    with pytest.raises(CheckpointError):
        other.keyGroups(4).start()
    assert third.isActive
    third.stop()
    spark.createDataFrame([], "i int")  # makes it the active session of this thread again


def _run_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["SIGTERM", "headgate stop"])
def test_a_run_that_is_told_to_stop_ends_well_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    checkpoint, arena = tmp_path / "ck", tmp_path / "arena"
    arena.mkdir(mode=0o700)
    journal = checkpoint / "headgate" / "journal.jsonl"
    command = [sys.executable, "-m", "headgate.cli"]
    options = ["--rate", "500", "--duration", "600s", "--checkpoint", str(checkpoint), "--verify"]
    with subprocess.Popen(
        [*command, "run", "nexmark-q5", *options, "--out", str(tmp_path / "out"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HEADGATE_ARENA_DIR": str(arena)},
    ) as run:
        _run_until(lambda: journal.exists() and '"event":"batch"' in journal.read_text())
        if how == "SIGTERM":
            run.send_signal(signal.SIGTERM)
        else:
            asked = subprocess.run(
                [*command, "stop", str(checkpoint), "--reason", "enough"],
                capture_output=True,
                text=True,
                check=False,
                timeout=WAIT_S,
            )
            assert asked.returncode == 0, asked.stderr
            assert asked.stdout.startswith("the query has ended")
        out, err = run.communicate(timeout=2 * WAIT_S)
    assert run.returncode == 0, err[-2000:]
    result = json.loads(out)
    assert result["verified"] is (None if how == "SIGTERM" else True)
    last = [json.loads(line) for line in journal.read_text().splitlines()][-1]
    assert (last["event"], last["reason"]) == ("stop", "stopped")
    assert not [path for path in arena.iterdir() if path.is_dir()]
    again = subprocess.run(
        [*command, "stop", str(checkpoint)], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "no query runs on" in again.stderr
