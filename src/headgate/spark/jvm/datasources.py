"""Streams whose reader is in Python: told where a query is and what it takes; in Spark 4.1, neither.

There a reader says only what is newest. Where a query that goes on had been it hears on the side, before
all else; that a query runs under ``availableNow``, and takes all in one batch, it never hears.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

__all__ = ["LIMITS", "LimitedReader", "ReadAllAvailable", "ReadLimit", "ReadMaxRows"]

LIMITS = True
"""Whether Spark tells a reader where the query is, and how much it may take."""

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
            """All there is."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Some rows at most."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Nothing: Spark 4.1 does not ask."""


class LimitedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that says what is newest from where the query is, within a limit."""

    _reached: dict[str, int] | None = None

    def newest(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the offset up to which the next batch reads.

        `start`: where the query is.
        """
        raise NotImplementedError

    def between(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        raise NotImplementedError

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """As of Spark, which calls it first for a query that goes on: twice the end of its log."""
        if self._reached is None:
            self._reached = end
        return self.between(start, end)

    def onward(self) -> dict[str, int]:
        """Return the next batch's end where Spark tells neither where the query is nor a limit."""
        start = self.initialOffset() if self._reached is None else self._reached
        self._reached = self.newest(start, self.getDefaultReadLimit())
        return self._reached

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how much a batch takes."""
        return ReadAllAvailable()

    if LIMITS:

        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            """As of Spark."""
            return self.newest(start, limit)

    else:

        def latestOffset(self) -> dict[str, int]:  # type: ignore[misc]
            """As of Spark."""
            return self.onward()
