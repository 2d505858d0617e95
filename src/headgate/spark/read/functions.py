"""The aggregate functions of one Aggregate node, as leaves in and Spark's own expressions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import Aggregate, Kind, Leaf, Op
from headgate.spark.jvm.expressions import column, data_type, text_of
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.read import types
from headgate.spark.read.expressions import sql_text, substitute
from headgate.spark.read.order import RecordOrder
from headgate.spark.read.plan import Routed
from headgate.spark.read.wording import WAY_OUT

_SUPPORTED = (
    "count, sum, min, max, avg, first, last, max_by, min_by, count_if, any_value, every, some"
)
_REPLACED = ("CountIf", "AnyValue", "BoolAnd", "BoolOr")
"""Functions for which Spark runs one of the others."""


@dataclass(frozen=True)
class _Buffer:
    """One of Spark's aggregation buffers: its column above the slots, and the leaves it came in."""

    name: str
    type: T.DataType
    columns: list[str]
    nullable: bool
    is_empty: bool = False

    def value(self) -> Column:
        """Return the buffer over the merged leaves."""
        if self.is_empty:
            # Spark's "no value yet", which we keep as a count; null in a marker row
            return F.coalesce(F.col(self.columns[0]), F.lit(0)) == 0
        return types.rebuild(self.type, [F.col(n) for n in self.columns])


def _function(expression: Jvm) -> Jvm:
    """Return the aggregate function that Spark runs for an aggregate expression."""
    function = expression.aggregateFunction()
    return function.replacement() if class_name(function) in _REPLACED else function


class AggregateFunctions:
    """The aggregate functions of one Aggregate node, each once.

    Parameters
    ----------
    spark : SparkSession
    grouping : sequence of expression
        The node's, for messages.
    order : RecordOrder
        Of the records, where it is given: then the first record is the least one, whoever comes first.
    """

    def __init__(self, spark: SparkSession, grouping: Sequence[Jvm], order: RecordOrder) -> None:
        self.spark = spark
        self._order = order
        self._grouping = grouping
        self.aggregates: list[Aggregate] = []
        self.values: list[Routed] = []
        self.buffers: list[_Buffer] = []
        self._known: list[tuple[Jvm, list[str]]] = []
        self._ansi = self.spark.conf.get("spark.sql.ansi.enabled") == "true"

    def add_end(self, end_us: Column) -> None:
        """Add a session's end, which comes before all aggregates; call this first."""
        self._value(Leaf(Kind.INTEGER), end_us)
        self.aggregates.append(Aggregate(Op.MAX, (Leaf(Kind.INTEGER),)))

    def collect(self, expression: Jvm) -> None:
        """Add every aggregate function inside `expression`."""
        if class_name(expression) == "AggregateExpression":
            if self._find(expression) is None:
                self._known.append((expression.canonicalized(), self._add(expression)))
            return
        for child in each(expression.children()):
            self.collect(child)

    def _find(self, expression: Jvm) -> list[str] | None:
        wanted = expression.canonicalized()
        return next((names for known, names in self._known if known.equals(wanted)), None)

    def results(
        self, expression: Jvm, replacements: list[tuple[Jvm, Jvm]], attributes: dict[str, Jvm]
    ) -> Jvm:
        """Return `expression` over merged buffers instead of records."""
        if class_name(expression) == "AggregateExpression":
            names = self._find(expression)
            assert names is not None
            return self._evaluated(_function(expression), [attributes[n] for n in names])
        for grouping, attribute in replacements:
            if expression.semanticEquals(grouping):
                return attribute
        children = list(each(expression.children()))
        if not children:
            return expression
        new = [self.results(child, replacements, attributes) for child in children]
        return expression.withNewChildren(seq(self.spark, new))

    def _evaluated(self, function: Jvm, buffers: list[Jvm]) -> Jvm:
        """Return Spark's own final expression of `function` over our buffers."""
        if class_name(function) not in ("Sum", "Average"):
            return buffers[0]
        own = list(each(function.aggBufferAttributes()))
        pairs = list(zip([a.exprId() for a in own], buffers, strict=False))
        return substitute(self.spark, function.evaluateExpression(), pairs)

    def _add(self, expression: Jvm) -> list[str]:
        function = _function(expression)
        name = class_name(function)
        if expression.isDistinct():
            self._refuse(f"{sql_text(function)} with DISTINCT")
        children = [column(self.spark, c) for c in each(function.children())]
        if expression.filter().isDefined():
            if name not in ("Count", "Sum", "Average", "Min", "Max"):
                self._refuse(f"{sql_text(function)} with FILTER")
            condition = column(self.spark, expression.filter().get())
            children = [F.when(condition, c) for c in children]
        adders = {
            "Count": self._count,
            "Sum": self._sum,
            "Average": self._average,
            "Min": self._extreme,
            "Max": self._extreme,
            "First": self._edge,
            "Last": self._edge,
            "MaxBy": self._by,
            "MinBy": self._by,
        }
        if name not in adders:
            self._refuse(sql_text(function))
        return adders[name](function, children)

    def _refuse(self, what: str) -> NoReturn:
        keys = ", ".join(sql_text(e) for e in self._grouping) or "(none)"
        msg = (
            f"cannot run {what} elastically in the aggregate keyed by {keys}; supported: {_SUPPORTED}. "
            f"Drop it, {WAY_OUT}."
        )
        raise UnsupportedQuery(msg)

    def _value(self, leaf: Leaf, value: Column) -> str:
        name = f"v{len(self.values)}"
        self.values.append(Routed(name, leaf, value))
        return name

    def _buffer(
        self,
        kind: T.DataType,
        columns: list[str],
        *,
        nullable: bool = True,
        is_empty: bool = False,
    ) -> str:
        name = f"b{len(self.buffers)}"
        self.buffers.append(_Buffer(name, kind, columns, nullable, is_empty))
        return name

    def _counted(self, condition: Column | None) -> str:
        one = F.lit(1).cast("bigint")
        if condition is None:
            return self._value(Leaf(Kind.INTEGER), one)
        value = F.when(condition, one).otherwise(F.lit(0).cast("bigint"))
        return self._value(Leaf(Kind.INTEGER), value)

    def _count(self, function: Jvm, children: list[Column]) -> list[str]:
        nullable = [
            column_
            for column_, child in zip(children, each(function.children()), strict=True)
            if child.nullable() or "CASE" in text_of(column_)
        ]
        condition = None
        for child in nullable:
            present = child.isNotNull()
            condition = present if condition is None else condition & present
        at = self._counted(condition)
        self.aggregates.append(Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),)))
        return [self._buffer(T.LongType(), [at], nullable=False)]

    def _sum(self, function: Jvm, children: list[Column]) -> list[str]:
        kind = data_type(function.dataType())
        (child,) = children
        if "TRY" in str(function.evalContext().evalMode()):
            self._refuse("try_sum")
        if isinstance(kind, T.DecimalType):
            total, count = self._decimal_sum(child, kind)
            empty = self._buffer(T.BooleanType(), [count], nullable=False, is_empty=True)
            return [self._buffer(kind, [total]), empty]
        if isinstance(kind, T.LongType):
            at = self._value(Leaf(Kind.INTEGER), child.cast("bigint"))
            checked = "ANSI" in str(function.evalContext().evalMode())
            self.aggregates.append(
                Aggregate(Op.SUM_INTEGER, (Leaf(Kind.INTEGER),), checked=checked)
            )
            return [self._buffer(kind, [at])]
        if isinstance(kind, T.DoubleType):
            at = self._value(Leaf(Kind.FLOAT), child.cast("double"))
            self.aggregates.append(Aggregate(Op.SUM_FLOAT, (Leaf(Kind.FLOAT),)))
            return [self._buffer(kind, [at])]
        return self._refuse(sql_text(function))

    def _decimal_sum(self, child: Column, kind: T.DecimalType) -> tuple[str, str]:
        leaf = Leaf(Kind.DECIMAL, kind.scale)
        wide = T.DecimalType(38, kind.scale)
        total = self._value(leaf, child.cast(wide))
        count = self._counted(child.isNotNull())
        self.aggregates.append(Aggregate(Op.SUM_DECIMAL, (leaf, Leaf(Kind.INTEGER))))
        return total, count

    def _average(self, function: Jvm, children: list[Column]) -> list[str]:
        (child,) = children
        if "TRY" in str(function.evalMode()):
            self._refuse("try_avg")
        kind = data_type(next(each(function.aggBufferAttributes())).dataType())
        if isinstance(kind, T.DecimalType):
            total, count = self._decimal_sum(child, kind)
            return [
                self._buffer(kind, [total]),
                self._buffer(T.LongType(), [count], nullable=False),
            ]
        if not isinstance(kind, T.DoubleType):
            self._refuse(sql_text(function))
        total = self._value(Leaf(Kind.FLOAT), child.cast("double"))
        self.aggregates.append(Aggregate(Op.SUM_FLOAT, (Leaf(Kind.FLOAT),)))
        count = self._counted(child.isNotNull())
        self.aggregates.append(Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),)))
        return [
            self._buffer(kind, [total]),
            self._buffer(T.LongType(), [count], nullable=False),
        ]

    def _leaves(self, function: Jvm, index: int, value: Column) -> list[str]:
        child = list(each(function.children()))[index]
        found = types.leaves(data_type(child.dataType()), value, sql_text(child))
        return [self._value(leaf, part) for leaf, part in found]

    def _extreme(self, function: Jvm, children: list[Column]) -> list[str]:
        least = class_name(function) == "Min"
        (child,) = children
        names = self._leaves(function, 0, child)
        leaves = tuple(v.leaf for v in self.values[-len(names) :])
        self.aggregates.append(Aggregate(Op.MIN if least else Op.MAX, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _edge(self, function: Jvm, children: list[Column]) -> list[str]:
        first, child = class_name(function) == "First", children[0]
        skip_nulls = function.ignoreNulls()
        if self._order.given:
            one = F.lit(1).cast("bigint")
            counts = F.when(child.isNotNull(), one) if skip_nulls else one
            return self._least(function, child, [self._value(Leaf(Kind.INTEGER), counts)], first)
        self._counted(child.isNotNull() if skip_nulls else None)
        names = self._leaves(function, 0, child)
        leaves = tuple(v.leaf for v in self.values[-len(names) - 1 :])
        self.aggregates.append(Aggregate(Op.FIRST if first else Op.LAST, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _least(self, function: Jvm, value: Column, before: list[str], least: bool) -> list[str]:
        """Add the value of the least or greatest record by leaves `before`, then the order, then itself.

        A record whose first leaf is null does not count. Of records that are equal in all of that any
        will do, so the answer is the same however records are spread over batches, tasks and slots.
        """
        start = len(self.values) - len(before)
        for leaf, part in self._order.leaves():
            self._value(leaf, part)
        names = self._leaves(function, 0, value)
        leaves = tuple(v.leaf for v in self.values[start:])
        self.aggregates.append(Aggregate(Op.MIN if least else Op.MAX, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _by(self, function: Jvm, children: list[Column]) -> list[str]:
        value, ordering = children
        least = class_name(function) == "MinBy"
        order = self._leaves(function, 1, ordering)
        if self._order.given:
            return self._least(function, value, order, least)
        order_leaves = tuple(v.leaf for v in self.values[-len(order) :])
        names = self._leaves(function, 0, value)
        value_leaves = tuple(v.leaf for v in self.values[-len(names) :])
        op = Op.MIN_BY if least else Op.MAX_BY
        self.aggregates.append(Aggregate(op, order_leaves, value_leaves))
        return [self._buffer(data_type(function.dataType()), names)]
