"""Moves independent subscales, prefetched while the old slot serves (DRRS)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from headgate.core.errors import ConfigError
from headgate.migration import plan
from headgate.migration.plan import PER_HOST_MAX, SUBSCALE_GROUPS_MIN
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategies.base import Base
from headgate.migration.strategy import ALL_PHASES, UNBOUNDED, Situation, together

_ROUTE_ONLY = (Phase.ROUTE,)
_PREFETCHED = (Phase.PREFETCH, Phase.ROUTE, Phase.FORWARD, Phase.INSTALL, Phase.RELEASE)


@dataclass(frozen=True)
class Subscales(Base):
    """Implements DRRS with its three mechanisms, each of which can be switched off.

    Raises `ConfigError`: a number is below 1, or `early_route` goes without `decoupling`.

    References
    ----------
    DRRS III and IV-A. Differs: signals, alignment and channels belong to the engine; the limit of
    running subscales does not follow the load (III-C). A subscale counts for the limit until its state
    is on the new host, since then it only waits for boundaries. Moves within a host need no limit.
    """

    name: ClassVar[str] = "subscale"

    decoupling: bool = True
    """On: the old slot serves a group until the new host has caught up. Off: groups are held from
    the start of their subscale until they are installed."""
    scheduling: bool = True
    """On: a slot serves its ready groups first, and defers at most `deferred` records. Off: a slot
    with a group that is not ready serves nothing."""
    division: bool = True
    """On: independent sets, scheduled by fewest held groups. Off: all sets together."""
    early_route: bool = False
    """On: a group is routed at once, before the new host has caught up; needs `decoupling`."""
    share: bool = True
    """On: moves within a host are only routed, as in `shared`. Off: they take all phases, to measure
    the mechanisms on one host."""
    deferred: int = UNBOUNDED
    """Records a slot may defer before it stops; >= 1. DRRS has 200, the default is no bound."""
    per_host: int = PER_HOST_MAX
    """Most subscales of a host whose state is brought to or from it at once; >= 1."""
    groups_min: int = SUBSCALE_GROUPS_MIN
    """Least groups of a subscale; >= 1."""

    def __post_init__(self) -> None:
        for name in ("deferred", "per_host", "groups_min"):
            value = getattr(self, name)
            if value < 1:
                msg = f"subscale: {name}={value} is out of range; use 1 or more."
                raise ConfigError(msg)
        if self.early_route and not self.decoupling:
            msg = "subscale: early_route=true needs decoupling=true; without it all is held anyway."
            raise ConfigError(msg)

    @property
    def deferred_max(self) -> int:
        """Return `deferred`, or 0 without record scheduling."""
        return self.deferred if self.scheduling else 0

    @property
    def awaits_prefetch(self) -> bool:
        """Return whether the route (DRRS: the confirm barrier) waits for the catch-up."""
        return self.decoupling and not self.early_route

    @property
    def supersedable(self) -> bool:
        """Return True: a later request replaces the migration under way (DRRS IV-B1)."""
        return True

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[plan.Subscale]:
        """Return independent sets, or without `division` one set per pair of slots."""
        return plan.divide(moves, self.groups_min) if self.division else super().divide(moves, stay)

    def path(self, *, across: bool) -> Sequence[Phase]:
        """Return the phases: with prefetch, with hold, or only the route."""
        if self.share and not across:
            return _ROUTE_ONLY
        return _PREFETCHED if self.decoupling else ALL_PHASES

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Start subscales, fewest held groups first, up to the limit per host; started ones go on."""
        if not self.division:
            return together(phase, waiting, situation)
        hosts, held = situation.hosts, list(situation.held)
        bringing = []
        for progress in situation.subscales:
            if progress.phase is Phase.PENDING:
                continue
            if situation.reached[progress.number] <= self._brought_in:
                bringing.append(progress.subscale)
            else:
                held[progress.destination] += len(progress.groups)
        free = [p for p in waiting if p.phase is not Phase.PENDING or self._stays(p, hosts)]
        fresh = [p for p in waiting if p not in free]
        chosen = plan.schedule([p.subscale for p in fresh], bringing, held, hosts, self.per_host)
        return [*free, *(fresh[index] for index in chosen)]

    @property
    def _brought_in(self) -> Phase:
        """Return the last phase in which state comes to the new host."""
        return Phase.PREFETCH if self.awaits_prefetch else Phase.INSTALL

    def _stays(self, progress: SubscaleProgress, hosts: Sequence[str]) -> bool:
        """Return whether the groups of `progress` are only routed within a host."""
        return self.share and hosts[progress.source] == hosts[progress.destination]
