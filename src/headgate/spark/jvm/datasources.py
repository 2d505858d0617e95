"""Streams whose reader is in Python: told where a query is and what it takes; in Spark 4.1, neither.

There a reader says only what is newest. It is not told where a query that goes on had been, so its
offsets must not depend on that; and a query under ``availableNow`` takes all in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

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
            """How much a batch takes."""

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

    def newest(self, start: dict[str, int] | None, limit: ReadLimit) -> dict[str, int]:
        """Return the offset up to which the next batch reads.

        Parameters
        ----------
        start : dict or None
            Where the query is; None where Spark does not tell, and this reader has said nothing yet.
        limit : ReadLimit
        """
        raise NotImplementedError

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
            # Where a query that goes on had been is beyond any limit from the beginning: all there is.
            known = self._reached is not None
            limit = self.getDefaultReadLimit() if known else ReadAllAvailable()
            self._reached = self.newest(self._reached, limit)
            return self._reached
