"""Implements the loop of a join over probe and stored records.

The kernel stops when its output is full. It returns the number of pairs of finished probe records, and
the first unfinished probe record. The caller then provides more room and continues there.
"""

from __future__ import annotations

import numpy as np

from headgate.core.jit import jit
from headgate.tables.ports import I64

_CHUNK = 1024
"""Stored records per chunk: the kernel compares a whole chunk, then collects its matches. Long enough for
vector instructions, short enough that the second loop costs little. Chosen, not tuned."""


@jit
def compare_keyed(
    probe_of: I64,
    probe: I64,
    starts: I64,
    stored: I64,
    band: int,
    start: int,
    probe_out: I64,
    stored_out: I64,
) -> tuple[int, int]:
    """Find the stored records of each probe record's key with ``probe[c] <= stored[c]`` for all c.

    Return the number of pairs, and the first unfinished probe record (n if all are finished).

    Parameters
    ----------
    probe_of : int64[n]           The number of each probe record's key, -1 if it cannot match.
    probe : int64[c, n]
    starts : int64[k + 1]         Index of each key's first stored record.
    stored : int64[c, m]          Sorted by key.
    band : int
        -1 for none; or the number of a comparison that is tested as ``stored[0] <= probe[band]`` instead.
        The stored records of each key must then be sorted by ``stored[0]``.
    probe_out, stored_out : int64[room]    Receive the positions of matching pairs.
    """
    count = 0
    comparisons = probe.shape[0]
    match = np.empty(_CHUNK, np.bool_)
    for i in range(start, probe_of.size):
        key = probe_of[i]
        if key < 0:
            continue
        left, right = starts[key], starts[key + 1]
        if band >= 0:
            first = stored[0, left:right]
            right = left + np.searchsorted(first, probe[band, i], side="right")
            left = left + np.searchsorted(first, probe[0, i], side="left")
        begun = count
        for chunk in range(left, right, _CHUNK):
            end = min(chunk + _CHUNK, right)
            size = end - chunk
            match[:size] = True
            for c in range(comparisons):
                if band >= 0 and c * (c - band) == 0:
                    continue
                # A loop without branches compiles to vector instructions.
                bound, values = probe[c, i], stored[c, chunk:end]
                for j in range(size):
                    match[j] &= values[j] >= bound
            for j in range(size):
                if match[j]:
                    if count == probe_out.size:
                        return begun, i
                    probe_out[count] = i
                    stored_out[count] = chunk + j
                    count += 1
    return count, probe_of.size
