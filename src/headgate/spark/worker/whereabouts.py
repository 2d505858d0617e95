"""Reads the host of a Python worker, and the load of its machine."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from functools import cache
from pathlib import Path

from headgate.spark.job.reports import Ran

DRIVER = "driver"
"""Spark's executor id in a local session."""

AGENT, AGENT_HOST = "agent", "HEADGATE_AGENT_HOST"
"""Executor id of a slot that an agent has started, and the environment variable with the slot's host."""


@cache
def executor_and_host() -> tuple[str, str]:
    """Return executor id and host from the command line of the JVM that started this worker.

    An agent that starts slots in real time passes the host in the variable `AGENT_HOST`.
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
            # the fields behind the command in parentheses are: state, parent
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return DRIVER, socket.gethostname()


def waited_for_core_ms() -> float:
    """Return how long this thread has waited for a core so far, in ms; 0 if the system does not count.

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
