"""Holds the output of a policy: a new assignment per operator, and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.core.assignment import Assignment


class ChangeKind(StrEnum):
    """Names the kind of a change: StreamSwitch's three, and `SPLIT` and `RESCALE` of ours."""

    SCALE_OUT = "scale-out"
    SCALE_IN = "scale-in"
    BALANCE = "balance"
    SPLIT = "split"
    RESCALE = "rescale"


@dataclass(frozen=True)
class Change:
    """Holds a new assignment for one operator."""

    kind: ChangeKind
    assignment: Assignment
    """The new assignment; its epoch is the operator's next epoch."""
    survivors: tuple[int | None, ...]
    """One entry per slot of the new assignment: the number of the same slot in the old assignment, or
    None for a new slot. A scale-in of a slot in the middle gives its number to the last slot."""
    source: int | None = None
    destination: int | None = None
    """`source`, `destination`: slots of a unit strategy, by their numbers in the old assignment. A
    destination that is a new slot has the number after the largest."""


@dataclass(frozen=True)
class Decision:
    """Holds the changes that a policy wants now; empty where the policy wants none."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    """Name of the operator -> its change."""
    reason: str = ""
    """One sentence, with its numbers, that an engineer on call understands."""
    rule: str = ""
    """Short name of the rule that led to the decision: ``severe -> scale-out``, ``moderate``."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures that led to the decision, by name."""

    def __bool__(self) -> bool:
        return bool(self.changes)


NOTHING = Decision()
"""The decision of a policy that wants no change."""
