"""Real time from Kafka to Kafka: what comes out is there once, and a micro-batch goes on from it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import ConfigError, EngineError, UnsupportedQuery
from headgate.spark.realtime import new_partitions
from headgate.spark.realtime.kafka_feed import KafkaFeed, Starting
from headgate.spark.settings.kafka import confluent
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.topics import committed, delete_topic, put

LIMIT_S = 120.0


def counts(spark: SparkSession, broker: Broker, topic: str, **options: str) -> Any:
    """Return how often each key has come."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    read = reader.option("subscribe", topic).options(**options).load()
    found = read.groupBy(F.col("key").cast("string").alias("key")).agg(F.count("*").alias("n"))
    return found.select("key", F.col("n").cast("string").alias("value"))


def into(frame: Any, broker: Broker, topic: str, checkpoint: Path) -> hg.Writer:
    made = hg.writeStream(frame).outputMode("update").format("kafka").slots(start=2)
    made = made.option("kafka.bootstrap.servers", broker.servers).option("topic", topic)
    return made.option("checkpointLocation", str(checkpoint))


def real_time(made: hg.Writer) -> hg.Writer:
    return made.trigger(realTime="1 minute")


def assert_once(broker: Broker, topic: str, expected: Counter[str]) -> None:
    """Each key's counts only grow, up to the expected one: a step that came twice would repeat some."""
    found = defaultdict(list)
    for record in committed(broker.servers, [topic]):
        found[(record.key or b"").decode()].append(int(record.value or 0))
    assert {key: values[-1] for key, values in found.items()} == expected
    for values in found.values():
        assert all(later > earlier for earlier, later in pairwise(values))


@pytest.mark.thorough
def test_records_count_once_in_both_modes_whatever_is_killed(
    connected: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink = topic("in"), topic("out")
    expected: Counter[str] = Counter()

    def send(number: int) -> None:
        keys = [str((number + n) % 17) for n in range(200)]
        expected.update(keys)
        put(broker.servers, source, [{"key": key, "value": b"x"} for key in keys])

    def wait_for_all(query: Any) -> None:
        query.processAllAvailable()
        assert query.isActive, query.exception()

    frame = counts(connected, broker, source, startingOffsets="earliest")
    send(0)
    query = real_time(into(frame, broker, sink, tmp_path)).start()
    try:
        wait_for_all(query)
        assert_once(broker, sink, expected)
        for number, victim in enumerate(("slot 0", "feeder 0"), 1):
            send(number)
            os.kill(query.processes[victim], signal.SIGKILL)
            send(number + 5)
            until_s = time.monotonic() + LIMIT_S
            while query.journal.read_text().count('"event":"retry"') < number:
                assert query.isActive, query.exception()
                assert time.monotonic() < until_s, "nobody noticed within two minutes"
                time.sleep(0.01)
            wait_for_all(query)
            assert_once(broker, sink, expected)
    finally:
        query.stop()
    assert query.exception() is None
    send(20)
    into(frame, broker, sink, tmp_path).trigger(availableNow=True).start().awaitTermination()
    assert_once(broker, sink, expected)


def test_what_is_released_early_is_there_before_its_commit(
    connected: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, sink = topic("in"), topic("out")
    seen: list[int] = []

    def commit(self: Any, manifest: Any) -> Any:
        until_s = time.monotonic() + LIMIT_S
        rows = sum(seen) + sum(entry["rows"] for entry in manifest.engine["outputs"])
        while len(committed(broker.servers, [sink])) < rows:
            assert time.monotonic() < until_s, "its output waits for the commit"
        seen.append(rows - sum(seen))
        return make_final(self, manifest)

    make_final = Checkpoint.commit
    monkeypatch.setattr(Checkpoint, "commit", commit)
    frame = counts(connected, broker, source, startingOffsets="earliest")
    query = real_time(into(frame, broker, sink, tmp_path)).release("early").start()
    try:
        for _ in range(3):
            put(broker.servers, source, [{"key": str(n % 7), "value": b"x"} for n in range(70)])
            query.processAllAvailable()
    finally:
        query.stop()
    assert query.exception() is None
    assert_once(broker, sink, Counter({str(n): 30 for n in range(7)}))


def test_partitions_with_a_backlog_are_read_evenly(
    broker: Broker, topic: Callable[..., str]
) -> None:
    """Else the watermark of an epoch that has one of them makes the records of the others late."""
    name, each = topic("in", partitions=4), 12_000
    records = [{"value": b"x", "partition": n % 4} for n in range(4 * each)]
    put(broker.servers, name, records)
    options = {"kafka.bootstrap.servers": broker.servers, "subscribe": name}
    feed = KafkaFeed.of({**options, "startingOffsets": "earliest"})
    reader = feed.reader(feed.first(), 0, 1)
    until_s, done = time.monotonic() + LIMIT_S, [0]
    try:
        while min(done) < each:
            assert time.monotonic() < until_s
            reader.poll(0.1)
            done = list(json.loads(reader.offsets())[name].values())
            assert max(done) - min(done) <= 1
    finally:
        reader.close()


@pytest.mark.thorough
def test_an_option_of_kafka_that_has_no_meaning_is_refused(
    connected: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    frame = counts(connected, broker, topic("in"), maxOffsetsPerTrigger="10")
    with pytest.raises(UnsupportedQuery, match='option "maxOffsetsPerTrigger"'):
        real_time(into(frame, broker, "out", tmp_path / "c")).start()


ENDS = {"t": {0: (5, 9), 1: (0, 8)}}


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"t": {"0": 5}}, "t-0, and"),
        ({"t": {"0": 5, "1": 5, "2": 5}}, "t-0, t-1, t-2, and"),
    ],
)
def test_where_to_begin_is_said_of_all_partitions_or_none(
    option: str, named: dict[str, dict[str, int]], said: str
) -> None:
    """As in Spark; else records of one that was forgotten would be passed over."""
    starting = Starting.of({option.lower(): json.dumps(named)})
    with pytest.raises(
        ConfigError, match=f"{option} names partitions {said} the topics have t-0, t-1;"
    ):
        starting.offsets(None, ENDS)


def test_a_time_of_all_partitions_counts_before_those_of_each() -> None:
    class Consumer:
        def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
            return asked  # each time as an offset

    starting = Starting.of({
        "startingoffsets": '{"t":{"0":-2,"1":-1}}',
        "startingtimestamp": "7",
        "startingoffsetsbytimestamp": '{"t":{"0":6,"1":6}}',
    })  # fmt: skip
    assert starting.offsets(Consumer(), ENDS) == {"t": {"0": 7, "1": 7}}
    offsets = Starting.of({"startingoffsets": '{"t":{"0":-2,"1":-1}}'})
    assert offsets.offsets(None, ENDS) == {"t": {"0": 5, "1": 8}}


def test_a_partition_that_comes_while_the_query_runs_is_read(
    connected: SparkSession,
    broker: Broker,
    topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(new_partitions, "EVERY_S", 0.5)
    source, sink = topic("in", partitions=1), topic("out")
    put(broker.servers, source, [{"key": "old", "value": b"x"}] * 3)
    query = real_time(
        into(counts(connected, broker, source, startingOffsets="earliest"), broker, sink, tmp_path)
    ).start()
    try:
        query.processAllAvailable()
        client = confluent().admin.AdminClient({"bootstrap.servers": broker.servers})
        client.create_partitions([confluent().admin.NewPartitions(source, 2)])[source].result(30)
        put(broker.servers, source, [{"key": "new", "value": b"y", "partition": 1}] * 2)
        until_s = time.monotonic() + LIMIT_S
        while not any(record.key == b"new" for record in committed(broker.servers, [sink])):
            assert query.isActive, query.exception()
            assert time.monotonic() < until_s, "nobody has read it within two minutes"
            time.sleep(0.5)
    finally:
        query.stop()
    assert query.exception() is None
    assert_once(broker, sink, Counter(old=3, new=2))


@pytest.mark.thorough
def test_a_partition_that_a_topic_got_is_read_after_the_next_start(
    broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic("in", partitions=1)
    put(broker.servers, name, [{"value": b"x"}] * 3)
    options = {"kafka.bootstrap.servers": broker.servers, "subscribe": name}
    feed = KafkaFeed.of({**options, "startingOffsets": "latest"})
    first = feed.first()
    assert json.loads(first) == {name: {"0": 3}}
    client = confluent().admin.AdminClient({"bootstrap.servers": broker.servers})
    client.create_partitions([confluent().admin.NewPartitions(name, 2)])[name].result(30)
    until_s = time.monotonic() + LIMIT_S
    while len(json.loads(feed.grown(first))[name]) < 2:
        assert time.monotonic() < until_s, "the broker has not made it"
    put(broker.servers, name, [{"value": b"y", "partition": 1}] * 2)
    reader = feed.reader(feed.grown(first), 0, 1)
    try:
        found = None
        while found is None:
            found = reader.poll(1.0)
    finally:
        reader.close()
    assert found.column(1).to_pylist()[0] == b"y"
    assert json.loads(reader.offsets())[name]["0"] == 3


@pytest.mark.thorough
def test_topics_by_pattern_times_and_headers_are_those_of_sparks_source(
    connected: SparkSession, broker: Broker, topic: Callable[..., str]
) -> None:
    """Read at once, in a batch by Spark and by the feed: the same rows, headers too."""
    names = [topic(f"alike-{n}", partitions=2) for n in range(2)]
    producer = confluent().Producer({"bootstrap.servers": broker.servers})
    began_ms = int(time.time() * 1e3)
    for n in range(40):
        headers = [("a", b"1"), ("a", None), ("", b"")][: n % 4] or None
        producer.produce(
            names[n % 2],
            b"%d" % n,
            str(n % 5),
            n // 2 % 2,
            timestamp=began_ms + n,
            headers=headers,
        )
    producer.flush()
    options = {
        "kafka.bootstrap.servers": broker.servers,
        "subscribePattern": names[0].replace("alike-0", "alike-."),
        "includeHeaders": "true",
        "startingTimestamp": str(began_ms + 10),
    }
    columns = ("key", "value", "topic", "partition", "offset", "timestampType", "headers")
    batch = connected.read.format("kafka").options(**options).load().select(*columns)
    expected = sorted(repr(row.asDict(True)) for row in batch.collect())
    feed = KafkaFeed.of(options)
    reader = feed.reader(feed.first(), 0, 1)
    rows: list[dict[str, Any]] = []
    try:
        until_s = time.monotonic() + LIMIT_S
        while len(rows) < len(expected) and time.monotonic() < until_s:
            found = reader.poll(1.0)
            rows += [] if found is None else found.select(columns).to_pylist()
    finally:
        reader.close()
    assert sorted(map(repr, rows)) == expected
    assert len(expected) == 30
    later = KafkaFeed.of({**options, "startingTimestamp": str(began_ms + 60_000)})
    with pytest.raises(ConfigError, match=f"no record of {began_ms + 60_000} ms"):
        later.first()
    ends = KafkaFeed.of(
        {
            **options,
            "startingTimestamp": str(began_ms + 60_000),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    )
    assert json.loads(ends.first()) == {name: {"0": 10, "1": 10} for name in names}


def read(reader: Any, reached: Callable[[], bool]) -> list[bytes]:
    """Return the values of the records until something is reached."""
    values: list[bytes] = []
    until_s = time.monotonic() + LIMIT_S
    while not reached():
        assert time.monotonic() < until_s, reader.offsets()
        if (found := reader.poll(0.5)) is not None:
            values += found.column(1).to_pylist()
    return values


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_all_is_read_though_transactions_end_behind_the_last_record(
    broker: Broker, topic: Callable[..., str], isolation: str
) -> None:
    """Else nobody would see that a query has all, and a watermark would wait for it."""
    name = topic(f"in-{isolation}", partitions=2)
    producer = confluent().Producer(
        {"bootstrap.servers": broker.servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(30)
    for count, ends in (
        (200, producer.commit_transaction),
        (9000, producer.abort_transaction),
        (6000, producer.commit_transaction),
        (10, producer.abort_transaction),
    ):
        producer.begin_transaction()
        for n in range(count):
            producer.produce(name, ends.__name__.encode(), partition=n % 2)
            producer.poll(0)
        producer.flush(30)
        ends(30)
    options = {"kafka.bootstrap.servers": broker.servers, "subscribe": name}
    options |= {"startingOffsets": "earliest", "kafka.isolation.level": isolation}
    feed = KafkaFeed.of(options)
    first = feed.first()
    newest, reader = feed.newest(first), feed.reader(first, 0, 1)
    try:
        values = Counter(read(reader, lambda: feed.reached(reader.offsets(), newest)))
    finally:
        reader.close()
    expected = Counter({b"commit_transaction": 6200})
    if isolation == "read_uncommitted":
        expected[b"abort_transaction"] = 9010
    assert values == expected
    assert reader.offsets() == newest


def test_topics_that_are_gone_are_passed_over_where_data_may_be_lost(
    broker: Broker, topic: Callable[..., str]
) -> None:
    names = [topic(f"gone-{n}", partitions=1) for n in range(2)]
    for name in names:
        put(broker.servers, name, [{"value": name.encode()}])
    options = {
        "kafka.bootstrap.servers": broker.servers,
        "subscribePattern": names[0].replace("gone-0", "gone-."),
        "startingOffsets": "earliest",
    }
    strict, feed = KafkaFeed.of(options), KafkaFeed.of({**options, "failOnDataLoss": "false"})
    first = feed.first()
    delete_topic(broker.servers, names[0])
    assert json.loads(feed.grown(first)) == {names[1]: {"0": 0}}
    assert json.loads(feed.newest(first)) == {names[1]: {"0": 1}}
    assert feed.reached(json.dumps({names[1]: {"0": 1}}), feed.newest(first))
    reader = feed.reader(feed.grown(first), 0, 1)
    try:
        assert read(reader, lambda: '"0":1' in reader.offsets()) == [names[1].encode()]
    finally:
        reader.close()
    with pytest.raises(EngineError, match="failOnDataLoss=false it is passed over") as failed:
        strict.reader(strict.grown(first), 0, 1)
    assert not failed.value.transient


@pytest.mark.thorough
def test_a_query_has_all_of_a_topic_that_is_written_in_transactions(
    connected: SparkSession, broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink = topic("in", partitions=2), topic("out")
    producer = confluent().Producer(
        {"bootstrap.servers": broker.servers, "transactional.id": source, "log_level": 0}
    )
    producer.init_transactions(30)
    frame = counts(connected, broker, source, startingOffsets="earliest")
    query = real_time(into(frame, broker, sink, tmp_path)).start()
    try:
        for round_ in range(2):
            producer.begin_transaction()
            for n in range(20):
                producer.produce(source, b"x", str(n % 5), partition=n % (2 - round_))
            producer.commit_transaction(30)
            waiting = threading.Thread(target=query.processAllAvailable, daemon=True)
            waiting.start()
            waiting.join(LIMIT_S)
            assert not waiting.is_alive(), "nobody sees that all is there"
            assert_once(broker, sink, Counter({str(n): 4 * (round_ + 1) for n in range(5)}))
    finally:
        query.stop()
    assert query.exception() is None
