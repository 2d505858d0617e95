"""Tests how a record is given to Kafka's client whose queue is full, and what is kept of its errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import EngineError
from headgate.spark.settings.kafka import KafkaTarget
from headgate.spark.sinks import kafka_writer
from headgate.spark.sinks.kafka_writer import EarlyWriter, KafkaRecord

TARGET = KafkaTarget("h:9", "out", {"bootstrap.servers": "h:9", "linger.ms": 5}, 60.0, 30.0)
RECORDS = [
    KafkaRecord("out", b"k", b"1", [("h", b"x"), ("i", None)], 3),
    KafkaRecord("out", None, b"2", None, None),
]


class Missing(Exception):
    """An error of the client's."""


def test_a_record_is_given_to_the_client_once_its_queue_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch)
    full = [BufferError(), BufferError()]

    def produce(*given: Any, **named: Any) -> None:
        if full:
            raise full.pop()
        calls.did.append((*given, named))

    producer = SimpleNamespace(produce=produce, poll=calls.one("poll"))
    now_s = [10.0]
    monkeypatch.setattr(kafka_writer, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    client = SimpleNamespace(KafkaException=Missing, KafkaError=lambda code: code)
    for record in RECORDS:
        kafka_writer._produce(client, producer, record, 10.0)
    assert calls.did == [
        ("poll", 0.05), ("poll", 0.05),
        ("out", b"1", b"k", {"headers": [("h", b"x"), ("i", None)], "partition": 3}),
        ("out", b"2", None, {}),
    ]  # fmt: skip
    full.extend([BufferError(), BufferError()])
    now_s[0] = 10.5
    with pytest.raises(Missing) as late:
        kafka_writer._produce(client, producer, RECORDS[0], 10.0)
    assert late.value.args == (-185,)


def test_a_writer_without_transactions_keeps_its_newest_error_until_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch)
    producer = calls.several(flush=0, produce=None)
    client = SimpleNamespace(Producer=calls.one("Producer", producer), KafkaException=Missing)
    monkeypatch.setattr(kafka_writer, "confluent", lambda: client)
    writer = EarlyWriter(TARGET)
    [(_, settings, logger)] = calls.did
    delivered = settings.pop("on_delivery")
    assert settings == {
        "bootstrap.servers": "h:9", "linger.ms": 5, "enable.idempotence": True,
        "message.timeout.ms": 30_000,
    }  # fmt: skip
    assert logger["logger"].name == "headgate.kafka"
    writer.write(RECORDS)
    assert calls.names()[1:] == ["produce", "produce", "flush"]
    assert calls.did[-1] == ("flush", 30.0)
    for why in (" no topic. ", "later"):
        delivered(SimpleNamespace(str=lambda why=why: why), "a message")
        delivered(None, "another")
    end = r"; see that it runs and has the topic, and start the query again\.$"
    with pytest.raises(
        EngineError, match=rf"h:9 has not got all records within 30 s \(later\){end}"
    ) as failed:
        writer.settle()
    assert failed.value.transient
    writer.settle()
    producer.flush = calls.one("flush", 2)
    with pytest.raises(EngineError, match=rf"all records within 30 s{end}"):
        writer.settle()
    producer.produce = calls.one("produce", Missing(SimpleNamespace(str=lambda: "it is full.")))
    producer.flush = calls.one("flush", 0)
    writer.begin(RECORDS)
    with pytest.raises(EngineError, match=rf"within 30 s \(it is full\){end}"):
        writer.settle()
