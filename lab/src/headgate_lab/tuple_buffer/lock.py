"""Provides a lock among unrelated processes that is released when its holder is killed."""

from __future__ import annotations

import fcntl
import os
import threading
from types import TracebackType

from headgate.core.errors import StateError

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class FileLock:
    """Holds an exclusive `flock` on a file, which also excludes the threads that share this object.

    The kernel releases it when its holder dies, in whatever way. It does not if the holder is merely
    stopped: then all others wait until it goes on, so nothing but a short copy is done under the lock.
    `fcntl` record locks would not do: a process loses all its locks when it closes any descriptor of the
    file. A forked child opens the file anew, since it would otherwise share its parent's lock.

    Parameters
    ----------
    descriptor : int    Open on the file; owned by this object.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._process = os.getpid()
        self._thread = threading.Lock()
        found = os.fstat(descriptor)
        self._inode = (found.st_dev, found.st_ino)

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            self._reopen()
        self._thread.acquire()
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            self._thread.release()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._thread.release()

    def close(self) -> None:
        """Close the descriptor; the lock is not held."""
        os.close(self._descriptor)

    def _reopen(self) -> None:
        self._thread = threading.Lock()
        descriptor = os.open(self._path, _OPEN)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != self._inode:
            os.close(descriptor)
            msg = f"{self._path} was replaced after this process's parent opened it; open it again."
            raise StateError(msg)
        os.close(self._descriptor)
        self._descriptor, self._process = descriptor, os.getpid()
