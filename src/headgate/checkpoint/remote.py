"""Implements the part of a checkpoint's remote files that all kinds of stores share."""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headgate.checkpoint.files import unreadable
from headgate.checkpoint.store_calls import note_call, refuse_after_fork
from headgate.checkpoint.traffic import Traffic
from headgate.core.errors import CheckpointError, panicked
from headgate.core.stores import Hidden


@contextmanager
def panics_told(where: str, act: str) -> Iterator[None]:
    """Turn a panic of a store's library within the block into one sentence.

    The text of a panic may contain sent data, so the sentence leaves it out; the library has written it
    to stderr. Raises `CheckpointError`.
    """
    try:
        yield
    except BaseException as error:
        if not panicked(error):
            raise
        msg = (
            f"{where}: the library for this store broke off when it was to {act}; look at the options "
            "headgate.store.* and the variables with credentials."
        )
        raise CheckpointError(msg) from None


class RemoteFiles(ABC):
    """Reads and writes files below a place that all hosts reach; safe to use from several threads.

    Parameters
    ----------
    url : str    A `headgate.core.stores.store_url`.
    options : mapping    From `headgate.core.stores.options_for`.
    known : bool
        True if the store has answered this job before; then requests wait longer.

    Attributes
    ----------
    requests : Counter
        Calls by kind, without further requests that a client's library makes.
    """

    shared = True

    def __init__(self, url: str, options: Mapping[str, str], *, known: bool = False) -> None:
        self.url = url
        self._known = known
        self._options = {name: Hidden(text) for name, text in options.items()}
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self._written_bytes = 0

    def at(self, name: str) -> str:
        """Return the address of a file."""
        return f"{self.url}/{name}" if name else self.url

    def is_there(self) -> bool:
        """Return whether a checkpoint exists here: its identity is its first file."""
        return self.exists("identity.json")

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether something of that name exists."""

    @abstractmethod
    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file over an existing file of that name."""

    @abstractmethod
    def put_new(self, name: str, data: bytes) -> None:
        """Write a file; refuse if one of that name exists with other bytes."""

    def get(self, name: str) -> bytes:
        """Return a file's bytes."""
        data = self._found(name)
        if data is None:
            raise unreadable(self.at(name))
        return data

    def get_large(self, name: str) -> bytes:
        """Return a file's bytes."""
        return self.get(name)

    @abstractmethod
    def _found(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is no such file."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""
        return list(self._list(directory))

    def sizes(self, directory: str) -> Mapping[str, int]:
        """Return the sizes of the files in a directory."""
        return self._list(directory)

    @abstractmethod
    def _list(self, directory: str) -> dict[str, int]:
        """Return the names in a directory and their sizes."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files; a failure is no error."""

    def set_aside(self, name: str) -> str:
        """Copy a file to another name, and remove it."""
        aside = f"{name}.damaged"
        try:
            self.put(aside, self.get(name))
        except CheckpointError:
            return ""
        self.remove([name])
        return aside.rpartition("/")[2]

    def traffic(self) -> Traffic | None:
        """Return the requests so far."""
        with self._lock:
            return Traffic(self.requests.total(), self._written_bytes)

    def _count(self, act: str, name: str, length: int) -> None:
        """Count a call before it is made."""
        path = Path(name)
        note_call(act, path.parent, path.name, length)
        with self._lock:
            self.requests[act] += 1
            self._written_bytes += length
        refuse_after_fork()

    def _tried(self) -> tuple[str, bool]:
        """Write one file twice; return its name, and whether the first writer's bytes stayed."""
        name, content = f"probe-{secrets.token_hex(8)}", b"first\n"
        self.put_new(name, content)
        try:
            self.put_new(name, b"second\n")
        except FileExistsError:
            return name, self.get(name) == content
        return name, False
