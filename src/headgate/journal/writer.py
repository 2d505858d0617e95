"""Appends events to a journal."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from headgate.core.errors import EngineError
from headgate.core.input import open_regular
from headgate.journal.codec import encode
from headgate.journal.listeners import call_listeners
from headgate.journal.log import log_event
from headgate.journal.schema import Event

TAIL_BYTES = 1 << 16
"""Bytes per read in the search for the end of the last whole line."""


def wall_clock_ms() -> int:
    """Return the wall clock, in ms since 1970."""
    return time.time_ns() // 1_000_000


class JournalWriter:
    """Appends events to a journal, one line each.

    `write` passes a line to the operating system in one call, so the line survives the death of the
    process. The line is not forced to disk, because recovery reads the manifest, not the journal. Safe
    to use from several threads.

    `path` (path): the file, never a symbolic link; created with mode 0600 if missing. A torn last line,
    left by a killed driver, is cut off: it never was an event. `now_ms`: the wall clock; tests replace
    it.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        self.path = Path(path)
        self._now_ms = now_ms
        self._lock = threading.Lock()
        try:
            self._file = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            _cut_torn_line(self._file)
        except OSError as error:
            msg = f"cannot open the journal {self.path}: {error.strerror}; check its directory."
            raise EngineError(msg) from error

    def write(self, event: Event) -> None:
        """Append one event; if its `at_ms` is 0, the clock's time replaces it."""
        stamped = event if event.at_ms else dataclasses.replace(event, at_ms=self._now_ms())
        line = encode(stamped)
        with self._lock:
            try:
                _write_all(self._file, line)
            except OSError as error:
                with contextlib.suppress(OSError):
                    _cut_torn_line(self._file)  # the next event must begin a line of its own
                msg = f"cannot append to the journal {self.path}: {error.strerror}; free space."
                raise EngineError(msg) from error
        log_event(stamped, str(self.path))
        call_listeners(str(self.path), stamped)

    def close(self) -> None:
        """Close the file; further events are errors. May be called twice."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _write_all(file: int, line: bytes) -> None:
    """Write a whole line; a full disk may accept only a part per call."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(file, rest) :]


def _cut_torn_line(file: int) -> None:
    """Cut the file after its last newline, so that the next event starts a line of its own."""
    end = os.fstat(file).st_size
    keep = end
    while keep > 0:
        start = max(0, keep - TAIL_BYTES)
        newline = os.pread(file, keep - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        os.ftruncate(file, keep)
