"""Reads and writes files of a checkpoint on HDFS, by a client without a JVM, in drivers and workers.

A writer writes a file under a temporary name and renames it. The name node renames whole or not at all,
and on request never over an existing file: the commit. The name node may carry out a request whose answer
is lost. So a refused writer checks whether the existing file is its own write, as on an object store.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache, cached_property
from typing import Any, TypeVar

from headgate.checkpoint.files import unreadable
from headgate.checkpoint.remote import RemoteFiles, panics_told
from headgate.core.errors import CheckpointError
from headgate.core.listening import not_listening

_GIVE_UP_S = 120.0
"""Seconds that a request waits for a name node that is away, in safe mode or on standby. Chosen: a batch
waits for the request."""

_GIVE_UP_FIRST_S = 5.0
"""The same for a name node that has not answered before: its address may be wrong. Chosen."""

_ANSWER_S = 60.0
"""Seconds that a request waits for its answer, as on object stores. Chosen."""

_BYTES_PER_S = 1e6
"""Bytes per second by which a write may take longer; slower than any cluster's network. Chosen."""

_WAIT_S = 0.1
_WAIT_MOST_S = 5.0
"""Seconds before the first repetition of a request, and at most; doubled each time. Chosen."""

_PRIVATE = 0o700
_OWNERS = 0o600

_CLASS = re.compile(r'RPCError\(\\?"([\w.$]{1,200})\\?", \\?"(.*)', re.DOTALL)
"""A refusal by the name node: the class of Java's exception, and its message."""

_PASSING = (
    "SafeModeException",
    "RetriableException",
    "StandbyException",
    "ObserverRetryOnActiveException",
    "NotReplicatedYetException",
    "ServerTooBusyException",
)
"""Refusals by a name node that may carry out the same request later."""

Result = TypeVar("Result")


class HdfsFiles(RemoteFiles):
    """Reads and writes files below a directory on HDFS; safe to use from several threads.

    Parameters
    ----------
    url : str    A `headgate.core.stores.store_url`.
    options : mapping
        From `headgate.core.stores.options_for`; all other settings come from Hadoop's configuration
        in ``HADOOP_CONF_DIR``.
    known : bool
        True if a name node has answered this job before; then requests wait longer.

    Attributes
    ----------
    requests : Counter
        Calls by kind; one call makes several requests to name and data nodes.
    """

    def __init__(self, url: str, options: Mapping[str, str], *, known: bool = False) -> None:
        super().__init__(url, options, known=known)
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        self._node = f"{scheme}://{host}"
        self._root = f"/{path}"

    def _reach(self) -> None:
        """Refuse a name node whose host name is unknown, or whose address does not accept connections.

        The client itself would try for a minute. A name service has no port, and is not checked. A name
        node that is just starting has as long as any name node that has not answered before. Raises
        `CheckpointError`.
        """
        host, colon, port = self._node.partition("://")[2].rpartition(":")
        if not colon or not port.isdecimal():
            return
        error = not_listening([(host.strip("[]"), int(port))], self._patience_s)
        if error is not None:
            why = getattr(error, "strerror", None) or str(error)
            msg = (
                f"{self.url}: nobody answers at {self._node} ({why}); see whether that is the "
                "name node's address."
            )
            raise CheckpointError(msg)

    @cached_property
    def _client(self) -> Any:
        with self._explained("open", ""):
            return _client_of(self._node, self._options.get("configDir"))

    @cached_property
    def _new_file(self) -> Any:
        """Return the options of a new file: owner only, no overwriting, missing directories created."""
        return _library().WriteOptions(permission=_OWNERS, overwrite=False, create_parent=True)

    def check(self) -> None:
        """Check that the place can hold a checkpoint.

        Raises `CheckpointError` if no name node answers, if access is refused, or if a writer can
        overwrite another's file.
        """
        there = self.exists("")
        name, kept = self._tried()
        self._call("remove", name, self._delete_call(name))
        if not there:  # remove the directory that the probe created
            with contextlib.suppress(CheckpointError):
                self._call("remove", "", self._delete_call(""))
        if not kept:
            msg = f"{self.url} cannot hold a checkpoint: it lets one writer rename over another's file."
            raise CheckpointError(msg)

    def prepare(self, directories: Iterable[str]) -> None:
        """Create the directories with mode 0700."""
        for name in ("", *directories):
            self._call("write", name, self._make_call(self._path(name)))

    def _make_call(self, path: str) -> Callable[[], None]:
        def make() -> None:
            self._client.mkdirs(path, _PRIVATE, True)

        return make

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file and rename it over an existing file of that name.

        When this returns, the data nodes have the file, but perhaps not yet on their disks.
        """
        self._call("write", name, lambda: self._place(name, data, over=True), len(data))

    def put_new(self, name: str, data: bytes) -> None:
        """Write a file and rename it; the name node refuses to rename it over an existing file."""
        began_s, wait_s = time.monotonic(), _WAIT_S
        while True:
            failure: Exception | None = None
            try:
                self._call(
                    "write",
                    name,
                    lambda: self._place(name, data, over=False),
                    len(data),
                    again=False,
                )
            except FileExistsError:
                pass
            except _Passing as error:
                failure = error.meant
            else:
                return
            there = self._found(name)
            if there == data:
                return  # this write's own success, whose answer was lost
            if there is not None:
                raise FileExistsError(self.at(name))
            if time.monotonic() > began_s + self._patience_s:
                msg = f"{self.at(name)} cannot be written: each try was refused, and nothing is there."
                raise failure or CheckpointError(msg)
            wait_s = _wait(wait_s)

    def put_unique(self, name: str, data: bytes) -> None:
        """Write a file as `put_new` does."""
        self.put_new(name, data)

    def _place(self, name: str, data: bytes, *, over: bool) -> None:
        directory, _, _ = self._path(name).rpartition("/")
        temporary = f"{directory}/.{secrets.token_hex(8)}.tmp"
        try:
            with contextlib.closing(self._client.create(temporary, self._new_file)) as file:
                file.write(data)
            self._client.rename(temporary, self._path(name), over)
        except BaseException:
            # without the temporary file, a rename whose answer was lost cannot happen later
            with contextlib.suppress(Exception):
                self._client.delete(temporary, False)
            raise

    def _found(self, name: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return bytes(self._client.read(self._path(name)).read())
            except FileNotFoundError:
                return None

        return self._call("read", name, read)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a range of a file's bytes."""

        def read() -> bytes:
            try:
                file = self._client.read(self._path(name))
            except FileNotFoundError:
                raise unreadable(self.at(name)) from None
            length_here = min(length, len(file) - start)
            return bytes(file.read_range(start, length_here)) if length_here > 0 else b""

        return self._call("read", name, read)

    def exists(self, name: str) -> bool:
        """Return whether there is a file or directory of that name."""

        def look() -> bool:
            try:
                self._client.get_file_info(self._path(name))
            except FileNotFoundError:
                return False
            return True

        return self._call("read", name, look)

    def _list(self, directory: str) -> dict[str, int]:
        def list_directory() -> dict[str, int]:
            try:
                entries = list(self._client.list_status(self._path(directory)))
            except FileNotFoundError:
                return {}
            return {
                entry.path.rpartition("/")[2]: int(entry.length)
                for entry in entries
                if not entry.isdir
            }

        return self._call("list", f"{directory}/", list_directory)

    def remove(self, names: Iterable[str]) -> None:
        """Delete files, one after another."""
        for name in names:
            with contextlib.suppress(CheckpointError, _Passing):
                self._call("remove", name, self._delete_call(name), again=False)

    def _delete_call(self, name: str) -> Callable[[], object]:
        return lambda: self._client.delete(self._path(name), False)

    def set_aside(self, name: str) -> str:
        """Rename a file."""
        aside = f"{name}.damaged"

        def rename() -> bool:
            try:
                self._client.rename(self._path(name), self._path(aside), True)
            except FileNotFoundError:
                return False
            return True

        try:
            return aside.rpartition("/")[2] if self._call("write", name, rename) else ""
        except CheckpointError:
            return ""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _call(
        self,
        act: str,
        name: str,
        do: Callable[[], Result],
        length: int = 0,
        *,
        again: bool = True,
    ) -> Result:
        """Carry out a call; `again`: repeat it while the name node is away, else raise `_Passing`."""
        if not self._known:
            _library()
            self._reach()
        began_s, wait_s = time.monotonic(), _WAIT_S
        while True:
            self._count(act, name, length)
            try:
                with self._explained(act, name):
                    result = self._answer(do, length)
                self._known = True
                return result
            except _Passing as error:
                if not again:
                    raise
                if time.monotonic() > began_s + self._patience_s:
                    raise error.meant from None
            wait_s = _wait(wait_s)

    @property
    def _patience_s(self) -> float:
        return _GIVE_UP_S if self._known else min(_GIVE_UP_FIRST_S, _GIVE_UP_S)

    def _answer(self, do: Callable[[], Result], length: int) -> Result:
        """Carry out a call in a thread of its own: the library has no time limit for an answer."""
        answer: Future[Result] = Future()

        def run() -> None:
            try:
                answer.set_result(do())
            except BaseException as error:  # the waiting thread raises it
                answer.set_exception(error)

        threading.Thread(target=run, name="headgate-hdfs", daemon=True).start()
        try:
            return answer.result(_ANSWER_S + length / _BYTES_PER_S)
        except TimeoutError:
            self.__dict__.pop("_client", None)
            _client_of.cache_clear()
            raise

    @contextlib.contextmanager
    def _explained(self, act: str, name: str) -> Iterator[None]:
        """Turn an error of the library into one sentence; `_Passing` for a failure that may pass."""
        try:
            with panics_told(self.at(name), act):
                yield
        except (FileExistsError, CheckpointError):
            raise
        except (OSError, RuntimeError, NotImplementedError, ValueError) as error:
            text = str(error)
            match = _CLASS.search(text)
            kind = match[1].rpartition(".")[2] if match else ""
            self._known |= bool(kind)  # an exception of the name node is an answer
            said = _plain(match[2] if match else text)
            if kind == "AccessControlException":
                msg = (
                    f"{self.at(name)}: HDFS refuses to {act} ({said}); give this user the right to."
                )
            elif "Quota" in kind:
                msg = f"{self.at(name)}: HDFS refuses to {act} ({said}); raise the quota."
            elif "SASL" in text or "GSSAPI" in text or kind == "InvalidToken":
                msg = (
                    f"{self.url}: HDFS does not accept who asks ({said}); get a Kerberos ticket or a "
                    "delegation token."
                )
            else:
                why = said or kind or "no answer"
                msg = (
                    f"{self.at(name)}: HDFS cannot {act} ({why}); see whether {self._node} answers."
                )
                lost = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
                if lost or kind in _PASSING:
                    raise _Passing(CheckpointError(msg)) from None
            raise CheckpointError(msg) from None


class _Passing(Exception):
    """Reports a failure that may pass, or a request that may have been carried out without an answer."""

    def __init__(self, meant: CheckpointError) -> None:
        self.meant = meant


def _wait(wait_s: float) -> float:
    """Sleep for about `wait_s` seconds; return the next waiting time."""
    time.sleep(wait_s * random.uniform(0.5, 1.5))
    return min(_WAIT_MOST_S, 2.0 * wait_s)


def _plain(text: str) -> str:
    """Return the first line of Java's message, without its trace."""
    return re.split(r"\\n|\n|\\t|\t", text, maxsplit=1)[0].strip().rstrip('"\\).')[:200]


@cache
def _client_of(node: str, directory: str | None) -> Any:
    """Return this process's client of a name node; cached, because a client has threads of its own."""
    return _library().Client(node, config_dir=directory)


def _library() -> Any:
    """Import the client library."""
    try:
        return importlib.import_module("hdfs_native")
    except ImportError as error:
        msg = (
            "a checkpoint on HDFS needs hdfs-native: in a checkout of headgate, "
            'pip install ".[hdfs]".'
        )
        raise CheckpointError(msg) from error
