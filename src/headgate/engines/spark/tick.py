"""A source of nothing, once a second.

``foreachBatch`` is not called while a source is quiet, so windows would stay open and backlog would
wait for ever. This source's offset moves once a second and brings no rows: Spark starts a batch, and
neither watermark nor counts are touched. It is part of every query from its first start, since a source
that comes later breaks a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

FORMAT = "headgate-tick"


class TickReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Counts seconds; under ``trigger(availableNow=True)`` it stands still."""

    def __init__(self) -> None:
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return the offset before the first tick."""
        return {"tick": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return that there is no limit."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the present second; never before `start`, whatever the clock does."""
        now = int(time.time()) if self._until is None else self._until
        return {"tick": max(start["tick"], now)}

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Return nothing: lag has no meaning here."""
        return None

    def prepareForTriggerAvailableNow(self) -> None:
        """Stand still from now on."""
        self._until = int(time.time())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one empty partition: Spark takes no partition at all for a fault."""
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return no rows."""
        return iter(())


class TickSource(DataSource):
    """The format ``headgate-tick``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return a column that no row will fill."""
        return "tick int"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader."""
        return TickReader()


def tick(spark: SparkSession) -> Any:
    """Return the tick stream."""
    spark.dataSource.register(TickSource)
    return spark.readStream.format(FORMAT).load()
