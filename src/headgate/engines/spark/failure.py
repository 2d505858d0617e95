"""What a failed attempt of a batch says: whether another can help, and what a user's own code did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headgate.core.errors import EngineError, HeadgateError, ProcessorError

_TOO_MUCH_TEXT = "TOO_MUCH_TEXT"
_FINAL = (
    "ARITHMETIC_OVERFLOW",
    "DIVIDE_BY_ZERO",
    "CAST_OVERFLOW",
    "CAST_INVALID_INPUT",
    _TOO_MUCH_TEXT,
)
_OUTGROWN = re.compile(
    "offset overflow|overflowed binary|input array too large|more than 2147483646 bytes"
)
"""What Arrow says when a column of text needs more than the 2 GB that its offsets reach."""

_LOST_WORKER = re.compile(
    "Python worker (failed to connect back|exited unexpectedly|is idle)"
    "|Timed out while waiting for the Python worker"
    "|while reading the port number from|Python daemon failed to launch worker"
    "|java.net.SocketException|java.net.SocketTimeoutException|java.io.EOFException"
)
"""What Spark says of a worker that died, or that a busy machine was too slow to start."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Say where a slot failed, if a user's code did or a column of text became too large.

    Raises
    ------
    ProcessorError
        With `where` in front.
    EngineError
        A column of text has more than 2 GB; running the batch again cannot help.
    """
    try:
        yield
    except ProcessorError as error:
        raise ProcessorError(f"{where}: {error}") from None
    except pa.ArrowException as error:
        if _OUTGROWN.search(str(error)) is None:
            raise
        msg = (
            f"[{_TOO_MUCH_TEXT}] {where}: a column of text or binary has more than 2 GB in one slot's "
            "batch; read less per batch (as with maxFilesPerTrigger), use more slots, or select less."
        )
        raise EngineError(msg) from error


def processor_error(error: Exception) -> ProcessorError | None:
    """Return the failure of a user's processor that a job ended with, None for any other.

    Spark hands on what a Python worker raised as text only.
    """
    found = re.search(rf"{ProcessorError.__module__}\.{ProcessorError.__name__}: (.*)", str(error))
    return None if found is None else ProcessorError(found[1])


def is_final(error: Exception) -> bool:
    """Whether running the batch again cannot help."""
    if isinstance(error, EngineError):
        return not error.transient
    return isinstance(error, HeadgateError) or any(f"[{name}" in str(error) for name in _FINAL)


def is_lost_worker(error: Exception) -> bool:
    """Whether a Python worker died or did not start in time, whatever it was to do."""
    return _LOST_WORKER.search(str(error)) is not None and not is_final(error)
