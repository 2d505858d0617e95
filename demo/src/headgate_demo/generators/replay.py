"""Replays a timed log, a CSV file with a time column, at a chosen speed.

The rows keep the order of the file. A row with an earlier time than its predecessor is out of order in
the replay, too: it arrives together with its predecessor, and keeps its own, older event time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from headgate.core.errors import ConfigError, nearest

__all__ = ["ReplayConfig", "ReplayLog", "load"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

EVENT_TIME, SCHEDULED = "ts", "scheduled"
"""The columns that a replay adds to those of the file."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class ReplayConfig:
    """Holds the path of a log and the parameters of its replay."""

    path: str
    """A CSV file with a header, plain or gzip (`.gz`); readable on every host that reads it."""

    time_column: str = "t_s"
    """Column with the time of each row, seconds since the log's start; numbers >= 0."""

    speed: float = 1.0
    """Log seconds per second of wall clock; > 0. Event time remains log time, so that at speed 60 a
    window of 60 s closes every second."""

    repeat: int = 1
    """How many times the log is played, one after another; >= 1."""

    span_s: float | None = None
    """Log seconds from one repetition to the next, above the last time in the log; None means the
    next whole second after that."""

    def __post_init__(self) -> None:
        if not (self.speed > 0 and math.isfinite(self.speed)):
            msg = f"speed of replay is {self.speed}; give a number above zero, such as 60."
            raise ConfigError(msg)
        if self.repeat < 1:
            msg = f"repeat of replay is {self.repeat}; give 1 or more."
            raise ConfigError(msg)


@dataclass(frozen=True)
class ReplayLog:
    """Holds a log in memory, with the due time of each row. Made by `load`.

    Attributes
    ----------
    rows : RecordBatch          The n rows of the file, in its order.
    offset_us : int64[n]        Event time of each row since the log's start, us.
    due_us : int64[n]           Due time of each row in the first repetition, us of wall clock since the
                                start; never decreasing.
    span_us : int               Event time from one repetition to the next, us.
    """

    config: ReplayConfig
    rows: pa.RecordBatch
    offset_us: I64
    due_us: I64
    span_us: int

    @property
    def total(self) -> int:
        """Rows in all repetitions together."""
        return int(self.rows.num_rows) * self.config.repeat

    @property
    def schema(self) -> pa.Schema:
        """The file's columns, then `ts` (event time) and `scheduled` (when due)."""
        added = [pa.field(EVENT_TIME, _TIMESTAMP), pa.field(SCHEDULED, _TIMESTAMP)]
        return pa.schema([*self.rows.schema, *added])

    def due(self, elapsed_us: int) -> int:
        """Return how many rows are due `elapsed_us` microseconds after the start."""
        if elapsed_us < 0:
            return 0
        cycle_us = self._cycle_us(1)
        cycle = min(elapsed_us // cycle_us, self.config.repeat - 1)
        inside = np.searchsorted(self.due_us, elapsed_us - self._cycle_us(cycle), side="right")
        return cycle * int(self.rows.num_rows) + int(inside)

    def scheduled_us(self, row: I64) -> I64:
        """Return the due times of rows, us since the start; never decreasing in `row`."""
        cycle, index = np.divmod(row, self.rows.num_rows)
        due_us: I64 = self.due_us[index] + cycle * self._cycle_us(1)
        return due_us

    def batch(self, start: int, stop: int, base_us: int) -> pa.RecordBatch:
        """Return rows [start, stop), counted through all repetitions.

        A row depends only on the file, the configuration, its number and `base_us`.

        Parameters
        ----------
        start, stop : int
            ``0 <= start <= stop <= total``.
        base_us : int
            When the replay started, us since the Unix epoch; also event time 0 of the log.

        Returns
        -------
        RecordBatch
            ``stop - start`` rows with `schema`.
        """
        assert 0 <= start <= stop <= self.total, (start, stop, self.total)
        row = np.arange(start, stop, dtype=np.int64)
        cycle, index = np.divmod(row, max(self.rows.num_rows, 1))
        columns = self.rows.take(pa.array(index)).columns
        event_us = base_us + self.offset_us[index] + cycle * self.span_us
        scheduled_us = base_us + self.scheduled_us(row)
        times = [pa.array(t).cast(pa.timestamp("us")).cast(_TIMESTAMP)
                 for t in (event_us, scheduled_us)]  # fmt: skip
        return pa.RecordBatch.from_arrays([*columns, *times], schema=self.schema)

    def _cycle_us(self, cycles: int) -> int:
        """Return the wall-clock length of whole repetitions; at least 1 us each."""
        return cycles * max(math.floor(self.span_us / self.config.speed), 1)


def load(config: ReplayConfig) -> ReplayLog:
    """Return the log of `config`, read once per process and version of the file.

    Raises
    ------
    ConfigError
        The file is missing or empty; the time column is missing, or has a value that is no number >= 0;
        a column has a name that a replay adds; or the span is shorter than the log.
    """
    try:
        version = os.stat(config.path).st_mtime_ns
    except OSError as error:
        msg = f'replay cannot read "{config.path}" ({error.strerror}); give the path of a CSV file.'
        raise ConfigError(msg) from error
    return _load(config, version)


@lru_cache(maxsize=4)
def _load(config: ReplayConfig, version: int) -> ReplayLog:
    # `version` is only part of the cache's key, so that a replaced file is read again.
    rows = _read(config)
    times_s = _times_s(config, rows)
    last_s = float(times_s.max())
    span_s = math.floor(last_s) + 1.0 if config.span_s is None else config.span_s
    if not (span_s > last_s and math.isfinite(span_s)):
        msg = f"span_s of replay is {span_s:g}, but the log lasts {last_s:g} s; give more."
        raise ConfigError(msg)
    # A row cannot arrive before the rows that precede it in the file.
    due_s = np.maximum.accumulate(times_s) / config.speed
    return ReplayLog(
        config=config,
        rows=rows,
        offset_us=np.rint(times_s * 1e6).astype(np.int64),
        due_us=np.floor(due_s * 1e6).astype(np.int64),
        span_us=round(span_s * 1e6),
    )


def _read(config: ReplayConfig) -> pa.RecordBatch:
    try:
        # Arrow chooses the decompression by the file's ending.
        table = csv.read_csv(config.path)
    except (pa.ArrowInvalid, OSError) as error:
        msg = f'replay cannot read "{config.path}" as CSV with a header ({error}); repair the file.'
        raise ConfigError(msg) from error
    if config.time_column not in table.column_names:
        names = ", ".join(table.column_names)
        hint = nearest(config.time_column, table.column_names) or f"; it has {names}."
        msg = f'"{config.path}" has no time column "{config.time_column}"{hint}'
        raise ConfigError(msg)
    taken = sorted({EVENT_TIME, SCHEDULED} & set(table.column_names))
    if taken:
        msg = f'"{config.path}" has a column "{taken[0]}", which a replay adds; rename it.'
        raise ConfigError(msg)
    if table.num_rows == 0:
        msg = f'"{config.path}" has no rows; a replay needs one at least.'
        raise ConfigError(msg)
    columns = [_simple(column.combine_chunks()) for column in table.columns]
    return pa.RecordBatch.from_arrays(columns, names=table.column_names)


def _simple(column: pa.Array) -> pa.Array:
    """Return integers, floats, booleans and text unchanged, columns of other types as text."""
    kinds = (pa.types.is_int64, pa.types.is_float64, pa.types.is_boolean, pa.types.is_string)
    return column if any(kind(column.type) for kind in kinds) else column.cast(pa.string())


def _times_s(config: ReplayConfig, rows: pa.RecordBatch) -> F64:
    column = rows.column(rows.schema.get_field_index(config.time_column))
    numbers = pa.types.is_int64(column.type) or pa.types.is_float64(column.type)
    if not numbers or column.null_count:
        kind = "a gap" if numbers else f"type {column.type}"
        msg = (
            f'time column "{config.time_column}" of "{config.path}" has {kind}; '
            "give seconds as numbers in every row."
        )
        raise ConfigError(msg)
    times_s: F64 = column.to_numpy(zero_copy_only=False).astype(np.float64)
    if not (np.isfinite(times_s).all() and times_s.min() >= 0.0):
        msg = (
            f'time column "{config.time_column}" of "{config.path}" has {times_s.min():g}; '
            "give seconds since the log's start, zero or above."
        )
        raise ConfigError(msg)
    return times_s
