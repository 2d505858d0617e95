"""Reads a journal: whole, or as it grows."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.input import checked_path, is_directory, is_file, open_file, shown
from headgate.core.location import local_path
from headgate.journal.codec import decode
from headgate.journal.fleet import FleetStart
from headgate.journal.schema import Event, Start, Stop

JOURNAL_PLACES = ("headgate/journal.jsonl", "journal.jsonl", "headgate/run.jsonl", "run.jsonl")
"""Paths of a journal, relative to its checkpoint; the first that exists is the journal."""

FLEET_JOURNAL = "fleet.jsonl"
"""Name of a fleet's journal in its directory."""

DEPTH = 3
"""Levels of subdirectories in which `journals_below` looks for checkpoints."""

LINE_MAX = 32 << 20
"""Largest length of a line, bytes. A batch of 32,767 slots has a line of about 10 MB."""

POLL_S = 0.2
"""Seconds between two looks of `follow` for new lines. Chosen, not tuned: below what an eye notices."""


class CopiedJournal(Protocol):
    """Copies a journal from a store to this disk."""

    @property
    def place(self) -> str:
        """Return the checkpoint of the journal, as a user writes it."""

    @property
    def path(self) -> Path:
        """Return the path of the copy."""

    def refresh(self) -> str:
        """Copy the new lines; return a sentence if the store cannot be read, else ``""``."""


class Tail:
    """Reads a journal from a position that moves over whole lines only.

    `path` (path): the journal. `name`: the name of the journal in messages; default: its path.
    Raises `CheckpointError` if there is no such file.
    """

    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        self.path = Path(path)
        self._name = name or shown(path)
        if not is_file(self.path):
            msg = f"there is no journal at {self._name}; give the checkpoint of a headgate query."
            raise CheckpointError(msg)
        self._offset_bytes = 0
        self._line = 0

    def events(self) -> Iterator[Event]:
        """Yield the events of whole lines written since the last call.

        A torn last line stays unread until it is whole. Raises `CheckpointError` if a whole line is no
        event, if a line is longer than `LINE_MAX`, if the journal has another version, or if it is not
        readable any more.
        """
        with contextlib.suppress(OSError):
            if self._offset_bytes and self.path.stat().st_size == self._offset_bytes:
                return  # there are no new lines, so the file need not be opened
        with self._opened() as file:
            file.seek(self._offset_bytes)
            while line := self._line_of(file):
                if not line.endswith(b"\n"):
                    if len(line) < LINE_MAX:
                        return
                    msg = f"{self._name} has a line of more than {LINE_MAX:,} bytes; it is damaged."
                    raise CheckpointError(msg)
                self._offset_bytes += len(line)
                self._line += 1
                event = decode(line, where=f"{self._name} line {self._line}")
                if self._line == 1 and not isinstance(event, Start | FleetStart):
                    msg = f"{self._name} does not begin with a start event; it is not a journal."
                    raise CheckpointError(msg)
                if event is not None:
                    yield event

    def _line_of(self, file: BinaryIO) -> bytes:
        try:
            return file.readline(LINE_MAX)
        except OSError as error:
            msg = f"{self._name} cannot be read: {error.strerror}; name a journal that can."
            raise CheckpointError(msg) from error

    def _opened(self) -> BinaryIO:
        try:
            return open_file(self.path, "the journal", follow=False)
        except ConfigError as error:
            raise CheckpointError(str(error)) from error


def read(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Yield the events of a journal, oldest first; raises as `Tail.events`."""
    return Tail(path).events()


def _wait() -> bool:
    """Sleep until the next look for new lines; return True, to continue."""
    time.sleep(POLL_S)
    return True


def follow(path: str | os.PathLike[str], wait: Callable[[], bool] = _wait) -> Iterator[Event]:
    """Yield the events of a journal, then new events as they are written, up to a stop event.

    A stop event ends the iteration unless a restart already follows it.

    `path` (path): the journal. `wait`: called if there are no new lines; returns False to end. The
    default sleeps and continues.
    """
    tail = Tail(path)
    while True:
        last: Event | None = None
        for event in tail.events():
            last = event
            yield event
        if isinstance(last, Stop) or not wait():
            return


def journals_below(place: str | os.PathLike[str]) -> list[Path]:
    """Return the journals in a directory and its subdirectories; for a journal, only this journal.

    Raises `CheckpointError` if there is no such directory.
    """
    root = local_path(place)
    if is_file(root):
        return [locate(root)]
    if not is_directory(root):
        msg = (
            f"there is no directory {shown(root)}; give checkpoints, or a directory that has some."
        )
        raise CheckpointError(msg)
    below = [root, *(d for depth in range(1, DEPTH + 1) for d in root.glob("*/" * depth))]
    paths = [
        next((d / p for p in (*JOURNAL_PLACES, FLEET_JOURNAL) if is_file(d / p)), None)
        for d in below
    ]
    return sorted({path for path in paths if path is not None})


def locate(path: str | os.PathLike[str]) -> Path:
    """Return the journal of a checkpoint.

    `path` (path): a checkpoint directory, or a journal itself. Raises `CheckpointError` if there is
    no journal, or if the path names another file system than a POSIX one.
    """
    checked_path(path)
    local = local_path(path)
    if is_file(local):
        # a link that the user typed is followed; a link in a checkpoint is not
        return local.resolve() if local.is_symlink() else local
    for place in JOURNAL_PLACES:
        if is_file(local / place):
            return local / place
    state = "has no journal" if is_directory(local) else "does not exist"
    msg = f"checkpoint {shown(local)} {state}; give the checkpointLocation of a headgate query."
    raise CheckpointError(msg)
