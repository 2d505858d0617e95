"""The thread that does a batch, from whose Python code others may raise."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BrokenOff(BaseException):
    """The batch's query was stopped; no error that a user's code should catch and go on from."""


_this = threading.local()
"""Says whether the thread that asks does a batch: `batches` is then above 0."""


def does_batch() -> bool:
    """Return whether this thread does the batch of some query: a user's function asks."""
    return getattr(_this, "batches", 0) > 0


class BatchThread:
    """The thread of the batch that is under way, if one is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._id: int | None = None

    @property
    def is_this(self) -> bool:
        """Return whether it is the thread that asks."""
        return self._id == threading.get_ident()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do a batch in this thread."""
        self._id = threading.get_ident()
        _this.batches = getattr(_this, "batches", 0) + 1
        try:
            yield
        finally:
            _this.batches -= 1
            with self._lock:
                _raise_in(threading.get_ident(), None)  # what comes too late
                self._id = None

    def raise_in(self) -> None:
        """Raise `BrokenOff` in the thread, at its next step of Python code."""
        with self._lock:
            if self._id is not None:
                _raise_in(self._id, BrokenOff)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    raised = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
