"""Calls Spark's own analyser, optimizer rules and parsers on a query."""

from __future__ import annotations

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from headgate.spark.jvm.errors import JvmError
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class, jvm, seq
from headgate.spark.jvm.minors import adapter
from headgate.spark.jvm.plans import analysed, of_rows


def without_cte(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan in which each common table expression replaces its references, as in Spark."""
    catalyst = jvm(spark).org.apache.spark.sql.catalyst
    if not plan.containsPattern(catalyst.trees.TreePattern.CTE()):
        return plan
    return adapter().inline_cte(catalyst.optimizer.InlineCTE).apply(plan)


_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer."


def distinct(spark: SparkSession, plan: Jvm, mode: str) -> Jvm:
    """Return a plan with SQL's ``SELECT DISTINCT`` over a stream replaced by a node for the output mode.

    In append mode the node is a ``dropDuplicates()``, which puts out a row when it first comes; in other
    modes an aggregate without functions, as in Spark. ``EXCEPT`` of a stream and a static table becomes a
    distinct anti join.
    """
    children = list(each(plan.children()))
    if not plan.isStreaming() or not children:
        return plan
    plan = plan.withNewChildren(seq(spark, [distinct(spark, child, mode) for child in children]))
    if class_name(plan) == "Except" and not plan.isAll() and not plan.right().isStreaming():
        plan = java_class(spark, f"{_OPTIMIZER}ReplaceExceptWithAntiJoin$.MODULE$").apply(plan)
    if class_name(plan) != "Distinct":
        return plan
    if mode == "append":
        return analysed(of_rows(spark, plan.child()).dropDuplicates())
    return java_class(spark, f"{_OPTIMIZER}ReplaceDistinctWithAggregate$.MODULE$").apply(plan)


def output_mode(spark: SparkSession, mode: str) -> Jvm:
    """Return the JVM's object for append, update or complete."""
    modes = java_class(spark, "org.apache.spark.sql.streaming.OutputMode")
    return getattr(modes, mode.capitalize())()


def check_streaming(spark: SparkSession, plan: Jvm, mode: str) -> None:
    """Let Spark check whether it can run a plan in an output mode.

    Raises `AnalysisException`: Spark cannot run the plan.
    """
    analysis = jvm(spark).org.apache.spark.sql.catalyst.analysis
    analysis.UnsupportedOperationChecker.checkForStreaming(plan, output_mode(spark, mode))


def without_distinct(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan whose aggregates have no ``DISTINCT``, because Spark's check refuses it."""
    children = [without_distinct(spark, child) for child in each(plan.children())]
    if children:
        plan = plan.withNewChildren(seq(spark, children))
    if class_name(plan) != "Aggregate":
        return plan
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    fields = gateway.new_array(jvm(spark).java.lang.Object, plan.productArity())
    for i in range(plan.productArity()):
        fields[i] = plan.productElement(i)
    aggregates = [
        _of_every_record(spark, expression) for expression in each(plan.aggregateExpressions())
    ]
    fields[1] = seq(spark, aggregates)
    return plan.makeCopy(fields)


def _of_every_record(spark: SparkSession, expression: Jvm) -> Jvm:
    if class_name(expression) == "AggregateExpression":
        node = jvm(spark).org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression
        function, mode = expression.aggregateFunction(), expression.mode()
        return node(function, mode, False, expression.filter(), expression.resultId())
    children = [_of_every_record(spark, child) for child in each(expression.children())]
    return expression.withNewChildren(seq(spark, children)) if children else expression


def with_nullability_of_children(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan whose attributes are nullable only if their source attributes are nullable."""
    rules = jvm(spark).org.apache.spark.sql.catalyst.analysis
    return getattr(getattr(rules, "UpdateAttributeNullability$"), "MODULE$").apply(plan)


def state_watermark_ms(
    spark: SparkSession, own: Jvm, other: Jvm, condition: Jvm | None, watermark_ms: int
) -> int | None:
    """Return the event time up to which a join's side drops its records at a watermark, in ms.

    None if the condition bounds no time.

    `own`, `other` (attribute set): attributes of this side, and of the other side. `watermark_ms`:
    watermark of the other side.
    """
    java = jvm(spark)
    helper = getattr(
        getattr(java.org.apache.spark.sql.catalyst.analysis, "StreamingJoinHelper$"), "MODULE$"
    )
    some = java.scala.Option.apply
    watermark = helper.getStateValueWatermark(own, other, some(condition), some(watermark_ms))
    return int(watermark.get()) if watermark.isDefined() else None


def is_trigger_interval(spark: SparkSession, text: str) -> bool:
    """Return whether Spark reads a text as a trigger's interval."""
    triggers = jvm(spark).org.apache.spark.sql.streaming.Trigger
    try:
        triggers.ProcessingTime(text)
    except (IllegalArgumentException, JvmError):
        return False
    return True
