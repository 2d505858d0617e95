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

_FAR_S, _NEAR_S = 1.0, 0.02
"""How long others wait for a partition from which nothing comes, in seconds: where the backlog is more
than one piece, and where it is less. Its last offsets may hold no record, as the end of a transaction.
Chosen."""


_ASKED_S = 0.01
"""How much of the time between two polls counts as waiting. Chosen: less than the shorter patience."""


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
        self, starts: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> list[FetchedRecord]:
        """Return the records to pass on now; none while the share of a partition is not there.

        `starts`, `ends`: the next offset to pass on, and the end of the partition as far as it is
        known.
        """
        # offsets before the first record that came hold none: deleted, compacted or given up
        nexts = {p: held[0].offset() if (held := self._held.get(p)) else starts[p] for p in starts}
        behind = {p: max(ends[p] - at, 0) for p, at in nexts.items()}
        for partition, held in self._held.items():
            if held:
                least = held[-1].offset() + 1 - nexts[partition]
                behind[partition] = max(behind[partition], least)
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
            if self._waited_s < (_FAR_S if total > self._most else _NEAR_S):
                return []
            self._silent |= {p: starts[p] for p in missing if not self._held.get(p)}
        self._waited_s = 0.0
        found = []
        for partition, held in self._held.items():
            while held and held[0].offset() < until[partition]:
                found.append(held.popleft())
        return found

    def _reaches(self, partition: Partition, until: int) -> bool:
        held = self._held.get(partition)
        return held is not None and len(held) > 0 and held[-1].offset() + 1 >= until
