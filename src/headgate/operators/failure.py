"""Reports a failure of a user's own code: the place of the failure, and no content of a record."""

from __future__ import annotations

import traceback

from headgate.core.errors import HeadgateError, ProcessorError
from headgate.operators.time_limit import TookTooLong

FAILURES = BaseException
"""What ends a call of a user's own code: ``sys.exit``, a panic of a native library and a cancelled
coroutine are no Exception, and do not end the worker."""


def explained(error: BaseException, where: str) -> ProcessorError:
    """Return an error that says where another one came up; raise it ``from None``.

    The text of an exception may quote a record, so only our own is kept: of a user's there is the kind,
    and the file and line that raised it.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, HeadgateError | TookTooLong):
        return ProcessorError(f"{where}: {error}")
    frames = traceback.extract_tb(error.__traceback__)
    at = f" in {frames[-1].filename.rpartition('/')[2]} line {frames[-1].lineno}" if frames else ""
    return ProcessorError(
        f"{where}: {type(error).__name__}{at}; the state is as before the batch. Correct it and start "
        "the query again."
    )
