"""Orders the rows of a key for a processor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]


def in_order(columns: Sequence[pa.Array], order: tuple[int, ...], of: I64) -> I64:
    """Return positions of rows sorted by key, then by the columns in `order`, then by all others.

    Columns of lists, maps and structs sort nothing. A null comes first.

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
            # Arrow's versions differ in the parameter for the place of nulls
            by += [pc.is_valid(columns[i]), columns[i]]
    names = [f"c{i}" for i in range(len(by))]
    rows = pa.RecordBatch.from_arrays(by, names=names)
    by_time = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]).to_numpy()
    rank = np.empty(len(by_time), dtype=np.int64)
    rank[by_time] = np.arange(len(by_time))
    return np.lexsort((rank, of))
