"""The few calls into Spark's JVM that PySpark has no Python form for.

Every private class that headgate leans on is named here, in `logical` (plans), `sinks` or `placement`;
a contract test per Spark minor release covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string

from headgate.core.errors import HeadgateError

Jvm = Any
"""An object living in the JVM (py4j is untyped)."""


def require_classic(spark: object) -> None:
    """Raise HeadgateError unless `spark` is a classic session."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        msg = (
            "this session is Spark Connect; headgate runs foreachBatch in the driver and needs Spark "
            "Classic (builder.master(...))."
        )
        raise HeadgateError(msg)


def jvm(spark: SparkSession) -> Jvm:
    """Return the entry to the JVM's classes."""
    return spark.sparkContext._jvm


def seq(spark: SparkSession, items: Iterable[Any]) -> Jvm:
    """Return a Scala Seq of `items`."""
    return jvm(spark).PythonUtils.toSeq(list(items))


def each(scala_collection: Jvm) -> Iterator[Jvm]:
    """Iterate over a Scala collection."""
    iterator = scala_collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def analysed(df: DataFrame) -> Jvm:
    """Return the analysed logical plan of `df`."""
    return df._jdf.queryExecution().analyzed()


def of_rows(spark: SparkSession, plan: Jvm) -> DataFrame:
    """Return the DataFrame of a logical plan."""
    module = getattr(getattr(jvm(spark).org.apache.spark.sql.classic, "Dataset$"), "MODULE$")
    return DataFrame(module.ofRows(spark._jsparkSession, plan), spark)


def column(spark: SparkSession, expression: Jvm) -> Column:
    """Return a Catalyst expression as a Column."""
    return ClassicColumn(jvm(spark).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def known_not_null(value: Column) -> Column:
    """Return `value` declared never null, where the user's plan says so."""
    context = SparkContext._active_spark_context
    assert context is not None
    java: Jvm = context._jvm
    inner = java.org.apache.spark.sql.classic.ExpressionUtils.expression(value._jc)
    declared = java.org.apache.spark.sql.catalyst.expressions.KnownNotNull(inner)
    return ClassicColumn(java.org.apache.spark.sql.classic.ExpressionUtils.column(declared))


def data_type(spark_type: Jvm) -> DataType:
    """Return a Catalyst type as a PySpark type."""
    return _parse_datatype_json_string(spark_type.json())


def class_name(node: Jvm) -> str:
    """Return the simple class name of a plan node, expression or function."""
    name: str = node.getClass().getSimpleName()
    return name


def project(spark: SparkSession, expressions: Iterable[Jvm], child: Jvm) -> Jvm:
    """Return a logical Project."""
    logical = jvm(spark).org.apache.spark.sql.catalyst.plans.logical
    return logical.Project(seq(spark, expressions), child)


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


def template(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame whose plan is one leaf, to be replaced by `leaf`."""
    return spark.createDataFrame([], schema)


def leaf(spark: SparkSession, attributes: Jvm, rows: Jvm) -> Jvm:
    """Return a plan leaf with the given output `attributes` over an RDD of internal rows."""
    java = jvm(spark)
    none = java.scala.Option.apply(None)
    unknown = java.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0)
    return java.org.apache.spark.sql.execution.LogicalRDD(
        attributes,
        rows,
        unknown,
        seq(spark, []),
        False,
        none,
        spark._jsparkSession,
        none,
        none,
        False,
    )


def replace_leaf(spark: SparkSession, plan: Jvm, old: Jvm, new: Jvm) -> Jvm:
    """Return `plan` with the leaf `old` replaced by `new`, everything else as it is."""
    if plan.equals(old):
        return new
    children = list(each(plan.children()))
    if not children:
        return plan
    replaced = [replace_leaf(spark, child, old, new) for child in children]
    return plan.withNewChildren(seq(spark, replaced))
