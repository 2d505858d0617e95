"""Converts Catalyst's expressions and types to PySpark's and back, and creates expressions."""

from __future__ import annotations

from collections.abc import Iterable

from py4j.java_gateway import get_field
from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import DataType, _parse_datatype_json_string

from headgate.spark.jvm.gateway import Jvm, active_jvm, java_class, jvm, seq

_GREATEST = 2**63 - 1


def column(spark: SparkSession, expression: Jvm) -> Column:
    """Return a Catalyst expression as a Column."""
    utils = java_class(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    return ClassicColumn(utils.column(expression))


def catalyst(value: Column) -> Jvm:
    """Return a Column as a Catalyst expression."""
    return active_jvm().org.apache.spark.sql.classic.ExpressionUtils.expression(value._jc)


def text_of(value: Column) -> str:
    """Return a column's expression as the JVM prints it."""
    return str(value._jc)


def known_not_null(value: Column) -> Column:
    """Return `value`, declared as never null."""
    java = active_jvm()
    declared = java.org.apache.spark.sql.catalyst.expressions.KnownNotNull(catalyst(value))
    return ClassicColumn(java.org.apache.spark.sql.classic.ExpressionUtils.column(declared))


def collation_keys(value: Column) -> tuple[DataType, Column]:
    """Return type and values of collation keys, which are equal for texts that a collation equates."""
    java = active_jvm()
    keys = java.org.apache.spark.sql.catalyst.expressions.CollationKey
    key = keys.injectCollationKey(catalyst(value))
    column_of = java.org.apache.spark.sql.classic.ExpressionUtils.column
    return data_type(key.dataType()), ClassicColumn(column_of(key))


def data_type(spark_type: Jvm) -> DataType:
    """Return a Catalyst type as a PySpark type."""
    return _parse_datatype_json_string(spark_type.json())


def alias(
    spark: SparkSession, child: Jvm, name: str, expr_id: Jvm, metadata: Jvm | None = None
) -> Jvm:
    """Return `child` under a given name and expression id."""
    scala = jvm(spark).scala
    empty = seq(spark, [])
    explicit = scala.Option.apply(metadata)
    return jvm(spark).org.apache.spark.sql.catalyst.expressions.Alias(
        child, name, expr_id, empty, explicit, empty
    )


def plus(spark: SparkSession, expression: Jvm, number: int) -> Jvm:
    """Return ``expression + number``, or the greatest long where the sum would overflow."""
    expressions = jvm(spark).org.apache.spark.sql.catalyst.expressions
    parse = spark._jsparkSession.sessionState().sqlParser().parseExpression
    most = parse(f"{_GREATEST - number}L")
    # `If` keeps null as null, which `least` would not
    least = expressions.If(expressions.GreaterThan(expression, most), most, expression)
    return expressions.Add(least, parse(f"{number}L"))


def as_long(spark: SparkSession, expression: Jvm) -> Jvm:
    """Return a whole number of any width, cast to a long."""
    cast = java_class(spark, "org.apache.spark.sql.catalyst.expressions.Cast$.MODULE$")
    kind = java_class(spark, "org.apache.spark.sql.types.LongType$.MODULE$")
    return cast.apply(expression, kind, True)


def present_or(spark: SparkSession, value: Jvm, condition: Jvm) -> Jvm:
    """Return the condition that `value` is not null, or `condition` holds."""
    expressions = jvm(spark).org.apache.spark.sql.catalyst.expressions
    return expressions.Or(expressions.IsNotNull(value), condition)


def null_where_present(spark: SparkSession, value: Jvm, child: Jvm) -> Jvm:
    """Return `child`; where `value` is not null, return null and do not compute `child`."""
    expressions = jvm(spark).org.apache.spark.sql.catalyst.expressions
    literals = getattr(getattr(expressions, "Literal$"), "MODULE$")
    nothing = literals.create(None, child.dataType())
    return expressions.If(expressions.IsNotNull(value), nothing, child)


def default_where_present(spark: SparkSession, value: Jvm, child: Jvm) -> Jvm:
    """Return `child`; where `value` is not null, return the default of its type, such as 0."""
    expressions = jvm(spark).org.apache.spark.sql.catalyst.expressions
    literals = getattr(getattr(expressions, "Literal$"), "MODULE$")
    default = getattr(literals, "default")(child.dataType())  # noqa: B009 - a keyword in Scala
    return expressions.If(expressions.IsNotNull(value), default, child)


def absent_and(spark: SparkSession, value: Jvm, conditions: Iterable[Jvm]) -> Jvm:
    """Return the condition that `value` is null, and all `conditions` hold."""
    expressions = jvm(spark).org.apache.spark.sql.catalyst.expressions
    both = expressions.IsNull(value)
    for condition in conditions:
        both = expressions.And(both, condition)
    return both


def same_even_null(spark: SparkSession, left: Jvm, right: Jvm) -> Jvm:
    """Return the condition that two values are equal, or both null."""
    return jvm(spark).org.apache.spark.sql.catalyst.expressions.EqualNullSafe(left, right)


def both(spark: SparkSession, left: Jvm, right: Jvm) -> Jvm:
    """Return the condition that two conditions hold."""
    return jvm(spark).org.apache.spark.sql.catalyst.expressions.And(left, right)


def interval_parts(value: Jvm) -> tuple[int, int, int]:
    """Return the months, days and microseconds of a calendar interval."""
    months, days, micros = (get_field(value, n) for n in ("months", "days", "microseconds"))
    return months, days, micros


def tree_patterns(spark: SparkSession, names: Iterable[str]) -> list[Jvm]:
    """Return Catalyst's tree patterns, for ``containsPattern``, by their names."""
    patterns = java_class(spark, "org.apache.spark.sql.catalyst.trees.TreePattern")
    return [getattr(patterns, name)() for name in names]
