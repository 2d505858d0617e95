"""Real time: the answers are Spark's, whatever ends in the middle, and both modes share a checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from real_time import Build, Rows, bids, totals, windows, writer
from real_time_driver import Files
from real_time_forms import FORMS, SHORT, Written, later

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.control import scaled
from headgate.core.errors import CheckpointError, ConfigError, EngineError, UnsupportedQuery
from headgate.spark.api import real_time
from headgate.spark.api.real_time import RealTimeQuery
from headgate.spark.api.verify import BatchSession
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.sessions import PIPELINED, driver_conf
from headgate.spark.realtime import job as jobs
from headgate.spark.realtime.clocked import ClockFeed
from headgate.spark.realtime.feed import Feeds
from headgate.spark.realtime.job import SparkJob
from headgate.spark.realtime.plan import PipePlan
from headgate.spark.realtime.run_slots import PipeLost
from headgate.spark.realtime.words import Meeting
from headgate.spark.realtime.work import RealTimeWork
from headgate.spark.step.commit import delivers
from headgate.spark.step.machine import StepMachine
from headgate.spark.worker.failure import QueryFailed

LIMIT_S = 120.0


def thorough(*values: str) -> list[Any]:
    """Return parameters that only the long run has."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def wait_until(reached: Callable[[], bool], query: Any) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not reached():
        assert query.isActive, query.exception()
        assert time.monotonic() < until_s, "not within two minutes"
        time.sleep(0.01)


def assert_right(spark: SparkSession, build: Build, checkpoint: Path, rows: Any, mode: str) -> None:
    found = hg.verify(spark, build, checkpoint=str(checkpoint), output=rows, mode=mode)
    assert found["verified"], found
    assert found["rows_compared"] > 50


def losses_of(query: Any) -> int:
    return int(query.journal.read_text().count('"event":"retry"'))


@contextmanager
def running(made: hg.Writer) -> Iterator[Any]:
    """Start a query, and stop it at no particular moment; it must not have failed."""
    query = made.start()
    try:
        yield query
    finally:
        query.stop()
    assert query.exception() is None


@pytest.mark.parametrize("mode", ["append", pytest.param("update", marks=pytest.mark.thorough)])
def test_windows_are_those_of_sparks_batch(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    build = windows()
    rows = Rows()
    with running(writer(build(spark), rows, tmp_path, mode)) as query:
        wait_until(lambda: rows.count > 100, query)
        query.scale(3)
        wait_until(lambda: query.assignment()["aggregate-0"].slots == 3, query)
        done = rows.count
        wait_until(lambda: rows.count > done + 500, query)
        assert sorted(query.processes) == ["feeder 0", "fork server", "slot 0", "slot 1", "slot 2"]
    found = rows.frame(spark) if mode == "append" else rows.last_by(spark, "window", "auction")
    assert_right(spark, build, tmp_path, found, mode)
    assert rows.came_again == 0


def test_slots_change_again_and_again_without_waiting_for_one_another(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A request comes at any moment of the one before it; none of them stops the pipe."""
    build, rng = totals(), random.Random(41)
    rows = Rows()
    with running(writer(build(spark), rows, tmp_path, "update")) as query:
        wait_until(lambda: len(rows.steps) > 2, query)
        for _ in range(60):
            query.scale(rng.randint(1, 4))
            time.sleep(rng.choice([0.0, 0.001, 0.05, 0.2]))
        query.scale(2)
        wait_until(lambda: {o.slots for o in query.assignment().values()} == {2}, query)
        done = len(rows.steps)
        wait_until(lambda: len(rows.steps) > done + 3, query)
        assert '"event":"retry"' not in query.journal.read_text()
    assert_right(spark, build, tmp_path, rows.last_by(spark, "k"), "update")
    assert rows.came_again == 0


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SHORT else [pytest.mark.thorough]) for n in FORMS]
)
def test_a_query_of_any_kind_answers_as_sparks_batch(
    spark: SparkSession, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMS[name]
    rows = Rows()
    by_jobs: list[str] = []
    fed = RealTimeWork._fed

    def feed(work: RealTimeWork, session: Any, operator: Any, read: Any) -> Any:
        by_jobs.append(operator.id)
        return fed(work, session, operator, read)

    monkeypatch.setattr(RealTimeWork, "_fed", feed)
    pipelined = driver_conf(spark).get(PIPELINED, "false")
    if name == "python below" and not adapter().pipelines_python:
        with pytest.raises(UnsupportedQuery, match=r"Spark 4\.3"):
            writer(form.build(spark), rows, tmp_path, form.mode).start()
        return
    with running(writer(form.build(spark), rows, tmp_path, form.mode)) as query:
        wait_until(lambda: rows.count > 3, query)
        query.scale(3)
        wait_until(lambda: {o.slots for o in query.assignment().values()} == {3}, query)
        done = rows.count
        wait_until(lambda: rows.count > done + 60 // len(query.assignment()) ** 5, query)
    assert driver_conf(spark).get(PIPELINED, "false") == pipelined
    # a job for each epoch would be most of its time
    assert not by_jobs
    found = rows.last_by(spark, *form.keys) if form.keys else rows.frame(spark)
    verified = hg.verify(
        spark, form.answer or form.build, checkpoint=str(tmp_path), output=found, mode=form.mode
    )
    assert verified["verified"], verified
    assert rows.came_again == 0


class Heard(StreamingQueryListener):
    """Hears what Spark tells of queries."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(("started", (str(event.id), str(event.runId), event.name)))

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(("progress", event.progress))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(("terminated", (str(event.runId), event.exception)))

    def ended(self) -> bool:
        return bool(self.events) and self.events[-1][0] == "terminated"


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_listeners_and_the_ui_have_a_beginning_a_progress_a_second_and_an_end(
    spark: SparkSession, tmp_path: Path, fails: bool
) -> None:
    heard, rows = Heard(), Rows()
    spark.streams.addListener(heard)

    def take(frame: Any, step: int) -> None:
        rows(frame, step)
        if fails and sum(what == "progress" for what, _ in heard.events) >= 2:
            msg = "the sink is broken"
            raise ValueError(msg)

    made = writer(totals()(spark), rows, tmp_path, "update").foreachBatch(take)
    name = None if fails else "in_real_time"
    query = (made if name is None else made.queryName(name)).start()
    try:
        wait_until(lambda: fails or len(heard.events) > 2, query)
        if fails:
            with pytest.raises(QueryFailed, match="the sink is broken"):
                query.awaitTermination(LIMIT_S)
    finally:
        query.stop()
        until_s = time.monotonic() + LIMIT_S
        while not heard.ended():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        spark.streams.removeListener(heard)
    words = [what for what, _ in heard.events]
    assert words == ["started", *["progress"] * (len(words) - 2), "terminated"]
    (_, began), *told, (_, (run, failure)) = heard.events
    assert began == (query.id, query.runId, name)
    assert run == query.runId
    assert (failure is not None) == fails
    if fails:
        assert "the sink is broken" in failure
    last = told[-1][1]
    assert (str(last.runId), last.name) == (query.runId, name)
    assert last.sink.description == "ForeachBatchSink"
    assert last.numInputRows > 0
    assert [one.operatorName for one in last.stateOperators] == ["aggregate-0"]
    assert json.loads(last.sources[0].endOffset)["event"] > 0


@pytest.mark.thorough
def test_a_query_without_state_stays_in_its_mode(spark: SparkSession, tmp_path: Path) -> None:
    rows = Rows()
    made = writer(FORMS["stateless"].build(spark), rows, tmp_path, "append")
    with running(made) as query:
        wait_until(lambda: rows.count > 10, query)
    with pytest.raises(CheckpointError, match="start the query as it was"):
        made.trigger(processingTime="0 seconds").start()


SINKS: dict[str, Callable[[hg.Writer, Path], Any]] = {
    "parquet": lambda w, p: w.format("parquet").option("path", str(p)).start(),
    "json": lambda w, p: w.format("json").option("path", str(p)).start(),
    "memory": lambda w, p: w.format("memory").queryName("in_real_time").start(),
    "noop": lambda w, p: w.format("noop").start(),
    "console": lambda w, p: w.format("console").start(),
    "table": lambda w, p: w.format("parquet").option("path", str(p)).toTable("real_time_table"),
    "foreach": lambda w, p: w.foreach(Written(p)).start(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SINKS)
def test_results_reach_a_sink_of_any_kind(spark: SparkSession, tmp_path: Path, name: str) -> None:
    build = FORMS["stateless"].build
    made = writer(build(spark), Rows(), tmp_path / "c", "append")._with(function=None)
    query = SINKS[name](made, tmp_path / "out")
    try:
        wait_until(lambda: getattr(Checkpoint(tmp_path / "c").latest(), "step", 0) > 8, query)
    finally:
        query.stop()
    assert query.exception() is None
    reads = {
        "parquet": lambda: spark.read.parquet(str(tmp_path / "out")),
        "json": lambda: spark.read.schema("auction bigint, p bigint").json(str(tmp_path / "out")),
        "memory": lambda: spark.table("in_real_time"),
        "table": lambda: spark.table("real_time_table"),
        "foreach": lambda: spark.read.schema("auction bigint, p bigint").json(
            str(tmp_path / "out")
        ),
    }
    if name in reads:
        assert_right(spark, build, tmp_path / "c", reads[name](), "append")
    if name == "table":
        spark.sql("DROP TABLE real_time_table")


@pytest.mark.thorough
def test_an_epoch_comes_when_a_timer_of_the_clock_is_due(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Rows()
    with running(writer(later(spark, 500), rows, tmp_path, "update")) as query:
        wait_until(lambda: bool(rows.steps), query)
        query.processAllAvailable()
        wait_until(lambda: query._work.rest_s() > 1e6, query)
    batch = bids(BatchSession(spark, Checkpoint(tmp_path).latest().engine["sources"]), events=500)
    expected = {row.auction for row in batch.select("auction").distinct().collect()}
    assert sorted(row.auction for row in rows.all()) == sorted(expected)


def test_late_records_are_left_out_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Each record is in its window, or late by the watermark of the epochs before its own."""
    late: dict[str, Any] = {"prob_delayed": 0.3, "delay_ms": 3000}

    def build(session: Any) -> Any:
        read = bids(session, **late).withWatermark("dateTime", "100 milliseconds")
        return read.groupBy(F.window("dateTime", "200 milliseconds")).agg(F.count("*").alias("n"))

    rows = Rows()
    with running(writer(build(spark), rows, tmp_path, "update")) as query:
        wait_until(lambda: len(rows.steps) > 30, query)
    latest = Checkpoint(tmp_path).latest()
    assert latest is not None
    batches = [json.loads(line) for line in query.journal.read_text().splitlines()]
    dropped = sum(line["late"] for line in batches if line["event"] == "batch")
    assert dropped > 100
    counted = sum(row["n"] for row in rows.last_by(spark, "window").collect())
    read = bids(BatchSession(spark, latest.engine["sources"]), **late)
    assert counted + dropped == read.count()


def test_an_slo_in_milliseconds_is_judged_and_a_policy_steers_by_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Slots change while records flow; the answer does not."""
    build = totals()
    rows = Rows()
    made = writer(build(spark), rows, tmp_path, "update").policy(Wish())
    with running(made.slo("p99 < 500 ms over 1 s").slots(1, 2, 1)) as query:
        wait_until(lambda: query.assignment()["aggregate-0"].slots == 2, query)
        done = len(rows.steps)
        wait_until(lambda: len(rows.steps) > done + 10, query)
        wait_until(lambda: '"windows_met":' in query.journal.read_text(), query)
        assert query.decisions()
    lines = [json.loads(line) for line in query.journal.read_text().splitlines()]
    assert not [line for line in lines if line["event"] == "begun"]
    batches = [line for line in lines if line["event"] == "batch"]
    assert all(line["slo"]["bound_ms"] == 500 for line in batches)
    assert sum(line["epochs"] for line in batches) == batches[-1]["step"] + 1
    assert len({slot["slot"] for line in batches for slot in line["slot_stats"]}) == 2
    assert_right(spark, build, tmp_path, rows.last_by(spark, "k"), "update")
    assert rows.came_again == 0


def test_what_is_released_early_comes_before_its_commit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = totals()
    rows = Rows()
    out = threading.Event()

    def take(frame: Any, step: int) -> None:
        rows(frame, step)
        out.set()

    def commit(self: Any, manifest: Any) -> Any:
        if delivers(manifest):
            assert out.wait(LIMIT_S), "its output waits for the commit"
        return committed(self, manifest)

    committed = Checkpoint.commit
    monkeypatch.setattr(Checkpoint, "commit", commit)
    made = writer(build(spark), rows, tmp_path, "update").foreachBatch(take).release("early")
    with running(made) as query:
        wait_until(lambda: len(rows.steps) > 5, query)
    assert_right(spark, build, tmp_path, rows.last_by(spark, "k"), "update")
    assert rows.came_again == 0


def test_a_merge_within_a_function_refuses_what_is_released_early(
    spark: SparkSession, tmp_path: Path
) -> None:
    def upsert(frame: Any, step: int) -> None:
        hg.merge("nowhere", on=["k"])(frame, step)

    made = writer(totals()(spark), Rows(), tmp_path, "update").foreachBatch(upsert)
    with pytest.raises(StreamingQueryException, match=r"nowhere loses rows .* skips an output"):
        made.release("early").start().awaitTermination(LIMIT_S)


@pytest.mark.parametrize("victim", ["feeder 0", *thorough("slot 1", "fork server")])
def test_killed_processes_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Each pipe has the plan of the first one, and what it has read of tables."""
    planned: list[SparkJob] = []
    whole = SparkJob._whole
    monkeypatch.setattr(SparkJob, "_whole", lambda job: planned.append(job) or whole(job))
    build = FORMS["tables below"].build
    rows = Rows()
    with running(writer(build(spark), rows, tmp_path, "update")) as query:
        wait_until(lambda: len(rows.steps) > 5, query)
        for losses in (1, 2):
            os.kill(query.processes[victim], signal.SIGKILL)
            wait_until(lambda n=losses: losses_of(query) == n, query)
            done = len(rows.steps)
            wait_until(lambda n=done: len(rows.steps) > n + 3, query)
    found = rows.last_by(spark, "k")
    verified = hg.verify(spark, build, checkpoint=str(tmp_path), output=found, mode="update")
    assert verified["verified"], verified
    assert rows.came_again == 0
    assert len(planned) == 1


def test_a_pipe_whose_tables_could_not_be_read_is_planned_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps the failure for a plan that it has begun, and would not read them again."""
    plans = [SimpleNamespace(collect=list) for _ in range(2)]
    read: list[Any] = []

    def compute(frame: Any) -> None:
        read.append(frame)
        if len(read) == 1:
            msg = "the job that reads a table was cancelled."
            raise EngineError(msg, transient=True)

    monkeypatch.setattr(jobs, "computed_rows", compute)
    job = SparkJob(
        spark, PipePlan((), (), True), Feeds((), ()), set(), Meeting("", b"k" * 32), "test"
    )
    rest = iter(plans)
    monkeypatch.setattr(job, "_whole", lambda: next(rest))
    with pytest.raises(EngineError, match="cancelled"):
        job.run(Meeting("", b"k" * 32), "group")
    job.run(Meeting("", b"k" * 32), "group")
    job.run(Meeting("", b"k" * 32), "group")
    assert read == plans


def test_a_source_that_is_silent_when_the_pipe_starts_again_is_waited_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may be away while a slot is lost; that is one loss more, and not the end."""
    rows, silences = Rows(), [1]

    def grown(self: ClockFeed, offsets: str) -> str:
        if killed.is_set() and silences:
            silences.pop()
            msg = "the source does not answer."
            raise EngineError(msg, transient=True)
        return offsets

    killed = threading.Event()
    monkeypatch.setattr(ClockFeed, "grown", grown)
    with running(writer(totals()(spark), rows, tmp_path, "update")) as query:
        wait_until(lambda: len(rows.steps) > 1, query)
        killed.set()
        os.kill(query.processes["slot 0"], signal.SIGKILL)
        wait_until(lambda: losses_of(query) == 2, query)
        done = len(rows.steps)
        wait_until(lambda: len(rows.steps) > done + 1, query)
    assert not silences


def test_windows_that_are_due_come_though_the_epoch_that_closes_them_is_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record follows that would ask for another epoch."""
    # each bid has a millisecond of its own, so that the last one moves the watermark
    rows, lost, events, rate = Rows(), list[int](), 1000, 250

    def epoch(
        self: StepMachine[Any], batch: int, us: int, sources: list[str], *more: Any, **of: Any
    ) -> Any:
        ended = json.loads(sources[0])["event"] == events
        if ended and not lost and self.latest and sources == self.latest.engine["sources"]:
            lost.append(us)
            msg = "a slot is lost."
            raise PipeLost.of(EngineError(msg, transient=True))
        return done(self, batch, us, sources, *more, **of)

    done = StepMachine.epoch
    monkeypatch.setattr(StepMachine, "epoch", epoch)
    # all have come before the query starts, so that the first epochs move the watermark past windows
    # four seconds of the clock that `windows` does not filter away, whatever the time is now
    base = (time.time_ns() // 1000 - 60_000_000) // 5_000_000 * 5_000_000 + 1_000_000
    build = windows("0 seconds", events=events, rate=rate, base=base)
    with running(writer(build(spark), rows, tmp_path, "append")) as query:
        query.processAllAvailable()
        latest = query._machine.latest
    assert lost
    assert latest.watermarks["evict_us"] >= lost[0]
    assert_right(spark, build, tmp_path, rows.frame(spark), "append")


def test_the_modes_take_turns_on_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Real time, micro-batches, real time: the answer is that of one query."""
    build = windows()
    rows = Rows()
    for turn in range(3):
        made = writer(build(spark), rows, tmp_path, "append", slots=2 + turn)
        if turn == 1:
            made = made.trigger(processingTime="0 seconds")
        done = rows.count
        with running(made) as query:
            wait_until(lambda n=done: rows.count > n + 500, query)  # type: ignore[misc]
    assert_right(spark, build, tmp_path, rows.frame(spark), "append")
    assert rows.came_again == 0


@pytest.mark.thorough
def test_a_killed_driver_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(tmp_path / "out")
    command = [sys.executable, str(Path(__file__).parent / "real_time_driver.py"), str(tmp_path)]
    driver = subprocess.Popen(command)
    try:
        until_s = time.monotonic() + LIMIT_S
        while len(files) < 8 and driver.poll() is None and time.monotonic() < until_s:
            time.sleep(0.01)
        assert len(files) >= 8
    finally:
        driver.kill()
        driver.wait()
    processes = json.loads((tmp_path / "processes").read_text()).values()
    assert len(processes) == 5
    until_s = time.monotonic() + LIMIT_S
    while any(Path(f"/proc/{one}").exists() for one in processes):
        assert time.monotonic() < until_s, "the slots of a killed driver have not ended"
        time.sleep(0.1)
    build = totals()
    made = writer(build(spark), Rows(), tmp_path / "checkpoint", "update").foreachBatch(files)
    done = len(files)
    with running(made) as query:
        wait_until(lambda: len(files) > done + 5, query)
    last = spark.createDataFrame(files.last(), "k bigint, n bigint, p bigint")
    assert_right(spark, build, tmp_path / "checkpoint", last, "update")


def test_what_cannot_run_falls_back_to_micro_batches(spark: SparkSession, tmp_path: Path) -> None:
    """Only what real time refuses: what no mode runs is refused as ever."""
    rows = Rows()
    made = writer(totals()(spark), rows, tmp_path, "complete").fallback("micro-batch")
    with pytest.warns(UserWarning, match="complete.*: it runs in micro-batches"):
        query = made.start()
    try:
        assert not isinstance(query, RealTimeQuery)
        wait_until(lambda: len(rows.steps) > 0, query)
    finally:
        query.stop()


class Wish(hg.Policy):
    """Two slots, whatever comes."""

    def decide(self, observation: Any) -> Any:
        return scaled(observation, dict.fromkeys(observation.operators, 2), "two", "wish")


def same(writer: Any) -> Any:
    return writer


def rows_of_rate(session: Any, **options: str) -> Any:
    rows = session.readStream.format("rate").options(rowsPerSecond="700", **options).load()
    sums = [F.count("*").alias("n"), F.max("value").alias("last"), F.max("timestamp").alias("at")]
    return rows.groupBy((F.col("value") % 7).alias("k")).agg(*sums)


def rising(session: Any) -> Any:
    return rows_of_rate(session, rampUpTime="5s")


def files(session: Any) -> Any:
    return (
        session.readStream.schema("k int")
        .json(str(Path(__file__).parent / "data"))
        .groupBy("k")
        .count()
    )


def test_rows_of_the_format_rate_come_by_the_clock_each_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Rows()
    made = writer(rows_of_rate(spark), rows, tmp_path, "update")
    began_ms = time.time() * 1e3
    for _ in range(2):
        done = rows.count
        with running(made) as query:
            wait_until(lambda n=done: rows.count > n + 50, query)  # type: ignore[misc]
    took_s = time.time() - began_ms / 1e3
    last = rows.last_by(spark, "k").collect()
    assert [(row.k, row.n) for row in last if row.n != (row.last - row.k) // 7 + 1] == []
    assert 700 < max(row.last for row in last) < 700 * took_s
    assert all(row.at.timestamp() * 1e3 > began_ms for row in last)
    with pytest.raises(ConfigError, match=r"row by row.*go on with trigger"):
        made.trigger(processingTime="0 seconds").start()
    batches = writer(rows_of_rate(spark), Rows(), tmp_path / "batches", "update")
    with running(batches.trigger(processingTime="0 seconds")) as query:
        wait_until(lambda: query.lastProgress is not None, query)
    with pytest.raises(ConfigError, match="second by second"):
        writer(rows_of_rate(spark), Rows(), tmp_path / "batches", "update").start()


def clocked(session: Any) -> Any:
    late = F.col("dateTime") < F.current_timestamp()
    return bids(session).where(late).groupBy("auction").count()


REFUSED: dict[str, tuple[Build, Callable[[Any], Any], str]] = {
    "complete": (totals(), lambda w: w.outputMode("complete"), "complete"),
    "rising": (rising, same, 'option "rampUpTime" of format "rate"'),
    "files": (files, same, "a source of files cannot be read"),
    "clock": (clocked, same, r"current_timestamp\(\)"),
}


class Pool:
    """Executors as a test wants them."""

    def __init__(self, *, local: bool, in_driver: bool, cores: int) -> None:
        self.local, self.in_driver, self.cores = local, in_driver, cores


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (
            Pool(local=True, in_driver=True, cores=1),
            r'use master "local\[2\]" or more, or a cluster',
        ),
        (Pool(local=True, in_driver=False, cores=4), r"cannot run this query in real time"),
        (Pool(local=False, in_driver=False, cores=1), r"the 1 cores of the cluster's .* give it 2"),
    ],
)
def test_cores_that_are_missing_are_named_before_anything_starts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: Pool, said: str
) -> None:
    monkeypatch.setattr(real_time, "ExecutorPool", lambda _: pool)
    with pytest.raises(ConfigError, match=said):
        writer(totals()(spark), Rows(), tmp_path, "update").start()


def test_python_on_a_cluster_needs_executors_that_pipeline_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others keep a row, or what a function raised, until the next row comes."""
    pool = Pool(local=False, in_driver=False, cores=4)
    monkeypatch.setattr(real_time, "ExecutorPool", lambda _: pool)
    frame = bids(spark).groupBy(F.udf(lambda k: k % 9, "long")("auction").alias("k")).count()
    if not adapter().pipelines_python:
        pytest.skip("Spark pipelines Python functions from 4.3 on.")
    with pytest.raises(UnsupportedQuery, match=rf"started with {PIPELINED}=true"):
        writer(frame, Rows(), tmp_path, "update").start()


def test_a_query_for_which_cores_are_missing_falls_back_to_micro_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(local=True, in_driver=True, cores=1)
    monkeypatch.setattr(real_time, "ExecutorPool", lambda _: pool)
    made = writer(totals()(spark), Rows(), tmp_path, "update").fallback("micro-batch")
    with pytest.warns(UserWarning, match=r"needs a core for each .*: it runs in micro-batches"):
        query = made.start()
    query.stop()
    assert not isinstance(query, RealTimeQuery)


@pytest.mark.thorough
def test_a_strategy_of_migration_is_taken_on_one_host_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = Rows()
    made = writer(totals()(spark), rows, tmp_path, "update").migration("all-at-once")
    with running(made) as query:
        for slots in (4, 3):
            query.scale(slots)
            wait_until(lambda: not query._work.changing, query)
            assert query.assignment()["aggregate-0"].slots == slots
            done = len(rows.steps)
            wait_until(lambda seen=done: len(rows.steps) > seen + 3, query)
    assert_right(spark, totals(), tmp_path, rows.last_by(spark, "k"), "update")


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    build, change, named = REFUSED[case]
    made = change(writer(build(spark), Rows(), tmp_path / "c", "update"))
    with pytest.raises((ConfigError, UnsupportedQuery), match=named) as refused:
        made.start()
    assert str(refused.value).count(". ") == 0
    if isinstance(refused.value, UnsupportedQuery) and change is same:
        assert f"no real time  {refused.value}" in hg.explain(build(spark), "update", realTime=True)
    assert not (tmp_path / "c").exists()
