"""Writes to Kafka exactly once: each step is one transaction, with a note of the step in it.

Spark's own Kafka sink writes a step again after a crash, so readers see the step twice. Here the driver
writes the rows, from committed bytes: a step needs one transaction to be seen whole or not at all, and
a transaction belongs to one producer.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import ConfigError, EngineError
from headgate.core.input import regular_bytes
from headgate.spark.jvm.plans import is_at_hand
from headgate.spark.settings.kafka import KafkaTarget, confluent, kafka_target, no_broker
from headgate.spark.sinks.kafka_notes import NOTES, make_notes
from headgate.spark.sinks.kafka_writer import NO_TOPIC, EarlyWriter, KafkaRecord, KafkaWriter

_HEADERS = T.ArrayType(
    T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
)
_TEXT = (T.StringType, T.BinaryType)
_TAKEN = {"key": _TEXT, "value": _TEXT, "topic": (T.StringType,), "partition": (T.IntegerType,)}
"""The columns that Spark's Kafka sink reads, and their types."""

_LOOK_S = 10.0
_AT_ONCE = {"linger.ms": 0, "socket.nagle.disable": True}


_Part = tuple[int, Mapping[str, Sequence[Any]]]
"""A number of rows, and their values by column."""


class KafkaSink:
    """Writes each step into Kafka, so that a ``read_committed`` reader sees it once.

    `options`: ``topic`` and ``kafka.*`` of the writer, as Spark's own sink takes them.
    `newest_output`, `delivered`: return the number of the newest step that may have been delivered,
    and of the newest that was, -1 for none. Raises `ConfigError`: the client is not installed, or an
    option or a column is not allowed.
    """

    inside = False

    def __init__(
        self,
        options: Mapping[str, str],
        schema: T.StructType,
        checkpoint: Path,
        newest_output: Callable[[], int],
        delivered: Callable[[], int],
    ) -> None:
        self._target = kafka_target(options)
        self._columns = _columns(schema, self._target)
        self._checkpoint = checkpoint
        self._newest_output, self._delivered = newest_output, delivered
        self._writer: KafkaWriter | None = None
        self._early: EarlyWriter | None = None
        self.description = f"KafkaSink[{self._target.topic or 'by row'}]"

    def begin(self) -> None:
        """Check that the topic exists, and abort an open transaction of an earlier driver.

        Raises `ConfigError`: no broker answers, or it has no such topic; `CheckpointError`: Kafka
        has a step that the checkpoint lacks.
        """
        _look(self._target)
        if self._metadata.is_file():  # else this is the first start, and nothing was written
            # a step is committed before it is in Kafka, so a later step in Kafka means an old checkpoint;
            # unchecked, the next new step would be skipped as if Kafka had it
            writer = self._opened()
            writer.check_last(self._newest_output())
            self._say_nothing_is_there(writer.last, self._delivered())

    def _say_nothing_is_there(self, last: int | None, delivered: int) -> None:
        """Warn if Kafka has no note of a query that has delivered outputs.

        A note older than the last output is no sign of loss: a step without rows leaves no note.
        """
        if last is None and delivered >= 0:
            warnings.warn(
                f"Kafka at {self._target.servers} has nothing of what this query has put out so far, "
                f"{delivered + 1} output{'s' * (delivered > 0)}: they went elsewhere, had no rows, or "
                f'its topics (also "{NOTES}") were made anew; it goes on there with output '
                f"{delivered + 1}.",
                stacklevel=2,
            )

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the step, unless readers see it already."""
        self._write(batch, _parts(self.in_columns(frame)))

    def in_columns(self, frame: DataFrame) -> DataFrame:
        """Return a result with the columns of Kafka's records."""
        return frame.select(*self._columns)

    def write_table(self, batch: int, table: pa.Table) -> None:
        """Write the missing rows of all steps up to `batch`, which have the columns of records."""
        self._write(batch, [_part(table)])

    def has(self, batch: int) -> bool:
        """Return whether readers see a step or a later one."""
        last = self._opened().last
        return last is not None and batch <= last

    def write_early(self) -> None:
        """Write without transactions from now on: at least once, and readers see rows at once."""
        self._early = EarlyWriter(self._target)

    def begin_early(self, table: pa.Table) -> None:
        """Begin to write rows, in the columns of records, without a transaction."""
        assert self._early is not None
        self._early.begin(_records([_part(table)], self._target.topic))

    def settle_early(self) -> None:
        """Wait until the broker has all rows that `begin_early` began to write."""
        assert self._early is not None
        self._early.settle()

    @property
    def is_early(self) -> bool:
        """Return whether the sink writes without transactions."""
        return self._early is not None

    def send_early(self) -> None:
        """Send each record at once, and not in a batch with later records."""
        self._target = replace(self._target, client={**_AT_ONCE, **self._target.client})

    def _write(self, batch: int, parts: Sequence[_Part]) -> None:
        if not any(count for count, _ in parts):
            return
        if self._early is not None:
            self._early.write(_records(parts, self._target.topic))
        else:
            self._opened().write(batch, lambda: _records(parts, self._target.topic))

    @property
    def _metadata(self) -> Path:
        return self._checkpoint / "metadata"

    def _opened(self) -> KafkaWriter:
        if self._writer is None:
            # Spark's id of the query is the same for as long as the checkpoint exists
            job = json.loads(regular_bytes(self._metadata))["id"]
            self._writer = KafkaWriter(self._target, job)
            self._writer.open()
        return self._writer


def _columns(schema: T.StructType, target: KafkaTarget) -> list[Column]:
    """Return the columns of a record, as Spark casts them."""
    have = {field.name: field.dataType for field in schema}
    if "value" not in have:
        msg = (
            f'format "kafka" needs a column "value", as in Spark; the result has {", ".join(have)}: make '
            'one, as by .selectExpr("to_json(struct(*)) AS value").'
        )
        raise ConfigError(msg)
    if target.topic is None and "topic" not in have:
        msg = 'format "kafka" needs a topic; add .option("topic", ...), or a column "topic".'
        raise ConfigError(msg)
    for name, kinds in _TAKEN.items():
        if name in have and not isinstance(have[name], kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            msg = (
                f'column "{name}" is a {have[name].simpleString()}, and format "kafka" takes {wanted}; '
                "cast it."
            )
            raise ConfigError(msg)
    if "headers" in have and have["headers"].simpleString() != _HEADERS.simpleString():
        msg = (
            f'column "headers" is a {have["headers"].simpleString()}, and format "kafka" takes '
            f"{_HEADERS.simpleString()}, as in Spark; cast it."
        )
        raise ConfigError(msg)
    known = {"key": "binary", "value": "binary", "topic": "string", "partition": "int"}
    columns = [F.col(name).cast(kind).alias(name) for name, kind in known.items() if name in have]
    return [*columns, F.col("headers")] if "headers" in have else columns


def _parts(frame: DataFrame) -> list[_Part]:
    """Return the rows of a frame; runs a Spark job if the driver does not have the rows."""
    if is_at_hand(frame):
        rows = frame.collect()
        return [(len(rows), {name: [row[name] for row in rows] for name in frame.columns})]
    batches = frame.toArrow().to_batches()
    return [(b.num_rows, {n: b.column(n).to_pylist() for n in b.schema.names}) for b in batches]


def _part(table: pa.Table) -> _Part:
    return table.num_rows, {name: table[name].to_pylist() for name in table.schema.names}


def _records(parts: Sequence[_Part], topic: str | None) -> Iterator[KafkaRecord]:
    """Return a step's records.

    `parts`: the result of `_parts`.
    """
    nothing = [None]
    for count, of in parts:
        topics: Sequence[Any] = of["topic"] if topic is None else [topic] * count
        keys, partitions = of.get("key", nothing * count), of.get("partition", nothing * count)
        headers = of.get("headers", nothing * count)
        for to, key, value, heads, partition in zip(
            topics, keys, of["value"], headers, partitions, strict=True
        ):
            if to is None:
                msg = (
                    'a row of the result has no topic; give each one, or add .option("topic", ...).'
                )
                raise EngineError(msg)
            made = None if heads is None else [(head["key"], head["value"]) for head in heads]
            yield KafkaRecord(to, key, value, made, partition)


def _look(target: KafkaTarget) -> None:
    """Refuse a start if no broker answers, or if the topic is absent; create the topic of notes."""
    module = confluent()
    absent = no_broker(target.servers)
    if absent is not None:
        raise ConfigError(_silent(target, getattr(absent, "strerror", None) or str(absent)))
    client = module.Producer({**target.client, "log_level": 0})
    try:
        limit_s = min(_LOOK_S, target.patience_s)
        metadata = client.list_topics(target.topic, timeout=limit_s)
        notes = client.list_topics(timeout=limit_s)
    except module.KafkaException as error:
        text = str(error.args[0].str()).strip().rstrip(".")
        raise ConfigError(_silent(target, text)) from error
    wrong = metadata.topics[target.topic].error if target.topic is not None else None
    if wrong is not None and wrong.name() in NO_TOPIC:
        msg = (
            f'Kafka at {target.servers} has no topic "{target.topic}"; make it, or correct option '
            "topic."
        )
        raise ConfigError(msg)
    make_notes(module, target, notes.topics)


def _silent(target: KafkaTarget, why: str) -> str:
    return (
        f"Kafka at {target.servers} does not answer ({why}); start it, or correct "
        "kafka.bootstrap.servers."
    )
