"""Aggregates rows before the exchange if that shrinks the data.

Spark's own partial aggregation merges the rows of one key group, slice and key inside each map
partition; the slots merge its results as they merge records. The plan is Spark's plan for ``groupBy``,
cut below its exchange, and headgate's exchange follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.operators.spec import Aggregate, Op, Program
from headgate.operators.step import ARRIVED_FIRST, ARRIVED_LAST, GROUP, RECORDS, TIME
from headgate.spark.job.reports import Report
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.planned import Stage, copy_of, hole_of
from headgate.spark.jvm.plans import analysed, of_rows, physical
from headgate.spark.read.merging import program_of
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.step.unfold import Unfolding

_FEW_ROWS = 20_000
"""A batch with fewer records does not aggregate first: planning costs more than it saves."""

_SHRINKS = 2.0
"""Rows per entry and map partition above which aggregating first pays. Chosen, not tuned."""

_TRY_AGAIN = 50
"""Batches after which an aggregation that did not pay is tried once more."""


@dataclass(frozen=True)
class Merged:
    """Describes one of Spark's aggregates over leaves, and its buffers."""

    aggregate: Column
    """Spark's aggregate over the leaf columns."""
    unpack: Callable[[list[Column]], list[tuple[str, Column]]]
    """Maps the buffer columns of the partial aggregate to (leaf name, Column) pairs."""


Same = Callable[[list[str]], Column]
"""Maps the names of a record's leaves to Spark's aggregate with the same buffer."""


def _of_one(function: Callable[[Column], Column]) -> Same:
    """Return a builder of Spark's aggregate from two leaves: the count of records, and their value."""
    return lambda names: function(F.when(F.col(names[0]) > 0, F.col(names[1])))


def _of_two(function: Callable[[Column, Column], Column]) -> Same:
    """Return a builder of Spark's aggregate from three leaves: the count of records, and two values."""

    def same(names: list[str]) -> Column:
        count, x, y = (F.col(name) for name in names[:3])
        return function(F.when(count > 0, x), F.when(count > 0, y))

    return same


_KNOWN: tuple[Same, ...] = (
    _of_one(F.stddev),
    _of_one(F.skewness),
    _of_one(F.kurtosis),
    _of_two(F.covar_samp),
    _of_two(F.corr),
    lambda names: F.bit_and(names[0]),
    lambda names: F.bit_or(names[0]),
    lambda names: F.bit_xor(names[0]),
)
"""Aggregates that merge by a `Program`, and whose buffer of one record shows the record's values."""


def known_programs(spark: SparkSession, aggregates: Iterable[Aggregate]) -> dict[Program, Same]:
    """Return Spark's own aggregate for each program of `aggregates` that one of `_KNOWN` has."""
    wanted = {aggregate.program for aggregate in aggregates if aggregate.program is not None}
    if not wanted:
        return {}
    sizes = {len(program.merges) for program in wanted}
    names = ["n", "x", "y"]
    numbers = spark.range(0).select(*(F.col("id").alias(name) for name in names))
    plan = analysed(numbers.agg(*(same(names) for same in _KNOWN)))
    known: dict[Program, Same] = {}
    for same, output in zip(_KNOWN, each(plan.aggregateExpressions()), strict=True):
        function = output.child().aggregateFunction()
        # reading a program takes 0.1 s
        if function.aggBufferAttributes().size() in sizes:
            program = program_of(spark, function)
            if program in wanted:
                known[program] = same
    return known


def merged_leaves(
    aggregate: Aggregate, names: list[str], known: Mapping[Program, Same]
) -> list[Merged]:
    """Return Spark's aggregates that merge the leaves `names` of one aggregate.

    `unpack` leaves out the second buffer of MIN_BY and MAX_BY, the ordering.
    """
    op, count = aggregate.op, len(aggregate.leaves)
    first = F.col(names[0])
    if aggregate.program is not None:
        whole = known[aggregate.program](names)
        return [Merged(whole, lambda buffers: list(zip(names, buffers, strict=True)))]
    if op in (Op.COUNT, Op.SUM_INTEGER, Op.SUM_FLOAT):
        return [Merged(F.sum(first), _one(names[0]))]
    if op is Op.SUM_DECIMAL:
        kind = T.DecimalType(38, aggregate.leaves[0].scale)
        total = Merged(F.sum(first), lambda buffers: [(names[0], buffers[0].cast(kind))])
        return [total, Merged(F.sum(F.col(names[1])), _one(names[1]))]
    if op in (Op.MIN, Op.MAX):
        best = F.min if op is Op.MIN else F.max
        if count == 1:
            return [Merged(best(first), _one(names[0]))]
        whole = F.when(first.isNotNull(), F.struct(*names))
        return [Merged(best(whole), _fields(names))]
    if op in (Op.FIRST, Op.LAST):
        edge = F.first if op is Op.FIRST else F.last
        whole = F.when(first > 0, F.struct(*names[1:]))
        value = Merged(edge(whole, ignorenulls=True), _fields(names[1:]))
        return [Merged(F.sum(first), _one(names[0])), value]
    by = F.min_by if op is Op.MIN_BY else F.max_by
    present = first.isNotNull()
    whole = F.when(present, F.struct(*names))
    order = F.when(present, F.struct(*names[:count]))
    return [Merged(by(whole, order), _fields(names))]


def _one(name: str) -> Callable[[list[Column]], list[tuple[str, Column]]]:
    return lambda buffers: [(name, buffers[0])]


def _fields(names: list[str]) -> Callable[[list[Column]], list[tuple[str, Column]]]:
    return lambda buffers: [(name, buffers[0].getField(name)) for name in names]


def all_merged(spark: SparkSession, aggregates: Sequence[Aggregate]) -> list[Merged] | None:
    """Return Spark's aggregates that merge all value leaves; None if one of the leaves has none."""
    known = known_programs(spark, aggregates)
    merged: list[Merged] = []
    at = 0
    for aggregate in aggregates:
        if aggregate.program is not None and aggregate.program not in known:
            return None
        width = len(aggregate.all_leaves)
        merged += merged_leaves(aggregate, [f"v{i}" for i in range(at, at + width)], known)
        at += width
    return merged


class Preaggregation:
    """Decides for one operator whether to aggregate before the exchange, and plans that.

    `wanted`: auto, on or off. auto aggregates if the last batches show that it shrinks the data. Rows
    for a processor are never aggregated. `unfolding`: the plan that makes routed rows of a batch's
    rows, if any.
    """

    def __init__(self, operator: PlannedOperator, wanted: str, unfolding: Unfolding | None) -> None:
        self.operator = operator
        self._unfolding = unfolding
        self.wanted = wanted if operator.spec.merges is not None else "off"
        self.active = self.wanted == "on"
        self._rest = 0
        self._leaves: list[Merged] | None = None
        """Computed once, because every change of slots plans anew."""

    def stages(self, frame: DataFrame, hole: Jvm) -> tuple[list[Stage], DataFrame, Jvm]:
        """Return the stages that run before the routed rows, the plan of routed rows, and its leaf.

        If active, there is one routed row per key group, slice, key and map partition.

        `frame`: plan of a batch's rows. `hole` (plan node): its leaf.
        """
        spark, unfolding = frame.sparkSession, self._unfolding
        if unfolding is not None:
            frame, hole = of_rows(spark, unfolding.plan), unfolding.hole
        if not self.active:
            return [], frame, hole
        keys = [GROUP, *([TIME] if TIME in frame.columns else [])]
        keys += [routed.name for routed in self.operator.keys]
        if self._leaves is None:
            self._leaves = all_merged(spark, self.operator.spec.merges or ())
        if self._leaves is None:
            return self._never(frame, hole)
        merged = [*self._leaves, Merged(F.sum(RECORDS), _one(RECORDS))]
        if ARRIVED_FIRST in frame.columns:
            merged.append(Merged(F.min(ARRIVED_FIRST), _one(ARRIVED_FIRST)))
            merged.append(Merged(F.max(ARRIVED_LAST), _one(ARRIVED_LAST)))
        whole = frame.groupBy(*keys).agg(*(m.aggregate for m in merged))
        final, partial = _halves(physical(whole))
        sources_of, below = _sources(spark, final), copy_of(spark, partial)
        if sources_of is None or below is None:
            # Catalyst rewrote the aggregates to functions that this code cannot unpack
            return self._never(frame, hole)
        kinds = [data_type(a.dataType()) for a in each(partial.output())]
        schema = T.StructType([T.StructField(f"p{i}", kind) for i, kind in enumerate(kinds)])
        buffers = hole_of(spark, schema)
        columns = {
            key: source for key, (source,) in zip(keys, sources_of[: len(keys)], strict=True)
        }
        for output, sources in zip(merged, sources_of[len(keys) :], strict=True):
            columns |= dict(output.unpack(sources))
        rows = of_rows(spark, buffers).select(*[columns[n].alias(n) for n in frame.columns])
        return [below.rows], rows, buffers

    def _never(self, frame: DataFrame, hole: Jvm) -> tuple[list[Stage], DataFrame, Jvm]:
        self.wanted, self.active = "off", False
        return [], frame, hole

    def learn(self, reports: list[Report], partitions: int) -> None:
        """Decide from a committed batch whether the next batch aggregates first.

        `reports`: of this operator's slots. `partitions`: number of map partitions; each sends its
        own row of a key.
        """
        if self.wanted != "auto":
            return
        records = sum(r.arrived for r in reports)
        rows = sum(r.served_rows for r in reports)
        touched = sum(r.touched_rows for r in reports)
        if records < _FEW_ROWS:
            self.active = False
        elif self.active:
            if records < rows * _SHRINKS:
                self.active, self._rest = False, _TRY_AGAIN
        elif self._rest > 0:
            self._rest -= 1
        else:
            self.active = records > touched * partitions * _SHRINKS


def _halves(plan: Jvm) -> tuple[Jvm, Jvm]:
    """Return the final aggregation of a physical plan, and the plan below its exchange."""
    final = None
    while "Exchange" not in class_name(plan):
        if final is None and class_name(plan).endswith("AggregateExec"):
            final = plan
        (plan,) = list(each(plan.children()))
    return final, plan.child()


def _sources(spark: SparkSession, final: Jvm) -> list[list[Column]] | None:
    """Return the source columns of each output column of `final`: ``p0 ..``, or a constant.

    The sources of an aggregate are all of its buffers. They are matched by expression id, because
    Catalyst merges equal aggregates and removes constant keys. None if an output needs a computation.
    """
    at: dict[str, list[Column]] = {}
    width = 0
    for attribute in each(final.groupingExpressions()):
        at[attribute.exprId().toString()] = [F.col(f"p{width}")]
        width += 1
    calls = each(final.aggregateExpressions())
    for call, attribute in zip(calls, each(final.aggregateAttributes()), strict=True):
        end = width + call.aggregateFunction().aggBufferAttributes().size()
        at[attribute.exprId().toString()] = [F.col(f"p{i}") for i in range(width, end)]
        width = end
    sources = []
    for result in each(final.resultExpressions()):
        value = result.child() if class_name(result) == "Alias" else result
        if value.foldable():
            sources.append([column(spark, value)])
        elif class_name(value) == "AttributeReference":
            sources.append(at[value.exprId().toString()])
        else:
            return None
    return sources
