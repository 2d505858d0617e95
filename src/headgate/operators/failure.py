"""Reports a failure in a user's own code with its place, and without contents of records."""

from __future__ import annotations

import re
from typing import Any

from headgate.core.errors import HeadgateError, ProcessorError
from headgate.core.frames import frames_of, place_of, users_place
from headgate.core.input import shown
from headgate.operators.time_limit import TookTooLong

FAILURES = BaseException
"""Exceptions that can end a call of a user's own code. ``sys.exit``, a panic of a native library and a
cancelled coroutine raise no `Exception`; they must not end the worker either."""


def explained(error: BaseException, where: str, called: Any = None) -> ProcessorError:
    """Return an error that says where another error was raised; raise the result ``from None``.

    The message names the exception's class, and the user's file and line. The exception's text, which may
    quote a record, stands between ‹ and ›; `withheld` removes this part.

    `called`: the user's function; named if the call itself failed before any line of the function ran.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, HeadgateError | TookTooLong):
        return ProcessorError(f"{where}: {error}")
    at = users_place(frames_of(error.__traceback__)) or place_of(called)
    said = str(error).replace("‹", "<").replace("›", ">")
    text = f" ‹{shown(said)}›" if said else ""
    return ProcessorError(
        f"{where}: {type(error).__name__}{at and f' {at}'}{text}; the state is as before the batch. "
        "Correct it and start the query again."
    )


_SAID = re.compile(r" ‹[^›]*›")


def withheld(text: str) -> str:
    """Return the text of an error without the texts of users' exceptions."""
    return _SAID.sub("", text)
