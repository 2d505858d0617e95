"""Stops all key groups, moves some of them, and starts again, as mainstream engines do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate.migration.plan import Subscale, pairs
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategies.base import Base
from headgate.migration.strategy import Situation, together


@dataclass(frozen=True)
class StopRestart(Base):
    """Holds every key group, also those that stay, until the last one is installed.

    References
    ----------
    DRRS I, stop-checkpoint-restart. Differs: the engine decides how long a start takes; an engine that
    really stops does so when all groups are held.
    """

    name: ClassVar[str] = "stop-restart"

    @property
    def deferred_max(self) -> int:
        """Return 0: a stopped slot serves no record."""
        return 0

    @property
    def resume(self) -> bool:
        """Return False: all groups start together."""
        return False

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return one set per pair of slots; groups that stay have their slot as both."""
        everything = {**moves, **{group: (slot, slot) for group, slot in stay.items()}}
        return [Subscale(groups, *pair) for pair, groups in pairs(everything).items()]

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Admit all sets together."""
        return together(phase, waiting, situation)
