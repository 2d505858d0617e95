"""Defines the lines of the journal about hosts: state that moves, executors that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headgate.journal.numbers import Count, Groups, Instant, Number, Whole


@dataclass(frozen=True)
class MigrationStep:
    """A migration between hosts went one step on."""

    KIND: ClassVar[str] = "migration"

    step: Whole
    """The batch that begins."""
    operator: str
    """The operator."""
    what: str
    """Of the whole: requested, superseded, refused, finished or failed. Of a subscale: started, held,
    caught up, routed, installed or released."""
    subscale: Whole | None = None
    """Number of the subscale within the migration; null for the whole."""
    groups: tuple[Whole, ...] = ()
    """Key groups concerned."""
    source: Whole | None = None
    """Slot they leave; null for the whole."""
    destination: Whole | None = None
    """Slot they go to; null for the whole."""
    bytes_moved: Count = 0
    """State brought to the new host for these groups so far, in bytes."""
    strategy: str = ""
    """How it is carried out; stated by a request."""
    why: str = ""
    """Why it was refused or failed."""
    suspended_s: Number = 0.0
    """At the end of the whole: how long slots had records waiting and could serve none of them, since
    their key groups were held or on their way; whole batches, all slots together, in s."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class SlotLost:
    """A slot's executor or Python worker was lost; what it did not finish is done again."""

    KIND: ClassVar[str] = "slot-lost"

    step: Whole
    """The batch under way, or the one whose tasks showed it."""
    operator: str
    """The operator."""
    slot: Whole
    """Its slot, by number."""
    epoch: Whole = -1
    """Of the newest assignment, on its way or in force: the replacement's; -1 where not known."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class ExecutorChange:
    """Executors were asked for since slots exceed the cores, or given back since slots left them."""

    KIND: ClassVar[str] = "executors"

    act: str
    """``asked`` or ``gave back``."""
    slots: Groups
    """Slots that the queries of the application have or want, together."""
    cores: Whole
    """Cores that tasks can use from now on."""
    executors_before: Whole
    """Executors there were."""
    executors_wanted: Whole
    """Executors there shall be."""
    executors_after: Whole
    """Executors there are."""
    took_ms: Number
    """Time until they were there and their workers ready, or until it was given up, in ms."""
    why: str = ""
    """What the cluster did not give, or which executors were given back."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
