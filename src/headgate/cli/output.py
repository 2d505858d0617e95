"""Keeps stdout for the result."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def json_only() -> Iterator[None]:
    """Send to stderr everything that is written to stdout in the context.

    Replaces the file descriptor, not only `sys.stdout`: the JVM and the Python workers that start in
    the context inherit descriptor 1 and keep it, so that their later output goes to stderr, too.
    """
    sys.stdout.flush()
    saved = os.dup(1)  # no child process inherits this descriptor
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # Python's buffers must be written before stdout is stdout again.
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved, 1)
        os.close(saved)
