"""Describes a requested assignment of an operator, from the request until it is in force or dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headgate.core.assignment import Assignment
from headgate.migration.protocol import assignment_of, plain


class RequestState(StrEnum):
    """Names the stages of a requested assignment.

    ``REQUESTED`` comes into force at the next batch boundary. ``WAITING`` needs executors for its slots
    first. A migration carries ``MOVING`` out. ``DROPPED``: the migration failed. A request that is
    given up before it moves has no state: `Changes` forgets it.
    """

    REQUESTED = "requested"
    WAITING = "waiting"
    MOVING = "moving"
    IN_FORCE = "in force"
    DROPPED = "dropped"


@dataclass(frozen=True)
class AssignmentRequest:
    """Holds a requested assignment of one operator, with its state."""

    assignment: Assignment
    """The requested assignment. Once in force, and in results of `Migrations.begin`: the assignment
    in force in the batch that begins, which a migration may replace by further ones."""
    by: str
    reason: str
    """`by`, `reason`: source and reason of the request, for the journal."""
    survivors: tuple[int | None, ...]
    """As `Change.survivors`."""
    decided: bool = False
    """True if the control loop decided the change; the loop is notified when it is in force."""
    state: RequestState = RequestState.REQUESTED
    before: Assignment | None = None
    """The assignment in force before this one or its migration; None while requested or waiting. In
    results of `Migrations.begin`: the assignment in force before the batch that begins."""
    numbers: tuple[int, ...] = ()
    """By slot of the requested assignment: the slot's number until the migration ends."""
    moved_bytes: int = 0
    """Bytes of state that the migration moved."""

    @property
    def target(self) -> Assignment:
        """Return the requested assignment with the slot numbers of the migration."""
        if not self.numbers:
            return self.assignment  # no key group moves: a split begins or ends
        slot_of = tuple(self.numbers[slot] for slot in self.assignment.slot_of)
        return Assignment(slot_of, max(self.numbers) + 1, self.assignment.epoch)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a moving request in the manifest."""
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
        """Return the moving request of a manifest's entry."""
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
