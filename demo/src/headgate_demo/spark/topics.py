"""Makes, fills, deletes and reads topics of a Kafka broker, for demonstrations and tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headgate.core.errors import EngineError
from headgate.spark.settings.kafka import confluent

_SHORT_S = 1.0
_CALL_S = 30.0
_QUIET_S = 0.2


class TopicRecord(NamedTuple):
    """Holds a record as a consumer reads it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None
    at_ms: int


def answers(servers: str) -> bool:
    """Return whether a broker answers."""
    module = confluent()
    client = module.admin.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    try:
        return bool(client.list_topics(timeout=_SHORT_S).brokers)
    except module.KafkaException:
        return False


def make_topic(servers: str, name: str, partitions: int = 1, **settings: str) -> None:
    """Make a topic, and wait until the broker lists it."""
    module = confluent()
    client = module.admin.AdminClient({"bootstrap.servers": servers})
    new = module.admin.NewTopic(name, partitions, 1, config=settings)
    client.create_topics([new])[name].result(_CALL_S)
    _wait(lambda: _partitions(client, name) == partitions, f'topic "{name}" was not made')


def has_topic(servers: str, name: str) -> bool:
    """Return whether a topic exists."""
    client = confluent().admin.AdminClient({"bootstrap.servers": servers})
    return _partitions(client, name) > 0


def delete_topic(servers: str, name: str) -> None:
    """Delete a topic, and wait until it is gone."""
    client = confluent().admin.AdminClient({"bootstrap.servers": servers})
    client.delete_topics([name])[name].result(_CALL_S)
    _wait(lambda: _partitions(client, name) == 0, f'topic "{name}" was not deleted')


def _partitions(client: Any, name: str) -> int:
    found = client.list_topics(timeout=_CALL_S).topics.get(name)
    return 0 if found is None or found.error else len(found.partitions)


def _wait(done: Any, failure: str) -> None:
    deadline = time.monotonic() + _CALL_S
    while not done():
        if time.monotonic() > deadline:
            msg = f"{failure} within {_CALL_S:g} s; look at the broker."
            raise EngineError(msg)
        time.sleep(0.05)


def put(servers: str, topic: str, values: Iterable[dict[str, Any]]) -> None:
    """Write records, each as arguments of the client's ``produce``, and wait until all are written."""
    producer = confluent().Producer({"bootstrap.servers": servers, "linger.ms": 20})
    for record in values:
        while True:
            try:
                producer.produce(topic, **record)
                break
            except BufferError:
                producer.poll(_QUIET_S)
    if producer.flush(_CALL_S):
        msg = f"records could not be written to {servers}; look at the broker."
        raise EngineError(msg)


def committed(
    servers: str, topics: Sequence[str], *, all_records: bool = False
) -> list[TopicRecord]:
    """Return the records of topics, of transactions only the committed ones.

    Parameters
    ----------
    all_records : bool
        Also return records of aborted and open transactions.
    """
    module = confluent()
    level = "read_uncommitted" if all_records else "read_committed"
    settings = {
        "bootstrap.servers": servers,
        "group.id": "headgate-reader",
        "isolation.level": level,
    }
    reader = module.Consumer(
        {**settings, "enable.auto.commit": False, "enable.partition.eof": True}
    )
    try:
        known = reader.list_topics(timeout=_CALL_S).topics
        parts = [
            module.TopicPartition(topic, number, module.OFFSET_BEGINNING)
            for topic in topics
            for number in known[topic].partitions
        ]
        reader.assign(parts)
        return _until_ends(reader, {(part.topic, part.partition) for part in parts}, module)
    finally:
        reader.close()


def _until_ends(reader: Any, open_ends: set[tuple[str, int]], module: Any) -> list[TopicRecord]:
    found = []
    deadline = time.monotonic() + 4 * _CALL_S
    while open_ends:
        for message in reader.consume(10_000, _QUIET_S):
            error = message.error()
            if error is None:
                found.append(
                    TopicRecord(
                        message.topic(),
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers(),
                        message.timestamp()[1],
                    )
                )
            elif error.name() == "_PARTITION_EOF":
                open_ends.discard((message.topic(), message.partition()))
            elif not error.retriable():
                raise module.KafkaException(error)
        if time.monotonic() > deadline:
            msg = (
                f"{len(open_ends)} partitions could not be read to their ends; look at the broker."
            )
            raise EngineError(msg)
    return found
