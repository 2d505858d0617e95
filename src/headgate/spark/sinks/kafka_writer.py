"""Writes records into Kafka, each step of a job in one transaction together with a note of the step.

The note is a record in a separate topic. If no transaction of the job is open, the last note names the
last step that readers see, whatever failed before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headgate.core.errors import CheckpointError, EngineError
from headgate.spark.settings.kafka import PREFIX, KafkaTarget, confluent
from headgate.spark.sinks.kafka_notes import NOTES, last_note, note

_ATTEMPTS = 3
"""Most transactions for one step; before each new one, the broker says whether the last one was
committed. Chosen, not tuned."""

_LATE = 2
"""Transactions for one step that may take all of their time. The first may have been late because this
process or the broker stood still for as long; after the second, the step is too large. Chosen, not
tuned."""

_CALL_S = 10.0
_POLL_S = 0.05

_TIMED_OUT = -185
"""The code of librdkafka's error ``_TIMED_OUT``."""

_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
NO_TOPIC = {"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION"}
_FINAL = _FENCED | {
    "GROUP_AUTHORIZATION_FAILED",
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}
"""Names of librdkafka's errors after which another attempt cannot succeed."""

_LOG = logging.getLogger("headgate.kafka")
_LOG.addHandler(logging.NullHandler())


class KafkaRecord(NamedTuple):
    """Holds the parts of one Kafka record, as Spark's Kafka sink reads its columns."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    partition: int | None


class KafkaWriter:
    """Writes the steps of one job; only the last process that opened a writer for the job can write.

    `job`: identity of the job, from its checkpoint.
    """

    def __init__(self, target: KafkaTarget, job: str) -> None:
        self._target = target
        self._client = confluent()
        self._name = f"headgate-{job}"
        self._producer: Any = None
        self._last: int | None = None
        self._said = ""

    def open(self) -> int | None:
        """Fence earlier writers of this job, and return the last step that readers see.

        Aborts an open transaction of an earlier writer, so that readers do not wait for it. Raises
        `EngineError`: no broker answers, or the broker does not take the settings.
        """
        self.close()
        settings = {
            **self._target.client,
            "transactional.id": self._name,
            "error_cb": self._take_note,
        }
        self._producer = self._client.Producer(settings, logger=_LOG)
        until_s = time.monotonic() + self._target.patience_s
        try:
            self._call(self._producer.init_transactions, until_s)
            self._last = last_note(self._client, self._target, self._name, until_s)
        except self._client.KafkaException as error:
            raise self._failed(error, "begin to write") from error
        return self._last

    def write(self, step: int, records: Callable[[], Iterable[KafkaRecord]]) -> bool:
        """Write a step's records; return False if readers see them already.

        `step`: number of the step; it grows. `records`: returns the records, the same at each call.
        Raises `CheckpointError`: later steps were written, so an old checkpoint was restored;
        `EngineError`: the write failed; readers see either no record, or all records and the note.
        """
        if self._producer is None:
            self.open()
        late = 0  # transactions that took all of their time
        for attempt in range(1, _ATTEMPTS + 1):
            if self._last is not None and step <= self._last:
                self.check_last(step)
                return False
            began_s = time.monotonic()
            try:
                self._transaction(step, records())
            except self._client.KafkaException as error:
                late += time.monotonic() - began_s >= self._target.transaction_s
                if late == _LATE or attempt == _ATTEMPTS or self._is_final(error, late > 0):
                    failed = self._failed(error, f"write step {step}", overdue=late > 0)
                    self.close()
                    raise failed from error
                _LOG.warning("step %d is begun anew: %s", step, error)
                if late:
                    self._refuse_if_another_wrote(step)
                self.open()  # ends the open transaction, and finds out whether it was committed
            else:
                self._last = step
                return True
        return False  # pragma: no cover - the last attempt returns or raises

    def check_last(self, step: int) -> None:
        """Refuse a checkpoint whose newest step is `step`, if readers see a later step.

        Raises `CheckpointError`.
        """
        if self._last is not None and step < self._last:
            msg = (
                f"{self._where} has step {self._last} of this job, and the checkpoint's newest is "
                f"{step}: it was put back; use the newest copy of it, or a new one."
            )
            raise CheckpointError(msg)

    def _refuse_if_another_wrote(self, step: int) -> None:
        """Refuse to write after a long standstill in which another driver has written later steps.

        To open the writer anew would end that driver's right to write. Raises `EngineError`.
        """
        until_s = time.monotonic() + self._target.patience_s
        last = last_note(self._client, self._target, self._name, until_s)
        if last is not None and last > step:
            self.close()
            raise EngineError(self._fenced(f"step {last} is written"), transient=True)

    @property
    def last(self) -> int | None:
        """Return the last step that readers see; None if they see no step."""
        return self._last

    def close(self) -> None:
        """Discard the producer; the next `open` aborts an open transaction."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(blocking=False)

    def _transaction(self, step: int, records: Iterable[KafkaRecord]) -> None:
        until_s = time.monotonic() + min(self._target.transaction_s, self._target.patience_s)
        producer = self._producer
        producer.begin_transaction()
        for record in records:
            _produce(self._client, producer, record, until_s)
        note_record = KafkaRecord(NOTES, self._name.encode(), note(step), None, 0)
        _produce(self._client, producer, note_record, until_s)
        self._call(producer.commit_transaction, until_s)

    def _call(self, call: Callable[[float], Any], until_s: float) -> None:
        """Repeat a call while it fails with a retriable error and time is left."""
        while True:
            left_s = max(until_s - time.monotonic(), 0.1)
            try:
                call(min(left_s, _CALL_S))
                return
            except self._client.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() >= until_s:
                    raise
                time.sleep(_POLL_S)

    # -- what went wrong --------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"Kafka at {self._target.servers}"

    def _take_note(self, error: Any) -> None:
        self._said = str(error.str())

    def _has_topic(self) -> bool | None:
        """Return whether the topic exists; None if no broker answers.

        For a deleted topic, the client itself keeps retrying for long.
        """
        topic = self._target.topic
        try:
            metadata = self._producer.list_topics(topic, timeout=_CALL_S)
        except self._client.KafkaException:
            return None
        wrong = None if topic is None else metadata.topics[topic].error
        return wrong is None or wrong.name() not in NO_TOPIC

    def _is_final(self, error: Exception, late: bool) -> bool:
        """Return whether another transaction would fail as well.

        `late`: whether a transaction took all of its time.
        """
        return error.args[0].name() in _FINAL or (late and self._has_topic() is False)

    def _fenced(self, why: str) -> str:
        return (
            f"another driver writes to {self._where} for this job since, so this one may not "
            f"({why}); run a checkpoint, or a copy of it, once only."
        )

    def _failed(self, error: Exception, what: str, *, overdue: bool = False) -> EngineError:
        """Return the client's error as one sentence."""
        failure = error.args[0]
        name, text = failure.name(), str(failure.str()).strip().rstrip(".")
        has_topic = self._has_topic() if overdue else None
        limit = f"{PREFIX}transaction.timeout.ms={round(self._target.transaction_s * 1e3)}"
        if name == "INVALID_TRANSACTION_TIMEOUT":
            msg = (
                f"{self._where} does not allow {limit}; lower it, or raise the broker's "
                "transaction.max.timeout.ms."
            )
        elif name in NO_TOPIC or has_topic is False:
            msg = (
                f"{self._where} has no such topic or partition as was to be written ({text}); make it, "
                "and start the query again."
            )
        elif has_topic:
            msg = (
                f"{self._where} did not get all of a step within {limit}, twice ({text}); raise it, or "
                "write less per batch."
            )
        elif name in _FENCED:
            msg = self._fenced(text)
        else:
            why = text if not self._said or self._said == text else f"{text}; last: {self._said}"
            msg = (
                f"{self._where} could not {what} within {self._target.patience_s:g} s ({why}); see that "
                "it runs, and start the query again."
            )
        return EngineError(msg, transient=True)


class EarlyWriter:
    """Writes records without transactions: readers see them at once, and perhaps again."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target = target
        self._client = confluent()
        settings = {**target.client, "enable.idempotence": True, "on_delivery": self._delivered}
        settings["message.timeout.ms"] = round(target.patience_s * 1e3)
        self._producer = self._client.Producer(settings, logger=_LOG)
        self._error: Any = None

    def write(self, records: Iterable[KafkaRecord]) -> None:
        """Write records, and wait until the broker has them; raises as `settle` does."""
        self.begin(records)
        self.settle()

    def begin(self, records: Iterable[KafkaRecord]) -> None:
        """Begin to write records; `settle` waits for them and raises an error."""
        until_s = time.monotonic() + self._target.patience_s
        try:
            for record in records:
                _produce(self._client, self._producer, record, until_s)
        except self._client.KafkaException as error:
            self._error = error.args[0]

    def settle(self) -> None:
        """Wait until the broker has all records.

        Raises `EngineError`: the broker has not got all of them.
        """
        left = self._producer.flush(self._target.patience_s)
        error, self._error = self._error, None
        if left or error is not None:
            why = "" if error is None else f" ({str(error.str()).strip().rstrip('.')})"
            msg = (
                f"Kafka at {self._target.servers} has not got all records within "
                f"{self._target.patience_s:g} s{why}; see that it runs and has the topic, and start "
                "the query again."
            )
            raise EngineError(msg, transient=True)

    def _delivered(self, error: Any, message: Any) -> None:
        del message
        self._error = error or self._error


def _produce(client: Any, producer: Any, record: KafkaRecord, until_s: float) -> None:
    """Pass one record to the client; wait while its queue is full."""
    more: dict[str, Any] = {}
    if record.headers is not None:
        more["headers"] = record.headers
    if record.partition is not None:
        more["partition"] = record.partition
    while True:
        try:
            producer.produce(record.topic, record.value, record.key, **more)
            return
        except BufferError:
            producer.poll(_POLL_S)
            if time.monotonic() > until_s:
                raise client.KafkaException(client.KafkaError(_TIMED_OUT)) from None
