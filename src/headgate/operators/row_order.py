"""Orders the rows of a key for a processor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]


def in_order(columns: Sequence[pa.Array], order: tuple[int, ...], of: I64) -> I64:
    """Return the positions of rows by key, then by some columns, then by all others.

    Rows that are then still apart are equal but for columns of lists, maps and structs, which order
    nothing. A null comes first.

    Parameters
    ----------
    columns : sequence of pyarrow.Array of n rows
    order : tuple of int    Positions among `columns`.
    of : int64[n]    The key of each row.
    """
    rest = [i for i in range(len(columns)) if i not in order]
    by: list[pa.Array] = []
    for i in (*order, *rest):
        if not pa.types.is_nested(columns[i].type):
            # where nulls go is said differently from one Arrow to the next
            by += [pc.is_valid(columns[i]), columns[i]]
    names = [f"c{i}" for i in range(len(by))]
    rows = pa.RecordBatch.from_arrays(by, names=names)
    by_time = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]).to_numpy()
    rank = np.empty(len(by_time), dtype=np.int64)
    rank[by_time] = np.arange(len(by_time))
    return np.lexsort((rank, of))
