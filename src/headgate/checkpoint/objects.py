"""Reads and writes files of a checkpoint on an object store: S3, Google, Azure and compatible stores.

A store may carry out a request twice, late, or without an answer. The existing object therefore decides
whether a write succeeded: a writer that is refused because an object exists checks whether the object is
its own write.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headgate.checkpoint.remote import RemoteFiles, panics_told
from headgate.core.errors import CheckpointError
from headgate.core.input import shown
from headgate.core.listening import REFUSED_S, not_listening
from headgate.core.stores import PREFIX, kind_of, refuse_unsendable

_TRIES = 6
"""Largest number of tries to write a file, if each try is refused and no object exists. Chosen."""

_WAIT_S = 0.05
"""Seconds before the second try; doubled each time. Chosen."""

_PARTS_BYTES = 32 << 20
"""Size from which a file is written in parts, each with a time limit of its own. Chosen."""

_TIMEOUT = "60s"
_GIVE_UP = timedelta(minutes=2)
"""Time that a request waits for a store that throttles or is away. Chosen: a batch waits for it."""

_GIVE_UP_FIRST = timedelta(seconds=5)
"""The same for a store that has not answered before: its address may be wrong. Chosen."""

_RETRIES = 1_000_000
"""Retries of the library: no bound, because its default, 10, ends in three seconds if nobody listens."""

_UNKNOWN = ("", "409", "412", "500", "502", "503", "504")
"""Status codes, or none, after which it is unknown whether the object exists."""

_STORES = {"s3": "S3Store", "gs": "GCSStore", "abfss": "AzureStore"}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "abfss": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
}
"""Environment variables from which the library takes an address."""

_ADDRESS = re.compile(
    r"https?://([^\s/?#@\[\]]*@)?(\[[0-9a-fA-F:.]+\]|[^\s/?#@:\[\]]+)"
    r"(:(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]))?(/[^\s?#]*)?",
    re.IGNORECASE,
)
"""The URL of a server."""

_CODE = re.compile(r"<Code>(\w{1,80})</Code>")
_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
"""Codes of S3 and of Azure for a missing bucket."""
_NO_CREDENTIALS = re.compile(r"Missing\w*Key|credential|token request|/latest/api/token", re.I)
"""Messages of the library: it found no credentials, or the cloud's metadata server has none."""
_CREDENTIALS = ("ExpiredToken", "TokenRefreshRequired", "InvalidToken", "ExpiredTokenException")
"""Codes of S3, with status 400, for credentials that are not valid any more."""
_REDIRECTED = "redirect without LOCATION"
"""Message of the library for a bucket in another region."""
_REGION = (
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
)
_STATUS = re.compile(r"status code: (\d{3})")

Result = TypeVar("Result")


class ObjectFiles(RemoteFiles):
    """Reads and writes files below a place on an object store; safe to use from several threads.

    Parameters
    ----------
    url : str    A `headgate.core.stores.store_url`.
    options : mapping
        From `headgate.core.stores.options_for`; other settings come from the environment or from the
        cloud's own chain.
    known : bool
        True if the store has answered this job before; then requests wait longer.

    Attributes
    ----------
    requests : Counter    Calls by kind, without those that the library repeats by itself.
    """

    @property
    def _store(self) -> Any:
        return self._patient if self._known else self._hasty

    @cached_property
    def _patient(self) -> Any:
        return self._opened(_GIVE_UP)

    @cached_property
    def _hasty(self) -> Any:
        return self._opened(min(_GIVE_UP_FIRST, _GIVE_UP), first=True)

    def _opened(self, give_up: timedelta, *, first: bool = False) -> Any:
        kind = kind_of(self.url)
        refuse_unsendable(self.url, self._options)
        config = {_snake(name): str(text) for name, text in self._options.items()}
        timeout = config.pop("timeout", _TIMEOUT)
        address = self._address()
        self._reach(address, first=first)
        # without encryption only if the address begins with http://, as for a server on this host
        client = {"timeout": timeout, "allow_http": address.lower().startswith("http://")}
        maker = getattr(_library("obstore.store"), _STORES[kind])
        with self._explained("open", ""):
            return maker.from_url(
                self.url,
                config=config,
                client_options=client,
                retry_config={"retry_timeout": give_up, "max_retries": _RETRIES},
            )

    def _address(self) -> str:
        """Return the address of the store from an option or a variable; "" without an address."""
        sources: dict[str, str | None] = {
            f"option {PREFIX}{name}": self._options.get(name) for name in ("endpoint", "baseUrl")
        }
        variables = _ENDPOINTS[kind_of(self.url)]
        sources |= {f"the variable {name}": os.environ.get(name) for name in variables}
        for name, text in sources.items():
            if text is not None and not _ADDRESS.fullmatch(text):
                msg = f"{self.url}: {name} is no address; write it as https://host:port, or leave it out."
                raise CheckpointError(msg)
        return next(filter(None, sources.values()), "")

    def _reach(self, address: str, *, first: bool) -> None:
        """Refuse an unknown host name, or (at the `first` request) an address that refuses connections.

        The library would retry for seconds.
        """
        parts = urlsplit(address)
        host = parts.hostname
        if not host or any(name.lower().endswith("_proxy") for name in os.environ):
            return
        try:
            socket.getaddrinfo(host, None)
        except (socket.gaierror, UnicodeError) as error:
            if getattr(error, "errno", None) == socket.EAI_AGAIN:
                return  # the name server is away; the library waits for it
            where = shown(host, 80)
            msg = f"{self.url}: nobody knows the host {where} of its store; correct its address."
            raise CheckpointError(msg) from None
        port = parts.port or (80 if parts.scheme == "http" else 443)
        if first and isinstance(not_listening([(host, port)], REFUSED_S), ConnectionRefusedError):
            msg = (
                f"{self.url}: nobody answers at {shown(host, 80)}:{port} (Connection refused); see "
                "whether that is its store's address."
            )
            raise CheckpointError(msg)

    def prepare(self, directories: Iterable[str]) -> None:
        """Do nothing: a store has no directories."""

    def check(self) -> None:
        """Check that the store can hold a checkpoint.

        Raises `CheckpointError` if the bucket is missing, if access is refused, or if a writer can
        overwrite another's object.
        """
        name, kept = self._tried()
        self.names("manifests")
        self._call("remove", name, lambda: _library("obstore").delete(self._store, [name]))
        if not kept:
            msg = (
                f"{self.url} cannot hold a checkpoint: its store lets one writer write over another "
                "(it ignores If-None-Match); use a store with conditional writes."
            )
            raise CheckpointError(msg)

    def put(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write an object over an existing one; a store always writes durably."""
        parts = len(data) >= _PARTS_BYTES
        self._call(
            "write",
            name,
            lambda: _library("obstore").put(self._store, name, data, use_multipart=parts),
            len(data),
        )

    def put_new(self, name: str, data: bytes) -> None:
        """Create an object; refuse if one of that name exists with other bytes."""
        wait_s, failure = _WAIT_S, None
        patience = max(_GIVE_UP, _GIVE_UP_FIRST) if self._known else _GIVE_UP_FIRST
        until_s = time.monotonic() + patience.total_seconds()
        for tried in range(_TRIES):
            if tried and failure is not None and time.monotonic() > until_s:
                break  # the library has tried for as long as that already
            try:
                self._create(name, data)
            except FileExistsError:
                failure = None
            except _Unanswered as error:
                failure = error.meant
            else:
                return
            # after the library has waited for long, the answer comes soon or not at all
            waited = failure is not None and time.monotonic() > until_s
            there = self._read(self._hasty if waited else self._store, name)
            if there == data:
                return  # this write's own success, whose answer was lost
            if there is not None:
                raise FileExistsError(self.at(name))
            # refused, but no object exists: another write was under way, and failed
            time.sleep(wait_s * random.uniform(0.5, 1.5))
            wait_s *= 2
        msg = f"{self.at(name)} cannot be written: each try was refused, and nothing is there."
        raise failure or CheckpointError(msg)

    def put_unique(self, name: str, data: bytes) -> None:
        """Create an object; a large one in parts, which a store cannot refuse if the object exists."""
        if len(data) < _PARTS_BYTES:
            self.put_new(name, data)
        else:
            self.put(name, data)

    def _create(self, name: str, data: bytes) -> None:
        exceptions = _library("obstore.exceptions")
        exists = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileExistsError)

        def create() -> None:
            try:
                _library("obstore").put(self._store, name, data, mode="create", use_multipart=False)
            except exists as error:
                raise FileExistsError(self.at(name)) from error
            except exceptions.GenericError as error:
                meant = self._sentence("write", name, error)
                if _status(error) in _UNKNOWN and _REDIRECTED not in str(error):
                    raise _Unanswered(meant) from error
                raise meant from error

        self._call("write", name, create, len(data))

    def _found(self, name: str) -> bytes | None:
        return self._read(self._store, name)

    def _read(self, store: Any, name: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return bytes(_library("obstore").get(store, name).bytes())
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise
                return None

        return self._call("read", name, read)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return a range of an object's bytes."""

        def read() -> bytes:
            try:
                data = _library("obstore").get_range(self._store, name, start=start, length=length)
            except _library("obstore.exceptions").GenericError as error:
                if _status(error) == "416":  # the object ends before `start`
                    return b""
                raise
            return bytes(data)

        return self._call("read", name, read)

    def exists(self, name: str) -> bool:
        """Return whether an object of that name exists."""

        def look() -> bool:
            try:
                _library("obstore").head(self._store, name)
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise
                return False
            return True

        return self._call("read", name, look)

    def _list(self, directory: str) -> dict[str, int]:
        def list_directory() -> dict[str, int]:
            chunks = _library("obstore").list(self._store, directory)
            return {
                str(entry["path"]).removeprefix(f"{directory}/"): int(entry["size"])
                for chunk in chunks
                for entry in chunk
            }

        return self._call("list", f"{directory}/", list_directory)

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects, many of them with one request."""
        asked = list(names)
        if asked:
            with suppress(CheckpointError):
                self._call(
                    "remove", asked[0], lambda: _library("obstore").delete(self._store, asked)
                )

    def _call(self, act: str, name: str, do: Callable[[], Result], length: int = 0) -> Result:
        self._count(act, name, length)
        with self._explained(act, name):
            result = do()
        self._known = True
        return result

    @contextmanager
    def _explained(self, act: str, name: str) -> Iterator[None]:
        """Turn an error of the library into one sentence, without a key and without a URL's query."""
        errors = _library("obstore.exceptions").BaseError
        try:
            with panics_told(self.at(name), act):
                yield
        except (FileExistsError, _Unanswered, CheckpointError):
            raise
        except (errors, OSError, ValueError) as error:
            raise self._sentence(act, name, error) from None

    def _sentence(self, act: str, name: str, error: Exception) -> CheckpointError:
        text = str(error)
        match = _CODE.search(text)
        code, status = match[1] if match else "", _status(error)
        if _NO_BUCKET.search(text):
            msg = f"checkpoint {self.url}: its bucket does not exist; create it, or name another."
        elif _REDIRECTED in text or code in _REGION:
            msg = (
                f"{self.url}: its bucket is not in the region that was asked; name its own by option "
                "headgate.store.region, or as its cloud does."
            )
        elif not code and _NO_CREDENTIALS.search(text):
            msg = (
                f"{self.url}: the store has no credentials to {act} with; set them as its cloud does, or "
                "by options headgate.store.*."
            )
        elif status in ("401", "403") or code in _CREDENTIALS:
            msg = (
                f"{self.at(name)}: the store refuses to {act} ({status} {code or 'Forbidden'}); give "
                "this user the right to, or other credentials."
            )
        else:
            why = " ".join(filter(None, (status, code))) or "no answer from its address"
            msg = f"{self.at(name)}: the store cannot {act} ({why}); see whether it can be reached."
        return CheckpointError(msg)


class _Unanswered(Exception):
    """Reports a request that may or may not have been carried out."""

    def __init__(self, meant: CheckpointError) -> None:
        self.meant = meant


def _snake(name: str) -> str:
    return re.sub("([A-Z])", r"_\1", name).lower()


def _status(error: Exception) -> str:
    match = _STATUS.search(str(error))
    return match[1] if match else ""


def _library(name: str) -> Any:
    """Import a part of the library for stores."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = (
            "a checkpoint on an object store needs obstore: in a checkout of headgate, "
            'pip install ".[store]".'
        )
        raise CheckpointError(msg) from error
