"""Reads and writes files of a checkpoint, safe against crashes and symbolic links."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from headgate.checkpoint.store_calls import note_call
from headgate.core.errors import CheckpointError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64}){0,3}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_MAPPED_BYTES = 1 << 20
"""Size from which a file is mapped. Chosen, not tuned."""

Content = TypeVar("Content")


def checked_file_name(name: str) -> str:
    """Return `name` if it may name a file: up to 4 parts of letters, digits, _ and -, and dots.

    Raises `CheckpointError` if it may not.
    """
    if not _NAME.fullmatch(name):
        msg = f"{name!r} cannot name a file of a checkpoint: use letters, digits, _ and -"
        raise CheckpointError(msg)
    return name


@contextlib.contextmanager
def _open_directory(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create a directory of mode 0700 unless it exists.

    Raises `CheckpointError` if it cannot be created or written, or if it is no directory.
    """
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        with _open_directory(path):
            writable = os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise unwritable(path, error.strerror) from error
    if not writable:
        raise unwritable(path, "Permission denied")


def unwritable(path: Path, why: str | None) -> CheckpointError:
    """Return the error for a checkpoint directory that cannot be used."""
    msg = (
        f"checkpoint directory {path} cannot be used ({why}): make it a directory you may write to"
    )
    return CheckpointError(msg)


def read_bytes(directory: Path, name: str) -> bytes:
    """Return a file's bytes; follows no symbolic link, reads nothing but regular files.

    Raises `CheckpointError` if the file is missing, a link, not a file, or not readable.
    """
    note_call("read", directory, name)
    return _read_with(directory, name, lambda file: file.read())


def read_regular(root: Path, path: str) -> bytes | None:
    """Return the bytes of a file of Spark's log as `read_bytes` does; None if the file is missing.

    Raises `CheckpointError` if it is a link, not a file, or not readable.
    """
    below, _, name = path.rpartition("/")
    try:
        return _read_with(root / below, name, lambda file: file.read())
    except CheckpointError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def map_bytes(directory: Path, name: str) -> bytes | mmap.mmap:
    """Return the bytes as `read_bytes` does; a large file is a mapping, which takes no memory.

    Raises `CheckpointError` as `read_bytes` does.
    """
    note_call("read", directory, name)
    return _read_with(directory, name, _map)


def _map(file: BinaryIO) -> bytes | mmap.mmap:
    if os.fstat(file.fileno()).st_size >= _MAPPED_BYTES:
        # a limit on addresses, or a file system without mappings: read the file instead
        with contextlib.suppress(OSError, ValueError):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return file.read()


def _read_with(directory: Path, name: str, take: Callable[[BinaryIO], Content]) -> Content:
    try:
        with _open_directory(directory) as parent:
            descriptor = os.open(name, _READ, dir_fd=parent)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return take(file)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        why = "it is missing" if missing else error.strerror or str(error)
        raise unreadable(str(directory / name), why) from error
    raise unreadable(str(directory / name), "not a regular file")


def unreadable(where: str, why: str = "it is missing") -> CheckpointError:
    """Return the error for a file that cannot be read."""
    msg = (
        f"{where} cannot be read ({why}): "
        "`headgate inspect --verify` on the checkpoint says what else is affected"
    )
    return CheckpointError(msg)


def write_bytes(
    directory: Path, name: str, data: bytes, *, replace: bool = False, durable: bool = True
) -> None:
    """Write a file whole or not at all; it is on disk when this returns.

    Raises `FileExistsError` if the file exists and `replace` is False; `CheckpointError` if it cannot
    be written.

    Parameters
    ----------
    directory, name    The name is not checked; see `checked_file_name`.
    replace : bool     False: a file of that name is never overwritten.
    durable : bool     False: the file may be lost with the machine, but not with the process.
    """
    note_call("write", directory, name, len(data))
    temporary = f".{secrets.token_hex(8)}.tmp"
    try:
        with _open_directory(directory) as parent:
            _write_new(parent, temporary, data, durable=durable)
            try:
                if replace:
                    os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
                else:
                    # Unlike a rename, a link never overwrites: the loser of a race learns of it.
                    os.link(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)
            if durable:
                os.fsync(parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise unwritable(directory, error.strerror) from error


def _write_new(parent: int, name: str, data: bytes, *, durable: bool) -> None:
    descriptor = os.open(name, _CREATE, 0o600, dir_fd=parent)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    except BaseException:
        os.unlink(name, dir_fd=parent)
        raise
    finally:
        os.close(descriptor)


def names_in(directory: Path) -> list[str]:
    """Return the unsorted names in a directory; raises OSError if it is missing or a link."""
    note_call("list", directory)
    with _open_directory(directory) as parent:
        return os.listdir(parent)


def sizes_in(directory: Path) -> dict[str, int]:
    """Return the sizes of the files in a directory; raises OSError if it is missing or a link."""
    sizes = {}
    with _open_directory(directory) as parent, os.scandir(parent) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # removed between the two calls
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


def rename(directory: Path, name: str, to: str) -> bool:
    """Rename a file of any kind; return False if that fails."""
    try:
        with _open_directory(directory) as parent:
            os.replace(name, to, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        return False
    return True


def remove(directory: Path, name: str) -> None:
    """Remove a file; a failure is no error."""
    note_call("remove", directory, name)
    with contextlib.suppress(OSError), _open_directory(directory) as parent:
        os.unlink(name, dir_fd=parent)
