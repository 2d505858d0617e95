"""Lists the files of Spark's own log in the background, so that a restart can compare them."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.spark_log import STEP, LogNotes
from headgate.core.errors import CheckpointError

_EVERY_S = 0.5
"""Interval of looking for Spark's commit; a killed driver lacks notes of this time. Not tuned."""


class LogKeeper:
    """Writes notes of Spark's log into a checkpoint in a directory, in a thread of its own.

    A manifest has a note up to its batch. Spark commits that batch later, and batches without a step
    have no manifest.

    `step`: the newest committed step, -1 for none.
    """

    def __init__(self, checkpoint: Checkpoint, step: int) -> None:
        self._checkpoint = checkpoint
        self._notes = LogNotes(checkpoint.path)
        self._lock = threading.Lock()
        self._batch, self._step = -1, step
        self._written: tuple[int, int, bool] | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begun(self, batch: int) -> None:
        """Take note of a batch that Spark has begun."""
        self._batch = batch
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headgate-log", daemon=True)
            self._thread.start()

    def committed(self, step: int) -> None:
        """Take note of a step that is final."""
        self._step = step

    def note(self) -> dict[str, Any]:
        """Return a note of the current files of Spark's log."""
        with self._lock:
            return self._notes.note(self._batch)

    def close(self) -> None:
        """Write the last note, after the end of Spark's query."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._write()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._write()

    def _write(self) -> None:
        """Write a note if a batch has begun or a step or batch was committed since the last note."""
        batch, step = self._batch, self._step
        now = batch, step, os.path.lexists(self._checkpoint.path / "commits" / str(batch))
        if now == self._written:
            return
        with contextlib.suppress(CheckpointError):  # on a full disk the next step fails itself
            self._checkpoint.write_note({**self.note(), STEP: step})
            self._written = now
