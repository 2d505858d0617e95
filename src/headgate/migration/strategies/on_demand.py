"""Moves a key group when its first record comes to the new slot (Meces)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate.migration.plan import Subscale
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategies.base import Base
from headgate.migration.strategy import Situation


@dataclass(frozen=True)
class OnDemand(Base):
    """Routes all groups at once; installs groups that records wait for, then the others one by one.

    References
    ----------
    DRRS II-B and V-A, Meces: one synchronisation, then fetch on demand, no buffer of records.
    Differs: a group has one owner, so that it does not go back and forth; key groups are not
    divided further. The laboratory's simulator does both, for the paper's figures.
    """

    name: ClassVar[str] = "on-demand"

    @property
    def deferred_max(self) -> int:
        """Return 0: DRRS gives Meces no buffer, which would make its fetches more erratic (V-A)."""
        return 0

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return one set per group, ascending."""
        return [Subscale((group,), *moves[group]) for group in sorted(moves)]

    def path(self, *, across: bool) -> Sequence[Phase]:
        """Return the phases from `ROUTE` on: the strategy skips `HOLD` and `PREFETCH`."""
        return (Phase.ROUTE, Phase.FORWARD, Phase.INSTALL, Phase.RELEASE)

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Install demanded groups; without any, one other group while no group is being installed."""
        if phase is not Phase.INSTALL:
            return waiting
        demanded = [p for p in waiting if not situation.demanded.isdisjoint(p.groups)]
        if demanded:
            return demanded
        installing = any(p.phase is Phase.INSTALL and not p.complete for p in situation.subscales)
        return () if installing else waiting[:1]
