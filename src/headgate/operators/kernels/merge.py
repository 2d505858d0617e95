"""Merges buffers into rows: one loop over records, one branch per aggregate."""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.core.jit import jit

OK = 0
OVERFLOW = 1
"""A checked integer sum left the range of int64."""

_KIND_FLOAT, _KIND_DECIMAL, _KIND_BYTES = 1, 2, 3
_COUNT, _SUM_INTEGER, _SUM_FLOAT, _SUM_DECIMAL = 0, 1, 2, 3
_MIN, _MAX, _FIRST, _LAST, _MIN_BY, _MAX_BY, _MERGED = 4, 5, 6, 7, 8, 9, 10
_REGISTERS = 11
_REGISTER_BITS, _REGISTERS_PER_WORD = 6, 10
_SIGN = -0x8000000000000000
_LOW32 = 0xFFFFFFFF
_HIGH_SIGN = 0x80000000
# 10**38 - 1, the largest decimal(38), as high and low words
_DECIMAL_MAX_HIGH = (10**38 - 1) >> 64
_DECIMAL_MAX_LOW = (10**38 - 1) & ((1 << 64) - 1)  # below 2**63, so it is a signed word too


@jit
def below_unsigned(a: int, b: int) -> bool:
    """Return whether a < b, both read as unsigned 64-bit words."""
    return bool((a ^ _SIGN) < (b ^ _SIGN))


@jit
def add_wrapping(a: int, b: int) -> int:
    """Return a + b modulo 2**64, as a signed word; the same with and without the compiler."""
    low = (a & _LOW32) + (b & _LOW32)
    high = ((a >> 32) & _LOW32) + ((b >> 32) & _LOW32) + (low >> 32)
    high &= _LOW32
    if high & _HIGH_SIGN:
        high -= _HIGH_SIGN << 1
    return (high << 32) | (low & _LOW32)


@jit
def compare_bytes(a: int, b: int, offsets: Any, data: Any) -> int:
    """Return -1, 0 or 1 for interned strings `a` and `b` (ids + 1), by unsigned bytes."""
    if a == b:
        return 0
    a_at, a_end = offsets[a - 1], offsets[a]
    b_at, b_end = offsets[b - 1], offsets[b]
    while a_at < a_end and b_at < b_end:
        x, y = data[a_at], data[b_at]
        if x != y:
            return -1 if x < y else 1
        a_at += 1
        b_at += 1
    if a_end - a_at == b_end - b_at:
        return 0
    return -1 if a_at == a_end else 1


@jit
def compare_leaf(
    a: Any, a_float: Any, i: int, b: Any, b_float: Any, j: int, leaf: Any, offsets: Any, data: Any
) -> int:
    """Return -1, 0 or 1 for one leaf of value rows a[i] and b[j]; null comes first, NaN last."""
    word, kind, bit, nulls = leaf[0], leaf[2], leaf[3], leaf[4]
    a_null = (a[i, nulls] >> bit) & 1
    b_null = (b[j, nulls] >> bit) & 1
    if a_null or b_null:
        return int(b_null - a_null)
    if kind == _KIND_FLOAT:
        x, y = a_float[i, word], b_float[j, word]
        if x != x:  # noqa: PLR0124 -- NaN
            return 0 if y != y else 1  # noqa: PLR0124
        if y != y:  # noqa: PLR0124
            return -1
        if x == y:
            return 0
        return -1 if x < y else 1
    p, q = a[i, word], b[j, word]
    if kind == _KIND_BYTES:
        return compare_bytes(p, q, offsets, data)
    if kind == _KIND_DECIMAL:
        p_high, q_high = a[i, word + 1], b[j, word + 1]
        if p_high != q_high:
            return -1 if p_high < q_high else 1
        if p == q:
            return 0
        return -1 if below_unsigned(p, q) else 1
    if p == q:
        return 0
    return -1 if p < q else 1


@jit
def _compare(
    a: Any,
    a_float: Any,
    i: int,
    b: Any,
    b_float: Any,
    j: int,
    leaves: Any,
    first: int,
    count: int,
    offsets: Any,
    data: Any,
) -> int:
    for k in range(first, first + count):
        order = compare_leaf(a, a_float, i, b, b_float, j, leaves[k], offsets, data)
        if order != 0:
            return order
    return 0


@jit
def _copy(to: Any, i: int, source: Any, j: int, leaves: Any, first: int, count: int) -> None:
    for k in range(first, first + count):
        word, words, bit, nulls = leaves[k, 0], leaves[k, 1], leaves[k, 3], leaves[k, 4]
        for w in range(words):
            to[i, word + w] = source[j, word + w]
        null = (source[j, nulls] >> bit) & 1
        to[i, nulls] = (to[i, nulls] & ~(np.int64(1) << bit)) | (null << bit)


@jit
def _greatest_registers(to: Any, i: int, source: Any, j: int, word: int, words: int) -> None:
    for at in range(word, word + words):
        arriving = source[j, at]
        if arriving == 0:
            continue
        present, result = to[i, at], np.int64(0)
        for k in range(_REGISTERS_PER_WORD):
            mask = np.int64(63) << np.int64(k * _REGISTER_BITS)
            result |= max(present & mask, arriving & mask)
        to[i, at] = result


@jit
def _is_null(values: Any, i: int, leaves: Any, leaf: int) -> bool:
    return bool(((values[i, leaves[leaf, 4]] >> leaves[leaf, 3]) & 1) == 1)


@jit
def _sum_decimal(to: Any, i: int, source: Any, j: int, leaves: Any, first: int) -> None:
    """Add a 128-bit sum; null with a positive count means overflow, and stays null."""
    word, bit, nulls = leaves[first, 0], leaves[first, 3], leaves[first, 4]
    count_word = leaves[first + 1, 0]
    arriving = source[j, count_word]
    if arriving == 0:
        return
    had = to[i, count_word]
    to[i, count_word] = had + arriving
    if _is_null(source, j, leaves, first):
        to[i, nulls] |= np.int64(1) << bit
        return
    if had == 0:
        _copy(to, i, source, j, leaves, first, 1)
        return
    if _is_null(to, i, leaves, first):
        return
    low_a, low_b = to[i, word], source[j, word]
    low = add_wrapping(low_a, low_b)
    carry = 1 if below_unsigned(low, low_a) else 0
    high = add_wrapping(add_wrapping(to[i, word + 1], source[j, word + 1]), carry)
    to[i, word] = low
    to[i, word + 1] = high
    # |sum| of two decimal(38) stays below 2**127, so the sign is right; compare with 10**38 - 1
    if high < 0:
        low = add_wrapping(~low, 1)
        high = ~high + (1 if low == 0 else 0)
    if high > _DECIMAL_MAX_HIGH or (
        high == _DECIMAL_MAX_HIGH and below_unsigned(_DECIMAL_MAX_LOW, low)
    ):
        to[i, nulls] |= np.int64(1) << bit


@jit
def merge(
    rows: Any,
    rows_float: Any,
    index: Any,
    incoming: Any,
    incoming_float: Any,
    ops: Any,
    leaves: Any,
    offsets: Any,
    data: Any,
) -> int:
    """Merge buffer j of `incoming` into value row ``index[j]`` of `rows`, for ascending j.

    Returns OK or OVERFLOW.

    Parameters
    ----------
    rows : int64[capacity, v]    Value parts of a table's rows; a view with any row stride.
    rows_float : float64[capacity, v]    `rows` as floats, in the same memory.
    index : int64[n]
    incoming : int64[n, v]    Buffers in the same layout; strings are already the table's ids + 1.
    incoming_float : float64[n, v]    `incoming` as floats, in the same memory.
    ops : int64[A, 6]
    leaves : int64[L, 5]
    offsets : int64[m + 1]
    data : uint8[]    The table's strings.
    """
    for j in range(index.shape[0]):
        i = index[j]
        for a in range(ops.shape[0]):
            op, first, count = ops[a, 0], ops[a, 1], ops[a, 2]
            word = leaves[first, 0]
            if op == _MERGED:
                continue
            if op == _COUNT:
                rows[i, word] += incoming[j, word]
            elif op == _REGISTERS:
                if not _is_null(incoming, j, leaves, first):
                    _greatest_registers(rows, i, incoming, j, word, leaves[first, 1])
            elif op == _SUM_DECIMAL:
                _sum_decimal(rows, i, incoming, j, leaves, first)
            elif op in (_FIRST, _LAST):
                qualifying = incoming[j, word]
                if qualifying > 0:
                    if op == _LAST or rows[i, word] == 0:
                        _copy(rows, i, incoming, j, leaves, first + 1, count - 1)
                    rows[i, word] += qualifying
            elif _is_null(incoming, j, leaves, first):
                continue
            elif _is_null(rows, i, leaves, first):
                _copy(rows, i, incoming, j, leaves, first, count + ops[a, 4])
                if op == _SUM_FLOAT:  # as in Spark, a sum begins with 0.0 and is never -0.0
                    rows_float[i, word] += 0.0
            elif op == _SUM_INTEGER:
                x, y = rows[i, word], incoming[j, word]
                total = add_wrapping(x, y)
                if ops[a, 5] and ((x ^ total) & (y ^ total)) < 0:
                    return OVERFLOW
                rows[i, word] = total
            elif op == _SUM_FLOAT:
                rows_float[i, word] += incoming_float[j, word]
            else:
                order = _compare(
                    rows,
                    rows_float,
                    i,
                    incoming,
                    incoming_float,
                    j,
                    leaves,
                    first,
                    count,
                    offsets,
                    data,
                )
                # on a tie MIN_BY and MAX_BY keep the newer value, as Spark does
                if (
                    (op == _MIN and order > 0)
                    or (op == _MAX and order < 0)
                    or (op == _MIN_BY and order >= 0)
                    or (op == _MAX_BY and order <= 0)
                ):
                    _copy(rows, i, incoming, j, leaves, first, count + ops[a, 4])
    return OK


@jit
def expand_windows(
    starts: Any,
    span: int,
    within: int,
    size: int,
    advance: int,
    offset: int,
    after: int,
    until: int,
    out: Any,
) -> int:
    """List every (row, window end) with ``after < end <= until`` for rows that cover `span` of time.

    A window holds a row if it covers all of ``[start, start + span)``. Returns the number of pairs.

    Parameters
    ----------
    starts : int64[n]    Start of each row, microseconds.
    within : int
        Length of blocks, which begin at `offset`: a window that holds all of the row's block is left
        out. 0 leaves out no window.
    out : int64[m, 2]
        Filled with (position in `starts`, window end); long enough for n x overlap pairs.
    """
    written = 0
    for i in range(starts.shape[0]):
        block = starts[i] - (starts[i] - offset) % within if within > 0 else 0
        # the last window that holds the row starts at the last multiple at or before the row's start
        start = starts[i] - (starts[i] - offset) % advance
        while start >= starts[i] + span - size:
            end = start + size
            if end <= after:
                break
            whole = within > 0 and start <= block and block + within <= end
            if end <= until and not whole:
                out[written, 0] = i
                out[written, 1] = end
                written += 1
            start -= advance
    return written
