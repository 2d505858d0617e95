"""Counts the descriptors that this process holds."""

from __future__ import annotations

import gc
import os
from pathlib import Path


def held(at: Path | str = "") -> int:
    """Return how many of this process's descriptors refer to a path that begins with `at`.

    Without `at` all descriptors count, also those of servers and sockets that an earlier test left, which
    may close at any time.
    """
    if not at:
        gc.collect()  # closes files that are no longer referenced
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(str(at))
        except OSError:  # the descriptor of the listing itself
            continue
    return count
