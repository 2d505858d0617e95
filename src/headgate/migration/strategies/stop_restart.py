"""Stops, rewrites and starts, as mainstream engines do."""

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
    DRRS I, stop-checkpoint-restart. Differs: the time to start again is the engine's business; an
    engine that really stops does so when all are held.
    """

    name: ClassVar[str] = "stop-restart"

    @property
    def deferred_max(self) -> int:
        """A stopped slot serves nothing."""
        return 0

    @property
    def resume(self) -> bool:
        """All start together."""
        return False

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return one set per pair of slots; a slot is a pair with itself."""
        everything = {**moves, **{group: (slot, slot) for group, slot in stay.items()}}
        return [Subscale(groups, *pair) for pair, groups in pairs(everything).items()]

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Admit all together."""
        return together(phase, waiting, situation)
