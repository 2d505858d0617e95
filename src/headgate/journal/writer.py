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
"""How much is read at a time to find the end of the last whole line."""


def wall_clock_ms() -> int:
    """Return the wall clock, in ms since 1970."""
    return time.time_ns() // 1_000_000


class JournalWriter:
    """Appends events to a journal, one line each.

    A line reaches the operating system in one write before `write` returns, so that it survives the
    death of the process; it is not forced to disk, since the manifest and not the journal is what
    recovery reads. Safe to use from several threads.

    `path` (path): the file, never a symbolic link; made with mode 0600 when missing. A torn last
    line, left by a killed driver, is cut off: it never was an event. `now_ms`: the wall clock;
    replaced in tests.
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
        """Append one event; its `at_ms` is the clock's where it is 0."""
        stamped = event if event.at_ms else dataclasses.replace(event, at_ms=self._now_ms())
        line = encode(stamped)
        with self._lock:
            try:
                _write_all(self._file, line)
            except OSError as error:
                with contextlib.suppress(OSError):
                    _cut_torn_line(self._file)  # the next event must not end up in this one's line
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
    """Write a whole line; a full disk may take it in parts."""
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
