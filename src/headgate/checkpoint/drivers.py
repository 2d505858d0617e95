"""Names the driver's process in each manifest, so that a driver that loses a race can name the winner."""

from __future__ import annotations

import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from headgate.core.input import shown

_BOOTED = re.compile(r"^btime (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Driver:
    """Identifies a driver's process."""

    host: str
    pid: int
    started_s: int
    """Start of the process, seconds since 1970 by its own clock, for messages only. No decision depends
    on a time."""

    @classmethod
    def here(cls) -> Self:
        """Return the driver of this process."""
        return cls(socket.gethostname(), os.getpid(), _started_s(os.getpid()))

    @classmethod
    def of_json(cls, fields: Any) -> Self | None:
        """Return the driver that `to_json` wrote; None for anything else."""
        try:
            return cls(str(fields["host"]), int(fields["pid"]), int(fields["started_s"]))
        except (TypeError, KeyError, ValueError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        try:
            began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started_s))
        except (ValueError, OverflowError, OSError):  # a time that no calendar has
            began = "a time unknown"
        return f"host {shown(self.host, 80)}, process {self.pid}, started {began}"


@cache
def _started_s(pid: int) -> int:
    """Return when a process of this host began; the current time if the system does not say."""
    try:
        # field 22, ticks since boot, is behind the name, which may contain blanks and brackets
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        booted = _BOOTED.search(Path("/proc/stat").read_text(encoding="utf-8"))
        assert booted is not None
        return int(booted[1]) + int(fields[19]) // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AssertionError):
        return int(time.time())
