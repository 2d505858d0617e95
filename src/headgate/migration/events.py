"""Defines the events that an engine reports to a migration.

Events may be lost, late, doubled, or in another sequence. An answer names the order of its instruction,
so a migration recognises an old answer. A boundary repeats all orders in force. So a lost event only
costs time, as long as boundaries go on.
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
    """Requests another assignment. Raises `ConfigError`: the cause is severe, but `slot` is None."""

    target: Assignment
    hosts: tuple[str, ...]
    """Host of each slot, for the slots of the current assignment and of `target`."""
    cause: Cause = Cause.POLICY
    slot: int | None = None
    """The slot that turned severe; needed for ``Cause.SEVERE``."""
    strategy: str = ""
    """Text for `headgate.migration.registry.strategy`; empty: the default for the plan. A request
    that supersedes keeps the strategy of the migration under way."""

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
    """The orders of holds and routes in force; at least the newest order of each key group."""
    hosts: tuple[str, ...]
    """Host of each slot, from this boundary on."""


@dataclass(frozen=True)
class CaughtUp:
    """Reports that a prefetched group lags by at most the changes of one batch."""

    order: int
    group: int
    host: str


@dataclass(frozen=True)
class Forwarded:
    """Reports that the waiting records of a group are at its new slot."""

    order: int
    group: int


@dataclass(frozen=True)
class Installed:
    """Reports that a group has its newest state on `host`, and that this state is active."""

    order: int
    group: int
    host: str


@dataclass(frozen=True)
class Released:
    """Reports that the migration of a group has ended."""

    order: int
    group: int


@dataclass(frozen=True)
class Demanded:
    """Reports that a record waits for a group without state on the host; repeated while it waits."""

    group: int


@dataclass(frozen=True)
class Failed:
    """Reports that a prefetch or an install has failed; other instructions cannot fail."""

    order: int
    why: str


@dataclass(frozen=True)
class HostLost:
    """Reports that a host is lost with its memory; its slots run on other hosts.

    The engine itself recovers the key groups of these slots and the state that was active on the host.
    The next `Boundary` has the same hosts, so this event only saves time.
    """

    after: int
    """Number of the last boundary before the loss."""
    host: str
    hosts: tuple[str, ...]
    """Host of each slot, from now on."""


Answer = CaughtUp | Forwarded | Installed | Released
Event = Requested | Boundary | Answer | Demanded | Failed | HostLost
