"""Words of rows: what is null stays null, however many leaves there are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators import codec
from headgate.operators.spec import Kind, Leaf

NO_STRINGS = codec.Strings(np.zeros(1, np.int64), np.zeros(0, np.uint8))


@pytest.mark.parametrize("count", [1, 63, 64, 130])
def test_nulls_of_many_leaves_stay_where_they_are(count: int) -> None:
    leaves = [Leaf(Kind.INTEGER)] * count
    columns = [pa.array([0, None, i] if i % 2 else [None, i, 0]) for i in range(count)]
    columns = [column.cast(pa.int64()) for column in columns]
    at, width = codec.positions(leaves)
    words = codec.encode(columns, leaves, at, width)
    assert width == count + codec.null_words(count)
    assert codec.decode(words.matrix, leaves, at, NO_STRINGS) == columns


def test_up_to_63_leaves_lie_behind_one_word() -> None:
    assert codec.positions([Leaf(Kind.INTEGER), Leaf(Kind.DECIMAL, 2)]) == ((1, 2), 4)
