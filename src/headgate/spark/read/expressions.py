"""Inspects Catalyst expressions: SQL texts, event times, aggregates, attributes."""

from __future__ import annotations

import re

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.operators.spec import NO_TIME_US
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq

WATERMARK = "spark.watermarkDelayMs"
"""Metadata key of an event-time column with a watermark."""

SESSION_WINDOW = "spark.sessionWindow"
"""Metadata key of a column that ``F.session_window`` made."""


def substitute(spark: SparkSession, expression: Jvm, pairs: list[tuple[Jvm, Jvm]]) -> Jvm:
    """Return `expression` with attributes replaced; `pairs` has (expression id, new expression)."""
    if class_name(expression) == "AttributeReference":
        for expr_id, new in pairs:
            if expression.exprId().equals(expr_id):
                return new
        return expression
    children = list(each(expression.children()))
    if not children:
        return expression
    return expression.withNewChildren(seq(spark, [substitute(spark, c, pairs) for c in children]))


def sql_text(expression: Jvm) -> str:
    """Return an expression as SQL for a message, without ids and quotes."""
    try:
        text = expression.sql()
    except Exception:  # some expressions have no SQL form; use the plan's text
        text = expression.toString()
    return re.sub(r"#[0-9]+L?|`", "", text)


def seconds(micros: int) -> str:
    """Return microseconds as seconds, for people."""
    return f"{micros / 1e6:g} s"


def event_time_us(spark: SparkSession, attribute: Jvm) -> Column:
    """Return the time that Spark compares with the watermark, in us: a time, or a window's end."""
    time = column(spark, attribute)
    if isinstance(data_type(attribute.dataType()), T.StructType):
        time = time.getField("end")
    return F.coalesce(F.unix_micros(time), F.lit(NO_TIME_US))


def calls_aggregate(expression: Jvm) -> bool:
    """Return whether `expression` has an aggregate function."""
    return class_name(expression) == "AggregateExpression" or any(
        calls_aggregate(c) for c in each(expression.children())
    )


def mentions_inside(expression: Jvm, expr_id: Jvm) -> bool:
    """Return whether `expression` refers to an attribute, and is not just this attribute."""
    if class_name(expression) == "AttributeReference":
        return False
    return any(a.exprId().equals(expr_id) for a in each(expression.references().toSeq()))


def attributes_used(plan: Jvm, node: Jvm) -> set[str]:
    """Return the ids of all attributes that `plan` puts out or refers to above `node`."""
    used = {a.exprId().toString() for a in each(plan.output())}
    pending = [plan]
    while pending:
        current = pending.pop()
        if not current.equals(node):
            used |= {a.exprId().toString() for a in each(current.references().toSeq())}
            children = list(each(current.children()))
            if len(children) > 1:
                # a union takes the columns of its children by position, without references
                used |= {a.exprId().toString() for c in children for a in each(c.output())}
            pending += children
    return used
