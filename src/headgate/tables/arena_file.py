"""Opens, locks, maps and replaces the file of one key group; remembers the files that are open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from headgate.core.errors import ArenaFull, StateError
from headgate.tables.header import HEADER_BYTES, Header
from headgate.tables.mapping import empty_file, map_file
from headgate.tables.ports import U8, TableLayout
from headgate.tables.room import ENLARGE, MAKE_ROOM, allocate, created
from headgate.tables.table import BufferTable

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC

_TRIES = 3
"""Attempts to lock a file that other processes replace between opening and locking it."""

_CHUNK = 1 << 24
"""Bytes per write call; one call cannot write 2 GB or more."""

_known: dict[str, ArenaFile] = {}
"""Files that this process has mapped, by path. Mapping again would cost 0.3 us per touched page."""


class ArenaFile:
    """Holds the memory of one table (`headgate.tables.table.Memory`) in a file with an exclusive lock.

    Parameters
    ----------
    path : str          Final path; a new file has a temporary path until `publish`.
    descriptor : int    Owned by this object; holds the lock.
    nonce : int         Part of the undo file's name.

    Attributes
    ----------
    table : BufferTable    Set by the creator of the file; its arrays are views of `buffer`.
    held : bool            True while a store of this process uses it: flock cannot separate two stores.
    places : callable or None
        Returns paths for a larger file of a given size, the best path first; set by a store that has
        several places. None: the larger file gets the path of this file.
    """

    table: BufferTable | None
    places: Callable[[int], Sequence[str]] | None

    def __init__(self, path: str, descriptor: int, byte_count: int, nonce: int = 0) -> None:
        self.path = path
        self.nonce = nonce
        self.held = False
        self.table = None
        self.places = None
        self._went = False
        self._descriptor = descriptor
        self._temporary: str | None = None
        self._next: ArenaFile | None = None
        self._undo: U8 | None = None
        status = os.fstat(descriptor)
        self._inode = (status.st_dev, status.st_ino)
        self.buffer: U8 = map_file(descriptor, byte_count)

    @classmethod
    def open(cls, path: str) -> ArenaFile | None:
        """Return the file at `path`, mapped but not locked; None if it cannot be a table."""
        try:
            descriptor = os.open(path, _OPEN)
        except OSError:
            return None
        status = os.fstat(descriptor)
        others = status.st_uid != os.geteuid() or status.st_mode & 0o077
        if others or status.st_size < HEADER_BYTES:  # a device or a pipe has size 0
            os.close(descriptor)
            return None
        try:
            return cls(path, descriptor, status.st_size)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def create(
        cls,
        paths: Sequence[str],
        byte_count: int,
        nonce: int | None = None,
        remedy: str = ENLARGE,
    ) -> ArenaFile:
        """Return a new zeroed file of `byte_count` bytes, locked, under a temporary name.

        `paths`: candidates for the final path; the first path with room is used. `remedy`: remedy in
        the message of `ArenaFull`, which is raised if no path has room.
        """
        for path in paths[:-1]:
            try:
                return cls._create(path, byte_count, nonce, remedy)
            except ArenaFull:
                continue
        return cls._create(paths[-1], byte_count, nonce, remedy)

    @classmethod
    def _create(cls, path: str, byte_count: int, nonce: int | None, remedy: str) -> ArenaFile:
        named = secrets.randbits(63) if nonce is None else nonce
        temporary = f"{path}.{secrets.randbits(64):016x}.tmp"
        descriptor = created(temporary, byte_count, remedy)
        try:
            file = cls(path, descriptor, byte_count, named)
            file._temporary = temporary
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        file.held = True
        return file

    def lock(self) -> bool:
        """Lock the file for this process; False if another process or store has locked it."""
        if self.held:
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.held = True
        return True

    def unlock(self) -> None:
        """Unlock the file; the mapping stays for the next task of this worker."""
        self.held = False
        if self._went:
            self.drop()
        elif _known.get(self.path) is self:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        else:
            self._close()

    def is_current(self) -> bool:
        """Return whether the path still names this file."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode

    def drop(self) -> None:
        """Unlock, close and forget the file; it stays on the file system."""
        if _known.get(self.path) is self:
            del _known[self.path]
        self.held = False
        self._close()

    def leave(self, *, for_good: bool = False) -> None:
        """Close a file that another user has locked; `for_good` if its path now names another file."""
        known = _known.get(self.path) is self
        if known and for_good:
            del _known[self.path]
        # A store of this process that uses the file closes it at release.
        if not self.held and (for_good or not known):
            os.close(self._descriptor)

    def discard(self) -> None:
        """Drop the file and remove its temporary name."""
        if self._temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
        self.drop()

    def publish(self) -> bool:
        """Rename the file to its path; return whether another file was there."""
        assert self._temporary is not None
        old = _read_nonce(self.path)
        # If another process removed the temporary file, this process continues in a file without a name.
        try:
            os.rename(self._temporary, self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            msg = f"{self.path} cannot be put in place: {error.strerror}; remove what is there"
            raise StateError(msg) from error
        self._temporary = None
        if old is not None and old != self.nonce:
            with contextlib.suppress(OSError):
                os.unlink(f"{self.path}.{old:016x}.undo")
        return old is not None

    # The memory of a table.

    def enlarge(self, byte_count: int) -> U8:
        """Return the buffer of a new, larger file."""
        paths = (self.path,) if self.places is None else self.places(byte_count)
        remedy = ENLARGE if self.places is None else MAKE_ROOM
        self._next = ArenaFile.create(paths, byte_count, self.nonce, remedy)
        return self._next.buffer

    def switch(self) -> None:
        """Continue with the larger file; publish it only if the path still names this file."""
        grown, self._next = self._next, None
        assert grown is not None
        if self._temporary is not None:
            os.unlink(self._temporary)
            self._temporary = grown._temporary
            self._go(grown.path)
        elif self.is_current():
            grown.publish()
            if grown.path != self.path:
                self._unlink()
                self._go(grown.path)
        elif grown._temporary is not None:
            # Another process has replaced this file meanwhile: the other file stays.
            os.unlink(grown._temporary)
        self._close()
        self._descriptor, self._inode = grown._descriptor, grown._inode
        self.buffer = grown.buffer

    def _go(self, path: str) -> None:
        """Change the path of this file."""
        if path == self.path:
            return
        if _known.get(self.path) is self:
            del _known[self.path]
            self.path = path
            remember(self)
            # the undo log stays at the old path: `unlock` drops this file; the next user maps both
            self._went = True
        self.path = path

    def _unlink(self) -> None:
        """Remove the file and its undo file from the file system."""
        for name in (self.path, f"{self.path}.{self.nonce:016x}.undo"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def remove(self) -> None:
        """Remove and drop this file, which the process has locked, and its undo file."""
        self._unlink()
        self.drop()

    def move(self, path: str) -> None:
        """Copy the table to another path, publish the copy, and remove this file.

        If the process is killed in between, both files exist and are equal. The memory is freed at once,
        even if workers have mapped the file: they check the path of a file before they read it.
        """
        copy = ArenaFile.create((path,), self.buffer.size, self.nonce, MAKE_ROOM)
        try:
            copy._write(self.buffer.data)
            copy.publish()
        except BaseException:
            copy.discard()
            raise
        copy.drop()
        if self.is_current():
            self._unlink()
            empty_file(self.buffer)
        self.drop()

    def _write(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done : done + _CHUNK], done)

    def undo(self, byte_count: int, *, create: bool) -> U8 | None:
        """Return the mapped undo file; None if it is missing or there is no room for it."""
        if self._undo is not None and self._undo.size >= byte_count:
            return self._undo
        path = f"{self.path}.{self.nonce:016x}.undo"
        try:
            descriptor = os.open(path, _OPEN | (os.O_CREAT if create else 0), 0o600)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if size < byte_count:
                if not create:
                    return None
                allocate(descriptor, byte_count)
                size = byte_count
            self._undo = map_file(descriptor, size)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return self._undo

    def _close(self) -> None:
        # Explicit, because a child that was forked meanwhile may share the open file.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)

    def close_in_child(self) -> None:
        """Close the descriptor without unlocking the parent's lock."""
        os.close(self._descriptor)

    @staticmethod
    def remove_stale(path: str) -> None:
        """Remove a temporary or undo file; a temporary file only if its lock is free."""
        with contextlib.suppress(OSError):
            descriptor = os.open(path, _OPEN)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            finally:
                os.close(descriptor)


def take(path: str, layout: TableLayout) -> ArenaFile | None:
    """Return the file at `path`: mapped, locked by this call, with its table attached.

    None if the file is missing, if it is locked, or if its table is not valid. The table is attached
    only under the lock: without the lock, its owner may be in the middle of a write.
    """
    for _ in range(_TRIES):
        file = _known.get(path) or ArenaFile.open(path)
        if file is None:
            return None
        if file.lock():
            if file.is_current():
                return _attach(file, layout)
            file.drop()
        elif file.is_current():
            file.leave()
            return None
        else:
            file.leave(for_good=True)
    return None


def _attach(file: ArenaFile, layout: TableLayout) -> ArenaFile | None:
    if file.table is None:
        try:
            file.table = BufferTable.attach(file, layout)
        except StateError:
            file.drop()
            return None
        file.nonce = file.table.header.nonce
        remember(file)
    return file


def remember(file: ArenaFile) -> None:
    """Keep the mapping for the next task of this process; close the mapping that it replaces."""
    replaced = _known.get(file.path)
    _known[file.path] = file
    if replaced is not None and replaced is not file and not replaced.held:
        replaced._close()


def forget_directory(prefix: str) -> None:
    """Drop all mappings of files below a directory that no store of this process holds."""
    for path in [path for path in _known if path.startswith(prefix)]:
        if not _known[path].held:
            _known[path].drop()


def forget_replaced(prefix: str) -> None:
    """Drop mappings of files below a directory whose path now names another file, or none.

    Such mappings hold the memory of files that have moved, or have grown elsewhere.
    """
    for path, file in [(p, f) for p, f in _known.items() if p.startswith(prefix)]:
        if not file.held and not file.is_current():
            _known[path].drop()


def _forget_in_child() -> None:
    # A forked child shares its parent's locks: it must not be able to use or release them.
    for file in _known.values():
        file.close_in_child()
    _known.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def _read_nonce(path: str) -> int | None:
    """Return the nonce of the table at `path`; None if there is no file, 0 if it is not readable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError:
        return 0
    try:
        raw = os.pread(descriptor, HEADER_BYTES, 0)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    if len(raw) < HEADER_BYTES:
        return 0
    return Header(np.frombuffer(raw, dtype=np.uint8)).nonce & ((1 << 63) - 1)
