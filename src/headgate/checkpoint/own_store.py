"""Defines the port of a store from an installed package, and stores a checkpoint's files in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar

from headgate.checkpoint.remote import RemoteFiles
from headgate.core.errors import CheckpointError, ConfigError, HeadgateError
from headgate.core.installed import Plugin

Result = TypeVar("Result")


class CheckpointStore(ABC):
    """Defines a checkpoint store of your own; an entry point has the scheme of ``scheme://bucket/key``.

    A name is ``name`` or ``directory/name``. Driver and workers create objects of the class, and several
    threads call their methods at once. A method that fails raises an error: users see the text of a
    `hg.CheckpointError`, and only the type of any other error. See docs/own-store.md.

    Attributes
    ----------
    url : str    The address above all files: ``scheme://bucket/key``.
    options : mapping    Options ``headgate.store.*``, without this prefix.
    """

    option_names: ClassVar[tuple[str, ...]] = ()
    """Options that the store accepts; others are refused by name."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url, self.options = url, options

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a file's bytes of the last write; None if there is no such file."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file durably, whole or not at all, over an existing file of that name."""

    @abstractmethod
    def write_new(self, name: str, data: bytes) -> bool:
        """Write a file durably unless a file of that name exists; return whether it was written.

        This is the commit of a step: of several writers, also on other hosts, exactly one gets True.
        """

    @abstractmethod
    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return names and bytes of the files in a directory; empty if there is no such directory."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete files; a missing file is no error."""

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return a range of a file's bytes, fewer at its end; None if there is no such file."""
        data = self.read(name)
        return None if data is None else data[start : start + length]

    def exists(self, name: str) -> bool:
        """Return whether a file of that name exists."""
        return self.read(name) is not None


class OwnStoreFiles(RemoteFiles):
    """Reads and writes files of a checkpoint in a store from a package.

    Raises `ConfigError` if the package does not work.
    """

    def __init__(
        self, plugin: Plugin, url: str, options: Mapping[str, str], *, known: bool = False
    ) -> None:
        super().__init__(url, options, known=known)
        kind: type = plugin.load(type, "class")
        if not issubclass(kind, CheckpointStore):
            base = "headgate.checkpoint.CheckpointStore"
            msg = f"{plugin} is the class {kind.__name__}; derive it from {base}."
            raise ConfigError(msg)
        with plugin.blamed("made"):
            self._store: CheckpointStore = kind(url, self._options)

    def prepare(self, directories: Iterable[str]) -> None:
        """Do nothing: a store creates directories with their files."""

    def check(self) -> None:
        """Check that the store refuses the second of two writers.

        Raises `CheckpointError` if it does not, or if access is refused.
        """
        name, kept = self._tried()
        self.names("manifests")
        self._call("remove", name, lambda: self._store.delete([name]))
        if not kept:
            msg = (
                f"{self.url} cannot hold a checkpoint: its write_new lets one writer write over "
                "another; repair the package of this store."
            )
            raise CheckpointError(msg)

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file over an existing one; a store always writes durably."""
        self._call("write", name, lambda: self._store.write(name, data), len(data))

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file; refuse if one of that name exists with other bytes."""
        if not self._call("write", name, lambda: self._store.write_new(name, data), len(data)):
            if self._found(name) != data:
                raise FileExistsError(self.at(name))

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file as `put_new` does."""
        self.put_new(name, data)

    def _found(self, name: str) -> bytes | None:
        return self._call("read", name, lambda: self._store.read(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a range of a file's bytes."""
        found = self._call("read", name, lambda: self._store.read_range(name, start, length))
        return self.get(name) if found is None else found  # `get` reports that the file is missing

    def exists(self, name: str) -> bool:
        """Return whether a file of that name exists."""
        return self._call("read", name, lambda: self._store.exists(name))

    def _list(self, directory: str) -> dict[str, int]:
        return self._call("list", f"{directory}/", lambda: dict(self._store.sizes(directory)))

    def remove(self, names: Iterable[str]) -> None:
        """Delete files."""
        asked = list(names)
        if asked:
            with suppress(CheckpointError):
                self._call("remove", asked[0], lambda: self._store.delete(asked))

    def _call(self, act: str, name: str, do: Callable[[], Result], length: int = 0) -> Result:
        self._count(act, name, length)
        try:
            return do()
        except HeadgateError:
            raise
        except Exception as error:  # code of another distribution may raise anything
            # without the text, which may contain a credential
            why = type(error).__name__
            msg = f"{self.at(name)}: the store cannot {act} ({why}); see whether it can be reached."
            raise CheckpointError(msg) from error
