"""Describes a join of two streams, free of any engine.

Two records meet if their keys are equal and every comparison of theirs holds. An engine splits its
condition into these two; what looks at one side only it works out below the join, and says of each
record whether it may match at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from headgate.operators.spec import Leaf, OperatorSpec, OutputMode, TimeKey

LEFT, RIGHT = 0, 1


class JoinKind(IntEnum):
    """Names the records that come out without a partner, or alone."""

    INNER = 0
    LEFT_OUTER = 1
    RIGHT_OUTER = 2
    FULL_OUTER = 3
    LEFT_SEMI = 4

    @property
    def padded(self) -> tuple[int, ...]:
        """Sides whose records come out, with nulls, when they can find no partner any more."""
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
    """`left`, `right`: positions of the leaves among those of their side; integers or floats, both
    the same."""
    op: str
    """``<``, ``<=``, ``>`` or ``>=``; NaN is the largest, as in Spark."""


@dataclass(frozen=True)
class JoinSpec(OperatorSpec):
    """Describes a join of two streams."""

    keys: tuple[Leaf, ...]
    """Empty for a join without an equality: then every slot sees every record, and the slot of its
    key group stores it ([STRETCH] operator 3, ScaleJoin)."""
    sides: tuple[tuple[Leaf, ...], tuple[Leaf, ...]]
    """What is kept of a left and of a right record; what comes out first."""
    put_out: tuple[int, int]
    """How many leaves of either side come out."""
    kind: JoinKind
    comparisons: tuple[Comparison, ...]
    time: TimeKey | None
    """Of size 0: the event time by which a record is late."""
    holds_us: int | None = 0
    """When the watermark is W, nothing older than W + `holds_us` comes out any more; None where a
    side is kept for ever."""
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
