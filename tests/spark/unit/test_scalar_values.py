"""What a Python UDF returns becomes what the JVM makes of it, and stays beside its row."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from headgate.spark.worker.scalar import AsPickled, PandasMap, ScalarCalls, as_declared

DAY, NOW = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3)
NUMBERS = T.ArrayType(T.ByteType())
NAMED = T.MapType(T.StringType(), T.ShortType())


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (T.ByteType(), 127, 127), (T.ByteType(), 128, -128), (T.ByteType(), -129, 127),
        (T.ShortType(), 32768, -32768), (T.ShortType(), 32767, 32767),
        (T.IntegerType(), 2**31, -(2**31)), (T.IntegerType(), 2**31 - 1, 2**31 - 1),
        (T.LongType(), 2**63 - 1, 2**63 - 1), (T.LongType(), 2**63, None),
        (T.LongType(), -(2**63), -(2**63)), (T.LongType(), -(2**63) - 1, None),
        (T.IntegerType(), True, None), (T.IntegerType(), 1.0, None), (T.IntegerType(), "1", None),
        (T.StringType(), True, "true"), (T.StringType(), False, "false"), (T.StringType(), 7, "7"),
        (T.StringType(), "a", "a"), (T.StringType(), 1.5, "1.5"), (T.StringType(), 0.0, "0.0"),
        (T.StringType(), math.nan, "NaN"), (T.StringType(), math.inf, "Infinity"),
        (T.StringType(), -math.inf, "-Infinity"), (T.StringType(), 1e-3, "0.001"),
        (T.StringType(), 9.99e-4, "9.99E-4"), (T.StringType(), 1e7, "1.0E7"),
        (T.StringType(), -12345678.9, "-1.23456789E7"), (T.StringType(), 9999999.0, "9999999.0"),
        (T.StringType(), 1e-5, "1.0E-5"), (T.StringType(), 5e-324, "5.0E-324"),
        (T.BooleanType(), True, True), (T.BooleanType(), 1, None),
        (T.FloatType(), 1.5, 1.5), (T.DoubleType(), 1, None),
        (T.DecimalType(), decimal.Decimal("1.5"), decimal.Decimal("1.5")),
        (T.DecimalType(), 1.5, None), (T.DateType(), DAY, DAY), (T.DateType(), "2026-01-02", None),
        (T.TimestampType(), NOW, NOW), (T.TimestampType(), DAY, None),
        (T.TimestampNTZType(), NOW, NOW), (T.TimestampNTZType(), 1, None),
        (T.BinaryType(), b"a", b"a"), (T.BinaryType(), bytearray(b"a"), b"a"),
        (T.BinaryType(), "a", None), (T.BinaryType(), None, None),
        (NUMBERS, [1, 128, None, "x"], [1, -128, None, None]), (NUMBERS, (1,), [1]), (NUMBERS, 1, 1),
        (NAMED, {1: 40000, False: None}, {"1": -25536, "false": None}), (NAMED, {"a": 1}, {"a": 1}),
    ],
)  # fmt: skip
def test_a_value_is_as_the_jvm_reads_it(kind: T.DataType, value: Any, found: Any) -> None:
    assert as_declared(value, kind) == found
    assert AsPickled(lambda v, more=0: v, kind)(value, more=1) == found


class Doubled:
    """Puts out twice the first column, in batches of drawn sizes."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left: list[int] = []
        for batch in batches:
            left += batch.column(0).to_pylist()
            while left and self.dice.random() < 0.6:
                count = self.dice.randint(1, len(left))
                part, left = left[:count], left[count:]
                yield self._batch(part)
        if left:
            yield self._batch(left)

    def _batch(self, values: list[int]) -> pa.RecordBatch:
        twice = pa.array([2 * value for value in values])
        return pa.RecordBatch.from_arrays([twice, twice], ["x", "y"])


@pytest.mark.parametrize("seed", range(5))
def test_results_stand_beside_their_rows_however_a_function_batches_them(seed: int) -> None:
    dice = random.Random(seed)
    numbers = iter(range(1000))
    sizes = [dice.randint(0, 5) for _ in range(8)]
    given = [[next(numbers) for _ in range(size)] for size in sizes]
    batches = [
        pa.RecordBatch.from_arrays([pa.array(part, pa.int64())] * 3, ["a", "b", "given"])
        for part in given
    ]
    calls: Any = ScalarCalls(Doubled(dice), 2)  # type: ignore[arg-type]
    found = pa.Table.from_batches(calls(iter(batches))).to_pylist()
    every = [number for part in given for number in part]
    assert found == [{"a": n, "b": n, "r0": 2 * n, "r1": 2 * n} for n in every]


def test_a_function_over_frames_has_all_columns_in_one() -> None:
    class Counted:
        def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                assert [str(kind) for kind in batch.schema.types] == ["struct<a: int64, b: string>"]
                yield batch

    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["x", "y"])], ["a", "b"])
    (found,) = PandasMap(Counted())(iter([rows]))  # type: ignore[arg-type]
    assert found.to_pylist() == rows.to_pylist()
