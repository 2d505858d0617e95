"""Traces: how many records of each key group arrived in each slice of time.

A trace is made from a file that the caller names (a log with keys, or totals over time), or from a
model of one (`stock_exchange_rates`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from headgate.core.errors import ConfigError, nearest

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Counts = npt.NDArray[np.integer]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Trace:
    """Counts per slice of time and key group.

    Attributes
    ----------
    counts : integer[n, G]
        Records of key group g in slice i, which is [i slice_s, (i+1) slice_s).
    slice_s : float
        Length of a slice, in seconds; > 0.
    """

    counts: Counts
    slice_s: float

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


def group_shares(key_shares: npt.ArrayLike, key_groups: int) -> F64:
    """Return the share of each key group, from the share of each key (numbered from 0)."""
    weights = np.asarray(key_shares, dtype=np.float64)
    groups = groups_of_keys(np.arange(len(weights)), key_groups)
    return np.bincount(groups, weights=weights, minlength=key_groups).astype(np.float64)


def read_keyed(
    path: str,
    key_groups: int,
    *,
    time_column: str = "time",
    key_column: str = "key",
    count_column: str | None = None,
    slice_s: float = 1.0,
    speed: float = 1.0,
) -> Trace:
    """Return the trace of a log with one row per record, or per key and time with a count.

    Parameters
    ----------
    path : str
        A CSV file with a header, plain or gzip (`.gz`).
    key_groups : int
        G. Keys are numbered in the order in which they first appear, and hashed.
    time_column : str
        Seconds, numbers >= 0, in any order; a trace begins with the slice of the earliest one.
    key_column : str
        Anything.
    count_column : str or None
        How many records a row stands for, whole numbers >= 0; None: one.
    slice_s : float
        Resolution of the log, in log seconds: within it records are spread by chance.
    speed : float
        Log seconds per second of the trace; > 0.

    Raises
    ------
    ConfigError
        No such file or column, no rows, or values out of range.
    """
    table = _read(path)
    times_s = _numbers(table, path, time_column)
    keys = _column(table, path, key_column).combine_chunks().dictionary_encode()
    groups = groups_of_keys(_dictionary_indices(keys), key_groups)
    weights = None if count_column is None else _numbers(table, path, count_column)
    slices = np.floor(times_s / slice_s).astype(np.int64)
    slices -= slices.min()
    rows = int(slices.max()) + 1
    cells = slices * key_groups + groups
    counts = np.bincount(cells, weights=weights, minlength=rows * key_groups)
    whole = np.rint(counts).astype(np.int32).reshape(rows, key_groups)
    return Trace(whole, slice_s / speed)


def read_totals(
    path: str,
    column: str,
    shares: npt.ArrayLike,
    generator: np.random.Generator,
    *,
    slice_s: float = 60.0,
    speed: float = 1.0,
) -> Trace:
    """Return the trace of a file with one total per row, spread over key groups by chance.

    Parameters
    ----------
    path : str
        A CSV file with a header, plain or gzip (`.gz`); row i is slice i.
    column : str
        The totals, whole numbers >= 0.
    shares : float64[G]
        Probability of each key group.
    generator : numpy.random.Generator
    slice_s : float
        What a row covers, in log seconds. Default: a minute, as in the World Cup 1998 log.
    speed : float
        Log seconds per second of the trace; > 0.

    Raises
    ------
    ConfigError
        No such file or column, no rows, or values out of range.
    """
    totals = np.rint(_numbers(_read(path), path, column)).astype(np.int64)
    shares = np.asarray(shares, dtype=np.float64)
    counts = generator.multinomial(totals, shares / shares.sum())
    return Trace(counts.astype(np.int32), slice_s / speed)


def column_names(path: str) -> list[str]:
    """Return the names in the header of a CSV file.

    Raises
    ------
    ConfigError
        It cannot be read.
    """
    try:
        with csv.open_csv(path) as reader:
            return list(reader.schema.names)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, error) from error


def _read(path: str) -> pa.Table:
    try:
        # Arrow chooses the decompression by the file's ending.
        table = csv.read_csv(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, error) from error
    if table.num_rows == 0:
        msg = f'"{path}" has no rows; a trace needs one at least.'
        raise ConfigError(msg)
    return table


def _unreadable(path: str, error: Exception) -> ConfigError:
    msg = f'a trace cannot be read from "{path}" as CSV with a header ({error}); repair it.'
    return ConfigError(msg)


def _column(table: pa.Table, path: str, name: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        names = ", ".join(table.column_names)
        hint = nearest(name, table.column_names) or f"; it has {names}."
        msg = f'"{path}" has no column "{name}"{hint}'
        raise ConfigError(msg)
    return table.column(name)


def _numbers(table: pa.Table, path: str, name: str) -> F64:
    column = _column(table, path, name)
    if not (pa.types.is_int64(column.type) or pa.types.is_float64(column.type)):
        msg = f'column "{name}" of "{path}" has type {column.type}; give numbers.'
        raise ConfigError(msg)
    values: F64 = column.to_numpy().astype(np.float64)
    wrong = ~(np.isfinite(values) & (values >= 0.0))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        msg = f'column "{name}" of "{path}" has {values[row]:g} in row {row}; give numbers >= 0.'
        raise ConfigError(msg)
    return values


def _dictionary_indices(keys: pa.DictionaryArray) -> I64:
    """Return the number of each key; a missing key is one of its own."""
    indices: I64 = keys.indices.fill_null(len(keys.dictionary)).to_numpy().astype(np.int64)
    return indices
