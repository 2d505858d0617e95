"""Compares two DataFrames as bags of rows, with a tolerance for columns that may be sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import HeadgateError
from headgate.core.near import RELATIVE, RELATIVE_SINGLE, floor_of
from headgate.spark.jvm.lineage import summed_columns
from headgate.spark.jvm.plans import names_a_class
from headgate.spark.worker.nearness import Nearness

_SHOWN = 3
"""Most differing rows in the result."""

_LOOKED_AT = 500
"""Rows of the output that are searched for the row most like an expected row. Chosen."""

_ROW = "headgate_row"
_FLOATS = (T.FloatType, T.DoubleType)
_NAN = float("nan")


def compare(expected: DataFrame, output: DataFrame) -> dict[str, Any]:
    """Compare two DataFrames as bags of rows, and their column names and types.

    Floating-point columns that may come from arithmetic over many rows match within a tolerance
    (`headgate.core.near`); all other columns must be equal. NaN equals NaN, and -0.0 equals 0.0. The
    result has ``verified`` (None if both have no rows), ``rows_compared``, ``missing``, ``extra``,
    ``differing`` (up to three rows: ``want`` and ``got``, texts by column, or None) and
    ``within_tolerance``, the columns that were compared with a tolerance.
    """
    if names_a_class(output) and not names_a_class(expected):
        msg = "the output has a user-defined type, whose code is not loaded; the query has none."
        raise HeadgateError(msg)
    output = _in_order(output, expected.columns)
    if _shape(expected.schema) != _shape(output.schema):
        remedy = (
            "it was written by another query, or is to be read with its types "
            "(spark.read.schema(...))"
        )
        more = [name for name in output.columns if name not in expected.columns]
        asked = T.StructType([field for field in output.schema if field.name not in more])
        if more and _shape(expected.schema) == _shape(asked):
            dropped = ", ".join(f'"{name}"' for name in more)
            remedy = f"leave out what the query does not put out: output.drop({dropped})"
        msg = (
            f"the output has columns {output.schema.simpleString()}, the batch answer "
            f"{expected.schema.simpleString()}; {remedy}."
        )
        raise HeadgateError(msg)
    schema = expected.schema
    columns = _columns(schema, summed_columns(expected))
    near = [column for column in columns if column.near]
    counted = _row_of(expected, schema, 1).unionAll(_row_of(output, schema, -1))
    net = F.sum("sign").alias("net")
    wanted = F.sum(F.when(F.col("sign") > 0, 1).otherwise(0)).alias("wanted")
    rows = counted.groupBy(_ROW).agg(net, wanted).persist()
    try:
        total = rows.agg(
            F.coalesce(F.sum("wanted"), F.lit(0)).alias("rows"),
            F.count(F.when(F.col("net") != 0, 1)).alias("differ"),
            F.count(F.lit(1)).alias("any"),
        ).collect()[0]
        rest = rows.where("net <> 0").select("net", _cells(schema).alias("cells"), _ROW)
        if near and total["differ"]:
            rest = _left_over(rest, columns, near, _floors(rows, near)).persist()
        missing, extra = _counts(rest) if total["differ"] else (0, 0)
        differing = _beside(rest, schema.names) if missing or extra else []
        rest.unpersist()
    finally:
        rows.unpersist()
    same = missing == 0 and extra == 0
    return {
        "verified": (same if total["any"] else None),
        "rows_compared": int(total["rows"]),
        "missing": missing,
        "extra": extra,
        "differing": differing,
        "within_tolerance": [column.name for column in near],
    }


def _in_order(output: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return an output with its columns in the order of `names`; partitionBy moves columns to the end."""
    there = output.columns
    if there == names or sorted(there) != sorted(names) or len(set(names)) < len(names):
        return output
    return output.toDF(*(f"c{n}" for n in range(len(there)))).select(
        *(F.col(f"c{there.index(name)}").alias(name) for name in names)
    )


def _shape(schema: T.StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@dataclass(frozen=True)
class _Compared:
    """Describes a column, and whether its floating-point numbers match within a tolerance."""

    number: int
    name: str
    kind: T.DataType
    near: bool

    @property
    def value(self) -> Column:
        """The column in the form of `_canonical`."""
        return F.col(_ROW)[f"c{self.number}"]

    @property
    def relative(self) -> float:
        """Relative tolerance; the wide one if the column has numbers of 32 bits."""
        single = any(isinstance(leaf, T.FloatType) for leaf in _leaves(self.kind))
        return RELATIVE_SINGLE if single else RELATIVE

    def numbers(self) -> Column:
        """Return the column's floating-point numbers in a list; 0 for numbers that are not finite."""
        return _numbers(self.value, self.kind)

    def size(self) -> Column:
        """Return the largest absolute value of the column's numbers in a row."""
        return F.array_max(F.transform(self.numbers(), F.abs))


def _columns(schema: T.StructType, summed: Sequence[bool]) -> list[_Compared]:
    return [
        _Compared(number, field.name, field.dataType, near and _has_floats(field.dataType))
        for number, (field, near) in enumerate(zip(schema.fields, summed, strict=True))
    ]


def _leaves(kind: T.DataType) -> Iterator[T.DataType]:
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _leaves(field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from _leaves(kind.elementType)
    elif isinstance(kind, T.MapType):
        # keys find the entries, so they must be equal
        yield from _leaves(kind.valueType)
    else:
        yield kind


def _has_floats(kind: T.DataType) -> bool:
    return any(isinstance(leaf, _FLOATS) for leaf in _leaves(kind))


def _row_of(frame: DataFrame, schema: T.StructType, sign: int) -> DataFrame:
    """Return a frame's rows as a struct by which Spark can group, and `sign` as a second column."""
    # by position, because names may be duplicate or have dots
    plain = frame.toDF(*(f"c{number}" for number in range(len(schema))))
    columns = [
        _canonical(F.col(f"c{number}"), field.dataType).alias(f"c{number}")
        for number, field in enumerate(schema.fields)
    ]
    return plain.select(F.struct(*columns).alias(_ROW), F.lit(sign).alias("sign"))


def _canonical(value: Column, kind: T.DataType) -> Column:
    """Return a value in a form that is the same for equal values, and by which Spark can group."""
    if isinstance(kind, _FLOATS):
        plain = (value + F.lit(0.0)).cast(kind)  # -0.0 becomes 0.0
        return F.when(F.isnan(value), F.lit(_NAN).cast(kind)).otherwise(plain)
    if isinstance(kind, T.StructType) and kind.fields:
        renamed = T.StructType(
            [T.StructField(f"f{n}", f.dataType) for n, f in enumerate(kind.fields)]
        )
        value = value.cast(renamed)
        fields = (
            _canonical(value.getField(f"f{n}"), f.dataType).alias(f"f{n}")
            for n, f in enumerate(kind.fields)
        )
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda item: _canonical(item, kind.elementType))
    if isinstance(kind, T.MapType):
        entries = F.transform(
            F.map_entries(value),
            lambda item: F.struct(
                _canonical(item["key"], kind.keyType).alias("key"),
                _canonical(item["value"], kind.valueType).alias("value"),
            ),
        )
        return F.array_sort(entries)
    if kind.typeName() == "variant":
        return F.to_json(value)
    return value


def _exact(value: Column, kind: T.DataType) -> Column:
    """Return a canonical value without its finite floating-point numbers."""
    if not _has_floats(kind):
        return value
    if isinstance(kind, _FLOATS):
        which = F.when(F.isnan(value), 1).when(value == math.inf, 2).when(value == -math.inf, 3)
        return F.when(value.isNotNull(), which.otherwise(0))
    if isinstance(kind, T.StructType):
        fields = (
            _exact(value.getField(f"f{n}"), f.dataType).alias(f"f{n}")
            for n, f in enumerate(kind.fields)
        )
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda item: _exact(item, kind.elementType))
    assert isinstance(kind, T.MapType)
    return F.transform(
        value,
        lambda item: F.struct(
            item["key"].alias("key"), _exact(item["value"], kind.valueType).alias("value")
        ),
    )


def _numbers(value: Column, kind: T.DataType) -> Column:
    """Return the floating-point numbers of a canonical value, in order."""
    none = F.array().cast("array<double>")
    if not _has_floats(kind):
        return none
    if isinstance(kind, _FLOATS):
        finite = value.isNotNull() & ~F.isnan(value) & (F.abs(value) != math.inf)
        return F.array(F.when(finite, value.cast("double")).otherwise(F.lit(0.0)))
    if isinstance(kind, T.StructType):
        return F.concat(
            *(_numbers(value.getField(f"f{n}"), f.dataType) for n, f in enumerate(kind.fields))
        )
    if isinstance(kind, T.ArrayType):
        parts = F.transform(value, lambda item: _numbers(item, kind.elementType))
    else:
        assert isinstance(kind, T.MapType)
        parts = F.transform(value, lambda item: _numbers(item["value"], kind.valueType))
    return F.coalesce(F.flatten(parts), none)


def _cells(schema: T.StructType) -> Column:
    """Return a row's columns as texts, for people."""
    cells = (_text(F.col(_ROW)[f"c{n}"], f.dataType) for n, f in enumerate(schema.fields))
    return F.array(*cells).cast("array<string>")


def _text(value: Column, kind: T.DataType) -> Column:
    text = F.hex(value) if isinstance(kind, T.BinaryType) else value.cast("string")
    return F.coalesce(text, F.lit("null"))


def _floors(rows: DataFrame, near: Sequence[_Compared]) -> list[float]:
    """Return the absolute tolerance of each column."""
    sizes = rows.select(*(column.size().alias(f"s{column.number}") for column in near))
    found = sizes.agg(
        *(F.max(name).alias(f"{name}_largest") for name in sizes.columns),
        *(
            F.percentile_approx(F.when(F.col(name) > 0, F.col(name)), 0.5).alias(f"{name}_median")
            for name in sizes.columns
        ),
    ).collect()[0]
    return [
        floor_of(found[f"{name}_largest"] or 0.0, found[f"{name}_median"] or 0.0)
        for name in sizes.columns
    ]


def _left_over(
    rest: DataFrame,
    columns: Sequence[_Compared],
    near: Sequence[_Compared],
    floors: Sequence[float],
) -> DataFrame:
    """Return the rows that have no partner within the tolerance."""
    exact = F.struct(
        F.lit(0).alias("all"),
        *((_exact(c.value, c.kind) if c.near else c.value).alias(f"c{c.number}") for c in columns),
    )
    numbers = [c.numbers().alias(f"n{c.number}") for c in near]
    # two hashes replace the exact columns, because Arrow does not have all of their types
    hashes = F.xxhash64(exact).alias("h"), F.hash(exact).alias("g")
    grouped = rest.select("net", "cells", *hashes, *numbers)
    matching = Nearness(
        tuple(f"n{c.number}" for c in near),
        tuple(c.relative for c in near),
        tuple(floors),
    )
    return grouped.groupBy("h", "g").applyInArrow(
        # a lambda: Spark counts the arguments, and would count a method's self, too
        lambda rows: matching.left_over(rows),  # noqa: PLW0108
        "net bigint, cells array<string>",
    )


def _counts(rest: DataFrame) -> tuple[int, int]:
    """Return the number of missing rows and of extra rows."""
    net = F.col("net")
    counts = rest.agg(
        F.sum(F.when(net > 0, net)).alias("missing"), F.sum(F.when(net < 0, -net)).alias("extra")
    ).collect()[0]
    return int(counts["missing"] or 0), int(counts["extra"] or 0)


def _beside(rest: DataFrame, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some differing rows: each expected row with the most similar row of the output."""
    wanted = [row.cells for row in rest.where("net > 0").orderBy("cells").limit(_SHOWN).collect()]
    there = [
        row.cells for row in rest.where("net < 0").orderBy("cells").limit(_LOOKED_AT).collect()
    ]
    pairs = []
    for want in wanted:
        got = max(there, key=lambda candidate: _alike(candidate, want), default=None)
        if got is not None and _alike(got, want):
            there.remove(got)
        else:
            got = None
        pairs.append((want, got))
    more = [(None, got) for got in there]
    shown = (pairs + more)[:_SHOWN]
    return [{"want": _named(names, want), "got": _named(names, got)} for want, got in shown]


def _alike(row: Sequence[str], other: Sequence[str]) -> int:
    return sum(a == b for a, b in zip(row, other, strict=True))


def _named(names: Sequence[str], cells: Sequence[str] | None) -> dict[str, str] | None:
    if cells is None:
        return None
    by_name: dict[str, str] = {}
    for name, cell in zip(names, cells, strict=True):
        by_name[name if name not in by_name else f"{name} ({len(by_name) + 1})"] = cell
    return by_name
