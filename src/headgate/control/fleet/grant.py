"""Holds the grant of a fleet to a job: the most slots that the job's own policy may use per operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Grant:
    """Holds the most slots, or active replicas, that each operator of a job may hold."""

    slots: Mapping[str, int] = field(default_factory=dict)
    """By operator, each at least 1; for an operator without an entry only its job's limit counts."""
    by: str = ""
    reason: str = ""
    """`by`, `reason`: who made the grant, and why, for the journal."""

    def most(self, operator: str, otherwise: int) -> int:
        """Return the most slots of an operator; `otherwise` is the limit of its job."""
        return max(1, min(self.slots.get(operator, otherwise), otherwise))


UNLIMITED = Grant()
"""The grant of a job that is in no fleet."""
