"""Defines the faults of `headgate bench storm`, and finds the processes that they hit."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headgate.spark.job.faults import POINTS

MARK = "HEADGATE_STORM"
"""Environment variable that marks all processes of a storm, also after their parent has died."""

DRIVER, JVM, GROUP, WORKER, DAEMON = "driver", "jvm", "group", "worker", "daemon"
KILLS = tuple(f"kill-{whom}" for whom in (DRIVER, JVM, GROUP, WORKER, DAEMON))
PAUSES = tuple(f"pause-{whom}" for whom in (DRIVER, JVM, WORKER, DAEMON))
COMMITS = ("commit-intent", "commit-manifest", "commit-sink", "commit-spark")
"""The driver is killed when one of a step's files appears: its intent, its manifest, the sink's log, or
Spark's commit."""

CRASHES = tuple(f"crash-{point}" for point in POINTS)
"""The driver exits at a point of its code that it has been told."""

START = "start"
KINDS = (*KILLS, *PAUSES, *COMMITS, *CRASHES, START)

_DAEMONS = (b"headgate.spark.worker.daemon", b"pyspark.daemon")


@dataclass(frozen=True)
class Fault:
    """Describes one fault.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    after_s : float
        Time from the job's progress to the fault; for kind ``start``, from the start of the process.
    draw : float
        Random number in [0, 1): selects one of several processes, and whether the JVM dies with a driver.
    """

    kind: str
    after_s: float
    draw: float

    @property
    def whom(self) -> str:
        """Return the kind of process that the fault hits."""
        if self.kind in KILLS or self.kind in PAUSES:
            return self.kind.partition("-")[2]
        return GROUP if self.draw < 0.5 else DRIVER  # noqa: PLR2004 - half and half

    @property
    def ends_life(self) -> bool:
        """Return whether the fault ends the driver."""
        return self.kind not in (*PAUSES, "kill-worker", "kill-daemon")


def planned(
    count: int, seed: str, kinds: tuple[str, ...], moment_s: float, start_s: float
) -> list[Fault]:
    """Return `count` faults in random order, in which two kinds differ by at most one in their number."""
    draw = random.Random(seed)
    order: list[str] = []
    while len(order) < count:
        turn = list(kinds)
        draw.shuffle(turn)
        order += turn
    return [
        Fault(
            kind,
            draw.uniform(0.5, start_s) if kind == START else draw.uniform(0.0, moment_s),
            draw.random(),
        )
        for kind in order[:count]
    ]


@dataclass(frozen=True)
class Process:
    """Holds facts on a process; `began` tells it from a later process with the same pid.

    Attributes
    ----------
    began : int
        Start of the process, in clock ticks since the machine's start.
    state : str
        A letter, as in ``/proc``.
    what : bytes
        Command line.
    """

    pid: int
    parent: int
    began: int
    state: str
    what: bytes

    @property
    def alive(self) -> bool:
        """Return whether the process exists and is no zombie."""
        now = _seen(self.pid)
        return now is not None and now.began == self.began and now.state not in "ZX"

    def send(self, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _seen(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        what = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    # the name is in parentheses, and may contain blanks and parentheses itself
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[19]), fields[0], what)


def marked(mark: str) -> list[Process]:
    """Return the living processes of a storm, oldest first."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found.append(_seen(int(entry)))
    living = [one for one in found if one is not None and one.state not in "ZX"]
    return sorted(living, key=lambda one: (one.began, one.pid))


def of_kind(processes: list[Process], whom: str, driver: int) -> list[Process]:
    """Return the processes of one kind: driver, jvm, worker or daemon."""
    if whom == DRIVER:
        return [one for one in processes if one.pid == driver]
    jvms = {one.pid for one in processes if one.what.split(b"\0")[0].endswith(b"java")}
    if whom == JVM:
        return [one for one in processes if one.pid in jvms]
    forked = [one for one in processes if any(name in one.what for name in _DAEMONS)]
    daemons = {one.pid for one in forked if one.parent in jvms}
    if whom == DAEMON:
        return [one for one in forked if one.pid in daemons]
    return [one for one in forked if one.parent in daemons]


def wait_until(true: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """Wait until `true` returns True; return whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def take_stacks(processes: list[Process], driver: int, folder: Path) -> None:
    """Write the states and stacks of all processes to `folder`; the driver's stacks go to its output."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(ProcessLookupError):
        os.kill(driver, signal.SIGUSR1)
    for one in processes:
        lines = [f"{one}"]
        for name in ("status", "wchan", "stack", "syscall"):
            with contextlib.suppress(OSError):
                lines.append(f"--- {name}\n{Path(f'/proc/{one.pid}/{name}').read_text()}")
        (folder / f"{one.pid}.txt").write_text("\n".join(lines))
    home = os.environ.get("JAVA_HOME")
    jstack = f"{home}/bin/jstack" if home else shutil.which("jstack")
    for one in of_kind(processes, JVM, driver):
        if jstack and Path(jstack).is_file():
            with open(folder / f"jvm-{one.pid}.txt", "wb") as file:
                with contextlib.suppress(subprocess.SubprocessError):
                    subprocess.run(
                        [jstack, "-l", str(one.pid)],
                        stdout=file,
                        stderr=file,
                        timeout=60,
                        check=False,
                    )
        else:
            one.send(signal.SIGQUIT)  # the JVM prints its threads to its output
