"""Converts Arrow columns to rows of words, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.spec import Kind, Leaf

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


def arrow_type(leaf: Leaf) -> pa.DataType:
    """Return the Arrow type of `leaf` in an operator's input and output."""
    if leaf.kind is Kind.INTEGER:
        return pa.int64()
    if leaf.kind is Kind.FLOAT:
        return pa.float64()
    if leaf.kind is Kind.DECIMAL:
        return pa.decimal128(38, leaf.scale)
    if leaf.kind is Kind.REGISTERS:
        return pa.list_(pa.int64())
    return pa.binary()


def arriving_type(leaf: Leaf) -> pa.DataType:
    """Return the Arrow type of `leaf` in arriving records; a sketch arrives as a hash."""
    return pa.int64() if leaf.kind is Kind.REGISTERS else arrow_type(leaf)


_NULL_BITS = 63
"""Null bits per word; the sign bit is not used."""


def null_words(leaves: int) -> int:
    """Return the number of words for the null bits of `leaves` leaves; at least one word."""
    return max(1, -(-leaves // _NULL_BITS))


def null_at(leaf: int) -> tuple[int, int]:
    """Return the word and the bit of a leaf's null flag."""
    return divmod(leaf, _NULL_BITS)


def positions(leaves: Sequence[Leaf]) -> tuple[tuple[int, ...], int]:
    """Return the first word of each leaf, behind the null words, and the total number of words."""
    at, places = null_words(len(leaves)), []
    for leaf in leaves:
        places.append(at)
        at += leaf.words
    return tuple(places), at


@dataclass(frozen=True)
class Strings:
    """Holds byte strings of a batch; string i is ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: I64
    data: U8


@dataclass(frozen=True)
class Words:
    """Holds columns of a batch as words."""

    matrix: I64
    """int64[n, w]: the first words hold the null bits (`null_at`). BYTES leaves hold 0 until they
    are interned."""
    strings: tuple[tuple[int, Strings, Mask | None], ...]
    """tuple of (int, Strings, bool[n] or None): a column's word, its strings, and its null mask. Each
    key group's table interns its own records' strings."""


def encode(
    columns: Sequence[pa.Array], leaves: Sequence[Leaf], at: Sequence[int], width: int
) -> Words:
    """Return Arrow columns as a matrix of words.

    Parameters
    ----------
    columns : sequence of pyarrow.Array, length L, each of n values
    leaves : sequence of Leaf, length L
    at : sequence of int, length L    First word of each leaf.
    width : int    Words per row.
    """
    count = len(columns[0]) if columns else 0
    matrix = np.zeros((count, width), dtype=np.int64)
    strings = []
    for number, (column, leaf, word) in enumerate(zip(columns, leaves, at, strict=True)):
        null: Mask | None = None
        if column.null_count:
            null = column.is_null().to_numpy(zero_copy_only=False)
            null_word, bit = null_at(number)
            matrix[:, null_word] |= null.astype(np.int64) << bit
        if leaf.kind is Kind.BYTES:
            strings.append((word, _strings(column), null))
        elif leaf.kind is Kind.REGISTERS:
            hashes = _fixed(column, np.dtype(np.int64), 1)
            place, register = _register(hashes, leaf.words)
            matrix[np.arange(count), word + place] = register
        elif leaf.kind is Kind.DECIMAL:
            pairs = _fixed(column, np.dtype(np.int64), 2).reshape(-1, 2)
            matrix[:, word : word + 2] = pairs
        else:
            matrix[:, word] = _fixed(column, np.dtype(np.int64), 1)  # a float is its bits
        if null is not None and leaf.kind is not Kind.BYTES:
            # key words decide equality, so all nulls need the same word
            matrix[null, word : word + leaf.words] = 0
    return Words(matrix, tuple(strings))


def _register(hashes: I64, words: int) -> tuple[I64, I64]:
    """Return the sketch word of each hash, and its content if the sketch has only this hash.

    As in Spark's ``HyperLogLogPlusPlusHelper``: the first p bits of a hash are the register's number. The
    register holds the position of the first 1 among the bits behind these.
    """
    index_bits = (10 * (words - 1) - 1).bit_length()
    bits = hashes.view(np.uint64)
    index = (bits >> np.uint64(64 - index_bits)).astype(np.int64)
    rest = (bits << np.uint64(index_bits)) | np.uint64(1 << (index_bits - 1))
    high = (rest >> np.uint64(32)).astype(np.int64)
    low = (rest & np.uint64(0xFFFFFFFF)).astype(np.int64)
    # the exponent of 32 bits is exact in a double
    length = np.where(high > 0, 32 + np.frexp(high)[1], np.frexp(low)[1]).astype(np.int64)
    return index // 10, (65 - length) << (6 * (index % 10))


def _fixed(column: pa.Array, dtype: np.dtype[Any], per_value: int) -> npt.NDArray[Any]:
    buffer = column.buffers()[1]
    if buffer is None:
        return np.zeros(len(column) * per_value, dtype=dtype)
    flat = np.frombuffer(buffer, dtype=dtype)
    start = column.offset * per_value
    return flat[start : start + len(column) * per_value]


def _strings(column: pa.Array) -> Strings:
    large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets, data = column.buffers()
    kind = np.int64 if large else np.int32
    if offsets is None or len(column) == 0:
        return Strings(np.zeros(len(column) + 1, dtype=np.int64), np.zeros(0, dtype=np.uint8))
    at = np.frombuffer(offsets, dtype=kind)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    return Strings(at.astype(np.int64), raw)


def picked(
    strings: tuple[tuple[int, Strings, Mask | None], ...], at: I64
) -> tuple[tuple[int, Strings, Mask | None], ...]:
    """Return the strings (as in `Words.strings`) of the records at positions `at`."""
    chosen = []
    for word, column, null in strings:
        buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        count = len(column.offsets) - 1
        all_of_them = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
        few = _strings(all_of_them.take(pa.array(at)))
        chosen.append((word, few, None if null is None else null[at]))
    return tuple(chosen)


def joined(parts: Sequence[Strings]) -> Strings:
    """Concatenate strings; each part must hold only the bytes of its own strings."""
    ends = np.cumsum([len(part.data) for part in parts])
    later = [part.offsets[1:] + end - len(part.data) for part, end in zip(parts, ends, strict=True)]
    data = np.concatenate([part.data for part in parts])
    return Strings(np.concatenate([parts[0].offsets[:1], *later]), data)


def decode(
    words: I64, leaves: Sequence[Leaf], at: Sequence[int], strings: Strings
) -> list[pa.Array]:
    """Return columns of words as Arrow arrays, one per leaf.

    Parameters
    ----------
    words : int64[n, w]    The first words hold the null bits (`null_at`).
    leaves, at
        As for `encode`.
    strings : Strings    The table's interned strings.
    """
    arrays = []
    for number, (leaf, word) in enumerate(zip(leaves, at, strict=True)):
        null_word, bit = null_at(number)
        null = ((words[:, null_word] >> bit) & 1).astype(np.bool_)
        arrays.append(_column(words, leaf, word, null, strings))
    return arrays


def _column(words: I64, leaf: Leaf, word: int, null: Mask, strings: Strings) -> pa.Array:
    any_null = bool(null.any())
    if leaf.kind is Kind.BYTES:
        pool = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(),
            len(strings.offsets) - 1,
            [None, pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)],
        )
        ids = pa.array(words[:, word] - 1, mask=null if any_null else None)
        return pool.take(ids).cast(pa.binary())
    if leaf.kind is Kind.REGISTERS:
        flat = pa.array(np.ascontiguousarray(words[:, word : word + leaf.words]).reshape(-1))
        ends = np.arange(len(words) + 1, dtype=np.int32) * leaf.words
        return pa.ListArray.from_arrays(pa.array(ends), flat)
    if leaf.kind is Kind.DECIMAL:
        pairs = np.ascontiguousarray(words[:, word : word + 2])
        validity = pa.py_buffer(np.packbits(~null, bitorder="little")) if any_null else None
        return pa.Array.from_buffers(arrow_type(leaf), len(words), [validity, pa.py_buffer(pairs)])
    column = np.ascontiguousarray(words[:, word])
    if leaf.kind is Kind.FLOAT:
        column = column.view(np.float64)
    return pa.array(column, mask=null if any_null else None)
