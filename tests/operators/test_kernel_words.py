"""Kernels that compare and add words, against plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.operators import codec
from headgate.operators.kernels.merge import (
    add_wrapping,
    below_unsigned,
    compare_bytes,
    compare_leaf,
)
from headgate.operators.spec import Kind, Leaf

words = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 2**31, 2**32, 2**32 - 1, -(2**32), 2**63 - 1, -(2**63)]),
)
few_bytes = st.binary(max_size=4).map(lambda text: bytes(b % 3 * 127 for b in text))


def unsigned(word: int) -> int:
    return word & (2**64 - 1)


@given(words, words)
def test_words_are_compared_without_a_sign(a: int, b: int) -> None:
    assert below_unsigned(a, b) == (unsigned(a) < unsigned(b))


@given(words, words)
def test_sums_of_words_wrap_around(a: int, b: int) -> None:
    assert unsigned(int(add_wrapping(a, b))) == (unsigned(a) + unsigned(b)) % 2**64
    assert -(2**63) <= add_wrapping(a, b) < 2**63


def interned(*texts: bytes) -> tuple[Any, Any]:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return offsets, np.frombuffer(b"".join(texts), dtype=np.uint8)


@given(few_bytes, few_bytes)
@example(b"ab", b"ac")
@example(b"aab", b"aac")
@example(b"", b"a")
@example(b"a", b"")
def test_strings_are_compared_byte_by_byte(one: bytes, other: bytes) -> None:
    offsets, data = interned(b"before", one, other, b"behind")
    expected = (one > other) - (one < other)
    assert compare_bytes(2, 3, offsets, data) == expected
    assert compare_bytes(3, 2, offsets, data) == -expected
    assert compare_bytes(2, 2, offsets, data) == 0


LEAVES: dict[Leaf, tuple[pa.DataType, list[Any]]] = {
    Leaf(Kind.INTEGER): (pa.int64(), [None, -(2**63), -1, 0, 1, 2**63 - 1]),
    Leaf(Kind.FLOAT): (pa.float64(), [None, -math.inf, -1.5, 0.0, 1e-300, 2.0, math.inf, math.nan]),
    Leaf(Kind.DECIMAL, 2): (
        pa.decimal128(38, 2),
        [None, *(pa.scalar(str(n), pa.string()).cast(pa.decimal128(38, 2)).as_py()
                 for n in (-(10**30), -(2**64), -1, 0, 1, 2**63, 2**64, 2**64 + 1, 10**30))],
    ),
}  # fmt: skip
"""Values of each kind in their order: null first, NaN last."""


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.kind.name)
def test_leaves_are_in_the_order_of_their_values(leaf: Leaf) -> None:
    kind, values = LEAVES[leaf]
    at, width = codec.positions([leaf])
    matrix = codec.encode([pa.array(values, kind)], [leaf], at, width).matrix
    null_word, bit = codec.null_at(0)
    described = np.array([at[0], leaf.words, int(leaf.kind), bit, null_word], dtype=np.int64)
    offsets, data = interned(b"")
    floats = matrix.view(np.float64)
    for i in range(len(values)):
        for j in range(len(values)):
            found = compare_leaf(matrix, floats, i, matrix, floats, j, described, offsets, data)
            assert found == (i > j) - (i < j), (values[i], values[j])
    assert codec.decode(matrix, [leaf], at, codec.Strings(offsets, data))[0].null_count == 1


def test_a_sketch_holds_the_place_of_the_first_bit_in_the_register_of_a_hash() -> None:
    """Spark's formula, in Python's integers: p bits choose the register, the rest is counted."""
    leaf_words = 53  # 52 x 10 registers hold 2**9
    hashes = np.array([0, 1, -1, 2**62, -(2**63), 0x0123456789ABCDEF, 2**40 + 5, 7 << 30])
    bits = (10 * (leaf_words - 1) - 1).bit_length()
    places, registers = codec._register(hashes.astype(np.int64), leaf_words)
    for hash_, place, register in zip(hashes.tolist(), places, registers, strict=True):
        index = unsigned(hash_) >> (64 - bits)
        rest = unsigned(hash_ << bits) | 1 << (bits - 1)
        first = 64 - rest.bit_length() + 1
        assert (place, register) == (index // 10, first << 6 * (index % 10))


def test_slices_and_large_strings_are_encoded_as_their_values() -> None:
    texts = ["a", None, "long enough", "", "é"]
    for kind in (pa.binary(), pa.large_binary()):
        column = pa.array([None if t is None else t.encode() for t in texts], kind)
        for part in (column, column[1:], column[2:4], column[:0]):
            ((word, strings, null),) = codec.encode([part], [Leaf(Kind.BYTES)], [1], 2).strings
            assert word == 1
            found = [
                bytes(strings.data[a:b])
                for a, b in zip(strings.offsets[:-1], strings.offsets[1:], strict=True)
            ]
            hidden = [False] * len(part) if null is None else null.tolist()
            assert [None if gone else text for text, gone in zip(found, hidden, strict=True)] == (
                part.to_pylist()
            )
            some = codec.picked(((1, strings, null),), np.arange(len(part))[::-1].copy())
            assert some[0][1].offsets[-1] == sum(len(t or b"") for t in part.to_pylist())
    numbers = pa.array([1, None, 3, 4], pa.int64())[1:]
    matrix = codec.encode([numbers], [Leaf(Kind.INTEGER)], [1], 2).matrix
    assert matrix[:, 1].tolist() == [0, 3, 4]
