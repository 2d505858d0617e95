"""Defines Spark sources of the workloads, as streams and as batches: ``nexmark``, ``replay`` and others.

An offset is ``{"event": n, "base_us": t}``: n events since the stream started at t. Rows only depend on
the options, event numbers and `base_us`, and every offset contains `base_us`. So Spark reads identical
rows again after a restart, and a batch query reads exactly what a stream delivered (option ``until``).
The sources never slow down for a slow query.

Common options, in addition to those of the format:

=============  ====================================================================================
base           start of the stream, us since the Unix epoch; default: the first start of the query
events         the stream ends after this many events
duration       the stream ends after the events that are due in this time, with unit (``60s``)
partitions     tasks per micro-batch, each a contiguous range; default 2
batch_rows     at most this many events per micro-batch; default: all that are due
until          batch only: an offset; read the events before it. Without it, ``events`` or
               ``duration`` and ``base`` say what is read
=============  ====================================================================================

With ``trigger(availableNow=True)`` a query reads the events that are due at its start, and ends. A finite
stream without ``base`` whose first start is of that kind counts as just ended: all its events are due.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import WHOLE_MAX, finite, whole
from headgate.spark.jvm.arrow import from_arrow_schema
from headgate.spark.jvm.datasources import (
    LimitedReader,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)
from headgate.spark.realtime.clocked import ClockFeed
from headgate.spark.realtime.feed import SourceFeed
from headgate.spark.worker.daemon import quiet_here
from headgate.workloads.rates import parse_rate
from headgate_demo.generators import nexmark, replay, sentences, stock_exchange

quiet_here()

__all__ = [
    "NexmarkSource",
    "ReplaySource",
    "SentencesSource",
    "StockExchangeSource",
    "register",
]

ARROW_ROWS = 32_768
"""Rows per Arrow batch. Of 8,192 to 32,768 none was measurably faster. A batch has 1.4 MB with the fields
of a bid that queries need, 11 MB with all fields and padding."""


class _Feed(Protocol):
    """Generates the numbered rows of a format, each with a due time; picklable."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def total(self) -> int | None:
        """Total number of rows; None if unlimited."""

    def due(self, elapsed_us: int) -> int:
        """Return how many rows are due this long after the start."""

    def due_us(self, row: int) -> int:
        """Return the due time of one row, us since the start."""

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch: ...


@dataclass(frozen=True)
class _NexmarkFeed:
    config: nexmark.NexmarkConfig
    columns: tuple[str, ...] | None

    @property
    def schema(self) -> pa.Schema:
        return nexmark.schema(self.columns)

    @property
    def total(self) -> int | None:
        return None

    def due(self, elapsed_us: int) -> int:
        return nexmark.due(self.config, elapsed_us / 1e6)

    def due_us(self, row: int) -> int:
        return int(np.floor(self.config.rate.time_of(row) * 1e6))

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        return nexmark.events(self.config, start, stop, base_us, self.columns)


@dataclass(frozen=True)
class _ReplayFeed:
    config: replay.ReplayConfig

    @property
    def schema(self) -> pa.Schema:
        return replay.load(self.config).schema

    @property
    def total(self) -> int | None:
        return replay.load(self.config).total

    def due(self, elapsed_us: int) -> int:
        return replay.load(self.config).due(elapsed_us)

    def due_us(self, row: int) -> int:
        return int(replay.load(self.config).scheduled_us(np.array([row]))[0])

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        return replay.load(self.config).batch(start, stop, base_us)


@dataclass(frozen=True)
class _RateFeed:
    """Generates rows without end, due by the rate function of `config`."""

    config: Any
    schema: pa.Schema
    rows: Callable[[Any, int, int, int], pa.RecordBatch]

    @property
    def total(self) -> int | None:
        return None

    def due(self, elapsed_us: int) -> int:
        return int(self.config.rate.count(elapsed_us / 1e6))

    def due_us(self, row: int) -> int:
        return int(np.floor(self.config.rate.time_of(row) * 1e6))

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        return self.rows(self.config, start, stop, base_us)


# --- options -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceSettings:
    """Holds the parsed options of one source."""

    name: str
    feed: _Feed
    base_us: int | None
    events: int | None
    duration_s: float | None
    partitions: int
    batch_rows: int | None
    until: tuple[int, int] | None
    """(event, base_us)"""

    @cached_property
    def limit(self) -> int | None:
        """Number of events after which the stream ends; None if it does not end."""
        ends = [self.feed.total, self.events]
        if self.duration_s is not None:
            ends.append(self.feed.due(round(self.duration_s * 1e6)))
        return min((end for end in ends if end is not None), default=None)

    def due(self, elapsed_us: int) -> int:
        """Return how many events are due this long after the start, at most `limit`."""
        count = self.feed.due(elapsed_us)
        return count if self.limit is None else min(count, self.limit)


@dataclass(frozen=True)
class _Option:
    """Parses the text of an option; `expected` describes valid texts in a message."""

    parse: Callable[[str], Any]
    expected: str


def _integer(least: int, most: int = WHOLE_MAX) -> _Option:
    def parse(text: str) -> int:
        try:
            return whole(text, "it", least, most)
        except ConfigError as error:
            raise ValueError(text) from error  # `_parse` adds the option's name to the message

    return _Option(parse, f"a whole number from {least} to {most}")


def _parse_offset(text: str) -> tuple[int, int]:
    offset = json.loads(text)
    return int(offset["event"]), int(offset["base_us"])


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _finite(text: str) -> float:
    try:
        return finite(float(text), "it")
    except ConfigError as error:
        raise ValueError(text) from error


_REAL = _Option(_finite, "a finite number")
_DURATION = _Option(parse_duration_s, "a number and a unit, such as 60s")
_TEXT = _Option(str, "a text")
_BOOLEAN = _Option(lambda text: {"true": True, "false": False}[text.lower()], "true or false")

_Options = Mapping[str, _Option]

_COMMON: _Options = {
    "base": _integer(0),
    "events": _integer(0),
    "duration": _DURATION,
    "partitions": _integer(1, 10_000),
    "batch_rows": _integer(1),
    "until": _Option(_parse_offset, 'an offset such as {"event": 1000, "base_us": 0}'),
}

_NEXMARK: _Options = {
    "seed": _integer(0),
    "rate": _Option(parse_rate, "a rate such as 20000"),
    "person_proportion": _integer(1),
    "auction_proportion": _integer(1),
    "bid_proportion": _integer(0),
    "hot_auction_ratio": _integer(1),
    "hot_seller_ratio": _integer(1),
    "hot_bidder_ratio": _integer(1),
    "in_flight_auctions": _integer(1),
    "active_people": _integer(1),
    "skew": _REAL,
    "prob_delayed": _REAL,
    "delay_ms": _integer(0),
    "padding": _BOOLEAN,
    "columns": _Option(_parse_names, "names separated by commas"),
}

_REPLAY: _Options = {
    "path": _TEXT,
    "time_column": _TEXT,
    "speed": _REAL,
    "repeat": _integer(1),
    "span": _DURATION,
}


_EXCHANGE: _Options = {
    "seed": _integer(0),
    "rate": _Option(parse_rate, "a rate such as exchange(speed=100)"),
    "stocks": _integer(1, 10**6),
    "exponent": _REAL,
    "accounts": _integer(1),
    "cancels": _REAL,
    "rush_share": _REAL,
    "rush_from_s": _REAL,
}

_SENTENCES: _Options = {
    "seed": _integer(0),
    "rate": _Option(parse_rate, "a rate such as 15000"),
    "words": _integer(1, 10**7),
    "exponent": _REAL,
    "length": _integer(1, 10_000),
}


def _parse(name: str, options: Mapping[str, str], own: _Options) -> dict[str, Any]:
    """Return the parsed options of format `name`; names are not case-sensitive."""
    known = {**_COMMON, **own}
    values: dict[str, Any] = {}
    for key, text in options.items():
        option = known.get(key.lower())
        if option is None:
            hint = nearest(key.lower(), known) or f"; use {', '.join(sorted(known))}."
            msg = f'source {name} has no option "{key}"{hint}'
            raise ConfigError(msg)
        try:
            values[key.lower()] = option.parse(text)
        except ConfigError as error:
            msg = f'option "{key}" of source {name}: {error}'
            raise ConfigError(msg) from error
        except (ValueError, KeyError, TypeError) as error:
            msg = f'option "{key}" of source {name} is "{text}"; give {option.expected}.'
            raise ConfigError(msg) from error
    return values


def _settings(name: str, feed: _Feed, values: Mapping[str, Any]) -> SourceSettings:
    return SourceSettings(
        name=name,
        feed=feed,
        base_us=values.get("base"),
        events=values.get("events"),
        duration_s=values.get("duration"),
        partitions=values.get("partitions", 2),
        batch_rows=values.get("batch_rows"),
        until=values.get("until"),
    )


def _nexmark_settings(options: Mapping[str, str]) -> SourceSettings:
    values = _parse("nexmark", options, _NEXMARK)
    fields = {field.name for field in dataclasses.fields(nexmark.NexmarkConfig)}
    config = nexmark.NexmarkConfig(**{k: v for k, v in values.items() if k in fields})
    columns = values.get("columns")
    nexmark.check_columns(columns)
    return _settings("nexmark", _NexmarkFeed(config, columns), values)


def _replay_settings(options: Mapping[str, str]) -> SourceSettings:
    values = _parse("replay", options, _REPLAY)
    if "path" not in values:
        msg = 'source replay has no option "path"; give the path of a CSV file with a time column.'
        raise ConfigError(msg)
    fields = ("path", "time_column", "speed", "repeat")
    chosen = {field: values[field] for field in fields if field in values}
    config = replay.ReplayConfig(**chosen, span_s=values.get("span"))
    return _settings("replay", _ReplayFeed(config), values)


def _exchange_settings(options: Mapping[str, str]) -> SourceSettings:
    values = _parse("stock_exchange", options, _EXCHANGE)
    config = stock_exchange.ExchangeConfig(**{k: v for k, v in values.items() if k in _EXCHANGE})
    feed = _RateFeed(config, stock_exchange.SCHEMA, stock_exchange.orders)
    # a single partition keeps the order of the stream, on which the trades depend
    return _settings("stock_exchange", feed, {"partitions": 1, **values})


def _sentence_settings(options: Mapping[str, str]) -> SourceSettings:
    values = _parse("sentences", options, _SENTENCES)
    config = sentences.SentenceConfig(**{k: v for k, v in values.items() if k in _SENTENCES})
    return _settings("sentences", _RateFeed(config, sentences.SCHEMA, sentences.sentences), values)


def check_options(source: str, options: Mapping[str, str]) -> None:
    """Refuse invalid options of a source of this module, before Spark starts.

    Raises
    ------
    ConfigError
        A name is unknown, or a value malformed or out of range.
    """
    _SETTINGS[source](options)


_SETTINGS: Mapping[str, Callable[[Mapping[str, str]], SourceSettings]] = {
    "nexmark": _nexmark_settings,
    "replay": _replay_settings,
    "stock_exchange": _exchange_settings,
    "sentences": _sentence_settings,
}


def settings_of(source: str, options: Mapping[str, str]) -> SourceSettings:
    """Return the settings of a source of this module.

    Raises
    ------
    ConfigError
        As `check_options`.
    """
    return _SETTINGS[source](options)


# --- readers -------------------------------------------------------------------------------------


class _Range(InputPartition):
    """Names the events [start, stop) of a stream that started at `base_us`, for one task."""

    def __init__(self, start: int, stop: int, base_us: int) -> None:
        self.start, self.stop, self.base_us = start, stop, base_us


def _split(start: int, stop: int, base_us: int, parts: int) -> list[_Range]:
    """Return at most `parts` contiguous ranges of nearly equal size, none of them empty."""
    edges = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return [_Range(low, high, base_us) for low, high in pairwise(edges) if low < high]


def _batches(feed: _Feed, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `partition`, a bounded number at a time."""
    # For a batch reader without partitions Spark passes an InputPartition(None).
    if isinstance(partition, _Range):
        for start in range(partition.start, partition.stop, ARROW_ROWS):
            stop = min(start + ARROW_ROWS, partition.stop)
            yield feed.batch(start, stop, partition.base_us)


def _now_us() -> int:
    return time.time_ns() // 1000


class _StreamReader(LimitedReader):
    """Computes offsets from the clock. Lives as long as the query, in one process beside the driver.

    Attributes
    ----------
    _base_us : int or None     Start of the stream when known; from `initialOffset`, or from the offset
                               of a restarted query.
    _target_us : int or None   Time at which the clock stands still under `availableNow`.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._base_us = settings.base_us
        self._target_us: int | None = None

    def initialOffset(self) -> dict[str, int]:
        if self._base_us is None:
            self._base_us = self._clock_us()
            limit = self._settings.limit
            if self._target_us is not None and limit:
                # A finite stream that is first read with availableNow ends now.
                self._base_us -= self._settings.feed.due_us(limit - 1)
        return {"event": 0, "base_us": self._base_us}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._settings.batch_rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def newest(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        first, base_us = start["event"], start["base_us"]
        self._base_us = base_us
        # Never backwards: options or the clock may have changed between two runs of a query.
        stop = max(first, self._settings.due(self._clock_us() - base_us))
        if isinstance(limit, ReadMaxRows):
            stop = min(stop, first + limit.max_rows)
        return {"event": stop, "base_us": base_us}

    def reportLatestOffset(self) -> dict[str, int] | None:
        if self._base_us is None:
            return None
        event = self._settings.due(self._clock_us() - self._base_us)
        return {"event": event, "base_us": self._base_us}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target_us = _now_us()

    def between(self, start: dict[str, int], end: dict[str, int]) -> list[_Range]:
        parts = self._settings.partitions
        return _split(start["event"], end["event"], end["base_us"], parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._settings.feed, partition)

    def _clock_us(self) -> int:
        return _now_us() if self._target_us is None else self._target_us


class _BatchReader(DataSourceReader):
    """Reads all events before one offset."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._event, self._base_us = _end(settings)

    def partitions(self) -> list[_Range]:
        return _split(0, self._event, self._base_us, self._settings.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._settings.feed, partition)


def _end(settings: SourceSettings) -> tuple[int, int]:
    """Return the event before which a batch ends, and the start of its stream."""
    limit = settings.limit
    if settings.until is not None:
        event, base_us = settings.until
        if event < 0 or (limit is not None and event > limit):
            msg = (
                f'option "until" of source {settings.name} is event {event}, but there are '
                f"{limit}; give the options of the stream that the offset is from."
            )
            raise ConfigError(msg)
        return event, base_us
    if limit is None or settings.base_us is None:
        msg = (
            f"a batch of source {settings.name} has no end or no start; "
            'give "until", or "base" with "events" or "duration".'
        )
        raise ConfigError(msg)
    return limit, settings.base_us


class _Source(DataSource):
    """Turns options into settings, and settings into readers, for both formats."""

    @classmethod
    def feed(cls, options: Mapping[str, str]) -> SourceFeed:
        """Return the feed from which a query in real time reads."""
        return ClockFeed(settings_of(cls.name(), options))

    def _settings(self) -> SourceSettings:
        raise NotImplementedError

    def schema(self) -> StructType:
        return from_arrow_schema(self._settings().feed.schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(self._settings())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(self._settings())


class NexmarkSource(_Source):
    """Provides format ``nexmark``: generated people, auctions and bids.

    Options are the fields of `headgate_demo.generators.nexmark.NexmarkConfig` (``rate`` as text, see
    `headgate.workloads.rates.parse_rate`), and ``columns``: names of columns (``bid``) or fields
    (``bid.price``) separated by commas; the fewer, the cheaper.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nexmark"

    def _settings(self) -> SourceSettings:
        return _nexmark_settings(self.options)


class ReplaySource(_Source):
    """Provides format ``replay``: a timed CSV log.

    Options are ``path``, ``time_column``, ``speed``, ``repeat`` and ``span`` (log time from one
    repetition to the next, with unit): see `headgate_demo.generators.replay.ReplayConfig`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "replay"

    def _settings(self) -> SourceSettings:
        return _replay_settings(self.options)


class StockExchangeSource(_Source):
    """Provides format ``stock_exchange``: generated orders.

    Options are the fields of `headgate_demo.generators.stock_exchange.ExchangeConfig` (``rate`` as text).
    The default is one partition, so that orders come in the order of their numbers.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "stock_exchange"

    def _settings(self) -> SourceSettings:
        return _exchange_settings(self.options)


class SentencesSource(_Source):
    """Provides format ``sentences``: generated text for a word count.

    Options are the fields of `headgate_demo.generators.sentences.SentenceConfig` (``rate`` as text).
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sentences"

    def _settings(self) -> SourceSettings:
        return _sentence_settings(self.options)


_SOURCES = (NexmarkSource, ReplaySource, SentencesSource, StockExchangeSource)


def register(spark: SparkSession) -> None:
    """Register the formats of this module with `spark`.

    Python workers must be able to import this package. Registering again is harmless.
    """
    for source in _SOURCES:
        spark.dataSource.register(source)
