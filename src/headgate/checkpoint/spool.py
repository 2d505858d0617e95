"""Stores bytes that will soon be read again on the local disk instead of in memory."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref

_LEAST_BYTES = 64 * 1024
"""Least size of bytes that go to disk; fewer bytes stay in memory. Chosen."""

_ROOM_BYTES = 1 << 28
"""Bytes of one file and its mapping; then the next file begins. Some cluster managers count addresses as
memory, and stop a process that has many. Chosen."""


class Spool:
    """Stores bytes in one file without a name; they take no memory of the process, and few descriptors.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: int | None = None
        self._close: weakref.finalize[..., Spool] | None = None
        self._seen: memoryview | None = None
        self._end = 0

    def put(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the same bytes, perhaps as a view of the file."""
        if isinstance(data, memoryview) or not _LEAST_BYTES <= len(data) <= _ROOM_BYTES:
            return data
        with self._lock:
            try:
                return self._put(data)
            except (OSError, ValueError, OverflowError):
                # without room on the disk, or with a limit on addresses, the bytes stay in memory
                self._forget()
                return data

    def clear(self) -> None:
        """Start again with an empty spool; existing views stay valid."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._close is not None:
            self._close()
        self._close, self._file, self._seen, self._end = None, None, None, 0

    def _put(self, data: bytes) -> memoryview:
        if self._end + len(data) > _ROOM_BYTES:
            self._forget()
        if self._file is None or self._seen is None:
            file, name = tempfile.mkstemp(prefix="headgate-")
            self._close = weakref.finalize(self, os.close, file)
            os.unlink(name)
            os.ftruncate(file, _ROOM_BYTES)
            self._seen = memoryview(mmap.mmap(file, _ROOM_BYTES, access=mmap.ACCESS_READ))
            self._file = file
        rest, at = memoryview(data), self._end
        while rest:
            written = os.pwrite(self._file, rest, at)
            rest, at = rest[written:], at + written
        start, self._end = self._end, at
        return self._seen[start:at]
