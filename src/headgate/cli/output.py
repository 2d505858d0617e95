"""Keeps stdout for the result."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def json_only() -> Iterator[None]:
    """Send everything that is written to stdout to stderr meanwhile.

    Done on the file descriptor, not only on `sys.stdout`: the JVM and the Python workers that are
    started meanwhile inherit descriptor 1 and keep it, so that their later words go there, too.
    """
    sys.stdout.flush()
    saved = os.dup(1)  # which no process that is started inherits
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # What C libraries and this process still hold must leave before stdout is stdout again.
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved, 1)
        os.close(saved)
