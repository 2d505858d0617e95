"""Runs the loops of band, theta and scale joins, over probe and stored records in order.

A kernel that returns pairs stops when its output is full, before the probe record that it could not
finish. It returns the number of pairs and the position of that record; the caller makes room and goes
on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headgate.core.jit import jit
from headgate.tables.ports import I64

_CHUNK = 1024
"""Records that are compared before the matches among them are looked for: enough for vector
instructions, few enough that the second pass costs little. Chosen, not tuned."""


@jit
def compare_bands(
    times: I64,
    first_low: Any,
    first_high: Any,
    second_low: Any,
    second_high: Any,
    stored_times: I64,
    first: Any,
    second: Any,
    reach: int,
    start: int,
    probe_out: I64,
    stored_out: I64,
) -> tuple[int, int]:
    """Compare each probe record from `start` on with every stored one within `reach` of its time.

    Parameters
    ----------
    times : int64[n]              Of the probe records, never decreasing.
    first_low ... second_high : array[n]     Bounds, both inclusive, of the two attributes.
    stored_times : int64[m]       Never decreasing.
    first, second : array[m]      The stored records' attributes.
    probe_out, stored_out : int64[room]    Filled with the positions of the pairs that match.

    Returns
    -------
    count, next : int    Pairs found; the first probe record not done, n when all are.
    """
    count = 0
    left = right = 0
    stored = stored_times.size
    for i in range(start, times.size):
        time = times[i]
        while left < stored and stored_times[left] < time - reach:
            left += 1
        while right < stored and stored_times[right] <= time + reach:
            right += 1
        begun = count
        a, b, c, d = first_low[i], first_high[i], second_low[i], second_high[i]
        for chunk in range(left, right, _CHUNK):
            end = min(chunk + _CHUNK, right)
            x, y = first[chunk:end], second[chunk:end]
            # No branch in this loop, and no index that could be negative: so the compiler makes vector
            # instructions of it, 20 times as fast.
            found = False
            for j in range(x.size):
                found |= (x[j] >= a) & (x[j] <= b) & (y[j] >= c) & (y[j] <= d)
            if not found:
                continue
            for j in range(x.size):
                if a <= x[j] <= b and c <= y[j] <= d:
                    if count == probe_out.size:
                        return begun, i
                    probe_out[count] = i
                    stored_out[count] = chunk + j
                    count += 1
    return count, times.size


@jit
def look_up_bands(
    times: I64,
    first_low: Any,
    first_high: Any,
    second_low: Any,
    second_high: Any,
    stored_times: I64,
    first: Any,
    second: Any,
    order: I64,
    reach: int,
    start: int,
    probe_out: I64,
    stored_out: I64,
) -> tuple[int, int]:
    """Do what `compare_bands` does, with stored records sorted by their first attribute.

    `order` holds their positions before sorting; pairs of one probe record come in sorted order.
    """
    count = 0
    for i in range(start, times.size):
        time = times[i]
        begun = count
        high, c, d = first_high[i], second_low[i], second_high[i]
        j = np.searchsorted(first, first_low[i])
        while j < first.size and first[j] <= high:
            if c <= second[j] <= d and abs(stored_times[j] - time) <= reach:
                if count == probe_out.size:
                    return begun, i
                probe_out[count] = i
                stored_out[count] = order[j]
                count += 1
            j += 1
    return count, times.size


@jit
def compare_theta(
    match: Callable[[Any, int, Any, int], bool],
    times: I64,
    probe: Any,
    stored_times: I64,
    stored: Any,
    reach: int,
    start: int,
    probe_out: I64,
    stored_out: I64,
) -> tuple[int, int]:
    """Compare as `compare_bands` does, by any compiled predicate on two tuples of columns."""
    count = 0
    left = right = 0
    for i in range(start, times.size):
        time = times[i]
        while left < stored_times.size and stored_times[left] < time - reach:
            left += 1
        while right < stored_times.size and stored_times[right] <= time + reach:
            right += 1
        begun = count
        for j in range(left, right):
            if match(probe, i, stored, j):
                if count == probe_out.size:
                    return begun, i
                probe_out[count] = i
                stored_out[count] = j
                count += 1
    return count, times.size


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

    Each record is compared with the other input's records under these keys within `reach` of its time;
    then it is stored if it belongs to one of these keys.

    Parameters
    ----------
    owned : int64[m]                   Keys, of K.
    times : int64[n]                   Never decreasing.
    inputs : int64[n]                  0 or 1.
    first, second : array[n]           Attributes; a pair matches within `width` in both.
    count : int                        Records of the operator before these: record c is stored by c % K.
    bounds : int64[2, K, 2]            Of each input and key, where stored records begin and end.
    stored_times, stored_first, stored_second : array[2, K, capacity]
    totals : int64[3]                  Comparisons, matches and records stored, added to.

    Raises
    ------
    ValueError    More records are within reach than there is room for.
    """
    keys, capacity = stored_times.shape[1], stored_times.shape[2]
    compared = matched = kept = 0
    # Keys do not see each other, so all records may pass one key before the next: what a key has stored
    # then stays in the processor's cache.
    for key in owned:
        for i in range(times.size):
            time, other = times[i], 1 - inputs[i]
            a, b = first[i] - width, first[i] + width
            c, d = second[i] - width, second[i] + width
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
            if (count + i) % keys == key:
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
