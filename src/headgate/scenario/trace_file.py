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
    """Holds the columns and the pace of a log; see `headgate.workloads.traces.read_keyed`.

    Attributes
    ----------
    time, key : str
    count, cost : str or None
        How many records a row stands for, and what each of them costs; None for the columns *count*
        and *cost* where there are such, else one, and all the same.
    slice_s : float or None
        For how long a row's records are spread; None for the file's own interval.
    speed : float
        Seconds of the file per second of the trace; > 0.
    """

    time: str = "time"
    key: str = "key"
    count: str | None = None
    cost: str | None = None
    slice_s: float | None = None
    speed: float = 1.0


def read_trace(
    path: Path, key_groups: int, columns: TraceColumns | None = None, *, seed: int = 1
) -> tuple[Trace, RecordedArrivals | None]:
    """Return the trace of a CSV file, and its records one by one where they cost differently.

    Parameters
    ----------
    path : Path
    key_groups : int
    columns : TraceColumns, optional
    seed : int
        For where in its slice a record lies.

    Raises
    ------
    ConfigError
        No such file or column, no rows, or values out of range.
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
        key_column=columns.key,
        count_column=columns.count or ("count" if "count" in names else None),
        cost_column=columns.cost or ("cost" if "cost" in names else None),
        slice_s=columns.slice_s,
    )
    trace = trace_of(rows, str(path), key_groups, columns.speed)
    if rows.costs is None:
        return trace, None
    generator = np.random.default_rng(seed)
    return trace, RecordedArrivals.of_rows(rows, key_groups, columns.speed, generator)
