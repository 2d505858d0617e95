"""Copies a journal to and from an object store, in pieces; the driver writes to its own disk.

An object cannot be appended to. The newest piece is written again as the journal grows, until it is
large enough and the next one begins. A piece belongs to the driver that began it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.place import Files
from headgate.core.errors import CheckpointError

DIRECTORY = "journal"
_EVERY_S = 2.0
"""Seconds between two copies: a journal on a store may lack this much if the driver is killed. Chosen."""

_PIECE_BYTES = 512 << 10
"""Size at which the next piece begins. Chosen."""

_COPIED_MAX_BYTES = 64 << 20
"""Largest journal that a driver copies from the store to its disk at a start. Chosen."""

_END_WAIT_S = 30.0
"""Seconds for which the end of a query waits for the journal's last piece."""


def piece(number: int) -> str:
    """Return the name of a piece of the journal."""
    return f"{DIRECTORY}/{number:012d}"


class JournalShipper:
    """Copies a growing file to a store, in a thread of its own, until `close`.

    An unreachable store delays no batch: the thread tries again later.

    `path`: the journal on this disk; it may not exist yet. `at`: bytes of the journal that the
    store has already.
    """

    def __init__(self, files: Files, path: Path, at: int = 0) -> None:
        self._files = files
        self._path = path
        self._number = -1
        self._at = at
        self._held = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy the remaining lines and end the thread; may be called twice."""
        self._ended.set()
        self._thread.join(_END_WAIT_S)

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._try()
        self._try()

    def _try(self) -> None:
        with contextlib.suppress(CheckpointError):
            self.ship()

    def ship(self) -> None:
        """Copy the lines written since the last time to the store, whole lines only.

        Raises `CheckpointError`: the store cannot be written; the next call copies the same lines.
        """
        if not self._path.is_file():
            return
        with open(self._path, "rb") as file:
            file.seek(self._at)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        if not new:
            return
        data = self._held + new
        if self._number < 0 or len(self._held) >= _PIECE_BYTES:
            data = new
            self._begin(data)
        else:
            self._files.put(piece(self._number), data)
        self._held = data
        self._at += len(new)

    def _begin(self, data: bytes) -> None:
        """Write the first form of the next piece, under a number that no other driver has."""
        number = self._number
        if number < 0:
            known = [int(n) for n in self._files.names(DIRECTORY) if n.isdecimal()]
            number = max(known, default=-1)
        while True:
            number += 1
            with contextlib.suppress(FileExistsError):
                self._files.put_new(piece(number), data)
                self._number = number  # only now: a reader stops at a missing number
                return


def resume_shipping(files: Files, path: Path) -> JournalShipper:
    """Copy a journal from a store to `path`, and ship the lines that are added to it.

    A journal above `_COPIED_MAX_BYTES` stays on the store; only a rollback to an old assignment reads it.
    """
    at = 0
    if sum(files.sizes(DIRECTORY).values()) <= _COPIED_MAX_BYTES:
        JournalCopy(files, path).refresh()
        at = path.stat().st_size
    return JournalShipper(files, path, at)


class JournalCopy:
    """Copies a journal from a store to this disk; each `refresh` adds the new lines.

    The copy lists the pieces once; later, it only looks up the next piece. A `refresh` without new lines
    makes two requests.

    `path`: the copy's path; an older file there is replaced.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._at = 0
        path.write_bytes(b"")
        os.chmod(path, 0o600)
        known = [int(n) for n in files.names(DIRECTORY) if n.isdecimal()]
        self._number = min(known, default=0)
        self._newest = max(known, default=-1)

    def refresh(self) -> bool:
        """Read the new part of the journal; return whether there was any."""
        grown = False
        while True:
            # a piece is complete once the next exists, so look for the next before reading the piece
            number = self._number
            complete = number < self._newest or self._files.exists(piece(number + 1))
            new = self._rest()
            if new:
                with open(self._path, "ab") as file:
                    file.write(new)
                self._at += len(new)
                grown = True
            if not complete:
                return grown
            self._number, self._at = number + 1, 0
            self._newest = max(self._newest, self._number)

    def _rest(self) -> bytes:
        if self._number > self._newest:  # the journal's first piece, which may not exist yet
            if not self._files.exists(piece(self._number)):
                return b""
            self._newest = self._number
        return self._files.get_range(piece(self._number), self._at, 1 << 30)


@contextlib.contextmanager
def journal_at(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield the path of a checkpoint's journal, or of a temporary copy if the journal is on a store."""
    if not checkpoint.files.shared:
        yield checkpoint.root / "journal.jsonl"
        return
    with tempfile.TemporaryDirectory(prefix="headgate-journal-") as directory:
        copy = Path(directory) / "journal.jsonl"
        JournalCopy(checkpoint.files, copy).refresh()
        yield copy
