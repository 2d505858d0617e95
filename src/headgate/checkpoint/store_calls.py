"""Records or delays every call to a checkpoint's store, and refuses calls after a fork.

Recording and delaying are for benchmarks, and off by default. With ``HEADGATE_STORE_DELAY`` (a duration
such as ``50 ms``) every call to the checkpoint's store takes that much longer; with
``HEADGATE_STORE_TRACE`` (a path) each call is noted there, one line of JSON each. Neither affects Spark's
own logs, which the JVM writes.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headgate.core.duration import parse_duration_s
from headgate.core.errors import CheckpointError

DELAY = "HEADGATE_STORE_DELAY"
TRACE = "HEADGATE_STORE_TRACE"

_used_in: list[int] = []
"""Process that has used a store's library, whose threads do not survive a fork; empty before."""


@dataclass(frozen=True)
class _Asked:
    delay_s: float
    trace: str | None


@cache
def _asked() -> _Asked:
    """Return the delay and the trace that the environment sets; cached, because they do not change."""
    delay = os.environ.get(DELAY)
    return _Asked(parse_duration_s(delay) if delay else 0.0, os.environ.get(TRACE))


def note_call(act: str, directory: Path, name: str = "", length: int = 0) -> None:
    """Trace and delay a call to the store: ``read``, ``write``, ``remove`` or ``list``."""
    asked = _asked()
    if asked.trace is not None:
        note = {"act": act, "kind": directory.name, "name": name, "bytes": length}
        line = json.dumps(note | {"pid": os.getpid(), "at_ms": round(time.time() * 1e3, 3)})
        # one write per line, so that lines of several processes do not mix
        with open(asked.trace, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    if asked.delay_s:
        time.sleep(asked.delay_s)


def refuse_after_fork() -> None:
    """Refuse a call in a forked process, which would wait for ever for its parent's threads.

    Raises `CheckpointError` if the process was forked from one that had used a store's library.
    """
    pid = os.getpid()
    if not _used_in:
        _used_in.append(pid)
    elif _used_in[0] != pid:
        msg = (
            f"process {pid} was forked from one that had used a store, and cannot use it; start it as a "
            "new process (spawn)."
        )
        raise CheckpointError(msg)
