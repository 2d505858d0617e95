"""Copies a journal to and from an object store, in pieces; the driver writes it on its own disk.

An object cannot be appended to. The newest piece is written anew as the journal grows, until the piece is
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
"""How old a line gets before it is on the store. Chosen: what a killed driver's journal may lack."""

_PIECE_BYTES = 512 << 10
"""From here on the next piece begins. Chosen."""

_BROUGHT_BYTES = 64 << 20
"""Up to here a driver has the whole journal on its disk, as beside a checkpoint there. Chosen."""

_END_WAIT_S = 30.0
"""What the end of a query waits for the journal's last piece."""


def piece(number: int) -> str:
    """Return the name of a piece of the journal."""
    return f"{DIRECTORY}/{number:012d}"


class JournalShipper:
    """Takes a growing file to a store, in a thread of its own, until it is closed.

    A store that is away keeps no batch waiting: what could not be written is tried again.

    Parameters
    ----------
    path : Path
        The journal on this disk; need not be there yet.
    at : int
        Bytes of it that the store has already.
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
        """Take the rest, and end; may be called twice."""
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

        Raises
        ------
        CheckpointError
            The store cannot be written; nothing is lost, and the next time takes it.
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
                self._number = number  # not before: readers end at a number that is left out
                return


def resumed(files: Files, path: Path) -> JournalShipper:
    """Copy a journal from a store to `path`, and ship the lines that are added to it.

    A long one is left where it is: only a rollback to an assignment of long ago looks into it.
    """
    at = 0
    if sum(files.sizes(DIRECTORY).values()) <= _BROUGHT_BYTES:
        JournalCopy(files, path).refresh()
        at = path.stat().st_size
    return JournalShipper(files, path, at)


class JournalCopy:
    """Copies a journal that lies on a store to this disk; grows with each `refresh`.

    Parameters
    ----------
    path : Path
        Of the copy; it is made anew.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._at = 0
        path.write_bytes(b"")
        os.chmod(path, 0o600)
        known = [int(n) for n in files.names(DIRECTORY) if n.isdecimal()]
        self._number = min(known, default=0)

    def refresh(self) -> bool:
        """Read the new part of the journal; return whether there was any."""
        found = False
        while True:
            new = self._rest()
            if new:
                with open(self._path, "ab") as file:
                    file.write(new)
                self._at += len(new)
                found = True
            if not self._files.exists(piece(self._number + 1)):
                return found
            # the piece was complete before the next one began; what came meanwhile is read first
            late = self._rest()
            if late:
                continue
            self._number, self._at = self._number + 1, 0

    def _rest(self) -> bytes:
        if not self._files.exists(piece(self._number)):
            return b""
        return self._files.get_range(piece(self._number), self._at, 1 << 30)


@contextlib.contextmanager
def journal_at(checkpoint: Checkpoint) -> Iterator[Path]:
    """Yield where a checkpoint's journal can be read: where it is, or a copy while it is looked at."""
    if not checkpoint.files.shared:
        yield checkpoint.root / "journal.jsonl"
        return
    with tempfile.TemporaryDirectory(prefix="headgate-journal-") as made:
        copy = Path(made) / "journal.jsonl"
        JournalCopy(checkpoint.files, copy).refresh()
        yield copy
