"""Sets the number of rows in one Arrow batch for a Python worker.

Spark bounds a batch by rows and by bytes. For the bound by bytes it computes the batch's size at every
row: a fifth of the executor's time if there are many rows. If the schema gives the width of a row, a
bound by rows also bounds the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql import types as T

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
NO_BOUND = str(2**31 - 1)
"""Value with which Spark does not compute batch sizes."""

_BATCH_BYTES = 64 * 2**20
"""Spark's own default bound by bytes."""

_WIDTHS: dict[type[T.DataType], int] = {
    T.BooleanType: 1,
    T.ByteType: 1,
    T.ShortType: 2,
    T.IntegerType: 4,
    T.DateType: 4,
    T.FloatType: 4,
    T.LongType: 8,
    T.DoubleType: 8,
    T.TimestampType: 8,
    T.TimestampNTZType: 8,
    T.DayTimeIntervalType: 8,
    T.DecimalType: 16,
    T.NullType: 0,
}


def row_bytes(schema: T.StructType) -> int | None:
    """Return the bytes of a row in an Arrow batch; None if they differ by row."""
    total = 0
    for field in schema.fields:
        kind = field.dataType
        width = row_bytes(kind) if isinstance(kind, T.StructType) else _WIDTHS.get(type(kind))
        if width is None:
            return None
        total += width + 1  # at most one byte for the null bit
    return total


def fit_arrow_batches(session: SparkSession, schemas: Iterable[T.StructType]) -> None:
    """Bound Arrow batches of rows of `schemas` by rows alone, if the width of each is known.

    Nothing changes if the user has set the bound by bytes. If the user has set a smaller bound by rows,
    that bound stays. The new bounds apply from the session's next batch on.
    """
    widths = [row_bytes(schema) for schema in schemas]
    known = [width for width in widths if width is not None]
    if len(known) < len(widths) or session.conf.get(BYTES, None) is not None:
        return
    session.conf.set(BYTES, NO_BOUND)
    most = _BATCH_BYTES // max([1, *known])
    asked = int(session.conf.get(ROWS) or 0)
    session.conf.set(ROWS, str(min(asked, most) if asked > 0 else most))
