"""Finds the columns of a query that come from arithmetic over many rows, in any order."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.plans import analysed

_EXACT = frozenset((
    "Min", "Max", "First", "Last", "AnyValue", "Count", "CollectList", "CollectSet", "Mode", "BoolAnd",
    "BoolOr", "HyperLogLogPlusPlus",
))  # fmt: skip
"""Aggregate functions that put out a value of some row, or a number of rows."""

_ELSEWHERE = ("CTERelationRef",)
"""Leaves whose columns come from another part of the plan, which this module does not read."""


def summed_columns(frame: DataFrame) -> list[bool]:
    """Return, for each column of a batch query, whether it may come from such arithmetic.

    The result is True for a user's function over many rows, and for a column of unknown origin.
    """
    plan = analysed(frame)
    known = _walk(plan)
    return [known.get(_id(attribute), True) for attribute in each(plan.output())]


def _walk(plan: Jvm) -> dict[int, bool]:
    children = list(each(plan.children()))
    outputs = [_id(attribute) for attribute in each(plan.output())]
    if not children:
        elsewhere = class_name(plan) in _ELSEWHERE
        return dict.fromkeys(outputs, elsewhere)
    below = [_walk(child) for child in children]
    if class_name(plan) == "Union":
        columns = [
            [known.get(_id(a), True) for a in each(child.output())]
            for known, child in zip(below, children, strict=True)
        ]
        return {output: any(column) for output, *column in zip(outputs, *columns, strict=True)}
    known = {key: value for output in below for key, value in output.items()}
    made = {
        _id(expression): _summed(expression, known)
        for expression in each(plan.expressions())
        if class_name(expression) == "Alias"
    }
    return {
        output: made[output] if output in made else known.get(output, True) for output in outputs
    }


def _summed(expression: Jvm, known: dict[int, bool]) -> bool:
    kind = class_name(expression)
    if kind == "AttributeReference":
        return known.get(_id(expression), True)
    if kind == "AggregateExpression":
        function = expression.aggregateFunction()
        name = class_name(function)
        if name not in _EXACT and not name.endswith(
            "By"
        ):  # the value of one row, the largest or least by another column
            return True
    return any(_summed(child, known) for child in each(expression.children()))


def _id(attribute: Jvm) -> int:
    return int(attribute.exprId().id())
