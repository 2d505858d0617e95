"""Tracks the progress of each subscale of a migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headgate.migration.plan import Subscale


class Phase(IntEnum):
    """Names the phases of a subscale in their order; a strategy may skip phases."""

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
    """Number of the subscale within its migration."""
    groups: tuple[int, ...]
    """Ascending. A new target of the migration may take groups out; see `Migration`."""
    source: int
    destination: int
    phase: Phase = Phase.PENDING
    order: int | None = None
    """Order of the last instruction; None before the first one, after a failure, and when done."""
    sent: int = 0
    """The boundary after which the migration last gave that instruction."""
    answered: set[int] = field(default_factory=set)
    """Groups for which the engine has answered the instruction of this phase."""
    failures: int = 0
    """Number of instructions of this subscale that failed."""
    across: bool = False
    """Whether state must move between hosts; once True it stays True."""

    @property
    def subscale(self) -> Subscale:
        """Return the groups that move, with their source and destination."""
        return Subscale(self.groups, self.source, self.destination)

    @property
    def complete(self) -> bool:
        """Return whether the phase is complete, so that the subscale may enter the next one."""
        return self.phase is Phase.PENDING or self.answered.issuperset(self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; see `from_dict`."""
        return vars(self) | {
            "groups": list(self.groups),
            "phase": self.phase.name.lower(),
            "answered": sorted(self.answered),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SubscaleProgress:
        """Return the progress that `to_dict` wrote."""
        fields = dict(data)
        fields["groups"] = tuple(fields["groups"])
        fields["phase"] = Phase[fields["phase"].upper()]
        fields["answered"] = set(fields["answered"])
        return cls(**fields)
