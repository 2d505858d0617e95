"""Reading an ordinary PySpark query from its analysed plan.

The plan is a tree; from the top: nodes that Catalyst keeps ("above"), an Aggregate, nodes below it,
perhaps another Aggregate, and a source. Every Aggregate becomes an `Operator`: an `AggregateSpec` for
the slots, the expressions that route its input, and the expressions that turn merged buffers into what
the Aggregate would have put out, with the same attribute ids, so that everything above it stays as the
user wrote it. A transformWithState becomes one too, from its processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import OutputMode
from headgate.spark.jvm.analysis import (
    check_streaming,
    with_nullability_of_children,
    without_cte,
    without_distinct,
)
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import analysed
from headgate.spark.read import aggregate, deduplicate, join, processor
from headgate.spark.read.plan import PlannedOperator, PlannedQuery
from headgate.spark.read.reading import NodeReader, Reading
from headgate.spark.read.wording import WAY_OUT, wording

_READERS: Mapping[str, NodeReader] = {
    name: reader
    for reader in (aggregate.READER, deduplicate.READER, join.READER, processor.READER)
    for name in reader.names
}
"""By class of plan node, what reads those that become an operator."""

_ABOVE = {"Project", "Filter", "SubqueryAlias", "View", "Union", "ResolvedHint"}
_ABOVE_COMPLETE = {"Sort", "GlobalLimit", "LocalLimit"}
_BELOW = {
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "Union",
    "ResolvedHint",
    "EventTimeWatermark",
    "UpdateEventTimeWatermarkColumn",
    "StreamingRelation",
    "StreamingRelationV2",
    "Generate",
    "Expand",
    "Join",
    "Repartition",
    "RepartitionByExpression",
    "MapInArrow",
    "MapInPandas",
    "PythonMapInArrow",
    "BatchEvalPython",
    "ArrowEvalPython",
}


class ModeRefused(UnsupportedQuery):
    """Spark itself refuses the query in this output mode."""


def read(
    df: DataFrame, mode: str, arrival: str | None = None, ordered: tuple[str, ...] = ()
) -> PlannedQuery:
    """Return the query behind `df`.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    mode : str
        append, update or complete.
    arrival : str or None
        Name of a timestamp column that says when a record arrived.
    ordered : tuple of str
        Names of columns that order records, where their order makes a difference.

    Raises
    ------
    UnsupportedQuery
        Some part cannot run elastically; the message names it.
    ConfigError
        `arrival` is no timestamp column of what an operator reads, or one of `ordered` no column.
    """
    spark = df.sparkSession
    plan = without_cte(spark, analysed(df))
    if not plan.isStreaming():
        msg = "this DataFrame is not streaming; read its source with spark.readStream."
        raise UnsupportedQuery(msg)
    _check_with_spark(spark, plan, mode)
    reader = _QueryReader(Reading(spark, plan, OutputMode[mode.upper()], arrival, ordered, 0))
    above = reader.above(plan)
    return PlannedQuery(reader.operators, above, df.schema, reader.reading.mode, reader.notes)


def _check_with_spark(spark: SparkSession, plan: Jvm, mode: str) -> None:
    """Let Spark itself judge the output mode, in its own words."""
    if mode not in ("append", "update", "complete"):
        msg = f'unknown output mode "{mode}"; use append, update or complete.'
        raise UnsupportedQuery(msg)
    if _is_stateful(plan):
        try:
            check_streaming(spark, without_distinct(spark, plan), mode)
        except AnalysisException as error:
            # its first line; what follows is the plan
            raise ModeRefused(str(error).strip().splitlines()[0]) from error


def _is_stateful(plan: Jvm) -> bool:
    """Return whether a node that becomes an operator is in `plan`."""
    if not plan.isStreaming():
        return False
    return _reader_of(plan) is not None or any(_is_stateful(c) for c in each(plan.children()))


def _reader_of(node: Jvm) -> NodeReader | None:
    """Return what reads a node that becomes an operator; None of any other."""
    reader = _READERS.get(class_name(node))
    return reader if reader is not None and reader.applies(node) else None


class _QueryReader:
    """Walks the plan once.

    Parameters
    ----------
    reading : Reading
        Of the query, before its first operator.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.spark = reading.spark
        self.operators: list[PlannedOperator] = []
        self.notes: list[str] = []

    def above(self, plan: Jvm) -> Jvm:
        """Return what stands above the operators, over their placeholders."""
        reader = _reader_of(plan)
        if reader is not None:
            return self._operator(reader, plan).output_plan
        if not _is_stateful(plan):
            self._check_below(plan)
            return plan
        name = class_name(plan)
        allowed = _ABOVE | (_ABOVE_COMPLETE if self.reading.mode is OutputMode.COMPLETE else set())
        if name not in allowed:
            found = wording(plan)
            msg = f"cannot keep {found.name} above a stateful operator; {found.instead}, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        children = list(each(plan.children()))
        if len(children) > 1 and not all(_is_stateful(c) for c in children):
            msg = (
                f"cannot mix stateful and stateless inputs in {wording(plan).name}; write them as two "
                f"queries, {WAY_OUT}."
            )
            raise UnsupportedQuery(msg)
        self.notes.append(name)
        replaced = [self.above(child) for child in children]
        return plan.withNewChildren(seq(self.spark, replaced))

    def _check_below(self, plan: Jvm) -> None:
        """Refuse what is stateful or unknown below an operator."""
        if not plan.isStreaming():
            return
        name = class_name(plan)
        streaming = [child for child in each(plan.children()) if child.isStreaming()]
        if name not in _BELOW:
            found = wording(plan)
            msg = f"cannot run {found.name} elastically; {found.instead}, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        for child in streaming:
            self._check_below(child)

    def _operator(self, reader: NodeReader, node: Jvm) -> PlannedOperator:
        node, upstream = self._alone(reader, node) if reader.alone else self._over(node)
        reading = replace(self.reading, number=len(self.operators))
        operator = reader.read(reading, node, upstream)
        self.operators.append(operator)
        return operator

    def _alone(self, reader: NodeReader, node: Jvm) -> tuple[Jvm, None]:
        """Return a node all of whose children read sources only."""
        for child in each(node.children()):
            if _is_stateful(child):
                msg = f"{reader.alone}; write it as two queries, {WAY_OUT}."
                raise UnsupportedQuery(msg)
            self._check_below(child)
        return node, None

    def _over(self, node: Jvm) -> tuple[Jvm, PlannedOperator | None]:
        """Return a node over what headgate puts below it, and the operator it then reads."""
        child = node.child()
        if not _is_stateful(child):
            self._check_below(child)
            return node, None
        before = len(self.operators)
        child = self.above(child)
        if len(self.operators) - before > 1 and _direct(self.operators[before:]) > 1:
            msg = (
                f"cannot run {wording(node).name} over a union of stateful operators; write it as two "
                f"queries, {WAY_OUT}."
            )
            raise UnsupportedQuery(msg)
        upstream = self.operators[-1]
        if not upstream.spec.feeds_others:
            msg = f"cannot run {wording(node).name} over a processor; write it as two queries, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        # Spark widens what a stateful operator reads from another to nullable; the batch answer
        # does not, and neither does our plan of the upstream operator.
        # a processor has a second child, its initial state
        children = [child, *list(each(node.children()))[1:]]
        over = node.withNewChildren(seq(self.spark, children))
        return with_nullability_of_children(self.spark, over), upstream


def _direct(operators: list[PlannedOperator]) -> int:
    feeding = {id(x.upstream) for x in operators}
    return sum(1 for x in operators if id(x) not in feeding)
