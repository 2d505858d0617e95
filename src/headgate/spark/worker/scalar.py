"""Runs stages other than ``mapInArrow``: functions of pandas frames, and functions of single values."""

from __future__ import annotations

import datetime as dt
import decimal
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from headgate.spark.jvm.evaluation import Evaluation, in_struct, out_of_struct

_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8,
    T.ShortType: 16,
    T.IntegerType: 32,
    T.LongType: 64,
}
_LEAST, _MOST = 1e-3, 1e7
"""Bounds between which the JVM writes a double without an exponent."""


@dataclass(frozen=True)
class PandasMap:
    """Runs a function of ``mapInPandas``."""

    evaluation: Evaluation

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the function's result for the rows."""
        return out_of_struct(self.evaluation.run(in_struct(batches)))


@dataclass(frozen=True)
class ScalarCalls:
    """Calls functions of single values, and appends their results to each row."""

    evaluation: Evaluation
    kept: int
    """Number of columns that the output keeps; the columns behind are the functions' arguments."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows with their results; batches of results may differ in size from the input's."""
        waiting: deque[pa.RecordBatch] = deque()

        def given() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                waiting.append(batch.select(range(self.kept)))
                yield batch.select(range(self.kept, batch.num_columns))

        for results in self.evaluation.run(given()):
            done = 0
            while done < results.num_rows:
                rows = waiting.popleft()
                count = min(rows.num_rows, results.num_rows - done)
                if count < rows.num_rows:
                    waiting.appendleft(rows.slice(count))
                part = results.slice(done, count)
                columns = [*rows.slice(0, count).columns, *part.columns]
                names = [*rows.schema.names, *(f"r{n}" for n in range(part.num_columns))]
                yield pa.RecordBatch.from_arrays(columns, names)
                done += count


@dataclass(frozen=True)
class AsPickled:
    """Calls a plain Python UDF, and converts its results as the JVM converts pickled results.

    A value of another type than the declared one becomes null, where Arrow would cast it or fail.
    """

    function: Callable[..., Any]
    returns: T.DataType

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result, converted to its declared type."""
        return as_declared(self.function(*args, **kwargs), self.returns)


def as_declared(value: Any, kind: T.DataType) -> Any:
    """Return a value as the JVM reads it for a type: None for most values of another type."""
    if value is None:
        return None
    bits = _BITS.get(type(kind))
    if bits is not None:
        return _whole(value, bits)
    if isinstance(kind, T.StringType):
        return _text(value)
    wanted = _PLAIN.get(type(kind))
    if wanted is not None:
        return value if isinstance(value, wanted) else None
    if isinstance(kind, T.ArrayType) and isinstance(value, list | tuple):
        return [as_declared(each, kind.elementType) for each in value]
    if isinstance(kind, T.MapType) and isinstance(value, dict):
        return {
            as_declared(k, kind.keyType): as_declared(v, kind.valueType) for k, v in value.items()
        }
    return value


_PLAIN: dict[type[T.DataType], type | tuple[type, ...]] = {
    T.BooleanType: bool,
    T.FloatType: float,
    T.DoubleType: float,
    T.DecimalType: decimal.Decimal,
    T.DateType: dt.date,
    T.TimestampType: dt.datetime,
    T.TimestampNTZType: dt.datetime,
    T.BinaryType: (bytes, bytearray),
}


def _whole(value: Any, bits: int) -> int | None:
    """Return a whole number narrowed to `bits`, as the JVM does; None for another value."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        return None
    half: int = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def _text(value: Any) -> str:
    """Return a value as the JVM writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _double(value)
    return str(value)


def _double(value: float) -> str:
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _LEAST <= abs(value) < _MOST:
        return format(decimal.Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    head, tail = str(digits[0]), "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{head}.{tail}E{exponent + len(digits) - 1}"
