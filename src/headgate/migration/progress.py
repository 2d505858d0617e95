"""Tracks the progress of each subscale of a migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headgate.migration.plan import Subscale


class Phase(IntEnum):
    """Names the phase of a subscale; the order is always this one, and a strategy may skip phases."""

    PENDING = 0
    HOLD = 1
    PREFETCH = 2
    ROUTE = 3
    FORWARD = 4
    INSTALL = 5
    RELEASE = 6
    DONE = 7


@dataclass
class SubscaleProgress:
    """Tracks one subscale under way."""

    number: int
    """Names the subscale within its migration."""
    groups: tuple[int, ...]
    """Ascending. A change of target may take groups out, see `Migration`."""
    source: int
    destination: int
    phase: Phase = Phase.PENDING
    order: int | None = None
    """Number of the instruction without all answers; None if all are there, or if it failed."""
    sent: int = 0
    """The boundary after which that instruction was last given."""
    answered: set[int] = field(default_factory=set)
    """Groups for which the instruction of this phase was answered."""
    failures: int = 0
    """How often an instruction of this subscale failed."""
    across: bool = False
    """Whether state has to move between hosts; once true it stays."""

    @property
    def subscale(self) -> Subscale:
        """Return the groups that move, with their source and destination."""
        return Subscale(self.groups, self.source, self.destination)

    @property
    def complete(self) -> bool:
        """Return whether the phase is complete, so that the next may be entered."""
        return self.phase is Phase.PENDING or self.answered.issuperset(self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; see `from_dict`."""
        return {
            "number": self.number,
            "groups": list(self.groups),
            "source": self.source,
            "destination": self.destination,
            "phase": self.phase.name.lower(),
            "order": self.order,
            "sent": self.sent,
            "answered": sorted(self.answered),
            "failures": self.failures,
            "across": self.across,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SubscaleProgress:
        """Return the progress that `to_dict` wrote."""
        fields = dict(data)
        fields["groups"] = tuple(fields["groups"])
        fields["phase"] = Phase[fields["phase"].upper()]
        fields["answered"] = set(fields["answered"])
        return cls(**fields)
