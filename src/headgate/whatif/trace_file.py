"""Reads a user's own log as a trace to simulate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headgate.core.errors import ConfigError
from headgate.core.input import is_file, shown
from headgate.workloads.arrivals import RecordedArrivals
from headgate.workloads.traces import Trace, column_names, read_rows, trace_of


@dataclass(frozen=True)
class TraceColumns:
    """Holds the columns and the pace of a log; see `headgate.workloads.traces.read_rows`."""

    time: str = "time"
    key: str | None = None
    """None for the column *key* where there is one, else for no keys."""
    count: str | None = None
    cost: str | None = None
    """`count`, `cost`: number of records of a row, and cost of each record; None for the columns
    *count* and *cost* where there are such, else one record per row, and equal costs."""
    slice_s: float | None = None
    """Time over which a row's records are spread, in log seconds; None for the file's own interval, or
    for no spreading where its times have fractions of a second."""
    speed: float = 1.0
    """Seconds of the file per second of the trace; > 0."""
    unit: str | None = None
    """Unit of times that are numbers: s, ms, us, ns; None for what fits times since 1970, or s."""


def read_log(
    path: Path, key_groups: int, columns: TraceColumns | None = None, *, seed: int
) -> tuple[Trace, RecordedArrivals | None, tuple[str, ...]]:
    """Return the trace of a CSV file, its records one by one, and how the file was read.

    The records are None where they all cost the same and are only known to lie within a slice.

    `seed`: for the random time of a record in its slice. Raises `ConfigError`: no such file or column,
    no rows, or values out of range.
    """
    if not is_file(path):
        msg = f'there is no file "{shown(path)}"; name a CSV file with the columns time, key and count.'
        raise ConfigError(msg)
    columns = columns or TraceColumns()
    names = column_names(str(path))
    rows = read_rows(
        str(path),
        key_groups,
        time_column=columns.time,
        key_column=columns.key or ("key" if "key" in names else None),
        count_column=columns.count or ("count" if "count" in names else None),
        cost_column=columns.cost or ("cost" if "cost" in names else None),
        slice_s=columns.slice_s,
        time_unit=columns.unit,
    )
    trace = trace_of(rows, str(path), key_groups, columns.speed)
    if rows.costs is None and rows.times_s is None:
        return trace, None, rows.notes
    generator = np.random.default_rng(seed)
    records = RecordedArrivals.of_rows(rows, key_groups, columns.speed, generator)
    return trace, records, rows.notes
