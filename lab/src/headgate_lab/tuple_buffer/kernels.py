"""Merges the sources' rings into the ready order, separately for each reader.

The order is a function of the records alone (`port`), so readers need no shared merged list, and
nothing is written for them but their own cursors.
"""

from __future__ import annotations

import numpy as np

from headgate.core.jit import jit
from headgate.tables.ports import I64
from headgate_lab.tuple_buffer.layout import KIND_MASK, RANK_MASK, RANK_SHIFT

NOBODY = -1
_DATA = 0
_CONTROL = 1


@jit
def take_ready(
    times: I64, tags: I64, head: I64, rank: I64, cursor: I64, index: I64
) -> tuple[int, int, int]:
    """Return how many data records are ready, the control record that ends them, and the watermark.

    Parameters
    ----------
    times, tags : int64[S, slots]    The rings.
    head : int64[S]      Records each source has added.
    rank : int64[S]      Of connected sources; -1 for the others, which are not waited for.
    cursor : int64[S]    Records of each source that the reader has passed; is updated.
    index : int64[n]     Filled with at most n positions of records in the flattened rings.

    Returns
    -------
    count : int        Entries of `index` filled. Dummy and flush records are passed and not counted.
    control : int      Position of a control record that comes next; -1 if none does. It is not passed.
    watermark : int    Time of the last record passed; the least int64 if none was.
    """
    sources, slots = times.shape
    flat_tags = tags.reshape(sources * slots)
    count = 0
    watermark = np.iinfo(np.int64).min
    while count < index.size:
        # The first two of (time, rank) among the sources' next records, or, where a connected source
        # has none, the place before which it adds nothing any more.
        first, first_time, first_rank = NOBODY, 0, 0
        second, second_time, second_rank = NOBODY, 0, 0
        for s in range(sources):
            if cursor[s] < head[s]:
                at = cursor[s] % slots
                time, order = times[s, at], (tags[s, at] >> RANK_SHIFT) & RANK_MASK
            elif rank[s] < 0:
                continue
            elif head[s] == 0:
                return count, NOBODY, watermark
            else:
                time, order = times[s, (head[s] - 1) % slots], rank[s]
            if first == NOBODY or time < first_time or (time == first_time and order < first_rank):
                second, second_time, second_rank = first, first_time, first_rank
                first, first_time, first_rank = s, time, order
            elif (
                second == NOBODY
                or time < second_time
                or (time == second_time and order < second_rank)
            ):
                second, second_time, second_rank = s, time, order
        if first == NOBODY or cursor[first] == head[first]:
            break
        # All of the first source's records that come before the second's.
        while count < index.size and cursor[first] < head[first]:
            at = first * slots + cursor[first] % slots
            time = times[first, cursor[first] % slots]
            order = (flat_tags[at] >> RANK_SHIFT) & RANK_MASK
            behind = time > second_time or (time == second_time and order > second_rank)
            if second != NOBODY and behind:
                break
            kind = flat_tags[at] & KIND_MASK
            if kind == _CONTROL:
                return count, at, watermark
            if kind == _DATA:
                index[count] = at
                count += 1
            cursor[first] += 1
            watermark = time
    return count, NOBODY, watermark


def warm() -> None:
    """Compile the kernel, or load it from its cache, before the first record needs it."""
    zero = np.zeros(1, dtype=np.int64)
    take_ready(zero.reshape(1, 1), zero.reshape(1, 1), zero, zero, zero, zero)
