"""Orders records of several partitions so that no partition runs ahead while others have unread records.

A client fetches a partition's records in large pieces, one partition after the other. An epoch with a
minute of one partition and no record of the others would move the watermark past the others' records, and
they would be late. A micro-batch reads all, or of each partition its share of ``maxOffsetsPerTrigger``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

Partition = tuple[str, int]

_AWAY_S = 5.0
"""Longest wait for a partition whose known records do not come: its broker may be down. A larger value
delays the other partitions longer; a smaller value moves the watermark past records that a busy machine
brings late. Chosen, not tuned."""

_FAR_S, _NEAR_S = 1.0, 0.02
"""The same for a partition that the client has read to its end, and whose end has grown since: if more
than `most` offsets are unread, and otherwise. They may be an open transaction. Chosen, not tuned."""

_ASKED_S = 0.01
"""Most of the time between two polls that counts as waiting. Chosen: less than the shortest wait."""


class FetchedRecord(Protocol):
    """Has a position in a partition; a message of Kafka's client is such a record."""

    def topic(self) -> str:
        """Return the record's topic."""

    def partition(self) -> int:
        """Return the number of the record's partition."""

    def offset(self) -> int:
        """Return the record's offset."""


class EvenOrder:
    """Holds records until each partition with unread records can pass on its share.

    `most`: most offsets of all partitions that are passed on at once. `clock`: in seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._held: dict[Partition, deque[FetchedRecord]] = {}
        self._silent: dict[Partition, int] = {}
        """By partition: the offset whose record did not come in time; other partitions stop waiting."""
        self._waited_s = self._asked_s = 0.0
        """Time waited for the missing shares; time of the last call of `take`."""

    @property
    def holds(self) -> bool:
        """Return whether records are held."""
        return any(self._held.values())

    def add(self, records: Iterable[FetchedRecord]) -> None:
        """Add records, in the order of each partition."""
        for record in records:
            partition = (record.topic(), record.partition())
            self._held.setdefault(partition, deque()).append(record)
            self._silent.pop(partition, None)

    def take(
        self,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        no_more: Mapping[Partition, int],
    ) -> list[FetchedRecord]:
        """Return the records to pass on now; none while a partition's share has not come.

        `starts`, `ends`: by partition, the next offset to pass on and the known end. `no_more`: the
        offset at which the client last found no more records; a transaction's end, and records of an
        open transaction, have offsets before the end.
        """
        # offsets before the first held record have no record: deleted, compacted or aborted
        nexts = {p: held[0].offset() if (held := self._held.get(p)) else starts[p] for p in starts}
        fetched = {p: self._fetched(p, at) for p, at in starts.items()}
        behind = {
            p: max(fetched[p] if no_more.get(p, -1) >= ends[p] else ends[p], fetched[p]) - at
            for p, at in nexts.items()
        }
        total = sum(behind.values())
        share = min(self._most / total, 1.0) if total else 1.0
        until = {p: nexts[p] + -int(-count * share // 1) for p, count in behind.items()}
        missing = [
            p
            for p in until
            if behind[p] and not self._reaches(p, until[p]) and self._silent.get(p) != starts[p]
        ]
        now_s = self._clock()
        # a reader that did not call for long, such as one whose slots were stopped, has not waited
        self._waited_s += min(now_s - self._asked_s, _ASKED_S)
        self._asked_s = now_s
        if missing:
            patience_s = _FAR_S if total > self._most else _NEAR_S
            if any(no_more.get(p, -1) < fetched[p] for p in missing):
                patience_s = _AWAY_S
            if self._waited_s < patience_s:
                return []
            self._silent |= {p: starts[p] for p in missing if not self._held.get(p)}
        self._waited_s = 0.0
        found = []
        for partition, held in self._held.items():
            while held and held[0].offset() < until[partition]:
                found.append(held.popleft())
        return found

    def _reaches(self, partition: Partition, until: int) -> bool:
        return bool(self._held.get(partition)) and self._fetched(partition, 0) >= until

    def _fetched(self, partition: Partition, start: int) -> int:
        """Return the offset after the last held record; `start` if none is held."""
        held = self._held.get(partition)
        return held[-1].offset() + 1 if held else start
