"""The loops of ScaleJoin on state that several processes map."""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.core.jit import jit
from headgate.state.ports import I64

_CHUNK = 1024
"""Records that are compared before anybody looks for matches. Chosen, not tuned."""


@jit
def scale_join(
    owned: I64,
    times: I64,
    inputs: I64,
    first: Any,
    second: Any,
    count: int,
    reach: int,
    width: int,
    bounds: I64,
    stored_times: I64,
    stored_first: Any,
    stored_second: Any,
    totals: I64,
) -> None:
    """Serve records in order, for the keys of one slot.

    Each record meets what the other input has stored under these keys within `reach` of its time; then
    it is stored, if its turn is one of these keys'.

    Parameters
    ----------
    owned : int64[m]                   Keys, of K.
    times : int64[n]                   Never decreasing.
    inputs : int64[n]                  0 or 1.
    first, second : array[n]           Attributes; a pair matches within `width` in both.
    count : int                        Records of the operator before these: record c is stored by c % K.
    reach, width : int
    bounds : int64[2, K, 2]            Of each input and key, where stored records begin and end.
    stored_times, stored_first, stored_second : array[2, K, capacity]
    totals : int64[3]                  Comparisons, matches and records stored, added to.

    Raises
    ------
    ValueError    More records are within reach than there is room for.
    """
    keys, capacity = stored_times.shape[1], stored_times.shape[2]
    compared = matched = kept = 0
    for i in range(times.size):
        time, other = times[i], 1 - inputs[i]
        a, b = first[i] - width, first[i] + width
        c, d = second[i] - width, second[i] + width
        turn = (count + i) % keys
        for key in owned:
            begin, end = bounds[other, key, 0], bounds[other, key, 1]
            while begin < end and stored_times[other, key, begin] < time - reach:
                begin += 1
            bounds[other, key, 0] = begin
            compared += end - begin
            for chunk in range(begin, end, _CHUNK):
                stop = min(chunk + _CHUNK, end)
                x, y = stored_first[other, key, chunk:stop], stored_second[other, key, chunk:stop]
                # Without a branch, so that the compiler makes vector instructions of it.
                found = False
                for j in range(x.size):
                    found |= (x[j] >= a) & (x[j] <= b) & (y[j] >= c) & (y[j] <= d)
                if found:
                    for j in range(x.size):
                        matched += int(a <= x[j] <= b and c <= y[j] <= d)
            if turn == key:
                mine = inputs[i]
                at = bounds[mine, key, 1]
                if at == capacity:
                    # The room is behind: make it the room in front.
                    low = bounds[mine, key, 0]
                    if low == 0:
                        raise ValueError("more records within reach than there is room for")
                    held = at - low
                    stored_times[mine, key, :held] = stored_times[mine, key, low:at].copy()
                    stored_first[mine, key, :held] = stored_first[mine, key, low:at].copy()
                    stored_second[mine, key, :held] = stored_second[mine, key, low:at].copy()
                    bounds[mine, key, 0], at = 0, held
                stored_times[mine, key, at] = time
                stored_first[mine, key, at] = first[i]
                stored_second[mine, key, at] = second[i]
                bounds[mine, key, 1] = at + 1
                kept += 1
    totals[0] += compared
    totals[1] += matched
    totals[2] += kept


def fill(
    times: I64,
    inputs: I64,
    first: Any,
    second: Any,
    bounds: I64,
    stored_times: I64,
    stored_first: Any,
    stored_second: Any,
) -> None:
    """Store records without comparing them: the state that an operator has after a while.

    Record c goes to key c % K; parameters as of `scale_join`. Nothing is stored yet.
    """
    keys = stored_times.shape[1]
    turn = np.arange(times.size) % keys
    for side in (0, 1):
        for key in range(keys):
            mine = (turn == key) & (inputs == side)
            end = int(mine.sum())
            stored_times[side, key, :end] = times[mine]
            stored_first[side, key, :end] = first[mine]
            stored_second[side, key, :end] = second[mine]
            bounds[side, key] = 0, end
