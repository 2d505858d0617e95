"""Implements the methods that most strategies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from headgate.migration.plan import Plan, Subscale, pairs
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategy import ALL_PHASES, UNBOUNDED, Situation


@dataclass(frozen=True)
class Base:
    """Moves one set of key groups per pair of slots, each set without waiting for others."""

    name: ClassVar[str]

    @property
    def deferred_max(self) -> int:
        """Return no bound; DRRS gives its rivals the same unbounded buffer as itself (V-A)."""
        return UNBOUNDED

    @property
    def resume(self) -> bool:
        """Return True: a group is served as soon as it is installed."""
        return True

    @property
    def awaits_prefetch(self) -> bool:
        """Return False: there is no prefetch."""
        return False

    @property
    def supersedable(self) -> bool:
        """Return False: a second request waits for the end of the first."""
        return False

    def refusal(self, plan: Plan) -> str | None:
        """Return None: every plan is accepted."""
        return None

    def divide(
        self, moves: Mapping[int, tuple[int, int]], stay: Mapping[int, int]
    ) -> Sequence[Subscale]:
        """Return one set per pair of slots."""
        return [Subscale(groups, *pair) for pair, groups in pairs(moves).items()]

    def path(self, *, across: bool) -> Sequence[Phase]:
        """Return all phases but prefetch, also for moves within a host, where the phases cost little."""
        return ALL_PHASES

    def admit(
        self, phase: Phase, waiting: Sequence[SubscaleProgress], situation: Situation
    ) -> Sequence[SubscaleProgress]:
        """Admit all waiting sets."""
        return waiting

    def __str__(self) -> str:
        """Return ``name(parameter=value, ...)`` with the parameters that are not the default."""
        parameters = [
            f"{field.name}={str(value).lower()}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        ]
        return f"{self.name}({', '.join(parameters)})" if parameters else self.name
