"""Finds the driver of a checkpoint, and its step, from the checkpoint's files alone."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.driver_lock import LOCK
from headgate.core.errors import HeadgateError
from headgate.core.input import open_regular, read_file, read_json
from headgate.core.stores import store_url
from headgate.report.limits import DriverSeen


def driver_of(checkpoint: str | os.PathLike[str]) -> DriverSeen:
    """Return the driver's state, as the files of a checkpoint show it.

    Nothing is known for a journal without its checkpoint, and for a store, which has no lock.
    """
    if store_url(checkpoint) is not None:
        return DriverSeen()
    committed, begun = _steps(checkpoint)
    root = Path(checkpoint) / "headgate"
    return DriverSeen(_holds(root), _owner(root), committed, begun)


def _owner(root: Path) -> str:
    """Return the host and process that took the lock last; ``""`` if that is unknown."""
    with suppress(HeadgateError, KeyError, TypeError):
        raw = read_file(root / "driver.owner", "the owner", 1000, follow=False)
        owner = read_json(raw, "the owner")
        return f"host {owner['host']}, process {owner['pid']}"
    return ""


def _holds(root: Path) -> bool | None:
    """Return whether a driver holds the lock; None where this host cannot tell."""
    if socket.gethostname() not in _owner(root):
        return None
    try:
        handle = open_regular(root / LOCK)
    except OSError:
        return None
    try:
        # a shared lock, released at once: a driver that starts meanwhile tries for ten seconds
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def _steps(checkpoint: str | os.PathLike[str]) -> tuple[int | None, int | None]:
    """Return the newest committed step, and the next step if it has begun; None for a missing one."""
    with suppress(HeadgateError, OSError, ValueError):
        store = Checkpoint(checkpoint)
        steps = store.steps()
        newest = steps[-1] if steps else -1
        begun = newest + 1 if store.read_intent(newest + 1) is not None else None
        return (newest if steps else None), begun
    return None, None
