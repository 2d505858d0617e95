"""Describes the meaning of an operator's state as texts, which a later start compares.

State of two queries may have the same types and another meaning: ``sum(v)`` and ``sum(w)``. So a
checkpoint has the text of each key, aggregate, window and condition. It has no texts of filters, because
these change only future input; of sources it has the names, since their order counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from headgate.checkpoint.identity import (
    ARGUMENTS,
    BRANCHES,
    CASE,
    COLUMN,
    CONSTANTS,
    EXACT,
    SOURCES,
    TYPES,
)
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.shape import FAILED
from headgate.spark.jvm.streams import name_of, streams_of
from headgate.spark.read.conditions import conjuncts
from headgate.spark.read.expressions import WATERMARK
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.read.texts import Texts
from headgate.spark.worker.window_processor import WindowProcessor

VERSION = 1
"""Version of the texts; texts of different versions are not compared."""


def meaning(spark: SparkSession, operators: Sequence[PlannedOperator]) -> dict[str, Any]:
    """Return the meaning of the state of a query's operators, as JSON."""
    parts, exact = {}, {}
    for op in operators:
        part, inexact = _of_operator(spark, op, exact=False)
        if part:
            parts[op.id] = part
        if inexact:
            with suppress(*FAILED):  # without exact texts where Spark refuses to be asked for them
                exact[op.id], _ = _of_operator(spark, op, exact=True)
    said = {"version": VERSION, "operators": parts, EXACT: exact}
    streams = [streams_of(op.node) for op in operators if op.node is not None]
    sources = [name_of(leaf) for leaf in max(streams, key=len, default=[])]
    if len(set(sources)) > 1:
        said[SOURCES] = sources
    sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
    return said | {CASE: True} if sensitive else said


def _of_operator(
    spark: SparkSession, op: PlannedOperator, *, exact: bool
) -> tuple[dict[str, Any], bool]:
    """Return the meaning of an operator's state, and whether `exact` would make it another one."""
    describe = None if op.node is None else _KINDS.get(class_name(op.node))
    if describe is None:
        return {}, False
    texts = Texts(spark, op.node, exact=exact)
    meaning: dict[str, Any] = describe(texts, op)
    if texts.lookups:
        meaning["lookups"] = sorted(texts.lookups)
    if texts.zones:
        meaning["time zone"] = ", ".join(sorted(texts.zones))
    if texts.constant_zones:
        meaning[CONSTANTS] = ", ".join(sorted(texts.constant_zones))
    if texts.arguments:
        meaning[ARGUMENTS] = sorted(texts.arguments)
    branches = sorted(filter(None, (union.branches() for union in texts.unions)))
    if branches:
        meaning[BRANCHES] = branches
    return meaning, bool(texts.inexact)


def _aggregate(texts: Texts, op: PlannedOperator) -> dict[str, Any]:
    assert op.node is not None
    assert op.aggregate is not None
    grouping, at = op.aggregate.grouping, op.aggregate.time_index
    fields: dict[str, Any] = {
        "keys": [texts.text(e) for i, e in enumerate(grouping) if i != at],
        "window": texts.text(grouping[at]) if at >= 0 else "",
        "aggregates": [],
    }
    calls: dict[str, None] = {}
    results: list[Jvm] = []
    for expression in each(op.node.aggregateExpressions()):
        for call in _calls(expression):
            if (text := texts.text(call)) not in calls:
                results.append(call.aggregateFunction())
            calls[text] = None
    fields["aggregates"] = list(calls)
    keys = [e for i, e in enumerate(grouping) if i != at]
    fields[TYPES] = [str(part.dataType().sql()) for part in (*keys, *results)]
    if op.aggregate.order:
        fields["order"] = [texts.text(e) for e in op.aggregate.order]
    return fields


def _calls(expression: Jvm) -> Iterable[Jvm]:
    if class_name(expression) == "AggregateExpression":
        yield expression
        return
    for child in each(expression.children()):
        yield from _calls(child)


def _join(texts: Texts, op: PlannedOperator) -> dict[str, Any]:
    node, (left, right) = op.node, op.join
    assert node is not None
    condition = node.condition()
    parts = conjuncts(texts.spark, condition.get()) if condition.isDefined() else []
    fields: dict[str, Any] = {
        "join": str(node.joinType().sql()).lower(),
        "keys": [
            _equality(texts.text(key), texts.text(other))
            for key, other in zip(left.keys, right.keys, strict=True)
        ],
        "condition": sorted(texts.text(key) for key in parts),
    }
    sides = (("left", left, node.left()), ("right", right, node.right()))
    for at, (name, part, plan) in enumerate(sides):
        own = texts.below(at)
        compared = [texts.text(e) for _, e in part.compared]
        fields[f"{name} columns"] = [own.text_of(a) for a in part.attributes] + compared
        times = [a for a in each(plan.output()) if a.metadata().contains(WATERMARK)]
        fields[f"{name} event time"] = own.text_of(times[0]) if times else ""
    return fields


def _equality(side: str, other: str) -> str:
    return " = ".join(sorted((side, other)))


def _deduplicate(texts: Texts, op: PlannedOperator) -> dict[str, Any]:
    assert op.node is not None
    child = op.node.child()
    times = [a for a in each(child.output()) if a.metadata().contains(WATERMARK)]
    return {
        "columns": [texts.text(a) for a in each(op.node.keys())],
        "event time": texts.text(times[0]) if times else "",
    }


def _processor(texts: Texts, op: PlannedOperator) -> dict[str, Any]:
    assert op.node is not None
    fields = {"keys": [texts.text(a) for a in each(op.node.leftAttributes())], **_columns(texts)}
    user = getattr(op.spec, "processor", None)
    while user is not None and not isinstance(user, WindowProcessor):
        user = getattr(user, "processor", None)
    return fields if user is None else fields | {"window": user.window}


def _group_state(texts: Texts, op: PlannedOperator) -> dict[str, Any]:
    assert op.node is not None
    keys = [texts.text(a) for a in each(op.node.groupingAttributes())]
    return {"keys": keys, **_columns(texts)}


def _columns(texts: Texts) -> dict[str, str]:
    """Return the texts of the columns that a function of the user's gets, if they are to be exact."""
    texts.inexact.add("columns")
    if not texts.exact:
        return {}
    below = texts.below(0)
    columns = list(each(below.plan.output()))
    times = [a for a in columns if a.metadata().contains(WATERMARK)]
    fields = {f"{COLUMN}{a.name()}": below.text_of(a) for a in columns}
    return fields | ({"event time": below.text_of(times[0])} if times else {})


_KINDS: Mapping[str, Callable[[Texts, PlannedOperator], dict[str, Any]]] = {
    "Aggregate": _aggregate,
    "Deduplicate": _deduplicate,
    "DeduplicateWithinWatermark": _deduplicate,
    "FlatMapGroupsInPandasWithState": _group_state,
    "Join": _join,
    "TransformWithStateInPySpark": _processor,
}
"""Functions that describe the state of an operator, by class of its plan node."""
