"""Adapts stream readers in Python to Spark 4.1, which passes neither start offset nor read limit.

In Spark 4.1 a reader only returns its newest offset. It learns the start offset of a restarted query from
Spark's first call of `partitions`. It never learns whether the query runs under ``availableNow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

__all__ = ["LIMITS", "LimitedReader", "ReadAllAvailable", "ReadLimit", "ReadMaxRows"]

LIMITS = True
"""Whether Spark passes a reader the query's offset and a read limit."""

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.1
        LIMITS = False

        class ReadLimit:
            """Limits the size of a batch."""

        class ReadAllAvailable(ReadLimit):
            """Allows all available rows."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Limits the number of rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Does nothing, because Spark 4.1 has no such interface."""


class LimitedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Returns the end offset of the next batch from the query's offset, within a limit."""

    _reached: dict[str, int] | None = None

    def newest(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the end offset of the next batch.

        `start`: the query's current offset.
        """
        raise NotImplementedError

    def between(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        raise NotImplementedError

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """As of Spark, which first calls it with the log's end as both offsets for a restarted query."""
        if self._reached is None:
            self._reached = end
        return self.between(start, end)

    def onward(self) -> dict[str, int]:
        """Return the end offset of the next batch if Spark passes neither offset nor limit."""
        start = self.initialOffset() if self._reached is None else self._reached
        self._reached = self.newest(start, self.getDefaultReadLimit())
        return self._reached

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the default limit of a batch."""
        return ReadAllAvailable()

    if LIMITS:

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            """As of Spark."""
            return self.newest(start, limit)

    else:

        def latestOffset(self) -> dict[str, int]:  # type: ignore[misc]
            """As of Spark."""
            return self.onward()
