"""Defines every error that headgate raises on purpose.

::

    HeadgateError
    ├── ConfigError         a setting: names the key, the value, the range or the nearest name
    ├── UnsupportedQuery    a query part that cannot run elastically
    ├── CheckpointError     a checkpoint of another query, locked by a driver, or damaged
    │   └── AnotherDriver   another driver has continued from the checkpoint
    ├── StateError          state that cannot be brought to the wanted token
    │   └── ArenaFull       the file system of the state has no room
    ├── ProtocolError       an event that the protocol does not allow
    ├── EngineError         the engine failed; ``transient`` says whether a retry may help
    │   ├── ProcessorError  a user's own processor failed, or returned a wrong result
    │   └── EngineGone      the engine's process was killed, or crashed
    └── NotReady            not a fault: skip this cycle

A message is one sentence that names the thing, the value and the remedy.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class HeadgateError(Exception):
    """Is the root of the tree: the base of every error that headgate raises on purpose."""


class ConfigError(HeadgateError):
    """Reports a setting that is unknown, malformed or out of range."""


class UnsupportedQuery(HeadgateError):
    """Reports a part of a query that headgate cannot run elastically."""


class CheckpointError(HeadgateError):
    """Reports a checkpoint of another query, locked by another driver, or damaged."""


class AnotherDriver(CheckpointError):
    """Reports that another driver has continued from the checkpoint; names that driver."""


class StateError(HeadgateError):
    """Reports that the state of a key group cannot be brought to the wanted token."""


class ArenaFull(StateError):
    """Reports that the file system of an arena, or of a spill directory, has no room for a table."""


class ProtocolError(HeadgateError):
    """Reports an event that the protocol does not allow in this state."""


class EngineError(HeadgateError):
    """Reports a failure of the engine.

    `message`: one sentence. `transient`: True where running the same batch again may succeed.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class ProcessorError(EngineError):
    """Reports a failure or a wrong result of a user's own processor.

    The text of the user's exception stands between ‹ and ›; journals leave it out.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class EngineGone(EngineError):
    """Reports that the engine's process was killed, or crashed; no part of it answers any more."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class NotReady(HeadgateError):
    """Reports that too little is known yet; skip this cycle. Users never see this as a failure."""


def panicked(error: BaseException) -> bool:
    """Return whether a library written in Rust panicked: its PanicException is no Exception.

    Each such library has its own class, so only the name identifies it.
    """
    return type(error).__name__ == "PanicException"


@contextmanager
def without_panics() -> Iterator[None]:
    """Turn a panic of a native library within the block into an `EngineError`."""
    try:
        yield
    except BaseException as error:
        if not panicked(error):
            raise
        text = str(error).partition("\n")[0][:300]
        msg = f"a native library panicked: {text}; report it to the library that was called."
        raise EngineError(msg) from error


def require(fits: bool, what: str, value: object, allowed: str) -> None:
    """Raise ConfigError, which names `what` and its `value`, unless an argument `fits`."""
    if not fits:
        msg = f"{what}={value!r:.200} is not allowed; use {allowed}."
        raise ConfigError(msg)


def require_place(place: object, what: str) -> None:
    """Raise ConfigError unless an argument can be a path or a location on a store."""
    fits = isinstance(place, str | os.PathLike) and bool(os.fspath(place))
    require(fits, what, place, "the checkpointLocation of a query")


def instead_of(name: str, given: Iterable[str]) -> str:
    """Return ``' instead of "pth"'`` if `given` has a misspelling of the option `name`, or ``""``."""
    by_name = {option.lower(): option for option in given}
    close = difflib.get_close_matches(name.lower(), by_name, cutoff=0.8)
    return f' instead of "{by_name[close[0]]}"' if close else ""


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ``"; did you mean X?"``, the end of a sentence, for the closest known name, or ``""``.

    `prefix`: the beginning of all known names, which makes no name a near one.
    """
    ends = [each.removeprefix(prefix) for each in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), ends, cutoff=0.5)
    return f'; did you mean "{prefix}{close[0]}"?' if close else ""
