"""Passes records of partitions on such that none runs ahead while others have a backlog.

A client brings what lies in a partition in large pieces, one partition after the other. An epoch that had
a minute of one and nothing of the others yet would move the watermark past their records, which would be
late. A micro-batch has all of a backlog, or by ``maxOffsetsPerTrigger`` of each partition its share.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

Partition = tuple[str, int]

_AWAY_S = 5.0
"""How long others wait for a partition whose records are known and do not come, in seconds: its broker
may be away. More holds the others up for longer; less moves the watermark past records that a busy
machine brings late. Chosen."""

_FAR_S, _NEAR_S = 1.0, 0.02
"""The same for one where the client found nothing more, and its end has grown since: where the backlog
is more than one piece, and where it is less. What is there may be a transaction that is open. Chosen."""

_ASKED_S = 0.01
"""How much of the time between two polls counts as waiting. Chosen: less than the shortest patience."""


class FetchedRecord(Protocol):
    """Has a place in a partition; a message of Kafka's client is one."""

    def topic(self) -> str:
        """Return its topic."""

    def partition(self) -> int:
        """Return the number of its partition."""

    def offset(self) -> int:
        """Return its offset."""


class EvenOrder:
    """Holds records until each partition that has a backlog can pass on its share.

    `most`: offsets of all partitions that are passed on at once. `clock`: in seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._held: dict[Partition, deque[FetchedRecord]] = {}
        self._silent: dict[Partition, int] = {}
        """Offsets at which nothing came of a partition in time; others do not wait for it there."""
        self._waited_s = self._asked_s = 0.0
        """How long was waited for the shares that are missing; when it was last asked for them."""

    @property
    def holds(self) -> bool:
        """Return whether there are records that were not passed on."""
        return any(self._held.values())

    def add(self, records: Iterable[FetchedRecord]) -> None:
        """Take records, in the order of each partition."""
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
        """Return the records to pass on now; none while the share of a partition is not there.

        `starts`, `ends`: the next offset to pass on, and the end of the partition as far as it is
        known. `no_more`: where the client found nothing more of a partition last; the end of a
        transaction and one that is open are no records.
        """
        # offsets before the first record that came hold none: deleted, compacted or given up
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
        # who was kept from asking, as a reader whose slots were stopped, has not waited meanwhile
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
        """Return the offset behind the last record that came, or `start` where none is held."""
        held = self._held.get(partition)
        return held[-1].offset() + 1 if held else start
