"""Lets markers pass through a user's plan: rows that are no records, and that the plan must not drop.

In a marker the user's columns may have any value. No expression of the user is computed for a marker,
since it could fail. A filter above the watermark makes a dropped row a marker: the row's time counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.expressions import (
    absent_and,
    alias,
    column,
    data_type,
    default_where_present,
    null_where_present,
    present_or,
)
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import (
    expand,
    filtered,
    generate,
    mapped,
    marked_join,
    outer_join,
    project,
    resolved,
)
from headgate.spark.jvm.userfunctions import ITERATOR_UDFS, PANDAS_UDFS, ROW_UDFS, call, called_by
from headgate.spark.read.wording import wording
from headgate.spark.realtime.router import DROPPED
from headgate.spark.realtime.user_functions import (
    OfArrays,
    OfBatches,
    OfIterators,
    OfRecords,
    OfSeries,
)
from headgate.spark.step.exchange import unless_marker

MARKERS = T.StructType([
    T.StructField(MARKER_TO, T.IntegerType()),
    T.StructField(MARKER_TOKEN, T.StringType()),
])  # fmt: skip
"""Columns of markers, after the source's columns; a record has nulls in them."""

_MEETS = "m_meets"
"""Column that is true if a row matches a row of the table in a join."""

_COLLECTIONS = ("Explode", "PosExplode", "Inline")
"""Generators that make no row from an empty collection."""

_GENERATORS = (*_COLLECTIONS, "JsonTuple", "Stack")


def refused(what: str) -> UnsupportedQuery:
    """Return the error for a part of the plan below the first operators that cannot run."""
    return UnsupportedQuery(
        f"{what} before the first stateful operator cannot run in real time; leave out "
        'trigger(realTime=...), or add .fallback("micro-batch").'
    )


def passing(spark: SparkSession, plan: Jvm, source: Jvm, watermarks: Mapping[str, int]) -> Jvm:
    """Return `plan` with `source` instead of its stream, such that markers pass.

    Raises `UnsupportedQuery`.

    Parameters
    ----------
    plan : plan node    Each of its nodes has one streaming input.
    source : plan node    Has the stream's columns and those of `MARKERS`.
    watermarks : mapping of str to int    Numbers of the watermarks, by the id of their node.
    """
    return _over(_Walk(spark, source, watermarks), plan).plan


@dataclass(frozen=True)
class _Walk:
    """Holds the arguments of `passing`."""

    spark: SparkSession
    source: Jvm
    watermarks: Mapping[str, int]


@dataclass(frozen=True)
class _Passing:
    """Holds a plan through which markers pass."""

    spark: SparkSession
    plan: Jvm
    """plan node."""
    ours: tuple[Jvm, ...]
    """tuple of attribute: the columns of markers, then the times of watermarks."""

    @property
    def marker(self) -> Jvm:
        return self.ours[0]

    @property
    def is_marker(self) -> Column:
        return column(self.spark, self.marker).isNotNull()

    @property
    def data(self) -> list[Jvm]:
        """The user's columns."""
        ids = [one.exprId() for one in self.ours]
        return [
            one
            for one in each(self.plan.output())
            if not any(one.exprId().equals(mine) for mine in ids)
        ]

    def over(self, plan: Jvm) -> _Passing:
        """Return another plan with the same markers' columns."""
        return _Passing(self.spark, plan, self.ours)

    def only(self, data: Iterable[Jvm]) -> _Passing:
        """Return a projection on `data` and the markers' columns."""
        return self.over(project(self.spark, [*map(_nullable, data), *self.ours], self.plan))

    def having(self, columns: Mapping[str, Column]) -> _Passing:
        """Return a plan with new markers' columns, which replace those of the same name."""
        named = [value.alias(name) for name, value in columns.items()]
        made = dict(zip(columns, self.resolved(*named), strict=True))
        ours = {str(one.name()): one for one in self.ours} | made
        plan = project(self.spark, [*self.data, *ours.values()], self.plan)
        return _Passing(self.spark, plan, tuple(one.toAttribute() for one in ours.values()))

    def resolved(self, *columns: Column) -> list[Jvm]:
        """Return named columns as Catalyst's expressions over the plan's output."""
        return resolved(self.spark, each(self.plan.output()), columns)


def _nullable(expression: Jvm) -> Jvm:
    """Return a column as nullable: it may be null in a marker, even if the user's schema says not."""
    if class_name(expression) != "AttributeReference":
        return expression
    return expression.withNullability(True)


def _over(walk: _Walk, plan: Jvm) -> _Passing:
    """Return `plan` with the walk's source instead of its stream."""
    inputs = [child for child in each(plan.children()) if child.isStreaming()]
    if not inputs:
        return _leaf(walk, plan)
    (child,) = inputs
    below = _over(walk, child)
    name = class_name(plan)
    if name == "EventTimeWatermark":
        return _watermark(walk, plan, below)
    if name not in _NODES:
        raise refused(wording(plan).name)
    return _NODES[name](plan, below)


def _leaf(walk: _Walk, plan: Jvm) -> _Passing:
    spark, marks = walk.spark, len(MARKERS)
    columns = list(each(walk.source.output()))
    data, ours = columns[:-marks], columns[-marks:]
    named = [
        alias(spark, new, old.name(), old.exprId(), old.metadata())
        for new, old in zip(data, each(plan.output()), strict=True)
    ]
    return _Passing(spark, project(spark, [*named, *ours], walk.source), tuple(ours))


def _watermark(walk: _Walk, plan: Jvm, below: _Passing) -> _Passing:
    kind = data_type(plan.eventTime().dataType())
    if not isinstance(kind, T.TimestampType):
        raise refused(f"a watermark on a column of type {kind.simpleString()}")
    time = F.unix_micros(column(walk.spark, plan.eventTime()))
    number = walk.watermarks[str(plan.nodeId().toString())]
    return below.having({f"{MARKER_US}{number}": F.when(~below.is_marker, time)})


def _project(plan: Jvm, below: _Passing) -> _Passing:
    mine = [unless_marker(below.spark, one, below.marker) for one in each(plan.projectList())]
    return below.only(mine)


def _filter(plan: Jvm, below: _Passing) -> _Passing:
    spark = below.spark
    if len(below.ours) == len(MARKERS):
        condition = present_or(spark, below.marker, plan.condition())
        return below.over(filtered(spark, condition, below.plan))
    # the dropped row becomes a marker for the rest of the plan, because its time counts
    kept = F.when(column(spark, plan.condition()), F.lit(None).cast("int")).otherwise(DROPPED)
    to = F.when(below.is_marker, column(spark, below.marker)).otherwise(kept)
    return below.having({MARKER_TO: to})


def _repartition(plan: Jvm, below: _Passing) -> _Passing:
    """Leave the node out: a row does not depend on the task that computes it."""
    return below


# --- several rows of one ---------------------------------------------------------------------------


def _generate(plan: Jvm, below: _Passing) -> _Passing:
    spark, generator = below.spark, plan.generator()
    name = class_name(generator)
    if name not in _GENERATORS:
        raise refused(wording(plan).name)
    outer = bool(plan.outer())
    if name in _COLLECTIONS and not outer:
        # an outer generator keeps markers, so records with an empty collection are dropped before
        has_rows = F.size(column(spark, generator.child())) > 0
        below = _emptied(below, has_rows)
        outer = True
    children = list(each(generator.children()))
    # the number of rows that a stack makes must be a constant
    first = 1 if name == "Stack" else 0
    children[first:] = [null_where_present(spark, below.marker, one) for one in children[first:]]
    guarded = generator.withNewChildren(seq(spark, children))
    made = generate(spark, plan, guarded, below.plan, outer=outer)
    return below.over(made).only(each(plan.output()))


def _emptied(below: _Passing, keeps: Column) -> _Passing:
    """Return markers and the records for which `keeps` is true; times of other records still count."""
    spark = below.spark
    if len(below.ours) == len(MARKERS):
        (condition,) = below.resolved((below.is_marker | keeps).alias("keeps"))
        return below.over(filtered(spark, condition.child(), below.plan))
    kept = F.when(keeps, F.lit(None).cast("int")).otherwise(DROPPED)
    to = F.when(below.is_marker, column(spark, below.marker)).otherwise(kept)
    return below.having({MARKER_TO: to})


def _expand(plan: Jvm, below: _Passing) -> _Passing:
    spark = below.spark
    projections = [
        [_guarded(below, one) for one in each(row)] + list(below.ours)
        for row in each(plan.projections())
    ]
    output = [*map(_nullable, each(plan.output())), *below.ours]
    return below.over(expand(spark, projections, output, below.plan))


def _guarded(below: _Passing, expression: Jvm) -> Jvm:
    if class_name(expression) in ("AttributeReference", "Literal"):
        return expression
    return null_where_present(below.spark, below.marker, expression)


# --- tables ----------------------------------------------------------------------------------------


def _join(plan: Jvm, below: _Passing) -> _Passing:
    """Return the join of a stream and a table; every task has the whole table."""
    spark, kind = below.spark, str(plan.joinType().sql()).upper()
    from_left, output = bool(plan.left().isStreaming()), list(each(plan.output()))
    table = plan.right() if from_left else plan.left()
    conditions = [_guarded_keys(below, one) for one in each(plan.condition())]
    condition = absent_and(spark, below.marker, conditions)
    (true,) = resolved(spark, [], [F.lit(True).alias(_MEETS)])
    mark = true.toAttribute()
    meets = column(spark, mark)
    if kind in ("INNER", "CROSS"):
        table = project(spark, [*each(table.output()), true], table)
        made = below.over(outer_join(spark, below.plan, table, condition))
        return _emptied(made, column(spark, mark.withNullability(True)).isNotNull()).only(output)
    if kind == ("LEFT OUTER" if from_left else "RIGHT OUTER"):
        return below.over(outer_join(spark, below.plan, table, condition)).only(output)
    if kind in ("LEFT SEMI", "LEFT ANTI") and from_left:
        made = below.over(marked_join(spark, below.plan, table, condition, mark))
        return _emptied(made, meets if kind == "LEFT SEMI" else ~meets).only(output)
    raise refused(f"a {kind.lower()} join")


def _guarded_keys(below: _Passing, condition: Jvm) -> Jvm:
    """Return a join's condition whose keys of the stream are null for markers.

    Spark computes the keys of an equality for each row, whatever else the condition says.
    """
    name = class_name(condition)
    if name not in ("And", "EqualTo", "EqualNullSafe"):
        return condition
    stream = below.plan.outputSet()

    def side(one: Jvm) -> Jvm:
        if name == "And":
            return _guarded_keys(below, one)
        return _guarded(below, one) if one.references().subsetOf(stream) else one

    sides = [side(one) for one in each(condition.children())]
    return condition.withNewChildren(seq(below.spark, sides))


# --- Python ----------------------------------------------------------------------------------------


def _functions(plan: Jvm, below: _Passing) -> _Passing:
    """Return the results of a user's Python functions on records."""
    calls = below.resolved(*(_call(below, one).alias("value") for one in each(plan.udfs())))
    named = [
        alias(below.spark, made.child(), old.name(), old.exprId(), old.metadata())
        for made, old in zip(calls, each(plan.resultAttrs()), strict=True)
    ]
    return below.only([*below.data, *named])


def _call(below: _Passing, expression: Jvm) -> Column:
    """Return the call of a function that skips markers; its arguments may be calls as well."""
    spark = below.spark
    guarded = _whole if int(expression.evalType()) in PANDAS_UDFS else _guarded

    def value(one: Jvm) -> Column:
        if class_name(one) == "PythonUDF":
            return _call(below, one)
        return column(spark, guarded(below, one))

    values, named = [column(spark, below.marker)], {}
    for one in each(expression.children()):
        if class_name(one) == "NamedArgumentExpression":
            named[str(one.key())] = value(one.value())
        else:
            values.append(value(one))
    return call(_of_records(spark, expression), expression, values, named)


def _whole(below: _Passing, expression: Jvm) -> Jvm:
    """Return an expression for pandas: it has no nulls of markers where these change pandas' type.

    A column of whole numbers with a null has floats, in which large numbers are rounded.
    """
    if _changes_with_nulls(data_type(expression.dataType())):
        return default_where_present(below.spark, below.marker, expression)
    return _guarded(below, expression)


def _changes_with_nulls(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_changes_with_nulls(field.dataType) for field in kind)
    return isinstance(kind, T.IntegralType | T.BooleanType)


def _of_records(
    spark: SparkSession, expression: Jvm
) -> OfRecords | OfSeries | OfArrays | OfIterators:
    kind, result = int(expression.evalType()), data_type(expression.dataType())
    if kind in ROW_UDFS:
        return OfRecords(_unpacked(expression))
    of: OfSeries | OfArrays
    if kind in PANDAS_UDFS:
        columns = tuple(result.names) if isinstance(result, T.StructType) else None
        of = OfSeries(_unpacked(expression), columns)
    else:
        zone = spark.conf.get("spark.sql.session.timeZone")
        schema = to_arrow_schema(T.StructType([T.StructField("v", result)]), timezone=zone)
        of = OfArrays(_unpacked(expression), schema.field(0).type)
    return OfIterators(of) if kind in ITERATOR_UDFS else of


def _unpacked(expression: Jvm) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = called_by(expression)
    except PySparkRuntimeError as error:
        raise refused(f"{expression.name()}, a Python function of more than 1 MB,") from error
    return function


def _map(plan: Jvm, below: _Passing) -> _Passing:
    """Return the results of a user's function on batches of records."""
    spark, results = below.spark, list(each(plan.output()))
    ours = [T.StructField(str(one.name()), data_type(one.dataType())) for one in below.ours]
    schema = T.StructType([T.StructField(one.name(), data_type(one.dataType())) for one in results])
    pandas = class_name(plan) == "MapInPandas"
    function = OfBatches(
        _unpacked(plan.functionExpr()),
        tuple(str(one.name()) for one in below.data),
        to_arrow_schema(schema, timezone=spark.conf.get("spark.sql.session.timeZone")),
        to_arrow_schema(T.StructType(ours)),
        pandas=pandas,
    )
    whole = T.StructType([*schema, *ours])

    def change(frame: DataFrame) -> DataFrame:
        return frame.mapInPandas(function, whole) if pandas else frame.mapInArrow(function, whole)

    names = {str(one.name()).lower() for one in (*below.data, *results)}
    for field in ours:
        if field.name in names:
            raise refused(f"a column called {field.name} in {wording(plan).name}")
    below = below.only(below.data)
    taken = below.plan
    if pandas:
        named = [column(spark, _whole(below, one)).alias(str(one.name())) for one in below.data]
        taken = project(spark, [*below.resolved(*named), *below.ours], below.plan)
    made = mapped(spark, taken, change)
    columns = list(each(made.output()))
    marks = tuple(columns[len(results) :])
    named = [
        alias(spark, new, old.name(), old.exprId(), old.metadata())
        for new, old in zip(columns, results, strict=False)
    ]
    return _Passing(spark, project(spark, [*named, *marks], made), marks)


PYTHON = ("BatchEvalPython", "ArrowEvalPython", "MapInPandas", "MapInArrow")
"""Nodes that send rows to Python, and read the results."""

_NODES: Mapping[str, Callable[[Jvm, _Passing], _Passing]] = {
    "Project": _project,
    "Filter": _filter,
    "Repartition": _repartition,
    "RepartitionByExpression": _repartition,
    "RebalancePartitions": _repartition,
    "Generate": _generate,
    "Expand": _expand,
    "Join": _join,
    **dict(zip(PYTHON, (_functions, _functions, _map, _map), strict=True)),
}
"""By name of a node: a function that lets markers pass the node, over a plan that they pass."""
