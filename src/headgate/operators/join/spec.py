"""Describes a join of two streams, free of any engine.

Two records match if their keys are equal and all comparisons hold. An engine splits its join condition
into these two parts. It evaluates conditions on one side below the join, and passes the result as the
record's value `MAY_MATCH`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from headgate.operators.spec import Leaf, OperatorSpec, OutputMode, TimeKey

LEFT, RIGHT = 0, 1


class JoinKind(IntEnum):
    """Names the type of a join, as in Spark."""

    INNER = 0
    LEFT_OUTER = 1
    RIGHT_OUTER = 2
    FULL_OUTER = 3
    LEFT_SEMI = 4

    @property
    def padded(self) -> tuple[int, ...]:
        """Outer sides: their unmatched records are emitted, with nulls, when they expire."""
        return {
            JoinKind.LEFT_OUTER: (LEFT,),
            JoinKind.RIGHT_OUTER: (RIGHT,),
            JoinKind.FULL_OUTER: (LEFT, RIGHT),
        }.get(self, ())


@dataclass(frozen=True)
class Comparison:
    """Holds ``left < right`` or another comparison of two leaves."""

    left: int
    right: int
    """`left`, `right`: positions of the leaves within their side; both leaves are integers, or both
    are floats."""
    op: str
    """``<``, ``<=``, ``>`` or ``>=``; NaN is the largest, as in Spark."""


@dataclass(frozen=True)
class JoinSpec(OperatorSpec):
    """Describes a join of two streams."""

    keys: tuple[Leaf, ...]
    """Empty without an equality condition: every slot then sees every record, and the slot that owns the
    record's key group stores it ([STRETCH] operator 3, ScaleJoin)."""
    sides: tuple[tuple[Leaf, ...], tuple[Leaf, ...]]
    """Leaves of a left and of a right record in state; emitted leaves come first."""
    put_out: tuple[int, int]
    """Number of emitted leaves of the left and of the right side."""
    kind: JoinKind
    comparisons: tuple[Comparison, ...]
    time: TimeKey | None
    """Event time that decides whether a record is late, as a `TimeKey` of size 0."""
    holds_us: int | None = 0
    """Least event time of later output, microseconds relative to the watermark. None if the records of
    a side never expire."""
    mode: OutputMode = OutputMode.APPEND

    @property
    def shared(self) -> bool:
        """Return whether every slot sees every record."""
        return not self.keys

    def to_json(self) -> dict[str, Any]:
        """Return the part of the spec that a checkpoint's state depends on."""

        def kinds(leaves: tuple[Leaf, ...]) -> list[list[int]]:
            return [[int(x.kind), x.scale] for x in leaves]

        return {
            "keys": kinds(self.keys),
            "sides": [kinds(leaves) for leaves in self.sides],
            "kind": self.kind.name,
            "comparisons": [[c.left, c.op, c.right] for c in self.comparisons],
        }
