"""Reading an ordinary PySpark query from its analysed plan.

The plan is a tree; from the top: nodes that Catalyst keeps ("above"), an Aggregate, nodes below it,
perhaps another Aggregate, and a source. Every Aggregate becomes an `Operator`: an `AggregateSpec` for
the slots, the expressions that route its input, and the expressions that turn merged buffers into what
the Aggregate would have put out, with the same attribute ids, so that everything above it stays as the
user wrote it. A transformWithState becomes one too, from its processor.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from headgate.core.errors import ConfigError, UnsupportedQuery, nearest
from headgate.operators.spec import OutputMode
from headgate.spark.jvm.gateway import (
    Jvm,
    analysed,
    class_name,
    column,
    data_type,
    each,
    jvm,
    seq,
)
from headgate.spark.read.aggregate import AggregateReader
from headgate.spark.read.deduplicate import NODES as DUPLICATES
from headgate.spark.read.deduplicate import DeduplicateReader
from headgate.spark.read.expressions import WAY_OUT
from headgate.spark.read.join import JoinReader, is_stream_join
from headgate.spark.read.plan import Operator, Query
from headgate.spark.read.processor import NODE as PROCESSOR
from headgate.spark.read.processor import ProcessorReader
from headgate.spark.read.wording import wording
from headgate.spark.settings.options import ARRIVAL

_STATEFUL = ("Aggregate", PROCESSOR, *DUPLICATES)
"""Nodes that become an operator where they read a stream; a join of two streams does, too."""

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


def read(df: DataFrame, mode: str, arrival: str | None = None) -> Query:
    """Return the query behind `df`.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    mode : str
        append, update or complete.
    arrival : str or None
        Name of a timestamp column that says when a record arrived.

    Raises
    ------
    UnsupportedQuery
        Some part cannot run elastically; the message names it.
    ConfigError
        `arrival` is no timestamp column of what an operator reads.
    """
    spark = df.sparkSession
    plan = _without_cte(spark, analysed(df))
    if not plan.isStreaming():
        msg = "this DataFrame is not streaming; read its source with spark.readStream."
        raise UnsupportedQuery(msg)
    _check_with_spark(spark, plan, mode)
    reader = QueryReader(plan, spark, OutputMode[mode.upper()], arrival)
    above = reader.above(plan)
    return Query(reader.operators, above, df.schema, reader.mode, reader.notes)


def _without_cte(spark: SparkSession, plan: Jvm) -> Jvm:
    """Return a plan with each common table expression where it is used, as Spark puts it."""
    catalyst = jvm(spark).org.apache.spark.sql.catalyst
    if not plan.containsPattern(catalyst.trees.TreePattern.CTE()):
        return plan
    # always, nothing that is not used, not while Spark itself analyses
    return catalyst.optimizer.InlineCTE(True, False, False).apply(plan)


def _check_with_spark(spark: SparkSession, plan: Jvm, mode: str) -> None:
    """Let Spark itself judge the output mode, in its own words."""
    java = jvm(spark)
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    output_modes = java.org.apache.spark.sql.streaming.OutputMode
    factory = {"append": "Append", "update": "Update", "complete": "Complete"}
    if mode not in factory:
        msg = f'unknown output mode "{mode}"; use append, update or complete.'
        raise UnsupportedQuery(msg)
    if _is_stateful(plan):
        try:
            checker.checkForStreaming(plan, getattr(output_modes, factory[mode])())
        except AnalysisException as error:
            # its first line; what follows is the plan
            raise ModeRefused(str(error).strip().splitlines()[0]) from error


def _is_stateful(plan: Jvm) -> bool:
    """Return whether a node that becomes an operator is in `plan`."""
    if not plan.isStreaming():
        return False
    if class_name(plan) in _STATEFUL or is_stream_join(plan):
        return True
    return any(_is_stateful(c) for c in each(plan.children()))


class QueryReader:
    """Walks the plan once."""

    def __init__(
        self, plan: Jvm, spark: SparkSession, mode: OutputMode, arrival: str | None
    ) -> None:
        self.plan = plan
        self.spark = spark
        self.mode = mode
        self.arrival = arrival
        self.operators: list[Operator] = []
        self.notes: list[str] = []

    def arrived(self, attributes: Iterable[Jvm]) -> Column | None:
        """Return when a record arrived, of what an operator reads from the source.

        Raises
        ------
        ConfigError
            The column named is not among `attributes`, or is no timestamp.
        """
        if self.arrival is None:
            return None
        found = {a.name(): a for a in attributes}
        remedy = "name a timestamp column that every first stateful operator reads"
        if self.arrival not in found:
            hint = nearest(self.arrival, found) or f"; {remedy}."
            msg = f'{ARRIVAL.key}="{self.arrival}" is no column of what a stateful operator reads{hint}'
            raise ConfigError(msg)
        kind = data_type(found[self.arrival].dataType())
        if not isinstance(kind, T.TimestampType):
            msg = f'{ARRIVAL.key}="{self.arrival}" is a {kind.simpleString()}; {remedy}.'
            raise ConfigError(msg)
        return column(self.spark, found[self.arrival])

    def above(self, plan: Jvm) -> Jvm:
        """Return what stands above the operators, over their placeholders."""
        name = class_name(plan)
        if name == "Aggregate" and plan.isStreaming():
            return self._operator(plan).output_plan
        if name == PROCESSOR:
            return self._processor(plan).output_plan
        if name in DUPLICATES and plan.isStreaming():
            return self._deduplicate(plan).output_plan
        if is_stream_join(plan):
            return self._join(plan).output_plan
        if not _is_stateful(plan):
            self._check_below(plan)
            return plan
        allowed = _ABOVE | (_ABOVE_COMPLETE if self.mode is OutputMode.COMPLETE else set())
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

    def _operator(self, aggregate: Jvm) -> Operator:
        node, upstream = self._over(aggregate)
        operator = AggregateReader(self, node, node.child(), upstream).read()
        self.operators.append(operator)
        return operator

    def _deduplicate(self, node: Jvm) -> Operator:
        node, upstream = self._over(node)
        operator = DeduplicateReader(self, node, node.child(), upstream).read()
        self.operators.append(operator)
        return operator

    def _join(self, node: Jvm) -> Operator:
        for child in each(node.children()):
            if _is_stateful(child):
                msg = (
                    "cannot join what a stateful operator puts out with a stream; write it as two "
                    f"queries, {WAY_OUT}."
                )
                raise UnsupportedQuery(msg)
            self._check_below(child)
        operator = JoinReader(self, node, attributes_used(self.plan, node)).read()
        self.operators.append(operator)
        return operator

    def _over(self, node: Jvm) -> tuple[Jvm, Operator | None]:
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
        rules = jvm(self.spark).org.apache.spark.sql.catalyst.analysis
        narrow = getattr(getattr(rules, "UpdateAttributeNullability$"), "MODULE$")
        # a processor has a second child, its initial state
        children = [child, *list(each(node.children()))[1:]]
        return narrow.apply(node.withNewChildren(seq(self.spark, children))), upstream

    def _processor(self, node: Jvm) -> Operator:
        node, upstream = self._over(node)
        if node.hasInitialState() and (upstream is not None or node.initialState().isStreaming()):
            msg = (
                "cannot run a processor with an initial state that is a stream, or over another "
                f"stateful operator; write two queries, {WAY_OUT}."
            )
            raise UnsupportedQuery(msg)
        operator = ProcessorReader(self, node, upstream).read()
        self.operators.append(operator)
        return operator


def attributes_used(plan: Jvm, node: Jvm) -> set[str]:
    """Return the ids of all attributes that `plan` puts out or refers to, `node` and below left out."""
    used = {a.exprId().toString() for a in each(plan.output())}
    pending = [plan]
    while pending:
        one = pending.pop()
        if not one.equals(node):
            used |= {a.exprId().toString() for a in each(one.references().toSeq())}
            children = list(each(one.children()))
            if len(children) > 1:
                # a union takes the columns of its children by position, without naming them
                used |= {a.exprId().toString() for c in children for a in each(c.output())}
            pending += children
    return used


def _direct(operators: list[Operator]) -> int:
    feeding = {id(x.upstream) for x in operators}
    return sum(1 for x in operators if id(x) not in feeding)
