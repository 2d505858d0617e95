"""Control files of a checkpoint: what somebody asks of a running query, and what became of it.

::

    <checkpoint>/headgate/control/<id>.json    asked for; the driver reads it at its next batch
                                  <id>.done    carried out or refused; the request is gone then
                                  frozen       assignments may not change; survives a restart

A request is there whole or not at all. Who may write to the checkpoint may ask; nothing in a request
is code, and a request that cannot be read is refused.
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

from headgate.core.errors import CheckpointError, ConfigError
from headgate.state.files import make_directory, names_in, read_bytes, remove, write_bytes

ACTS = ("freeze", "thaw", "scale", "rollback")

_DIRECTORY = "control"
_FROZEN = "frozen"
_NAME = re.compile(r"(\d{13}-[0-9a-f]{8})\.(json|done)")
_KEPT_S = 24 * 3600.0
"""How long an answer is kept for whoever asked."""
_TEXT_MAX = 500
"""Characters of a text that anybody may have written."""


@dataclass(frozen=True)
class Command:
    """What somebody asks of a query.

    Attributes
    ----------
    act : str
        One of `ACTS`.
    by, reason : str
        For the journal.
    arguments : mapping
        Of the act: ``until_s`` (seconds since 1970) of freeze, ``slots``, ``operator`` and
        ``partitioning`` of scale, ``epoch`` of rollback.
    """

    act: str
    by: str
    reason: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request in the checkpoint.

    Attributes
    ----------
    id : str
    command : Command or None
        None where it cannot be read.
    problem : str
        Why not.
    """

    id: str
    command: Command | None
    problem: str = ""


class ControlFiles:
    """The control files of one checkpoint.

    Parameters
    ----------
    root : path
        The checkpoint's ``headgate`` directory.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / _DIRECTORY

    # who asks

    def ask(self, command: Command) -> str:
        """Write a request; return its id.

        Raises
        ------
        CheckpointError
            There is no checkpoint, or it cannot be written.
        """
        if not self._path.parent.is_dir():
            msg = f"{self._path.parent} does not exist; give the checkpoint of a headgate query."
            raise CheckpointError(msg)
        make_directory(self._path)
        name = f"{time.time_ns() // 1_000_000:013d}-{secrets.token_hex(4)}"
        write_bytes(self._path, f"{name}.json", json.dumps(asdict(command)).encode())
        return name

    def answer(self, request: str) -> dict[str, Any] | None:
        """Return ``refused`` (a sentence or None) and ``at_ms``; None while there is no answer."""
        if not (self._path / f"{request}.done").exists():
            return None
        found: dict[str, Any] = json.loads(read_bytes(self._path, f"{request}.done"))
        return found

    # who is asked

    def pending(self) -> list[Asked]:
        """Return the requests without an answer, oldest first."""
        try:
            names = sorted(names_in(self._path))
        except FileNotFoundError:
            return []
        found = []
        for name in names:
            named = _NAME.fullmatch(name)
            if named is None:
                continue  # not ours: a stray file must not end the query
            if named[2] == "done":
                self._forget(name)
            elif f"{named[1]}.done" not in names:
                found.append(self._read(named[1]))
        return found

    def done(self, request: str, refused: str | None) -> None:
        """Answer a request: carried out, or why not."""
        answer = {"refused": refused, "at_ms": time.time_ns() // 1_000_000}
        write_bytes(self._path, f"{request}.done", json.dumps(answer).encode(), replace=True)
        remove(self._path, f"{request}.json")

    def freeze(self, until_s: float | None) -> None:
        """Note until when assignments may not change, seconds since 1970; None: for good."""
        make_directory(self._path)
        write_bytes(self._path, _FROZEN, json.dumps({"until_s": until_s}).encode(), replace=True)

    def thaw(self) -> None:
        """Note that assignments may change."""
        remove(self._path, _FROZEN)

    def frozen_until_s(self) -> float | None:
        """Return until when assignments may not change, infinity for good; None where they may."""
        if not (self._path / _FROZEN).exists():
            return None
        try:
            until_s = json.loads(read_bytes(self._path, _FROZEN))["until_s"]
            return float("inf") if until_s is None else float(until_s)
        except (ValueError, TypeError, KeyError) as error:
            msg = f"{self._path / _FROZEN} cannot be read; remove it, and freeze again if need be."
            raise CheckpointError(msg) from error

    def _read(self, request: str) -> Asked:
        try:
            return Asked(request, _command(json.loads(read_bytes(self._path, f"{request}.json"))))
        except (CheckpointError, ConfigError, ValueError, TypeError, KeyError) as error:
            return Asked(request, None, f"the request cannot be read: {error}")

    def _forget(self, name: str) -> None:
        if time.time() - int(name[:13]) / 1e3 > _KEPT_S:
            remove(self._path, name)


def _command(found: Mapping[str, Any]) -> Command:
    act = found["act"]
    if act not in ACTS:
        msg = f"unknown act {act!r}; use one of {', '.join(ACTS)}"
        raise ConfigError(msg)
    by, reason = (str(found.get(key, ""))[:_TEXT_MAX] for key in ("by", "reason"))
    return Command(act, by, reason, dict(found.get("arguments", {})))
