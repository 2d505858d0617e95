"""Stateless Python stages on pools of replicas: every row once, whatever the pools did meanwhile."""

from __future__ import annotations

import random
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pool_runs import ROWS, doubled, pooled, put_out, source, twice
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.core.errors import CheckpointError, ConfigError, UnsupportedQuery
from headgate.journal.reader import locate, read
from headgate.journal.schema import Restart, Retry, Start, Stop
from headgate.report.summary import summary
from headgate.report.why import why
from headgate.spark.jvm import sparklog
from headgate.spark.step import steps

pytestmark = pytest.mark.timeout(300)


def test_a_chain_of_stages_puts_out_what_spark_does(spark, tmp_path):
    def build(rows):
        first = rows.where("v % 5 != 0").mapInArrow(doubled, "w long")
        return first.selectExpr("w + 1 as u").where("u > 9").mapInArrow(twice, "x long")

    query = pooled(build(source(spark, tmp_path)), tmp_path).trigger(availableNow=True).start()
    query.awaitTermination()
    batch = build(spark.read.parquet(str(tmp_path / "in"))).collect()
    assert put_out(spark, tmp_path, "x") == Counter(row["x"] for row in batch)
    assert len(query.batches()) >= 6


def test_nothing_is_lost_while_replicas_come_and_go_and_rows_wait(spark, tmp_path):
    df = source(spark, tmp_path).mapInArrow(doubled, "w long")
    writer = pooled(df, tmp_path).option("headgate.slotRate", 120)
    query = writer.trigger(processingTime="0 seconds").start()
    until = time.monotonic() + 60

    def wait_for(reached):
        while not (found := any(map(reached, query.batches()))) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    query.activate(4)
    assert wait_for(lambda line: line.active["map-0"] == 4 and line.waiting)
    query.activate(1)
    assert wait_for(lambda line: line.lanes["map-0"] > line.active["map-0"]), "some wait there"
    dice = random.Random(3)
    while sum(line.emitted for line in query.batches()) < ROWS and time.monotonic() < until:
        query.activate(dice.randint(1, 4))
        time.sleep(0.3)
    query.stop()
    assert put_out(spark, tmp_path, "w") == Counter(2 * v for v in range(ROWS))


def test_rows_that_wait_survive_a_restart(spark, tmp_path):
    df = source(spark, tmp_path).mapInArrow(doubled, "w long")
    slow = pooled(df, tmp_path).option("headgate.slotRate", 100)
    query = slow.trigger(processingTime="0 seconds").start()
    while sum(line.arrived for line in query.batches()) < ROWS / 2:
        time.sleep(0.05)
    query.stop()
    assert query.batches()[-1].waiting > 0
    rest = pooled(df, tmp_path, max=3).trigger(availableNow=True).start()
    rest.awaitTermination()
    assert put_out(spark, tmp_path, "w") == Counter(2 * v for v in range(ROWS))
    kinds = [type(e) for e in read(rest.journal) if isinstance(e, Start | Restart | Stop)]
    assert kinds == [Start, Stop, Start, Restart, Stop]


def test_a_failure_between_commit_and_sink_repeats_the_same_rows(spark, tmp_path, monkeypatch):
    df = source(spark, tmp_path, files=2).mapInArrow(doubled, "w long")
    failed = []

    def crash(where: str, step: int) -> None:
        if (where, step) == ("after-manifest", 0) and not failed:
            failed.append(step)
            raise ConfigError("planned")

    monkeypatch.setattr(steps, "crash_point", crash)
    query = pooled(df, tmp_path).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="planned"):
        query.awaitTermination()
    assert failed
    pooled(df, tmp_path).trigger(availableNow=True).start().awaitTermination()
    assert put_out(spark, tmp_path, "w") == Counter(2 * v for v in range(ROWS))


def test_a_log_of_spark_that_went_on_without_headgate_is_refused(spark, tmp_path):
    df = source(spark, tmp_path).mapInArrow(doubled, "w long")
    pooled(df, tmp_path).trigger(availableNow=True).start().awaitTermination()
    # as if the last batch had been done without headgate: Spark's log has it
    max((tmp_path / "checkpoint" / "headgate" / "manifests").iterdir()).unlink()
    pq.write_table(pa.table({"v": [ROWS]}), tmp_path / "in" / "later.parquet")
    with pytest.raises(CheckpointError, match="is missing, which a restart reads"):
        pooled(df, tmp_path).trigger(availableNow=True).start()


def test_what_fails_each_time_is_not_tried_again(spark, tmp_path):
    df = source(spark, tmp_path, files=1).selectExpr("1 div (v - 7) as v")
    query = pooled(df.mapInArrow(doubled, "w long"), tmp_path).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="DIVIDE_BY_ZERO"):
        query.awaitTermination()
    assert not [event for event in read(query.journal) if isinstance(event, Retry)]


def test_an_interrupt_while_a_query_starts_leaves_neither_query_nor_lock(
    spark, tmp_path, monkeypatch
):
    begun = []
    start = DataStreamWriter.start

    def interrupted(made):
        begun.append(start(made))
        raise KeyboardInterrupt

    df = source(spark, tmp_path).mapInArrow(doubled, "w long")
    monkeypatch.setattr(sparklog, "_STOP_WAIT_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(DataStreamWriter, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pooled(df, tmp_path).start()
    try:
        with pytest.raises(StreamingQueryException):
            begun[0].awaitTermination(20)
    finally:
        begun[0].stop()
    pooled(df, tmp_path).trigger(availableNow=True).start().awaitTermination()
    assert put_out(spark, tmp_path, "w") == Counter(2 * v for v in range(ROWS))


def test_replicas_follow_the_load(spark, tmp_path):
    rows = spark.readStream.format("rate").option("rowsPerSecond", 300).load()
    df = rows.select(F.col("value").alias("v")).mapInArrow(doubled, "w long")
    writer = pooled(df, tmp_path, start=1).option("headgate.slotRate", 150)
    query = writer.trigger(processingTime="0 seconds").start()
    until = time.monotonic() + 30
    while query.replicas()["map-0"] < 3 and time.monotonic() < until:
        time.sleep(0.2)
    query.stop()
    assert max(line.active["map-0"] for line in query.batches()) >= 2
    assert "events expected: map-0 1 ->" in query.decisions()[0][1]
    told = why(read(locate(tmp_path / "checkpoint")), None)
    assert told["policy"] == "psps(naive)"
    assert "events expected" in told["reason"]
    assert told["observed"][0]["arrived_per_s"] > 0
    shown = summary(query.journal)
    assert shown["batches"] == len(query.batches())
    assert shown["records"] == sum(line.arrived for line in query.batches())
    assert max(shown["slots_seen"]) == max(line.active["map-0"] for line in query.batches())
    assert shown["latency_ms"]["mean"] > 0


def test_state_is_refused_in_one_sentence(spark, tmp_path):
    df = source(spark, tmp_path)
    counted = df.groupBy("v").count().mapInArrow(twice, "x long")
    with pytest.raises(
        UnsupportedQuery, match='cannot run operator "Aggregate", which keeps state'
    ):
        pooled(counted, tmp_path).start()
    with pytest.raises(UnsupportedQuery, match='operator "Deduplicate", which keeps state'):
        pooled(df.dropDuplicates().mapInArrow(doubled, "w long"), tmp_path).start()


def test_a_query_without_a_python_stage_is_refused(spark, tmp_path):
    with pytest.raises(UnsupportedQuery, match="has no operator to run"):
        pooled(source(spark, tmp_path), tmp_path).start()


def test_more_replicas_than_the_pool_has_are_refused(spark, tmp_path):
    with pytest.raises(ConfigError, match="min=1, start=5, max=4"):
        pooled(source(spark, tmp_path).mapInArrow(doubled, "w long"), tmp_path, start=5).start()
