"""Lists the descriptors that this process holds."""

from __future__ import annotations

import os
from pathlib import Path


def held(at: Path | str) -> int:
    """Return how many of this process's descriptors refer to a path that begins with `at`."""
    return sum(target.startswith(str(at)) for _, target in descriptors())


def descriptors() -> set[tuple[int, str]]:
    """Return number and target of each descriptor of this process.

    Servers and sockets that an earlier test left may close at any time, so a test asks for what is new
    (`descriptors() - before`), not for an equal count.
    """
    links = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            links.add((int(number), os.readlink(f"/proc/self/fd/{number}")))
        except OSError:  # the descriptor of the listing itself
            continue
    return links
