"""Tests that the first row of a table is known again, and that rows of several records count as many."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators import counts
from headgate.operators.build import operator_of
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.serve import serve
from headgate.operators.spec import Kind, Leaf
from headgate.operators.step import GROUP, RECORDS, GroupState, Request
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN


def test_the_first_key_of_a_table_is_a_duplicate_when_it_comes_again() -> None:
    outputs = pa.schema([("number", pa.int64())])
    operator = operator_of(DeduplicateSpec((Leaf(Kind.INTEGER),), outputs, None, None))
    store, state, found = HeapStore(operator.layout.table), GroupState(EMPTY_TOKEN, 0, 0), []
    for step, keys in enumerate(([7], [7, 8], [8, 7, 9])):
        arriving = pa.table({
            GROUP: pa.array([0] * len(keys), pa.int32()), RECORDS: pa.array([1] * len(keys)),
            "k0": pa.array(keys, pa.int64()), "v0": pa.array(keys, pa.int64()),
        })  # fmt: skip
        token = f"{step + 1:032x}"
        request = Request(token, 0, {0: state}, lambda _: lambda _: [])
        served = serve(operator, store, request, arriving)
        state = GroupState(token, served.groups[0].emitted_us, served.groups[0].due_us)
        found.append([row["v0"] for row in served.output.to_pylist()])
    assert found == [[7], [8], [9]]


@pytest.mark.parametrize("cells", [1 << 20, 0])
def test_cells_have_the_records_and_latencies_of_their_rows(
    monkeypatch: pytest.MonkeyPatch, cells: int
) -> None:
    monkeypatch.setattr(counts, "_DENSE_CELLS", cells)
    at_ms = np.array([100.0, 250.0, 100.0, 100.0])
    group, done_ms = np.array([1, 0, 1, 3]), np.array([300.0, 300.0, 300.0, 500.0])
    for records, expected, latencies, within in (
        ([3, 2, 0, 5], [2.0, 3.0, 5.0], [100.0, 600.0, 2000.0], [2.0, 3.0, 0.0]),
        ([1, 1, 1, 1], [1.0, 2.0, 1.0], [50.0, 400.0, 400.0], [1.0, 2.0, 0.0]),
    ):
        served = counts.Arrived(np.arange(4), group, at_ms, np.array(records, dtype=np.float64))
        found = counts.count_completions(served, done_ms, 100.0, 200.0)
        assert found.tick.tolist() == [3, 3, 5]
        assert found.group.tolist() == [0, 1, 3]
        assert found.records.tolist() == expected
        assert found.records.dtype == np.float64
        assert found.latency_ms.tolist() == latencies
        assert found.within.tolist() == within
        none = counts.count_completions(served, done_ms, 100.0)
        assert none.within.tolist() == [0.0, 0.0, 0.0]
