"""Aggregation before the exchange, where it shrinks the data.

Rows of one key group, slice and key are merged inside each map partition by Spark's own partial
aggregation; the slots merge what comes out as they merge records. The plan is Spark's for ``groupBy``,
cut below its exchange: ours follows instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.operators.spec import Aggregate, Op
from headgate.operators.step import ARRIVED_FIRST, ARRIVED_LAST, GROUP, RECORDS, TIME
from headgate.spark.job.reports import Report
from headgate.spark.jvm.expressions import column, data_type
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.planned import Stage, copy_of, hole_of
from headgate.spark.jvm.plans import of_rows, physical
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.step.unfold import Unfolding

_FEW_ROWS = 20_000
"""Below this a batch is over before planning the extra aggregation would pay."""

_SHRINKS = 2.0
"""Rows per entry and map partition above which aggregating first pays. Chosen, not tuned."""

_TRY_AGAIN = 50
"""Batches after which an aggregation that did not pay is tried once more."""


@dataclass(frozen=True)
class Merged:
    """One aggregate over leaves, in Spark's terms.

    Attributes
    ----------
    aggregate : Column
        Over the leaf columns.
    unpack : callable
        From the column of the first buffer of its partial form to (leaf name, Column) pairs.
    """

    aggregate: Column
    unpack: Callable[[Column], list[tuple[str, Column]]]


def merged_leaves(aggregate: Aggregate, names: list[str]) -> list[Merged]:
    """Return how Spark merges the leaves `names` of one aggregate.

    The second buffer of MIN_BY and MAX_BY, the ordering, is not named by `unpack`.
    """
    op, count = aggregate.op, len(aggregate.leaves)
    first = F.col(names[0])
    if op in (Op.COUNT, Op.SUM_INTEGER, Op.SUM_FLOAT):
        return [Merged(F.sum(first), _one(names[0]))]
    if op is Op.SUM_DECIMAL:
        kind = T.DecimalType(38, aggregate.leaves[0].scale)
        total = Merged(F.sum(first), lambda c: [(names[0], c.cast(kind))])
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


def _one(name: str) -> Callable[[Column], list[tuple[str, Column]]]:
    return lambda column: [(name, column)]


def _fields(names: list[str]) -> Callable[[Column], list[tuple[str, Column]]]:
    return lambda column: [(name, column.getField(name)) for name in names]


def all_merged(operator: PlannedOperator) -> list[Merged]:
    """Return how Spark merges all value leaves of an operator."""
    merged: list[Merged] = []
    at = 0
    for aggregate in operator.spec.merges or ():
        width = len(aggregate.all_leaves)
        merged += merged_leaves(aggregate, [f"v{i}" for i in range(at, at + width)])
        at += width
    return merged


class Preaggregation:
    """Decides for one operator whether to aggregate first, and does it.

    Parameters
    ----------
    operator : PlannedOperator
    wanted : str
        auto, on or off. auto: when the last batches show that it shrinks the data. A processor always
        gets its rows as they are.
    unfolding : Unfolding or None
        What is made of a batch's rows before they are routed rows.
    """

    def __init__(
        self, operator: PlannedOperator, wanted: str, unfolding: Unfolding | None = None
    ) -> None:
        self.operator = operator
        self._unfolding = unfolding
        self.wanted = wanted if operator.spec.merges is not None else "off"
        self.active = self.wanted == "on"
        self._rest = 0

    def stages(self, frame: DataFrame, hole: Jvm) -> tuple[list[Stage], DataFrame, Jvm]:
        """Return what is to be run below a plan of routed rows, that plan so far, and its leaf.

        Where it is active the plan's rows are one per key group, slice and key and map partition.

        Parameters
        ----------
        frame : DataFrame
            Of a batch's rows.
        hole : plan node
            Its leaf.
        """
        spark, unfolding = frame.sparkSession, self._unfolding
        if unfolding is not None:
            frame, hole = of_rows(spark, unfolding.plan), unfolding.hole
        if not self.active:
            return [], frame, hole
        keys = [GROUP, *([TIME] if TIME in frame.columns else [])]
        keys += [routed.name for routed in self.operator.keys]
        merged = [*all_merged(self.operator), Merged(F.sum(RECORDS), _one(RECORDS))]
        if ARRIVED_FIRST in frame.columns:
            merged.append(Merged(F.min(ARRIVED_FIRST), _one(ARRIVED_FIRST)))
            merged.append(Merged(F.max(ARRIVED_LAST), _one(ARRIVED_LAST)))
        whole = frame.groupBy(*keys).agg(*(m.aggregate for m in merged))
        final, partial = _halves(physical(whole))
        found, below = _sources(spark, final), copy_of(spark, partial)
        if found is None or below is None:
            # Catalyst made other aggregates of ours than this knows to unpack
            self.wanted, self.active = "off", False
            return [], frame, hole
        kinds = [data_type(a.dataType()) for a in each(partial.output())]
        schema = T.StructType([T.StructField(f"p{i}", kind) for i, kind in enumerate(kinds)])
        buffers = hole_of(spark, schema)
        columns = dict(zip(keys, found[: len(keys)], strict=True))
        for one, buffer in zip(merged, found[len(keys) :], strict=True):
            columns |= dict(one.unpack(buffer))
        rows = of_rows(spark, buffers).select(*[columns[n].alias(n) for n in frame.columns])
        return [below.rows], rows, buffers

    def learn(self, reports: list[Report], partitions: int) -> None:
        """Take a batch's figures into account.

        Parameters
        ----------
        reports : list of Report
            Of this operator's slots.
        partitions : int
            Map partitions, each of which sends an entry of its own.
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
    """Return the final aggregation of a physical plan, and what stands below its exchange."""
    final = None
    while "Exchange" not in class_name(plan):
        if final is None and class_name(plan).endswith("AggregateExec"):
            final = plan
        (plan,) = list(each(plan.children()))
    return final, plan.child()


def _sources(spark: SparkSession, final: Jvm) -> list[Column] | None:
    """Return for each column that `final` puts out where it comes from: ``p0 ..``, or a constant.

    Not by position: Catalyst merges equal aggregates, and takes constants out of the keys. None if one
    is computed from what it comes from.
    """
    grouping = list(each(final.groupingExpressions()))
    at = {attribute.exprId().toString(): i for i, attribute in enumerate(grouping)}
    width = len(grouping)
    calls = each(final.aggregateExpressions())
    for call, attribute in zip(calls, each(final.aggregateAttributes()), strict=True):
        at[attribute.exprId().toString()] = width
        width += call.aggregateFunction().aggBufferAttributes().size()
    sources = []
    for result in each(final.resultExpressions()):
        value = result.child() if class_name(result) == "Alias" else result
        if value.foldable():
            sources.append(column(spark, value))
        elif class_name(value) == "AttributeReference":
            sources.append(F.col(f"p{at[value.exprId().toString()]}"))
        else:
            return None
    return sources
