"""Every error headgate raises on purpose.

::

    HeadgateError
    ├── ConfigError         a setting: names the key, the value, the range or the nearest name
    ├── UnsupportedQuery    a query part that cannot run elastically
    ├── CheckpointError     a checkpoint that does not fit, is held, or is damaged
    ├── StateError          state that cannot be brought to the token asked for
    │   └── ArenaFull       the file system that state lies in has no room
    ├── ProtocolError       an event that the protocol does not allow
    ├── EngineError         the engine failed; ``transient`` says whether a retry may help
    │   ├── ProcessorError  a user's own processor failed, or gave back what does not fit
    │   └── EngineGone      the engine's process was killed, or crashed
    └── NotReady            not a fault: skip this cycle

A message is one sentence that names the thing, the value and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class HeadgateError(Exception):
    """The root of all errors raised on purpose."""


class ConfigError(HeadgateError):
    """A setting is unknown, malformed or out of range."""


class UnsupportedQuery(HeadgateError):
    """The query has a part that headgate cannot run elastically."""


class CheckpointError(HeadgateError):
    """A checkpoint belongs to something else, is held by another driver, or is damaged."""


class AnotherDriver(CheckpointError):
    """Another driver has gone on from the checkpoint; says which one."""


class StateError(HeadgateError):
    """The state of a key group cannot be brought to the token that was asked for."""


class ArenaFull(StateError):
    """The file system of an arena, or of a spill directory, has no room for a table."""


class ProtocolError(HeadgateError):
    """An event arrived that the protocol does not allow in this state."""


class EngineError(HeadgateError):
    """The engine failed.

    Parameters
    ----------
    message : str
        One sentence.
    transient : bool
        True where running the same batch again may succeed.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class ProcessorError(EngineError):
    """A user's own processor failed, or gave back what does not fit.

    What the user's exception says stands between ‹ and ›; journals do without.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)


class EngineGone(EngineError):
    """The process that the engine runs in was killed, or crashed; nothing of it answers any more."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class NotReady(HeadgateError):
    """Too little is known yet; skip this cycle. Never shown to a user as a failure."""


def panicked(error: BaseException) -> bool:
    """Return whether a library written in Rust panicked: its PanicException is no Exception.

    Each such library has a class of its own, so it is known by name only.
    """
    return type(error).__name__ == "PanicException"


@contextmanager
def without_panics() -> Iterator[None]:
    """Within, turn a panic of a native library into an error that is one.

    Raises
    ------
    EngineError
    """
    try:
        yield
    except BaseException as error:
        if not panicked(error):
            raise
        text = str(error).partition("\n")[0][:300]
        msg = f"a native library panicked: {text}; report it to the library that was called."
        raise EngineError(msg) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the known name closest to `name`, or ``""``."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else ""
