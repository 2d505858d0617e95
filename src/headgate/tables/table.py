"""Implements one key group's table over one flat buffer, for any owner of the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from headgate.core.errors import StateError
from headgate.tables import kernels
from headgate.tables.header import AT_PREVIOUS, CLEAN, DIRTY, Geometry, Header, is_token
from headgate.tables.kernels import (
    LIVE,
    STAMP,
    STRING_BYTES,
    STRINGS,
    UNDO_COUNT,
    UNDO_VALID,
    USED,
)
from headgate.tables.ports import EMPTY_TOKEN, I64, U8, Section, TableLayout

_SMALL_ROWS = 4096
"""Capacity, in rows, below which a table grows fourfold instead of twofold. A larger value makes fewer
new files, and takes more memory. Chosen, not tuned."""


class Memory(Protocol):
    """Supplies the buffers of one table; a store implements it."""

    buffer: U8
    """Buffer of the table; `switch` replaces it."""

    def enlarge(self, byte_count: int) -> U8:
        """Return a zeroed buffer of `byte_count` bytes; the present buffer stays until `switch`."""

    def switch(self) -> None:
        """Replace the present buffer by the one that `enlarge` returned."""

    def undo(self, byte_count: int, *, create: bool) -> U8 | None:
        """Return the undo buffer, of at least `byte_count` bytes; its content is preserved.

        None if there is no room, or if `create` is False and there is no buffer: then there is no undo.
        """


class BufferTable:
    """Implements `headgate.tables.ports.Table`, and further methods that a store needs.

    `memory`: must hold a table, see `create` and `attach`. `geometry`: checked by the caller.

    Attributes
    ----------
    header : Header    The header of ``memory.buffer``, also after growth.
    rows : int64[capacity, width]    View of the buffer; replaced when the table grows.
    """

    def __init__(self, memory: Memory, layout: TableLayout, geometry: Geometry) -> None:
        self.layout = layout
        self._memory = memory
        self._fresh = np.array(layout.fresh, dtype=np.int64)
        self._undo: I64 = np.empty((0, 1 + layout.width), dtype=np.int64)
        self._undo_mark: I64
        self._full_only = False
        self._places: tuple[int, ...] | None = None
        self._map(geometry)

    @classmethod
    def create(cls, memory: Memory, layout: TableLayout, nonce: int = 0) -> BufferTable:
        """Return an empty, clean table in a zeroed buffer of ``initial_bytes(layout)``."""
        geometry = Geometry(layout.width)
        header = Header(memory.buffer)
        header.write_geometry(geometry, layout, nonce)
        header.seal(EMPTY_TOKEN, EMPTY_TOKEN)
        return cls(memory, layout, geometry)

    @classmethod
    def attach(cls, memory: Memory, layout: TableLayout) -> BufferTable:
        """Return the table that a buffer holds.

        Raises `StateError` if the table is not clean, has another layout, or has an invalid header.
        """
        return cls(memory, layout, Header(memory.buffer).check(layout, memory.buffer.size))

    def places(self) -> tuple[int, ...]:
        """Return addresses and lengths of the table's parts, for `headgate.tables.together`."""
        if self._places is None:
            parts = (self.rows, self._undo, self._counts, self._index, self._offsets, self._heap)
            rows, undo, counts, index, offsets, heap = (part.ctypes.data for part in parts)
            self._places = (
                rows, *self.rows.shape, self._geometry.limit, undo, len(self._undo), counts,
                index, len(self._index), offsets, len(self._offsets), heap, len(self._heap),
            )  # fmt: skip
        return self._places

    def _map(self, geometry: Geometry) -> None:
        self._places = None
        buffer = self._memory.buffer
        self.header = Header(buffer)
        self._counts = self.header.counts
        self._geometry = geometry
        self._geometry_bytes = self.header.geometry_bytes()
        words = buffer[: geometry.heap_at].view(np.int64)
        at, end = geometry.rows_at // 8, geometry.index_at // 8
        self.rows: I64 = words[at:end].reshape(geometry.capacity, geometry.width)
        self._index: I64 = words[end : end + geometry.index_size]
        self._offsets: I64 = words[geometry.offsets_at // 8 :]
        self._heap: U8 = buffer[geometry.heap_at : geometry.total_bytes]

    # Methods for a store.

    @property
    def live_count(self) -> int:
        """Return the number of live rows."""
        return int(self._counts[LIVE])

    @property
    def token(self) -> str:
        """Token of the last clean state."""
        return self.header.token()

    @property
    def previous(self) -> str:
        """Return the token of the state before `token`, which `roll_back` restores."""
        return self.header.token(AT_PREVIOUS)

    def trusted(self) -> bool:
        """Return whether the table is clean and its header still fits this mapping."""
        header = self.header
        return header.sealed() and header.geometry_bytes() == self._geometry_bytes

    def can_roll_back(self) -> bool:
        """Return whether the last step can be undone; False for a dirty table.

        The compiler may write the undo log's counter before its data. So after a crash in the middle of
        a write, the log is not reliable.
        """
        if not self._counts[UNDO_VALID] or self.header.state != CLEAN:
            return False
        count = int(self._counts[UNDO_COUNT])
        if not self._fetch_undo(count, create=False) or count > len(self._undo):
            return False
        mark: list[int] = self._undo_mark.tolist()
        return mark == [self.header.nonce, int(self._counts[STAMP])]

    # Steps.

    def begin(self) -> None:
        """Start a step: discard the last step's undo log, save pre-images from now on."""
        if self.header.state != CLEAN:
            msg = "a step began on a table whose last step has no commit: release and acquire it"
            raise StateError(msg)
        self.header.state = DIRTY
        counts = self._counts
        counts[STAMP] += 1
        self.header.begun[:] = counts[:4]
        counts[UNDO_COUNT] = 0
        counts[UNDO_VALID] = int(self._fetch_undo(1, create=True))
        if counts[UNDO_VALID]:
            # The next reader could open another undo file, so the log names its table and its step.
            self._undo_mark[:] = self.header.nonce, counts[STAMP]
        self._full_only = False

    def commit(self, token: str) -> None:
        """Give the state since `begin` its token; the table is clean again."""
        self._require_begun()
        if not is_token(token) or token == EMPTY_TOKEN:
            msg = f'"{token}" cannot name a state: a token is 32 hexadecimal digits, not all 0'
            raise StateError(msg)
        self.header.seal(token, self.token)

    def roll_back(self) -> None:
        """Restore the state `previous` exactly; call `can_roll_back` first."""
        previous, counts = self.previous, self._counts
        self.header.state = DIRTY
        kept = int(self.header.begun[2])
        forgotten = kernels.forget(
            self._index, self._offsets, self._heap, int(counts[STRINGS]), kept
        )
        if not forgotten or not kernels.restore(self.rows, self._undo, int(counts[UNDO_COUNT])):
            msg = "the undo log does not fit its table: build the key group anew"
            raise StateError(msg)
        counts[:4] = self.header.begun
        counts[UNDO_VALID] = 0
        self.header.seal(previous, EMPTY_TOKEN)

    def _require_begun(self) -> None:
        if self.header.state != DIRTY:
            msg = "a table was changed or committed outside a step: call begin first"
            raise StateError(msg)

    # Methods for an operator.

    def upsert(self, keys: I64) -> I64:
        """Return the row index of each key (int64[n, key_words]), creating rows."""
        self._require_begun()
        if keys.ndim != 2 or keys.shape[1] != self.layout.key_words:  # noqa: PLR2004
            msg = f"keys of shape {keys.shape} where rows have {self.layout.key_words} key words"
            raise StateError(msg)
        keys = _plain(keys)
        hashes = kernels.hash_words(keys)
        out = np.empty(len(keys), dtype=np.int64)
        done, grown = 0, False
        while True:
            done, reason = kernels.upsert(
                self.rows, self._fresh, keys, hashes, done, self._geometry.limit,
                self._undo, self._counts, out,
            )  # fmt: skip
            if reason == kernels.DONE:
                break
            if reason == kernels.UNDO_FULL:
                self._grow_undo()
            else:
                self._grow_rows()
                grown = True
        if grown:
            # Growth moved the rows that were found before it.
            kernels.find(self.rows, keys, hashes, out)
        return out

    def delete(self, index: I64) -> None:
        """Remove rows by index; they count as changed, and their pre-images are saved."""
        self._require_begun()
        if index.size and not 0 <= index.min() <= index.max() < len(self.rows):
            msg = f"rows up to {index.max()} deleted from a table of {len(self.rows)}"
            raise StateError(msg)
        index = _plain(index)
        done, reason = 0, kernels.UNDO_FULL
        while reason != kernels.DONE:
            done, reason = kernels.delete(self.rows, index, done, self._undo, self._counts)
            if reason == kernels.UNDO_FULL:
                self._grow_undo()

    def live(self) -> I64:
        """Return the indices of all live rows."""
        return np.flatnonzero(self.rows[:, 0] & 1)

    def least(self, word: int) -> int:
        """Return the least value of a word among the live rows; at least one row must be live."""
        return int(kernels.least(self.rows, word))

    def find(self, keys: I64) -> I64:
        """Return the row index of each key, -1 for a missing key; changes nothing."""
        keys = _plain(keys)
        out = np.empty(len(keys), dtype=np.int64)
        kernels.find(self.rows, keys, kernels.hash_words(keys), out)
        return out

    def intern(self, offsets: I64, data: U8) -> I64:
        """Return the ids of n strings (``data[offsets[i]:offsets[i+1]]``), adding unknown ones."""
        self._require_begun()
        offsets, data = _plain(offsets), _plain_bytes(data)
        out = np.empty(len(offsets) - 1, dtype=np.int64)
        if not 0 <= offsets[0] <= offsets[-1] <= data.size or (offsets[1:] < offsets[:-1]).any():
            msg = f"string offsets do not lie in their {data.size} bytes"
            raise StateError(msg)
        done = 0
        while True:
            done, reason = kernels.intern(
                self._index, self._offsets, self._heap, offsets, data, done, self._counts, out
            )
            if reason == kernels.DONE:
                return out
            self._grow_strings(int(offsets[done + 1] - offsets[done]))

    def strings(self) -> tuple[I64, U8]:
        """Return offsets and bytes of all strings: views, valid until the next `intern`."""
        count = int(self._counts[STRINGS])
        return self._offsets[: count + 1], self._heap[: int(self._counts[STRING_BYTES])]

    def section(self, token: str, *, full: bool = False, rows: I64 | None = None) -> Section:
        """Return the changes of this step (if `full`, the whole state) as the section of `token`.

        The arrays are copies, which outlive the table; `rows`, the changed rows, must be a copy too.
        """
        self._require_begun()
        if self._full_only and not full:
            msg = "strings were compacted in this step: its section must be full"
            raise StateError(msg)
        if rows is None:
            rows = self.rows[self.live() if full else self.changed()]
            rows[:, 0] &= 1
        first = 0 if full else int(self.header.begun[2])
        offsets, data = self.strings()
        offsets = offsets[first:]
        data = data[int(offsets[0]) :].copy()
        return Section(
            token=token, previous=self.token, full=full, rows=rows,
            string_offsets=offsets - offsets[0], string_bytes=data, first_string=first,
        )  # fmt: skip

    def changed(self) -> I64:
        """Return distinct indices of rows that `upsert` returned or `delete` removed since `begin`."""
        if self._counts[UNDO_VALID]:
            return self._undo[: int(self._counts[UNDO_COUNT]), 0]
        return np.flatnonzero(self.rows[:, 0] >> 1 == self._counts[STAMP])

    def touched_since(self, stamp: int) -> int:
        """Return the number of rows that the last step touched; 0 without a step since `stamp`."""
        if int(self._counts[STAMP]) == stamp:
            return 0
        if self._counts[UNDO_VALID]:
            return int(self._counts[UNDO_COUNT])
        return int(np.count_nonzero(self.rows[:, 0] >> 1 == self._counts[STAMP]))

    @property
    def stamp(self) -> int:
        """Number of the table's newest step; grows with each step."""
        return int(self._counts[STAMP])

    # Catching up.

    def catch_up(self, sections: Sequence[Section]) -> None:
        """Apply sections in sequence; the table then has the last section's token, and no undo."""
        for section in sections:
            if self.header.state == CLEAN:
                self.header.state = DIRTY
                self._counts[UNDO_VALID] = 0
            self._counts[STAMP] += 1
            self.header.begun[:] = self._counts[:4]
            self._apply(section)
        if sections:
            self.header.seal(sections[-1].token, EMPTY_TOKEN)

    def _apply(self, section: Section) -> None:
        rows, first = section.rows, int(self._counts[STRINGS])
        if rows.ndim != 2 or rows.shape[1] != self.layout.width:  # noqa: PLR2004
            msg = f"a section of shape {rows.shape} for rows of {self.layout.width} words"
            raise StateError(msg)
        ids = self.intern(section.string_offsets, section.string_bytes)
        if section.first_string != first or (ids != np.arange(first, first + len(ids))).any():
            msg = f"a section's strings start at {section.first_string}, the table has {first}"
            raise StateError(msg)
        keys = rows[:, 1 : 1 + self.layout.key_words]
        there = rows[:, 0] != 0
        index = self.upsert(keys[there])
        self.rows[index, 1 + self.layout.key_words :] = rows[there, 1 + self.layout.key_words :]
        gone = self.find(keys[~there])
        self.delete(gone[gone >= 0])

    # Growth.

    def _fetch_undo(self, rows: int, *, create: bool) -> bool:
        """Make room for `rows` pre-images (a mark of 16 bytes; index and row each); False if none."""
        width = 1 + self.layout.width
        if 0 < len(self._undo) >= rows:
            return True
        raw = self._memory.undo(16 + max(rows, 64) * width * 8, create=create)
        if raw is None:
            return False
        words = raw[: raw.size // 8 * 8].view(np.int64)
        usable = (len(words) - 2) // width * width
        self._undo_mark = words[:2]
        self._undo = words[2 : 2 + usable].reshape(-1, width)
        self._places = None
        return True

    def _grow_undo(self) -> None:
        # A log holds at most one pre-image of each row, so it needs no more rows than its table.
        if not self._fetch_undo(4 * len(self._undo), create=True):
            self._counts[UNDO_VALID] = 0

    def _grow_rows(self) -> None:
        """Make room: drop tombstones of earlier steps, and enlarge the table if that is not enough."""
        meta = self.rows[:, 0]
        living = self.rows[(meta & 1 == 1) | ((meta != 0) & (meta >> 1 == self._counts[STAMP]))]
        self._counts[UNDO_VALID] = 0
        capacity = self._geometry.capacity
        if 2 * len(living) > self._geometry.limit:
            self._enlarge(capacity=capacity * (4 if capacity < _SMALL_ROWS else 2))
        self._refill(living)

    def _refill(self, living: I64) -> None:
        keys = np.ascontiguousarray(living[:, 1 : 1 + self.layout.key_words])
        self.rows[...] = 0
        kernels.place(living, kernels.hash_words(keys), self.rows)
        self._counts[USED] = len(living)

    def _grow_strings(self, byte_count: int) -> None:
        now, counts = self._geometry, self._counts
        changes = {}
        if int(counts[STRINGS]) >= min(now.string_limit, now.index_size // 2):
            changes = {"string_limit": 4 * now.string_limit, "index_size": 4 * now.index_size}
        wanted = int(counts[STRING_BYTES]) + byte_count
        if wanted > now.heap_bytes:
            changes["heap_bytes"] = -(-2 * wanted // 8) * 8
        rows = self.rows
        self._enlarge(**changes)
        self.rows[...] = rows

    def _enlarge(self, **changes: int) -> None:
        """Move everything except the rows to a larger buffer."""
        geometry = replace(self._geometry, **changes)
        buffer = self._memory.enlarge(geometry.total_bytes)
        header = Header(buffer)
        header.words[:] = self.header.words
        header.write_geometry(geometry, self.layout, self.header.nonce)
        old_index = self._index
        offsets, data = self.strings()
        self._memory.switch()
        self._map(geometry)
        self._offsets[: len(offsets)] = offsets
        self._heap[: len(data)] = data
        if len(self._index) == len(old_index):
            self._index[:] = old_index
        else:
            kernels.reindex(old_index, self._index)

    def compact(self, string_words: Sequence[int]) -> None:
        """Drop strings to which no row refers; `string_words` are row positions that hold ids + 1."""
        self._require_begun()
        rows, words = self.rows[self.live()], list(string_words)
        offsets, data = self.strings()
        named = np.unique(rows[:, words])
        named = named[named != 0] - 1
        if named.size and not 0 <= named[0] <= named[-1] < len(offsets) - 1:
            msg = f"a row names string {named[-1]} of {len(offsets) - 1}: is {words} right?"
            raise StateError(msg)
        self._full_only = True
        self._counts[UNDO_VALID] = 0
        self.header.begun[:] = 0
        fresh_ids = np.zeros(len(offsets), dtype=np.int64)
        fresh_ids[named + 1] = np.arange(1, len(named) + 1)
        rows[:, words] = fresh_ids[rows[:, words]]
        kept_offsets, kept = gather(offsets, data, named)
        self._index[:] = 0
        self._counts[[STRINGS, STRING_BYTES]] = 0
        ids = self.intern(kept_offsets, kept)
        if (ids != np.arange(len(named))).any():
            msg = "a string stands twice in its table: build the key group anew"
            raise StateError(msg)
        self._refill(rows)


def initial_bytes(layout: TableLayout) -> int:
    """Return the size of the buffer that `BufferTable.create` needs, bytes."""
    return Geometry(layout.width).total_bytes


def gather(offsets: I64, data: U8, ids: I64) -> tuple[I64, U8]:
    """Return offsets and bytes of the strings `ids`, in the sequence of `ids`."""
    return kernels.gather(_plain(offsets), _plain_bytes(data), _plain(ids))


def _plain(values: I64) -> I64:
    """Return `values` as contiguous, writable int64, the only form for which kernels are compiled."""
    if values.dtype == np.int64 and values.flags.carray:  # the usual case, with a fast check
        return values
    return np.require(values, dtype=np.int64, requirements=("C", "W"))


def _plain_bytes(values: U8) -> U8:
    if values.dtype == np.uint8 and values.flags.carray:
        return values
    return np.require(values, dtype=np.uint8, requirements=("C", "W"))
