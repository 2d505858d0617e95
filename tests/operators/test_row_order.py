"""The order in which a key's rows reach a processor."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.row_order import in_order

rows = st.lists(
    st.tuples(
        st.integers(0, 2), st.none() | st.integers(0, 3), st.none() | st.text("ab"), st.booleans()
    ),
    max_size=30,
)


def _key(row):
    key, at, text, flag = row
    return key, at is not None, at or 0, text is not None, text or "", flag


@given(rows, st.randoms(use_true_random=False))
def test_rows_are_in_one_order_whatever_order_they_came_in(given_rows, random):
    random.shuffle(given_rows)
    given_rows.sort(key=lambda row: row[0])
    of = np.array([row[0] for row in given_rows], dtype=np.int64)
    # the text stands before the time, which is what orders
    columns = [
        pa.array([row[2] for row in given_rows], pa.string()),
        pa.array([row[1] for row in given_rows], pa.int64()),
        pa.array([[1]] * len(given_rows), pa.list_(pa.int64())),
        pa.array([row[3] for row in given_rows], pa.bool_()),
    ]
    found = in_order(columns, (1,), of)
    assert [given_rows[i] for i in found] == sorted(given_rows, key=_key)
