"""What goes wrong at Kafka while a job reads it: one sentence says so, and a restart loses nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import CheckpointError, HeadgateError
from headgate.spark.settings.kafka import confluent
from headgate.spark.worker.failure import QueryFailed
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.topics import committed, delete_topic, make_topic, put

pytestmark = pytest.mark.thorough  # the sentences by themselves: test_kafka_failure

SOON = {
    "kafka.default.api.timeout.ms": "3000",
    "kafka.request.timeout.ms": "2000",
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "4000",
}
"""What Spark's reader has for three times a minute."""

ENDS_S = 60.0


def clicks(broker: Broker, topic: str, first: int, count: int) -> None:
    """Put clicks `first` and on into a topic of two partitions, by turns."""
    values = (
        {"value": json.dumps({"page": f"p{n % 5}", "user": n}), "partition": n % 2}
        for n in range(first, first + count)
    )
    put(broker.servers, topic, values)


def per_page(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    """Count clicks per page."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    records = reader.options(**options).load()
    read = F.from_json(F.col("value").cast("string"), "page string, user bigint")
    counts = records.select(read.alias("c")).groupBy("c.page")
    counted = counts.agg(F.count("*").alias("n"), F.sum("c.user").alias("users"))
    return counted.select(F.col("page").alias("key"), F.to_json(F.struct("*")).alias("value"))


def begun(frame: DataFrame, broker: Broker, out: str, checkpoint: Path, **options: str) -> Any:
    writer = hg.writeStream(frame).slots(start=2).outputMode("update").format("kafka")
    writer = writer.option("kafka.bootstrap.servers", broker.servers).option("topic", out)
    writer = writer.options(**options).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="0 seconds").start()


def settled(query: Any) -> None:
    query.processAllAvailable()
    query.stop()


def told(query: Any) -> str:
    """Return what a query fails with: one line."""
    try:
        query.awaitTermination(ENDS_S)
    except QueryFailed as error:
        sentence = str(error)
    else:
        query.stop()
        pytest.fail("the query goes on")
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def counts(broker: Broker, out: str) -> dict[str, int]:
    """Return what readers have for each page: the newest count of each."""
    rows = [json.loads(record.value or b"") for record in committed(broker.servers, [out])]
    found: dict[str, int] = {}
    for row in rows:
        found[row.get("page")] = max(found.get(row.get("page"), 0), row["n"])
    return found


def all_of(count: int) -> dict[str, int]:
    return {f"p{n}": len(range(n, count, 5)) for n in range(5)}


@pytest.fixture
def source(topic: Callable[..., str]) -> str:
    return topic("source", 2)


def test_records_that_are_gone_are_named_and_may_be_gone_without(
    connected: SparkSession, broker: Broker, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    frame = per_page(connected, broker, source)
    clicks(broker, source, 0, 100)
    settled(begun(frame, broker, out, checkpoint))
    clicks(broker, source, 100, 100)
    module = confluent()
    admin = module.admin.AdminClient({"bootstrap.servers": broker.servers})
    # of clicks 100, 102, ... 198 in partition 0, the first ten are too old
    gone = admin.delete_records([module.TopicPartition(source, 0, 60)])
    assert next(iter(gone.values())).result().low_watermark == 60
    sentence = told(begun(frame, broker, out, checkpoint))
    assert sentence.startswith("Kafka has records no more that this query was to read (")
    assert f"{source}-0" in sentence
    assert 'option("failOnDataLoss", "false")' in sentence
    assert counts(broker, out) == all_of(100)
    without = per_page(connected, broker, source, failOnDataLoss="false")
    settled(begun(without, broker, out, checkpoint))
    assert sum(counts(broker, out).values()) == 190


def test_a_topic_that_is_deleted_ends_its_reader_in_one_sentence(
    connected: SparkSession, broker: Broker, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    frame = per_page(connected, broker, source)
    clicks(broker, source, 0, 100)
    query = begun(frame, broker, out, checkpoint)
    query.processAllAvailable()
    delete_topic(broker.servers, source)
    assert f"; it reads subscribe={source} at {broker.servers}); make it" in told(query)
    assert "Kafka has no such topic as" in told(begun(frame, broker, out, checkpoint))
    make_topic(broker.servers, source, 2)
    clicks(broker, source, 0, 20)
    # another topic of that name, whose records are not those that come next
    assert "Kafka has records no more that this query was to read" in told(
        begun(frame, broker, out, checkpoint)
    )
    assert counts(broker, out) == all_of(100)


def test_a_broker_that_was_away_for_a_while_is_read_on(
    connected: SparkSession, tmp_path: Path
) -> None:
    with Broker() as broker:
        for name in ("source", "out"):
            make_topic(broker.servers, name, 2)
        clicks(broker, "source", 0, 100)
        frame = per_page(connected, broker, "source")
        query = begun(frame, broker, "out", tmp_path / "checkpoint")
        query.processAllAvailable()
        broker.kill()
        time.sleep(4.0)
        broker.start()
        clicks(broker, "source", 100, 50)
        time.sleep(1.0)
        settled(query)
        assert counts(broker, "out") == all_of(150)


def test_a_broker_that_stays_away_is_said_in_one_sentence_and_the_restart_goes_on(
    connected: SparkSession, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with Broker() as broker:
        for name in ("source", "out"):
            make_topic(broker.servers, name, 2)
        clicks(broker, "source", 0, 100)
        frame = per_page(connected, broker, "source", **SOON)
        settled(begun(per_page(connected, broker, "source"), broker, "out", checkpoint))
        query = begun(frame, broker, "out", checkpoint)
        broker.kill()
        assert "Kafka did not answer in time (" in told(query)
        with pytest.raises(HeadgateError, match=r"no broker of kafka\.bootstrap\.servers="):
            begun(frame, broker, "out", checkpoint)
        broker.start()
        clicks(broker, "source", 100, 50)
        patient = per_page(connected, broker, "source")
        settled(begun(patient, broker, "out", checkpoint))
        assert counts(broker, "out") == all_of(150)


def test_values_of_another_type_are_null_as_in_spark(
    connected: SparkSession, broker: Broker, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    out = topic("out")
    clicks(broker, source, 0, 10)
    odd = [{"page": 7, "user": "seven"}, {"page": "p0", "user": [1]}, ["p1"], {"user": 2**70}]
    put(broker.servers, source, ({"value": json.dumps(one)} for one in odd))
    put(broker.servers, source, [{"value": "no json"}, {"value": None}])
    settled(begun(per_page(connected, broker, source), broker, out, tmp_path / "checkpoint"))
    batch = connected.read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    values = batch.option("subscribe", source).load().select(F.col("value").cast("string"))
    read = values.select(F.from_json("value", "page string, user bigint").alias("c"))
    wanted = {row["page"]: row["count"] for row in read.groupBy("c.page").count().collect()}
    assert counts(broker, out) == wanted
    assert None in wanted


def test_a_checkpoint_that_was_put_back_by_one_step_is_refused(
    connected: SparkSession, broker: Broker, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint, copy = topic("out"), tmp_path / "checkpoint", tmp_path / "copy"
    frame = per_page(connected, broker, source)
    clicks(broker, source, 0, 100)
    settled(begun(frame, broker, out, checkpoint))
    shutil.copytree(checkpoint, copy)
    clicks(broker, source, 100, 50)
    settled(begun(frame, broker, out, checkpoint))
    clicks(broker, source, 150, 50)
    with pytest.raises(CheckpointError, match=r"the checkpoint's newest is \d+: it was put"):
        begun(frame, broker, out, copy)
    settled(begun(frame, broker, out, checkpoint))
    assert counts(broker, out) == all_of(200)


def test_a_transaction_time_out_that_the_broker_does_not_allow_loses_nothing(
    connected: SparkSession, broker: Broker, source: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    out, checkpoint = topic("out"), tmp_path / "checkpoint"
    frame = per_page(connected, broker, source)
    clicks(broker, source, 0, 100)
    long = {"kafka.transaction.timeout.ms": "2000000"}
    sentence = told(begun(frame, broker, out, checkpoint, **long))
    assert "does not allow kafka.transaction.timeout.ms=2000000; lower it" in sentence
    assert counts(broker, out) == {}
    settled(begun(frame, broker, out, checkpoint))
    assert counts(broker, out) == all_of(100)
