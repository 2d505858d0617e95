"""Translates Spark's merge of two aggregation buffers into a program for a slot."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from headgate.operators.spec import Expression, Program
from headgate.spark.jvm.expressions import data_type
from headgate.spark.jvm.folding import is_a
from headgate.spark.jvm.gateway import Jvm, class_name, each

_AGGREGATES = "org.apache.spark.sql.catalyst.expressions.aggregate."
_ANY_ORDER = ("CentralMomentAgg", "Covariance", "PearsonCorrelation", "BitAggregate")
"""Aggregates whose merge is commutative, up to the last bits of a floating-point number."""

_SAME = {
    "And": "and",
    "BitwiseAnd": "bit_and",
    "BitwiseOr": "bit_or",
    "BitwiseXor": "bit_xor",
    "Coalesce": "coalesce",
    "EqualTo": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_or_equal",
    "If": "if",
    "IsNotNull": "is_not_null",
    "IsNull": "is_null",
    "LessThan": "less",
    "LessThanOrEqual": "less_or_equal",
    "Not": "not",
    "Or": "or",
}
_OF_DOUBLES = {"Add": "add", "Divide": "divide", "Multiply": "multiply", "Subtract": "subtract"}
"""Operations of programs on doubles only: on integers they may overflow, on decimals they round."""

_LEAVES = (T.DoubleType, T.LongType, T.IntegerType, T.ShortType, T.ByteType, T.BooleanType)


def program_of(spark: SparkSession, function: Jvm) -> Program | None:
    """Return the program that merges buffers of a declarative aggregate; None if no program can."""
    left = list(each(function.aggBufferAttributes()))
    if not all(isinstance(data_type(a.dataType()), _LEAVES) for a in left):
        return None
    places: dict[str, Expression] = {}
    for name, attributes in (("left", left), ("right", each(function.inputAggBufferAttributes()))):
        for place, attribute in enumerate(attributes):
            places[attribute.exprId().toString()] = (name, place)
    merges = [_expression(expression, places) for expression in each(function.mergeExpressions())]
    initial = [_constant(expression) for expression in each(function.initialValues())]
    if any(expression is None for expression in [*merges, *initial]):
        return None
    return Program(
        tuple(expression for expression in merges if expression is not None),
        tuple(expression[1] for expression in initial if expression is not None),
        any(is_a(spark, function, _AGGREGATES + name) for name in _ANY_ORDER),
    )


def _expression(node: Jvm, places: dict[str, Expression]) -> Expression | None:
    name = class_name(node)
    if name == "AttributeReference":
        return places.get(node.exprId().toString())
    if name == "Literal":
        return _constant(node)
    operation = _SAME.get(name)
    if operation is None and isinstance(data_type(node.dataType()), T.DoubleType):
        operation = _OF_DOUBLES.get(name)
    operands = [_expression(child, places) for child in each(node.children())]
    if operation is None or any(operand is None for operand in operands):
        return None
    return (operation, *operands)


def _constant(node: Jvm) -> Expression | None:
    value = node.value() if class_name(node) == "Literal" else node
    if value is None or isinstance(value, bool | int | float):
        return ("value", value)
    return None
