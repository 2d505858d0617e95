"""Finds and kills the processes of a driver that has its own process group, and reads its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

_SAID_MAX = 300
"""Longest quote of a driver's last line in a result, in characters."""


def end(process: subprocess.Popen[bytes], whom: str) -> None:
    """Kill a driver and wait until its process has ended.

    Parameters
    ----------
    whom : str
        driver: only its Python process, so that its JVM goes on alone; group: all its processes.
    """
    with contextlib.suppress(ProcessLookupError):
        if whom == "group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def last_line(said: Path) -> str:
    """Return the last line of a driver's output that names an error, else its last line."""
    lines = said.read_text(errors="replace").strip().splitlines()
    told = [line for line in lines if "Error" in line or "Exception" in line]
    return (told or lines or ["nothing was said"])[-1][:_SAID_MAX]


def python_workers(session_id: int) -> list[int]:
    """Return the Python workers of a driver by its session id: forks of a daemon, slots in real time."""
    processes = _processes(session_id)
    daemons = {one for one, (_, command) in processes.items() if b"worker.daemon" in command}
    return [
        one
        for one, (parent, command) in processes.items()
        if (one in daemons and parent in daemons) or b"realtime.fork_server" in command
    ]


def driver_jvms(session_id: int) -> list[int]:
    """Return the JVM of a driver, by its session id."""
    name = b"org.apache.spark.deploy.SparkSubmit"
    return [one for one, (_, said) in _processes(session_id).items() if name in said.split(b"\0")]


def is_of_jobs(process: int) -> bool:
    """Return whether a process is a Python worker, or a slot or an agent in real time."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        return any(name in command for name in (b"pyspark.", b"headgate.spark.realtime."))
    return False


def _processes(session_id: int) -> dict[int, tuple[int, bytes]]:
    """Return parent and command line of each process in a session."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            _, _, rest = (entry / "stat").read_text().rpartition(")")
            parent, _, its_session = (int(text) for text in rest.split()[1:4])
            if its_session == session_id:
                found[int(entry.name)] = parent, (entry / "cmdline").read_bytes()
    return found
