"""What the exactly-once writer does when its client says this and that; the client is made up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.spark.settings import kafka as settings
from headgate.spark.settings.kafka import KafkaTarget, kafka_target
from headgate.spark.sinks import kafka_notes, kafka_sink, kafka_writer
from headgate.spark.sinks.kafka_notes import NOTES
from headgate.spark.sinks.kafka_writer import EarlyWriter, KafkaRecord, KafkaWriter

TARGET = KafkaTarget("here:9092", "out", {"bootstrap.servers": "here:9092"}, 60.0, 0.5)


class FakeError:
    def __init__(self, name: str, *, retriable: bool = False) -> None:
        self._name, self._retriable = name, retriable

    def name(self) -> str:
        return self._name

    def retriable(self) -> bool:
        return self._retriable

    def str(self) -> str:
        return f"error {self._name}."


class FakeException(Exception):
    pass


class FakeKafka:
    """A broker with one topic that readers see, and transactions that may fail."""

    KafkaError, KafkaException = FakeError, FakeException

    def __init__(self) -> None:
        self.seen: list[bytes | None] = []
        self.note: int | None = None
        self.open: list[bytes | None] | None = None
        self.noting: int | None = None
        self.opened = 0
        self.wrong: dict[str, list[Any]] = {}
        self.commits_first = False
        self.committed = 0
        self.says: Any = None
        self.topics = {"out": SimpleNamespace(error=None)}

    def fails(self, call: str, name: str, *, retriable: bool = False) -> None:
        error = FakeException(FakeError(name, retriable=retriable))
        self.wrong.setdefault(call, []).append(error)

    def _may_fail(self, call: str) -> None:
        if self.wrong.get(call):
            raise self.wrong[call].pop(0)

    def Producer(self, settings: dict[str, Any], **_: Any) -> FakeKafka:
        if self.says is not None:
            settings["error_cb"](self.says)
        return self

    def purge(self, blocking: bool) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> FakeKafka:
        self._may_fail("list")
        return self

    def init_transactions(self, timeout: float) -> None:
        self._may_fail("init")
        self.opened += 1
        self.open = None

    def begin_transaction(self) -> None:
        self.open = []

    def produce(self, topic: str, value: bytes | None, key: bytes | None, **_: Any) -> None:
        self._may_fail("produce")
        assert self.open is not None
        if topic == NOTES:
            assert value is not None
            self.noting = json.loads(value)["step"]
        else:
            self.open.append(value)

    def poll(self, timeout: float) -> None:
        pass

    def flush(self, timeout: float) -> int:
        return 0

    def commit_transaction(self, timeout: float) -> None:
        if not self.commits_first:
            self._may_fail("commit")
        assert self.open is not None
        self.seen += self.open
        self.note = self.note if self.noting is None else self.noting
        self.open = self.noting = None
        self._may_fail("commit")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka()
    monkeypatch.setattr(kafka_writer, "confluent", lambda: made)
    monkeypatch.setattr(kafka_writer, "last_note", lambda *_: made.note)
    return made


def rows(*values: bytes) -> Any:
    def made() -> Iterator[KafkaRecord]:
        return (KafkaRecord("out", None, value, None, None) for value in values)

    return made


def test_a_step_that_was_written_is_skipped_also_by_the_next_driver(kafka: FakeKafka) -> None:
    first = KafkaWriter(TARGET, "job")
    assert first.open() is None
    assert first.write(0, rows(b"a"))
    assert not first.write(0, rows(b"a"))
    second = KafkaWriter(TARGET, "job")
    assert second.open() == 0
    assert not second.write(0, rows(b"a"))
    assert second.write(1, rows(b"b"))
    assert kafka.seen == [b"a", b"b"]


def test_records_and_note_are_of_one_transaction(kafka: FakeKafka) -> None:
    kafka.fails("produce", "MSG_SIZE_TOO_LARGE")
    writer = KafkaWriter(TARGET, "job")
    with pytest.raises(EngineError, match="could not write step 0"):
        writer.write(0, rows(b"a"))
    assert (kafka.seen, kafka.note) == ([], None)
    assert writer.write(0, rows(b"a"))
    assert (kafka.seen, kafka.note) == ([b"a"], 0)


def test_a_transaction_that_failed_is_begun_anew(kafka: FakeKafka) -> None:
    kafka.fails("commit", "REQUEST_TIMED_OUT")
    assert KafkaWriter(TARGET, "job").write(0, rows(b"a", b"b"))
    assert kafka.seen == [b"a", b"b"]
    assert kafka.opened == 2


def test_a_commit_whose_answer_was_lost_is_not_done_twice(kafka: FakeKafka) -> None:
    kafka.commits_first = True
    kafka.fails("commit", "REQUEST_TIMED_OUT")
    assert not KafkaWriter(TARGET, "job").write(0, rows(b"a"))
    assert kafka.seen == [b"a"]


def test_what_may_be_called_again_is(kafka: FakeKafka) -> None:
    kafka.fails("commit", "_TIMED_OUT", retriable=True)
    assert KafkaWriter(TARGET, "job").write(0, rows(b"a"))
    assert kafka.opened == 1


def test_a_driver_that_was_fenced_does_not_fence_back(kafka: FakeKafka) -> None:
    kafka.fails("commit", "_FENCED")
    with pytest.raises(
        EngineError, match="another driver writes to Kafka at here:9092 for this job"
    ):
        KafkaWriter(TARGET, "job").write(0, rows(b"a"))
    assert kafka.opened == 1
    assert kafka.seen == []


def test_a_checkpoint_that_was_put_back_is_refused(kafka: FakeKafka) -> None:
    kafka.note = 5
    writer = KafkaWriter(TARGET, "job")
    assert not writer.write(5, rows(b"a"))
    with pytest.raises(
        CheckpointError,
        match="has step 5 of this job, and the checkpoint's newest is 3: it was put",
    ):
        writer.write(3, rows(b"a"))


def test_a_checkpoint_that_was_put_back_by_one_step_is_refused_at_the_start(
    kafka: FakeKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_sink, "_look", lambda _: None)
    schema = T.StructType([T.StructField("value", T.StringType())])
    monkeypatch.setattr(kafka_sink, "_columns", lambda *_: [])
    (tmp_path / "metadata").write_text('{"id": "a"}')

    def begins() -> None:
        newest = lambda: kafka.committed  # noqa: E731
        of = {**SERVERS, "topic": "out"}
        kafka_sink.KafkaSink(of, schema, tmp_path, newest, lambda: kafka.committed - 1).begin()

    kafka.note = kafka.committed = 10
    begins()  # delivered, or to be delivered again
    kafka.note = 9
    begins()  # to be delivered
    kafka.note = 11
    with pytest.raises(CheckpointError, match="has step 11 of this job, and the checkpoint's newe"):
        begins()
    kafka.note = None  # as of a cluster that was made anew
    with pytest.warns(
        UserWarning, match="has nothing of what this query has put out so far, 10 out"
    ):
        begins()
    kafka.committed = 0
    begins()


def test_whoever_reads_notes_prints_nothing_of_settings_for_writing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    client = pytest.importorskip("confluent_kafka")
    target = replace(TARGET, client={**TARGET.client, "linger.ms": 0, "partitioner": "murmur2"})
    client.Consumer(kafka_notes._settings(target) | {"group.id": "a"}).close()
    assert capfd.readouterr().err == ""


def test_a_step_without_a_note_before_it_is_written(kafka: FakeKafka) -> None:
    # a job that has written at least once until now
    assert KafkaWriter(TARGET, "job").write(41, rows(b"a"))


def test_a_time_limit_that_the_broker_does_not_allow_is_named(kafka: FakeKafka) -> None:
    kafka.fails("init", "INVALID_TRANSACTION_TIMEOUT")
    with pytest.raises(
        EngineError, match=r"does not allow kafka\.transaction\.timeout\.ms=60000; lower"
    ):
        KafkaWriter(TARGET, "job").open()


def test_a_step_that_takes_too_long_says_what_of(kafka: FakeKafka) -> None:
    at_once = replace(TARGET, transaction_s=0.0)

    def said() -> str:
        for _ in range(2):
            kafka.fails("commit", "_TIMED_OUT")
        with pytest.raises(EngineError) as error:
            KafkaWriter(at_once, "job").write(0, rows(b"a"))
        assert kafka.seen == []
        kafka.wrong.clear()
        return str(error.value)

    assert "did not get all of a step within kafka.transaction.timeout.ms=0, twice (" in said()
    for _ in range(3):
        kafka.fails("list", "_TRANSPORT")  # not because the step is large
    assert "could not write step 0 within 0.5 s (error _TIMED_OUT); see that" in said()
    kafka.says = FakeError("_ALL_BROKERS_DOWN")
    for _ in range(3):
        kafka.fails("list", "_TRANSPORT")
    assert "0.5 s (error _TIMED_OUT; last: error _ALL_BROKERS_DOWN.); see that" in said()
    kafka.says = None
    kafka.topics["out"].error = FakeError("UNKNOWN_TOPIC_OR_PART")
    assert "no such topic or partition as was to be written" in said()
    assert kafka.opened == 7, "three times twice, and once where the topic is missing"


def test_a_step_is_written_again_behind_a_standstill(kafka: FakeKafka) -> None:
    kafka.fails("commit", "_TIMED_OUT")
    writer = KafkaWriter(replace(TARGET, transaction_s=0.0), "job")
    assert writer.write(3, rows(b"a"))
    assert (kafka.seen, kafka.opened) == ([b"a"], 2)


def test_a_standstill_in_which_another_driver_went_on_ends_the_writer(kafka: FakeKafka) -> None:
    writer = KafkaWriter(replace(TARGET, transaction_s=0.0), "job")
    writer.open()
    kafka.fails("commit", "_TIMED_OUT")
    kafka.note = 5
    with pytest.raises(EngineError, match=r"another driver writes .* \(step 5 is written\)"):
        writer.write(3, rows(b"a"))
    assert (kafka.seen, kafka.opened) == ([], 1), "the other driver can still write"


class Reader:
    """Reads a topic of notes that has one note of the job."""

    def __init__(self, value: bytes | None) -> None:
        note = SimpleNamespace(error=lambda: None, key=lambda: b"job", value=lambda: value)
        at_end = SimpleNamespace(name=lambda: "_PARTITION_EOF")
        self.messages = [note, SimpleNamespace(error=lambda: at_end, offset=lambda: 1)]

    def assign(self, partitions: Any) -> None:
        """Take no note of it."""

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        return self.messages


CLIENT = SimpleNamespace(TopicPartition=lambda *at: at, OFFSET_BEGINNING=0)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"step": "1"}',
        b'{"step": 1e999}',
        b'{"step": 1.5}',
        b"[" * 100_000,
    ],
)
def test_a_note_that_is_no_step_is_told_in_one_sentence(value: bytes) -> None:
    with pytest.raises(EngineError, match='"headgate-steps" has a note of job job that is no step'):
        kafka_notes._read(CLIENT, Reader(value), "job", 1, time.monotonic() + 60)


def test_a_note_that_was_deleted_is_none() -> None:
    assert kafka_notes._read(CLIENT, Reader(None), "job", 1, time.monotonic() + 60) is None
    found = kafka_notes._read(CLIENT, Reader(kafka_notes.note(7)), "job", 1, time.monotonic() + 60)
    assert found == 7


# -- options --------------------------------------------------------------------------------------

SERVERS = {"kafka.bootstrap.servers": "here:9092"}


def test_options_are_translated() -> None:
    found = kafka_target(
        {
            "KAFKA.bootstrap.servers": "here:9092",
            "Topic": "out",
            "kafka.max.request.size": "2000000",
            "kafka.buffer.memory": "33554432",
            "kafka.linger.ms": "20",
            "kafka.acks": "all",
            "kafka.max.block.ms": "5000",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="me" password="a=b;c";',
        }
    )
    assert (found.servers, found.topic) == ("here:9092", "out")
    assert "a=b;c" not in repr(found)
    assert (found.transaction_s, found.patience_s) == (60.0, 5.0)
    assert dict(found.client) == {
        "bootstrap.servers": "here:9092",
        "message.max.bytes": "2000000",
        "queue.buffering.max.kbytes": 32768,
        "linger.ms": "20",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "a=b;c",
        "partitioner": "murmur2_random",
        "transaction.timeout.ms": 60_000,
    }


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "kafka.interceptor.classes",
            "a.B",
            "option kafka.interceptor.classes is refused by librdkafka",
        ),
        ("kafka.linger.ms", "soon", "Invalid value"),
        (
            "kafka.transactional.id",
            "mine",
            "option kafka.transactional.id=mine cannot be set",
        ),
        ("kafka.acks", "1", "option kafka.acks=1 cannot be set"),
        ("kafka.transaction.timeout.ms", "1m", "timeout.ms=1m is no number of milliseconds"),
        (
            "kafka.ssl.truststore.location",
            "/a.jks",
            "option kafka.ssl.truststore.location is refused",
        ),
        (
            "kafka.sasl.jaas.config",
            "Krb5LoginModule required;",
            "has a login that librdkafka does not support",
        ),
    ],
)
def test_an_option_without_a_counterpart_is_refused_by_name(
    name: str, value: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        kafka_target({**SERVERS, name: value})
    assert says in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_broker_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r'add \.option\("kafka\.bootstrap\.servers"'):
        kafka_target({"topic": "out"})


def test_without_the_client_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(settings.importlib, "import_module", gone)
    with pytest.raises(ConfigError, match=r'install "headgate\[kafka\]", or add'):
        kafka_target(SERVERS)


def test_a_record_that_cannot_be_written_early_is_one_sentence(kafka: FakeKafka) -> None:
    writer = EarlyWriter(TARGET)
    kafka.open = []
    kafka.fails("produce", "MSG_SIZE_TOO_LARGE")
    with pytest.raises(EngineError, match=r"has not got all records.*\(error MSG_SIZE_TOO_LARGE\)"):
        writer.write(rows(b"a")())
    writer.write(rows(b"b")())
    assert kafka.open == [b"b"]


def test_a_reader_takes_the_options_that_are_kafkas_and_not_sparks() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "x", "kafka.fetch.min.bytes": "5"}
    assert settings.consumer_settings(given) == {"bootstrap.servers": "a:1", "fetch.min.bytes": "5"}
    with pytest.raises(ConfigError, match="is refused by librdkafka, which reads in real time"):
        settings.consumer_settings({"kafka.zzz": "1"})


# -- columns of records, on Spark ----------------------------------------------------------------------


def test_a_result_is_cast_to_what_a_record_has(spark: SparkSession, tmp_path: Path) -> None:
    header = "array<struct<key: string, value: binary>>"
    rows = spark.createDataFrame(
        [("v", "k", 3, "out", [("a", b"1")], "no part of a record")],
        f"value string, key string, partition int, topic string, headers {header}, more string",
    )

    def columns(frame: DataFrame) -> dict[str, str]:
        sink = kafka_sink.KafkaSink(
            {**SERVERS, "topic": "out"}, frame.schema, tmp_path, lambda: -1, lambda: -1
        )
        made = sink.in_columns(frame)
        return dict(made.dtypes)

    whole = {"key": "binary", "value": "binary", "topic": "string", "partition": "int"}
    assert columns(rows) == whole | {"headers": header.replace(": ", ":").replace(", ", ",")}
    assert columns(rows.select("value")) == {"value": "binary"}
    assert columns(rows.drop("headers", "key")) == {
        name: kind for name, kind in whole.items() if name != "key"
    }


def test_a_call_has_the_time_that_is_left_and_no_more_than_ten_seconds(kafka: FakeKafka) -> None:
    given: list[float] = []
    writer, now_s = KafkaWriter(TARGET, "job"), time.monotonic()
    for left_s in (60.0, 5.0, -1.0):
        writer._call(given.append, now_s + left_s)
    assert given[0] == 10.0
    assert 4.0 < given[1] <= 5.0
    assert given[2] == 0.1
