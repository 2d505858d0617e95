"""Defines the port of a strategy: the sets that move, their phases, and the sets that may go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.migration.plan import Plan, Subscale
from headgate.migration.progress import Phase, SubscaleProgress

UNBOUNDED = 2**31 - 1
"""Records a slot may defer without a strategy's limit: the backlog is durable, so memory is no limit.
DRRS defers at most 200, in memory (IV-A)."""

ALL_PHASES = (Phase.HOLD, Phase.ROUTE, Phase.FORWARD, Phase.INSTALL, Phase.RELEASE)
"""Phases of a move between hosts without prefetch."""


@dataclass(frozen=True)
class Situation:
    """Holds the state of a migration that a strategy sees when it admits subscales to a phase."""

    subscales: tuple[SubscaleProgress, ...]
    """The subscales that are not done; a strategy must not change them."""
    reached: Mapping[int, Phase]
    """By number of subscale: its phase, or the phase that it waits to enter."""
    held: tuple[int, ...]
    """Number of key groups of each slot, without groups of running subscales."""
    hosts: tuple[str, ...]
    """Host of each slot."""
    demanded: frozenset[int]
    """Key groups that a record waits for."""


class Strategy(Protocol):
    """Decides how a migration is carried out; deterministic, without state of its own.

    `registry.strategy` reads ``str(strategy)`` back.
    """

    @property
    def deferred_max(self) -> int:
        """See `Route`."""

    @property
    def resume(self) -> bool:
        """See `Install`."""

    @property
    def awaits_prefetch(self) -> bool:
        """Return whether a group is routed only after the new host has caught up."""

    @property
    def supersedable(self) -> bool:
        """Return whether another request may replace a migration under way."""

    def refusal(self, plan: Plan) -> str | None:
        """Return why `plan` cannot be carried out this way, or None."""

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return the sets that move independently, the first set first.

        `moves`: key group -> source and destination. `stay`: key group -> slot, for groups that do
        not move; most strategies ignore them.
        """

    def path(self, *, across: bool) -> Sequence[Phase]:
        """Return the phases of a subscale that moves between hosts (`across`), or within a host."""

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Return the subscales of `waiting` that enter `phase` now; they wait only for this call.

        The migration calls this method again after every change.
        """


def together(
    phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
) -> Sequence[SubscaleProgress]:
    """Admit all subscales once the last one is ready to enter `phase`, or past it; before, none."""
    behind = any(situation.reached[p.number] < phase for p in situation.subscales)
    return () if behind else waiting
