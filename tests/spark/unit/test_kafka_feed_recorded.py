"""A feed of Kafka over a made-up cluster: where it begins, what it reads and refuses, as recorded."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import HeadgateError
from headgate.spark.realtime import kafka_feed
from headgate.spark.realtime.even_order import EvenOrder
from headgate.spark.realtime.kafka_feed import KafkaFeed

Recorded = Callable[[str, Iterable[str]], None]
SERVERS = {"kafka.bootstrap.servers": "b:9092"}
EOF, MAY_COME_BACK, GONE, BAD = "_PARTITION_EOF", "_TRANSPORT", "_UNKNOWN_PARTITION", "OUT_OF_RANGE"


@dataclass(frozen=True)
class FakeError:
    """An error of the client's."""

    named: str
    may_retry: bool = False

    def name(self) -> str:
        return self.named

    def str(self) -> str:
        return f"it says {self.named}"

    def retriable(self) -> bool:
        return self.may_retry


class FakeKafkaException(Exception):
    """What calls of the client raise."""


@dataclass
class FakePlace:
    topic: str
    partition: int
    offset: int = -1001


@dataclass(frozen=True)
class FakeMessage:
    """A record, or an error of a partition."""

    place: tuple[str, int]
    at: int
    value_: bytes | None = None
    problem: FakeError | None = None

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.at

    def error(self) -> FakeError | None:
        return self.problem

    def key(self) -> bytes | None:
        return None if self.at % 3 else b"k"

    def value(self) -> bytes | None:
        return self.value_

    def timestamp(self) -> tuple[int, int]:
        return (self.at % 3, 1_000_000 + self.at)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [("h", b"1"), ("h", None)][: self.at % 3] or None


@dataclass
class FakePartition:
    low: int = 0
    high: int = 0
    records: list[FakeMessage] = field(default_factory=list)


class FakeKafka:
    """A cluster, and the module of its client."""

    KafkaException, TopicPartition = FakeKafkaException, FakePlace

    def __init__(self) -> None:
        self.topics: dict[str, dict[int, FakePartition]] = {}
        self.opened: list[dict[str, Any]] = []
        self.closed = 0
        self.problem: FakeError | None = None
        self.gone: set[tuple[str, int]] = set()

    def Consumer(self, settings: dict[str, Any]) -> FakeConsumer:
        self.opened.append(settings)
        return FakeConsumer(self)

    def write(self, topic: str, partition: int, count: int, holes: int = 0) -> None:
        """Append records, and behind them offsets without one, as the end of a transaction."""
        of = self.topics.setdefault(topic, {}).setdefault(partition, FakePartition())
        place = (topic, partition)
        for at in range(of.high, of.high + count):
            value = b"%d" % at if at % 5 else None
            of.records.append(FakeMessage(place, at, value))
        of.high += count + holes


class FakeConsumer:
    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.at: dict[tuple[str, int], int] = {}
        self.ended: dict[tuple[str, int], int] = {}
        self.problems: list[FakeMessage] = []

    def _answer(self) -> None:
        if self.kafka.problem is not None:
            raise FakeKafkaException(self.kafka.problem)

    def list_topics(self, topic: str | None = None, timeout: float | None = None) -> Any:
        self._answer()
        assert timeout == kafka_feed._CALL_S
        known = {
            name: SimpleNamespace(error=None, partitions=dict.fromkeys(reversed(parts)))
            for name, parts in self.kafka.topics.items()
            if topic in (None, name)
        }
        if topic is not None and topic not in known:
            problem = None if topic == "empty" else "no topic"
            known[topic] = SimpleNamespace(error=problem, partitions={})
        return SimpleNamespace(topics=known)

    def get_watermark_offsets(
        self, place: FakePlace, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int]:
        assert cached or timeout == kafka_feed._CALL_S
        self._answer()
        if (place.topic, place.partition) in self.kafka.gone:
            raise FakeKafkaException(FakeError(GONE))
        of = self.kafka.topics[place.topic][place.partition]
        if cached and (place.topic, place.partition) not in self.ended:
            return -1001, -1001
        return of.low, of.high

    def offsets_for_times(self, asked: list[FakePlace], timeout: float) -> list[FakePlace]:
        assert timeout == kafka_feed._CALL_S
        (place,) = asked
        of = self.kafka.topics[place.topic][place.partition]
        later = (one.at for one in of.records if one.timestamp()[1] >= place.offset)
        return [FakePlace(place.topic, place.partition, next(later, -1))]

    def assign(self, places: list[FakePlace]) -> None:
        self.at = {(one.topic, one.partition): one.offset for one in places}

    def consume(self, count: int, timeout_s: float) -> list[FakeMessage]:
        """Bring what lies in one partition, then in the next one; an end each time it is reached."""
        found, self.problems = self.problems[:count], self.problems[count:]
        for place, at in self.at.items():
            of = self.kafka.topics[place[0]][place[1]]
            more = [one for one in of.records if one.at >= at][: count - len(found)]
            found += more
            self.at[place] = more[-1].at + 1 if more else at
            left = any(one.at >= self.at[place] for one in of.records)
            if not left and self.ended.get(place) != of.high and len(found) < count:
                self.ended[place] = self.at[place] = of.high
                found.append(FakeMessage(place, of.high, problem=FakeError(EOF)))
        return found

    def close(self) -> None:
        self.kafka.closed += 1


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    made = FakeKafka()
    monkeypatch.setattr(kafka_feed, "confluent", lambda: made)
    monkeypatch.setattr(
        kafka_feed, "consumer_settings", lambda given: {"servers": given["kafka.bootstrap.servers"]}
    )
    yield made
    assert made.closed == len(made.opened)  # what was opened is closed again, whatever happened


def tried(work: Callable[[], Any]) -> str:
    try:
        return str(work())
    except HeadgateError as error:
        transient = getattr(error, "transient", None)
        return f"{type(error).__name__}{' (transient)' * bool(transient)}: {error}"


def test_where_a_feed_begins_and_what_it_refuses(kafka: FakeKafka, recorded: Recorded) -> None:
    for number, count in enumerate((10, 3, 0)):
        kafka.write("a", number, count, holes=number)
    kafka.write("b", 0, 20)
    kafka.topics["b"][0].low = 4
    named = '{"a":{"0":7,"1":-2,"2":-1}}'
    options: list[dict[str, str]] = [
        {"subscribe": "a"},
        {"subscribe": " b , a "},
        {"SUBSCRIBE": "a", "startingOffsets": "EARLIEST"},
        {"subscribe": "b", "startingOffsets": " earliest "},
        {"assign": '{"a":[2,0]}', "startingOffsets": "earliest"},
        {"subscribePattern": "[ab]", "startingOffsets": "earliest"},
        {"subscribePattern": "b+", "includeHeaders": "TRUE", "failOnDataLoss": "false"},
        {"subscribePattern": "c.*"},
        {"subscribe": "none"},
        {"subscribe": "empty"},
        {"subscribe": "a", "startingOffsets": named},
        {"subscribe": "a,b", "startingOffsets": named},
        {"subscribe": "a", "startingOffsetsByTimestamp": '{"a":{"0":1000005,"1":0}}'},
        {"assign": '{"a":[0,1]}', "startingOffsetsByTimestamp": '{"a":{"0":1000005,"1":0}}'},
        {"subscribe": "a", "startingTimestamp": "1000002"},
        {"subscribe": "b", "startingTimestamp": "1000019"},
        {"subscribe": "b", "startingTimestamp": "1000020"},
        {
            "subscribe": "a",
            "startingTimestamp": "1000002",
            "startingOffsetsByTimestampStrategy": "Latest",
        },
        {"subscribe": "a", "startingTimestamp": "soon"},
        {"subscribe": "a", "startingOffsets": "{"},
        {"subscribe": "a", "startingOffsets": "earlest"},
        {"subscribe": "a", "startingOffsetsByTimestamp": "["},
        {"subscribe": "a", "maxOffsetsPerTrigger": "1"},
        {"subscribe": "a", "kafka.socket.timeout.ms": "1"},
    ]
    lines = []
    for given in options:
        lines += [str(given), f"  {tried(lambda g=given: KafkaFeed.of(SERVERS | g).first())}"]
    feed = KafkaFeed.of(SERVERS | {"subscribePattern": "b", "includeHeaders": "true"})
    lines += [str(feed.schema.names), str(KafkaFeed.of(SERVERS | {"assign": "{}"}).schema.names)]
    for loses in ("true", "FALSE"):
        client = dict(KafkaFeed.of(SERVERS | {"failOnDataLoss": loses}).client)
        assert client.pop("group.id").startswith("headgate-")
        lines.append(f"{loses}: {client}")
    assert {told["log_level"] for told in kafka.opened} == {0}
    recorded("kafka_feed_begins", lines)


def test_what_has_come_and_gone_since(kafka: FakeKafka, recorded: Recorded) -> None:
    lines = []
    for number in (10, 9, 0):
        kafka.write("a", number, 5)
    kafka.write("b", 0, 2)
    strict, loose = (
        KafkaFeed.of(SERVERS | {"subscribePattern": "[ab]", "failOnDataLoss": loses})
        for loses in ("true", "false")
    )
    before = '{"a":{"0":3,"9":1}}'
    problems = (None, FakeError(MAY_COME_BACK), FakeError(GONE), FakeError(BAD, may_retry=True))
    nothing: set[tuple[str, int]] = set()
    cases = [(nothing, problem) for problem in problems]
    for gone, problem in [*cases, ({("a", 9)}, None), ({("a", 0), ("a", 9)}, None)]:
        kafka.gone, kafka.problem = gone, problem
        lines.append(f"gone {sorted(gone)}, {problem and problem.name()}")
        for feed in (strict, loose):
            lines.append(f"  {tried(partial(feed.grown, before))}")
            lines.append(f"  {tried(partial(feed.newest, before))}")
    kafka.gone, kafka.problem = {("a", 0)}, None
    # what is gone while a reader begins is told by the same sentence, and its client is closed
    lines.append(tried(lambda: strict.reader(before, 0, 1)))
    lines.append(strict.merged(['{"b":{"10":1,"9":2}}', '{"a":{"0":3}}', '{"b":{"2":0}}']))
    for have, wanted in itertools.product(
        ('{"a":{"0":3}}', '{"a":{"0":4,"1":0}}', "{}"), ('{"a":{"0":4}}', '{"b":{"0":1}}', "{}")
    ):
        lines.append(f"{have} as far as {wanted}: {strict.reached(have, wanted)}")
    recorded("kafka_feed_grows", lines)


@pytest.mark.parametrize("headers", [False, True])
def test_a_drawn_course_of_two_readers(
    kafka: FakeKafka, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, headers: bool
) -> None:
    dice, now_s = random.Random(315 + headers), [100.0]
    monkeypatch.setattr(kafka_feed, "EvenOrder", partial(EvenOrder, clock=lambda: now_s[0]))
    monkeypatch.setattr(kafka_feed, "_POLL_ROWS", 6)
    monkeypatch.setattr(kafka_feed, "_FEW_ROWS", 3)
    for number in range(3):
        kafka.write("a", number, dice.randint(0, 12))
    kafka.write("b", 7, 4, holes=2)
    given = {"subscribePattern": "[ab]", "startingOffsets": "earliest"}
    feed = KafkaFeed.of(SERVERS | given | {"includeHeaders": str(headers)})
    start, lines = feed.first(), []
    readers = [feed.reader(start, number, 2) for number in range(2)]
    seen: list[tuple[str, int, int]] = []
    for _ in range(60):
        now_s[0] += dice.choice([0.001, 0.5])
        number = dice.randrange(2)
        if dice.random() < 0.3:
            topic, partition = dice.choice([("a", 0), ("a", 1), ("a", 2), ("b", 7)])
            kafka.write(topic, partition, dice.choice([0, 1, 9]), dice.choice([0, 0, 1]))
            lines.append(f"{topic}-{partition} ends at {kafka.topics[topic][partition].high}")
        if dice.random() < 0.1:
            problem = FakeError(dice.choice([MAY_COME_BACK, BAD]), may_retry=dice.random() < 0.5)
            readers[number]._consumer.problems.append(FakeMessage(("a", 1), 0, problem=problem))
            lines.append(f"reader {number} meets {problem}")
        try:
            batch = readers[number].poll(0.0)
        except HeadgateError as error:
            lines.append(f"  {type(error).__name__}: {error}")
            continue
        if batch is not None:
            assert batch.schema == feed.schema
            seen += [(r["topic"], r["partition"], r["offset"]) for r in batch.to_pylist()]
        rows = [] if batch is None else [tuple(row.values()) for row in batch.to_pylist()]
        lines.append(f"  reader {number}: {'nothing' if batch is None else len(rows)}")
        lines += [f"    {' '.join(map(str, row))}" for row in rows[:2]]
        lines.append(f"    {readers[number].offsets()}")
    for reader in readers:
        while not json.loads(reader.offsets()) or reader._order.holds:
            now_s[0] += 2.0
            batch = reader.poll(0.0)
            rows = [] if batch is None else batch.to_pylist()
            seen += [(r["topic"], r["partition"], r["offset"]) for r in rows]
    assert len(seen) == len(set(seen))  # each record once
    lines.append(feed.merged([reader.offsets() for reader in readers]))
    lines.append(f"log levels {[told['log_level'] for told in kafka.opened]}")
    for reader in readers:
        reader.close()
    recorded(f"kafka_feed_reads{'_headers' * headers}", lines)


def test_a_small_backlog_comes_of_all_partitions_at_once(kafka: FakeKafka) -> None:
    """Whoever begins behind ten records of each may not pass on the first ones alone."""
    for number in range(3):
        kafka.write("a", number, 10, holes=1)
    feed = KafkaFeed.of(SERVERS | {"subscribe": "a", "startingOffsets": "earliest"})
    reader = feed.reader(feed.first(), 0, 1)
    consumer = reader._consumer
    places, found = dict(consumer.at), []
    for place, at in places.items():
        consumer.at = {place: at}  # its brokers answer one after the other
        batch = reader.poll(0.0)
        found.append(0 if batch is None else batch.num_rows)
    assert found == [0, 0, 30]
    consumer.at = {("a", 0): 11}
    kafka.write("a", 0, 2)
    batch = reader.poll(0.0)
    assert batch is not None
    assert batch.num_rows == 2  # keeps up: nobody is waited for
    reader.close()
