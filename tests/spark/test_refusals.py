"""Bad input gets one clear sentence, and loses nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import answers
import pandas as pd
import pytest
from pyspark import SparkContext
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import (
    CheckpointError,
    ConfigError,
    HeadgateError,
    StateError,
    UnsupportedQuery,
)
from headgate.spark.cluster import session
from headgate.spark.jvm import lock, sparklog
from headgate.spark.read.logical import read
from headgate.tables.arena import ArenaStore
from headgate.tables.ports import EMPTY_TOKEN, TableLayout

BOUND_S = 90.0


def rate(spark: SparkSession) -> DataFrame:
    frame = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
    return frame.withWatermark("timestamp", "5 seconds")


def by_key(frame: DataFrame, groups: int = 7) -> DataFrame:
    return frame.groupBy((F.col("value") % groups).alias("k")).agg(F.count("*").alias("n"))


def numbers(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a stream of the files of `put`, one per batch."""
    reader = spark.readStream.schema("value bigint").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def put(spark: SparkSession, folder: Path, number: int, values: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table({"value": pa.array(values, pa.int64())}), path)
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))


def writer(frame: DataFrame, checkpoint: Path, name: str = "refusals") -> Any:
    made = hg.writeStream(frame).format("memory").queryName(name).outputMode("complete")
    return made.option("checkpointLocation", str(checkpoint)).slots(start=2)


def finish(made: Any) -> Any:
    query = made.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def is_one_sentence(message: str) -> bool:
    return "\n" not in message and 20 < len(message) < 500


# -- queries ----------------------------------------------------------------------------------------


def _mean(values: pd.Series) -> float:
    return float(values.mean())


def _joined(condition: str, how: str) -> Callable[[SparkSession], DataFrame]:
    """Return a join of two streams with columns t, v and t2, v2."""

    def build(spark: SparkSession) -> DataFrame:
        left = rate(spark).withColumnsRenamed({"timestamp": "t", "value": "v"})
        right = rate(spark).withColumnsRenamed({"timestamp": "t2", "value": "v2"})
        return left.join(right, F.expr(condition), how)

    return build


_IN_TIME = "t2 >= t and t2 <= t + interval 5 seconds"


UNSUPPORTED: dict[str, tuple[Callable[[SparkSession], DataFrame], str, str]] = {
    "pandas UDF of a group": (
        lambda s: rate(s).groupBy("value").agg(F.pandas_udf(_mean, "double")("value")),
        "complete",
        r"cannot run _mean\(value\) .* plain Spark refuses it on a stream too",
    ),
    "left anti join": (
        _joined(f"v = v2 and {_IN_TIME}", "left_anti"),
        "append",
        "(?i)left ?anti",
    ),
    "outer join without an equality": (
        _joined(_IN_TIME, "left_outer"),
        "append",
        "(?i)equality|equi",
    ),
}

CATALYST = re.compile(
    r"\b(FlatMap\w+|CollectMetrics|Generate|Repartition\w*|GlobalLimit|MapIn\w+)\b"
)
"""What no user has written."""


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_run_elastically_is_named(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    build, mode, words = UNSUPPORTED[name]
    made = writer(build(spark), tmp_path / "checkpoint").outputMode(mode)
    with pytest.raises(UnsupportedQuery, match=words) as raised:
        made.start()
    assert is_one_sentence(str(raised.value)), str(raised.value)
    assert not CATALYST.search(str(raised.value))
    assert not (tmp_path / "checkpoint").exists()


def test_a_batch_dataframe_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedQuery, match=r"not streaming; read its source with spark.read"):
        writer(spark.range(3).groupBy("id").count(), tmp_path / "checkpoint").start()


def test_what_spark_refuses_is_caught_as_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()
    with pytest.raises(AnalysisException) as spark_says:
        rate.groupBy("value").count().writeStream.format("noop").start()
    with pytest.raises(AnalysisException) as we_say:
        writer(rate.groupBy("value").count(), tmp_path / "checkpoint").outputMode("append").start()
    assert isinstance(we_say.value, UnsupportedQuery)
    assert we_say.value.getCondition() == spark_says.value.getCondition()


def test_a_session_of_spark_connect_is_refused() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    frame = type("DataFrame", (), {"sparkSession": connect()})()
    with pytest.raises(HeadgateError, match=r"Spark Connect.*needs Spark Classic"):
        hg.writeStream(frame)


def test_a_query_without_a_checkpoint_is_told_so(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="checkpointLocation"):
        hg.writeStream(rate(spark)).format("parquet").start("nowhere")


# -- a running query --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    checkpoint = tmp_path_factory.mktemp("running") / "checkpoint"
    made = writer(by_key(rate(spark)), checkpoint, "running").keyGroups(16)
    query = made.trigger(processingTime="200 milliseconds").start()
    yield query, checkpoint
    query.stop()


CHANGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "no slots": (lambda q: q.scale(0), "slots=0 is out of range; use 1 to 16"),
    "too many slots": (lambda q: q.scale(17), "slots=17 exceeds slots max=16"),
    "no such slot": (lambda q: q.remap({3: 2}), "slot 2, which does not exist; use 0 to 1"),
    "no such group": (lambda q: q.remap({16: 0}), "key group 16 does not exist; use 0 to 15"),
    "group without a slot": (lambda q: q.remap({3: -1}), "slot -1, which does not exist"),
    "no such operator": (
        lambda q: q.scale(3, operator="aggregate-9"),
        'unknown operator "aggregate-9"; this query has aggregate-0',
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_cannot_be_is_refused_and_the_query_goes_on(running: Any, name: str) -> None:
    query, _ = running
    do, words = CHANGES[name]
    before = query.assignment()
    with pytest.raises(ConfigError, match=words) as raised:
        do(query)
    assert is_one_sentence(str(raised.value))
    assert query.isActive
    assert query.assignment() == before


def test_a_frozen_query_refuses_changes_until_thawed(running: Any) -> None:
    query, _ = running
    query.freeze()
    try:
        with pytest.raises(ConfigError, match=r"frozen; call thaw\(\)"):
            query.scale(3)
    finally:
        query.thaw()


def test_a_second_driver_in_the_same_jvm_is_refused(
    spark: SparkSession, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, checkpoint = running
    monkeypatch.setattr(lock, "_WAIT_S", 0.2)
    spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
    try:
        with pytest.raises(
            CheckpointError, match=r'in use by query ".*" of this very process; stop'
        ):
            writer(by_key(rate(spark)), checkpoint, "second").keyGroups(16).start()
    finally:
        spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
    assert query.isActive


_SECOND = """
import sys
from pathlib import Path
from headgate.core.errors import CheckpointError
from headgate.spark.jvm import lock
from headgate.spark.cluster.session import session

lock._WAIT_S = 0.2
try:
    lock.CheckpointLock(session("local[1]"), Path(sys.argv[1]))
except CheckpointError as error:
    print("refused:", error)
"""


def test_a_second_driver_in_another_process_is_refused(running: Any) -> None:
    query, checkpoint = running
    run = subprocess.run(
        [sys.executable, "-c", _SECOND, str(checkpoint / "headgate")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert re.search(rf"refused: .*is held by driver .* pid {os.getpid()}", run.stdout), run.stderr
    assert query.isActive


def test_a_lock_follows_no_link_and_prints_what_it_reads_as_text(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_WAIT_S", 0.2)
    victim, owner = tmp_path / "victim", tmp_path / "headgate" / "driver.owner"
    owner.parent.mkdir()
    victim.write_text("not ours")
    owner.symlink_to(victim)
    held = lock.CheckpointLock(spark, owner.parent)
    assert (victim.read_text(), owner.is_symlink()) == ("not ours", False)
    for text, said in (
        (
            json.dumps({"host": "\x1b[2Jeverything\nis well", "pid": "\x07"}),
            r"\\x1b\[2Jeverything\\nis",
        ),
        ("[]", "driver unknown pid unknown"),
        ("[" * 100_000, "driver unknown pid unknown"),
    ):
        owner.write_text(text)
        with pytest.raises(CheckpointError, match=said):
            lock.CheckpointLock(spark, owner.parent)
    held.release()
    owner.with_suffix(".lock").unlink()
    owner.with_suffix(".lock").symlink_to(victim)
    with pytest.raises(CheckpointError, match="cannot be locked: it is a symbolic link; remove it"):
        lock.CheckpointLock(spark, owner.parent)


def test_a_lock_is_opened_once_in_a_process_by_whatever_links_and_threads(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second channel that is closed gives up the first one's lock, for other processes to take."""
    (tmp_path / "ck" / "headgate").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "ck")
    opened, inner = [], lock.CheckpointLock._locked

    def locked(self: lock.CheckpointLock, *given: Any) -> Any:
        opened.append(self)
        if len(opened) == 1:  # meanwhile another thread starts a query there
            with pytest.raises(CheckpointError, match="is held by"):
                lock.CheckpointLock(spark, tmp_path / "link" / "headgate")
        return inner(self, *given)

    monkeypatch.setattr(lock.CheckpointLock, "_locked", locked)
    lock.CheckpointLock(spark, tmp_path / "ck" / "headgate").release()
    assert len(opened) == 1
    lock.CheckpointLock(spark, tmp_path / "link" / "headgate").release()


def test_an_interrupt_while_a_query_starts_leaves_neither_query_nor_lock(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    start = DataStreamWriter.start

    def interrupted(made: DataStreamWriter) -> None:
        begun.append(start(made))
        raise KeyboardInterrupt

    put(spark, tmp_path / "in", 0, [1, 2])
    counts = by_key(numbers(spark, tmp_path / "in"))
    monkeypatch.setattr(sparklog, "_STOP_WAIT_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(DataStreamWriter, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer(counts, tmp_path / "checkpoint", "interrupted").start()
    with pytest.raises(StreamingQueryException):
        begun[0].awaitTermination(int(BOUND_S))
    put(spark, tmp_path / "in", 1, [2, 3])
    finish(writer(counts, tmp_path / "checkpoint", "again"))
    assert {row.k: row.n for row in spark.table("again").collect()} == {1: 1, 2: 2, 3: 1}


# -- checkpoints ------------------------------------------------------------------------------------


@pytest.fixture
def stopped(spark: SparkSession, tmp_path: Path) -> Path:
    """The checkpoint of a query that has served one file."""
    put(spark, tmp_path / "in", 0, list(range(10)))
    finish(writer(by_key(numbers(spark, tmp_path / "in")), tmp_path / "checkpoint"))
    return tmp_path / "checkpoint"


def contents(folder: Path) -> dict[str, bytes]:
    kept = (p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".owner", ".lock"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


OTHERS: dict[str, tuple[Callable[[Any, DataFrame], Any], str]] = {
    "keys": (lambda w, f: w(f.groupBy("value").count()), "keys"),
    "key groups": (lambda w, f: w(by_key(f)).keyGroups(64), "key groups: was 128, now 64"),
    "mode": (
        lambda w, f: w(by_key(f)).outputMode("update"),
        "output mode: was `complete`, now `update`",
    ),
    "aggregates": (
        lambda w, f: w(f.groupBy((F.col("value") % 7).alias("k")).agg(F.max("value"))),
        "aggregates",
    ),
}


OTHER_NAMES = list(OTHERS)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_the_checkpoint_of_another_query_is_refused_and_left_alone(
    spark: SparkSession, stopped: Path, name: str
) -> None:
    before = contents(stopped)
    make, words = OTHERS[name]
    frame = numbers(spark, stopped.parent / "in")
    with pytest.raises(CheckpointError, match=words) as raised:
        make(lambda f: writer(f, stopped, "other"), frame).trigger(availableNow=True).start()
    assert is_one_sentence(str(raised.value))
    assert contents(stopped) == before


def test_the_checkpoint_of_a_plain_spark_query_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(spark, tmp_path / "in", 0, [1])
    frame = by_key(numbers(spark, tmp_path / "in"))
    native = frame.writeStream.format("noop").outputMode("complete")
    native = native.option("checkpointLocation", str(tmp_path / "native"))
    native.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(CheckpointError, match="belongs to a plain Spark query"):
        writer(frame, tmp_path / "native").start()
    assert not (tmp_path / "native" / "headgate").exists()


def test_a_truncated_manifest_is_named(spark: SparkSession, stopped: Path) -> None:
    newest = max((stopped / "headgate" / "manifests").iterdir())
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    made = writer(by_key(numbers(spark, stopped.parent / "in")), stopped, "after")
    with pytest.raises(CheckpointError, match=newest.name):
        made.trigger(availableNow=True).start()
    newest.write_bytes(whole)
    put(spark, stopped.parent / "in", 1, [7])
    finish(made)
    assert total(spark, "after") == 11


def total(spark: SparkSession, name: str) -> int:
    return spark.table(name).agg(F.sum("n")).collect()[0][0]


def test_an_altered_byte_of_the_changelog_is_never_read_as_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    many = 150_000  # so that a slot's changes go to a file of their own
    put(spark, tmp_path / "in", 0, list(range(many)))
    made = writer(by_key(numbers(spark, tmp_path / "in"), many), tmp_path / "checkpoint", "blobs")
    finish(made)
    blob = max(
        (tmp_path / "checkpoint/headgate/changelog").iterdir(), key=lambda p: p.stat().st_size
    )
    whole = blob.read_bytes()
    blob.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    put(spark, tmp_path / "in", 1, list(range(many)))
    with pytest.raises(Exception, match="checksum") as raised:
        finish(made)
    assert blob.name in str(raised.value)
    blob.write_bytes(whole)
    finish(made)
    counts = Counter(row.n for row in spark.table("blobs").collect())
    assert counts == {2: many}


def test_a_checkpoint_that_cannot_be_written_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(CheckpointError, match=r"file/checkpoint cannot be used"):
        writer(by_key(rate(spark)), tmp_path / "file" / "checkpoint").start()


@pytest.mark.parametrize("name", ["../manifests/1", "a/b", "..", ""])
def test_a_name_that_leaves_the_checkpoint_is_refused(stopped: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot name a file"):
        Checkpoint(stopped).read_file("backlog", name)


def test_a_remote_checkpoint_is_refused(spark: SparkSession) -> None:
    with pytest.raises(CheckpointError, match="only POSIX paths"):
        writer(by_key(rate(spark)), Path("x")).option(
            "checkpointLocation", "wasb://bucket/checkpoint"
        ).start()


def test_a_full_shared_memory_is_an_error_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    store = ArenaStore(tmp_path / "aggregate-0", TableLayout(key_words=2, fresh=(0,)))
    with pytest.raises(StateError, match=r"(?i)no space|full"):
        store.acquire(0, EMPTY_TOKEN, lambda _: [])
    assert not [p for p in (tmp_path / "aggregate-0").iterdir() if p.stat().st_size]


# -- data -------------------------------------------------------------------------------------------


def test_null_and_nan_keys_group_as_spark_groups_them(spark: SparkSession, tmp_path: Path) -> None:
    put(spark, tmp_path / "in", 0, list(range(12)))
    key = F.expr(
        "case value % 4 when 0 then null when 1 then double('NaN') when 2 then -0.0d else 0.0d end"
    )

    def build(frame: DataFrame) -> DataFrame:
        return frame.groupBy(key.alias("k")).agg(F.count("*").alias("n"))

    finish(writer(build(numbers(spark, tmp_path / "in")), tmp_path / "checkpoint", "nulls"))
    batch = build(spark.read.parquet(str(tmp_path / "in")))
    got = answers.bag(spark.table("nulls").collect())
    assert got == answers.bag(batch.collect()) == {(None, 3): 1, ("NaN", 3): 1, (0.0, 6): 1}


def test_an_overflow_fails_the_query_and_the_answer_so_far_stays(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(spark, tmp_path / "in", 0, [2**63 - 1, 2])
    put(spark, tmp_path / "in", 1, [4, 5])

    def build(frame: DataFrame) -> DataFrame:
        key = F.col("value") % 2
        return frame.groupBy(key.alias("k")).agg(F.sum("value").alias("n"))

    made = writer(build(numbers(spark, tmp_path / "in")), tmp_path / "checkpoint", "overflow")
    with pytest.raises(Exception, match=r"\[ARITHMETIC_OVERFLOW\]"):
        finish(made)
    answer = {row.k: row.n for row in spark.table("overflow").collect()}
    assert answer == {0: 2, 1: 2**63 - 1}
    latest = Checkpoint(tmp_path / "checkpoint").latest()
    assert latest is not None
    assert latest.step == 0


def test_an_overflow_is_not_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    put(spark, tmp_path / "in", 0, [2**63 - 1, 1])
    frame = numbers(spark, tmp_path / "in").groupBy().agg(F.sum("value").alias("n"))
    query = writer(frame, tmp_path / "checkpoint", "once").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        query.awaitTermination()
    assert '"event":"retry"' not in query.journal.read_text().replace(" ", "")


def test_reading_a_plan_changes_nothing_of_the_query(spark: SparkSession) -> None:
    frame = by_key(rate(spark))
    before = frame._jdf.queryExecution().analyzed().toString()
    read(frame, "complete")
    assert frame._jdf.queryExecution().analyzed().toString() == before


# -- Java -------------------------------------------------------------------------------------------


def _fake_java(folder: Path, says: str) -> None:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("says", "version"),
    [('java version "1.8.0_402"', 8), ('openjdk version "11.0.22" 2024-01-16', 11)],
)
def test_an_old_java_is_refused_with_its_version(no_jvm: Path, says: str, version: int) -> None:
    _fake_java(no_jvm, says)
    with pytest.raises(HeadgateError, match=rf"Java 17 or newer and .*java is Java {version};"):
        session._require_java()


@pytest.mark.parametrize("says", ['openjdk version "17.0.15"', 'openjdk version "21-ea"', "Zulu"])
def test_a_java_that_may_do_is_taken(no_jvm: Path, says: str) -> None:
    _fake_java(no_jvm, says)
    session._require_java()


def test_a_missing_java_is_named(no_jvm: Path) -> None:
    with pytest.raises(HeadgateError, match="there is no java on PATH or in JAVA_HOME"):
        session._require_java()


def test_nothing_above_left_a_query_running(spark: SparkSession) -> None:
    deadline = time.monotonic() + BOUND_S
    while [q.name for q in spark.streams.active if q.name != "running"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
