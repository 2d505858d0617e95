"""What a failed attempt of a batch says: whether another can help, and what a user's own code did."""

from __future__ import annotations

import re

from headgate.core.errors import EngineError, HeadgateError, ProcessorError

_FINAL = ("ARITHMETIC_OVERFLOW", "DIVIDE_BY_ZERO", "CAST_OVERFLOW", "CAST_INVALID_INPUT")


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
