"""Makes the Unix sockets between the JVM and its Python workers reachable for this user only."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

from headgate.core.input import open_regular

_PREFIX = "hg-"
_LOCK = ".in-use"
_LENGTH_MAX = 61
"""Longest directory that Spark takes: a Unix socket's path has at most 104 characters with the name."""


@cache
def socket_directory() -> str:
    """Return a directory that only this user can enter: every process that reaches a socket is trusted.

    This process removes the directory when it ends. This function also removes the directories of
    processes that were killed and could not do so.
    """
    made = tempfile.mkdtemp(prefix=_PREFIX)
    if len(made) > _LENGTH_MAX:
        Path(made).rmdir()
        made = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
    lock = os.open(Path(made, "new"), os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process ends, in whatever way
    Path(made, "new").rename(Path(made, _LOCK))  # no process sees the file before it is locked
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    sweep(Path(made).parent)
    return made


def sweep(parent: Path) -> list[Path]:
    """Remove the socket directories of ended processes below `parent`; return what was removed."""
    removed = []
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            descriptor = open_regular(lock, os.O_RDWR)
        except OSError:
            continue  # another user's lock, a lock just removed, or no lock of headgate
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(lock.parent, ignore_errors=True)
            removed.append(lock.parent)
        finally:
            os.close(descriptor)
    return removed
