"""Defines the lines of the journal about hosts: state that moves, executors that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class MigrationStep:
    """A migration between hosts went one step on."""

    KIND: ClassVar[str] = "migration"

    step: int
    """The batch that begins."""

    operator: str
    """The operator."""

    what: str
    """Of the whole: requested, superseded, refused, finished or failed. Of a subscale: started, held,
    caught up, routed, installed or released."""

    subscale: int | None = None
    """Number of the subscale within the migration; null for the whole."""

    groups: tuple[int, ...] = ()
    """Key groups concerned."""

    source: int | None = None
    """Slot they leave; null for the whole."""

    destination: int | None = None
    """Slot they go to; null for the whole."""

    bytes_moved: int = 0
    """State brought to the new host for these groups so far, in bytes."""

    strategy: str = ""
    """How it is carried out; stated by a request."""

    why: str = ""
    """Why it was refused or failed."""

    suspended_s: float = 0.0
    """At the end of the whole: how long slots had records waiting and could serve none of them, since
    their key groups were held or on their way; whole batches, all slots together, in s."""

    at_ms: int = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class SlotLost:
    """A slot's executor or Python worker was lost; what it did not finish is done again."""

    KIND: ClassVar[str] = "slot-lost"

    step: int
    """The batch under way, or the one whose tasks showed it."""

    operator: str
    """The operator."""

    slot: int
    """Its slot, by number."""

    epoch: int = -1
    """Of the newest assignment, on its way or in force: the replacement's; -1 where not known."""

    at_ms: int = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class ExecutorChange:
    """Executors were asked for since slots exceed the cores, or given back since slots left them."""

    KIND: ClassVar[str] = "executors"

    act: str
    """``asked`` or ``gave back``."""

    slots: int
    """Slots that the queries of the application have or want, together."""

    cores: int
    """Cores that tasks can use from now on."""

    executors_before: int
    """Executors there were."""

    executors_wanted: int
    """Executors there shall be."""

    executors_after: int
    """Executors there are."""

    took_ms: float
    """Time until they were there and their workers ready, or until it was given up, in ms."""

    why: str = ""
    """What the cluster did not give, or which executors were given back."""

    at_ms: int = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
