"""Reads an ordinary PySpark query from its analysed plan.

The plan is a tree; from the top: nodes that stay in Catalyst ("above"), a stateful node, nodes below it,
perhaps another stateful node, and a source. Every stateful node becomes a `PlannedOperator`. That of an
Aggregate has an `AggregateSpec` for the slots, the expressions that route its input, and the expressions
that turn merged buffers into the Aggregate's output. The output has the Aggregate's attribute ids, so the
plan above stays as the user wrote it.
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
    distinct,
    with_nullability_of_children,
    without_cte,
    without_distinct,
)
from headgate.spark.jvm.errors import SaidBySpark
from headgate.spark.jvm.expressions import tree_patterns
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import analysed, without_watermarks
from headgate.spark.read import aggregate, deduplicate, join, processor
from headgate.spark.read.outer import with_any_condition
from headgate.spark.read.passing import LIMIT_READER, passing
from headgate.spark.read.plan import PlannedOperator, PlannedQuery
from headgate.spark.read.reading import NodeReader, Reading
from headgate.spark.read.tree import tree
from headgate.spark.read.wording import WAY_OUT, wording

_READERS: Mapping[str, NodeReader] = {
    name: reader
    for reader in (
        aggregate.READER,
        deduplicate.READER,
        join.READER,
        processor.READER,
        processor.GROUP_STATE_READER,
    )
    for name in reader.names
}
"""Readers of nodes that become operators, by class of the node."""

_RELAYED = {
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "ResolvedHint",
    "EventTimeWatermark",
    "UpdateEventTimeWatermarkColumn",
}
"""Nodes between two operators that marker rows can pass, so that both operators run in one job."""

_OF_SCALA = {"FlatMapGroupsWithState", "TransformWithState"}
"""Nodes of Scala's API with state, which do not become operators."""


def shown(df: DataFrame, mode: str) -> list[str]:
    """Return a line for each part of the query of `df`, with the place where it runs; for people."""
    spark = df.sparkSession
    plan = distinct(spark, without_cte(spark, analysed(df)), mode)
    plan = with_any_condition(spark, plan)

    def limits(node: Jvm) -> bool:
        counts = class_name(node) == "GlobalLimit" and mode == "append"
        return counts and _is_stateful(node)

    return tree(plan, lambda node: _reader_of(node) is not None or limits(node))


class ModeRefused(UnsupportedQuery, SaidBySpark, AnalysisException):
    """Reports Spark's own refusal of an output mode; programs can catch it as Spark's error."""


def read(
    df: DataFrame,
    mode: str,
    arrival: str | None = None,
    ordered: tuple[str, ...] = (),
    *,
    whole_windows: bool = False,
    asks_kafka: bool = True,
) -> PlannedQuery:
    """Return the query of `df`.

    Raises `UnsupportedQuery`: some part cannot run elastically; the message names the part;
    `ConfigError`: `arrival` is no timestamp column of an operator's input, or `ordered` names no
    column.

    Parameters
    ----------
    mode : str    append, update or complete.
    arrival : str or None    Name of a timestamp column that says when a record arrived.
    ordered : tuple of str
        Names of columns that order records for functions whose result depends on the order.
    whole_windows, asks_kafka : bool    See `Reading`.
    """
    spark = df.sparkSession
    whole = analysed(df)
    if not whole.isStreaming():
        msg = "this DataFrame is not streaming; read its source with spark.readStream."
        raise UnsupportedQuery(msg)
    plan = distinct(spark, without_cte(spark, whole), mode)
    _check_with_spark(spark, plan, mode)
    plan = with_any_condition(spark, plan)
    known = Reading(
        spark,
        plan,
        OutputMode[mode.upper()],
        arrival,
        ordered,
        0,
        whole_windows=whole_windows,
        asks_kafka=asks_kafka,
    )
    reader = _QueryReader(known)
    above = reader.above(plan)
    if reader.operators:
        above = without_watermarks(spark, above)
    return PlannedQuery(reader.operators, above, df.schema, reader.reading.mode, reader.notes)


def _check_with_spark(spark: SparkSession, plan: Jvm, mode: str) -> None:
    """Refuse an output mode that Spark refuses, with Spark's message."""
    if mode not in ("append", "update", "complete"):
        msg = f'unknown output mode "{mode}"; use append, update or complete.'
        raise UnsupportedQuery(msg)
    try:
        check_streaming(spark, without_distinct(spark, plan), mode)
    except AnalysisException as error:
        # only the first line, because the plan follows
        raise ModeRefused(str(error).strip().splitlines()[0]) from error


def _is_stateful(plan: Jvm) -> bool:
    """Return whether `plan` has a node that becomes an operator."""
    if not plan.isStreaming():
        return False
    return _reader_of(plan) is not None or any(_is_stateful(c) for c in each(plan.children()))


def _reader_of(node: Jvm) -> NodeReader | None:
    """Return the reader of a node that becomes an operator; None for any other node."""
    reader = _READERS.get(class_name(node))
    return reader if reader is not None and reader.applies(node) else None


class _QueryReader:
    """Walks the plan once.

    `reading`: the facts of the query, with the number of its first operator.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.spark = reading.spark
        self.operators: list[PlannedOperator] = []
        self.notes: list[str] = []

    def above(self, plan: Jvm) -> Jvm:
        """Return the plan above the operators, over their placeholders."""
        reader = _reader_of(plan)
        if reader is not None:
            return self._operator(reader, plan).output_plan
        if not _is_stateful(plan):
            _check_stateless(plan)
            return plan
        if class_name(plan) == "GlobalLimit" and self.reading.mode is OutputMode.APPEND:
            return self._operator(LIMIT_READER, plan).output_plan
        self._check_above(plan)
        children = list(each(plan.children()))
        replaced = [self._branch(child) for child in children]
        if class_name(plan) not in _RELAYED or class_name(plan) in ("Project", "Filter"):
            self.notes.append(wording(plan).name)
        return plan.withNewChildren(seq(self.spark, replaced))

    def _branch(self, plan: Jvm) -> Jvm:
        """Return an input of a node; a stateless stream becomes an operator that passes rows on."""
        if _is_stateful(plan) or not plan.isStreaming():
            return self.above(plan)
        _check_stateless(plan)
        operator = passing(replace(self.reading, number=len(self.operators)), plan)
        self.operators.append(operator)
        return operator.output_plan

    def _check_above(self, plan: Jvm) -> None:
        """Refuse a node with state that becomes no operator."""
        if class_name(plan) in _OF_SCALA:
            words = wording(plan)
            msg = f"cannot keep {words.name} above a stateful operator; {words.instead}, {WAY_OUT}."
            raise UnsupportedQuery(msg)

    def _operator(self, reader: NodeReader, node: Jvm) -> PlannedOperator:
        over, upstream, feeds = self._over(node)
        reading = replace(self.reading, number=len(self.operators), feeds=feeds, node=node)
        operator = reader.read(reading, over, upstream)
        if feeds:
            operator.input_plan = without_watermarks(self.spark, operator.input_plan)
        self.operators.append(operator)
        return operator

    def _over(self, node: Jvm) -> tuple[Jvm, PlannedOperator | None, tuple[PlannedOperator, ...]]:
        """Return a node over the outputs of operators, its upstream operator, and its `feeds`."""
        # a processor's second child is its initial state
        children = list(each(node.children()))
        streams = [child for child in children if child.isStreaming()]
        if not any(_is_stateful(child) for child in streams):
            for child in streams:
                _check_stateless(child)
            return node, None, ()
        before = len(self.operators)
        replaced = [self._branch(child) if child.isStreaming() else child for child in children]
        direct = _direct(self.operators[before:])
        # Spark makes the columns between two stateful operators nullable; the batch answer does not,
        # and neither does headgate's plan of the upstream operator.
        over = node.withNewChildren(seq(self.spark, replaced))
        over = with_nullability_of_children(self.spark, over)
        relayed = len(direct) == 1 and len(streams) == 1 and not _begins_with_state(node)
        if relayed and _relays(self.spark, replaced[0], direct[0].placeholder):
            return over, direct[0], ()
        return over, None, tuple(direct)


def _begins_with_state(node: Jvm) -> bool:
    """Return whether a node has an initial state, which joins the rows of a job's first operator."""
    return class_name(node) == "TransformWithStateInPySpark" and bool(node.hasInitialState())


def _check_stateless(plan: Jvm) -> None:
    """Refuse nodes of Scala's API with state below an operator."""
    if not plan.isStreaming():
        return
    if class_name(plan) in _OF_SCALA:
        words = wording(plan)
        msg = f"cannot run {words.name} elastically; {words.instead}, {WAY_OUT}."
        raise UnsupportedQuery(msg)
    for child in each(plan.children()):
        _check_stateless(child)


def _relays(spark: SparkSession, plan: Jvm, placeholder: Jvm) -> bool:
    """Return whether markers can pass from an operator to the next one, through `plan`."""
    if any(map(plan.containsPattern, tree_patterns(spark, ["PYTHON_UDF"]))):
        return False  # Spark would call the user's function with markers, which are all null
    while not plan.equals(placeholder):
        if class_name(plan) not in _RELAYED:
            return False
        (plan,) = each(plan.children())
    return True


def _direct(operators: list[PlannedOperator]) -> list[PlannedOperator]:
    """Return the operators that no other operator of the list reads."""
    read = {id(parent) for op in operators for parent in op.parents}
    return [op for op in operators if id(op) not in read]
