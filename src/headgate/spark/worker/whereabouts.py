"""Tells the host of a Python worker, and the load of its machine."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from functools import cache
from pathlib import Path

from headgate.spark.job.reports import Ran

DRIVER = "driver"
"""The executor that a worker of a local session belongs to, as Spark names it."""

AGENT, AGENT_HOST = "agent", "HEADGATE_AGENT_HOST"
"""What stands for the executor of a slot that an agent has started, and the variable with its host."""


@cache
def executor_and_host() -> tuple[str, str]:
    """Return executor id and host from the command line of the JVM that started this worker.

    A slot in real time has an agent for its starter, which tells it the host.
    """
    if AGENT_HOST in os.environ:
        return AGENT, os.environ[AGENT_HOST]
    pid = os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 1:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if "--executor-id" in words:
                host = words[words.index("--hostname") + 1]
                return words[words.index("--executor-id") + 1], host
            # behind the command's name in parentheses: state, parent
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return DRIVER, socket.gethostname()


def waited_for_core_ms() -> float:
    """Return how long this thread has been ready to run and had no core, in ms; 0 where nobody says so.

    References
    ----------
    Linux, Documentation/scheduler/sched-stats: the second number is time on a run queue, nanoseconds.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e6
    return 0.0


def ran(began_ms: float) -> Ran:
    """Return where and when a task ran that began at `began_ms` and ends now."""
    load = None
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0]
    return Ran(executor_and_host()[1], began_ms, time.time() * 1e3, load)
