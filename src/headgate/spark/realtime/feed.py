"""Reads sources for a pipe: a small protocol, and the reader of Kafka.

A data source of the entry point group ``headgate.sources`` is read through its class method
``feed(options)``, which returns a `SourceFeed`.

Offsets are texts, the very ones that Spark would have in its log, so that a checkpoint goes on in either
mode.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from headgate.core.errors import ConfigError, EngineError, UnsupportedQuery
from headgate.core.installed import SOURCES, installed
from headgate.spark.jvm.gateway import Jvm, class_name
from headgate.spark.jvm.streams import options_of
from headgate.spark.read.arrival import is_kafka
from headgate.spark.realtime.even_order import EvenOrder, Partition
from headgate.spark.settings.kafka import confluent, consumer_settings

_CALL_S = 30.0
_POLL_ROWS = 4096
"""Records of one poll at the most. Chosen."""
_FEW_ROWS = 64
"""Records of a poll up to which it is not asked whether partitions have a backlog. Chosen."""


class Reader(Protocol):
    """Reads a share of a source, in a worker."""

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        """Return records in the order of the source; None where none came in `timeout_s`."""

    def offsets(self) -> str:
        """Return the offsets behind the records that `poll` has returned."""

    def close(self) -> None:
        """Give back what it held."""


class SourceFeed(Protocol):
    """Describes a source; the driver has it, and feeders get it pickled."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its records."""

    @property
    def readers(self) -> int:
        """The most readers that may share the source."""

    @property
    def keeps_first(self) -> bool:
        """Return whether the first offsets are kept beside Spark's log, as its own source keeps them."""

    def first(self) -> str:
        """Return the offsets at which a query begins."""

    def grown(self, offsets: str) -> str:
        """Return `offsets`, and where to begin in what the source has got since."""

    def newest(self, since: str) -> str:
        """Return the offsets of all that the source has now, at least `since`."""

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return one of `count` readers that share what is behind the offsets `start`."""

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all readers together."""

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are as far as `wanted`."""


@dataclass(frozen=True)
class BranchTasks:
    """Places a branch of the plan among the tasks of a pipe.

    Attributes
    ----------
    source : int
        Which of the sources it reads.
    first, count : int
        Its first task, and how many tasks it has.
    reader : int
        The number of its first reader among all that read.
    copies_of : int or None
        The first task of another branch that reads the same source, and passes on what it reads: both see
        the same records in each epoch.
    copied_to : tuple of int
        First tasks of the branches that it passes on to.
    """

    source: int
    first: int
    count: int
    reader: int
    copies_of: int | None = None
    copied_to: tuple[int, ...] = ()


@dataclass(frozen=True)
class Feeds:
    """Describes the sources of a pipe together; their offsets are a list as JSON.

    Attributes
    ----------
    feeds : tuple of SourceFeed
        Of each source of Spark's, in its order; a source that is read twice is there twice.
    same_as : tuple of int
        For each, the first that is the same source.
    """

    feeds: tuple[SourceFeed, ...]
    same_as: tuple[int, ...]

    @property
    def shares(self) -> list[BranchTasks]:
        """Places of their branches."""
        found: list[BranchTasks] = []
        reader = 0
        for number, feed in enumerate(self.feeds):
            first = sum(one.count for one in found)
            same = self.same_as[number]
            if same == number:
                found.append(BranchTasks(number, first, feed.readers, reader))
                reader += feed.readers
            else:
                of = found[same]
                found.append(BranchTasks(same, first, of.count, of.reader, copies_of=of.first))
                found[same] = replace(of, copied_to=(*of.copied_to, first))
        return found

    @property
    def tasks(self) -> int:
        """Tasks of the pipe."""
        return sum(one.count for one in self.shares)

    @property
    def readers(self) -> int:
        """Tasks that read."""
        return sum(one.count for one in self.shares if one.copies_of is None)

    def each(self, offsets: str | None, ask: Callable[[SourceFeed, str], str]) -> str:
        """Return the offsets that each source answers with, asked with its own."""
        given = json.loads(offsets) if offsets is not None else [""] * len(self.feeds)
        found: list[str] = []
        for number, (feed, one) in enumerate(zip(self.feeds, given, strict=True)):
            same = self.same_as[number]
            found.append(ask(feed, one) if same == number else found[same])
        return json.dumps(found)

    def first(self) -> str:
        """Return the offsets at which a query begins."""
        return self.each(None, lambda feed, _: feed.first())

    def grown(self, offsets: str) -> str:
        """Return `offsets`, and where to begin in what the sources have got since."""
        return self.each(offsets, lambda feed, one: feed.grown(one))

    def newest(self, since: str) -> str:
        """Return the offsets of all that the sources have now."""
        return self.each(since, lambda feed, one: feed.newest(one))

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all readers together, in the order of their numbers."""
        given = list(parts)
        found: list[str] = []
        for share in self.shares:
            if share.copies_of is None:
                mine = given[share.reader : share.reader + share.count]
                found.append(self.feeds[share.source].merged(mine))
            else:
                found.append(found[share.source])
        return json.dumps(found)

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are as far as `wanted`."""
        both = zip(self.feeds, json.loads(offsets), json.loads(wanted), strict=True)
        return all(feed.reached(one, other) for feed, one, other in both)


def feed_of(leaf: Jvm) -> SourceFeed:
    """Return the feed of a streaming leaf of a plan.

    Raises
    ------
    UnsupportedQuery
        Its source, or one of its options, cannot be read in real time.
    """
    if is_kafka(leaf):
        return KafkaFeed.of(options_of(leaf))
    name = str(leaf.sourceName()) if class_name(leaf) == "StreamingRelationV2" else "files"
    plugins = installed(SOURCES)
    if name in plugins:
        source = plugins[name].load(type, "class")
        if hasattr(source, "feed"):
            with plugins[name].blamed("read in real time"):
                feed: SourceFeed = source.feed(options_of(leaf))
            return feed
    others = ", ".join(["kafka", *plugins])
    msg = (
        f'format "{name}" cannot be read in real time, which reads {others}; leave out '
        "trigger(realTime=...)."
    )
    raise UnsupportedQuery(msg)


# --- Kafka -----------------------------------------------------------------------------------------

_SCHEMA = pa.schema([
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
])  # fmt: skip
"""The columns of Spark's Kafka source."""

_TAKEN = ("subscribe", "assign", "startingoffsets", "failondataloss")
_KAFKA = "kafka."
_EARLIEST, _LATEST = -2, -1
"""Offsets that stand for the ends of a partition, in Spark's ``startingOffsets``."""

Ends = dict[str, dict[str, int]]
"""Offsets by topic and partition, as Spark writes them."""


@dataclass(frozen=True)
class KafkaFeed:
    """Reads topics of Kafka with confluent-kafka.

    Attributes
    ----------
    client : mapping
        Settings of the client.
    topics : mapping of str to (sequence of int or None)
        Partitions of each topic; None for all that it has at the start.
    starting : str
        As ``startingOffsets``.
    readers : int
        The most readers that may share them.
    """

    client: Mapping[str, Any] = field(repr=False)
    topics: Mapping[str, Any]
    starting: str
    readers: int = 1
    keeps_first: bool = True

    @property
    def schema(self) -> pa.Schema:
        """The columns of its records."""
        return _SCHEMA

    @classmethod
    def of(cls, options: Mapping[str, str]) -> KafkaFeed:
        """Return the feed that Spark's options describe.

        Raises
        ------
        UnsupportedQuery
            An option has no meaning here.
        """
        given = {key.lower(): value for key, value in options.items()}
        for name in options:
            if name.lower() not in _TAKEN and not name.lower().startswith(_KAFKA):
                msg = f'option "{name}" of format "kafka" is not supported in real time; leave it out.'
                raise UnsupportedQuery(msg)
        loses = given.get("failondataloss", "true").lower() == "false"
        client = {
            **consumer_settings(given),
            "group.id": f"headgate-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if loses else "error",
            "fetch.queue.backoff.ms": 10,
        }
        client.setdefault("socket.nagle.disable", True)
        client.setdefault("isolation.level", "read_uncommitted")
        topics: dict[str, Any]
        if "assign" in given:
            topics = json.loads(given["assign"])
        else:
            topics = dict.fromkeys(name.strip() for name in given["subscribe"].split(","))
        return cls(client, topics, given.get("startingoffsets", "latest"))

    def first(self) -> str:
        """Return the offsets at which a query begins, as ``startingOffsets`` says.

        Raises
        ------
        ConfigError
            Kafka has no such topic.
        """
        asked: Ends = {}
        if self.starting.strip().startswith("{"):
            asked = json.loads(self.starting)
        default = _EARLIEST if self.starting.lower() == "earliest" else _LATEST
        found: Ends = {}
        for topic, ends in self._ends().items():
            for number, (low, high) in ends.items():
                at = int(asked.get(topic, {}).get(str(number), default))
                found.setdefault(topic, {})[str(number)] = {_EARLIEST: low, _LATEST: high}.get(
                    at, at
                )
        return json.dumps(found, separators=(",", ":"))

    def grown(self, offsets: str) -> str:
        """Return `offsets`, and the beginnings of partitions that topics have got since."""
        found: Ends = json.loads(offsets)
        for topic, ends in self._ends().items():
            for number, (low, _) in ends.items():
                found.setdefault(topic, {}).setdefault(str(number), low)
        return self.merged([json.dumps(found)])

    def newest(self, since: str) -> str:
        """Return the ends of the partitions that are read."""
        ends = self._ends(json.loads(since))
        found = {t: {str(p): high for p, (_, high) in e.items()} for t, e in ends.items()}
        return json.dumps(found, separators=(",", ":"))

    def _ends(self, only: Ends | None = None) -> dict[str, dict[int, tuple[int, int]]]:
        module = confluent()
        consumer = module.Consumer({**self.client, "log_level": 0})
        try:
            found: dict[str, dict[int, tuple[int, int]]] = {}
            wanted = (
                self.topics if only is None else {t: [int(p) for p in e] for t, e in only.items()}
            )
            for topic, asked in wanted.items():
                numbers = asked
                if numbers is None:
                    known = consumer.list_topics(topic, timeout=_CALL_S).topics[topic]
                    if known.error is not None or not known.partitions:
                        msg = f'Kafka has no topic "{topic}"; make it, or correct option subscribe.'
                        raise ConfigError(msg)
                    numbers = sorted(known.partitions)
                found[topic] = {
                    number: consumer.get_watermark_offsets(
                        module.TopicPartition(topic, number), timeout=_CALL_S
                    )
                    for number in numbers
                }
            return found
        except module.KafkaException as error:
            msg = f"Kafka does not answer ({error.args[0].str()}); look at its broker."
            raise EngineError(msg) from error
        finally:
            consumer.close()

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return the reader of every `count`-th partition."""
        ends: Ends = json.loads(start)
        every = sorted((topic, int(p)) for topic, parts in ends.items() for p in parts)
        mine: Ends = {}
        for topic, partition in every[number::count]:
            mine.setdefault(topic, {})[str(partition)] = ends[topic][str(partition)]
        return _KafkaReader(self.client, mine)

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of all readers together."""
        found: Ends = {}
        for part in parts:
            for topic, ends in json.loads(part).items():
                found.setdefault(topic, {}).update(ends)
        ordered = {
            t: dict(sorted(e.items(), key=lambda one: int(one[0]))) for t, e in found.items()
        }
        return json.dumps(dict(sorted(ordered.items())), separators=(",", ":"))

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are as far as `wanted`."""
        have: Ends = json.loads(offsets)
        return all(
            have[topic][number] >= end
            for topic, ends in json.loads(wanted).items()
            for number, end in ends.items()
        )


class _KafkaReader:
    """Reads some partitions from their offsets on, none far ahead of the others."""

    def __init__(self, client: Mapping[str, Any], ends: Ends) -> None:
        module = confluent()
        self._ends = ends
        self._consumer = module.Consumer({**client, "log_level": 3})
        self._partitions = [
            module.TopicPartition(topic, int(number), offset)
            for topic, parts in ends.items()
            for number, offset in parts.items()
        ]
        self._order = EvenOrder(_POLL_ROWS)
        self._there = {
            (one.topic, one.partition): self._consumer.get_watermark_offsets(one, timeout=_CALL_S)[
                1
            ]
            for one in self._partitions
        }
        """The ends when it began: the client knows none before it has read."""
        self._consumer.assign(self._partitions)

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        found = self._consumer.consume(1, timeout_s)
        if found:
            found += self._consumer.consume(_POLL_ROWS - 1, 0)
        records = [one for one in found if self._is_record(one)]
        if self._order.holds or len(records) >= _FEW_ROWS:
            self._order.add(records)
            records = self._order.take(self._starts(), self._known_ends())
        if not records:
            return None
        for record in records:
            self._ends[record.topic()][str(record.partition())] = record.offset() + 1
        times = [record.timestamp() for record in records]
        columns = [
            pa.array([record.key() for record in records], pa.binary()),
            pa.array([record.value() for record in records], pa.binary()),
            pa.array([record.topic() for record in records], pa.string()),
            pa.array([record.partition() for record in records], pa.int32()),
            pa.array([record.offset() for record in records], pa.int64()),
            pa.array([ms * 1000 for _, ms in times], pa.int64()).cast(
                _SCHEMA.field("timestamp").type
            ),
            # librdkafka counts from 1, with 0 for none
            pa.array([kind - 1 for kind, _ in times], pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _starts(self) -> dict[Partition, int]:
        """Return the offsets that come next, by partition."""
        return {(t, int(p)): at for t, parts in self._ends.items() for p, at in parts.items()}

    def _known_ends(self) -> dict[Partition, int]:
        """Return the ends of partitions as far as the client knows them, without asking a broker."""
        for one in self._partitions:
            _, high = self._consumer.get_watermark_offsets(one, cached=True)
            place = (one.topic, one.partition)
            self._there[place] = max(self._there[place], high)
        return self._there

    def _is_record(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.retriable():
            return False
        if error.name() == "_ALL_BROKERS_DOWN" or error.name() == "_TRANSPORT":
            return False  # the client goes on by itself
        msg = (
            f"Kafka cannot be read from {message.topic()} partition {message.partition()} on "
            f"({error.str()}); with option failOnDataLoss=false records that are gone are passed over."
        )
        raise EngineError(msg)

    def offsets(self) -> str:
        return json.dumps(self._ends, separators=(",", ":"))

    def close(self) -> None:
        self._consumer.close()
