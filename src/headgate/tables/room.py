"""Allocates the bytes of files of state before they are mapped, and reports a full file system."""

from __future__ import annotations

import errno
import os
import shutil

from headgate.core.errors import ArenaFull, StateError

ENLARGE = (
    "enlarge its file system, bound memory by headgate.state.memoryMax, or set HEADGATE_ARENA_DIR to a "
    "local directory"
)
MAKE_ROOM = "make room there, or set HEADGATE_SPILL_DIR to another local directory"
"""Remedies in messages about a full arena, and about a full spill directory."""

_CREATE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL


def allocate(descriptor: int, byte_count: int) -> None:
    """Allocate the bytes of the file now; raises OSError if there is no room.

    On a full tmpfs, a write to a sparse mapped file causes SIGBUS, not an exception.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, byte_count)
        return
    missing = byte_count - os.fstat(descriptor).st_size  # macOS
    while missing > 0:
        missing -= os.pwrite(descriptor, bytes(min(missing, 1 << 20)), byte_count - missing)


def created(path: str, byte_count: int, remedy: str = ENLARGE) -> int:
    """Create a file of `byte_count` allocated zeros; return its descriptor.

    `remedy`: remedy in the message of `ArenaFull`. Raises `ArenaFull` if there is no room for the bytes
    or for one more file; `StateError` if the file cannot be created for another reason.
    """
    directory = os.path.dirname(path)
    try:
        descriptor = os.open(path, _CREATE, 0o600)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _full(directory, byte_count, remedy) from error
        msg = f"{path} cannot be created: {error.strerror}"
        raise StateError(msg) from error
    try:
        allocate(descriptor, byte_count)
    except OSError as error:
        os.close(descriptor)
        os.unlink(path)
        if error.errno == errno.ENOSPC:
            raise _full(directory, byte_count, remedy) from error
        msg = f"{byte_count} bytes cannot be allocated in {directory}: {error.strerror}"
        raise StateError(msg) from error
    return descriptor


def _full(directory: str, byte_count: int, remedy: str) -> ArenaFull:
    free = shutil.disk_usage(directory).free
    return ArenaFull(
        f"the arena {directory} has {free} bytes left where a key group needs {byte_count}: {remedy}"
    )
