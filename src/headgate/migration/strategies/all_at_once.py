"""Moves key groups all together, while slots serve the other groups (OTFS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategies.base import Base
from headgate.migration.strategy import Situation, together


@dataclass(frozen=True)
class AllAtOnce(Base):
    """Holds the moving groups until all of them are installed; slots serve the other groups meanwhile.

    References
    ----------
    DRRS II-B and figure 1b, "all-at-once migration".
    """

    name: ClassVar[str] = "all-at-once"

    @property
    def resume(self) -> bool:
        """Return False: every group waits for the last one."""
        return False

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Admit all sets together."""
        return together(phase, waiting, situation)
