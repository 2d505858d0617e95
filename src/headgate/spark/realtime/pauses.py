"""Counts what a pipe loses: how long to wait before it goes on, and when it is given up."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from headgate.core.errors import EngineError
from headgate.spark.realtime.run_slots import PartLost

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0


@dataclass
class _Row:
    """Losses of one kind.

    Attributes
    ----------
    soon_s : float
        A loss so soon after its start is one of a row.
    for_nothing : int
        How many of a row wait for nothing.
    began_s : float
        The newest start.
    in_row : int
    open : int
        Losses since the last commit.
    """

    soon_s: float
    for_nothing: int
    began_s: float = -math.inf
    in_row: int = 0
    open: int = 0


class PipeLosses:
    """Counts the losses of a query; those of a whole pipe, and those of slots alone.

    A pipe that is lost starts again at once. One that was lost soon after its start waits before, twice
    as long with each further one in a row: a start takes about a second of a core, and what fails again
    and again takes little from others. Slots that are lost cost less: only the second in a row waits, or
    one before which nothing was committed since the last. All limits are chosen.

    `most`: so many of a kind without a commit between are too many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pipe, self._slots = _Row(10.0, 0), _Row(2.0, 1)

    def begins(self, *, slots_alone: bool) -> None:
        """Take note of a start: of other slots, or of all."""
        now_s = time.monotonic()
        self._slots.began_s = now_s
        if not slots_alone:
            self._pipe.began_s = now_s

    def committed(self) -> None:
        """Take note that the query gets on."""
        self._pipe.open = self._slots.open = 0

    def add(self, *, slots_alone: bool) -> float:
        """Count a loss; return how long to wait before the next start, in seconds."""
        row = self._slots if slots_alone else self._pipe
        row.open += 1
        row.in_row = row.in_row + 1 if time.monotonic() - row.began_s < row.soon_s else 0
        again = max(row.in_row, row.open) if slots_alone else row.in_row
        return pause_s(again - row.for_nothing)

    @property
    def open(self) -> int:
        """Return how many losses there were since the last commit, of both kinds."""
        return self._pipe.open + self._slots.open

    def check(self, error: Exception) -> None:
        """Raise `error`, the newest loss, if there were too many: the pipe starts no more."""
        times = max(self._pipe.open, self._slots.open)
        if times < self._most:
            return
        if not isinstance(error, PartLost):
            raise error
        msg = (
            f"{str(error).rstrip('.')}, {times} times in a row: a function of yours may end its process, "
            "or memory is short; look there, and start the query again."
        )
        raise EngineError(msg, transient=True) from error


def pause_s(again: int) -> float:
    """Return a pause in seconds, which doubles with each loss `again` up to ten seconds."""
    return min(_FIRST_PAUSE_S * 2 ** (again - 1), _LONGEST_PAUSE_S) if again > 0 else 0.0
