"""Reports a failure of a user's own code: the place of the failure, and no content of a record."""

from __future__ import annotations

import re
from typing import Any

from headgate.core.errors import HeadgateError, ProcessorError
from headgate.core.frames import frames_of, place_of, users_place
from headgate.core.input import shown
from headgate.operators.time_limit import TookTooLong

FAILURES = BaseException
"""What ends a call of a user's own code: ``sys.exit``, a panic of a native library and a cancelled
coroutine are no Exception, and do not end the worker."""


def explained(error: BaseException, where: str, called: Any = None) -> ProcessorError:
    """Return an error that says where another one came up; raise it ``from None``.

    It names the kind of the exception, the user's file and line, and between ‹ and › the exception's
    text, which may quote a record: `withheld` takes that out.

    `called`: the user's function; named where the call itself failed, so that no line of it ran.
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
    """Return the text of an error without what users' exceptions say."""
    return _SAID.sub("", text)
