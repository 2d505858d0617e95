"""Draws a query's plan as a tree with the place where each part runs; for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.read.wording import wording

_SILENT = {"SubqueryAlias", "View", "ResolvedHint", "LocalLimit"}
"""Nodes that a user did not write."""

_SOURCES = {"StreamingRelation", "StreamingRelationV2"}


def tree(plan: Jvm, becomes_operator: Callable[[Jvm], bool]) -> list[str]:
    """Return a line for each part of an analysed plan, with a node's inputs below the node.

    `plan`: plan node. `becomes_operator`: returns whether slots run a node.
    """
    return [
        f"{where:<10}{'  ' * depth}{name}"
        for where, depth, name in _parts(plan, 0, becomes_operator)
    ]


def _parts(
    plan: Jvm, depth: int, becomes_operator: Callable[[Jvm], bool]
) -> Iterator[tuple[str, int, str]]:
    """Yield place, depth and name of each part."""
    if not plan.isStreaming():
        yield "table", depth, "a table or batch DataFrame"
        return
    name = class_name(plan)
    if name in _SILENT or _of_window(plan):
        for child in each(plan.children()):
            yield from _parts(child, depth, becomes_operator)
        return
    yield _where(plan, becomes_operator), depth, _said(plan)
    streams = [child for child in each(plan.children()) if child.isStreaming()]
    others = [child for child in each(plan.children()) if not child.isStreaming()]
    for child in streams:
        yield from _parts(child, depth + 1, becomes_operator)
    if name == "Join":
        for child in others:
            yield from _parts(child, depth + 1, becomes_operator)


def _of_window(plan: Jvm) -> bool:
    """Return whether Spark made a node for ``window(...)``, or to drop null times before a window."""
    name = class_name(plan)
    if name in ("Project", "Expand"):
        return "precisetimestampconversion" in plan.toString().partition("\n")[0]
    if name != "Filter":
        return False
    (child,) = each(plan.children())
    return _of_window(child) or plan.condition().toString().startswith("isnotnull(")


def _where(plan: Jvm, becomes_operator: Callable[[Jvm], bool]) -> str:
    if class_name(plan) in _SOURCES:
        return "source"
    if becomes_operator(plan):
        return "slots"
    return "Catalyst" if _below(plan, becomes_operator) else "stream"


def _below(plan: Jvm, becomes_operator: Callable[[Jvm], bool]) -> bool:
    """Return whether an operator stands below `plan`, which then processes the slots' output."""
    return any(
        becomes_operator(child) or _below(child, becomes_operator)
        for child in each(plan.children())
    )


def _said(plan: Jvm) -> str:
    if class_name(plan) in _SOURCES:
        return "readStream"
    return wording(plan).name
