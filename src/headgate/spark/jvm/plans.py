"""Creates, changes and runs Catalyst's plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from headgate.spark.jvm.expressions import alias
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class, jvm, seq, seq_of_one
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.sessions import created


def analysed(df: DataFrame) -> Jvm:
    """Return the analysed logical plan of `df`."""
    return df._jdf.queryExecution().analyzed()


def optimised(df: DataFrame) -> Jvm:
    """Return the optimised logical plan of `df`."""
    return df._jdf.queryExecution().optimizedPlan()


def collapsed(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan in which adjacent projections are merged into one.

    Catalyst does not merge them if a costly value would be in the plan twice, such as a window in its
    start and its end. A compiled projection computes such a value once.
    """
    rule = java_class(spark, "org.apache.spark.sql.catalyst.optimizer.CollapseProject$.MODULE$")
    return rule.apply(plan, True)


def optimised_stream(df: DataFrame) -> Jvm:
    """Return the logical plan of a streaming frame, optimised as for a batch."""
    return df.sparkSession._jsparkSession.sessionState().optimizer().execute(analysed(df))


def is_at_hand(df: DataFrame) -> bool:
    """Return whether Catalyst has computed the rows of `df` during planning, so that it needs no job."""
    return class_name(optimised(df)) == "LocalRelation"


def physical(df: DataFrame) -> Jvm:
    """Return the physical plan of `df`, ready to run."""
    return df._jdf.queryExecution().executedPlan()


def names_a_class(df: DataFrame) -> bool:
    """Return whether a schema has a user-defined type, for which PySpark imports a module."""
    return '"type":"udt"' in str(df._jdf.schema().json())


def of_rows(spark: SparkSession, plan: Jvm) -> DataFrame:
    """Return the DataFrame of a logical plan."""
    module = java_class(spark, "org.apache.spark.sql.classic.Dataset$.MODULE$")
    return DataFrame(module.ofRows(spark._jsparkSession, plan), spark)


def project(spark: SparkSession, expressions: Iterable[Jvm], child: Jvm) -> Jvm:
    """Return a logical Project."""
    node = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Project")
    return node(seq(spark, expressions), child)


def filtered(spark: SparkSession, condition: Jvm, child: Jvm) -> Jvm:
    """Return a logical Filter."""
    return jvm(spark).org.apache.spark.sql.catalyst.plans.logical.Filter(condition, child)


def named_as(frame: DataFrame, attributes: Iterable[Jvm]) -> Jvm:
    """Return a plan of the columns of `frame` under the names and ids of `attributes`."""
    spark, made = frame.sparkSession, analysed(frame)
    outputs = [
        alias(spark, new, old.name(), old.exprId(), old.metadata())
        for new, old in zip(each(made.output()), attributes, strict=True)
    ]
    return project(spark, outputs, made)


def template(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame whose plan is one leaf, which the caller replaces."""
    return created(spark, [], schema)


def no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return an empty DataFrame that, unlike `createDataFrame`, needs no Python worker."""
    nothing = _nothing(spark)
    java_schema = spark._jsparkSession.parseDataType(schema.json())
    made = spark._jsparkSession.internalCreateDataFrame(nothing, java_schema, False)
    return DataFrame(made, spark)


def _nothing(spark: SparkSession) -> Jvm:
    """Return an RDD without rows."""
    tag = java_class(spark, "scala.reflect.ClassTag$.MODULE$").Any()
    return spark.sparkContext._jsc.sc().makeRDD(seq(spark, []), 1, tag)


def resolved(
    spark: SparkSession, attributes: Iterable[Jvm], columns: Iterable[Column]
) -> list[Jvm]:
    """Return columns over attributes as Catalyst's named expressions, for a plan with these attributes.

    Catalyst does not analyse that plan: an optimised plan may have the same ids at several places, and
    the analysis would replace them by new ids.
    """
    made = of_rows(spark, leaf(spark, seq(spark, attributes), _nothing(spark))).select(*columns)
    return list(each(analysed(made).projectList()))


def mapped(spark: SparkSession, plan: Jvm, change: Callable[[DataFrame], DataFrame]) -> Jvm:
    """Return the node that `change` puts above a plan, without analysis of this plan; see `resolved`."""
    node = analysed(change(of_rows(spark, leaf(spark, plan.output(), _nothing(spark)))))
    return node.withNewChildren(seq_of_one(spark, plan))


def as_it_is(spark: SparkSession, plan: Jvm) -> DataFrame:
    """Return the DataFrame of a resolved plan, without another analysis."""
    plan.setAnalyzed()
    return of_rows(spark, plan)


def leaf(spark: SparkSession, attributes: Jvm, rows: Jvm) -> Jvm:
    """Return a plan leaf with the given output `attributes` over an RDD of internal rows."""
    none = java_class(spark, "scala.None$.MODULE$")
    nil = java_class(spark, "scala.collection.immutable.Nil$.MODULE$")
    unknown = java_class(spark, "org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning")(
        0
    )
    node = java_class(spark, "org.apache.spark.sql.execution.LogicalRDD")
    session = spark._jsparkSession
    return adapter().logical_rdd(
        node, attributes, rows, unknown, nil, False, none, session, none, none
    )


def placeholder(spark: SparkSession, schema: StructType, attributes: Jvm) -> Jvm:
    """Return a leaf without rows that has `schema` and the same `attributes` as another node."""
    empty = of_rows(spark, analysed(template(spark, schema)))
    return leaf(spark, attributes, computed_rows(empty))


def union(spark: SparkSession, plans: Iterable[Jvm]) -> Jvm:
    """Return a union of plans, whose columns match by position."""
    node = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Union")
    return node(seq(spark, plans), False, False)


def without_constraints(frame: DataFrame) -> DataFrame:
    """Return the same rows from a node for which Catalyst infers no constraints.

    Catalyst infers constraints for the input of every batch, and repeats each constraint for each column
    that renames another: a hash of n such columns becomes 2**n constraints.
    """
    spark, plan = frame.sparkSession, analysed(frame)
    node = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Expand")
    return of_rows(spark, node(seq_of_one(spark, plan.output()), plan.output(), plan))


def inner_join(spark: SparkSession, join: Jvm) -> Jvm:
    """Return the inner join with a join's inputs and condition."""
    return join_of(spark, join, (join.left(), join.right()), "Inner", join.condition().get())


def join_of(
    spark: SparkSession, join: Jvm, inputs: tuple[Jvm, Jvm], kind: str, condition: Jvm
) -> Jvm:
    """Return a logical Join with the hints of `join`; `kind` is the name of Catalyst's object."""
    made = java_class(spark, f"org.apache.spark.sql.catalyst.plans.{kind}$.MODULE$")
    some = java_class(spark, "scala.Some")(condition)
    node = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Join")
    return node(*inputs, made, some, join.hint())


def outer_join(spark: SparkSession, left: Jvm, right: Jvm, condition: Jvm) -> Jvm:
    """Return the left outer join of `left` with `right`, which Spark broadcasts."""
    return _join(spark, left, right, _join_type(spark, "LeftOuter"), condition)


def marked_join(spark: SparkSession, left: Jvm, right: Jvm, condition: Jvm, mark: Jvm) -> Jvm:
    """Return the rows of `left` with the attribute `mark`: whether a row of `right` (broadcast) fits."""
    kind = java_class(spark, "org.apache.spark.sql.catalyst.plans.ExistenceJoin")(mark)
    return _join(spark, left, right, kind, condition)


def _join_type(spark: SparkSession, name: str) -> Jvm:
    return java_class(spark, f"org.apache.spark.sql.catalyst.plans.{name}$.MODULE$")


def _join(spark: SparkSession, left: Jvm, right: Jvm, kind: Jvm, condition: Jvm) -> Jvm:
    some = java_class(spark, "scala.Some")(condition)
    logical = "org.apache.spark.sql.catalyst.plans.logical"
    broadcast = java_class(spark, f"{logical}.BROADCAST$.MODULE$")
    info = java_class(spark, f"{logical}.HintInfo")(java_class(spark, "scala.Some")(broadcast))
    none = java_class(spark, "scala.None$.MODULE$")
    hint = java_class(spark, f"{logical}.JoinHint")(none, java_class(spark, "scala.Some")(info))
    return java_class(spark, f"{logical}.Join")(left, right, kind, some, hint)


def generate(spark: SparkSession, node: Jvm, generator: Jvm, child: Jvm, *, outer: bool) -> Jvm:
    """Return a logical Generate with the output columns of `node`, and another generator and child."""
    made = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Generate")
    nothing, none = seq(spark, []), java_class(spark, "scala.None$.MODULE$")
    return made(generator, nothing, outer, none, node.generatorOutput(), child)


def expand(
    spark: SparkSession, projections: Iterable[Iterable[Jvm]], output: Iterable[Jvm], child: Jvm
) -> Jvm:
    """Return a logical Expand, which makes one row of each input row for each projection."""
    node = java_class(spark, "org.apache.spark.sql.catalyst.plans.logical.Expand")
    rows = seq(spark, [seq(spark, projection) for projection in projections])
    return node(rows, seq(spark, output), child)


class Graft:
    """Replaces the leaf of a plan for every batch, with few calls into the JVM.

    `plan`, `old` (plan nodes): `old` is a leaf of `plan`.
    """

    def __init__(self, spark: SparkSession, plan: Jvm, old: Jvm) -> None:
        self._spark = spark
        self._plan, self._old = plan, old
        self._path: list[Jvm] | None = []
        node = plan
        while not node.equals(old):
            children = list(each(node.children()))
            if len(children) != 1:
                self._path = None  # not a line of nodes: `onto` searches the leaf each time
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
    """Return `plan` with the leaf `old` replaced by `new`."""
    if plan.equals(old):
        return new
    children = list(each(plan.children()))
    if not children:
        return plan
    replaced = [replace_leaf(spark, child, old, new) for child in children]
    return plan.withNewChildren(seq(spark, replaced))


def without_watermarks(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return `plan` without the nodes that only mark the event-time column."""
    children = [without_watermarks(spark, child) for child in each(plan.children())]
    if class_name(plan) in ("EventTimeWatermark", "UpdateEventTimeWatermarkColumn"):
        return children[0]
    return plan.withNewChildren(seq(spark, children)) if children else plan


def internal_rows(frame: DataFrame) -> Jvm:
    """Return the RDD of Catalyst's internal rows of `frame`.

    For a frame over an RDD, as in ``foreachBatch``, it is this RDD; as a query, Spark would copy each
    row.
    """
    execution = frame._jdf.queryExecution()
    plan = execution.analyzed()
    return plan.rdd() if class_name(plan) == "LogicalRDD" else execution.toRdd()


def computed_rows(frame: DataFrame) -> Jvm:
    """Return the RDD of internal rows that `frame` computes as a query."""
    return frame._jdf.queryExecution().toRdd()


def run_through(frame: DataFrame) -> None:
    """Compute all rows of `frame`, and drop them."""
    computed_rows(frame).count()


class ArrowMap:
    """Applies a function by `mapInArrow`; pickles and registers the function once, not for each batch.

    `function`: takes and returns iterators of record batches; must not change while the query runs.
    `schema`: schema of the function's result.
    """

    def __init__(self, function: Callable[..., Any], schema: StructType) -> None:
        # DataFrame.mapInArrow makes it so for each call; the stubs only know users' functions
        self._udf = pandas_udf(  # type: ignore[call-overload]
            function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        )

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return ``frame.mapInArrow(function, schema)``."""
        column = self._udf(*[frame[name] for name in frame.columns])
        return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
