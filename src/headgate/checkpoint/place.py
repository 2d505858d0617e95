"""Defines the port for the files of a checkpoint, and its POSIX form.

A listing only finds the newest manifest, requests to a query, and garbage. `Files.put_new` is the commit:
of two writers, one succeeds.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from headgate.checkpoint.files import (
    make_directory,
    map_bytes,
    names_in,
    read_bytes,
    remove,
    rename,
    sizes_in,
    unwritable,
    write_bytes,
)
from headgate.checkpoint.traffic import Traffic
from headgate.core.input import is_directory
from headgate.core.location import local_path
from headgate.core.stores import kind_of, plugin_of, store_url


class Files(Protocol):
    """Reads and writes the files below one place, by ``directory/name`` or, at the top, by ``name``."""

    @property
    def shared(self) -> bool:
        """Return whether hosts share the files by the network alone, so that no lock guards them."""

    def at(self, name: str) -> str:
        """Return the path or the URL of a file, for messages."""

    def check(self) -> None:
        """Check that the place can hold a checkpoint, before any other use.

        Raises `CheckpointError` if it is missing, if access is refused, or if a writer can overwrite
        another's file.
        """

    def is_there(self) -> bool:
        """Return whether a checkpoint exists at the place."""

    def prepare(self, directories: Iterable[str]) -> None:
        """Create the place and directories in it; private to their owner if the store has owners.

        Raises `CheckpointError` if they cannot be created or written.
        """

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, whole or not at all, over an existing file of that name.

        If `durable` is False, the file may be lost with the machine, but not with the process. Raises
        `CheckpointError` if it cannot be written.
        """

    def put_new(self, name: str, data: bytes) -> None:
        """Write a new file durably, whole or not at all, and never over another writer's file.

        An existing file with the same bytes counts as this write: an answer may be lost, and a repeated
        request must not take its own success for another writer's. So two writers that exclude each other
        must write different bytes. Raises `FileExistsError` if the file exists with other bytes;
        `CheckpointError` if it cannot be written.
        """

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file, perhaps large, with a name that no other writer uses; raises as `put_new`."""

    def get(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises `CheckpointError` if it is missing, no file, or not readable.
        """

    def get_large(self, name: str) -> bytes | mmap.mmap:
        """Return a file's bytes, perhaps as a mapping that takes no memory; raises as `get`."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a range of a file's bytes, fewer at its end; raises as `get`."""

    def exists(self, name: str) -> bool:
        """Return whether a file of that name exists."""

    def names(self, directory: str) -> list[str]:
        """Return the unsorted names in a directory; the newest may be missing.

        Raises `OSError` if there is no such directory on a store that has directories;
        `CheckpointError` if it cannot be read.
        """

    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return the bytes of each file in a directory, for display; empty without the directory."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; a failure is no error."""

    def set_aside(self, name: str) -> str:
        """Rename an unreadable file, for inspection; return its new name, or ``""``."""

    def traffic(self) -> Traffic | None:
        """Return the requests of this object so far; None if requests cost nothing."""


class PosixFiles:
    """Reads and writes files in a directory that driver and executors open themselves."""

    shared = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.root / name)

    def check(self) -> None:
        """Do nothing: `prepare` refuses a place that cannot be made or written."""

    def is_there(self) -> bool:
        """Return whether the directory exists."""
        return is_directory(self.root)

    def prepare(self, directories: Iterable[str]) -> None:
        """Create the directories with mode 0700."""
        if not self.root.exists():
            try:
                self.root.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(self.root.parent, error.strerror) from error
        for directory in (self.root, *(self.root / name for name in directories)):
            make_directory(directory)

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file of mode 0600 and rename it to its final name."""
        directory, file = self._split(name)
        write_bytes(directory, file, data, replace=True, durable=durable)

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file of mode 0600 and link it to its final name, which never overwrites."""
        directory, file = self._split(name)
        try:
            write_bytes(directory, file, data)
        except FileExistsError:
            # on a network file system, the answer to a link may be lost, and the client repeats the link
            if read_bytes(directory, file) != data:
                raise

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file as `put_new` does: an existing file is never overwritten."""
        self.put_new(name, data)

    def get(self, name: str) -> bytes:
        """Return a regular file's bytes; no symbolic link is followed."""
        return read_bytes(*self._split(name))

    def get_large(self, name: str) -> bytes | mmap.mmap:
        """Return a file's bytes; a large file as a mapping."""
        return map_bytes(*self._split(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a range of a file's bytes."""
        return bytes(self.get_large(name)[start : start + length])

    def exists(self, name: str) -> bool:
        """Return whether something of that name exists, even a link to nowhere."""
        return os.path.lexists(self.root / name)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return names_in(self.root / directory)

    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return the sizes of the files in a directory."""
        try:
            return sizes_in(self.root / directory)
        except OSError:
            return {}

    def remove(self, names: Iterable[str]) -> None:
        """Unlink files, one after another."""
        for name in names:
            remove(*self._split(name))

    def set_aside(self, name: str) -> str:
        """Rename a file of any kind."""
        directory, file = self._split(name)
        aside = f"{file}.damaged"
        # the file stays if a directory has the new name, or if permission is missing
        return aside if rename(directory, file, aside) else ""

    def traffic(self) -> Traffic | None:
        """Return None: there are no requests to count."""
        return None

    def _split(self, name: str) -> tuple[Path, str]:
        directory, _, file = name.rpartition("/")
        return self.root / directory, file


def files_at(
    location: str | os.PathLike[str],
    below: str = "",
    options: Mapping[str, str] | None = None,
    *,
    known: bool = False,
) -> Files:
    """Return the files of a checkpoint's location.

    Raises `CheckpointError` if the location names no place, or a store for which no library is
    installed; `ConfigError` if the package of the store does not work.

    Parameters
    ----------
    location : str or path    A POSIX path, a ``file:`` URI, or a `headgate.core.stores.store_url`.
    options : mapping, optional    Options of the store, without their prefix.
    known : bool
        True if the store has answered this job before; then requests wait longer.
    """
    url = store_url(location)
    if url is None:
        return PosixFiles(local_path(location) / below)
    place = f"{url}/{below}".rstrip("/")
    # imported late, because a checkpoint on a disk needs no library for stores
    plugin = plugin_of(url)
    if plugin is not None:
        from headgate.checkpoint.own_store import OwnStoreFiles  # noqa: PLC0415

        return OwnStoreFiles(plugin, place, options or {}, known=known)
    if kind_of(url) == "hdfs":
        from headgate.checkpoint.hdfs import HdfsFiles  # noqa: PLC0415

        return HdfsFiles(place, options or {}, known=known)
    from headgate.checkpoint.objects import ObjectFiles  # noqa: PLC0415

    return ObjectFiles(place, options or {}, known=known)
