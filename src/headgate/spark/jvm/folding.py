"""Runs Spark's own aggregate functions over the items of an array, as one expression.

Catalyst has three kinds of aggregate functions. A *declarative* function consists of expressions: initial
values, update, result. A *typed imperative* function is an object that creates a buffer of its own class,
updates the buffer with a row, and evaluates it. An *imperative* function does so with a row of words. The
higher-order function ``aggregate`` (of arrays) runs all three here. So a result needs neither a shuffle
nor a plan of its own, and new functions of a new Spark need no change here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.spark.jvm.expressions import catalyst, column, data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class, jvm, seq
from headgate.spark.jvm.plans import analysed, template

_AGGREGATES = "org.apache.spark.sql.catalyst.expressions.aggregate."
_TYPED = _AGGREGATES + "TypedImperativeAggregate"
_IMPERATIVE = _AGGREGATES + "ImperativeAggregate"
_DECLARATIVE = _AGGREGATES + "DeclarativeAggregate"
_REPLACEABLE = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"
_ROW = "org.apache.spark.sql.catalyst.InternalRow"


def runs_as(spark: SparkSession, function: Jvm) -> Jvm:
    """Return the aggregate function that Spark runs for `function`, which may have a replacement."""
    while is_a(spark, function, _REPLACEABLE):
        function = function.replacement()
    return function


def can_fold(spark: SparkSession, function: Jvm) -> bool:
    """Return whether `folded` supports an aggregate function."""
    return any(is_a(spark, function, name) for name in (_DECLARATIVE, _IMPERATIVE))


def is_declarative(spark: SparkSession, function: Jvm) -> bool:
    """Return whether an aggregate function is made of expressions."""
    return is_a(spark, function, _DECLARATIVE)


def arguments_of(function: Jvm) -> list[Jvm]:
    """Return the arguments of an aggregate function that are not constant; its first if all are."""
    children = [_sorted_by(child) for child in each(function.children())]
    return [child for child in children if not child.foldable()] or children[:1]


def _sorted_by(expression: Jvm) -> Jvm:
    """Return the child of a sort order within a function; other expressions unchanged."""
    return expression.child() if class_name(expression) == "SortOrder" else expression


def _over(spark: SparkSession, function: Jvm, known: dict[str, Jvm]) -> Jvm:
    """Return a function over other arguments; `known` has them by the `_same` of the old arguments."""
    children = []
    for child in each(function.children()):
        value = _sorted_by(child)
        new = known.get(_same(value), value)
        sorts = class_name(child) == "SortOrder"
        others = [new, *list(each(child.children()))[1:]]
        children.append(child.withNewChildren(seq(spark, others)) if sorts else new)
    return function.withNewChildren(seq(spark, children))


def folded(spark: SparkSession, function: Jvm, items: Column, fields: Sequence[str]) -> Column:
    """Return the result of an aggregate function over the items of an array.

    Parameters
    ----------
    function : aggregate function    A resolved result of `runs_as`.
    items : Column    An array of structs.
    fields : sequence of str    The field of an item for each of `arguments_of`.
    """
    arguments = arguments_of(function)
    if is_a(spark, function, _DECLARATIVE):
        return _declarative(spark, function, items, dict(zip(fields, arguments, strict=True)))
    at = jvm(spark).org.apache.spark.sql.catalyst.expressions.BoundReference
    bound = {
        _same(argument): at(i, argument.dataType(), True) for i, argument in enumerate(arguments)
    }
    argument = _Object(spark, _over(spark, function, bound))
    if is_a(spark, function, _TYPED):
        return _typed(argument, items, fields, function.dataType())
    return _imperative(argument, items, fields, function)


def _same(expression: Jvm) -> str:
    return str(expression.canonicalized().toString())


def of_words(spark: SparkSession, function: Jvm, words: Column, count: int) -> Column:
    """Return the result of an imperative function over its buffer of `count` words, an array."""
    row = F.struct(*[F.element_at(words, i + 1).alias(f"w{i}") for i in range(count)])
    return _Object(spark, function).call(_IMPERATIVE, "eval", function.dataType(), [row])


def _typed(target: _Object, items: Column, fields: Sequence[str], kind: Jvm) -> Column:
    buffer, owner = target.kind("java.lang.Object"), _TYPED

    def update(state: Column, item: Column) -> Column:
        return target.call(owner, "update", buffer, [state, _row(item, fields)])

    def evaluate(state: Column) -> Column:
        return target.call(owner, "eval", kind, [state])

    return F.aggregate(
        items, target.call(owner, "createAggregationBuffer", buffer), update, evaluate
    )


def _imperative(target: _Object, items: Column, fields: Sequence[str], function: Jvm) -> Column:
    row, owner = target.kind(_ROW), _IMPERATIVE

    def after(state: Column, name: str, arguments: list[Column]) -> Column:
        # the call changes the buffer and returns null, so the result is the buffer
        return F.coalesce(target.call(owner, name, row, arguments, pure=False), state)

    empty = target.new_row(row, function.aggBufferAttributes().size())
    once = F.array(F.lit(0))
    initial = F.aggregate(once, empty, lambda state, _: after(state, "initialize", [state]))
    return F.aggregate(
        items,
        initial,
        lambda state, item: after(state, "update", [state, _row(item, fields)]),
        lambda state: target.call(owner, "eval", function.dataType(), [state]),
    )


def _row(item: Column, fields: Sequence[str]) -> Column:
    return F.struct(*[item.getField(name) for name in fields])


def _declarative(
    spark: SparkSession, function: Jvm, items: Column, arguments: dict[str, Jvm]
) -> Column:
    # first over fresh attributes, which `over` replaces by fields of the state and of an item
    kinds = [data_type(argument.dataType()) for argument in arguments.values()]
    schema = T.StructType([T.StructField(f"x{i}", kind) for i, kind in enumerate(kinds)])
    fresh = list(each(analysed(template(spark, schema)).output()))
    stands_for = {
        _same(argument): new for argument, new in zip(arguments.values(), fresh, strict=True)
    }
    function = _over(spark, function, stands_for)
    buffers = list(each(function.aggBufferAttributes()))
    names = [f"s{i}" for i in range(len(buffers))]
    maybe = jvm(spark).org.apache.spark.sql.catalyst.expressions.KnownNullable

    def state_of(values: Jvm, put: Callable[[Jvm], Jvm]) -> Column:
        columns = [column(spark, maybe(put(value))) for value in each(values)]
        return F.struct(*[value.alias(n) for n, value in zip(names, columns, strict=True)])

    def over(state: Column, item: Column | None = None) -> Callable[[Jvm], Jvm]:
        pairs = [(a, state.getField(n)) for a, n in zip(buffers, names, strict=True)]
        if item is not None:
            pairs += [(a, item.getField(n)) for a, n in zip(fresh, arguments, strict=True)]
        known = {a.exprId().toString(): catalyst(value) for a, value in pairs}
        return lambda expression: _replaced(spark, expression, known)

    return F.aggregate(
        items,
        state_of(function.initialValues(), lambda value: value),
        lambda state, item: state_of(function.updateExpressions(), over(state, item)),
        lambda state: column(spark, over(state)(function.evaluateExpression())),
    )


def _replaced(spark: SparkSession, expression: Jvm, known: dict[str, Jvm]) -> Jvm:
    if class_name(expression) == "AttributeReference":
        return known.get(expression.exprId().toString(), expression)
    children = list(each(expression.children()))
    if not children:
        return expression
    return expression.withNewChildren(seq(spark, [_replaced(spark, c, known) for c in children]))


@dataclass(frozen=True)
class _Object:
    """Makes expressions that call methods of a JVM object."""

    spark: SparkSession
    value: Jvm

    def kind(self, name: str) -> Jvm:
        """Return the type of expressions whose values are objects of a class."""
        objects = java_class(self.spark, "org.apache.spark.sql.types.ObjectType")
        return objects(_class(self.spark, name))

    def call(
        self,
        owner: str,
        method: str,
        kind: Jvm,
        arguments: Sequence[Column] = (),
        *,
        pure: bool = True,
    ) -> Column:
        """Return an expression that calls a method of class `owner` with a result of type `kind`.

        `pure`: False for a call with side effects, which Catalyst then neither moves nor drops.
        """
        expressions = java_class(self.spark, "org.apache.spark.sql.catalyst.expressions.Literal")
        target = expressions(self.value, self.kind(owner))
        inputs = seq(self.spark, [catalyst(argument) for argument in arguments])
        none = seq(self.spark, [])
        node = java_class(self.spark, "org.apache.spark.sql.catalyst.expressions.objects.Invoke")
        return column(self.spark, node(target, method, kind, inputs, none, True, True, pure))

    def new_row(self, kind: Jvm, width: int) -> Column:
        """Return an expression that creates an empty, writable row."""
        objects = jvm(self.spark).org.apache.spark.sql.catalyst.expressions.objects
        name = "org.apache.spark.sql.catalyst.expressions.GenericInternalRow"
        arguments = seq(self.spark, [catalyst(F.lit(width))])
        none = jvm(self.spark).scala.Option.apply(None)
        made = objects.NewInstance(
            _class(self.spark, name), arguments, seq(self.spark, []), False, kind, none
        )
        return column(self.spark, made)


def _class(spark: SparkSession, name: str) -> Jvm:
    return java_class(spark, "org.apache.spark.util.Utils").classForName(name, True, False)


def is_a(spark: SparkSession, value: Jvm, name: str) -> bool:
    """Return whether an object of the JVM is an instance of a class or its subclasses."""
    return bool(_class(spark, name).isInstance(value))


# -- values of any type as bytes ------------------------------------------------------------------------


def as_bytes(kind: T.DataType, value: Column) -> Column:
    """Return values of any type as Spark's own bytes of a row; equal if Spark groups the values as equal.

    Spark stores values in these bytes in its own state. The bytes are the same in all minor releases.
    """
    collector, spark = _collector(kind)
    buffer = collector.kind("java.lang.Object")
    empty = collector.call(_TYPED, "createAggregationBuffer", buffer)
    held = collector.call(_TYPED, "update", buffer, [empty, F.struct(value)])
    binary = java_class(spark, "org.apache.spark.sql.types.BinaryType$.MODULE$")
    return F.when(value.isNotNull(), collector.call(_TYPED, "serialize", binary, [held]))


def from_bytes(kind: T.DataType, value: Column) -> Column:
    """Return the value that `as_bytes` encoded."""
    collector, _ = _collector(kind)
    held = collector.call(_TYPED, "deserialize", collector.kind("java.lang.Object"), [value])
    array = collector.call(_TYPED, "eval", collector.value.dataType(), [held])
    return F.when(value.isNotNull(), F.element_at(array, 1))


def _session() -> SparkSession:
    """Return any session of this application, because expressions are the same in all sessions."""
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _collector(kind: T.DataType) -> tuple[_Object, SparkSession]:
    """Return Spark's ``collect_list`` of a type, whose methods convert values to bytes and back."""
    spark = _session()
    rows = template(spark, T.StructType([T.StructField("x", kind)]))
    plan = analysed(rows.groupBy().agg(F.collect_list("x")))
    (named,) = each(plan.aggregateExpressions())
    function = named.child().aggregateFunction()
    (child,) = each(function.children())
    expressions = jvm(spark).org.apache.spark.sql.catalyst.expressions
    bound = [expressions.BoundReference(0, child.dataType(), True)]
    return _Object(spark, function.withNewChildren(seq(spark, bound))), spark


def reinterpreted(kind: T.DataType, value: Column, to: T.DataType) -> Column:
    """Return values of a type as values of another type that Spark stores in the same way."""
    spark = _session()
    parse = spark._jsparkSession.parseDataType
    node = java_class(spark, "org.apache.spark.sql.catalyst.expressions.PreciseTimestampConversion")
    return column(spark, node(catalyst(value), parse(kind.json()), parse(to.json())))


def normalised(value: Column) -> Column:
    """Return values of any type with one NaN and one zero, as Spark's grouping does it."""
    spark = _session()
    rule = "org.apache.spark.sql.catalyst.optimizer.NormalizeFloatingNumbers$.MODULE$"
    return column(spark, java_class(spark, rule).normalize(catalyst(value)))
