"""Copies the journal of a checkpoint on a store to this disk, while somebody reads it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.shipping import JournalCopy
from headgate.core.errors import CheckpointError
from headgate.core.stores import store_url
from headgate.scenario.places import copy_directory, written

EVERY_S = 5.0
"""Least time between two copies of a journal, in s. A copy is two requests, so a journal costs at most
24 requests a minute for any number of readers. Chosen: a driver writes there every two seconds."""

WAIT_S = 0.5
"""Longest wait of a reader for a new copy, in s; then the reader uses the old copy. Chosen."""


class StoredJournal:
    """Copies a journal in its own thread, at most every `EVERY_S` and only while somebody reads.

    So a reader never waits longer than `WAIT_S`, even for a store that does not answer.

    `checkpoint` (path): a place on a store. Raises `CheckpointError`: there is no checkpoint, or
    the store cannot be read.

    Attributes
    ----------
    place : str    The checkpoint, as a user writes it.
    path : Path    The copy, which the process deletes at its end.
    """

    def __init__(self, checkpoint: str | os.PathLike[str]) -> None:
        self.place = written(checkpoint)
        self.path = copy_directory() / "journal.jsonl"
        files = Checkpoint(checkpoint).files
        self._copy = JournalCopy(files, self.path)
        if not self._copy.refresh() and not files.is_there():
            msg = (
                f"checkpoint {self.place} does not exist; give the checkpointLocation of a headgate "
                "query."
            )
            raise CheckpointError(msg)
        self._error = ""
        self._copied_s = time.monotonic()
        self._asked_s: float | None = None
        self._wanted, self._done = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="headgate-copy", daemon=True).start()

    def refresh(self) -> str:
        """Request a new copy, and wait for it at most `WAIT_S`; return why there is none, or ``""``."""
        if time.monotonic() - self._copied_s >= EVERY_S:
            self._done.clear()
            self._wanted.set()
            if not self._error:
                self._done.wait(WAIT_S)
        asked_s = self._asked_s
        waited_s = 0.0 if asked_s is None else time.monotonic() - asked_s
        if waited_s < EVERY_S:
            return self._error
        return (
            f"{self.place}: its store has not answered for {waited_s:.0f} s, so the journal is as it was "
            "then; see whether the store can be reached."
        )

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            if time.monotonic() - self._copied_s < EVERY_S:
                continue  # requested while the last copy was made
            self._asked_s = time.monotonic()
            try:
                self._copy.refresh()
                self._error = ""
            except CheckpointError as error:
                self._error = str(error)
            except OSError as error:
                self._error = (
                    f"the journal of {self.place} cannot be copied to {self.path.parent}: "
                    f"{error.strerror}; make room there, and begin again."
                )
                return
            finally:
                self._copied_s, self._asked_s = time.monotonic(), None
                self._done.set()


def journal_place(place: Path) -> Path | StoredJournal:
    """Return a place as `headgate.ui` and `headgate.metrics` read it; raises as `StoredJournal`."""
    return place if store_url(place) is None else StoredJournal(place)
