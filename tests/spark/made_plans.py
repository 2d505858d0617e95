"""Nodes and expressions of Catalyst that are made up: as much of them as readers of plans ask for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

_numbers = itertools.count()


class Items(list[Any]):
    """A collection of Scala's."""

    def iterator(self) -> Any:
        left = list(self)
        return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0))

    def toSeq(self) -> Items:
        return self

    def apply(self, at: int) -> Any:
        return self[at]

    def isEmpty(self) -> bool:
        return not self

    def subsetOf(self, other: Items) -> bool:
        return all(any(one is more for more in other) for one in self)


class Id:
    """Identity of an expression."""

    def __init__(self) -> None:
        self._number = next(_numbers)

    def equals(self, other: object) -> bool:
        return self is other

    def toString(self) -> str:
        return f"#{self._number}"


class Made:
    """A node or an expression; `parts` are what its other methods return."""

    def __init__(self, kind: str, *children: Any, **parts: Any) -> None:
        self._kind, self._children, self._parts, self._id = kind, Items(children), parts, Id()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._parts:
            raise AttributeError(name)
        part = self._parts[name]
        return lambda *_: Items(part) if isinstance(part, list) else part

    def getClass(self) -> Any:
        return SimpleNamespace(getSimpleName=lambda: self._kind)

    def children(self) -> Items:
        return self._children

    def child(self) -> Any:
        return self._children[0]

    def withNewChildren(self, children: Any) -> Made:
        return Made(self._kind, *children, **self._parts)

    def exprId(self) -> Id:
        return self._id

    def equals(self, other: object) -> bool:
        return self is other

    def semanticEquals(self, other: object) -> bool:
        return self is other

    def containsPattern(self, pattern: str) -> Any:
        if "containsPattern" in self._parts:
            return self._parts["containsPattern"]
        below = any(child.containsPattern(pattern) for child in self._children)
        return below or pattern in self._parts.get("patterns", ())

    def references(self) -> Items:
        return Items(_attributes(self))

    def isStreaming(self) -> bool:
        streaming = any(child.isStreaming() for child in self._children)
        return bool(self._parts.get("streams", streaming))

    def sql(self) -> str:
        parts = ", ".join(child.sql() for child in self._children)
        return str(self._parts.get("said", f"{self._kind}({parts})"))

    toString = sql


def _attributes(expression: Made) -> Iterator[Made]:
    if expression._kind == "AttributeReference":
        yield expression
    for child in expression._children:
        yield from _attributes(child)


def attribute(name: str, kind: Any = None, *, watermark: bool = False, **parts: Any) -> Made:
    """Return a column: its name, its type, and whether it has the watermark."""
    metadata = SimpleNamespace(contains=lambda _: watermark, getLong=lambda _: 10_000)
    return Made(
        "AttributeReference",
        name=name, said=name, dataType=kind, metadata=metadata, **{"nullable": True, **parts},
    )  # fmt: skip


def source(*output: Made, kind: str = "StreamingRelationV2", **parts: Any) -> Made:
    """Return a leaf that reads a stream."""
    parts = {"streams": True, "output": list(output), "outputSet": list(output), **parts}
    return Made(kind, **parts)


def plain_seq(spark: Any, items: Any) -> Items:
    """Stand for `headgate.spark.jvm.gateway.seq`."""
    return Items(items)
