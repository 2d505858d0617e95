"""Defines the lines of the journal about hosts: state that moves, executors that come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headgate.journal.numbers import Count, Groups, Instant, Number, Whole


@dataclass(frozen=True)
class MigrationStep:
    """A migration between hosts made progress."""

    KIND: ClassVar[str] = "migration"

    step: Whole
    """Batch that begins."""
    operator: str
    """The operator."""
    what: str
    """Progress of the whole: requested, superseded, refused, finished or failed. Progress of a subscale:
    started, held, caught up, routed, installed or released."""
    subscale: Whole | None = None
    """Number of the subscale within the migration; null for the whole."""
    groups: tuple[Whole, ...] = ()
    """Key groups concerned."""
    source: Whole | None = None
    """Slot that the key groups leave; null for the whole."""
    destination: Whole | None = None
    """Slot to which the key groups go; null for the whole."""
    bytes_moved: Count = 0
    """State brought to the new host for these groups so far, in bytes."""
    strategy: str = ""
    """Strategy of the migration; stated when it is requested."""
    why: str = ""
    """Reason of a refusal or of a failure."""
    suspended_s: Number = 0.0
    """At the end of the whole: time in which slots could serve none of their waiting records, because the
    key groups were on hold or moving; sum of whole batches over all slots, in s."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class SlotLost:
    """A slot's executor or Python worker was lost; its unfinished work is repeated."""

    KIND: ClassVar[str] = "slot-lost"

    step: Whole
    """The running batch, or the batch whose tasks showed the loss."""
    operator: str
    """The operator."""
    slot: Whole
    """Number of the slot."""
    epoch: Whole = -1
    """Epoch of the newest assignment, requested or in force, which has the replacement; -1 if unknown."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""


@dataclass(frozen=True)
class ExecutorChange:
    """Executors were requested for slots above the cores, or given back after slots had left them."""

    KIND: ClassVar[str] = "executors"

    act: str
    """``asked`` or ``gave back``."""
    slots: Groups
    """Slots that all queries of the application have or request."""
    cores: Whole
    """Cores that tasks can use from now on."""
    executors_before: Whole
    """Executors before the change."""
    executors_wanted: Whole
    """Executors that the change aims at."""
    executors_after: Whole
    """Executors after the change."""
    took_ms: Number
    """Time until the executors and their workers were ready, or until headgate gave up, in ms."""
    why: str = ""
    """What the cluster did not provide, or which executors were given back."""
    at_ms: Instant = 0
    """Wall clock, ms since 1970; the writer fills it in when 0."""
