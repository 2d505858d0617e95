"""Kafka, with a real broker: what comes out is there once, and what comes in counts as it should."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import ConfigError, EngineError
from headgate.spark.settings.kafka import kafka_target
from headgate.spark.sinks import kafka_writer
from headgate.spark.sinks.kafka_notes import NOTES
from headgate.spark.sinks.kafka_writer import KafkaRecord
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.topics import (
    TopicRecord,
    committed,
    delete_topic,
    has_topic,
    make_topic,
    put,
)


def events(spark: SparkSession, folder: Path, files: int = 3) -> DataFrame:
    """A stream of `files` batches of 40 records in windows of 10 s, and one more that closes them."""
    folder.mkdir()
    for number in range(files):
        rows = [{"k": n % 4, "t": f"2026-01-01 00:{number:02d}:{n:02d}"} for n in range(40)]
        (folder / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows))
    closing = json.dumps({"k": 0, "t": "2026-01-02 00:00:00"})
    (folder / f"{files}.json").write_text(closing)
    for number in range(files + 1):  # the oldest file is the first batch
        os.utime(folder / f"{number}.json", (1000 + number, 1000 + number))
    reader = spark.readStream.schema("k int, t timestamp").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder)).withWatermark("t", "1 second")


def windows(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("t", "10 seconds"), "k").agg(F.count("*").alias("n"))
    return counts.select(
        F.concat("k", F.lit("-"), F.unix_seconds("window.start")).alias("key"),
        F.to_json(F.struct("k", "n")).alias("value"),
    )


def into(frame: DataFrame, broker: Broker, topic: str, checkpoint: Path, **options: str) -> Any:
    writer = hg.writeStream(frame).slots(start=2).format("kafka").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", broker.servers).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def finish(writer: Any) -> Any:
    query = writer.start()
    query.awaitTermination()
    return query


def keys(records: list[TopicRecord]) -> Counter[bytes | None]:
    return Counter(record.key for record in records)


def lost_commit(checkpoint: Path) -> None:
    """Leave a checkpoint as a driver does that dies after its sink took a step."""
    last = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdecimal())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


EXPECTED = 3 * 4 * 4
"""Windows of 10 s with records, times keys, in three minutes."""


def test_a_step_that_is_delivered_again_is_seen_once(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    rows = windows(events(spark, tmp_path / "in"))
    writer = into(rows, broker, out, checkpoint).trigger(processingTime="0 seconds")
    query = writer.start()
    query.processAllAvailable()
    query.stop()
    before = keys(committed(broker.servers, [out]))
    assert len(before) == EXPECTED
    lost_commit(checkpoint)
    query = writer.start()
    query.processAllAvailable()
    query.stop()
    assert keys(committed(broker.servers, [out])) == before
    assert set(before.values()) == {1}


@pytest.mark.thorough
def test_sparks_own_writer_is_had_by_an_option(
    connected: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    out = topic("out")
    rows = windows(events(connected, tmp_path / "in"))
    options = {"headgate.delivery": "at-least-once"}
    query = finish(into(rows, broker, out, tmp_path / "checkpoint", **options))
    assert "Kafka" in query.lastProgress["sink"]["description"]
    assert len(keys(committed(broker.servers, [out]))) == EXPECTED


def test_a_record_is_as_sparks_own_sink_writes_it(
    connected: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    ours, theirs = topic("ours", 5), topic("theirs", 5)
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"n": n}) for n in range(200)]
    (tmp_path / "in" / "0.json").write_text("\n".join(lines))

    def records(rows: DataFrame, to: str) -> DataFrame:
        name = F.lit("trace")
        header = F.struct(
            name.alias("key"), F.col("n").cast("string").cast("binary").alias("value")
        )
        return rows.select(
            F.when(F.col("n") % 7 > 0, F.concat(F.lit("key-"), F.col("n"))).alias("key"),
            F.when(F.col("n") % 11 > 0, F.col("n").cast("string")).alias("value"),
            F.lit(to).alias("topic"),
            F.when(F.col("n") % 5 > 0, F.array(header)).alias("headers"),
            F.when(F.col("n") % 7 == 0, F.lit(3)).alias("partition"),
        )

    stream = connected.readStream.schema("n int").json(str(tmp_path / "in"))
    writer = hg.writeStream(records(stream, ours)).format("kafka").trigger(availableNow=True)
    writer = writer.option("kafka.bootstrap.servers", broker.servers)
    finish(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    batch = records(connected.read.schema("n int").json(str(tmp_path / "in")), theirs)
    batch.write.format("kafka").option("kafka.bootstrap.servers", broker.servers).save()

    def shown(name: str) -> Counter[Any]:
        found = committed(broker.servers, [name])
        return Counter((r.partition, r.key, r.value, tuple(r.headers or ())) for r in found)

    assert sum(shown(ours).values()) == len(lines)
    assert shown(ours) == shown(theirs)


def test_a_stateless_query_is_written_once_as_well(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    rows = events(spark, tmp_path / "in").select(F.to_json(F.struct("k", "t")).alias("value"))
    finish(into(rows, broker, out, checkpoint))
    lost_commit(checkpoint)
    finish(into(rows, broker, out, checkpoint))
    assert len(committed(broker.servers, [out])) == 3 * 40 + 1


def test_what_a_driver_left_open_is_aborted_at_the_start(
    spark: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    rows = events(spark, tmp_path / "in").select(F.to_json(F.struct("k", "t")).alias("value"))

    class Died(BaseException):
        pass

    with monkeypatch.context() as patch:
        real = kafka_writer.KafkaWriter._transaction

        def dies(self: Any, step: int, records: Any) -> None:
            if step < 2:
                real(self, step, records)
                return
            self._producer.begin_transaction()
            for record in records:
                self._producer.produce(record.topic, record.value)
            self._producer.flush(10)
            raise RuntimeError("died")

        patch.setattr(kafka_writer.KafkaWriter, "_transaction", dies)
        with pytest.raises(Exception, match="died"):
            finish(into(rows, broker, out, checkpoint))
    assert len(committed(broker.servers, [out])) == 80
    assert len(committed(broker.servers, [out], all_records=True)) == 120
    finish(into(rows, broker, out, checkpoint))
    assert len(committed(broker.servers, [out])) == 3 * 40 + 1


# -- the writer alone, with the broker -------------------------------------------------------------


def writer_of(broker: Broker, topic: str, job: str) -> kafka_writer.KafkaWriter:
    if not has_topic(broker.servers, NOTES):
        make_topic(broker.servers, NOTES, 1)
    target = kafka_target({"kafka.bootstrap.servers": broker.servers, "topic": topic})
    return kafka_writer.KafkaWriter(target, job)


def one_row(topic: str) -> Callable[[], list[KafkaRecord]]:
    return lambda: [KafkaRecord(topic, b"k", b"v", None, None)]


def test_what_another_job_has_under_way_hides_no_note(
    broker: Broker, topic: Callable[..., str]
) -> None:
    out = topic("out")
    mine, other = writer_of(broker, out, f"mine-{out}"), writer_of(broker, out, f"other-{out}")
    mine.write(0, one_row(out))
    other.open()
    other._producer.begin_transaction()
    other._producer.produce(NOTES, b'{"step": 5}', b"other")
    other._producer.flush(10)
    mine.write(1, one_row(out))  # its note stands behind the other's, which is open
    ends = threading.Timer(2.0, other._producer.abort_transaction, [10])
    ends.start()
    assert writer_of(broker, out, f"mine-{out}").open() == 1
    ends.join()


def test_who_wrote_before_is_fenced(broker: Broker, topic: Callable[..., str]) -> None:
    out = topic("out")
    before, after = (writer_of(broker, out, f"job-{out}") for _ in range(2))
    before.write(0, one_row(out))
    assert after.open() == 0
    with pytest.raises(EngineError, match="another driver writes to Kafka"):
        before.write(1, one_row(out))
    assert after.write(1, one_row(out))
    assert len(committed(broker.servers, [out])) == 2


# -- one sentence each -------------------------------------------------------------------------------


def test_a_start_that_cannot_write_is_refused_in_one_sentence(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    rows = windows(events(spark, tmp_path / "in"))
    servers = {"kafka.bootstrap.servers": broker.servers}

    def refused(frame: DataFrame, **options: str) -> str:
        writer = hg.writeStream(frame).format("kafka").options(**options)
        with pytest.raises(ConfigError) as error:
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        return str(error.value)

    assert 'has no topic "nowhere"; make it' in refused(rows, topic="nowhere", **servers)
    away = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "2000"}
    assert "Kafka at 127.0.0.1:1 does not answer" in refused(rows, topic="out", **away)
    assert 'needs a topic; add .option("topic", ...)' in refused(rows, **servers)
    assert 'needs a column "value"' in refused(rows.drop("value"), topic="out", **servers)
    number = rows.withColumn("key", F.lit(1))
    assert 'column "key" is a int' in refused(number, topic="out", **servers)
    heads = rows.withColumn("headers", F.lit("x"))
    assert 'column "headers" is a string' in refused(heads, topic="out", **servers)
    names = rows.withColumn("partition", F.lit("x"))
    assert 'column "partition" is a string' in refused(names, topic="out", **servers)


@pytest.mark.thorough
def test_a_topic_that_is_deleted_ends_the_query_in_one_sentence(
    spark: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    rows = events(spark, tmp_path / "in").select(F.to_json(F.struct("k", "t")).alias("value"))
    writer = into(rows, broker, out, checkpoint, **{"kafka.transaction.timeout.ms": "8000"})
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    delete_topic(broker.servers, out)
    (tmp_path / "in" / "9.json").write_text(json.dumps({"k": 0, "t": "2026-01-03 00:00:00"}))
    with pytest.raises(Exception, match="no such topic or partition as was to be written"):
        query.awaitTermination(60)
    make_topic(broker.servers, out, 3)
    finish(into(rows, broker, out, checkpoint))
    assert len(committed(broker.servers, [out])) == 1


# -- what comes in -----------------------------------------------------------------------------------


CLICK = "page string, at timestamp"


@pytest.fixture
def clicks(broker: Broker, topic: Callable[..., str]) -> Callable[[int, int], list[str]]:
    """Puts clicks of `count` seconds from `first` on into two topics; returns their names."""
    names: list[str] = []

    def put_in(first: int, count: int) -> list[str]:
        if not names:
            names.extend([topic("left", 3), topic("right", 2)])
        for place, name in enumerate(names):
            records = (
                {
                    "value": json.dumps(
                        {"page": f"p{n % 5}", "at": f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z"}
                    ),
                    "key": str(n),
                    "headers": [("trace", str(n).encode())] if n % 2 else None,
                }
                for n in range(first, first + count)
                if n % 2 == place
            )
            put(
                broker.servers,
                name,
                ({k: v for k, v in r.items() if v is not None} for r in records),
            )
        return names

    return put_in


def per_page(spark: SparkSession, servers: str, topics: list[str], **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    records = reader.option("subscribe", ",".join(topics)).options(**options).load()
    read = F.from_json(F.col("value").cast("string"), CLICK)
    return (
        records.select(read.alias("click"), F.size("headers").alias("heads"))
        .select("click.*", "heads")
        .withWatermark("at", "1 minute")  # partitions are read at different paces
        .groupBy(F.window("at", "10 seconds"), "page")
        .agg(F.count("*").alias("n"), F.sum(F.when(F.col("heads") > 0, 1)).alias("traced"))
        .select("page", F.unix_seconds("window.start").alias("start"), "n", "traced")
    )


def test_kafka_in_small_batches_equals_the_batch_answer_from_where_the_job_began(
    connected: SparkSession,
    broker: Broker,
    clicks: Callable[[int, int], list[str]],
    tmp_path: Path,
) -> None:
    topics = clicks(0, 60)
    # the job begins behind these, and reads what comes after it was started, up to a limit
    options = {"includeHeaders": "true", "maxOffsetsPerTrigger": "40", "minPartitions": "7"}
    frame = per_page(connected, broker.servers, topics, **options)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    writer = hg.writeStream(frame).slots(start=2).option("checkpointLocation", checkpoint)
    writer = writer.format("parquet").option("path", out).trigger(processingTime="0 seconds")
    query = writer.start()
    query.processAllAvailable()
    query.stop()
    clicks(60, 240)  # all of them at once: else one topic's would be late
    query = writer.start()
    query.scale(3)
    query.processAllAvailable()
    behind = [p["headgate"]["lag"] for p in query.recentProgress if p["headgate"].get("lag")]
    latency = [p["headgate"]["latency_ms"] for p in query.recentProgress if p["headgate"]]
    query.stop()
    clicks(300, 60)  # behind the job's end: not its business
    found = hg.verify(
        connected,
        lambda session: per_page(session, broker.servers, topics, **options),
        checkpoint=checkpoint,
        output=connected.read.parquet(out),
    )
    assert (found["missing"], found["extra"], found["dropped"]["late"]) == (0, 0, 0)
    assert found["rows_compared"] >= 5 * 15
    # lag by partition, which shrinks to nothing
    assert set(behind[-1]) == {f"{topics[0]}-{n}" for n in range(3)} | {
        f"{topics[1]}-{n}" for n in range(2)
    }
    assert max(sum(one.values()) for one in behind) > 100
    assert sum(behind[-1].values()) == 0
    # records wait in the topic, and their latency says so
    waited = [one["mean"] for one in latency if one]
    assert waited
    assert max(waited) > 0.0
    journalled = [json.loads(line) for line in query.journal.read_text().splitlines()]
    assert any(sum(one["lag"].values()) > 0 for one in journalled if one.get("lag"))


def test_explain_says_whether_kafkas_timestamp_reaches_the_operator(
    connected: SparkSession,
) -> None:
    reads = per_page(connected, "127.0.0.1:9092", ["t"], includeHeaders="true")
    assert "arrival       of aggregate-0: Kafka's timestamp" in hg.explain(reads)
    records = connected.readStream.format("kafka").option(
        "kafka.bootstrap.servers", "127.0.0.1:9092"
    )
    rows = records.option("subscribe", "t").load()

    def same(batches: Any) -> Any:
        yield from batches

    mapped = rows.select("value").mapInArrow(same, "value binary").groupBy("value").count()
    assert "unknown, since Kafka's timestamp does not reach it" in hg.explain(mapped, "update")
    exploded = rows.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("w"))
    assert "of aggregate-0: Kafka's" in hg.explain(exploded.groupBy("w").count(), "update")
    table = connected.range(5).withColumnRenamed("id", "n")
    joined = (
        rows.selectExpr("CAST(CAST(value AS string) AS int) AS n")
        .join(table, "n")
        .groupBy("n")
        .count()
    )
    assert "of aggregate-0: Kafka's" in hg.explain(joined, "update")
