"""Keeps the threads that do a query's batches, from whose Python code others may raise."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class BrokenOff(BaseException):
    """The batch's query was stopped; no error that a user's code should catch and go on from."""


_this = threading.local()
"""Says whether the thread that asks does a batch: `batches` is then above 0."""


def does_batch() -> bool:
    """Return whether this thread does the batch of some query: a user's function asks."""
    return getattr(_this, "batches", 0) > 0


class BatchThreads:
    """The threads that do batches and deliveries of a query, while they do.

    Attributes
    ----------
    idle : Event    Set while nothing is under way.
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
        """Return whether the thread that asks is one of them."""
        return threading.get_ident() in self._ids

    def begin(self) -> None:
        """Take note of a batch or delivery that is to be waited for."""
        with self._lock:
            self._begun += 1
            self.idle.clear()

    def end(self) -> None:
        """Take note that one of them is over."""
        with self._lock:
            self._begun -= 1
            if not self._begun:
                self.idle.set()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do a batch in this thread."""
        this = threading.get_ident()
        self._ids.add(this)
        _this.batches = getattr(_this, "batches", 0) + 1
        try:
            yield
        finally:
            _this.batches -= 1
            with self._lock:
                if this in self._raised:  # it may come too late
                    _raise_here()
                    self._raised.discard(this)
                self._ids.discard(this)

    def raise_in(self) -> None:
        """Raise `BrokenOff` in the threads, at their next step of Python code."""
        with self._lock:
            self._raised |= self._ids
            for ident in self._ids:
                _raise_in(ident, BrokenOff)


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _raise_here() -> None:
    """Have what is to be raised in this thread come now, and end here.

    Had it been withdrawn instead, CPython 3.11 would look out for it ever after, and never go on where a
    debugger or coverage traces the thread.
    """
    with contextlib.suppress(BrokenOff):
        _raise_in(threading.get_ident(), BrokenOff)
        while True:  # it comes between two steps
            time.sleep(0)
