"""Sends a request to a running query through its checkpoint: needs storage rights and no port."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.command_files import STOP, Command, CommandFiles
from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, EngineError
from headgate.scenario.places import written

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
    """Send a request to a query and wait for the answer, which comes at the query's next batch.

    Returns act, by, reason, arguments, id, at_ms (time of the act), detail (the act in words).

    `act`: one of `headgate.checkpoint.command_files.ACTS`. Raises `CheckpointError`: there is no
    checkpoint, or it cannot be written; `ConfigError`: the query refused; `EngineError`: no query
    answered; the request stays, and the query takes it up when it runs.
    """
    _check_wait(wait_s)
    files = CommandFiles(Checkpoint(checkpoint).files)
    command, request, answer = _send(files, act, reason, arguments or {}, wait_s, sleep)
    if answer is not None:
        return _take_answer(command, request, answer)
    msg = (
        f"no query answered within {wait_s:g} s; a query that starts on {written(checkpoint)} will "
        f"{act} at its first batch; headgate status says whether a query runs."
    )
    raise EngineError(msg)


def stop(
    checkpoint: str | os.PathLike[str],
    *,
    reason: str = "",
    wait_s: float = 60.0,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Ask the query that runs on a checkpoint to stop, and wait until it has ended.

    Parameters and result as of `ask`. Raises `CheckpointError`: there is no checkpoint,
    or it cannot be written; `EngineError`: no query runs there, or it has not ended in time.
    """
    _check_wait(wait_s)
    files = CommandFiles(Checkpoint(checkpoint).files)
    if files.is_free():
        msg = f"no query runs on {written(checkpoint)}; there is nothing to stop."
        raise EngineError(msg)
    command, request, answer = _send(files, STOP, reason, {}, wait_s, sleep)
    if answer is not None:
        return _take_answer(command, request, answer)
    files.withdraw(request)
    msg = (
        f"no query on {written(checkpoint)} has ended within {wait_s:g} s, and the request is withdrawn; "
        "headgate status says whether a query runs."
    )
    raise EngineError(msg)


def freeze_arguments(for_: str | None) -> dict[str, Any]:
    """Return the arguments of ``freeze`` for a time such as ``2h``; None: until ``thaw``."""
    return {} if for_ is None else {"until_s": round(time.time() + parse_duration_s(for_), 3)}


def scale_arguments(slots: int, operator: str | None, hold: str | None) -> dict[str, Any]:
    """Return the arguments of ``scale``; `hold` is a time such as ``10min``."""
    request = {"slots": slots} | ({} if operator is None else {"operator": operator})
    return request | ({} if hold is None else {"hold_s": parse_duration_s(hold)})


def _check_wait(wait_s: float) -> None:
    if wait_s > _WAIT_MAX_S:
        msg = f"a wait of {wait_s:g} s is out of range; use a day at most, as the request stays."
        raise ConfigError(msg)


def _send(
    files: CommandFiles,
    act: str,
    reason: str,
    arguments: Mapping[str, Any],
    wait_s: float,
    sleep: Callable[[float], None],
) -> tuple[Command, str, dict[str, Any] | None]:
    """Send a request and wait; return the command, the request's id, and the answer or None."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have no name
        user = str(os.getuid())
    by = f"{user}@{socket.gethostname()}"
    command = Command(act, by, reason, arguments)
    request = files.ask(command)
    for _ in range(max(1, round(wait_s / _POLL_S))):
        answer = files.answer(request)
        if answer is not None:
            return command, request, answer
        sleep(_POLL_S)
    return command, request, None


def _take_answer(command: Command, request: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    if answer["refused"] is not None:
        raise ConfigError(str(answer["refused"]))
    return {
        "act": command.act,
        "by": command.by,
        "reason": command.reason,
        "arguments": dict(command.arguments),
        "id": request,
        "at_ms": answer["at_ms"],
        "detail": answer["detail"],
    }
