"""Splits a join's condition: equalities, comparisons, conjuncts about one side only, and the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial, reduce

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from headgate.spark.jvm.expressions import as_long, both, data_type, plus
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.read.expressions import sql_text

_OPS = {
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARABLE = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.DateType,
    T.TimestampType,
    T.FloatType,
    T.DoubleType,
)
_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass
class Condition:
    """Holds the conjuncts of a join's condition, each in one list."""

    keys: list[tuple[Jvm, Jvm, bool]] = field(default_factory=list)
    """list of (left expression, right expression, bool): equalities; True where null equals null."""
    comparisons: list[tuple[Jvm, str, Jvm]] = field(default_factory=list)
    """list of (left expression, op, right expression): of numbers, dates or timestamps."""
    said: list[str] = field(default_factory=list)
    """Texts of the conjuncts in `comparisons`, for people."""
    sides: tuple[list[Jvm], list[Jvm]] = field(default_factory=lambda: ([], []))
    """(list of expression, list of expression): conjuncts with columns of the left side only, and of
    the right side only."""
    rest: list[Jvm] = field(default_factory=list)
    """list of expression: all other conjuncts."""


class ConditionReader:
    """Splits the condition of one Join node."""

    def __init__(self, spark: SparkSession, join: Jvm) -> None:
        self.spark = spark
        self._sides = (join.left().outputSet(), join.right().outputSet())
        condition = join.condition()
        self.whole: Jvm | None = _plain(spark, condition.get()) if condition.isDefined() else None

    def conjuncts(self) -> list[Jvm]:
        """Return the conjuncts of the condition, unchanged."""
        return list(_conjuncts(self.whole))

    def between(self) -> Jvm | None:
        """Return the conjuncts with columns of both sides; None if there are none.

        Spark would read a conjunct about one side, such as ``amount > 0``, as a bound on time.
        """
        conditions = [part for part in self.conjuncts() if self._side(part) is None]
        return reduce(partial(both, self.spark), conditions) if conditions else None

    def read(self) -> Condition:
        """Return the conjuncts."""
        condition = Condition()
        for conjunct in _conjuncts(self.whole):
            self._add(condition, conjunct)
        return condition

    def _add(self, condition: Condition, conjunct: Jvm) -> None:
        side = self._side(conjunct)
        if side is not None:
            condition.sides[side].append(conjunct)
            return
        name = class_name(conjunct)
        if name in ("EqualTo", "EqualNullSafe"):
            pair = self._pair(conjunct)
            if pair is not None:
                condition.keys.append((pair[0], pair[1], name == "EqualNullSafe"))
                return
        if name in _OPS:
            pair = self._pair(conjunct)
            if pair is not None and isinstance(data_type(pair[0].dataType()), _COMPARABLE):
                op = _OPS[name] if not pair[2] else _TURNED[_OPS[name]]
                condition.comparisons.append((pair[0], op, pair[1]))
                condition.said.append(f"{sql_text(pair[0])} {op} {sql_text(pair[1])}")
                return
            if self._distance(condition, conjunct):
                return
        condition.rest.append(conjunct)

    def _side(self, expression: Jvm) -> int | None:
        """Return the side that has all columns of an expression; the left side for a constant."""
        references = expression.references()
        sides = [i for i, side in enumerate(self._sides) if references.subsetOf(side)]
        return sides[0] if sides else None

    def _pair(self, comparison: Jvm) -> tuple[Jvm, Jvm, bool] | None:
        """Return a comparison's operands, the left stream's first, and whether this swapped them."""
        first, second = each(comparison.children())
        sides = self._side(first), self._side(second)
        if sides == (0, 1):
            return first, second, False
        return (second, first, True) if sides == (1, 0) else None

    def _distance(self, condition: Condition, comparison: Jvm) -> bool:
        """Add ``abs(left - right) <= number`` as two comparisons, if the numbers are whole.

        Other numbers may round. A number below 0 stays in the rest, because no pair meets it.
        """
        first, second = each(comparison.children())
        op = _OPS[class_name(comparison)]
        if op in (">", ">="):
            first, second, op = second, first, _TURNED[op]
        whole = isinstance(data_type(first.dataType()), _WHOLE)
        if class_name(first) != "Abs" or not whole or not second.foldable():
            return False
        between = next(each(first.children()))
        if class_name(between) != "Subtract":
            return False
        pair = self._pair(between)
        if pair is None:
            return False
        width = second.eval(None)
        width = width - 1 if op == "<" and width is not None else width
        if width is None or width < 0:
            return False
        left, right = (self._wide(part) for part in pair[:2])
        condition.comparisons.append((left, "<=", plus(self.spark, right, width)))
        condition.comparisons.append((plus(self.spark, left, width), ">=", right))
        condition.said.append(f"abs({sql_text(pair[0])} - {sql_text(pair[1])}) <= {width}")
        return True

    def _wide(self, expression: Jvm) -> Jvm:
        if isinstance(data_type(expression.dataType()), T.LongType):
            return expression
        return as_long(self.spark, expression)


def conjuncts(spark: SparkSession, condition: Jvm) -> list[Jvm]:
    """Return the conjuncts of a condition, with ``between`` replaced by comparisons."""
    return list(_conjuncts(_plain(spark, condition)))


def _conjuncts(expression: Jvm | None) -> Iterator[Jvm]:
    if expression is None:
        return
    if class_name(expression) == "And":
        for child in each(expression.children()):
            yield from _conjuncts(child)
    else:
        yield expression


def _plain(spark: SparkSession, expression: Jvm) -> Jvm:
    """Return an expression with ``Between`` and ``With`` replaced by their definitions."""
    name = class_name(expression)
    if name == "Between":
        return _plain(spark, expression.replacement())
    if name == "With":
        known = {d.id().toString(): d.child() for d in each(expression.defs())}
        return _plain(spark, _inlined(spark, expression.child(), known))
    children = list(each(expression.children()))
    if not children:
        return expression
    return expression.withNewChildren(seq(spark, [_plain(spark, c) for c in children]))


def _inlined(spark: SparkSession, expression: Jvm, known: dict[str, Jvm]) -> Jvm:
    if class_name(expression) == "CommonExpressionRef":
        return known.get(expression.id().toString(), expression)
    children = list(each(expression.children()))
    if not children:
        return expression
    replaced = [_inlined(spark, child, known) for child in children]
    return expression.withNewChildren(seq(spark, replaced))
