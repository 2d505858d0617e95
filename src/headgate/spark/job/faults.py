"""Injects the faults that a test requests: slots fail, die, pause or slow down, and drivers die.

Slots read their faults from `JobConfig.faults`, which `headgate_lab.testing.faults` fills. The
environment variable ``HEADGATE_CRASH`` names the point at which a driver dies.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.core.errors import ConfigError, EngineError

CRASH = "HEADGATE_CRASH"
"""Variable with ``POINT:STEP`` or ``random:SEED``; then ``:driver`` kills only the Python process, and
``:group``, the default, the process group with the JVM."""

POINTS = ("after-intent", "before-manifest", "after-manifest", "after-sink")
"""Points at which a driver can die. Between *after-manifest* and *after-sink* a step is committed, and
the sink may not have its rows."""

MIGRATION_POINTS = tuple(
    f"migration-{what}"
    for what in ("started", "held", "caught-up", "routed", "installed", "released")
)
"""Points of a subscale at which a driver can die; ``STEP`` counts from 0 how often it was reached."""

_WITHIN_POINTS = 40
"""``random:SEED`` kills the driver at one of the first 40 points of `POINTS` that it reaches."""


class SlotFaults:
    """Holds the faults to inject into one slot's work in one attempt of a step.

    `faults`: each has ``kind`` and ``slot``; optional are ``step`` or ``from_step`` (default: every
    step), ``attempts`` (number of first attempts with the fault, default 1) and ``groups`` (key groups
    written before the fault, default 1). Kinds: ``raise`` (an error; if ``after`` names a file, once
    the file exists); ``kill`` (SIGKILL to itself); ``pause`` (SIGSTOP until the file ``until``
    exists); ``slow`` (``us_per_row`` more for each row served, in every attempt). The file
    ``trace``, if named, gets a line for each action.
    """

    def __init__(
        self, faults: Sequence[Mapping[str, Any]], slot: int, step: int, attempt: int
    ) -> None:
        self._mine = [f for f in faults if f["slot"] == slot and _in_step(f, step)]
        self._strikes = [
            f for f in self._mine if f["kind"] != "slow" and attempt <= f.get("attempts", 1)
        ]
        self._where = {"slot": slot, "step": step, "attempt": attempt}
        self._groups = 0

    @property
    def on_group(self) -> Callable[[int], None] | None:
        """Return the function that `serve` calls for each key group before its commit, or None."""
        return self._strike if self._strikes else None

    def _strike(self, group: int) -> None:
        for fault in self._strikes:
            if self._groups == fault.get("groups", 1):
                self._do(fault, group)
            elif self._groups > fault.get("groups", 1):
                self._note(fault, "wrote on", group)
        self._groups += 1

    def _do(self, fault: Mapping[str, Any], group: int) -> None:
        kind = fault["kind"]
        self._note(fault, kind, group)
        if kind == "raise":
            _wait_for(fault.get("after"))
            msg = f"a test made slot {fault['slot']} fail while it wrote key group {group}."
            raise EngineError(msg, transient=True)
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "pause":
            _stop_self(fault["until"])
            self._note(fault, "resumed", group)

    def _note(self, fault: Mapping[str, Any], what: str, group: int) -> None:
        if "trace" not in fault:
            return
        note = {"what": what, "group": group, "pid": os.getpid(), "at_ms": time.time() * 1e3}
        with open(fault["trace"], "a", encoding="utf-8") as file:
            file.write(json.dumps(note | self._where) + "\n")

    def dawdle(self, rows: int) -> None:
        """Sleep for the extra time of `rows` served rows."""
        for fault in self._mine:
            if fault["kind"] == "slow":
                time.sleep(rows * fault["us_per_row"] * 1e-6)


def _in_step(fault: Mapping[str, Any], step: int) -> bool:
    return bool(fault.get("step", step) == step and step >= fault.get("from_step", 0))


def _wait_for(path: str | None) -> None:
    """Wait until the file `path` exists, 30 s at the most; None waits for nothing."""
    until = time.monotonic() + 30.0
    while path is not None and not os.path.exists(path) and time.monotonic() < until:
        time.sleep(0.01)


def _stop_self(until: str) -> None:
    """Stop this process until the file `until` exists, 30 s at the most."""
    # a shell sends SIGCONT, because no thread of a stopped process runs
    command = 'for _ in $(seq 1500); do [ -e "$1" ] && break; sleep 0.02; done; kill -CONT "$2"'
    pid = os.getpid()
    subprocess.Popen(["/bin/sh", "-c", command, "sh", until, str(pid)], start_new_session=True)
    os.kill(pid, signal.SIGSTOP)


_passed = 0


def crash_point(point: str, step: int) -> None:
    """Kill the driver with SIGKILL if `HEADGATE_CRASH` names this point; otherwise do nothing.

    `point`: one of `POINTS` or `MIGRATION_POINTS`. `step`: the step, or a migration point's count.
    """
    wanted = os.environ.get(CRASH)
    if not wanted:
        return
    global _passed  # noqa: PLW0603 -- points are counted over the life of the driver
    where, number, whom = _parsed(wanted)
    _passed += point in POINTS
    if where == "random":
        here = point in POINTS and _passed == random.Random(number).randint(1, _WITHIN_POINTS)
    else:
        here = (where, number) == (point, step)
    if here:
        _die(whom)


def _parsed(wanted: str) -> tuple[str, int, str]:
    where, _, rest = wanted.partition(":")
    number, _, whom = rest.partition(":")
    if (
        where not in (*POINTS, *MIGRATION_POINTS, "random")
        or not number.isdecimal()
        or whom not in ("", "driver", "group")
    ):
        msg = f"{CRASH}={wanted} is not POINT:STEP or random:SEED; points are {', '.join(POINTS)}."
        raise ConfigError(msg)
    return where, int(number), whom or "group"


def _die(whom: str) -> None:
    if whom == "group" and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
