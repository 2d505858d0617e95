"""Reads and writes the control files of a checkpoint: requests to a running query, and the answers.

::

    <checkpoint>/headgate/control/<id>.json    a request; the driver reads it at its next batch
                                  <id>.done    the answer: carried out or refused; its request is removed
                                  frozen       assignments may not change; survives a restart
                                  held         policies may not change the slots; survives a restart
                                  *.damaged    an unreadable file that was set aside

A request is written whole or not at all. A user who may write to the checkpoint may make requests. A
request contains no code. A request that is not readable or not valid is refused and set aside: it never
ends a query.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headgate.checkpoint.place import Files, PosixFiles
from headgate.core.driver_lock import LOCK, is_locked
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.input import finite, read_json, shown

ACTS = ("freeze", "thaw", "scale", "rollback", "stop")
STOP = "stop"
"""Ends the current run of the query; a run that begins later ignores this request."""

_DIRECTORY = "control"
_FROZEN = "frozen"
_HELD = "held"
_NAME = re.compile(r"(\d{13}-[0-9a-f]{8})\.(json|done)")
_REQUEST_BYTES_MAX = 1 << 16
_LIST_EVERY_S = 2.0
"""Seconds between two listings of the requests on a store. Chosen."""
_KEPT_S = 24 * 3600.0
"""Seconds after which an answer is removed."""
_LATEST_S = 250_000_000_000.0
"""The year 9892, seconds since 1970: later times fit neither a date nor a timer."""
_TEXT_MAX = 500
"""Largest length of a text that any user may have written, characters."""


@dataclass(frozen=True)
class Command:
    """Holds a user's request to a query."""

    act: str
    """One of `ACTS`."""
    by: str
    reason: str = ""
    """`by`, `reason`: the user and the reason, for the journal."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the act: ``until_s`` (seconds since 1970) of freeze, ``slots``, ``operator``,
    ``partitioning`` and ``hold_s`` (seconds) of scale, ``epoch`` of rollback."""


@dataclass(frozen=True)
class PendingCommand:
    """Holds a request in the checkpoint."""

    id: str
    command: Command | None
    """None if the request cannot be read."""
    problem: str = ""
    """The reason why the request cannot be read."""


class CommandFiles:
    """Reads and writes the control files of one checkpoint.

    `files`: files of the checkpoint, or the path of its ``headgate`` directory.
    """

    def __init__(self, files: Files | Path) -> None:
        self._files = PosixFiles(files) if isinstance(files, Path) else files
        self._look_s = float("-inf")
        self._seen: list[PendingCommand] = []

    # Methods for the user who makes a request.

    def ask(self, command: Command) -> str:
        """Write a request; return its id.

        Raises `CheckpointError` if there is no checkpoint, or if it cannot be written.
        """
        if not self._files.is_there():
            where = shown(self._files.at("")).removesuffix("/")
            msg = f"{where} does not exist; give the checkpoint of a headgate query."
            raise CheckpointError(msg)
        self._files.prepare([_DIRECTORY])
        name = f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"
        self._files.put_new(_in(f"{name}.json"), json.dumps(asdict(command)).encode())
        return name

    def answer(self, request: str) -> dict[str, Any] | None:
        """Return ``refused`` (a sentence or None), ``at_ms`` and ``detail``; None without an answer.

        Raises `ConfigError` if the answer cannot be read.
        """
        name = f"{request}.done"
        if not self._files.exists(_in(name)):
            return None
        content = read_json(self._files.get(_in(name)), f"the answer {name}")
        if not isinstance(content, dict):
            content = {}
        refused = content.get("refused", "the answer is damaged; ask again.")
        at_ms = content.get("at_ms")
        return {
            "refused": None if refused is None else shown(refused, _TEXT_MAX),
            "at_ms": at_ms if isinstance(at_ms, int) else None,
            "detail": shown(str(content.get("detail", "")), _TEXT_MAX),
        }

    # Methods for the driver that answers.

    def pending(self) -> list[PendingCommand]:
        """Return the requests without an answer, oldest first.

        On a store, where each listing costs a request, the list may be `_LIST_EVERY_S` old, and contain
        requests that were answered meanwhile.
        """
        now_s = time.monotonic()
        if now_s < self._look_s:
            return self._seen
        if self._files.shared:
            self._look_s = now_s + _LIST_EVERY_S
        self._seen = self._listed()
        return self._seen

    def _listed(self) -> list[PendingCommand]:
        try:
            names = sorted(self._files.names(_DIRECTORY))
        except (OSError, CheckpointError):  # nobody has made a request yet; or a store is away
            return []
        commands = []
        for name in names:
            named = _NAME.fullmatch(name)
            if named is None:
                continue  # a foreign file, which must not end the query
            if named[2] == "done":
                self._forget(name)
            elif f"{named[1]}.done" not in names:
                commands.append(self._read(named[1]))
        return commands

    def stops(self) -> list[PendingCommand]:
        """Return the requests to end the run, oldest first."""
        pending = self.pending()
        return [asked for asked in pending if asked.command and asked.command.act == STOP]

    def is_free(self) -> bool:
        """Return whether no driver has locked the checkpoint; False on a store, which has no lock."""
        return not self._files.shared and not is_locked(Path(self._files.at(LOCK)))

    def withdraw(self, request: str) -> None:
        """Remove a request without an answer."""
        self._files.remove([_in(f"{request}.json")])

    def write_answer(self, request: str, refused: str | None, detail: str = "") -> None:
        """Answer a request: `refused` is the reason of a refusal, `detail` describes the effect."""
        answer = {"refused": refused, "at_ms": time.time_ns() // 1_000_000, "detail": detail}
        self._files.put(_in(f"{request}.done"), json.dumps(answer).encode())
        self._files.remove([_in(f"{request}.json")])

    def refuse(self, request: str, why: str) -> None:
        """Answer a request that cannot be read, and set it aside for inspection."""
        self._files.set_aside(_in(f"{request}.json"))
        self.write_answer(request, why)

    def freeze(self, until_s: float | None) -> None:
        """Store until when assignments may not change, seconds since 1970; None: for good.

        Raises `ConfigError` if `until_s` is no time.
        """
        until_s = checked_until_s(until_s)
        self._files.prepare([_DIRECTORY])
        self._files.put(_in(_FROZEN), json.dumps({"until_s": until_s}).encode())

    def thaw(self) -> None:
        """Allow changes of assignments again."""
        self._files.remove([_in(_FROZEN)])

    def frozen_until_s(self) -> float | None:
        """Return until when assignments may not change, infinity for good; None if they may change.

        Raises `CheckpointError` if the file is damaged or holds no time; see `set_frozen_aside`.
        """
        if not self._files.exists(_in(_FROZEN)):
            return None
        try:
            content = read_json(self._files.get(_in(_FROZEN)), "it")
            until_s = checked_until_s(content["until_s"])
        except (CheckpointError, ConfigError, TypeError, KeyError) as error:
            why = shown(str(error).removesuffix("."))
            msg = f"{self._files.at(_in(_FROZEN))} cannot be read: {why}; freeze again if need be."
            raise CheckpointError(msg) from error
        return float("inf") if until_s is None else until_s

    def hold(self, until_s: Mapping[str, float]) -> None:
        """Store, by operator, until when policies may not change the number of slots, s since 1970."""
        if not until_s:
            self._files.remove([_in(_HELD)])
            return
        self._files.prepare([_DIRECTORY])
        self._files.put(_in(_HELD), json.dumps(dict(until_s)).encode())

    def held_until_s(self) -> dict[str, float]:
        """Return the times that `hold` has stored.

        Raises `CheckpointError` if the file is damaged, or holds no times.
        """
        if not self._files.exists(_in(_HELD)):
            return {}
        try:
            content = read_json(self._files.get(_in(_HELD)), "it")
            times = {str(name): checked_until_s(until_s) for name, until_s in content.items()}
            return {name: until_s for name, until_s in times.items() if until_s is not None}
        except (CheckpointError, ConfigError, TypeError, AttributeError) as error:
            why = shown(str(error).removesuffix("."))
            msg = f"{self._files.at(_in(_HELD))} cannot be read: {why}; hold the slots again if need be."
            raise CheckpointError(msg) from error

    def set_frozen_aside(self) -> str:
        """Rename an unreadable file of `freeze`; return its new name, or ``""``."""
        return self._files.set_aside(_in(_FROZEN))

    def _read(self, request: str) -> PendingCommand:
        try:
            raw = self._files.get(_in(f"{request}.json"))
            if len(raw) > _REQUEST_BYTES_MAX:
                msg = f"it is larger than {_REQUEST_BYTES_MAX:,} bytes"
                raise ConfigError(msg)
            return PendingCommand(request, _command(read_json(raw, "it")))
        except (CheckpointError, ConfigError, ValueError, TypeError, KeyError) as error:
            why = shown(str(error) if isinstance(error, ConfigError) else repr(error))
            return PendingCommand(
                request, None, f"the request cannot be read ({request}.json): {why}"
            )

    def _forget(self, name: str) -> None:
        if time.time() - int(name[:13]) / 1e3 > _KEPT_S:
            self._files.remove([_in(name)])


def _in(name: str) -> str:
    return f"{_DIRECTORY}/{name}"


def checked_until_s(value: object) -> float | None:
    """Return a time in seconds since 1970, or None for ever.

    Raises `ConfigError` if it is no number, not finite, or later than the calendar's end.
    """
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        msg = f"until_s={shown(repr(value), 60)} is no time; use seconds since 1970."
        raise ConfigError(msg)
    return float(finite(value, "until_s", 0.0, _LATEST_S))


def _command(content: Mapping[str, Any]) -> Command:
    act = content["act"]
    if act not in ACTS:
        msg = f"unknown act {shown(repr(act), 60)}; use one of {', '.join(ACTS)}"
        raise ConfigError(msg)
    by, reason = (str(content.get(key, ""))[:_TEXT_MAX] for key in ("by", "reason"))
    arguments = dict(content.get("arguments", {}))
    if "until_s" in arguments:
        arguments["until_s"] = checked_until_s(arguments["until_s"])
    return Command(act, by, reason, arguments)
