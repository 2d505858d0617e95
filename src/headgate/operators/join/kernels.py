"""Runs the loops of the joins, over probe and stored records in order.

A kernel that returns pairs stops where its output is full, before the probe record it could not finish,
and says how many pairs it found and which record that is; the caller makes room and goes on there.
"""

from __future__ import annotations

import numpy as np

from headgate.core.jit import jit
from headgate.tables.ports import I64

_CHUNK = 1024
"""Records that are compared before anybody looks for matches: long enough for vector instructions,
short enough that looking again costs little. Chosen, not tuned."""


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

    Return the pairs found, and the first probe record not done: n when all are.

    Parameters
    ----------
    probe_of : int64[n]           The number of each probe record's key, -1 for one that has none.
    probe : int64[c, n]
    starts : int64[k + 1]         Where each key's stored records begin.
    stored : int64[c, m]          Sorted by key.
    band : int                    -1; or the number of a comparison that is replaced by
                                  ``stored[0] <= probe[band]``, within a key sorted by ``stored[0]``.
    probe_out, stored_out : int64[room]    Filled with the positions of the pairs that match.
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
                # No branch in this loop: so the compiler makes vector instructions of it.
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
