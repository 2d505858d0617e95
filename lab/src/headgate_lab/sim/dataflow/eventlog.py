"""Records the events of a run, for tests and measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Holds one event.

    Attributes
    ----------
    slot : str
        Name of the slot, such as ``count/3``; empty for the coordinator.
    detail : dict
        Further fields, depending on the kind.
    """

    at_s: float
    kind: str
    slot: str
    detail: dict[str, Any]


class EventLog:
    """Holds the events of a run in their sequence.

    Parameters
    ----------
    every_record : bool
        Whether each served record has an event.
    """

    def __init__(self, *, every_record: bool = False) -> None:
        self.events: list[Event] = []
        self.every_record = every_record

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def add(self, at_s: float, kind: str, slot: str = "", **detail: object) -> None:
        """Append an event."""
        self.events.append(Event(at_s, kind, slot, detail))

    def of(self, *kinds: str, slot: str | None = None) -> list[Event]:
        """Return the events of some kinds, of one slot or of all slots."""
        return [e for e in self.events if e.kind in kinds and slot in {None, e.slot}]
