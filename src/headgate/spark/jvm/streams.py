"""Finds the streams that a plan reads."""

from __future__ import annotations

from headgate.spark.jvm.gateway import Jvm, class_name, each


def streams_of(plan: Jvm) -> list[Jvm]:
    """Return the streaming leaves of a plan, from left to right, as Spark numbers its sources.

    Equal leaves may become one source of Spark or several; see `source_counts`.
    """
    return [leaf for leaf in each(plan.collectLeaves()) if leaf.isStreaming()]


def source_counts(plan: Jvm) -> range:
    """Return the range of how many sources Spark may make of a plan: equal leaves may share a source."""
    leaves = streams_of(plan)
    equal = sum(any(leaf.equals(other) for other in leaves[:n]) for n, leaf in enumerate(leaves))
    return range(len(leaves) - equal, len(leaves) + 1)


def option_of(leaf: Jvm, name: str) -> str | None:
    """Return an option of a source, ignoring case in `name`; None if the option is not set."""
    if class_name(leaf) == "StreamingRelationV2":
        value = leaf.extraOptions().get(name)
        return None if value is None else str(value)
    wanted = name.lower()
    return next((v for k, v in options_of(leaf).items() if k.lower() == wanted), None)


def options_of(leaf: Jvm) -> dict[str, str]:
    """Return all options of a source."""
    if class_name(leaf) == "StreamingRelationV2":
        entries = leaf.extraOptions().asCaseSensitiveMap().entrySet()
        return {str(entry.getKey()): str(entry.getValue()) for entry in entries}
    if class_name(leaf) != "StreamingRelation":
        return {}
    return {str(pair._1()): str(pair._2()) for pair in each(leaf.dataSource().options())}


_NAMING = ("path", "subscribe", "subscribePattern", "assign")
"""Options that say what a source reads."""


def name_of(leaf: Jvm) -> str:
    """Return the name of a source and of what it reads, such as ``kafka clicks``."""
    if class_name(leaf) not in ("StreamingRelation", "StreamingRelationV2"):
        return class_name(leaf)
    told = [option_of(leaf, name) for name in _NAMING]
    return " ".join([str(leaf.sourceName()).partition("[")[0], *filter(None, told)])


def united(plan: Jvm) -> list[Jvm]:
    """Return the children of a union; the plan itself if it is no union."""
    return list(each(plan.children())) if class_name(plan) == "Union" else [plan]


def keeps_rows(plan: Jvm, leaf: Jvm) -> bool:
    """Return whether a plan only projects `leaf`, so that it puts out as many rows as the leaf."""
    while not plan.equals(leaf):
        children = list(each(plan.children()))
        if len(children) != 1 or class_name(plan) not in ("Project", "SubqueryAlias"):
            return False
        (plan,) = children
    return True
