"""Makes, locks and removes the directories of runs, which hold arenas and spilled state."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headgate.core.errors import StateError
from headgate.core.input import open_regular, regular_bytes

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RUN = re.compile(r"[0-9a-f]{32}(\.new)?")
_LOCK = "lock"
_ENDED = "ended"
_ARENA = "arena.id"
_SPILL = "HEADGATE_SPILL_DIR"


def check_name(name: str, what: str) -> None:
    """Refuse a name that may not become part of a path.

    Raises `StateError` if the name has other characters than letters, digits, ``_`` and ``-``, or more
    than 64 characters.
    """
    if not _NAME.fullmatch(name):
        msg = f"{what} {name!r} cannot name a file: use 1 to 64 letters, digits, _ and -"
        raise StateError(msg)


def private_directory(path: Path, setting: str = "HEADGATE_ARENA_DIR") -> Path:
    """Create the directory `path` (0700) if it is missing; return it if only this user has access.

    `setting`: environment variable that chooses another directory. Raises `StateError` if `path` is a
    symbolic link, another user's, open to others, or cannot be created.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        msg = f"directory {path} for state cannot be used ({error.strerror}): set {setting}"
        raise StateError(msg) from error
    wrong = ""
    if not stat.S_ISDIR(status.st_mode):
        wrong = "is not a directory"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o077:
        wrong = f"is open to others (mode {stat.S_IMODE(status.st_mode):o})"
    if wrong:
        msg = f"directory {path} for state {wrong}: make it a directory of mode 0700 of your own"
        raise StateError(msg)
    return path


def arena_root() -> Path:
    """Return the directory for run directories on this host.

    ``HEADGATE_ARENA_DIR`` if set; else ``/dev/shm/headgate-<uid>``; else a directory in the temporary
    directory, for machines without shared memory.
    """
    chosen = os.environ.get("HEADGATE_ARENA_DIR")
    if chosen:
        return private_directory(Path(chosen))
    name = f"headgate-{os.geteuid()}"
    if os.access("/dev/shm", os.W_OK | os.X_OK):
        return private_directory(Path("/dev/shm") / name)
    return private_directory(Path(tempfile.gettempdir()) / name)


def spill_root() -> Path:
    """Return the parent of this host's spill directories, which hold state moved out of memory.

    ``HEADGATE_SPILL_DIR`` if set; else a directory in the temporary directory. Raises `StateError` if
    the temporary directory lies in memory, or if it cannot be used.
    """
    path = spill_path()
    if not os.environ.get(_SPILL) and in_memory(path.parent):
        msg = (
            f"the temporary directory {path.parent} is memory, where state cannot go to leave memory: "
            f"set {_SPILL} to a directory on a local disk"
        )
        raise StateError(msg)
    return private_directory(path, _SPILL)


def spill_path() -> Path:
    """Return the path of `spill_root`; the directory may be missing."""
    chosen = os.environ.get(_SPILL)
    return Path(chosen or Path(tempfile.gettempdir()) / f"headgate-spill-{os.geteuid()}")


def in_memory(path: Path) -> bool:
    """Return whether the system lists a directory's file system as one in memory."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    real, mount, kind_found = os.path.realpath(path), "", ""
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(mount):
            mount, kind_found = point, kind
    return kind_found in ("tmpfs", "ramfs")


@dataclass(eq=False)
class RunDirectory:
    """Holds a run directory, in use until this object is closed."""

    path: Path
    descriptor: int | None
    """Holds a shared lock until `close`; the kernel drops the lock when the process dies."""
    spill: RunDirectory | None
    """The run's spill directory, which ends and closes with this one; None if memory has no bound."""

    @property
    def run_id(self) -> str:
        """Random name of the run: 32 hexadecimal digits."""
        return self.path.name

    @property
    def arena(self) -> str:
        """Random name of the arena: exactly the processes that share the arena's memory read this name.

        A host name is not enough: two containers on a machine may share a host name but no memory, and
        a restarted host has its old name with an empty memory.
        """
        path = self.path / _ARENA
        if not path.exists():
            name = secrets.token_hex(16)
            fresh = self.path / f"{_ARENA}.{name}"
            with os.fdopen(open_regular(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY), "w") as file:
                file.write(name)
            # a link fails if the path exists, so the name of the first process stays
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
            fresh.unlink()
        return regular_bytes(path).decode()

    def end(self) -> None:
        """Mark the run as ended, and remove its files on this host; called by its driver.

        The method does not wait for workers, which hold the lock as long as they live: nobody needs their
        work, and an abandoned task continues in files without a name. The method also removes what
        killed drivers have left since this run began.
        """
        if self.spill is not None:
            self.spill.end()
        with contextlib.suppress(OSError):
            (self.path / _ENDED).touch(mode=0o600)
        _remove(self.path)
        sweep(self.path.parent)

    @property
    def ended(self) -> bool:
        """Return whether the driver has ended the run, or the directory is gone."""
        return (self.path / _ENDED).exists() or not self.path.exists()

    def close(self, *, remove: bool = True) -> None:
        """Release the run, and remove its directory unless another process uses it.

        May be called again; only the first call closes the descriptor, whose number may be reused.
        """
        if self.spill is not None:
            self.spill.close(remove=remove)
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            os.close(descriptor)
        if remove:
            _remove_unused(self.path)


def open_run(root: Path, spill: Path | None = None) -> RunDirectory:
    """Create a run directory and hold its lock; called by the driver's Python process.

    `spill`: the host's `spill_root` if memory has a bound; runs that have ended there are removed.
    """
    if spill is not None:
        sweep(spill)
    fresh = root / f"{secrets.token_hex(16)}.new"
    descriptor = _hold(fresh)
    # Renamed only under the lock, so that a sweep never sees a run without its lock.
    path = fresh.with_suffix("")
    fresh.rename(path)
    return RunDirectory(path, descriptor, None if spill is None else join_run(spill, path.name))


def join_run(root: Path, run_id: str, spill: Path | None = None) -> RunDirectory:
    """Hold the lock of a run that a driver opened; create its directory on this host if missing.

    For workers: on hosts without the driver, only their locks keep a sweep away. A lost directory costs
    a rebuild, but never changes a result.
    """
    if not _RUN.fullmatch(run_id):
        msg = f"{run_id!r} is not a run: a run id is 32 hexadecimal digits"
        raise StateError(msg)
    path = root / run_id
    return RunDirectory(path, _hold(path), None if spill is None else join_run(spill, run_id))


def sweep(root: Path) -> list[str]:
    """Remove run directories with a free lock; return their names.

    Called at the start of a driver and of an executor, because a killed job may never start again on this
    host. Called at the end of a driver, because processes of killed drivers may have outlived its start.
    Called at the end of a daemon of Python workers, the last process of a killed driver.
    """
    removed = []
    for entry in sorted(os.listdir(root)):
        if _RUN.fullmatch(entry) and _remove_unused(root / entry):
            removed.append(entry)
    return removed


def _remove_unused(path: Path) -> bool:
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        # creates a missing lock: a process was killed while it created or removed the directory
        descriptor = _opened(path / _LOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _names(path / _LOCK, descriptor):
            return False  # another process has removed it, and a third created it again
        _remove(path)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(path: Path) -> None:
    """Remove a run directory, its lock last, so that an interrupted removal can be swept later."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(path)):
            if entry == _LOCK:
                continue
            if (path / entry).is_dir() and not (path / entry).is_symlink():
                shutil.rmtree(path / entry, ignore_errors=True)
            else:
                (path / entry).unlink(missing_ok=True)
        (path / _LOCK).unlink(missing_ok=True)
        path.rmdir()


def _hold(directory: Path) -> int:
    """Return a descriptor with a shared lock on a run directory; create the directory if missing.

    A sweep may remove the directory before the lock is held; then the directory is created again.
    """
    path = directory / _LOCK
    while True:
        private_directory(directory)
        try:
            descriptor = _opened(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            msg = f"the lock {path} cannot be opened ({error.strerror}): remove {directory}"
            raise StateError(msg) from error
        # Waits only while a sweep examines the directory.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _names(path, descriptor):
            return descriptor
        os.close(descriptor)


def _opened(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT, 0o600)


def _names(path: Path, descriptor: int) -> bool:
    """Return whether a path still names the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
