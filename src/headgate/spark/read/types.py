"""Maps Spark types to leaves of a row, and back."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import Kind, Leaf
from headgate.spark.jvm.expressions import collation_keys, known_not_null
from headgate.spark.jvm.folding import as_bytes, from_bytes, reinterpreted
from headgate.spark.jvm.folding import normalised as normalised_whole

_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_AS_LONGS = (
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    *((T.TimeType,) if hasattr(T, "TimeType") else ()),
)
"""Types whose values Spark stores as longs; some minors have no `TimeType`."""

_COMPARED = (
    *_INTEGERS,
    *_AS_LONGS,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.YearMonthIntervalType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BinaryType,
)


def any_leaves(data_type: T.DataType, value: Column) -> list[tuple[Leaf, Column]]:
    """Return the leaves that carry `value` and the expression of each.

    A struct becomes one leaf that is null if the struct is null, and the leaves of its fields. A value
    without another form becomes one leaf: the bytes in which Spark stores the value.
    """
    integer = _as_integer(data_type, value)
    if integer is not None:
        return [(Leaf(Kind.INTEGER), integer)]
    if isinstance(data_type, T.FloatType | T.DoubleType):
        return [(Leaf(Kind.FLOAT), value.cast("double"))]
    if isinstance(data_type, T.DecimalType):
        leaf = Leaf(Kind.DECIMAL, data_type.scale)
        return [(leaf, value.cast(T.DecimalType(38, data_type.scale)))]
    if isinstance(data_type, T.BinaryType) or _plain_string(data_type):
        return [(Leaf(Kind.BYTES), value.cast("binary"))]
    if isinstance(data_type, T.StructType):
        leaves = [(Leaf(Kind.INTEGER), F.when(value.isNotNull(), F.lit(1).cast("bigint")))]
        for field in data_type.fields:
            leaves += any_leaves(field.dataType, value.getField(field.name))
        return leaves
    return [(Leaf(Kind.BYTES), as_bytes(data_type, value))]


def _as_integer(data_type: T.DataType, value: Column) -> Column | None:
    """Return a value as a long with the same order; None if its type has no such long."""
    if isinstance(data_type, _INTEGERS):
        return value.cast("bigint")
    if isinstance(data_type, T.BooleanType):
        return value.cast("int").cast("bigint")
    if isinstance(data_type, T.DateType):
        return F.unix_date(value).cast("bigint")
    if isinstance(data_type, T.TimestampType):
        return F.unix_micros(value)
    if isinstance(data_type, _AS_LONGS):
        return reinterpreted(data_type, value, T.LongType())
    if isinstance(data_type, T.YearMonthIntervalType):
        return reinterpreted(data_type, value, T.IntegerType()).cast("bigint")
    return None


def in_order(data_type: T.DataType) -> bool:
    """Return whether the leaves of values compare as Spark compares the values."""
    if isinstance(data_type, T.StructType):
        return all(in_order(field.dataType) for field in data_type.fields)
    return isinstance(data_type, _COMPARED) or _plain_string(data_type)


def leaves(data_type: T.DataType, value: Column, what: str) -> list[tuple[Leaf, Column]]:
    """Return the leaves of a value that compares records, or that a worker reads.

    `what`: name of the value for the message. Raises `UnsupportedQuery`: leaves of the type do not
    have the order of its values.
    """
    if in_order(data_type):
        return any_leaves(data_type, value)
    msg = (
        f"cannot take {what} of type {data_type.simpleString()} here; name one of numbers, booleans, "
        "times, strings with the default collation, binary, or structs of those."
    )
    raise UnsupportedQuery(msg)


def key_leaves(data_type: T.DataType, value: Column) -> list[tuple[Leaf, Column]]:
    """Return the leaves of a grouping key, which are equal if the keys are equal for Spark.

    A text with a collation becomes its collation key, from which `rebuild` cannot return the text.
    """
    if collated(data_type):
        data_type, value = collation_keys(value)
    if _holds(data_type, T.MapType):
        value = _with_sorted_maps(data_type, value)
    if not in_order(data_type):
        value = normalised_whole(value)
    leaves = any_leaves(data_type, value)
    return [(leaf, normalised(leaf, part)) for leaf, part in leaves]


def _with_sorted_maps(data_type: T.DataType, value: Column) -> Column:
    """Return a value with the entries of its maps sorted by their keys, as Spark's grouping does it."""
    if not _holds(data_type, T.MapType):
        return value
    if isinstance(data_type, T.MapType):
        inner = data_type.valueType

        def entry(key: Column) -> Column:
            return F.struct(key, _with_sorted_maps(inner, value.getItem(key)))

        return F.map_from_entries(F.transform(F.array_sort(F.map_keys(value)), entry))
    if isinstance(data_type, T.ArrayType):
        element = data_type.elementType
        return F.transform(value, lambda x: _with_sorted_maps(element, x))
    assert isinstance(data_type, T.StructType)
    fields = [
        _with_sorted_maps(f.dataType, value.getField(f.name)).alias(f.name)
        for f in data_type.fields
    ]
    return F.when(value.isNotNull(), F.struct(*fields))


def _holds(data_type: T.DataType, kind: type[T.DataType]) -> bool:
    if isinstance(data_type, kind):
        return True
    if isinstance(data_type, T.ArrayType):
        return _holds(data_type.elementType, kind)
    if isinstance(data_type, T.StructType):
        return any(_holds(field.dataType, kind) for field in data_type.fields)
    return False


def collated(data_type: T.DataType) -> bool:
    """Return whether a type has texts with a collation, which may be equal and still differ."""
    if isinstance(data_type, T.ArrayType):
        return collated(data_type.elementType)
    if isinstance(data_type, T.StructType):
        return any(collated(field.dataType) for field in data_type.fields)
    return isinstance(data_type, T.StringType) and not _plain_string(data_type)


def _plain_string(data_type: T.DataType) -> bool:
    if not isinstance(data_type, T.StringType):
        return False
    return getattr(data_type, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def rebuild(data_type: T.DataType, parts: Sequence[Column]) -> Column:
    """Return the value whose leaves `any_leaves` returned; `parts` has one Column for each leaf."""
    value = parts[0]
    if isinstance(data_type, T.BooleanType):
        return value.cast("int").cast("boolean")
    if isinstance(data_type, T.DateType):
        return F.call_function("date_from_unix_date", value.cast("int"))
    if isinstance(data_type, T.TimestampType):
        return F.call_function("timestamp_micros", value)
    if isinstance(data_type, _AS_LONGS):
        return reinterpreted(T.LongType(), value, data_type)
    if isinstance(data_type, T.YearMonthIntervalType):
        return reinterpreted(T.IntegerType(), value.cast("int"), data_type)
    if isinstance(data_type, T.StructType):
        fields, at = [], 1
        for field in data_type.fields:
            width = leaf_count(field.dataType)
            part = rebuild(field.dataType, parts[at : at + width])
            declared = part if field.nullable else known_not_null(part)
            fields.append(declared.alias(field.name))
            at += width
        return F.when(value.isNotNull(), F.struct(*fields))
    if not in_order(data_type):
        return from_bytes(data_type, value)
    return value.cast(data_type)


def leaf_count(data_type: T.DataType) -> int:
    """Return the number of leaves that `any_leaves` returns for a type."""
    if isinstance(data_type, T.StructType):
        return 1 + sum(leaf_count(field.dataType) for field in data_type.fields)
    return 1


def normalised(leaf: Leaf, value: Column) -> Column:
    """Return a key leaf with one NaN and one zero, as Spark's grouping does it."""
    if leaf.kind is not Kind.FLOAT:
        return value
    zero, nan = F.lit(0.0), F.lit(float("nan"))
    return F.when(F.isnan(value), nan).when(value == zero, zero).otherwise(value)


def spark_type(leaf: Leaf) -> T.DataType:
    """Return the Spark type of a leaf's expression."""
    return {
        Kind.INTEGER: T.LongType(),
        Kind.FLOAT: T.DoubleType(),
        Kind.DECIMAL: T.DecimalType(38, leaf.scale),
        Kind.BYTES: T.BinaryType(),
        Kind.REGISTERS: T.ArrayType(T.LongType()),
    }[leaf.kind]
