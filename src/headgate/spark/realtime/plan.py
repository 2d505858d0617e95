"""Makes the plan of a pipe: a query's own plan over a feeder, with markers that pass it untouched.

The plan is taken as Catalyst has optimised it: Catalyst moves filters below the watermark where that is
allowed, and which rows a watermark counts depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.jvm.expressions import (
    alias,
    column,
    data_type,
    interval_parts,
    present_or,
)
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.planned import planned_per_batch
from headgate.spark.jvm.plans import analysed, filtered, of_rows, optimised_stream, project
from headgate.spark.jvm.streams import streams_of
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.read.wording import wording
from headgate.spark.realtime.router import DROPPED
from headgate.spark.step.exchange import routed_columns, unless_marker

MARKERS = T.StructType([
    T.StructField(MARKER_TO, T.IntegerType()),
    T.StructField(MARKER_TOKEN, T.StringType()),
])  # fmt: skip
"""Columns of markers, behind those of the source; a record has nulls there."""

_MONTH_DAYS, _DAY_MS = 31, 86_400_000
"""As Spark counts a watermark's delay."""

_SHOWN = dict.fromkeys(("BatchEvalPython", "ArrowEvalPython"), "a Python UDF")


@dataclass(frozen=True)
class PipePlan:
    """The plan of a query up to its only operator.

    Attributes
    ----------
    plan : plan node
        Optimised.
    leaf : plan node
        Its source.
    delay_ms : int or None
        Of the watermark; None without one.
    """

    plan: Jvm
    leaf: Jvm
    delay_ms: int | None

    @classmethod
    def of(cls, spark: SparkSession, operator: PlannedOperator, key_groups: int) -> PipePlan:
        """Return the plan below an operator.

        Raises
        ------
        UnsupportedQuery
            A part of it cannot run in a pipe.
        """
        columns = routed_columns(operator, key_groups)
        frame = of_rows(spark, operator.input_plan)
        frame = frame.select(*(value.alias(name) for name, value in columns.items()))
        leaves = streams_of(analysed(frame))
        if len(leaves) != 1:
            msg = (
                f"a query of {len(leaves)} sources cannot run in real time, which reads one; leave out "
                "trigger(realTime=...)."
            )
            raise UnsupportedQuery(msg)
        if planned_per_batch(spark, analysed(frame)):
            # Catalyst would compute it once, when the pipe starts
            raise _refused("a subquery, or a function such as current_timestamp(),")
        plan = optimised_stream(frame)
        leaf, delay_ms = _checked(plan)
        return cls(plan, leaf, delay_ms)

    def over(self, source: DataFrame) -> DataFrame:
        """Return the routed rows of `source`, which has the source's columns and `MARKERS`.

        Where there is a watermark its time is a column more, in microseconds.
        """
        spark = source.sparkSession
        passing = _over(spark, self.plan, analysed(source))
        return of_rows(spark, passing.plan)


def _checked(plan: Jvm) -> tuple[Jvm, int | None]:
    """Return the leaf of a plan and its watermark's delay, if all of it can run in a pipe."""
    delay_ms: int | None = None
    while True:
        children = list(each(plan.children()))
        if not children:
            return plan, delay_ms
        name = class_name(plan)
        if name == "EventTimeWatermark":
            kind = data_type(plan.eventTime().dataType())
            if delay_ms is not None:
                raise _refused("a second watermark")
            if not isinstance(kind, T.TimestampType):
                raise _refused(f"a watermark on a column of type {kind.simpleString()}")
            months, days, micros = interval_parts(plan.delay())
            delay_ms = (months * _MONTH_DAYS + days) * _DAY_MS + micros // 1000
        elif name not in ("Project", "Filter"):
            raise _refused(_SHOWN.get(name) or wording(plan).name)
        (plan,) = children


def _refused(what: str) -> UnsupportedQuery:
    return UnsupportedQuery(
        f"{what} below the aggregate cannot run in real time; leave out trigger(realTime=...)."
    )


@dataclass(frozen=True)
class _Passing:
    """A plan through which markers pass.

    Attributes
    ----------
    plan : plan node
    ours : tuple of attribute
        The columns of markers, and behind them the watermark's time where the plan has one.
    """

    plan: Jvm
    ours: tuple[Jvm, ...]

    @property
    def marker(self) -> Jvm:
        return self.ours[0]


def _over(spark: SparkSession, plan: Jvm, source: Jvm) -> _Passing:
    """Return `plan` over `source` in place of its leaf."""
    children = list(each(plan.children()))
    if not children:
        *data, to, token = each(source.output())
        named = [
            alias(spark, new, old.name(), old.exprId(), old.metadata())
            for new, old in zip(data, each(plan.output()), strict=True)
        ]
        return _Passing(project(spark, [*named, to, token], source), (to, token))
    below = _over(spark, children[0], source)
    name = class_name(plan)
    if name == "Project":
        mine = [unless_marker(spark, one, below.marker) for one in each(plan.projectList())]
        return replace(below, plan=project(spark, [*mine, *below.ours], below.plan))
    if name == "EventTimeWatermark":
        time = F.unix_micros(column(spark, plan.eventTime()))
        return _with(spark, below, {MARKER_US: F.when(_is_record(spark, below), time)})
    if len(below.ours) == len(MARKERS):
        condition = present_or(spark, below.marker, plan.condition())
        return replace(below, plan=filtered(spark, condition, below.plan))
    # the row is dropped, and its time counts: to all that comes behind it is a marker
    kept = F.when(column(spark, plan.condition()), F.lit(None).cast("int")).otherwise(DROPPED)
    to = F.when(_is_record(spark, below), kept).otherwise(column(spark, below.marker))
    return _with(spark, below, {MARKER_TO: to})


def _is_record(spark: SparkSession, below: _Passing) -> Column:
    return column(spark, below.marker).isNull()


def _with(spark: SparkSession, below: _Passing, columns: dict[str, Column]) -> _Passing:
    """Return a plan with new columns of ours in place of those of the same name."""
    ours = [str(one.name()) for one in below.ours]
    ids = [one.exprId() for one in below.ours]
    data = [
        column(spark, one)
        for one in each(below.plan.output())
        if not any(one.exprId().equals(mine) for mine in ids)
    ]
    kept = {name: column(spark, one) for name, one in zip(ours, below.ours, strict=True)}
    named = [value.alias(name) for name, value in (kept | columns).items()]
    made = analysed(of_rows(spark, below.plan).select(*data, *named))
    found = list(each(made.output()))[len(data) :]
    return _Passing(made, tuple(found))
