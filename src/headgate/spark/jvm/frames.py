"""Converts Arrow data to pandas frames, and pandas frames to Arrow, as PySpark's own workers do.

Python workers use it, so that a processor gets the same frames as under plain Spark. It is a separate
file, because workers without pandas do not import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

try:
    from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
except ImportError:  # Spark 4.1
    ArrowBatchTransformer = PandasToArrowConversion = None  # type: ignore[assignment, misc]

_SERIALIZERS = "pyspark.sql.pandas.serializers"
"""Module of the conversions in Spark 4.1."""


def to_series(rows: pa.RecordBatch, timezone: str, *, prefer_int_ext_dtype: bool) -> list[Any]:
    """Return a pandas Series of each column of `rows`, which has at least one.

    `timezone`: the session's time zone, which the timestamps get. `prefer_int_ext_dtype`: whether
    integers with nulls stay integers; Spark 4.1 ignores it.
    """
    if ArrowBatchTransformer is not None:
        columns: list[Any] = ArrowBatchTransformer.to_pandas(
            rows, timezone=timezone, prefer_int_ext_dtype=prefer_int_ext_dtype
        )
        return columns
    reader = import_module(_SERIALIZERS).ArrowStreamPandasUDFSerializer(timezone, True, False)
    return [reader.arrow_to_pandas(column, i) for i, column in enumerate(rows.columns)]


def to_rows(
    frame: Any,
    kind: T.StructType,
    *,
    timezone: str,
    safecheck: bool,
    assign_cols_by_name: bool,
    int_to_decimal_coercion_enabled: bool,
) -> pa.RecordBatch:
    """Return the rows of a pandas frame as `kind`; parameters as Spark's settings of these names.

    Raises `PySparkException`, `ArrowException`, `AttributeError`, `TypeError` or `ValueError`: the
    frame does not fit.
    """
    if PandasToArrowConversion is not None:
        made = PandasToArrowConversion.convert(
            [frame],
            T.StructType([T.StructField("_0", kind)]),
            timezone=timezone,
            safecheck=safecheck,
            arrow_cast=True,
            assign_cols_by_name=assign_cols_by_name,
            int_to_decimal_coercion_enabled=int_to_decimal_coercion_enabled,
        )
    else:
        older = import_module(_SERIALIZERS)
        writer = older.ArrowStreamPandasUDFSerializer(
            timezone,
            safecheck,
            assign_cols_by_name,
            arrow_cast=True,
            int_to_decimal_coercion_enabled=int_to_decimal_coercion_enabled,
        )
        made = writer._create_batch([(frame, older.to_arrow_type(kind), kind)])
    return pa.RecordBatch.from_struct_array(made.column(0))


def joined(frames: Sequence[Any]) -> list[Any]:
    """Return pandas frames, in which neighbours of the same columns and types are concatenated.

    A conversion costs far more per frame than per row. Objects that are no frames stay unchanged.
    """
    kinds = [(tuple(f.columns), tuple(f.dtypes)) if hasattr(f, "dtypes") else None for f in frames]
    concat = import_module("pandas").concat
    frames_of_kind = []
    for kind, run in groupby(zip(kinds, frames, strict=True), key=itemgetter(0)):
        alike = [frame for _, frame in run]
        together = kind is not None and len(alike) > 1
        frames_of_kind += [concat(alike, ignore_index=True)] if together else alike
    return frames_of_kind
