"""Defines the port for the files of a checkpoint, and its POSIX form.

Listing finds only the newest manifest, requests to a query, and garbage. The commit is `Files.put_new`,
which of two writers lets one through.
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
        """Return where a file lies, as people write it."""

    def check(self) -> None:
        """Check that the place can hold a checkpoint, before it is used.

        Raises `CheckpointError`: it is not there, may not be used, or lets one writer write over
        another.
        """

    def is_there(self) -> bool:
        """Return whether a checkpoint was begun at the place."""

    def prepare(self, directories: Iterable[str]) -> None:
        """Make the place and directories in it; private to their owner where the store has owners.

        Raises `CheckpointError`: they cannot be made or written.
        """

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, which is there whole or not at all, over one of that name.

        Where `durable` is False, it may be lost with the machine, though not with the process. Raises
        `CheckpointError`: it cannot be written.
        """

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file that is there whole, durably, or not at all, and never over another's.

        The same bytes under that name count as this very write: an answer may be lost on its way,
        and who asks again must not take his own success for somebody else's. So what two writers
        must not both write has to differ. Raises `FileExistsError`: there are other bytes of that
        name; `CheckpointError`: it cannot be written.
        """

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file, perhaps large, of a name that no other writer chooses; raises as `put_new`."""

    def get(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises `CheckpointError`: it is missing, no file, or cannot be read.
        """

    def get_large(self, name: str) -> bytes | mmap.mmap:
        """Return a file's bytes, perhaps as a mapping that takes no memory; raises as `get`."""

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return some of a file's bytes, fewer where it ends before; raises as `get`."""

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, in no order; the newest may be missing.

        Raises `OSError`: there is no such directory, where a store has directories;
        `CheckpointError`: it cannot be read.
        """

    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return the bytes of each file in a directory, for people; empty where there is none."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; never an error."""

    def set_aside(self, name: str) -> str:
        """Rename a file that cannot be read, for inspection; return its new name, or ``""``."""

    def traffic(self) -> Traffic | None:
        """Return the requests of this object so far; None where requests cost nothing."""


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
        """Return whether the directory is there."""
        return is_directory(self.root)

    def prepare(self, directories: Iterable[str]) -> None:
        """Make the directories, of mode 0700."""
        if not self.root.exists():
            try:
                self.root.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(self.root.parent, error.strerror) from error
        for directory in (self.root, *(self.root / name for name in directories)):
            make_directory(directory)

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file of mode 0600 and rename it into its place."""
        directory, file = self._split(name)
        write_bytes(directory, file, data, replace=True, durable=durable)

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file of mode 0600 and link it into its place, which never overwrites."""
        directory, file = self._split(name)
        try:
            write_bytes(directory, file, data)
        except FileExistsError:
            # over a network the answer to a link may be lost, and the client asks again
            if read_bytes(directory, file) != data:
                raise

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file as `put_new` does: an existing file is never overwritten."""
        self.put_new(name, data)

    def get(self, name: str) -> bytes:
        """Return a regular file's bytes; no symbolic link is followed."""
        return read_bytes(*self._split(name))

    def get_large(self, name: str) -> bytes | mmap.mmap:
        """Return a file's bytes, of a large one as a mapping."""
        return map_bytes(*self._split(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return some of a file's bytes."""
        return bytes(self.get_large(name)[start : start + length])

    def exists(self, name: str) -> bool:
        """Return whether something of that name is there, be it a link to nowhere."""
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
        """Unlink files, one after the other."""
        for name in names:
            remove(*self._split(name))

    def set_aside(self, name: str) -> str:
        """Rename a file, whatever it is."""
        directory, file = self._split(name)
        aside = f"{file}.damaged"
        # a directory in its way, or no right to: it stays
        return aside if rename(directory, file, aside) else ""

    def traffic(self) -> Traffic | None:
        """Return None: files are not requested."""
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

    Raises `CheckpointError`: it names no place, or a store that this installation has no library
    for; `ConfigError`: a store of a package that does not work.

    Parameters
    ----------
    location : str or path    A POSIX path, a ``file:`` URI, or a `headgate.core.stores.store_url`.
    options : mapping, optional    Options of the store, without their prefix.
    known : bool
        Whether the store has answered somebody of this job already: then it is waited for longer.
    """
    url = store_url(location)
    if url is None:
        return PosixFiles(local_path(location) / below)
    place = f"{url}/{below}".rstrip("/")
    # late: a checkpoint on a disk needs no library for stores
    plugin = plugin_of(url)
    if plugin is not None:
        from headgate.checkpoint.own_store import OwnStoreFiles  # noqa: PLC0415

        return OwnStoreFiles(plugin, place, options or {}, known=known)
    if kind_of(url) == "hdfs":
        from headgate.checkpoint.hdfs import HdfsFiles  # noqa: PLC0415

        return HdfsFiles(place, options or {}, known=known)
    from headgate.checkpoint.objects import ObjectFiles  # noqa: PLC0415

    return ObjectFiles(place, options or {}, known=known)
