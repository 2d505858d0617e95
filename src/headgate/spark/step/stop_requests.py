"""Requests of people outside, left in the checkpoint, that a query shall stop: ``headgate stop``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headgate.checkpoint.command_files import CommandFiles, PendingCommand
from headgate.core.errors import HeadgateError
from headgate.journal.schema import ControlAct, Event

_LATER = "this run began after it was asked for; ask again."


class StopRequests:
    """Takes requests that came after the query's start, and answers them when it has ended.

    `write`: appends an event to the journal.
    """

    def __init__(self, files: CommandFiles, write: Callable[[Event], None]) -> None:
        self._files = files
        self._write = write
        self._requests: list[str] = []
        for asked in self._pending():  # of a run before this one
            self._done(asked.id, _LATER)

    def poll(self) -> bool:
        """Return whether a request to stop is there; note new requests in the journal."""
        for asked in self._pending():
            if asked.command is not None:
                self._requests.append(asked.id)
                self._write(ControlAct("stop", asked.command.by, asked.command.reason))
        return bool(self._requests)

    def answer(self) -> None:
        """Say that the query has ended."""
        for request in self._requests:
            self._done(request, None)

    def _pending(self) -> list[PendingCommand]:
        try:
            return self._files.stops()
        except (
            HeadgateError,
            OSError,
        ):  # the checkpoint is away, and this is not what ends a query
            return []

    def _done(self, request: str, refused: str | None) -> None:
        with contextlib.suppress(HeadgateError, OSError):
            self._files.write_answer(request, refused)
