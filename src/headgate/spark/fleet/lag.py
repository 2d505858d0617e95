"""Counts the records at a query's sources that Spark has not read yet, if the source reports them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_KEPT = 200
"""Number of batches to keep. Not tuned."""


@dataclass(frozen=True)
class SourceAt:
    """Holds the counts of one source in one batch."""

    rows: int
    """Rows that the batch read."""
    read: float
    behind: float
    """`read`, `behind`: distance between the offsets that the batch read, and from the last of them
    to the newest offset, in the source's own units: records, files, seconds."""


@dataclass(frozen=True)
class ProgressAt:
    """Holds the counts of a query's sources in one batch, in Spark's order."""

    batch: int
    sources: tuple[SourceAt, ...]


class SourceLag:
    """Holds the offsets of a query's sources from Spark's progress.

    A source with limited batches (``maxOffsetsPerTrigger``, ``maxFilesPerTrigger``) reports its newest
    offset besides the last one read. The number of records between two offsets is estimated from the
    batches that were read.
    """

    def __init__(self) -> None:
        self._noted: deque[ProgressAt] = deque(maxlen=_KEPT)

    def note(self, progress: Mapping[str, Any]) -> None:
        """Record a progress report of Spark."""
        batch = int(progress["batchId"])
        if self._noted and self._noted[-1].batch >= batch:
            return
        sources = tuple(_source_at(source) for source in progress["sources"])
        self._noted.append(ProgressAt(batch, sources))

    @property
    def sources(self) -> int:
        """Return the number of sources in Spark's progress; 0 before the first progress."""
        return len(self._noted[-1].sources) if self._noted else 0

    def since(self, batch: int) -> list[ProgressAt]:
        """Return the counts of the batches from `batch` on."""
        return [noted for noted in self._noted if noted.batch >= batch]

    def behind(self, source: int, batch: int) -> float:
        """Return how far a source was behind in `batch`, or in the nearest known batch; own units."""
        if not self._noted:
            return 0.0
        nearest = min(self._noted, key=lambda noted: abs(noted.batch - batch))
        return nearest.sources[source].behind if source < len(nearest.sources) else 0.0

    def rows(self) -> float:
        """Return the number of rows in all sources that the newest batch did not read.

        Estimated by the average number of rows per unit of offset.
        """
        total = 0.0
        for place in range(self.sources):
            notes = [n.sources[place] for n in self._noted if place < len(n.sources)]
            units = sum(source.read for source in notes)
            if units:
                total += notes[-1].behind * sum(source.rows for source in notes) / units
        return total

    def tells(self, source: int) -> bool:
        """Return whether a source has ever reported an offset newer than the last one read."""
        return any(n.sources[source].behind > 0.0 for n in self._noted if source < len(n.sources))


def distance(start: object, end: object) -> float:
    """Return the distance from `start` to `end`: the sum over all numbers that both have.

    `start`, `end`: offsets from a progress: JSON, or text of JSON; numbers in only one do not count.
    """
    start, end = _parsed(start), _parsed(end)
    if isinstance(start, Mapping) and isinstance(end, Mapping):
        return sum(distance(start[key], end[key]) for key in end if key in start)
    if isinstance(start, list) and isinstance(end, list):
        return sum(distance(a, b) for a, b in zip(start, end, strict=False))
    if isinstance(start, bool) or isinstance(end, bool):
        return 0.0
    if isinstance(start, int | float) and isinstance(end, int | float):
        return max(0.0, float(end) - float(start))
    return 0.0


def _source_at(source: Mapping[str, Any]) -> SourceAt:
    end = source.get("endOffset")
    return SourceAt(
        rows=int(source.get("numInputRows", 0)),
        read=distance(source.get("startOffset"), end),
        behind=distance(end, source.get("latestOffset")),
    )


def _parsed(offset: object) -> object:
    if isinstance(offset, str):
        try:
            return json.loads(offset)
        except json.JSONDecodeError:
            return None
    return offset
