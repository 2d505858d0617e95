"""Moves one key group after the other (Megaphone)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate.migration.plan import Subscale
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategies.base import Base
from headgate.migration.strategy import Situation


@dataclass(frozen=True)
class Fluid(Base):
    """Moves groups one by one, ascending; a slot serves each group again as soon as it is installed.

    References
    ----------
    DRRS II-B, figure 1c and V-A: Megaphone with one group per time-stamp, strictly serial; the input of
    that group is blocked.
    """

    name: ClassVar[str] = "fluid"

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return one set per group, ascending."""
        return [Subscale((group,), *moves[group]) for group in sorted(moves)]

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Start one group when none is running; a started group goes on."""
        started = [p for p in waiting if p.phase is not Phase.PENDING]
        if any(p.phase is not Phase.PENDING for p in situation.subscales):
            return started
        return waiting[:1]
