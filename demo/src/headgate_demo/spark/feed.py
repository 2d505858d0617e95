"""Generates a workload by the clock for a pipe: a `headgate.spark.realtime.feed.SourceFeed`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headgate.spark.realtime.feed import Reader


class GeneratedRows(Protocol):
    """Generates the rows of a workload."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        """Return the rows of some events."""


class TimedEvents(Protocol):
    """Describes a workload by the clock: `headgate_demo.spark.sources.SourceSettings` is one."""

    @property
    def feed(self) -> GeneratedRows:
        """Its rows."""

    @property
    def base_us(self) -> int | None:
        """The time of the first event; None for the query's start."""

    def due(self, elapsed_us: int) -> int:
        """Return how many events are due this long after the start."""


_POLL_ROWS = 4096
"""Records of one poll at the most. Chosen."""


@dataclass(frozen=True)
class WorkloadFeed:
    """Generates a workload by the clock; one reader."""

    settings: TimedEvents
    readers: int = 1
    keeps_first: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of its records."""
        return self.settings.feed.schema

    def first(self) -> str:
        """Return the offsets at which a query begins."""
        base_us = self.settings.base_us
        return _event(0, time.time_ns() // 1000 if base_us is None else base_us)

    def grown(self, offsets: str) -> str:
        """Return `offsets`: nothing grows."""
        return offsets

    def newest(self, since: str) -> str:
        """Return the offsets of all that is due now."""
        event, base_us = _read_event(since)
        due = self.settings.due(time.time_ns() // 1000 - base_us)
        return _event(max(event, due), base_us)

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return the reader."""
        del number, count
        return _WorkloadReader(self, start)

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of the only reader."""
        (only,) = parts
        return only

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are as far as `wanted`."""
        return _read_event(offsets)[0] >= _read_event(wanted)[0]


def _event(event: int, base_us: int) -> str:
    return json.dumps({"event": event, "base_us": base_us})


def _read_event(text: str) -> tuple[int, int]:
    found = json.loads(text)
    return int(found["event"]), int(found["base_us"])


class _WorkloadReader:
    def __init__(self, feed: WorkloadFeed, start: str) -> None:
        self._feed = feed
        self._event, self._base_us = _read_event(start)

    def poll(self, timeout_s: float) -> pa.RecordBatch | None:
        due, _ = _read_event(self._feed.newest(self.offsets()))
        if due == self._event:
            time.sleep(timeout_s)
            return None
        stop = min(due, self._event + _POLL_ROWS)
        made = self._feed.settings.feed.batch(self._event, stop, self._base_us)
        self._event = stop
        return made

    def offsets(self) -> str:
        return _event(self._event, self._base_us)

    def close(self) -> None:
        """Nothing to give back."""
