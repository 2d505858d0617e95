"""Limits the time of a user's own code, so that code that hangs raises an error."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class TookTooLong(BaseException):
    """Interrupts a user's code; no `Exception`, so that ``except Exception`` does not catch it."""


class TimeLimit:
    """Raises `TookTooLong` in Python code that takes too long.

    Code that does not return to the interpreter (a C function that waits for ever) is not interrupted.

    `seconds`: the limit; 0 for none. Outside the main thread there is no limit, because signals do
    not arrive there.
    """

    def __init__(self, seconds: float) -> None:
        on = seconds > 0 and threading.current_thread() is threading.main_thread()
        self._seconds = seconds if on else 0.0

    def __enter__(self) -> TimeLimit:
        if self._seconds:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._seconds:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        msg = (
            f"it took more than the {self._seconds:g} s of headgate.processorTimeLimit and was "
            "interrupted; the state is as before the batch."
        )
        raise TookTooLong(msg)
