"""Counts a slot's arrivals and completions for the control loop, by tick and key group.

Tick m is ``((m - 1) delta, m delta]`` since 1970-01-01 UTC, so ticks of all hosts have the same bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.tables.ports import I64

F64 = npt.NDArray[np.float64]

_DENSE_CELLS = 1 << 20
"""Largest number of cells (ticks x key groups) that are counted in one array. Above it, as with a backlog
of hours, records are sorted instead, which needs less memory."""


@dataclass(frozen=True)
class Binned:
    """Holds counts of records by tick and key group; one element per pair with at least one record."""

    tick: I64
    """int64[n]: the tick m."""
    group: I64
    """int64[n]."""
    records: F64
    """float64[n]: number of records; > 0."""
    latency_ms: F64
    """float64[n]: sum of the records' latencies, ms; zeros for arrivals."""
    within: F64
    """float64[n]: records with a latency of at most the bound; zeros without a bound."""


@dataclass(frozen=True)
class Counts:
    """Holds the counts of one execution of a slot's task."""

    arrivals: Binned
    """New records by time of arrival, served or waiting, without late records."""
    completions: Binned
    """Served records by time of completion, new or from the backlog. A share of another slot's key group
    is not counted here; its owner counts these records when it has merged them."""
    end_tick: int = 0
    """Tick in which the execution ended."""


def tick_of(at_ms: float, delta_ms: float) -> int:
    """Return the tick that contains a time."""
    return ceil(at_ms / delta_ms)


@dataclass(frozen=True)
class Arrived:
    """Holds rows as groups of records that arrived together."""

    row: I64
    """int64[n]: the row that each element comes from."""
    group: I64
    """int64[n]."""
    at_ms: F64
    """float64[n]: time of arrival, ms since 1970; NaN if unknown."""
    records: F64
    """float64[n]: number of records."""


def arrived(group: I64, records: I64, first_ms: F64 | None, last_ms: F64 | None) -> Arrived:
    """Return the records of rows by their times of arrival.

    A row of several records has the arrival times of its first and last record. Half of its records count
    at either time.

    `group`, `records`: int64[n]. `first_ms`, `last_ms` (float64[n] or None): NaN for rows, or None for
    all rows, whose time of arrival is unknown.
    """
    row = np.arange(len(group))
    weight = records.astype(np.float64)
    if first_ms is None or last_ms is None:
        return Arrived(row, group, np.full(len(group), np.nan), weight)
    if not (records > 1).any():
        return Arrived(row, group, first_ms, weight)
    at_last = np.floor((weight + 1) / 2)
    return Arrived(
        np.concatenate([row, row]),
        np.concatenate([group, group]),
        np.concatenate([first_ms, last_ms]),
        np.concatenate([weight - at_last, at_last]),
    )


def completed_ms(records: I64, from_ms: float, to_ms: float) -> F64:
    """Return when each row was completed, assuming that a slot serves its rows one after another.

    `records` (int64[n]): records of each row, in the sequence of service. `from_ms`, `to_ms`: begin and
    end of the slot's work.
    """
    done = np.cumsum(records).astype(np.float64)
    at_ms: F64 = from_ms + (to_ms - from_ms) * done / (records.sum() or 1)
    return at_ms


def count_arrivals(new: Arrived, delta_ms: float, now_ms: float) -> Binned:
    """Return arrivals by tick; an arrival after `now_ms` (source clock ahead) counts at `now_ms`."""
    at_ms = np.fmin(new.at_ms, now_ms)
    return _binned(at_ms, new.group, new.records, None, 0.0, delta_ms)


def count_completions(
    served: Arrived, done_ms: F64, delta_ms: float, bound_ms: float = 0.0
) -> Binned:
    """Return completions by tick, with the sum of their latencies.

    `done_ms` (float64[n]): completion time of each element of `served`. `bound_ms`: largest latency
    of records that count in `Binned.within`; 0 counts none.
    """
    latency_ms = np.fmax(done_ms - served.at_ms, 0.0)
    return _binned(done_ms, served.group, served.records, latency_ms, bound_ms, delta_ms)


def _binned(
    at_ms: F64,
    group: I64,
    records: F64,
    latency_ms: F64 | None,
    bound_ms: float,
    delta_ms: float,
) -> Binned:
    some = records > 0
    if not some.all():
        at_ms, group, records = at_ms[some], group[some], records[some]
        latency_ms = None if latency_ms is None else latency_ms[some]
    if len(at_ms) == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return Binned(nothing, nothing, np.zeros(0), np.zeros(0), np.zeros(0))
    tick = np.ceil(at_ms / delta_ms).astype(np.int64)
    first, groups = int(tick.min()), int(group.max()) + 1
    cell = (tick - first) * groups + group
    single = bool((records == 1).all())  # the usual case; it takes half the work
    if int(cell.max()) < _DENSE_CELLS:
        rows = np.bincount(cell)
        cells, place = np.flatnonzero(rows), cell
    else:
        cells, place, rows = np.unique(cell, return_inverse=True, return_counts=True)

    def chosen(sums: npt.NDArray[Any]) -> F64:
        values: F64 = (sums[cells] if place is cell else sums).astype(np.float64)
        return values

    def summed(values: F64) -> F64:
        return chosen(np.bincount(place, values if single else values * records))

    latencies = within = np.zeros(len(cells))
    if latency_ms is not None:
        latencies = summed(latency_ms)
        if bound_ms:
            within = summed((latency_ms <= bound_ms).astype(np.float64))
    return Binned(
        cells // groups + first,
        cells % groups,
        chosen(rows) if single else chosen(np.bincount(place, records)),
        latencies,
        within,
    )
