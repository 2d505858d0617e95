"""Reads traces: the number of records of each key group in each slice of time.

A trace comes from a file that the caller names: a log with keys, or totals over time.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from headgate.core.errors import ConfigError, nearest
from headgate.core.input import FLOAT_MAX, KEY_GROUPS_MAX, open_file, shown

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Counts = npt.NDArray[np.integer]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


_BYTES_MAX = 4 << 30
"""Largest file in memory, in bytes. The log of a busy web server's day is a tenth of this."""

_HEADER_MAX = 1 << 20
"""Longest header that the search for a delimiter reads, in bytes."""

_CELLS_MAX = 1 << 28
"""Most slices times key groups: 3 GB while records are counted."""

_RECORDS_MAX = 1e10
"""Most records of a trace. A simulation serves some millions of records per second."""

_SPEED_MIN = 1e-6

_WHOLE_S = 1e-6
"""Smallest fraction of a second, in s, that is no rounding: float64 stores seconds since 1970 with an
error of some tenths of a microsecond."""

_LEAST_S, _GRID = 1e-3, 1e-2
"""Shortest interval of counts, in s, and the largest distance from a whole multiple of the interval, as a
share of the interval, that counts as rounding. Chosen, not tuned."""

_UNITS = {
    "s": (1.0, "seconds"),
    "ms": (1e-3, "milliseconds"),
    "us": (1e-6, "microseconds"),
    "ns": (1e-9, "nanoseconds"),
}
"""Length in seconds and name of the units of times."""

_TIME_MAX = 1e19
"""Largest time as a number: nanoseconds since 1970 reach it in the year 2286."""

_SINCE_1970 = {"ns": 1e17, "us": 1e14, "ms": 1e11}
"""Smallest number that is read as a time since 1970 in each unit. In that unit the number means a time in
1973; in the next larger unit it would mean the year 5138."""


@dataclass(frozen=True)
class Trace:
    """Holds the number of records per slice of time and key group."""

    counts: Counts
    """integer[n, G]: records of key group g in slice i, which is [i slice_s, (i+1) slice_s)."""
    slice_s: float
    """Length of a slice, in seconds; > 0."""

    def __post_init__(self) -> None:
        if not (self.slice_s > 0 and math.isfinite(self.slice_s)):
            msg = f"slice_s of a trace is {self.slice_s:g}; give seconds above zero."
            raise ConfigError(msg)

    @property
    def duration_s(self) -> float:
        """Length of the trace, in seconds."""
        return len(self.counts) * self.slice_s

    @property
    def total(self) -> int:
        """Records in all."""
        return int(self.counts.sum())


def groups_of_keys(keys: npt.ArrayLike, key_groups: int) -> I64:
    """Return the key group of each integer key: a fixed hash, modulo `key_groups`.

    A simulation needs an even hash, not Spark's own.
    """
    word = np.asarray(keys).astype(np.uint64) * _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * _MIX_A
    word = (word ^ (word >> np.uint64(27))) * _MIX_B
    word = word ^ (word >> np.uint64(31))
    return (word % np.uint64(key_groups)).astype(np.int64)


@dataclass(frozen=True)
class KeyedRows:
    """Holds the rows of a log."""

    slices: I64
    """int64[rows]: slice of time of each row, from 0."""
    groups: I64
    """int64[rows]: key group of each row."""
    counts: F64 | None
    """float64[rows] or None: number of records of each row; None: one record per row."""
    costs: F64 | None
    """float64[rows] or None: cost of each record of a row, on any scale; None: all the same."""
    slice_s: float
    """Length of a slice, in log seconds."""
    times_s: F64 | None = None
    """float64[rows] or None: time of each row's records, in log seconds since the first slice began;
    None where only the slice is known."""
    notes: tuple[str, ...] = ()
    """Sentences about assumptions of the reading: the unit of times, the keys, the slices."""


def read_rows(
    path: str,
    key_groups: int,
    *,
    time_column: str = "time",
    key_column: str | None = "key",
    count_column: str | None = None,
    cost_column: str | None = None,
    slice_s: float | None = 1.0,
    time_unit: str | None = None,
) -> KeyedRows:
    """Return the rows of a log; one row per record, or per key and time with a count.

    Raises `ConfigError`: no such file or column, no rows, or values out of range.

    Parameters
    ----------
    path : str    A CSV file with a header, plain or gzip (`.gz`).
    key_groups : int
        G. Keys are numbered in the order in which they first appear, and hashed.
    time_column : str
        Seconds, numbers >= 0, or dates; in any order. The trace begins with the slice of the earliest
        time.
    key_column : str or None
        None where the log has no keys: the key groups get its records in turn.
    cost_column : str or None
        Cost of each record of a row, numbers >= 0 on any scale; None: all the same.
    count_column : str or None    Number of records of a row, whole numbers >= 0; None: one.
    slice_s : float or None
        Resolution of the log, in log seconds: records are at random times within it. None: as
        `resolution_of` finds it; records may then have the log's exact times.
    time_unit : str or None
        Unit of times that are numbers: s, ms, us or ns. None: the unit is guessed from the earliest
        time, see `_SINCE_1970`; small numbers are seconds.
    """
    _check_groups(key_groups)
    numbers = [name for name in (count_column, cost_column) if name is not None]
    table = _read(path, key=key_column, time=time_column, numbers=numbers)
    times_s, unit = _times(table, path, time_column, time_unit)
    notes = [] if unit == "s" else [f"times are {_UNITS[unit][1]}"]
    if key_column is None:
        groups = np.arange(table.num_rows) % key_groups
        notes.append("no keys: records are spread evenly over the key groups")
    else:
        keys = table.column(key_column).combine_chunks().dictionary_encode()
        groups = groups_of_keys(_dictionary_indices(keys), key_groups)
    counts = None if count_column is None else _numbers(table, path, count_column)
    if counts is not None and (broken := np.flatnonzero(counts != np.rint(counts))).size:
        named = _named(str(count_column), path)
        msg = f"{named} has {counts[broken[0]]:g} in row {broken[0] + 1}; give whole numbers of records."
        raise ConfigError(msg)
    costs = None if cost_column is None else _numbers(table, path, cost_column)
    exact = False
    if slice_s is None:
        slice_s, exact = resolution_of(times_s, counted=counts is not None)
    slices = np.floor(times_s / slice_s)
    first = slices.min()
    slices -= first
    notes.append(
        "records come when the log says"
        if exact
        else f"records of {slice_s:g} s are spread over it by chance"
    )
    if slices.max() + 1.0 > _CELLS_MAX / key_groups:
        msg = (
            f'column "{shown(time_column)}" of "{shown(path)}" spans {slices.max() * slice_s:g} s, too '
            f"long for {key_groups} key groups; take a part of it, or fewer key groups."
        )
        raise ConfigError(msg)
    since_s = times_s - first * slice_s if exact else None
    rows = KeyedRows(slices.astype(np.int64), groups, counts, costs, slice_s, since_s, tuple(notes))
    return rows if key_column is not None or counts is None else _dealt(rows, path, key_groups)


def _dealt(rows: KeyedRows, path: str, key_groups: int) -> KeyedRows:
    """Return rows without keys, whose counts are divided among key groups, a row per key group."""
    assert rows.counts is not None
    if len(rows.counts) * key_groups > _CELLS_MAX:
        msg = (
            f'"{shown(path)}" has {len(rows.counts):,} rows, too many for {key_groups} key groups '
            "without a column of keys; take a part of it, or fewer key groups."
        )
        raise ConfigError(msg)
    each, rest = np.divmod(rows.counts.astype(np.int64), key_groups)
    # the remainder of a row goes to the key groups after those of the row before
    begins = np.cumsum(rest) - rest
    turn = (np.arange(key_groups) - begins[:, None]) % key_groups
    counts = each[:, None] + (turn < rest[:, None])
    row, groups = np.nonzero(counts)
    return replace(
        rows,
        slices=rows.slices[row],
        groups=groups,
        counts=counts[row, groups].astype(np.float64),
        costs=None if rows.costs is None else rows.costs[row],
        times_s=None if rows.times_s is None else rows.times_s[row],
    )


def resolution_of(times_s: F64, *, counted: bool) -> tuple[float, bool]:
    """Return the slice of a log, in s, and whether the log's times are exact times of records.

    Times in whole seconds are not exact; the slice is a second, or in a log with counts the least
    distance of two rows if that is more. Times with fractions are exact, except in a log with counts in
    which all distances are multiples of the least distance; that distance is the slice.
    """
    between_s = np.diff(np.unique(times_s))
    least_s = float(between_s.min()) if len(between_s) else 1.0
    fractions = bool((np.abs(times_s - np.rint(times_s)) > _WHOLE_S).any())
    if not fractions:
        return (max(1.0, least_s) if counted else 1.0), False
    apart = between_s / least_s
    if counted and least_s >= _LEAST_S and (np.abs(apart - np.rint(apart)) < _GRID).all():
        return least_s, False
    return 1.0, True


def trace_of(rows: KeyedRows, path: str, key_groups: int, speed: float) -> Trace:
    """Return the counts of rows per slice and key group, played `speed` times as fast.

    Raises `ConfigError`: speed is out of range, or there are too many records, or none.
    """
    if not _SPEED_MIN <= speed <= 1.0 / _SPEED_MIN:
        msg = f"speed {speed:g} is out of range; use {_SPEED_MIN:g} to {1.0 / _SPEED_MIN:g}."
        raise ConfigError(msg)
    slices = int(rows.slices.max()) + 1
    length_s = slices * rows.slice_s / speed
    if not length_s <= _CELLS_MAX / key_groups:
        msg = (
            f'"{shown(path)}" plays for {length_s:g} s, too long for {key_groups} key groups; take a '
            "part of it, raise the speed, or take fewer key groups."
        )
        raise ConfigError(msg)
    cells = rows.slices * key_groups + rows.groups
    counts = np.bincount(cells, weights=rows.counts, minlength=slices * key_groups)
    whole = _whole(counts.astype(np.float64, copy=False), path)
    return Trace(whole.reshape(slices, key_groups), rows.slice_s / speed)


def read_totals(
    path: str,
    column: str,
    shares: npt.ArrayLike,
    generator: np.random.Generator,
    *,
    slice_s: float = 60.0,
    speed: float = 1.0,
) -> Trace:
    """Return the trace of a file with one total per row, spread at random over key groups.

    Raises `ConfigError`: no such file or column, no rows, or values out of range.

    Parameters
    ----------
    path : str    A CSV file with a header, plain or gzip (`.gz`); row i is slice i.
    column : str    The totals, whole numbers >= 0.
    shares : float64[G]    Probability of each key group.
    slice_s : float
        Time that a row covers, in log seconds. Default: a minute, as in the World Cup 1998 log.
    speed : float    Log seconds per second of the trace; > 0.
    """
    totals = _whole(_numbers(_read(path, numbers=[column]), path, column), path).astype(np.int64)
    counts = generator.multinomial(totals, shares / np.sum(shares))
    return Trace(counts.astype(np.int32), slice_s / speed)


def column_names(path: str) -> list[str]:
    """Return the names in the header of a CSV file. Raises `ConfigError`: the file cannot be read."""
    with _opened(path) as reader:
        return list(reader.schema.names)


@contextmanager
def _opened(
    path: str, options: csv.ConvertOptions | None = None
) -> Iterator[csv.CSVStreamingReader]:
    """Open a CSV file, which must be a regular file; turns Arrow's errors into `ConfigError`."""
    try:
        # Arrow chooses the decompression by the file's ending.
        with open_file(path, "the trace"):
            layout = csv.ParseOptions(delimiter=_delimiter(path))
            reader = csv.open_csv(path, convert_options=options, parse_options=layout)
        with reader:
            yield reader
    except (pa.ArrowException, OSError, UnicodeError) as error:
        why = shown(str(error).partition("\n")[0], 160)
        msg = (
            f'a trace cannot be read from "{shown(path)}" as CSV with a header ({why}); repair it.'
        )
        raise ConfigError(msg) from error


def _delimiter(path: str) -> str:
    """Return the delimiter of a CSV file: the most frequent in the header of comma, ;, tab and |."""
    opened = gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")
    with opened:
        header = opened.readline(_HEADER_MAX)
    return max(",;\t|", key=lambda delimiter: header.count(delimiter.encode()))


def _types(
    path: str, key: str | None, time: str | None, numbers: Sequence[str]
) -> csv.ConvertOptions:
    """Return the columns to read and their types.

    Arrow guesses types from the first rows. Where it guesses whole numbers, later rows may have
    fractions, so numbers are read as float64.
    """
    with _opened(path) as reader:
        schema = reader.schema
    wanted = [name for name in (time, key, *numbers) if name is not None]
    for name in wanted:
        _check_column(schema.names, path, name)
    types = {name: _number_type(schema.field(name).type) for name in numbers}
    if time is not None:
        types[time] = _number_type(schema.field(time).type)
    if key is not None and key not in types:
        types[key] = pa.binary()
    return csv.ConvertOptions(
        include_columns=list(dict.fromkeys(wanted)),
        column_types={name: kind for name, kind in types.items() if kind is not None},
    )


def _number_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type with which to read a column of numbers or times; None: as Arrow guesses.

    `kind`: the type that Arrow guessed from the first rows.
    """
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return None


def _read(
    path: str, *, key: str | None = None, time: str | None = None, numbers: Sequence[str] = ()
) -> pa.Table:
    size = 0
    batches = []
    with _opened(path, _types(path, key, time, numbers)) as reader:
        schema = reader.schema
        for batch in reader:
            size += batch.nbytes
            if size > _BYTES_MAX:
                msg = f'"{shown(path)}" holds more than {_BYTES_MAX:,} bytes; take a part of it.'
                raise ConfigError(msg)
            batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows == 0:
        msg = f'"{shown(path)}" has no rows; a trace needs one at least.'
        raise ConfigError(msg)
    return table


def _check_groups(key_groups: int) -> None:
    if not 1 <= key_groups <= KEY_GROUPS_MAX:
        msg = f"key_groups={key_groups} is out of range; use 1 to {KEY_GROUPS_MAX}."
        raise ConfigError(msg)


def _whole(counts: F64, path: str) -> npt.NDArray[np.int32]:
    """Return counts as whole numbers; raises `ConfigError`: there is no record, or there are too many."""
    total = float(counts.sum())
    if not 0.5 <= total <= _RECORDS_MAX or counts.max() > np.iinfo(np.int32).max:  # noqa: PLR2004
        msg = (
            f'"{shown(path)}" stands for {total:.3g} records; a simulation takes 1 to '
            f"{_RECORDS_MAX:.3g}, scale its counts."
        )
        raise ConfigError(msg)
    return np.rint(counts).astype(np.int32)


def _check_column(names: Sequence[str], path: str, name: str) -> None:
    if name not in names:
        hint = nearest(name, names) or f"; it has {shown(', '.join(names))}."
        msg = f'"{shown(path)}" has no column "{shown(name, 60)}"{shown(hint)}'
        raise ConfigError(msg)
    if names.count(name) > 1:
        msg = f'"{shown(path)}" has several columns "{shown(name, 60)}"; name each differently.'
        raise ConfigError(msg)


def _times(table: pa.Table, path: str, name: str, unit: str | None) -> tuple[F64, str]:
    """Return a column of times in s, and their unit; dates become times since the earliest date."""
    kind = table.column(name).type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        column = table.column(name).cast(pa.timestamp("us")).cast(pa.int64())
        if column.null_count:
            msg = f"{_named(name, path)} has rows without a date; fill them."
            raise ConfigError(msg)
        since_us = column.to_numpy()
        since_s: F64 = (since_us - since_us.min()) / 1e6
        return since_s, "s"
    if unit is not None and unit not in _UNITS:
        hint = nearest(unit, _UNITS) or f"; use {', '.join(_UNITS)}."
        msg = f'unknown unit of times "{shown(unit, 60)}"{hint}'
        raise ConfigError(msg)
    wanted = "seconds as numbers, or dates as 2026-01-31 12:00:00"
    times = _numbers(table, path, name, wanted, _TIME_MAX)
    least = float(times.min())
    unit_of = unit or next((u for u, from_ in _SINCE_1970.items() if least >= from_), "s")
    return times * _UNITS[unit_of][0], unit_of


def _numbers(
    table: pa.Table, path: str, name: str, wanted: str = "numbers", most: float = FLOAT_MAX
) -> F64:
    column = table.column(name)
    if not (pa.types.is_int64(column.type) or pa.types.is_float64(column.type)):
        msg = f"{_named(name, path)} has type {column.type}; give {wanted}."
        raise ConfigError(msg)
    values: F64 = column.to_numpy().astype(np.float64)
    wrong = ~((values >= 0.0) & (values <= most))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        msg = (
            f"{_named(name, path)} has {values[row]:g} in row {row + 1}; "
            f"give numbers from 0 to {most:g}."
        )
        raise ConfigError(msg)
    return values


def _named(column: str, path: str) -> str:
    return f'column "{shown(column, 60)}" of "{shown(path)}"'


def _dictionary_indices(keys: pa.DictionaryArray) -> I64:
    """Return the number of each key; missing keys count as one more key."""
    indices: I64 = keys.indices.fill_null(len(keys.dictionary)).to_numpy().astype(np.int64)
    return indices
