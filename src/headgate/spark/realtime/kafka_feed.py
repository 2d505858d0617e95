"""Reads Kafka topics for a pipe, with the options of Spark's own source."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headgate.core.errors import ConfigError, EngineError, UnsupportedQuery
from headgate.spark.realtime.even_order import EvenOrder, Partition
from headgate.spark.realtime.feed import Reader
from headgate.spark.settings.kafka import confluent, consumer_settings

_CALL_S = 30.0
_POLL_ROWS = 4096
"""Most records of one poll. Chosen, not tuned."""
_FEW_ROWS = 64
"""A poll with at least so many records turns `EvenOrder` on. Chosen, not tuned."""

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

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMES, _TIME, _NO_TIME = (
    "startingoffsetsbytimestamp",
    "startingtimestamp",
    "startingoffsetsbytimestampstrategy",
)
_TAKEN = (
    "subscribe", "subscribepattern", "assign", "startingoffsets", _TIMES, _TIME, _NO_TIME,
    "failondataloss", "includeheaders",
)  # fmt: skip
_KAFKA = "kafka."
_EARLIEST, _LATEST = -2, -1
"""Offsets that stand for the ends of a partition, in Spark's ``startingOffsets``."""

Ends = dict[str, dict[str, int]]
"""Offsets by topic and partition, in Spark's form."""


@dataclass(frozen=True)
class Starting:
    """Holds the start of a query, from the options ``starting...``.

    A time has priority over offsets, and the time of all partitions over the times of single ones.

    Attributes
    ----------
    default : int
        `_EARLIEST` or `_LATEST`, for partitions that are not named.
    offsets_of, times_ms : mapping
        By topic and partition.
    time_ms : int or None
        For all partitions.
    or_latest : bool
        Whether a partition without a record at or after the time begins at its end.
    """

    default: int
    offsets_of: Ends
    times_ms: Ends
    time_ms: int | None
    or_latest: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Starting:
        """Return the start that options describe; their names are in lower case.

        Raises
        ------
        ConfigError
            Spark would not accept an option's value either.
        """
        offsets = given.get("startingoffsets", "latest").strip()
        try:
            named: Ends = json.loads(offsets) if offsets.startswith("{") else {}
            times: Ends = json.loads(given.get(_TIMES, "{}"))
            at_ms = int(given[_TIME]) if _TIME in given else None
        except ValueError as error:
            msg = (
                'an option of format "kafka" that says where to begin is neither JSON nor a number '
                f"({error}); write it as for Spark's own source."
            )
            raise ConfigError(msg) from error
        ends = {"earliest": _EARLIEST, "latest": _LATEST}
        if not offsets.startswith("{") and offsets.lower() not in ends:
            msg = (
                f'option startingOffsets is "{offsets}"; use "earliest", "latest", or the offsets of all '
                "partitions as JSON."
            )
            raise ConfigError(msg)
        default = ends.get(offsets.lower(), _LATEST)
        return cls(default, named, times, at_ms, given.get(_NO_TIME, "error").lower() == "latest")

    def offsets(self, consumer: Any, ends: Mapping[str, Mapping[int, tuple[int, int]]]) -> Ends:
        """Return the first offsets by topic and partition, for partitions with the given `ends`.

        Raises `ConfigError`: an option with partitions does not name exactly those of `ends`.
        """
        times_ms = self.times_ms if self.time_ms is None else {}
        named = times_ms or (self.offsets_of if self.time_ms is None else {})
        given, there = (
            {f"{topic}-{number}" for topic, parts in of.items() for number in parts}
            for of in (named, ends)
        )
        if named and given != there:
            msg = (
                f"option startingOffsets{'ByTimestamp' if times_ms else ''} names partitions "
                f"{', '.join(sorted(given))}, and the topics have {', '.join(sorted(there))}; name "
                "each of these."
            )
            raise ConfigError(msg)
        found: Ends = {}
        for topic, parts in ends.items():
            for number, (low, high) in parts.items():
                at_ms = times_ms[topic][str(number)] if times_ms else self.time_ms
                if at_ms is not None:
                    at = self._at_time(consumer, topic, number, at_ms)
                else:
                    at = int(self.offsets_of.get(topic, {}).get(str(number), self.default))
                found.setdefault(topic, {})[str(number)] = {_EARLIEST: low, _LATEST: high}.get(
                    at, at
                )
        return found

    def _at_time(self, consumer: Any, topic: str, number: int, at_ms: int) -> int:
        wanted = confluent().TopicPartition(topic, number, at_ms)
        (found,) = consumer.offsets_for_times([wanted], timeout=_CALL_S)
        if found.offset < 0 and not self.or_latest:
            msg = (
                f"partition {number} of topic {topic} has no record of {at_ms} ms since 1970 or newer; "
                'begin earlier, or set startingOffsetsByTimestampStrategy to "latest".'
            )
            raise ConfigError(msg)
        return _LATEST if found.offset < 0 else int(found.offset)


@dataclass(frozen=True)
class KafkaFeed:
    """Reads topics of Kafka with confluent-kafka.

    Attributes
    ----------
    client : mapping
        Settings of the Kafka client.
    topics : mapping of str to (sequence of int or None)
        Partitions of each topic; None for all partitions.
    pattern : str or None
        Regular expression for names of topics, from ``subscribePattern``; replaces `topics`.
    starting : Starting
    headers : bool
        Whether records have a column of headers.
    readers : int
        The most readers that may share the topics.
    loses : bool
        Whether the feed skips records and partitions that Kafka has deleted.
    """

    client: Mapping[str, Any] = field(repr=False)
    topics: Mapping[str, Any]
    pattern: str | None
    starting: Starting
    headers: bool = False
    readers: int = 1
    keeps_first: bool = True
    loses: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return _SCHEMA.append(pa.field("headers", _HEADERS)) if self.headers else _SCHEMA

    @classmethod
    def of(cls, options: Mapping[str, str]) -> KafkaFeed:
        """Return the feed that Spark's options describe.

        Raises
        ------
        UnsupportedQuery
            Real time does not support an option.
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
            # so a reader passes offsets without a record, such as a transaction's end: note 0310
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 10,
        }
        client.setdefault("socket.nagle.disable", True)
        client.setdefault("isolation.level", "read_uncommitted")
        topics: dict[str, Any] = {}
        if "assign" in given:
            topics = json.loads(given["assign"])
        elif "subscribe" in given:
            topics = dict.fromkeys(name.strip() for name in given["subscribe"].split(","))
        headers = given.get("includeheaders", "false").lower() == "true"
        pattern, starting = given.get("subscribepattern"), Starting.of(given)
        return cls(client, topics, pattern, starting, headers, loses=loses)

    def first(self) -> str:
        """Return the offsets at which a query begins.

        Raises
        ------
        ConfigError
            Kafka has no such topic, or no record at or after the starting time.
        """
        with self._consumer() as consumer:
            return json.dumps(
                self.starting.offsets(consumer, self._ends(consumer)), separators=(",", ":")
            )

    def grown(self, offsets: str) -> str:
        """Return `offsets`, with the beginnings of new partitions and topics.

        If the feed skips deleted partitions, the result has none of them.
        """
        found: Ends = json.loads(offsets)
        with self._consumer() as consumer:
            if self.loses:
                there = self._ends(consumer, found)
                found = {t: {str(p): found[t][str(p)] for p in parts} for t, parts in there.items()}
            for topic, ends in self._ends(consumer).items():
                for number, (low, _) in ends.items():
                    found.setdefault(topic, {}).setdefault(str(number), low)
        return self.merged([json.dumps({t: parts for t, parts in found.items() if parts})])

    def newest(self, since: str) -> str:
        """Return the ends of the partitions in `since`."""
        with self._consumer() as consumer:
            ends = self._ends(consumer, json.loads(since))
        found = {t: {str(p): high for p, (_, high) in e.items()} for t, e in ends.items()}
        return json.dumps(found, separators=(",", ":"))

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        """Yield a client without partitions, for requests to the broker."""
        module = confluent()
        consumer = module.Consumer({**self.client, "log_level": 0})
        try:
            yield consumer
        except module.KafkaException as error:
            raise _silent(error) from error
        finally:
            consumer.close()

    def _ends(
        self, consumer: Any, only: Ends | None = None
    ) -> dict[str, dict[int, tuple[int, int]]]:
        """Return (first offset, end offset) of each partition, by topic."""
        wanted: dict[str, Any] = dict(self.topics)
        if only is not None:
            wanted = {topic: [int(number) for number in parts] for topic, parts in only.items()}
        elif self.pattern is not None:
            known = consumer.list_topics(timeout=_CALL_S).topics
            wanted = {topic: None for topic in known if re.fullmatch(self.pattern, topic)}
            if not wanted:
                msg = (
                    f'Kafka has no topic with a name like "{self.pattern}"; make one, or correct option '
                    "subscribePattern."
                )
                raise ConfigError(msg)
        found: dict[str, dict[int, tuple[int, int]]] = {}
        for topic, asked in wanted.items():
            numbers = asked
            if numbers is None:
                known = consumer.list_topics(topic, timeout=_CALL_S).topics[topic]
                if known.error is not None or not known.partitions:
                    msg = f'Kafka has no topic "{topic}"; make it, or correct option subscribe.'
                    raise ConfigError(msg)
                numbers = sorted(known.partitions)
            for number in numbers:
                place = confluent().TopicPartition(topic, number)
                try:
                    ends = consumer.get_watermark_offsets(place, timeout=_CALL_S)
                except confluent().KafkaException as error:
                    if self.loses and error.args[0].name() in _GONE:
                        continue
                    raise
                found.setdefault(topic, {})[number] = ends
        return found

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return the reader of every `count`-th partition, from partition `number` on."""
        ends: Ends = json.loads(start)
        every = sorted((topic, int(p)) for topic, parts in ends.items() for p in parts)
        mine: Ends = {}
        for topic, partition in every[number::count]:
            mine.setdefault(topic, {})[str(partition)] = ends[topic][str(partition)]
        return _KafkaReader(self.client, mine, self.schema)

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
        """Return whether `offsets` are at or after `wanted`, in partitions that both have."""
        have: Ends = json.loads(offsets)
        return all(
            have.get(topic, {}).get(number, end) >= end
            for topic, ends in json.loads(wanted).items()
            for number, end in ends.items()
        )


_GONE = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
"""Names of the client's errors for a missing partition."""


def _may_pass(error: Any) -> bool:
    """Return whether an error of the client may be temporary, such as a broker that is down."""
    return error.retriable() or error.name() in {"_ALL_BROKERS_DOWN", "_TRANSPORT", "_TIMED_OUT"}


def _silent(error: Any) -> EngineError:
    """Return headgate's error for an exception of the client in a request for offsets."""
    why = error.args[0]
    msg = f"Kafka does not answer ({why.str()}); look at its broker."
    if why.name() in _GONE:
        msg = (
            f"Kafka has a partition no more that the query reads ({why.str()}); with option "
            "failOnDataLoss=false it is passed over."
        )
    return EngineError(msg, transient=_may_pass(why))


class _KafkaReader:
    """Reads some partitions from their offsets on; no partition runs far ahead of the others."""

    def __init__(self, client: Mapping[str, Any], ends: Ends, schema: pa.Schema) -> None:
        module = confluent()
        self._ends, self._schema = ends, schema
        self._consumer = module.Consumer({**client, "log_level": 3})
        self._partitions = [
            module.TopicPartition(topic, int(number), offset)
            for topic, parts in ends.items()
            for number, offset in parts.items()
        ]
        self._order = EvenOrder(_POLL_ROWS)
        self._reached: dict[Partition, int] = {}
        """By partition: an end that the client has reached, and the reader has not passed yet."""
        self._no_more: dict[Partition, int] = {}
        """By partition: the offset at which the client last found no more records."""
        self._catches_up = True
        """Whether a partition may have unread records, since the start or since a large poll."""
        try:
            self._there = {
                (one.topic, one.partition): self._consumer.get_watermark_offsets(
                    one, timeout=_CALL_S
                )[1]
                for one in self._partitions
            }
            """Known ends; asked at the start, because the client knows no end before it reads."""
        except module.KafkaException as error:
            self._consumer.close()
            raise _silent(error) from error
        self._consumer.assign(self._partitions)

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        found = self._consumer.consume(1, timeout_s)
        if found:
            found += self._consumer.consume(_POLL_ROWS - 1, 0)
        records = [one for one in found if self._is_record(one)]
        self._catches_up |= len(records) >= _FEW_ROWS
        if self._catches_up:
            self._order.add(records)
            starts, ends = self._starts(), self._known_ends()
            records = self._order.take(starts, ends, self._no_more)
        for record in records:
            self._ends[record.topic()][str(record.partition())] = record.offset() + 1
        self._catches_up = self._catches_up and self._is_behind()
        if not self._gets_on() and not records:
            return None
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
            # librdkafka's types are Spark's plus 1
            pa.array([kind - 1 for kind, _ in times], pa.int32()),
        ]
        if len(self._schema) > len(columns):
            headers = [record.headers() for record in records]
            named = [
                one and [{"key": key, "value": value} for key, value in one] for one in headers
            ]
            columns.append(pa.array(named, _HEADERS))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _gets_on(self) -> bool:
        """Move the offsets to the reached ends; return whether this passed offsets without a record."""
        passed = False
        while self._reached and not self._order.holds:
            (topic, number), end = self._reached.popitem()
            passed |= end > self._ends[topic][str(number)]
            self._ends[topic][str(number)] = max(end, self._ends[topic][str(number)])
        return passed

    def _is_behind(self) -> bool:
        """Return whether records that are held or known in Kafka are not passed on yet."""
        return self._order.holds or any(
            self._there[place] > at > self._no_more.get(place, -1)
            for place, at in self._starts().items()
        )

    def _starts(self) -> dict[Partition, int]:
        """Return the next offset of each partition."""
        return {(t, int(p)): at for t, parts in self._ends.items() for p, at in parts.items()}

    def _known_ends(self) -> dict[Partition, int]:
        """Return the known ends of partitions, without a request to a broker."""
        for one in self._partitions:
            _, high = self._consumer.get_watermark_offsets(one, cached=True)
            place = (one.topic, one.partition)
            self._there[place] = max(self._there[place], high)
        return self._there

    def _is_record(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.name() == "_PARTITION_EOF":
            place = (message.topic(), message.partition())
            self._reached[place] = self._no_more[place] = message.offset()
            return False
        if _may_pass(error):
            return False  # the client tries again by itself
        msg = (
            f"Kafka cannot be read from {message.topic()} partition {message.partition()} on "
            f"({error.str()}); with option failOnDataLoss=false records that are gone are passed over."
        )
        raise EngineError(msg)

    def offsets(self) -> str:
        return json.dumps(self._ends, separators=(",", ":"))

    def close(self) -> None:
        self._consumer.close()
