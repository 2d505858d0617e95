"""Holds the output of a policy: a new assignment per operator, and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.core.assignment import Assignment


class ChangeKind(StrEnum):
    """Names the kind of a change: StreamSwitch's unit treatments (the first three), and ours."""

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
    """The next epoch."""
    survivors: tuple[int | None, ...]
    """One entry per slot of the new assignment: the slot of the old one whose identity it keeps,
    None for a new slot. A scale-in in the middle renumbers the last slot."""
    source: int | None = None
    destination: int | None = None
    """`source`, `destination`: slots of a unit strategy, by their old numbers (a new destination
    has the next number)."""


@dataclass(frozen=True)
class Decision:
    """Holds the changes that a policy wants now; empty where the policy wants none."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    """By operator."""
    reason: str = ""
    """One sentence that an operator on call understands, with its numbers."""
    rule: str = ""
    """The rule that fired, a short name: ``severe -> scale-out``, ``moderate``."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures behind it."""

    def __bool__(self) -> bool:
        return bool(self.changes)


NOTHING = Decision()
"""The decision of a policy with nothing to say."""
