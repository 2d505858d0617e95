"""Reads and writes the first 512 bytes of a table, and computes the places of the following parts.

::

    header     int64[64]                     the words named below
    rows       int64[capacity, width]
    index      int64[index_size]             string hash index
    offsets    int64[string_limit + 1]       string offsets
    heap       uint8[heap_bytes]             string bytes

The header's CRC is valid only while the state is CLEAN; a table in another state is not trusted.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np

from headgate.core.errors import StateError
from headgate.tables.kernels import LIVE, STRING_BYTES, STRINGS, UNDO_COUNT, USED
from headgate.tables.ports import I64, U8, TableLayout

MAGIC = int.from_bytes(b"headgate", "little")
VERSION = 1
HEADER_WORDS = 64
HEADER_BYTES = HEADER_WORDS * 8
CLEAN, DIRTY = 1, 2

# Word positions. The words before AT_STATE never change while the table is mapped.
AT_MAGIC, AT_VERSION, AT_WIDTH, AT_KEY_WORDS = range(4)
AT_CAPACITY, AT_INDEX, AT_STRINGS, AT_HEAP, AT_NONCE = range(4, 9)
AT_STATE = 9
AT_TOKEN, AT_PREVIOUS = 10, 12
AT_COUNTS, COUNT_WORDS = 16, 7
AT_BEGUN = 24
"""First of four words: live, used, strings and string bytes at the begin of the last step."""
AT_CRC = 63

_TOKEN = re.compile("[0-9a-f]{32}")
_SMALLEST = 8


@dataclass(frozen=True)
class Geometry:
    """Holds the size of each part of a table."""

    width: int
    """Words per row."""
    capacity: int = 64
    """Rows; a power of two."""
    index_size: int = 64
    """Length of the string index; a power of two."""
    string_limit: int = 32
    """Largest number of strings."""
    heap_bytes: int = 512
    """Bytes for strings; a multiple of 8."""

    @property
    def rows_at(self) -> int:
        """Byte offset of the rows."""
        return HEADER_BYTES

    @property
    def index_at(self) -> int:
        """Byte offset of the string index."""
        return self.rows_at + self.capacity * self.width * 8

    @property
    def offsets_at(self) -> int:
        """Byte offset of the string offsets."""
        return self.index_at + self.index_size * 8

    @property
    def heap_at(self) -> int:
        """Byte offset of the string bytes."""
        return self.offsets_at + (self.string_limit + 1) * 8

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole table."""
        return self.heap_at + self.heap_bytes

    @property
    def limit(self) -> int:
        """Used rows at which the table must grow; 0.7 of the capacity (chosen, not tuned)."""
        return self.capacity * 7 // 10


class Header:
    """Reads and writes the header words of one buffer.

    `buffer` (uint8[>= 512]): the table's buffer; 8-byte aligned.
    """

    def __init__(self, buffer: U8) -> None:
        self._bytes = buffer[:HEADER_BYTES]
        self.words: I64 = self._bytes.view(np.int64)
        self.counts: I64 = self.words[AT_COUNTS : AT_COUNTS + COUNT_WORDS]
        self.begun: I64 = self.words[AT_BEGUN : AT_BEGUN + 4]

    def write_geometry(self, geometry: Geometry, layout: TableLayout, nonce: int) -> None:
        """Write the sizes of the buffer's parts; state, tokens and counts stay as they are."""
        self.words[:AT_STATE] = (
            MAGIC,
            VERSION,
            layout.width,
            layout.key_words,
            geometry.capacity,
            geometry.index_size,
            geometry.string_limit,
            geometry.heap_bytes,
            nonce,
        )

    def geometry(self) -> Geometry:
        """Return the sizes as written, unchecked."""
        _, _, width, _, capacity, index_size, strings, heap, _ = map(int, self.words[:AT_STATE])
        return Geometry(width, capacity, index_size, strings, heap)

    def geometry_bytes(self) -> bytes:
        """Return the part of the header that may not change while the buffer is mapped."""
        return self._bytes[: AT_STATE * 8].tobytes()

    @property
    def nonce(self) -> int:
        """Part of the name of the table's undo file."""
        return int(self.words[AT_NONCE])

    @property
    def state(self) -> int:
        """CLEAN, DIRTY, or any value that a faulty process wrote."""
        return int(self.words[AT_STATE])

    @state.setter
    def state(self, value: int) -> None:
        self.words[AT_STATE] = value

    def token(self, at: int = AT_TOKEN) -> str:
        """Return the token (or with AT_PREVIOUS the one before it) as 32 hexadecimal digits."""
        return self._bytes[at * 8 : at * 8 + 16].tobytes().hex()

    def seal(self, token: str, previous: str) -> None:
        """Write the tokens and mark the table clean; the state word is written last."""
        named = np.frombuffer(bytes.fromhex(token + previous), dtype=np.int64)
        self.words[AT_TOKEN : AT_TOKEN + 4] = named
        self.words[AT_CRC] = self._crc()
        self.state = CLEAN

    def sealed(self) -> bool:
        """Return whether the table is clean and its header is as `seal` left it."""
        return self.state == CLEAN and int(self.words[AT_CRC]) == self._crc()

    def _crc(self) -> int:
        # The state word is left out: it is written after the CRC.
        raw = self._bytes
        first = zlib.crc32(raw[: AT_STATE * 8].tobytes())
        return zlib.crc32(raw[(AT_STATE + 1) * 8 : AT_CRC * 8].tobytes(), first)

    def check(self, layout: TableLayout, byte_count: int) -> Geometry:
        """Return the geometry of a sealed table; every field is checked against the buffer.

        Raises `StateError` if the table is not headgate's, is not clean, or a field is out of bounds.
        """
        words = self.words
        if int(words[AT_MAGIC]) != MAGIC or int(words[AT_VERSION]) != VERSION:
            msg = "not a table of this version of headgate: build it anew from the changelog"
            raise StateError(msg)
        geometry = self.geometry()
        shape = (geometry.width, int(words[AT_KEY_WORDS]))
        if shape != (layout.width, layout.key_words):
            msg = f"a table of {shape[0]} words per row where {layout.width} are wanted: rebuild it"
            raise StateError(msg)
        if not self.sealed() or not _plausible(geometry, byte_count, self.counts, self.begun):
            msg = "a table that is dirty or whose header is damaged: build it anew"
            raise StateError(msg)
        return geometry


def _plausible(geometry: Geometry, byte_count: int, counts: I64, begun: I64) -> bool:
    sizes = (geometry.capacity, geometry.index_size)
    return bool(
        all(size >= _SMALLEST and not size & (size - 1) for size in sizes)
        and geometry.string_limit >= 1
        and geometry.heap_bytes > 0
        and geometry.total_bytes == byte_count
        and not (counts < 0).any()
        and not (begun < 0).any()
        and counts[LIVE] <= counts[USED] <= geometry.capacity
        and counts[UNDO_COUNT] <= geometry.capacity
        and counts[STRINGS] <= geometry.string_limit
        and counts[STRING_BYTES] <= geometry.heap_bytes
        and begun[2] <= counts[STRINGS]
        and begun[3] <= counts[STRING_BYTES]
    )


def is_token(token: str) -> bool:
    """Return whether `token` is 32 lower-case hexadecimal digits."""
    return _TOKEN.fullmatch(token) is not None
