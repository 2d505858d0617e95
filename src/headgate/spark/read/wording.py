"""Names nodes of a plan in PySpark's words, and their substitutes, for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headgate.spark.jvm.gateway import Jvm, class_name, each

WAY_OUT = 'or .fallback("spark") to run the whole query as plain Spark'
"""Remedy that every refused query has."""

_IN_BATCH = "do it in foreachBatch"


@dataclass(frozen=True)
class Wording:
    """Names a node as the user wrote it."""

    name: str
    """In PySpark's words."""
    instead: str = "drop it"
    """The remedy: the most similar code that runs."""


_WITH_STATE = "write it as transformWithState or transformWithStateInPandas"

_WORDINGS = {
    "FlatMapGroupsInPandasWithState": Wording("applyInPandasWithState", _WITH_STATE),
    "FlatMapGroupsWithState": Wording("flatMapGroupsWithState", _WITH_STATE),
    "FlatMapGroupsInPandas": Wording("groupBy(...).applyInPandas", _WITH_STATE),
    "FlatMapGroupsInArrow": Wording("groupBy(...).applyInArrow", _WITH_STATE),
    "FlatMapCoGroupsInPandas": Wording("cogroup(...).applyInPandas", _WITH_STATE),
    "CollectMetrics": Wording("observe()", "count in foreachBatch, or read query.lastProgress"),
    "Generate": Wording("explode() or another generator", _IN_BATCH),
    "Repartition": Wording("repartition() or coalesce()", _IN_BATCH),
    "RepartitionByExpression": Wording("repartition()", _IN_BATCH),
    "RebalancePartitions": Wording("a REBALANCE hint", "drop it"),
    "GlobalLimit": Wording("limit()", "limit in foreachBatch"),
    "LocalLimit": Wording("limit()", "limit in foreachBatch"),
    "Offset": Wording("offset()", _IN_BATCH),
    "Tail": Wording("tail()", _IN_BATCH),
    "Sort": Wording("orderBy()", "sort in foreachBatch"),
    "Sample": Wording("sample()", "filter by a hash of the key"),
    "Window": Wording("a function over(...) a window of rows", _IN_BATCH),
    "Distinct": Wording("SQL's SELECT DISTINCT", "write it as dropDuplicates()"),
    "Deduplicate": Wording("dropDuplicates()", "write it as two queries"),
    "DeduplicateWithinWatermark": Wording(
        "dropDuplicatesWithinWatermark()", "write it as two queries"
    ),
    "Aggregate": Wording("groupBy(...).agg(...)", "write it as two queries"),
    "TransformWithStateInPySpark": Wording("transformWithState", "write it as two queries"),
    "TransformWithState": Wording("Scala's transformWithState", "write it in Python"),
    "Join": Wording("a join", "join in foreachBatch, or below the stateful operator"),
    "Intersect": Wording("intersect()", "write it as a join"),
    "Except": Wording("subtract() or exceptAll()", "write it as a join"),
    "Expand": Wording("rollup(), cube() or grouping sets", "write one query per grouping"),
    "MapInPandas": Wording("mapInPandas()", "call it in foreachBatch"),
    "PythonMapInArrow": Wording("mapInArrow()", "call it in foreachBatch"),
    "MapInArrow": Wording("mapInArrow()", "call it in foreachBatch"),
    "BatchEvalPython": Wording("a Python UDF", "call it in foreachBatch"),
    "ArrowEvalPython": Wording("a pandas UDF", "call it in foreachBatch"),
    "EventTimeWatermark": Wording("withWatermark()", "put it below the stateful operator"),
    "Union": Wording("union()", "write it as two queries"),
    "Project": Wording("select() or withColumn()"),
    "Filter": Wording("where()"),
}


def _repartition(plan: Jvm) -> str:
    return f"{'repartition' if plan.shuffle() else 'coalesce'}({plan.numPartitions()})"


def _join(plan: Jvm) -> str:
    streams = sum(bool(child.isStreaming()) for child in each(plan.children()))
    return "a join of two streams" if streams > 1 else "a join with a static table"


_SHOWN: Mapping[str, Callable[[Jvm], str]] = {"Repartition": _repartition, "Join": _join}
"""Functions that choose a name by the node's fields, for classes of several PySpark methods."""


def wording(plan: Jvm) -> Wording:
    """Return the user's word for a node of a plan; Spark's text if there is no such word."""
    name = class_name(plan)
    known = _WORDINGS.get(name)
    if known is None:
        text = re.sub(r"#[0-9]+L?", "", plan.simpleString(60).replace("~", ""))
        return Wording(f"this part of the plan ({text[:80]})")
    shown = _SHOWN.get(name)
    return known if shown is None else Wording(shown(plan), known.instead)
