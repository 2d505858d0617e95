"""Reads the aggregate functions of one Aggregate node: input leaves, and expressions over the results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.kept import leaf_name, present_name
from headgate.operators.spec import Aggregate, Keep, Kept, Kind, Leaf, Op
from headgate.spark.jvm.expressions import column, data_type, text_of
from headgate.spark.jvm.folding import (
    arguments_of,
    can_fold,
    is_declarative,
    runs_as,
)
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.read import types
from headgate.spark.read.buffers import Buffer, Collection, Folded, Sketch
from headgate.spark.read.expressions import sql_text, substitute
from headgate.spark.read.merging import program_of
from headgate.spark.read.order import RecordOrder
from headgate.spark.read.plan import AggregatePart, Routed

_ANY_ORDER = {
    "ApproxCountDistinctForIntervals": Keep.BAG,
    "ApproximatePercentile": Keep.BAG,
    "Average": Keep.BAG,
    "BitmapConstructAgg": Keep.SET,
    "BitmapOrAgg": Keep.SET,
    "BitmapAndAgg": Keep.SET,
    "CollectSet": Keep.SET,
    "CountMinSketchAgg": Keep.BAG,
    "HllSketchAgg": Keep.SET,
    "HyperLogLogPlusPlus": Keep.SET,
    "Max": Keep.SET,
    "Min": Keep.SET,
    "Mode": Keep.BAG,
    "Percentile": Keep.BAG,
    "PercentileCont": Keep.BAG,
    "PercentileDisc": Keep.BAG,
    "Sum": Keep.BAG,
}
"""Functions for which the order of records makes no difference, and for SET not even duplicates."""


class _NoKernel(Exception):
    """Reports an aggregate whose buffers no kernel can merge, so that its values are kept."""


class AggregateFunctions:
    """Collects the aggregate functions of one Aggregate node without duplicates.

    `grouping` (sequence of expression): grouping expressions of the node, for messages. `order`: order
    of the records; if the user set it, ``first`` is the least record, not the first to arrive.
    """

    def __init__(self, spark: SparkSession, grouping: Sequence[Jvm], order: RecordOrder) -> None:
        self.spark = spark
        self._order = order
        self._grouping = grouping
        self.aggregates: list[Aggregate] = []
        self.values: list[Routed] = []
        self.buffers: list[Buffer] = []
        self.kept: list[Collection] = []
        self.kept_values: list[Routed] = []
        self.evaluated: list[str] = []
        self.ways: dict[str, list[str]] = {}
        self.parts: list[AggregatePart] = []
        self._condition: Column | None = None
        self._known: list[tuple[Jvm, list[str]]] = []

    def add_end(self, end_us: Column) -> None:
        """Add a session's end; call this first, because it comes before all aggregates."""
        self._value(Leaf(Kind.INTEGER), end_us)
        self.aggregates.append(Aggregate(Op.MAX, (Leaf(Kind.INTEGER),)))

    def add_first(self, kind: T.DataType, value: Column) -> Buffer:
        """Add the value of a key's first record."""
        start = len(self.values)
        self._counted(None)
        names = [self._value(leaf, part) for leaf, part in types.any_leaves(kind, value)]
        leaves = tuple(v.leaf for v in self.values[start:])
        self.aggregates.append(Aggregate(Op.FIRST, leaves))
        return Buffer("first", kind, names, nullable=True)

    def collect(self, expression: Jvm) -> None:
        """Add every aggregate function inside `expression`."""
        if class_name(expression) == "AggregateExpression":
            if self._find(expression) is None:
                before = len(self.values)
                self._known.append((expression.canonicalized(), self._add(expression)))
                function = runs_as(self.spark, expression.aggregateFunction())
                added = tuple(value.name for value in self.values[before:])
                self.parts.append(AggregatePart(function, sql_text(expression), added))
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
            function = runs_as(self.spark, expression.aggregateFunction())
            return self._evaluated(function, names, [attributes[n] for n in names])
        for grouping, attribute in replacements:
            if expression.semanticEquals(grouping):
                return attribute
        children = list(each(expression.children()))
        if not children:
            return expression
        new = [self.results(child, replacements, attributes) for child in children]
        return expression.withNewChildren(seq(self.spark, new))

    def _evaluated(self, function: Jvm, names: list[str], buffers: list[Jvm]) -> Jvm:
        """Return Spark's own final expression of `function` over headgate's merged buffers."""
        if names[0] not in self.evaluated:
            return buffers[0]
        own = list(each(function.aggBufferAttributes()))
        pairs = list(zip([a.exprId() for a in own], buffers, strict=False))
        return substitute(self.spark, function.evaluateExpression(), pairs)

    def how(self) -> str:
        """Describe, for people, how slots compute aggregates without a kernel of their own."""
        ways = [f"{', '.join(calls)}: {way}" for way, calls in self.ways.items()]
        return "".join(f"; {way_text}" for way_text in ways)

    def _add(self, expression: Jvm) -> list[str]:
        function = runs_as(self.spark, expression.aggregateFunction())
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
            "HyperLogLogPlusPlus": self._sketch,
        }
        name = class_name(function)
        if expression.isDistinct():
            return self._keep(expression, function)
        self._condition = None
        children = [column(self.spark, c) for c in each(function.children())]
        if expression.filter().isDefined():
            self._condition = column(self.spark, expression.filter().get())
            children = [F.when(self._condition, c) for c in children]
        before = len(self.aggregates), len(self.values), len(self.buffers)
        try:
            names = adders.get(name, self._program)(function, children)
        except _NoKernel:
            del self.aggregates[before[0] :], self.values[before[1] :], self.buffers[before[2] :]
            return self._keep(expression, function)
        if name in ("Sum", "Average"):
            self.evaluated.append(names[0])
        return names

    def _program(self, function: Jvm, children: list[Column]) -> list[str]:
        """Add a declarative aggregate whose merge can be translated into a `Program`."""
        del children
        if not is_declarative(self.spark, function):
            raise _NoKernel
        program = program_of(self.spark, function)
        if program is None:
            raise _NoKernel
        initial = list(each(function.initialValues()))
        attributes = list(each(function.aggBufferAttributes()))
        pairs = [(a.exprId(), literal) for a, literal in zip(attributes, initial, strict=True)]
        updates = [
            substitute(self.spark, update, pairs) for update in each(function.updateExpressions())
        ]
        names, leaves = [], []
        for attribute, first, update in zip(attributes, initial, updates, strict=True):
            kind, value = data_type(attribute.dataType()), column(self.spark, update)
            if self._condition is not None:
                value = F.when(self._condition, value).otherwise(column(self.spark, first))
            ((leaf, part),) = types.any_leaves(kind, value)
            leaves.append(leaf)
            at = self._value(leaf, part)
            names.append(self._buffer(kind, [at], nullable=bool(attribute.nullable())))
        self.aggregates.append(Aggregate(Op.MERGED, tuple(leaves), program=program))
        self.ways.setdefault("merged as Spark's own expressions say", []).append(sql_text(function))
        self.evaluated.append(names[0])
        return names

    def _keep(self, expression: Jvm, function: Jvm) -> list[str]:
        """Add an aggregate of which slots keep the values; Spark's own function runs over them above."""
        if not can_fold(self.spark, function):
            self._refuse(sql_text(function))
        what = f"distinct {sql_text(function)}" if expression.isDistinct() else sql_text(function)
        self.ways.setdefault("its values are kept, Spark's own function runs above", []).append(
            what
        )
        arguments = arguments_of(function)
        keep = _ANY_ORDER.get(class_name(function), Keep.LIST)
        if expression.isDistinct():
            keep = Keep.SET
        ordering = self._order.leaves() if keep is Keep.LIST and self._order.given else []
        if ordering:
            keep = Keep.BAG
        condition = expression.filter().get() if expression.filter().isDefined() else None
        same = [
            i
            for i, kept in enumerate(self.kept)
            if kept.same(arguments, condition, keep) and kept.ordering == len(ordering)
        ]
        number = same[0] if same else self._collection(arguments, condition, keep, ordering)
        name = f"b{len(self.buffers)}"
        nullable = bool(function.nullable())
        result = data_type(function.dataType())
        kept = self.kept[number]
        self.buffers.append(
            Folded(
                name,
                result,
                [f"l{number}"],
                nullable,
                False,
                self.spark,
                function,
                kept,
                bool(expression.isDistinct()),
            )
        )
        return [name]

    def _collection(
        self,
        arguments: list[Jvm],
        condition: Jvm | None,
        keep: Keep,
        ordering: list[tuple[Leaf, Column]],
    ) -> int:
        number, one = len(self.kept), F.lit(1).cast("bigint")
        present = one if condition is None else F.when(column(self.spark, condition), one)
        self.kept_values.append(Routed(present_name(number), Leaf(Kind.INTEGER), present))
        leaves, widths = list(ordering), []
        for argument in arguments:
            kind = data_type(argument.dataType())
            parts = types.any_leaves(kind, column(self.spark, argument))
            if keep is Keep.SET:
                parts = [(leaf, types.normalised(leaf, part)) for leaf, part in parts]
            widths.append(len(parts))
            leaves += parts
        for i, (leaf, part) in enumerate(leaves):
            self.kept_values.append(Routed(leaf_name(number, i), leaf, part))
        values = Kept(tuple(leaf for leaf, _ in leaves), keep)
        self.kept.append(Collection(arguments, condition, values, widths, len(ordering)))
        return number

    def _refuse(self, what: str) -> NoReturn:
        keys = ", ".join(sql_text(e) for e in self._grouping) or "(none)"
        msg = (
            f"cannot run {what} in the aggregate keyed by {keys}: a pandas UDF is called with all rows "
            "of a group, and plain Spark refuses it on a stream too; use a function of "
            "pyspark.sql.functions, or collect_list and a UDF above."
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
        self.buffers.append(Buffer(name, kind, columns, nullable, is_empty))
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
            raise _NoKernel
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
        raise _NoKernel

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
            raise _NoKernel
        kind = data_type(next(each(function.aggBufferAttributes())).dataType())
        if isinstance(kind, T.DecimalType):
            total, count = self._decimal_sum(child, kind)
            return [
                self._buffer(kind, [total]),
                self._buffer(T.LongType(), [count], nullable=False),
            ]
        if not isinstance(kind, T.DoubleType):
            raise _NoKernel
        total = self._value(Leaf(Kind.FLOAT), child.cast("double"))
        self.aggregates.append(Aggregate(Op.SUM_FLOAT, (Leaf(Kind.FLOAT),)))
        count = self._counted(child.isNotNull())
        self.aggregates.append(Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),)))
        return [
            self._buffer(kind, [total]),
            self._buffer(T.LongType(), [count], nullable=False),
        ]

    def _sketch(self, function: Jvm, children: list[Column]) -> list[str]:
        (argument,) = arguments_of(function)
        kind = data_type(argument.dataType())
        if not types.in_order(kind):
            raise _NoKernel  # Spark hashes a collated string by its collation
        words = int(function.aggBufferAttributes().size())
        leaf = Leaf(Kind.REGISTERS, words)
        value = children[0]
        at = self._value(leaf, F.when(value.isNotNull(), F.xxhash64(value)))
        self.aggregates.append(Aggregate(Op.REGISTERS, (leaf,)))
        name = f"b{len(self.buffers)}"
        self.buffers.append(
            Sketch(name, T.LongType(), [at], False, False, self.spark, function, words)
        )
        return [name]

    def _leaves(
        self, function: Jvm, index: int, value: Column, *, compared: bool = False
    ) -> list[str]:
        child = list(each(function.children()))[index]
        kind = data_type(child.dataType())
        if compared and not types.in_order(kind):
            raise _NoKernel
        leaves = types.any_leaves(kind, value)
        return [self._value(leaf, part) for leaf, part in leaves]

    def _extreme(self, function: Jvm, children: list[Column]) -> list[str]:
        least = class_name(function) == "Min"
        (child,) = children
        names = self._leaves(function, 0, child, compared=True)
        leaves = tuple(v.leaf for v in self.values[-len(names) :])
        self.aggregates.append(Aggregate(Op.MIN if least else Op.MAX, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _edge(self, function: Jvm, children: list[Column]) -> list[str]:
        first, child = class_name(function) == "First", children[0]
        skip_nulls = function.ignoreNulls()
        if self._order.given:
            one = F.lit(1).cast("bigint")
            counts = F.when(child.isNotNull(), one) if skip_nulls else one
            if self._condition is not None:
                counts = F.when(self._condition, counts)
            return self._least(function, child, [self._value(Leaf(Kind.INTEGER), counts)], first)
        qualifies = child.isNotNull() if skip_nulls else None
        if self._condition is not None:
            qualifies = self._condition if qualifies is None else self._condition & qualifies
        self._counted(qualifies)
        names = self._leaves(function, 0, child)
        leaves = tuple(v.leaf for v in self.values[-len(names) - 1 :])
        self.aggregates.append(Aggregate(Op.FIRST if first else Op.LAST, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _least(self, function: Jvm, value: Column, before: list[str], least: bool) -> list[str]:
        """Add the value of the least or greatest record by leaves `before`, the order, and the value.

        A record whose first leaf is null does not count. Records that are equal in all these leaves have
        the same value, so the result does not depend on the spread over batches, tasks and slots.
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
        order = self._leaves(function, 1, ordering, compared=True)
        if self._order.given:
            return self._least(function, value, order, least)
        order_leaves = tuple(v.leaf for v in self.values[-len(order) :])
        names = self._leaves(function, 0, value)
        value_leaves = tuple(v.leaf for v in self.values[-len(names) :])
        op = Op.MIN_BY if least else Op.MAX_BY
        self.aggregates.append(Aggregate(op, order_leaves, value_leaves))
        return [self._buffer(data_type(function.dataType()), names)]
