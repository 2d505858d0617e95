"""A user's Python functions see records only, wherever markers stand among them; no JVM."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.core.errors import EngineError
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN
from headgate.spark.realtime.user_functions import (
    OfArrays,
    OfBatches,
    OfIterators,
    OfRecords,
    OfSeries,
)

Rows = list[int | None]
"""Numbers of records; None for a marker."""


def drawn(seed: int) -> list[Rows]:
    """Batches of records and markers."""
    rng = random.Random(seed)
    return [
        [None if rng.random() < rng.choice((0, 0.5, 1)) else rng.randrange(99) for _ in range(8)]
        for _ in range(6)
    ]


def marks(rows: Rows) -> list[int | None]:
    return [0 if row is None else None for row in rows]


def twice(values: Any) -> Any:
    assert values.null_count == 0 if isinstance(values, pa.Array) else values.notna().all()
    return pc.multiply(values, 2) if isinstance(values, pa.Array) else values * 2


def twice_each(batches: Iterator[Any]) -> Iterator[Any]:
    yield from map(twice, batches)


def assert_twice(rows: Rows, values: list[Any]) -> None:
    assert len(values) == len(rows)
    assert all(row is None or value == row * 2 for row, value in zip(rows, values, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_values_stand_where_their_records_do(seed: int) -> None:
    arrays = OfIterators(OfArrays(twice_each, pa.int64()))
    series = OfIterators(OfSeries(twice_each, None))
    batches = drawn(seed)
    in_arrow = [(pa.array(marks(rows), pa.int32()), pa.array(rows)) for rows in batches]
    in_pandas = [
        (pd.Series(marks(rows), dtype="float64"), pd.Series(rows, dtype="float64"))
        for rows in batches
    ]
    found = arrays(iter(in_arrow)), series(iter(in_pandas))
    for rows, arrow, frame, by_arrow, by_pandas in zip(
        batches, in_arrow, in_pandas, *found, strict=True
    ):
        assert_twice(rows, by_arrow.to_pylist())
        assert_twice(rows, by_pandas.tolist())
        assert_twice(rows, OfArrays(twice, pa.int64())(*arrow).to_pylist())
        assert_twice(rows, OfSeries(twice, None)(*frame).tolist())
        one = OfRecords(lambda value: value * 2)
        assert_twice(rows, [one(*row) for row in zip(marks(rows), rows, strict=True)])


@pytest.mark.parametrize("returned", [2, 4])
def test_a_function_that_does_not_return_one_value_for_each_record_is_refused(
    returned: int,
) -> None:
    """As Spark refuses it; else values of other records would stand in their places."""
    rows: Rows = [1, None, 2, 3]
    said = f"has returned {returned} values for 3 rows"
    with pytest.raises(EngineError, match=said):
        OfArrays(lambda _: pa.array(range(returned)), pa.int64())(
            pa.array(marks(rows), pa.int32()), pa.array(rows)
        )
    with pytest.raises(EngineError, match=said):
        OfSeries(lambda _: pd.Series(range(returned)), None)(
            pd.Series(marks(rows), dtype="float64"), pd.Series(rows, dtype="float64")
        )


def test_a_struct_of_markers_alone_has_its_columns() -> None:
    made = OfSeries(twice, ("a", "b"))(pd.Series([0.0, 0.0]), pd.Series([None, None]))
    assert list(made.columns) == ["a", "b"]
    assert made.isna().all().all()


def test_a_function_that_asks_ahead_is_told_so() -> None:
    def ahead(batches: Iterator[Any]) -> Iterator[Any]:
        yield from list(batches)

    rows = iter([(pa.nulls(1, pa.int32()), pa.array([1]))] * 2)
    with pytest.raises(EngineError, match="have it yield for each batch"):
        list(OfIterators(OfArrays(ahead, pa.int64()))(rows))


OURS = pa.schema([(MARKER_TO, pa.int32()), (MARKER_TOKEN, pa.string())])


def values_of(batch: Any) -> list[int]:
    if isinstance(batch, pa.RecordBatch):
        assert batch.schema.names == ["v"]
        return batch.column(0).to_pylist()
    assert list(batch.columns) == ["v"]
    return [int(value) for value in batch["v"]]


@pytest.mark.parametrize("pandas", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_function_of_batches_is_called_once_for_each_epoch(seed: int, pandas: bool) -> None:
    rng = random.Random(seed)
    stream: list[tuple[int | None, str | None]] = []
    wanted = []
    for epoch in range(5):
        records = [rng.randrange(9) for _ in range(rng.randrange(6))]
        for record in records:
            stream += [(record, None), *([(None, None)] if rng.random() < 0.4 else [])]
        stream += [(None, f"epoch {epoch}"), *[(None, None)] * 3]
        wanted.append((len(records), sum(records)))
    batches = []
    while stream:
        size = rng.randint(1, 7)
        part, stream = stream[:size], stream[size:]
        rows = [row if token is None else None for row, token in part]
        batches.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array(rows, pa.int64()),
                    pa.array(marks(rows), pa.int32()),
                    pa.array([token for _, token in part], pa.string()),
                ],
                names=["v", *OURS.names],
            )
        )

    def function(given: Iterator[Any]) -> Iterator[Any]:
        seen = [value for batch in given for value in values_of(batch)]
        made = {"n": [len(seen)], "total": [sum(seen)]}
        yield pd.DataFrame(made) if pandas else pa.RecordBatch.from_pydict(made)

    outputs = pa.schema([("n", pa.int64()), ("total", pa.int64())])
    wrapped = OfBatches(function, ("v",), outputs, OURS, pandas)
    given = [batch.to_pandas() if pandas else batch for batch in batches]
    found: list[tuple[int, int]] = []
    waiting = (0, 0)
    markers = 0
    for made in wrapped(iter(given)):
        table = pa.Table.from_pandas(made, preserve_index=False) if pandas else made
        for row in table.to_pylist():
            markers += row[MARKER_TO] is not None
            if row[MARKER_TO] is None:
                assert waiting == (0, 0)
                waiting = (int(row["n"]), int(row["total"]))
            elif row[MARKER_TOKEN] is not None:
                found.append(waiting)
                waiting = (0, 0)
    assert found == wanted
    assert markers == sum(
        value is not None for batch in batches for value in batch.column(1).to_pylist()
    )
