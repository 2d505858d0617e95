"""Records the events of a run, for tests and measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes
    ----------
    slot : str
        Where, such as ``count/3``; empty for the coordinator.
    detail : dict
        What it was about.
    """

    at_s: float
    kind: str
    slot: str
    detail: dict[str, Any]


class EventLog:
    """Events in the order in which they happened.

    Parameters
    ----------
    every_record : bool
        Whether records that are served and re-routed are told one by one; the signals always are.
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
        """Return the events of some kinds, of one slot or of all."""
        return [e for e in self.events if e.kind in kinds and slot in {None, e.slot}]
