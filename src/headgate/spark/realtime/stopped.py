"""Finds processes of a pipe that somebody has stopped, as with SIGSTOP."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from headgate.spark.realtime import words

_PROC = Path("/proc")


def find_stopped(processes: Mapping[str, int]) -> tuple[str, int] | None:
    """Return name and number of a process of this host that is stopped; None for none.

    A feeder stands for all Python workers of its executor: what follows it in the plan, functions of the
    user's and routers, runs in others, which no driver knows.

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
    """Return the process of each executor that an application has on this host, by a name for people.

    `application`, `host`: as Spark names them; every executor is told both when it is started.
    """
    found = {}
    for process in _every():
        words = _program(process).decode(errors="replace").split("\0")
        told = dict(pairwise(words))
        if (told.get("--app-id"), told.get("--hostname")) == (application, host):
            found[f"executor {told.get('--executor-id')}"] = process
    return found


def _every() -> list[int]:
    """Return the processes of this host; none where nobody says which there are."""
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    return []


def _forked_beside(process: int) -> list[int]:
    """Return the processes of the same parent and the same program."""
    whole = _fields(process)
    if not whole:
        return []
    parent, program = whole[1], _program(process)
    return [one for one in _every() if _fields(one)[1:2] == [parent] and _program(one) == program]


def _is_stopped(process: int) -> bool:
    """Return whether a process is stopped; False where nobody says so."""
    return _fields(process)[:1] == ["T"]


def _fields(process: int) -> list[str]:
    """Return state, parent and more of a process; nothing where it is gone, or nobody says so."""
    with contextlib.suppress(OSError):
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    return []


def _program(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(process) / "cmdline").read_bytes()
    return b""
