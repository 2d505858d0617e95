"""Sends a request to a running query through its checkpoint: needs storage rights and no port."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.errors import ConfigError, EngineError
from headgate.scenario.places import written
from headgate.state.checkpoint import Checkpoint
from headgate.state.control import Command, ControlFiles

_POLL_S = 0.1
_WAIT_MAX_S = 86_400.0


def ask(
    checkpoint: str | os.PathLike[str],
    act: str,
    *,
    reason: str = "",
    arguments: Mapping[str, Any] | None = None,
    wait_s: float = 10.0,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Ask a query for something and wait for its answer, which comes at its next batch.

    Parameters
    ----------
    checkpoint : path
    act : str
        One of `headgate.state.control.ACTS`.
    reason : str
        For the journal.
    arguments : mapping, optional
        As of `Command`.
    wait_s : float
    sleep : callable
        Replaced in tests.

    Returns
    -------
    dict
        act, by, reason, arguments, id, at_ms (when it was done).

    Raises
    ------
    CheckpointError
        There is no checkpoint, or it cannot be written.
    ConfigError
        The query refused.
    EngineError
        Nobody answered; the request stays, and the query takes it up when it runs.
    """
    if wait_s > _WAIT_MAX_S:
        msg = (
            f"a wait of {wait_s:g} s is out of range; use a day at most, the request stays anyway."
        )
        raise ConfigError(msg)
    files = ControlFiles(Checkpoint(checkpoint).files)
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    command = Command(act, by, reason, arguments or {})
    request = files.ask(command)
    for _ in range(max(1, round(wait_s / _POLL_S))):
        answer = files.answer(request)
        if answer is not None:
            return _told(command, request, answer)
        sleep(_POLL_S)
    msg = (
        f"no query answered within {wait_s:g} s; if one is started on {written(checkpoint)} it will "
        f"{act} at its first batch. Is it running? headgate status says."
    )
    raise EngineError(msg)


def _told(command: Command, request: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    if answer["refused"] is not None:
        raise ConfigError(str(answer["refused"]))
    return {
        "act": command.act,
        "by": command.by,
        "reason": command.reason,
        "arguments": dict(command.arguments),
        "id": request,
        "at_ms": answer["at_ms"],
    }
