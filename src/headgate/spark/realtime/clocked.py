"""Reads rows that become due by the clock: Spark's format ``rate``, and generated workloads."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from headgate.checkpoint.epochs import REAL_TIME_ONLY
from headgate.core.errors import ConfigError, UnsupportedQuery
from headgate.spark.realtime.feed import Reader


class GeneratedRows(Protocol):
    """Generates rows by their numbers."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        """Return the rows of the events from `start` to `stop`, without `stop`."""


class TimedEvents(Protocol):
    """Describes rows that become due by the clock."""

    @property
    def feed(self) -> GeneratedRows:
        """Generator of the rows."""

    @property
    def base_us(self) -> int | None:
        """The time of the first event; None for the query's start."""

    def due(self, elapsed_us: int) -> int:
        """Return the number of events that are due after `elapsed_us`."""


_POLL_ROWS = 4096
"""Most records of one poll. Chosen, not tuned."""

_NOTHING = re.compile(r"\s*0+\s*[a-z]*\s*")
"""Matches a duration of zero in Spark's notation."""


@dataclass(frozen=True)
class ClockFeed:
    """Reads rows when they are due; a `SourceFeed` with one reader."""

    settings: TimedEvents
    only_here: bool = False
    """True if Spark's own source cannot continue from these offsets."""
    readers: int = 1
    keeps_first: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns of the records."""
        return self.settings.feed.schema

    def first(self) -> str:
        """Return the offsets at which a query begins."""
        base_us = self.settings.base_us
        return self.offsets(0, time.time_ns() // 1000 if base_us is None else base_us)

    def grown(self, offsets: str) -> str:
        """Return `offsets`: the source gets no partitions."""
        return offsets

    def newest(self, since: str) -> str:
        """Return the offsets after all events that are due now."""
        event, base_us = _read_event(since)
        due = self.settings.due(time.time_ns() // 1000 - base_us)
        return self.offsets(max(event, due), base_us)

    def reader(self, start: str, number: int, count: int) -> Reader:
        """Return the only reader."""
        del number, count
        return _ClockReader(self, start)

    def merged(self, parts: Iterable[str]) -> str:
        """Return the offsets of the only reader."""
        (only,) = parts
        return only

    def reached(self, offsets: str, wanted: str) -> bool:
        """Return whether `offsets` are at or after `wanted`."""
        return _read_event(offsets)[0] >= _read_event(wanted)[0]

    def offsets(self, event: int, base_us: int) -> str:
        """Return the offsets before an event."""
        found: dict[str, object] = {"event": event, "base_us": base_us}
        return json.dumps(found | {REAL_TIME_ONLY: True} if self.only_here else found)


def _read_event(text: str) -> tuple[int, int]:
    found = json.loads(text)
    if not isinstance(found, dict):
        msg = (
            'the query has read format "rate" in micro-batches, second by second; leave out '
            "trigger(realTime=...), or begin with a new checkpointLocation."
        )
        raise ConfigError(msg)
    return int(found["event"]), int(found["base_us"])


class _ClockReader:
    def __init__(self, feed: ClockFeed, start: str) -> None:
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
        return self._feed.offsets(self._event, self._base_us)

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class RateRows:
    """Generates the rows of Spark's format ``rate``, evenly over time instead of second by second."""

    schema: ClassVar[pa.Schema] = pa.schema(
        [("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())]
    )
    rows_per_second: int
    base_us: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> RateRows:
        """Return the rows that Spark's options describe.

        Raises `ConfigError`: the rate is no whole number above 0; `UnsupportedQuery`: the options
        have a ramp-up time.
        """
        given = {key.lower(): value for key, value in options.items()}
        if not _NOTHING.fullmatch(given.get("rampuptime", "0s")):
            msg = (
                'option "rampUpTime" of format "rate" is not supported in real time; leave it out.'
            )
            raise UnsupportedQuery(msg)
        rate = given.get("rowspersecond", "1")
        if not rate.isdecimal() or int(rate) < 1:
            msg = f'option "rowsPerSecond" of format "rate" is {rate}; give a whole number of 1 or more.'
            raise ConfigError(msg)
        return cls(int(rate))

    @property
    def feed(self) -> RateRows:
        """Generator of the rows."""
        return self

    def due(self, elapsed_us: int) -> int:
        """Return the number of rows that are due after `elapsed_us`."""
        return elapsed_us * self.rows_per_second // 1_000_000

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        """Return rows by their numbers; times are whole milliseconds, as in Spark."""
        values = np.arange(start, stop, dtype=np.int64)
        times_us = base_us // 1000 * 1000 + values * 1000 // self.rows_per_second * 1000
        columns = [pa.array(times_us).cast(self.schema.field(0).type), pa.array(values)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
