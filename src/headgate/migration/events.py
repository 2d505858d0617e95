"""Defines the events that an engine reports to a migration.

Events may be lost, late, doubled and out of order. An answer names the order of its instruction, so that
a stale answer is told from a fresh one; a boundary repeats all orders in force. So a lost event costs
time only, provided that boundaries go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError


class Cause(StrEnum):
    """Names the origin of a request for a change."""

    POLICY = "policy"
    HAND = "hand"
    SEVERE = "severe"


@dataclass(frozen=True)
class Requested:
    """Requests another assignment. Raises `ConfigError`: a severe slot is not named."""

    target: Assignment
    hosts: tuple[str, ...]
    """By slot, for the slots of the current assignment and of `target`."""
    cause: Cause = Cause.POLICY
    slot: int | None = None
    """The slot that turned severe; needed for ``Cause.SEVERE``."""
    strategy: str = ""
    """As `headgate.migration.registry.strategy` reads it; empty: the default for the plan. A
    request that supersedes keeps the strategy of the one it replaces."""

    def __post_init__(self) -> None:
        if self.cause is Cause.SEVERE and self.slot is None:
            msg = "a request for a severe slot must name the slot."
            raise ConfigError(msg)


@dataclass(frozen=True)
class Boundary:
    """Reports that a boundary has passed."""

    number: int
    """Grows with each boundary."""
    in_force: frozenset[int]
    """The orders of holds and routes in force; of each key group at least the newest."""
    hosts: tuple[str, ...]
    """By slot, as of this boundary."""


@dataclass(frozen=True)
class CaughtUp:
    """Reports that a prefetched group lags by at most the changes of one batch."""

    order: int
    group: int
    host: str


@dataclass(frozen=True)
class Forwarded:
    """Reports that the records that waited for a group are at its new slot."""

    order: int
    group: int


@dataclass(frozen=True)
class Installed:
    """Reports that the state of a group is newest and active on `host`."""

    order: int
    group: int
    host: str


@dataclass(frozen=True)
class Released:
    """Reports that nothing is left of the migration of a group."""

    order: int
    group: int


@dataclass(frozen=True)
class Demanded:
    """Reports that a record waits for a group whose state is not there yet; repeated while it waits."""

    group: int


@dataclass(frozen=True)
class Failed:
    """Reports that a prefetch or an install could not be carried out; other instructions cannot fail."""

    order: int
    why: str


@dataclass(frozen=True)
class HostLost:
    """Reports that a host is gone with its memory; its slots are elsewhere.

    The engine itself recovers what those slots own and what was active there. The next `Boundary`
    says the same, so that this event only saves time.
    """

    after: int
    """Number of the last boundary before it."""
    host: str
    hosts: tuple[str, ...]
    """By slot, from now on."""


Answer = CaughtUp | Forwarded | Installed | Released
Event = Requested | Boundary | Answer | Demanded | Failed | HostLost
