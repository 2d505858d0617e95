"""Reads Spark's own logs of a query: offsets, watermark, commits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from headgate.core.errors import EngineError
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.jvm.minors import adapter

_STOP_WAIT_S = 10.0
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class BatchLog:
    """Holds Spark's log entry of a batch."""

    watermark_us: int
    offsets: list[str]
    """End offset of each source, tick excluded."""
    begun_ms: float
    """Time at which Spark had the end offsets of all sources, ms since 1970."""


class SparkLog:
    """Reads the logs of the query to whose batch this thread belongs at the first call."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._execution: Jvm | None = None

    @property
    def active(self) -> bool:
        """Return whether Spark still counts the query as running."""
        return bool(self._stream().isActive())

    def refuse_batch(self) -> NoReturn:
        """Raise an exception, once Spark has stopped the query, so that Spark does not commit the batch.

        A return would let Spark commit a batch that was never done. If the query is terminated and the
        exception's text names an interrupt, Spark treats the exception as part of the stop.
        """
        deadline = time.monotonic() + _STOP_WAIT_S
        while self.active and time.monotonic() < deadline:
            time.sleep(0.01)
        msg = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: "
        raise EngineError(msg + "java.lang.InterruptedException") from None

    def batch(self, batch_id: int) -> BatchLog:
        """Return Spark's log entry of the beginning of a batch."""
        log = self._stream().offsetLog().get(batch_id).get()
        notes = adapter().batch_notes(log).get()
        watermark_us = int(notes.batchWatermarkMs()) * 1000
        return BatchLog(watermark_us, _offsets(log), float(notes.batchTimestampMs()))

    def offsets(self, batch_id: int) -> list[str] | None:
        """Return each source's end offset, tick excluded; None if Spark has removed the entry."""
        entry = self._stream().offsetLog().get(batch_id)
        return _offsets(entry.get()) if entry.isDefined() else None

    def next_watermark_us(self, batch_id: int) -> int | None:
        """Return the watermark that Spark computed after a batch; None if the batch is not committed."""
        entry = self._stream().commitLog().get(batch_id)
        return int(entry.get().nextBatchWatermarkMs()) * 1000 if entry.isDefined() else None

    def _stream(self) -> Jvm:
        if self._execution is not None:
            return self._execution
        query_id = self._spark.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is not None:
            query: Any = self._spark._jsparkSession.streams().get(query_id)
            self._execution = query.streamingQuery()
        if self._execution is None:
            msg = "Spark's streaming query is not known before its first batch has begun; try again then."
            raise EngineError(msg)
        return self._execution


def _offsets(log: Jvm) -> list[str]:
    offsets = [o.get().json() if o.isDefined() else "" for o in each(log.offsets())]
    return offsets[:-1]
