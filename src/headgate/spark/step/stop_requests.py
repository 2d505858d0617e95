"""Reads and answers the stop requests that ``headgate stop`` leaves in a query's checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headgate.checkpoint.command_files import CommandFiles, PendingCommand
from headgate.core.errors import HeadgateError
from headgate.journal.schema import ControlAct, Event

_LATER = "this run began after it was asked for; ask again."


class StopRequests:
    """Collects stop requests since the query's start, and answers them when the query has ended.

    `write`: appends an event to the journal.
    """

    def __init__(self, files: CommandFiles, write: Callable[[Event], None]) -> None:
        self._files = files
        self._write = write
        self._requests: list[str] = []
        for asked in self._pending():  # requests to an earlier run
            self._done(asked.id, _LATER)

    def poll(self) -> bool:
        """Return whether a stop request has come; write new requests into the journal."""
        for asked in self._pending():
            if asked.command is not None:
                self._requests.append(asked.id)
                self._write(ControlAct("stop", asked.command.by, asked.command.reason))
        return bool(self._requests)

    def answer(self) -> None:
        """Answer all requests: the query has ended."""
        for request in self._requests:
            self._done(request, None)

    def _pending(self) -> list[PendingCommand]:
        try:
            return self._files.stops()
        except (
            HeadgateError,
            OSError,
        ):  # an unreachable checkpoint must not end the query here
            return []

    def _done(self, request: str, refused: str | None) -> None:
        with contextlib.suppress(HeadgateError, OSError):
            self._files.write_answer(request, refused)
