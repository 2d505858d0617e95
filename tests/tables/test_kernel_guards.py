"""Kernels read memory that a neighbour may have scribbled into: each guard, on both sides of its edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headgate.tables import kernels
from headgate.tables.kernels import STRING_BYTES, STRINGS


@pytest.mark.parametrize(("row", "fits"), [(-1, False), (0, True), (7, True), (8, False)])
@pytest.mark.parametrize("at", [0, 2])
def test_a_log_names_rows_that_there_are_or_nothing_is_written(
    row: int, fits: bool, at: int
) -> None:
    rows = np.arange(24, dtype=np.int64).reshape(8, 3)
    before = rows.copy()
    undo = np.array(
        [[5, 50, 51, 52], [6, 60, 61, 62], [4, 40, 41, 42], [99, 0, 0, 0]], dtype=np.int64
    )
    undo[at, 0] = row
    assert kernels.restore(rows, undo, 3) is fits
    want = before.copy()
    if fits:
        want[undo[:3, 0]] = undo[:3, 1:]
    assert rows.tolist() == want.tolist()


def strings(*words: bytes) -> tuple[Any, ...]:
    """Return a string index, its offsets, its heap and its counts, with these words in it."""
    index, known, heap = np.zeros(16, np.int64), np.zeros(9, np.int64), np.zeros(20, np.uint8)
    counts, out = np.zeros(7, np.int64), np.zeros(len(words), np.int64)
    data = np.frombuffer(b"".join(words) + b"-", np.uint8).copy()
    offsets = np.cumsum([0, *map(len, words)]).astype(np.int64)
    found = kernels.intern(index, known, heap, offsets, data, 0, counts, out)
    assert found == (len(words), kernels.DONE)
    return index, known, heap, counts


@pytest.mark.parametrize("kept", range(4))
def test_the_newest_strings_are_forgotten_and_the_index_is_as_before(kept: int) -> None:
    words = (b"a", b"", b"abcde", b"b")
    index, known, heap, counts = strings(*words)
    assert kernels.forget(index, known, heap, int(counts[STRINGS]), kept) is True
    assert index.tolist() == strings(*words[:kept])[0].tolist()


@pytest.mark.parametrize(
    ("at", "offset", "fits"),
    [(4, 7, True), (4, 20, True), (4, 21, False), (4, 5, False), (3, 7, True), (3, -1, False),
     (3, 8, False)],
)  # fmt: skip
def test_a_string_is_forgotten_only_if_its_bytes_lie_in_the_heap(
    at: int, offset: int, fits: bool
) -> None:
    """Of four strings with seven bytes in a heap of twenty, the last is taken away, by its number."""
    index, known, heap, _ = strings(b"a", b"", b"abcde", b"b")
    known[at] = offset
    assert kernels.forget(index, known, heap, 4, 3) is fits


def test_a_string_that_is_in_no_index_is_not_forgotten() -> None:
    index, known, heap, _ = strings(b"a", b"b")
    index[index & 0xFFFFFFFF == 2] = 0
    assert kernels.forget(index, known, heap, 2, 1) is False
    assert kernels.forget(index, known, heap, 1, 0) is True


@pytest.mark.parametrize(
    ("low", "high", "same"),
    [(0, 2, True), (2, 4, True), (1, 3, False), (0, 3, False), (0, 1, False), (-2, 0, False),
     (-4, -2, False), (3, 5, False), (4, 6, False)],
)  # fmt: skip
def test_strings_are_the_same_only_within_the_heap(low: int, high: int, same: bool) -> None:
    heap, data = np.frombuffer(b"abab", np.uint8), np.frombuffer(b"xab", np.uint8)
    assert kernels._same_bytes(data, 1, 3, heap, low, high) is same


@pytest.mark.parametrize("count", [0, 1, 2])
def test_an_entry_of_a_string_that_is_not_there_is_no_answer(count: int) -> None:
    index, known, heap, counts = strings(b"a", b"b")
    counts[STRINGS], counts[STRING_BYTES] = count, count
    out = np.zeros(1, np.int64)
    data = np.frombuffer(b"b-", np.uint8).copy()
    found = kernels.intern(index, known, heap, np.array([0, 1]), data, 0, counts, out)
    assert found == (1, kernels.DONE)
    assert out.tolist() == [min(count, 1)]
    assert counts[STRINGS] == max(2 if count == 1 else count, 1)


@pytest.mark.parametrize(
    ("index_size", "known_size", "heap_size", "fits"),
    [(8, 6, 8, 4), (16, 3, 8, 2), (16, 6, 3, 3), (16, 6, 8, 5), (16, 9, 5, 5)],
)
def test_strings_are_added_as_long_as_each_part_has_room(
    index_size: int, known_size: int, heap_size: int, fits: int
) -> None:
    index, known = np.zeros(index_size, np.int64), np.zeros(known_size, np.int64)
    heap = np.zeros(heap_size, np.uint8)
    counts, out = np.zeros(7, np.int64), np.full(8, -1)
    data = np.frombuffer(b"abcdefgh", np.uint8).copy()
    done, why = kernels.intern(index, known, heap, np.arange(9), data, 0, counts, out)
    assert (done, why) == (fits, kernels.STRINGS_FULL)
    assert out.tolist() == [*range(fits), *[-1] * (8 - fits)]
    assert (counts[STRINGS], counts[STRING_BYTES]) == (fits, fits)


def test_extremes_of_rows_are_those_of_rows_that_are_there() -> None:
    rows = np.array([[3, 5, -9], [2, -7, 0], [0, -8, 0], [5, 4, 9]], dtype=np.int64)
    assert [kernels.least(rows, word) for word in (1, 2)] == [4, -9]
    low, high = kernels.bounds(np.array([[1, -5, 0], [7, -2, 0]], dtype=np.int64))
    assert (low.tolist(), high.tolist()) == ([0, -5, 0], [7, 0, 0])
    low, high = kernels.bounds(np.zeros((0, 2), dtype=np.int64))
    assert (low.tolist(), high.tolist()) == ([0, 0], [0, 0])
