"""Reads the newest step of a job in Kafka from the notes in a compacted topic that all jobs share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from headgate.core.errors import ConfigError, EngineError
from headgate.core.input import read_json, shown
from headgate.spark.settings.kafka import KafkaTarget

NOTES = "headgate-steps"
"""The topic of notes, with one partition; the transaction of a step writes the step's note."""

_COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.1",
    "segment.bytes": str(2**20),
    "segment.ms": "3600000",
}
"""Small segments, which Kafka compacts soon, so that a start reads little."""

_CALL_S = 10.0
_POLL_S = 0.05
_AT_ONCE = 1_000
_OF_PRODUCERS = ("transaction.timeout.ms", "partitioner")


def note(step: int) -> bytes:
    """Return the value of a step's note."""
    return json.dumps({"step": step}).encode()


def make_notes(client: Any, target: KafkaTarget, topics: Any) -> None:
    """Create the topic of notes, unless it is among `topics`.

    `client` (module): ``confluent_kafka``. `topics`: topics in the cluster's metadata. Raises
    `EngineError`: the broker does not create the topic.
    """
    if NOTES in topics and topics[NOTES].error is None:
        return
    admin = client.admin.AdminClient(_settings(target))
    new = client.admin.NewTopic(NOTES, 1, config=_COMPACTED)
    try:
        admin.create_topics([new], operation_timeout=_CALL_S)[NOTES].result(2 * _CALL_S)
    except client.KafkaException as error:
        if error.args[0].name() == "TOPIC_ALREADY_EXISTS":
            return
        why = str(error.args[0].str()).strip().rstrip(".")
        msg = (
            f'Kafka at {target.servers} has no topic "{NOTES}", in which steps are noted, and none could '
            f"be made ({why}); make it, with one partition and cleanup.policy=compact."
        )
        raise EngineError(msg) from error


def last_note(client: Any, target: KafkaTarget, job: str, until_s: float) -> int | None:
    """Return the last step of a job that readers see; None if the job has no note.

    Call it when no transaction of the job is open. An open transaction of *another* job hides later
    notes, so this waits for the end of that transaction, which has a timeout.

    `client` (module): ``confluent_kafka``. `job`: the key of the job's notes. `until_s`: time limit, on
    the monotonic clock. Raises `EngineError`: the topic cannot be read to its end in time.
    """
    settings = _settings(target) | {"group.id": job, "enable.auto.commit": False}

    def end_of(reader: Any) -> int:
        partition = client.TopicPartition(NOTES, 0)
        return int(reader.get_watermark_offsets(partition, timeout=_CALL_S)[1])

    # the end includes open transactions; the client's default would be read_committed
    end = _asked(client, settings | {"isolation.level": "read_uncommitted"}, until_s, end_of)
    if not end:
        return None
    committed = settings | {"isolation.level": "read_committed", "enable.partition.eof": True}
    return _asked(
        client, committed, until_s, lambda reader: _read(client, reader, job, end, until_s)
    )


def _settings(target: KafkaTarget) -> dict[str, Any]:
    settings = {k: v for k, v in target.client.items() if k not in _OF_PRODUCERS}
    # without a log, since the client warns on stderr about settings of producers; errors are raised
    return settings | {"log_level": 0}


def _asked(
    client: Any, settings: dict[str, Any], until_s: float, ask: Callable[[Any], int | None]
) -> int | None:
    """Return the result of `ask` for a reader; ask again while the broker fails."""
    while True:
        reader = client.Consumer(settings)
        try:
            return ask(reader)
        except client.KafkaException:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_POLL_S)
        finally:
            reader.close()


def _step(note: bytes | None, job: str) -> int | None:
    """Return the step of a note; None for a deleted note."""
    if note is None:
        return None
    try:
        step = read_json(note, "a note")["step"]
    except (ConfigError, TypeError, KeyError):
        step = None
    if type(step) is not int:
        msg = (
            f'topic "{NOTES}" has a note of job {job} that is no step ({shown(repr(note), 60)}), which '
            "another program has written; begin with a new checkpointLocation."
        )
        raise EngineError(msg)
    return step


def _read(client: Any, reader: Any, job: str, end: int, until_s: float) -> int | None:
    step: int | None = None
    reader.assign([client.TopicPartition(NOTES, 0, client.OFFSET_BEGINNING)])
    while True:
        for message in reader.consume(_AT_ONCE, _POLL_S):
            error = message.error()
            if error is None:
                if message.key() == job.encode():
                    step = _step(message.value(), job)
            elif error.name() != "_PARTITION_EOF":
                raise client.KafkaException(error)
            elif message.offset() >= end:
                return step
        if time.monotonic() >= until_s:
            msg = (
                f'topic "{NOTES}" cannot be read to its end, since another job\'s transaction is open; '
                "start the query again."
            )
            raise EngineError(msg, transient=True)
