"""Tracks the threads that run a query's batches, and raises an exception in them to stop the query."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class BrokenOff(BaseException):
    """Ends a batch whose query was stopped; a user's ``except Exception`` does not catch it."""


_this = threading.local()
"""Per thread: `batches` is the number of batches that the thread runs now."""


def does_batch() -> bool:
    """Return whether this thread runs a batch of any query, and thus a user's function."""
    return getattr(_this, "batches", 0) > 0


class BatchThreads:
    """Tracks the batches and deliveries of a query, and the threads that run batches.

    `idle`: set while no batch and no delivery runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: set[int] = set()
        self._raised: set[int] = set()
        self._begun = 0
        self.idle = threading.Event()
        self.idle.set()

    @property
    def is_this(self) -> bool:
        """Return whether the calling thread runs a batch."""
        return threading.get_ident() in self._ids

    def begin(self) -> None:
        """Take note of a batch or delivery that begins; `idle` waits for its end."""
        with self._lock:
            self._begun += 1
            self.idle.clear()

    def end(self) -> None:
        """Take note of the end of a batch or delivery."""
        with self._lock:
            self._begun -= 1
            if not self._begun:
                self.idle.set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count this thread as running a batch."""
        this = threading.get_ident()
        self._ids.add(this)
        _this.batches = getattr(_this, "batches", 0) + 1
        try:
            yield
        finally:
            _this.batches -= 1
            with self._lock:
                if this in self._raised:  # the exception may not have come yet
                    _raise_here()
                    self._raised.discard(this)
                self._ids.discard(this)

    def raise_in(self) -> None:
        """Raise `BrokenOff` in the threads, at their next step of Python code."""
        with self._lock:
            self._raised |= self._ids
            for ident in self._ids:
                _raise_in(ident)


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(BrokenOff))


def _raise_here() -> None:
    """Raise a pending exception of this thread now, and suppress it.

    Withdrawing the exception is not enough: CPython 3.11 would go on checking for it, and hang a thread
    that a debugger or coverage traces.
    """
    with suppress(BrokenOff):
        _raise_in(threading.get_ident())
        while True:  # the exception comes between two bytecode instructions
            time.sleep(0)
