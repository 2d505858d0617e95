"""Defines the port of a strategy: the sets that move, their phases, and the sets that may go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.migration.plan import Plan, Subscale
from headgate.migration.progress import Phase, SubscaleProgress

UNBOUNDED = 2**31 - 1
"""Records a slot may defer unless a strategy says less: waiting records are durable, so memory sets no
bound. DRRS defers at most 200, in memory (IV-A)."""

ALL_PHASES = (Phase.HOLD, Phase.ROUTE, Phase.FORWARD, Phase.INSTALL, Phase.RELEASE)
"""A move between hosts without prefetch."""


@dataclass(frozen=True)
class Situation:
    """Holds the state of a migration that a strategy sees when it admits subscales to a phase."""

    subscales: tuple[SubscaleProgress, ...]
    """Those not done; not to be changed."""
    reached: Mapping[int, Phase]
    """By number of subscale: the phase it is in, or the one it waits to enter."""
    held: tuple[int, ...]
    """Key groups per slot; those of running subscales count for neither end."""
    hosts: tuple[str, ...]
    """By slot."""
    demanded: frozenset[int]
    """Key groups that a record waits for."""


class Strategy(Protocol):
    """Decides how a migration is carried out; deterministic, without state of its own.

    ``str(strategy)`` is what `registry.strategy` reads.
    """

    @property
    def deferred_max(self) -> int:
        """See `Route`."""

    @property
    def resume(self) -> bool:
        """See `Install`."""

    @property
    def awaits_prefetch(self) -> bool:
        """Return whether a group is routed only after it caught up."""

    @property
    def supersedable(self) -> bool:
        """Return whether another request may replace a migration under way."""

    def refusal(self, plan: Plan) -> str | None:
        """Return why `plan` cannot be carried out this way, or None."""

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return the sets that move on their own, in order.

        `moves`: key group -> source and destination. `stay`: key group -> slot, for those that do
        not move; most strategies leave them alone.
        """

    def path(self, *, across: bool) -> Sequence[Phase]:
        """Return the phases of a subscale between hosts, or of one within a host."""

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Return the subscales among `waiting` that enter `phase` now; they all wait for nothing else.

        Asked again whenever something changed.
        """


def together(
    phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
) -> Sequence[SubscaleProgress]:
    """Admit all or none: when the last subscale is ready to enter `phase`, or past it."""
    behind = any(situation.reached[p.number] < phase for p in situation.subscales)
    return () if behind else waiting
