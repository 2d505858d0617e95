"""Small questions about Catalyst expressions."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from headgate.engines.spark.gateway import Jvm, class_name, each, seq

WATERMARK = "spark.watermarkDelayMs"
"""Metadata key of a column that carries event time under a watermark."""

WAY_OUT = 'or .fallback("spark") to run the whole query as plain Spark'


def substitute(spark: SparkSession, expression: Jvm, pairs: list[tuple[Jvm, Jvm]]) -> Jvm:
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
    try:
        text = expression.sql()
    except Exception:  # some expressions have no SQL form; the plan's text will do
        text = expression.toString()
    return re.sub(r"#[0-9]+L?|`", "", text)


def seconds(micros: int) -> str:
    return f"{micros / 1e6:g} s"


def calls_aggregate(expression: Jvm) -> bool:
    return class_name(expression) == "AggregateExpression" or any(
        calls_aggregate(c) for c in each(expression.children())
    )


def mentions_inside(expression: Jvm, expr_id: Jvm) -> bool:
    """Whether `expression` computes with an attribute, instead of being it."""
    if class_name(expression) == "AttributeReference":
        return False
    return any(a.exprId().equals(expr_id) for a in each(expression.references().toSeq()))
