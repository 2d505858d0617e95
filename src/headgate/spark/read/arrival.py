"""Carries Kafka's own timestamp to the operator as the arrival time, if the user names no column."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import project
from headgate.spark.jvm.streams import streams_of

_TIMESTAMP = "timestamp"
_KAFKA = "KafkaTable"

_PASSING = {
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "Join",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "UpdateEventTimeWatermarkColumn",
    "View",
}
"""Nodes that put out all columns of their stream, also a column that is added below them."""


def is_kafka(leaf: Jvm) -> bool:
    """Return whether a streaming leaf of a plan reads Kafka."""
    named = class_name(leaf) == "StreamingRelationV2"
    return named and class_name(leaf.table()) == _KAFKA


def reads_kafka(plan: Jvm) -> bool:
    """Return whether any source of a plan is Kafka."""
    return any(is_kafka(leaf) for leaf in streams_of(plan))


def kafka_arrival(spark: SparkSession, plan: Jvm) -> tuple[Jvm, Jvm] | None:
    """Return `plan` with Kafka's timestamp among its columns, and that column; None if impossible.

    It adds the column to a select that leaves it out, at 8 bytes a record up to the exchange. The column
    does not pass a union, a function over batches, or a node that makes one row of several records.
    """
    if is_kafka(plan):
        for attribute in each(plan.output()):
            if attribute.name() == _TIMESTAMP:
                return plan, attribute
        return None
    streams = [child for child in each(plan.children()) if child.isStreaming()]
    if len(streams) != 1 or class_name(plan) not in {"Project", *_PASSING}:
        return None
    below = kafka_arrival(spark, streams[0])
    if below is None:
        return None
    child, arrived = below
    if class_name(plan) == "Project":
        columns = list(each(plan.projectList()))
        if not _among(arrived, columns):
            columns.append(arrived)
        return project(spark, columns, child), arrived
    children = [child if node.isStreaming() else node for node in each(plan.children())]
    over = plan.withNewChildren(seq(spark, children))
    return (over, arrived) if _among(arrived, each(over.output())) else None


def _among(attribute: Jvm, others: Iterable[Jvm]) -> bool:
    return any(attribute.exprId().equals(other.exprId()) for other in others)
