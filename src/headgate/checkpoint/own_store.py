"""Defines the port of a store that an installed package brings, and keeps a checkpoint's files in one."""

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
    """A store of your own for checkpoints: the scheme of ``scheme://bucket/key``, by an entry point.

    A name is ``name`` or ``directory/name``. Driver and workers make objects of the class, whose
    methods several threads call at once. A method that fails raises: `hg.CheckpointError` is shown
    as it is, of another error only the type. See docs/own-store.md.

    Attributes
    ----------
    url : str    Below which all files lie: ``scheme://bucket/key``.
    options : mapping    Options ``headgate.store.*`` without that beginning.
    """

    option_names: ClassVar[tuple[str, ...]] = ()
    """The options that it takes; others are refused by name."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.url, self.options = url, options

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, as the last write left them; None where there is no such file."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file durably, whole or not at all, over one of that name."""

    @abstractmethod
    def write_new(self, name: str, data: bytes) -> bool:
        """Write a file durably unless there is one of that name; return whether it was written.

        This is the commit of a step: of several writers, also on other hosts, one gets True.
        """

    @abstractmethod
    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return the names in a directory, and the bytes of each; empty where there is no such."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Delete files; one that is not there is no error."""

    def read_range(self, name: str, start: int, length: int) -> bytes | None:
        """Return some of a file's bytes, fewer where it ends before; None where there is none."""
        data = self.read(name)
        return None if data is None else data[start : start + length]

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return self.read(name) is not None


class OwnStoreFiles(RemoteFiles):
    """Reads and writes files of a checkpoint in a store that a package brings.

    Raises `ConfigError`: the package does not work.
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
        """Do nothing: a store makes directories with their files."""

    def check(self) -> None:
        """Check that the store keeps the first of two writers.

        Raises `CheckpointError`: it does not, or may not be used.
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
        """Write a file over one of that name; durably, whatever is asked for."""
        self._call("write", name, lambda: self._store.write(name, data), len(data))

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file, unless there is one of that name with other bytes."""
        if not self._call("write", name, lambda: self._store.write_new(name, data), len(data)):
            if self._found(name) != data:
                raise FileExistsError(self.at(name))

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file as `put_new` does."""
        self.put_new(name, data)

    def _found(self, name: str) -> bytes | None:
        return self._call("read", name, lambda: self._store.read(name))

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return some of a file's bytes."""
        found = self._call("read", name, lambda: self._store.read_range(name, start, length))
        return self.get(name) if found is None else found  # which says that it is missing

    def exists(self, name: str) -> bool:
        """Return whether there is a file of that name."""
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
            # no text: there may be a credential in it
            why = type(error).__name__
            msg = f"{self.at(name)}: the store cannot {act} ({why}); see whether it can be reached."
            raise CheckpointError(msg) from error
