"""Reads the processor time of this process and its descendants, by kind of process."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


def cpu_by_kind_s() -> dict[str, float]:
    """Return the CPU time of this process and its descendants, by kind of process."""
    ticks = os.sysconf("SC_CLK_TCK")
    total: defaultdict[str, float] = defaultdict(float)
    for process, kind in _tree(os.getpid(), "driver"):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total[kind] += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _tree(process: int, kind: str) -> Iterator[tuple[int, str]]:
    """Return this process and its descendants, each with its kind."""
    yield process, kind
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            numbers = [int(number) for number in children.read_text().split()]
        except OSError:
            continue
        for number in numbers:
            yield from _tree(number, _kind(number, kind))


def _kind(process: int, parent: str) -> str:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return parent
    if b"java\0" in command:
        return "jvm"
    if b"pyspark.daemon" in command or b"pyspark.worker" in command:
        return "workers"
    return "slots" if b"fork_server" in command else parent
