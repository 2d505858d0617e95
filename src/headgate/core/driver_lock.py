"""Reads the lock that the JVM of a checkpoint's driver holds on a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from headgate.core.input import open_regular

LOCK = "driver.lock"
"""Name of the lock's file, in the checkpoint's ``headgate`` directory."""


def is_locked(path: Path) -> bool:
    """Return whether another process, on any host, holds the lock of a file."""
    try:
        opened = open_regular(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(opened)
    return False
