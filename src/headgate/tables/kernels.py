"""Finds rows by open addressing and interns strings, as plain functions on arrays.

A table is ``rows: int64[capacity, width]`` with linear probing; the capacity is a power of two. Word 0
of a row, `meta`, is 0 in an unused row; otherwise it is ``2 * stamp + alive``, where `stamp` is the
step that last touched the row. A dead row with a stamp is a tombstone, and keeps its key, which the
step's section needs. The same key may reuse a tombstone at once, another key from the next step on. So
a key occurs at most once in a table, dead or alive.

A kernel that adds rows or strings stops when it runs out of room. It returns its progress and the
reason; the caller makes room and calls again.
"""

from __future__ import annotations

import numpy as np

from headgate.core.jit import jit
from headgate.tables.ports import I64, U8

# Positions in `counts`, an int64 vector in the table's header.
LIVE, USED, STRINGS, STRING_BYTES, STAMP, UNDO_VALID, UNDO_COUNT = range(7)
# Reasons for the return of a kernel.
DONE, ROWS_FULL, UNDO_FULL, STRINGS_FULL = range(4)

_SEED = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_SHIFT_A = np.uint64(32)
_SHIFT_B = np.uint64(29)
_ONE = np.uint64(1)

# String hash: a polynomial over four-byte blocks modulo the prime 2**31 - 1, so that no product reaches
# 2**63 and the interpreted form needs no wrapping. The base is chosen, not tuned.
_PRIME = 2147483647
_BASE = 1664525341
_LOW = 0xFFFFFFFF
_GREATEST = 2**63 - 1


@jit
def hash_words(words: I64) -> I64:
    """Return a non-negative 63-bit hash of each row of `words` (int64[n, k], contiguous)."""
    mixed = np.full(words.shape[0], _SEED, dtype=np.uint64)
    for j in range(words.shape[1]):
        mixed = (mixed ^ words[:, j].astype(np.uint64)) * _MIX_A
        mixed = mixed ^ (mixed >> _SHIFT_A)
    mixed = mixed * _MIX_B
    mixed = mixed ^ (mixed >> _SHIFT_B)
    return (mixed >> _ONE).astype(np.int64)


@jit
def _same_key(rows: I64, position: int, keys: I64, i: int) -> bool:
    for j in range(keys.shape[1]):
        if rows[position, 1 + j] != keys[i, j]:
            return False
    return True


@jit
def _log(rows: I64, position: int, undo: I64, counts: I64) -> bool:
    """Save the row's pre-image when the step first touches it; False if the undo log is full."""
    if counts[UNDO_VALID] == 0 or rows[position, 0] >> 1 == counts[STAMP]:
        return True
    at = counts[UNDO_COUNT]
    if at >= undo.shape[0]:
        return False
    undo[at, 0] = position
    for j in range(rows.shape[1]):
        undo[at, 1 + j] = rows[position, j]
    counts[UNDO_COUNT] = at + 1
    return True


@jit
def _probe(rows: I64, keys: I64, i: int, hashed: int, stamp: int) -> tuple[int, bool]:
    """Return the key's row and True; else a row that the key may use (-1 for none) and False."""
    mask = rows.shape[0] - 1
    position = hashed & mask
    spare = -1
    for _ in range(rows.shape[0]):
        meta = rows[position, 0]
        if meta == 0:
            return position if spare < 0 else spare, False
        if _same_key(rows, position, keys, i):
            return position, True
        if spare < 0 and meta & 1 == 0 and meta >> 1 != stamp:
            spare = position
        position = (position + 1) & mask
    return spare, False


@jit
def upsert(
    rows: I64,
    fresh: I64,
    keys: I64,
    hashes: I64,
    start: int,
    limit: int,
    undo: I64,
    counts: I64,
    out: I64,
) -> tuple[int, int]:
    """Find or create the row of each key from `start` on.

    Returns the number of finished keys, counted from key 0, and the reason for the return.

    Parameters
    ----------
    rows : int64[capacity, 1 + k + v]
    fresh : int64[v]          Value words of a new row.
    keys : int64[n, k]
    hashes : int64[n]         `hash_words(keys)`.
    limit : int               Used rows (tombstones included) at which to stop.
    undo : int64[m, 1 + width]    Index and pre-image of each row this step touched.
    counts : int64[7]         Changed in place.
    out : int64[n]            Receives row indices.
    """
    stamp = counts[STAMP]
    alive = stamp * 2 + 1
    key_words = keys.shape[1]
    for i in range(start, keys.shape[0]):
        target, _ = _probe(rows, keys, i, hashes[i], stamp)
        if target < 0:
            return i, ROWS_FULL
        meta = rows[target, 0]
        out[i] = target
        if meta == alive:
            continue
        if meta == 0 and counts[USED] >= limit:
            return i, ROWS_FULL
        if not _log(rows, target, undo, counts):
            return i, UNDO_FULL
        if meta & 1 == 0:
            counts[LIVE] += 1
            if meta == 0:
                counts[USED] += 1
            for j in range(key_words):
                rows[target, 1 + j] = keys[i, j]
            for j in range(fresh.shape[0]):
                rows[target, 1 + key_words + j] = fresh[j]
        rows[target, 0] = alive
    return keys.shape[0], DONE


@jit
def find(rows: I64, keys: I64, hashes: I64, out: I64) -> None:
    """Write the index of each key's live row, or -1, to `out` (int64[n])."""
    for i in range(keys.shape[0]):
        place, is_there = _probe(rows, keys, i, hashes[i], 0)
        out[i] = place if is_there and rows[place, 0] & 1 == 1 else -1


@jit
def delete(rows: I64, index: I64, start: int, undo: I64, counts: I64) -> tuple[int, int]:
    """Turn live rows into tombstones, skip dead rows; returns the same as `upsert`."""
    for i in range(start, index.shape[0]):
        position = index[i]
        if rows[position, 0] & 1 == 0:
            continue
        if not _log(rows, position, undo, counts):
            return i, UNDO_FULL
        rows[position, 0] = counts[STAMP] * 2
        counts[LIVE] -= 1
    return index.shape[0], DONE


@jit
def restore(rows: I64, undo: I64, count: int) -> bool:
    """Write the pre-images back; False if the log names a row that does not exist."""
    for i in range(count):
        if undo[i, 0] < 0 or undo[i, 0] >= rows.shape[0]:
            return False
    for i in range(count):
        for j in range(rows.shape[1]):
            rows[undo[i, 0], j] = undo[i, 1 + j]
    return True


@jit
def place(source: I64, hashes: I64, rows: I64) -> None:
    """Insert rows with distinct new keys into a table that has enough room."""
    mask = rows.shape[0] - 1
    for i in range(source.shape[0]):
        position = hashes[i] & mask
        while rows[position, 0] != 0:
            position = (position + 1) & mask
        for j in range(rows.shape[1]):
            rows[position, j] = source[i, j]


@jit
def _hash_bytes(data: U8, low: int, high: int) -> int:
    """Return a 31-bit hash of ``data[low:high]`` and its length."""
    mixed = high - low + 1
    at = low
    while at + 4 <= high:
        block = (
            int(data[at])
            | int(data[at + 1]) << 8
            | int(data[at + 2]) << 16
            | int(data[at + 3]) << 24
        )
        mixed = (mixed * _BASE + block) % _PRIME
        at += 4
    while at < high:
        mixed = (mixed * _BASE + int(data[at])) % _PRIME
        at += 1
    return (mixed * _BASE + 1) % _PRIME


@jit
def _same_bytes(data: U8, low: int, high: int, heap: U8, heap_low: int, heap_high: int) -> bool:
    # The bounds are read from shared memory, which a faulty process may have overwritten.
    if heap_high - heap_low != high - low or heap_low < 0 or heap_high > heap.shape[0]:
        return False
    for j in range(high - low):
        if data[low + j] != heap[heap_low + j]:
            return False
    return True


@jit
def intern(
    index: I64,
    known: I64,
    heap: U8,
    offsets: I64,
    data: U8,
    start: int,
    counts: I64,
    out: I64,
) -> tuple[int, int]:
    """Find or add the id of each string from `start` on.

    Returns the same as `upsert`.

    Parameters
    ----------
    index : int64[power of two]    0, or ``hash << 32 | id + 1``.
    known : int64[limit + 1]       Offsets of the table's strings in `heap`.
    heap : uint8[]                 Bytes of the table's strings.
    offsets, data                  The n strings to find or add.
    out : int64[n]                 Receives ids.
    """
    mask = index.shape[0] - 1
    for i in range(start, offsets.shape[0] - 1):
        low = offsets[i]
        high = offsets[i + 1]
        hashed = _hash_bytes(data, low, high)
        position = hashed & mask
        number = -1
        for _ in range(index.shape[0]):
            entry = index[position]
            if entry == 0:
                break
            at = (entry & _LOW) - 1
            if entry >> 32 == hashed and at < counts[STRINGS]:
                if _same_bytes(data, low, high, heap, known[at], known[at + 1]):
                    number = at
                    break
            position = (position + 1) & mask
        if number < 0:
            number = counts[STRINGS]
            end = counts[STRING_BYTES] + high - low
            if 2 * number >= mask or number + 2 > known.shape[0] or end > heap.shape[0]:
                return i, STRINGS_FULL
            for j in range(high - low):
                heap[counts[STRING_BYTES] + j] = data[low + j]
            known[number + 1] = end
            index[position] = (hashed << 32) | (number + 1)
            counts[STRINGS] = number + 1
            counts[STRING_BYTES] = end
        out[i] = number
    return offsets.shape[0] - 1, DONE


@jit
def forget(index: I64, known: I64, heap: U8, count: int, kept: int) -> bool:
    """Remove the strings `kept` .. `count` - 1 from the index; False if one is missing.

    The newest string is removed first. The probe path of an entry holds older entries only, so the
    index ends exactly as it was before these strings were added.
    """
    mask = index.shape[0] - 1
    for back in range(count - kept):
        at = count - 1 - back
        if known[at] < 0 or known[at] > known[at + 1] or known[at + 1] > heap.shape[0]:
            return False
        position = _hash_bytes(heap, known[at], known[at + 1]) & mask
        missing = True
        for _ in range(index.shape[0]):
            if index[position] & _LOW == at + 1:
                index[position] = 0
                missing = False
                break
            position = (position + 1) & mask
        if missing:
            return False
    return True


@jit
def _place_strings(entries: I64, new: I64) -> None:
    mask = new.shape[0] - 1
    for i in range(entries.shape[0]):
        position = (entries[i] >> 32) & mask
        while new[position] != 0:
            position = (position + 1) & mask
        new[position] = entries[i]


def reindex(old: I64, new: I64) -> None:
    """Copy the entries of a string index to a larger, empty index.

    The oldest entry is copied first, because `forget` needs probe paths that hold only older entries.
    Entries are sorted here, because a sort in a kernel takes two seconds to compile.
    """
    entries = old[old != 0]
    _place_strings(entries[np.argsort(entries & _LOW)], new)


@jit
def least(rows: I64, word: int) -> int:
    """Return the least value of a word among the live rows; at least one row must be live."""
    found = _GREATEST
    for i in range(rows.shape[0]):
        if rows[i, 0] & 1 and rows[i, word] < found:
            found = rows[i, word]
    return found


@jit
def gather(offsets: I64, data: U8, ids: I64) -> tuple[I64, U8]:
    """Return offsets and bytes of the strings `ids`, in the sequence of `ids`."""
    packed = np.zeros(len(ids) + 1, dtype=np.int64)
    for i in range(len(ids)):
        packed[i + 1] = packed[i] + offsets[ids[i] + 1] - offsets[ids[i]]
    out = np.empty(packed[len(ids)], dtype=np.uint8)
    for i in range(len(ids)):
        out[packed[i] : packed[i + 1]] = data[offsets[ids[i]] : offsets[ids[i] + 1]]
    return packed, out


@jit
def bounds(rows: I64) -> tuple[I64, I64]:
    """Return the minimum and the maximum of 0 and each column of `rows` (int64[n, k])."""
    low = np.zeros(rows.shape[1], dtype=np.int64)
    high = np.zeros(rows.shape[1], dtype=np.int64)
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            low[j] = min(low[j], rows[i, j])
            high[j] = max(high[j], rows[i, j])
    return low, high
