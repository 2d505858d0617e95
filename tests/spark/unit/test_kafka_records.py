"""Tests which records a result becomes in Kafka, and whom the sink asks at first; without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from noted_calls import Calls
from pyspark.sql import types as T
from said_columns import F, Frame

from headgate.core.errors import ConfigError, EngineError
from headgate.spark.settings.kafka import KafkaTarget
from headgate.spark.sinks import kafka_sink
from headgate.spark.sinks.kafka_notes import NOTES
from headgate.spark.sinks.kafka_sink import KafkaSink
from headgate.spark.sinks.kafka_writer import KafkaRecord

TARGET = KafkaTarget("h:9", "out", {"bootstrap.servers": "h:9", "linger.ms": 5}, 60.0, 30.0)
OPTIONS = {"topic": "out", "kafka.bootstrap.servers": "h:9"}
RECORDS = [
    KafkaRecord("out", b"k", b"1", [("h", b"x"), ("i", None)], 3),
    KafkaRecord("out", None, b"2", None, None),
]
COLUMNS: dict[str, Any] = {
    "value": [b"1", b"2"], "key": [b"k", None], "partition": [3, None],
    "headers": [[{"key": "h", "value": b"x"}, {"key": "i", "value": None}], None],
}  # fmt: skip


def test_a_row_is_a_record_with_the_columns_that_it_has() -> None:
    assert list(kafka_sink._records([(2, COLUMNS)], "out")) == RECORDS
    plain: dict[str, Any] = {"value": [b"1", b"2"]}
    none = [KafkaRecord("out", None, value, None, None) for value in (b"1", b"2")]
    assert list(kafka_sink._records([(2, plain), (0, {"value": []})], "out")) == none
    by_row: dict[str, Any] = {"value": [b"1"], "topic": ["own"]}
    assert list(kafka_sink._records([(1, by_row)], None)) == [
        KafkaRecord("own", None, b"1", None, None)
    ]
    assert next(kafka_sink._records([(1, by_row)], "out")).topic == "out"
    with pytest.raises(
        EngineError, match=r"a row of the result has no topic; give each one, or add"
    ):
        list(kafka_sink._records([(1, by_row | {"topic": [None]})], None))


def test_rows_come_from_the_driver_or_from_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"value": pa.array([b"1", b"2"])})
    row = {"value": b"0"}
    frame: Any = SimpleNamespace(
        collect=lambda: [row, row, row], columns=["value"], toArrow=lambda: table
    )
    monkeypatch.setattr(kafka_sink, "is_at_hand", lambda frame: True)
    assert kafka_sink._parts(frame) == [(3, {"value": [b"0"] * 3})]
    monkeypatch.setattr(kafka_sink, "is_at_hand", lambda frame: False)
    assert kafka_sink._parts(frame) == [(2, {"value": [b"1", b"2"]})]
    assert kafka_sink._part(table) == (2, {"value": [b"1", b"2"]})


def test_columns_are_cast_as_spark_s_sink_casts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_sink, "F", F)
    said = {
        "key": "key.cast(binary).alias(key)", "value": "value.cast(binary).alias(value)",
        "topic": "topic.cast(string).alias(topic)",
        "partition": "partition.cast(int).alias(partition)",
    }  # fmt: skip
    text, number = T.StringType(), T.IntegerType()
    schema = T.StructType().add("value", text).add("other", number).add("partition", number)
    whole = schema.add("key", T.BinaryType()).add("topic", text).add("headers", kafka_sink._HEADERS)
    assert list(map(str, kafka_sink._columns(whole, TARGET))) == [*said.values(), "headers"]
    few = T.StructType().add("value", text)
    assert list(map(str, kafka_sink._columns(few, TARGET))) == [said["value"]]
    nowhere = replace(TARGET, topic=None)
    refused: list[tuple[T.StructType, KafkaTarget, str]] = [
        (T.StructType().add("v", text), TARGET, r'needs a column "value", as in Spark; the result has v'),
        (few, nowhere, r'^format "kafka" needs a topic; add \.option\("topic", \.\.\.\), or a col'),
        (T.StructType().add("value", number), TARGET, r'^column "value" is a int, .* string or binary;'),
        (
            T.StructType().add("value", text).add("topic", T.BinaryType()), TARGET,
            r'^column "topic" is a binary, and format "kafka" takes string; cast it\.$',
        ),
        (
            T.StructType().add("value", text).add("partition", T.LongType()), TARGET,
            r'^column "partition" is a bigint, and format "kafka" takes integer; cast it\.$',
        ),
        (
            T.StructType().add("value", text).add("headers", text), TARGET,
            r'^column "headers" is a string, and .* array<struct<key:string,value:binary>>, as in',
        ),
    ]  # fmt: skip
    for wrong, target, says in refused:
        with pytest.raises(ConfigError, match=says):
            kafka_sink._columns(wrong, target)
    kafka_sink._columns(T.StructType().add("value", text).add("topic", text), nowhere)


# --- The sink -----------------------------------------------------------------------------------------


class Sink:
    """A sink whose writers note their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
        self.calls = Calls(monkeypatch)
        self.below = below
        (below / "metadata").write_text('{"id": "the job"}')
        self.writer = self.calls.several(check_last=None, open=None)
        self.writer.last, self.writer.write = 4, self._write
        self.early = self.calls.several(settle=None)
        self.early.write = self.early.begin = lambda records: self.calls.did.append(list(records))
        monkeypatch.setattr(kafka_sink, "F", F)
        monkeypatch.setattr(kafka_sink, "KafkaWriter", self.calls.one("KafkaWriter", self.writer))
        monkeypatch.setattr(kafka_sink, "EarlyWriter", self.calls.one("EarlyWriter", self.early))
        monkeypatch.setattr(kafka_sink, "kafka_target", lambda options: TARGET)
        self.calls.put(kafka_sink, _look=None)
        schema = T.StructType().add("value", T.StringType())
        self.sink = KafkaSink(OPTIONS, schema, below, lambda: 4, lambda: 3)

    def _write(self, step: int, records: Any) -> None:
        self.calls.did.append((step, list(records()), list(records())))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sink:
    return Sink(monkeypatch, tmp_path)


def test_a_step_with_rows_is_a_transaction_of_the_query(made: Sink) -> None:
    assert made.sink.description == "KafkaSink[out]"
    made.sink.write_table(5, pa.table({"value": pa.array([], pa.binary())}))
    assert made.calls.did == []
    made.sink.write_table(5, pa.table({"value": pa.array([b"1"])}))
    made.sink.write_table(6, pa.table({"value": pa.array([b"2"])}))
    one, two = ([KafkaRecord("out", None, value, None, None)] for value in (b"1", b"2"))
    assert made.calls.did == [
        ("KafkaWriter", TARGET, "the job"), ("open",), (5, one, one), (6, two, two),
    ]  # fmt: skip
    assert [made.sink.has(batch) for batch in (3, 4, 5)] == [True, True, False]
    made.writer.last = None
    assert not made.sink.has(0)


def test_a_result_is_written_in_the_columns_of_records(
    made: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.calls.put(kafka_sink, _parts=[(0, {"value": []}), (1, {"value": [b"1"]})])
    frame: Any = Frame("frame", value=None)
    made.sink.write(5, frame)
    (_, columns), *_, (step, records, _) = made.calls.did
    assert str(columns) == "frame.select(value.cast(binary).alias(value))"
    assert (step, [record.value for record in records]) == (5, [b"1"])


def test_rows_that_are_written_early_have_no_transaction(made: Sink) -> None:
    early = [made.sink.is_early]
    made.sink.send_early()
    made.sink.write_early()
    assert [*early, made.sink.is_early] == [False, True]
    table = pa.table({"value": pa.array([b"1"])})
    made.sink.write_table(5, table)
    made.sink.begin_early(table)
    made.sink.settle_early()
    one = [KafkaRecord("out", None, b"1", None, None)]
    at_once = {"bootstrap.servers": "h:9", "linger.ms": 5, "socket.nagle.disable": True}
    assert made.calls.did == [
        ("EarlyWriter", replace(TARGET, client=at_once)),
        one,
        one,
        ("settle",),
    ]


def test_a_sink_begins_with_what_kafka_has_unless_nothing_was_written(
    made: Sink, recwarn: pytest.WarningsRecorder
) -> None:
    made.sink.begin()
    assert made.calls.did == [
        ("_look", TARGET), ("KafkaWriter", TARGET, "the job"), ("open",), ("check_last", 4),
    ]  # fmt: skip
    assert not recwarn
    made.writer.last = None
    with pytest.warns(UserWarning, match=r"so far, 4 outputs: .* it goes on there with output 4\."):
        made.sink.begin()
    made.sink._delivered = lambda: 0
    with pytest.warns(UserWarning, match=r"so far, 1 output: .* with output 1\."):
        made.sink.begin()
    made.sink._delivered = lambda: -1
    made.sink.begin()
    made.calls.did.clear()
    (made.below / "metadata").unlink()
    made.sink.begin()
    assert made.calls.did == [("_look", TARGET)]


class Missing(Exception):
    """An error of the client's."""


@pytest.mark.parametrize("patience_s", [30.0, 4.0])
def test_a_broker_is_asked_for_the_topic_and_for_that_of_notes(
    monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    calls, target = Calls(monkeypatch), replace(TARGET, patience_s=patience_s)
    topic = SimpleNamespace(error=None)
    producer = calls.several(list_topics=SimpleNamespace(topics={"out": topic, NOTES: topic}))
    client = SimpleNamespace(Producer=calls.one("Producer", producer), KafkaException=Missing)
    calls.put(kafka_sink, confluent=client, no_broker=None, make_notes=None)
    kafka_sink._look(target)
    limit = {"timeout": min(10.0, patience_s)}
    assert calls.did == [
        ("confluent",), ("no_broker", "h:9"), ("Producer", {**target.client, "log_level": 0}),
        ("list_topics", "out", limit), ("list_topics", limit),
        ("make_notes", client, target, {"out": topic, NOTES: topic}),
    ]  # fmt: skip
    topic.error = SimpleNamespace(name=lambda: "LEADER_NOT_AVAILABLE")
    kafka_sink._look(target)
    topic.error = SimpleNamespace(name=lambda: "UNKNOWN_TOPIC_OR_PART")
    kafka_sink._look(replace(target, topic=None))
    with pytest.raises(
        ConfigError, match=r'^Kafka at h:9 has no topic "out"; make it, or correct option topic'
    ):
        kafka_sink._look(target)
    end = r"\); start it, or correct kafka\.bootstrap\.servers\.$"
    said = Missing(SimpleNamespace(str=lambda: " it sleeps. "))
    producer.list_topics = calls.one("list_topics", said)
    with pytest.raises(ConfigError, match=rf"^Kafka at h:9 does not answer \(it sleeps{end}"):
        kafka_sink._look(target)
    for absent, why in ((OSError(2, "no such name"), "no such name"), (ValueError("odd"), "odd")):
        monkeypatch.setattr(kafka_sink, "no_broker", lambda servers, absent=absent: absent)
        with pytest.raises(ConfigError, match=rf"^Kafka at h:9 does not answer \({why}{end}"):
            kafka_sink._look(target)
