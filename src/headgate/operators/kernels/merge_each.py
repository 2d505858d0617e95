"""Merges buffers into the rows of many key groups' tables in one call."""

from __future__ import annotations

from typing import Any

from headgate.core.jit import jit
from headgate.operators.kernels.merge import OK, merge
from headgate.tables.together import floats_of, heap_of, offsets_of, rows_of


@jit
def merge_each(
    at: Any,
    edges: Any,
    index: Any,
    incoming: Any,
    incoming_float: Any,
    start: int,
    ops: Any,
    leaves: Any,
) -> int:
    """Merge buffers ``edges[i, 0]:edges[i, 1]`` into rows of table i; see `merge`.

    Returns
    -------
    int
        Number of merged tables; less than all if a sum of the next table overflowed.
    """
    for i in range(at.shape[0]):
        first, stop = edges[i, 0], edges[i, 1]
        status = merge(
            rows_of(at, i)[:, start:],
            floats_of(at, i)[:, start:],
            index[first:stop],
            incoming[first:stop],
            incoming_float[first:stop],
            ops,
            leaves,
            offsets_of(at, i),
            heap_of(at, i),
        )
        if status != OK:
            return i
    return int(at.shape[0])
