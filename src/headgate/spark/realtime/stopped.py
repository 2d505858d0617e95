"""Finds processes of a pipe that are stopped, as by SIGSTOP."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from headgate.spark.realtime import words

_PROC = Path("/proc")


def find_stopped(processes: Mapping[str, int]) -> tuple[str, int] | None:
    """Return name and id of a stopped process of this host; None if there is none.

    For a feeder, all Python workers of its executor are examined: the user's functions and the routers
    run in other workers, whose ids the driver does not know.

    Parameters
    ----------
    processes : mapping of str to int
        Process ids by name.
    """
    for name, process in processes.items():
        if _is_stopped(process):
            return name, process
    for name, process in processes.items():
        if name.startswith(words.FEEDER):
            for worker in _forked_beside(process):
                if _is_stopped(worker):
                    return f"a Python worker behind {name}", worker
    return None


def executors(application: str, host: str) -> dict[str, int]:
    """Return the process id of each executor of an application on this host, by a name for messages.

    `application`, `host`: Spark's names; the command line of each executor has both.
    """
    found = {}
    for process in _every():
        words = _program(process).decode(errors="replace").split("\0")
        told = dict(pairwise(words))
        if (told.get("--app-id"), told.get("--hostname")) == (application, host):
            found[f"executor {told.get('--executor-id')}"] = process
    return found


def _every() -> list[int]:
    """Return the process ids of this host; none without ``/proc``."""
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return []


def _forked_beside(process: int) -> list[int]:
    """Return the processes with the same parent and the same command line."""
    whole = _fields(process)
    if not whole:
        return []
    parent, program = whole[1], _program(process)
    return [one for one in _every() if _fields(one)[1:2] == [parent] and _program(one) == program]


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped; False without ``/proc``."""
    return _fields(process)[:1] == ["T"]


def _fields(process: int) -> list[str]:
    """Return state, parent and more of a process; empty if it has ended, or without ``/proc``."""
    with contextlib.suppress(OSError):
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    return []


def _program(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(process) / "cmdline").read_bytes()
    return b""
