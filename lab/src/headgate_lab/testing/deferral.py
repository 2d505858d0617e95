"""Chooses the record that a slot serves next while some of its key groups are not ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

R = TypeVar("R")


def full(capacity: int, deferred: int) -> bool:
    """Return whether a slot has no room to defer another record, and so has to wait.

    An engine that serves record by record asks at each record of a group that is not ready; an engine
    that serves batches asks before each batch, so that its last batch may exceed the capacity.

    Parameters
    ----------
    capacity : int
        Most records that the slot may defer; 0: none, so that it waits for any group that is not ready.
    deferred : int    Number of deferred records.

    References
    ----------
    DRRS IV-A: a buffer of 200 records.
    """
    return deferred >= capacity


@dataclass(frozen=True)
class Entry(Generic[R]):
    """Holds a record or a watermark of a slot's input."""

    group: int | None
    """Key group of the record; None for a watermark, which concerns all groups."""

    record: R
    """Opaque here; must be plain data for `Deferral.to_dict`."""


@dataclass
class Deferral(Generic[R]):
    """Serves records of ready groups first; other records wait in a bounded buffer (DRRS's scheduling).

    The order within a key group never changes, and no record crosses a watermark: the slot stops at a
    watermark while a group is not ready, since re-routed records of that group may still come. An engine
    with watermarks per key group need not pass them here.

    References
    ----------
    DRRS III-B (intra-channel scheduling) and IV-A (200 records). Differs: one input per slot,
    since a batch has no channels; what does not fit stays in the durable backlog. On Spark all of
    it lies there, and `headgate.spark.move.migration_executor.MigrationExecutor` asks `full` alone.
    """

    capacity: int
    """Most records deferred; 0: while any group is not ready, nothing is served."""
    entries: deque[Entry[R]] = field(default_factory=deque)
    """The deferred, oldest first. Owner: this class."""

    def take(self, queue: deque[Entry[R]], unready: Set[int]) -> Entry[R] | None:
        """Return the next entry to serve, or None where the slot is suspended.

        Parameters
        ----------
        queue : deque of Entry
            The slot's input, oldest first; what is served or deferred is taken out.
        unready : set of int    Key groups of the slot that cannot be served now.
        """
        if unready and full(self.capacity, 0):
            return None
        for index, entry in enumerate(self.entries):
            if entry.group not in unready:
                del self.entries[index]
                return entry
        while queue:
            group = queue[0].group
            if group is None:
                return None if unready else queue.popleft()
            if group not in unready:
                return queue.popleft()
            if full(self.capacity, len(self.entries)):
                return None
            self.entries.append(queue.popleft())
        return None

    def withdraw(self, group: int) -> list[Entry[R]]:
        """Take out and return the deferred records of `group`, oldest first."""
        withdrawn = [entry for entry in self.entries if entry.group == group]
        self._set(entry for entry in self.entries if entry.group != group)
        return withdrawn

    def _set(self, entries: Iterable[Entry[R]]) -> None:
        self.entries = deque(entries)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the manifest."""
        return {"capacity": self.capacity, "entries": [[e.group, e.record] for e in self.entries]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Deferral[Any]:
        """Return the deferral that `to_dict` wrote."""
        return cls(
            data["capacity"], deque(Entry(group, record) for group, record in data["entries"])
        )
