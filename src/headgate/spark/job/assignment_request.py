"""Follows one change of an operator's assignment from the request until it is in force, or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headgate.core.assignment import Assignment
from headgate.migration.protocol import assignment_of, plain


class RequestState(StrEnum):
    """Names how far a requested assignment is.

    ``REQUESTED`` comes into force at the next batch boundary. ``WAITING`` does so as soon as there are
    executors for its slots. A migration carries ``MOVING`` out. ``DROPPED`` ended otherwise: its
    migration failed. A request that is given up before it moves is forgotten, and has no state.
    """

    REQUESTED = "requested"
    WAITING = "waiting"
    MOVING = "moving"
    IN_FORCE = "in force"
    DROPPED = "dropped"


@dataclass(frozen=True)
class AssignmentRequest:
    """Holds a requested assignment of one operator, and how far it is."""

    assignment: Assignment
    """What is requested; of a change that moves or is in force, what holds with the batch that
    begins."""
    by: str
    reason: str
    """`by`, `reason`: source and reason of the request, for the journal."""
    survivors: tuple[int | None, ...]
    """As `Change.survivors`."""
    decided: bool = False
    """True if the control loop decided the change; the loop is notified when it is in force."""
    state: RequestState = RequestState.REQUESTED
    before: Assignment | None = None
    """What held when it came into force or began to move; None until then. While it moves, and only
    of what `Migrations.begin` returns, what held before the batch that begins."""
    numbers: tuple[int, ...] = ()
    """By slot of the requested assignment: the number that it has until its migration ends."""
    moved_bytes: int = 0
    """Of state, by a migration."""

    @property
    def target(self) -> Assignment:
        """Return the requested assignment, with slots as they are numbered while key groups move."""
        if not self.numbers:
            return self.assignment  # no key group moves: a split, or its end
        slot_of = tuple(self.numbers[slot] for slot in self.assignment.slot_of)
        return Assignment(slot_of, max(self.numbers) + 1, self.assignment.epoch)

    def to_dict(self) -> dict[str, Any]:
        """Return what the manifest carries of a change that moves."""
        assert self.before is not None
        return {
            "by": self.by,
            "reason": self.reason,
            "decided": self.decided,
            "wanted": plain(self.assignment),
            "before": plain(self.before),
            "numbers": list(self.numbers),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AssignmentRequest:
        """Return the change that a manifest carries."""
        return cls(
            assignment_of(data["wanted"]),
            data["by"],
            data["reason"],
            (),
            data["decided"],
            RequestState.MOVING,
            assignment_of(data["before"]),
            tuple(data["numbers"]),
        )
