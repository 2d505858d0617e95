"""Implements a tuple buffer in shared memory: one file that unrelated processes of a host map.

A record is written once, by its source, and read by every reader; a reader writes nothing but its own
cursors. All data that several processes write is in the control structure (`layout`); it is changed
under one lock, in a copy that one store puts into force. So a process that is killed at any point leaves
the buffer as it was before its call or as it is after it.

This needs no other ordering of stores: records are written before, and read after, a system call that
takes or releases the lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.core.errors import ConfigError, ProtocolError
from headgate.tables.mapping import map_file
from headgate.tables.ports import I64, U8
from headgate_lab.tuple_buffer.file import find_file, make_file
from headgate_lab.tuple_buffer.kernels import NOBODY, take_ready
from headgate_lab.tuple_buffer.layout import (
    ACTIVE,
    EPOCH_SHIFT,
    RANK_SHIFT,
    REQUESTS,
    SPARE_SLOTS,
    BufferShape,
    BufferViews,
    Control,
)
from headgate_lab.tuple_buffer.lock import FileLock
from headgate_lab.tuple_buffer.port import (
    Entry,
    Kind,
    Reconfiguration,
    TupleBuffer,
    no_reader_left,
    not_a_source,
    not_sorted,
)

Columns = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Block:
    """Holds the records of one read: data records in order, or one control record.

    Parameters
    ----------
    times, sources : int64[n]
    columns : mapping of str to array[n]    The payload.
    watermark : int    Time of the last record passed, whatever its kind.
    control : Reconfiguration or None       Set if a control record came next; then n is 0.
    control_source : int       The source of the control record; -1 without one.
    """

    times: I64
    sources: I64
    columns: Columns
    watermark: int
    control: Reconfiguration | None = None
    control_source: int = NOBODY


@dataclass(frozen=True)
class _Seen:
    """Holds what one look at the buffer found; `SharedTupleBuffer._commit` makes it take effect."""

    generation: int
    before: I64
    after: I64
    seen: int
    block: Block


class SharedTupleBuffer(TupleBuffer):
    """Connects unrelated processes; made with `create`, found with `open`.

    An object may be used by several threads and survives a fork. Two callers may act as the same reader:
    each record then goes to one of them.

    Parameters
    ----------
    descriptor : int    Owned by this object.
    """

    def __init__(self, path: str, descriptor: int, shape: BufferShape) -> None:
        self.path = path
        self.shape = shape
        self._views = BufferViews(map_file(descriptor, shape.byte_count), shape)
        self._lock = FileLock(path, descriptor)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        shape: BufferShape,
        sources: Collection[int],
        readers: Collection[int],
    ) -> SharedTupleBuffer:
        """Make a buffer with these sources and readers connected.

        The file cannot be seen before it is complete: it gets its name at the end. It stays until
        `unlink`, or until its run directory of the arena is removed.

        Raises
        ------
        StateError     The file exists, there is no space, or the directory is open to others.
        ConfigError    A source or reader is out of the shape's range, or there is none.
        """
        for what, members, count in (
            ("source", sources, shape.sources_max),
            ("reader", readers, shape.readers_max),
        ):
            _check_range(what, members, count)
            if not members:
                msg = f"a tuple buffer needs a {what} to begin with; give one."
                raise ConfigError(msg)

        def fill(mapped: U8) -> None:
            views = BufferViews(mapped, shape)
            views.write_header(mapped)
            control = views.controls[0]
            control.rank[:] = NOBODY
            control.counters["next_generation"] = 1
            _connect_sources(control, sorted(sources))
            _connect_readers(control, readers)

        return cls(str(path), make_file(Path(path), shape.byte_count, fill), shape)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SharedTupleBuffer:
        """Return the buffer that another process has made.

        Raises
        ------
        StateError    There is none, or it belongs to another user or is open to others.
        """
        descriptor, shape = find_file(str(path))
        return cls(str(path), descriptor, shape)

    def close(self) -> None:
        """Unmap the file; the file stays, and this process's sources and readers stay connected."""
        self._lock.close()

    def unlink(self) -> None:
        """Remove the file's name; processes that have it open go on."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    # Sources.

    def add(self, entry: Entry, source: int) -> bool:
        """Add a record."""
        return self._add_records(*self._as_columns(entry), source) == 1

    def add_stretch(self, entry: Entry, source: int) -> bool:
        """Put the source's waiting reconfigurations, then the record."""
        return self._add_records(*self._as_columns(entry), source, announce=True) == 1

    def add_block(self, times: I64, columns: Columns, source: int, *, announce: bool = True) -> int:
        """Add as many of a block's first records as there is room for; return their number.

        Parameters
        ----------
        times : int64[n]    Never decreasing.
        columns : mapping of str to array[n]    All of the shape's.
        announce : bool     Whether waiting reconfigurations go before the first record.
        """
        if times.size and (times[1:] < times[:-1]).any():
            at = int(np.argmax(times[1:] < times[:-1]))
            raise ProtocolError(not_sorted(int(times[at + 1]), int(times[at]), source))
        missing = [name for name in self._views.columns if name not in columns]
        if missing or any(len(columns[name]) != times.size for name in self._views.columns):
            msg = f"a block of {times.size} records needs as many values in each of {self._names}."
            raise ProtocolError(msg)
        return self._add_records(times, columns, source, announce=announce) if times.size else 0

    def advance(self, time: int, source: int) -> bool:
        """Promise that the source adds nothing before `time` any more."""
        with self._lock:
            control = self._control
            latest = self._latest(control, source)
            if latest is not None and time <= latest:
                return True
            self._check(control, time, source)
            if self._room(control, source) < 1:
                return False
            with self._change() as changed:
                self._put(changed, Kind.DUMMY, time, source)
            return True

    # Readers.

    def get(self, reader: int) -> Entry | None:
        """Return the next record and move on."""
        block = self.get_block(reader, 1)
        return self._as_entry(block) if block is not None and _carries(block) else None

    def peek(self, reader: int) -> Entry | None:
        """Return what `get` would return, without moving on."""
        seen = self._look(reader, 1)
        return self._as_entry(seen.block) if seen is not None and _carries(seen.block) else None

    def get_block(self, reader: int, records_max: int) -> Block | None:
        """Return the next records, at most `records_max`, and move on; None if there is nothing.

        A block ends before a control record, which comes alone. A block without records means that the
        watermark has moved.
        """
        while True:
            seen = self._look(reader, records_max)
            if seen is None:
                return None
            committed = self._commit(reader, seen)
            if committed is not None:
                return seen.block if committed else None

    # Who is connected.

    def add_readers(self, new: Collection[int], by: int) -> bool:
        """Add readers that get what reader `by` gets next."""
        _check_range("reader", new, self.shape.readers_max)
        with self._lock:
            missing = [r for r in new if not self._control.generation[r]]
            if not self._is_reader(by) or not missing:
                return False
            with self._change() as control:
                _connect_readers(control, missing)
                control.cursor[missing] = control.cursor[by]
                control.seen[missing] = control.seen[by]
            return True

    def remove_readers(self, old: Collection[int], by: int) -> bool:
        """Remove readers."""
        _check_range("reader", old, self.shape.readers_max)
        with self._lock:
            present = [r for r in old if self._control.generation[r]]
            if not self._is_reader(by) or not present:
                return False
            if len(present) == np.count_nonzero(self._control.generation):
                raise ProtocolError(no_reader_left())
            with self._change() as control:
                control.generation[present] = 0
            return True

    def add_sources(self, new: Collection[int], by: int) -> bool:
        """Add sources that start at the latest time of source `by`."""
        _check_range("source", new, self.shape.sources_max)
        with self._lock:
            missing = sorted(s for s in new if self._control.rank[s] == NOBODY)
            if not self._is_source(by) or not missing:
                return False
            start = self._latest(self._control, by)
            with self._change() as control:
                _connect_sources(control, missing)
                control.announced[missing] = control.announced[by]
                for source in missing:
                    latest = self._latest(control, source)
                    if start is not None and (latest is None or latest < start):
                        self._put(control, Kind.DUMMY, start, source)
            return True

    def remove_sources(self, old: Collection[int], by: int) -> bool:
        """Remove sources; a flush record ends each stream."""
        _check_range("source", old, self.shape.sources_max)
        with self._lock:
            present = [s for s in old if self._control.rank[s] != NOBODY]
            if not self._is_source(by) or not present:
                return False
            with self._change() as control:
                for source in present:
                    latest = self._latest(control, source)
                    if latest is not None:
                        self._put(control, Kind.FLUSH, latest, source)
                    control.rank[source] = NOBODY
            return True

    def reconfigure(self, instances: Collection[int], slot_of: Sequence[int]) -> int | None:
        """Put a request into every source's control queue."""
        _check_range("reader", instances, self.shape.readers_max)
        if len(slot_of) != self.shape.key_groups:
            msg = (
                f"a mapping of {len(slot_of)} key groups does not fit a tuple buffer made for "
                f"{self.shape.key_groups}; give each group its instance."
            )
            raise ConfigError(msg)
        with self._lock:
            control = self._control
            number = int(control.counters["request_count"][0]) + 1
            # The place of an earlier one is free once every source has announced it and every
            # reader has got it.
            announced = control.announced[control.rank != NOBODY].min(initial=number)
            seen = control.seen[control.generation != 0].min(initial=number)
            if min(announced, seen) < number - REQUESTS:
                return None
            row = self._views.requests[number % REQUESTS : number % REQUESTS + 1]
            row["number"] = number
            row["instances"][0] = 0
            row["instances"][0, list(instances)] = 1
            row["slot_of"][0] = slot_of
            with self._change() as changed:
                changed.counters["request_count"] = number
            return number

    # Under the lock.

    @property
    def _control(self) -> Control:
        return self._views.controls[int(self._views.header[ACTIVE])]

    @property
    def _names(self) -> list[str]:
        return list(self._views.columns)

    @contextlib.contextmanager
    def _change(self) -> Iterator[Control]:
        """Yield a copy of the control structure; it is in force once the block ends without error."""
        active = int(self._views.header[ACTIVE])
        copy = self._views.controls[1 - active]
        copy.raw[:] = self._views.controls[active].raw
        yield copy
        self._views.header[ACTIVE] = 1 - active

    def _is_reader(self, reader: int) -> bool:
        return 0 <= reader < self.shape.readers_max and bool(self._control.generation[reader])

    def _is_source(self, source: int) -> bool:
        in_range = 0 <= source < self.shape.sources_max
        return in_range and bool(self._control.rank[source] != NOBODY)

    def _latest(self, control: Control, source: int) -> int | None:
        if not 0 <= source < self.shape.sources_max or control.head[source] == 0:
            return None
        return int(self._views.times[source, (control.head[source] - 1) % self.shape.slots])

    def _check(self, control: Control, time: int, source: int) -> None:
        if not self._is_source(source):
            raise ProtocolError(not_a_source(source))
        latest = self._latest(control, source)
        if latest is not None and time < latest:
            raise ProtocolError(not_sorted(time, latest, source))

    def _room(self, control: Control, source: int) -> int:
        taken = control.cursor[control.generation != 0, source].min()
        return int(self.shape.capacity - (control.head[source] - taken))

    def _put(self, control: Control, kind: Kind, time: int, source: int, epoch: int = 0) -> None:
        """Write a record without payload behind a source's last one."""
        if self._room(control, source) + SPARE_SLOTS < 1:
            msg = (
                f"source {source} of {self.path} joined and left {SPARE_SLOTS // 2} times while a "
                "reader stood still; remove that reader."
            )
            raise ProtocolError(msg)
        at = control.head[source] % self.shape.slots
        self._views.times[source, at] = time
        self._views.tags[source, at] = _tag(control, kind, source, epoch)
        control.head[source] += 1

    def _add_records(
        self, times: I64, columns: Columns, source: int, *, announce: bool = False
    ) -> int:
        with self._lock:
            control = self._control
            self._check(control, int(times[0]), source)
            last = int(control.counters["request_count"][0])
            waiting = range(int(control.announced[source]) + 1, last + 1) if announce else range(0)
            count = min(times.size, self._room(control, source) - len(waiting))
            if count < 1:
                return 0
            with self._change() as changed:
                for number in waiting:
                    self._put(changed, Kind.CONTROL, int(times[0]), source, number)
                    changed.announced[source] = number
                self._write(changed, times[:count], columns, source)
            return count

    def _write(self, control: Control, times: I64, columns: Columns, source: int) -> None:
        slots, count = self.shape.slots, times.size
        at = int(control.head[source] % slots)
        before_wrap = min(count, slots - at)
        tag = _tag(control, Kind.DATA, source, 0)
        views = self._views
        for start, stop, to in ((0, before_wrap, at), (before_wrap, count, 0)):
            place = slice(to, to + stop - start)
            views.times[source, place] = times[start:stop]
            views.tags[source, place] = tag
            for name, column in views.columns.items():
                column[source, place] = columns[name][start:stop]
        control.head[source] += count

    # Reading: a look without the lock, made real under it.

    def _look(self, reader: int, records_max: int) -> _Seen | None:
        views = self._views
        with self._lock:
            if not self._is_reader(reader):
                return None
            control = self._control
            generation, seen = int(control.generation[reader]), int(control.seen[reader])
            before, head = control.cursor[reader].copy(), control.head.copy()
            rank = control.rank.copy()
        after = before.copy()
        waiting = int((head - before).sum())
        index = np.empty(min(records_max, waiting), dtype=np.int64)
        if not index.size:
            return None
        announced = None
        while True:
            count, at, watermark = take_ready(views.times, views.tags, head, rank, after, index)
            if count or at == NOBODY:
                break
            # A control record comes next; of one so old that it is kept no more, everybody has got
            # another source's copy.
            number = int(views.tags.reshape(-1)[at]) >> EPOCH_SHIFT
            after[at // self.shape.slots] += 1
            announced = self._request(number)
            if announced is not None:
                watermark, seen = int(views.times.reshape(-1)[at]), max(seen, number)
                break
        if (after == before).all():
            return None
        chosen = index[:count]
        block = Block(
            views.times.reshape(-1)[chosen],
            chosen // self.shape.slots,
            {name: column.reshape(-1)[chosen] for name, column in views.columns.items()},
            int(watermark),
            announced,
            NOBODY if announced is None else at // self.shape.slots,
        )
        return _Seen(generation, before, after, seen, block)

    def _commit(self, reader: int, seen: _Seen) -> bool | None:
        """Move the reader on; None if another caller was that reader meanwhile, False if it left."""
        with self._lock:
            control = self._control
            if control.generation[reader] != seen.generation:
                return False
            if (control.cursor[reader] != seen.before).any():
                return None
            with self._change() as changed:
                changed.cursor[reader] = seen.after
                changed.seen[reader] = seen.seen
            return True

    def _request(self, number: int) -> Reconfiguration | None:
        """Return a reconfiguration; None if it is so old that every reader has already got a copy."""
        row = self._views.requests[number % REQUESTS]
        if int(row["number"]) != number:
            return None
        instances = frozenset(int(i) for i in np.flatnonzero(row["instances"]))
        return Reconfiguration(number, instances, tuple(int(s) for s in row["slot_of"]))

    def _as_columns(self, entry: Entry) -> tuple[I64, Columns]:
        if len(entry.values) != len(self._names):
            msg = f"a record of {len(entry.values)} values does not fit the columns {self._names}."
            raise ProtocolError(msg)
        values = zip(self.shape.columns, entry.values, strict=True)
        columns = {name: np.array([value], dtype=kind) for (name, kind), value in values}
        return np.array([entry.time], dtype=np.int64), columns

    def _as_entry(self, block: Block) -> Entry:
        if block.control is not None:
            return Entry(block.watermark, None, block.control_source, block.control)
        values = tuple(block.columns[name][0].item() for name in self._names)
        return Entry(int(block.times[0]), values, int(block.sources[0]))


def _carries(block: Block) -> bool:
    return block.times.size > 0 or block.control is not None


def _tag(control: Control, kind: Kind, source: int, epoch: int) -> int:
    return epoch << EPOCH_SHIFT | int(control.rank[source]) << RANK_SHIFT | kind


def _connect_sources(control: Control, sources: Sequence[int]) -> None:
    for source in sources:
        control.rank[source] = control.counters["next_rank"][0]
        control.counters["next_rank"] += 1


def _connect_readers(control: Control, readers: Collection[int]) -> None:
    for reader in readers:
        control.generation[reader] = control.counters["next_generation"][0]
        control.counters["next_generation"] += 1


def _check_range(what: str, numbers: Collection[int], count: int) -> None:
    for number in numbers:
        if not 0 <= number < count:
            msg = f"{what} {number} does not fit this tuple buffer; use 0 to {count - 1}."
            raise ConfigError(msg)
