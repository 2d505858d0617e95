"""Counts the losses of a pipe, and decides how long a restart waits and when to give up."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from headgate.core.errors import EngineError
from headgate.spark.realtime.run_slots import PartLost

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0


@dataclass
class _Row:
    """Counts losses of one kind.

    Attributes
    ----------
    soon_s : float
        A loss within this time after a start belongs to a series.
    for_nothing : int
        Number of losses in a series without a pause.
    began_s : float
        Time of the newest start.
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
    """Counts the losses of a query: losses of the whole pipe, and losses of slots alone.

    A lost pipe starts again at once. If it was lost soon after its start, the restart waits, twice as
    long after each further loss in the series: a start takes a core for about 1 s, and a pipe that always
    fails must leave the cores to others. Lost slots cost less: a restart waits only after the second loss
    in a series, or after two losses without a commit. All limits are chosen, not tuned.

    `most`: number of losses of one kind without a commit at which the query gives up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pipe, self._slots = _Row(10.0, 0), _Row(2.0, 1)

    def begins(self, *, slots_alone: bool) -> None:
        """Take note of a start, of new slots or of the whole pipe."""
        now_s = time.monotonic()
        self._slots.began_s = now_s
        if not slots_alone:
            self._pipe.began_s = now_s

    def committed(self) -> None:
        """Take note of a commit."""
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
        """Return the number of losses of both kinds since the last commit."""
        return self._pipe.open + self._slots.open

    def check(self, error: Exception) -> None:
        """Raise `error`, the newest loss, if there were too many losses without a commit."""
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
    """Return a pause in seconds: 0.25 s for `again` = 1, doubled for each further one, at most 10 s."""
    return min(_FIRST_PAUSE_S * 2 ** (again - 1), _LONGEST_PAUSE_S) if again > 0 else 0.0
