"""The few calls into Spark's JVM that PySpark has no Python form for.

Every private class that headgate leans on is named here, in `logical` (plans), `sinks` or `placement`;
a contract test per Spark minor release covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string
from pyspark.util import PythonEvalType

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


_classes: dict[tuple[int, str], Jvm] = {}


def java_class(spark: SparkSession, name: str) -> Jvm:
    """Return a class of the JVM by its full name; looked up once, since every dot is a call."""
    java = jvm(spark)
    key = (id(java), name)
    if key not in _classes:
        found = java
        for part in name.split("."):
            found = getattr(found, part)
        _classes[key] = found
    return _classes[key]


class ArrowMap:
    """A function for `mapInArrow` that is pickled and made known to the JVM once, not per batch.

    Parameters
    ----------
    function : callable
        Takes and gives iterators of record batches; unchanged as long as the query runs.
    schema : StructType
        Of what it gives.
    """

    def __init__(self, function: Callable[..., Any], schema: StructType) -> None:
        # As DataFrame.mapInArrow makes it, anew each time; the stubs know user functions only.
        self._udf = pandas_udf(  # type: ignore[call-overload]
            function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        )

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return ``frame.mapInArrow(function, schema)``."""
        column = self._udf(*[frame[name] for name in frame.columns])
        return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def seq(spark: SparkSession, items: Iterable[Any]) -> Jvm:
    """Return a Scala Seq of `items`."""
    return java_class(spark, "PythonUtils").toSeq(list(items))


def seq_of_one(spark: SparkSession, item: Jvm) -> Jvm:
    """Return a Scala Seq of one item, with the fewest calls."""
    return java_class(spark, "scala.Some")(item).toList()


def each(scala_collection: Jvm) -> Iterator[Jvm]:
    """Iterate over a Scala collection."""
    iterator = scala_collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def internal_rows(frame: DataFrame) -> Jvm:
    """Return the RDD of Catalyst's internal rows that `frame` stands for.

    A frame over an RDD, as ``foreachBatch`` gets it, is that RDD: asked for as a query, Spark would copy
    each of its rows.
    """
    execution = frame._jdf.queryExecution()
    plan = execution.analyzed()
    return plan.rdd() if class_name(plan) == "LogicalRDD" else execution.toRdd()


def analysed(df: DataFrame) -> Jvm:
    """Return the analysed logical plan of `df`."""
    return df._jdf.queryExecution().analyzed()


def of_rows(spark: SparkSession, plan: Jvm) -> DataFrame:
    """Return the DataFrame of a logical plan."""
    module = java_class(spark, "org.apache.spark.sql.classic.Dataset$.MODULE$")
    return DataFrame(module.ofRows(spark._jsparkSession, plan), spark)


def column(spark: SparkSession, expression: Jvm) -> Column:
    """Return a Catalyst expression as a Column."""
    utils = java_class(spark, "org.apache.spark.sql.classic.ExpressionUtils")
    return ClassicColumn(utils.column(expression))


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
    node = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Project")
    return node(seq(spark, expressions), child)


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


def named_as(frame: DataFrame, attributes: Iterable[Jvm]) -> Jvm:
    """Return a plan of the columns of `frame` under the names and ids of `attributes`."""
    spark, made = frame.sparkSession, analysed(frame)
    outputs = [
        alias(spark, new, old.name(), old.exprId(), old.metadata())
        for new, old in zip(each(made.output()), attributes, strict=True)
    ]
    return project(spark, outputs, made)


def template(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame whose plan is one leaf, to be replaced by `leaf`."""
    return spark.createDataFrame([], schema)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame that no Python worker is asked for, as `createDataFrame` does."""
    tag = java_class(spark, "scala.reflect.ClassTag$.MODULE$").Any()
    nothing = spark.sparkContext._jsc.sc().makeRDD(seq(spark, []), 1, tag)
    java_schema = spark._jsparkSession.parseDataType(schema.json())
    made = spark._jsparkSession.internalCreateDataFrame(nothing, java_schema, False)
    return DataFrame(made, spark)


def leaf(spark: SparkSession, attributes: Jvm, rows: Jvm) -> Jvm:
    """Return a plan leaf with the given output `attributes` over an RDD of internal rows."""
    none = java_class(spark, "scala.None$.MODULE$")
    nil = java_class(spark, "scala.collection.immutable.Nil$.MODULE$")
    unknown = java_class(spark, "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning")(
        0
    )
    node = java_class(spark, "org.apache.spark.sql.execution.LogicalRDD")
    session = spark._jsparkSession
    return node(attributes, rows, unknown, nil, False, none, session, none, none, False)


class Graft:
    """A plan whose leaf is replaced for every batch, with few calls into the JVM.

    Parameters
    ----------
    spark : SparkSession
    plan, old : plan nodes
        `old` is a leaf of `plan`.
    """

    def __init__(self, spark: SparkSession, plan: Jvm, old: Jvm) -> None:
        self._spark = spark
        self._plan, self._old = plan, old
        self._path: list[Jvm] | None = []
        node = plan
        while not node.equals(old):
            children = list(each(node.children()))
            if len(children) != 1:
                self._path = None  # a union: found anew each time
                break
            self._path.insert(0, node)
            node = children[0]

    def onto(self, new: Jvm) -> Jvm:
        """Return the plan over the leaf `new`."""
        if self._path is None:
            return replace_leaf(self._spark, self._plan, self._old, new)
        for node in self._path:
            new = node.withNewChildren(seq_of_one(self._spark, new))
        return new


def replace_leaf(spark: SparkSession, plan: Jvm, old: Jvm, new: Jvm) -> Jvm:
    """Return `plan` with the leaf `old` replaced by `new`, everything else as it is."""
    if plan.equals(old):
        return new
    children = list(each(plan.children()))
    if not children:
        return plan
    replaced = [replace_leaf(spark, child, old, new) for child in children]
    return plan.withNewChildren(seq(spark, replaced))
