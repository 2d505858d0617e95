"""Creates the file of a shared tuple buffer atomically, and opens it only if this user owns it."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from headgate.core.errors import StateError
from headgate.tables.mapping import map_file
from headgate.tables.ports import U8
from headgate.tables.room import allocate
from headgate.tables.runs import private_directory
from headgate_lab.tuple_buffer.layout import HEADER_BYTES, BufferShape, read_shape

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def make_file(path: Path, byte_count: int, fill: Callable[[U8], None]) -> int:
    """Return the descriptor of a new file at `path`, zero but for what `fill` writes.

    Its space is allocated (writing to a sparse file on a full tmpfs raises SIGBUS), its mode is 0600 in
    a directory of mode 0700, and it gets its name only at the end.

    Raises
    ------
    StateError    The file exists, there is no space, or the directory is open to others.
    """
    private_directory(path.parent)
    temporary = f"{path}.{secrets.randbits(64):016x}.tmp"
    descriptor = os.open(temporary, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _give_room(descriptor, byte_count, path.parent)
        fill(map_file(descriptor, byte_count))
        os.link(temporary, path)
    except FileExistsError as error:
        os.close(descriptor)
        msg = f"{path} exists already; open it, or remove it first."
        raise StateError(msg) from error
    except BaseException:
        os.close(descriptor)
        raise
    finally:
        os.unlink(temporary)
    return descriptor


def find_file(path: str) -> tuple[int, BufferShape]:
    """Return a descriptor of the tuple buffer at `path`, and its shape.

    Raises
    ------
    StateError    There is none, or it belongs to another user or is open to others.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        msg = f"{path} cannot be opened ({error.strerror}); make it with create first."
        raise StateError(msg) from error
    try:
        found = os.fstat(descriptor)
        shape = read_shape(os.pread(descriptor, HEADER_BYTES, 0), path)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_mode & 0o077 or found.st_size < shape.byte_count:
            msg = f"{path} is damaged, another user's or open to others; remove it."
            raise StateError(msg)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, shape


def _give_room(descriptor: int, byte_count: int, directory: Path) -> None:
    try:
        allocate(descriptor, byte_count)
    except OSError as error:
        msg = (
            f"a tuple buffer of {byte_count} bytes does not fit {directory} ({error.strerror}); "
            "use a smaller capacity, or a directory with more room."
        )
        raise StateError(msg) from error
