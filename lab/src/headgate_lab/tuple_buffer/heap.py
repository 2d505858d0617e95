"""Implements a tuple buffer in this process's heap, the reference for the shared one."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headgate.core.errors import ProtocolError
from headgate_lab.tuple_buffer.port import (
    Entry,
    Kind,
    Reconfiguration,
    TupleBuffer,
    no_reader_left,
    not_a_source,
    not_sorted,
)


@dataclass(frozen=True, slots=True)
class _Node:
    kind: Kind
    rank: int
    entry: Entry


class HeapTupleBuffer(TupleBuffer):
    """Keeps records of any payload in lists, under one lock.

    Parameters
    ----------
    sources, readers : collection of int    Those connected at the start.
    capacity : int                          Records per source by which the slowest reader may lag.

    Attributes
    ----------
    _streams : dict of source -> list of _Node    Everything a source ever added; never shortened.
    _ranks : dict of source -> int                Connected sources; ranks are never used again.
    _cursors : dict of reader -> dict of source -> int    The next position of each stream.
    _announced : dict of source -> int            Reconfigurations a source has put into its stream.
    """

    def __init__(
        self, sources: Collection[int], readers: Collection[int], capacity: int = 1024
    ) -> None:
        self._lock = threading.RLock()
        self._capacity = capacity
        self._streams: dict[int, list[_Node]] = {s: [] for s in sources}
        self._ranks = {source: rank for rank, source in enumerate(sorted(sources))}
        self._next_rank = len(self._ranks)
        self._cursors: dict[int, dict[int, int]] = {r: {} for r in readers}
        self._requests: list[Reconfiguration] = []
        self._announced = dict.fromkeys(sources, 0)

    def add(self, entry: Entry, source: int) -> bool:
        """Add a record."""
        with self._lock:
            self._check(entry.time, source)
            return self._append([(Kind.DATA, entry)], source)

    def add_stretch(self, entry: Entry, source: int) -> bool:
        """Put the source's waiting reconfigurations, then the record."""
        with self._lock:
            self._check(entry.time, source)
            waiting = self._requests[self._announced[source] :]
            nodes = [(Kind.CONTROL, Entry(entry.time, None, control=r)) for r in waiting]
            if not self._append([*nodes, (Kind.DATA, entry)], source):
                return False
            self._announced[source] = len(self._requests)
            return True

    def advance(self, time: int, source: int) -> bool:
        """Promise that the source adds nothing before `time` any more."""
        with self._lock:
            latest = self._latest(source)
            if latest is not None and time <= latest:
                return True
            self._check(time, source)
            return self._append([(Kind.DUMMY, Entry(time, None))], source)

    def get(self, reader: int) -> Entry | None:
        """Return the next record and move on, past dummy and flush records too."""
        with self._lock:
            entry, cursors = self._find(reader)
            if reader in self._cursors:
                self._cursors[reader] = cursors
            return entry

    def peek(self, reader: int) -> Entry | None:
        """Return what `get` would return, without moving on."""
        with self._lock:
            return self._find(reader)[0]

    def add_readers(self, new: Collection[int], by: int) -> bool:
        """Add readers that get what reader `by` gets next."""
        with self._lock:
            missing = [r for r in new if r not in self._cursors]
            if by not in self._cursors or not missing:
                return False
            for reader in missing:
                self._cursors[reader] = dict(self._cursors[by])
            return True

    def remove_readers(self, old: Collection[int], by: int) -> bool:
        """Remove readers."""
        with self._lock:
            present = [r for r in old if r in self._cursors]
            if by not in self._cursors or not present:
                return False
            if len(present) == len(self._cursors):
                raise ProtocolError(no_reader_left())
            for reader in present:
                del self._cursors[reader]
            return True

    def add_sources(self, new: Collection[int], by: int) -> bool:
        """Add sources that start at the latest time of source `by`."""
        with self._lock:
            missing = [s for s in new if s not in self._ranks]
            if by not in self._ranks or not missing:
                return False
            start = self._latest(by)
            for source in sorted(missing):
                self._streams.setdefault(source, [])
                self._ranks[source] = self._next_rank
                self._announced[source] = self._announced[by]
                self._next_rank += 1
                latest = self._latest(source)
                if start is not None and (latest is None or latest < start):
                    self._put(Kind.DUMMY, Entry(start, None), source)
            return True

    def remove_sources(self, old: Collection[int], by: int) -> bool:
        """Remove sources; a flush record ends each stream."""
        with self._lock:
            present = [s for s in old if s in self._ranks]
            if by not in self._ranks or not present:
                return False
            for source in present:
                latest = self._latest(source)
                if latest is not None:
                    self._put(Kind.FLUSH, Entry(latest, None), source)
                del self._ranks[source]
            return True

    def reconfigure(self, instances: Collection[int], slot_of: Sequence[int]) -> int:
        """Put a request into every source's control queue."""
        with self._lock:
            number = len(self._requests) + 1
            self._requests.append(Reconfiguration(number, frozenset(instances), tuple(slot_of)))
            return number

    def _check(self, time: int, source: int) -> None:
        if source not in self._ranks:
            raise ProtocolError(not_a_source(source))
        latest = self._latest(source)
        if latest is not None and time < latest:
            raise ProtocolError(not_sorted(time, latest, source))

    def _latest(self, source: int) -> int | None:
        stream = self._streams.get(source)
        return stream[-1].entry.time if stream else None

    def _append(self, nodes: list[tuple[Kind, Entry]], source: int) -> bool:
        taken = min(cursor.get(source, 0) for cursor in self._cursors.values())
        if len(self._streams[source]) - taken + len(nodes) > self._capacity:
            return False
        for kind, entry in nodes:
            self._put(kind, entry, source)
        return True

    def _put(self, kind: Kind, entry: Entry, source: int) -> None:
        named = Entry(entry.time, entry.values, source, entry.control)
        self._streams[source].append(_Node(kind, self._ranks[source], named))

    def _find(self, reader: int) -> tuple[Entry | None, dict[int, int]]:
        """Return the reader's next data or control record, and its cursors behind that record."""
        cursors = dict(self._cursors.get(reader, {}))
        while reader in self._cursors and (node := self._next(cursors)) is not None:
            source = node.entry.source
            cursors[source] = cursors.get(source, 0) + 1
            if node.kind in (Kind.DATA, Kind.CONTROL):
                return node.entry, cursors
        return None, cursors

    def _next(self, cursors: dict[int, int]) -> _Node | None:
        """Return the next node at `cursors`, of any kind; None unless its place is final."""
        heads: list[tuple[int, int, _Node | None]] = []
        for source, stream in self._streams.items():
            position = cursors.get(source, 0)
            if position < len(stream):
                node = stream[position]
                heads.append((node.entry.time, node.rank, node))
            elif source in self._ranks:
                if not stream:
                    return None
                heads.append((stream[-1].entry.time, self._ranks[source], None))
        return min(heads, key=lambda head: head[:2])[2] if heads else None
