"""Compiles plain functions on arrays, or leaves them as they are.

numba compiles a kernel, or (``HEADGATE_JIT=0``) Python runs its source. So a kernel may use only code
that has the same result in both: no integer overflow of scalars (NumPy warns, numba wraps; whole arrays
wrap in both), no dependence on the type of an integer literal.
"""

from __future__ import annotations

import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LOG = logging.getLogger("headgate")


def jit_enabled() -> bool:
    """Return whether kernels are compiled: unless ``HEADGATE_JIT=0`` when a kernel is defined."""
    return os.environ.get("HEADGATE_JIT", "1") != "0"


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` compiled by numba, or itself when ``HEADGATE_JIT=0``.

    numba caches compiled code on disk next to the source. If that directory is not writable, the cache
    is a private directory of this user below the temporary directory. The result has the same signature;
    compiled code releases the GIL.

    `function`: a plain function on arrays and scalars, called with positional arguments.
    """
    if not jit_enabled():
        return function
    # Imported late, so that a process without compiled kernels does not load numba.
    import numba  # noqa: PLC0415

    options: dict[str, Any] = {"cache": True, "nogil": True}
    try:
        compiled: Callable[P, R] = numba.njit(**options)(function)
    except RuntimeError:
        # numba found no writable directory: "cannot cache function ...: no locator available".
        os.environ["NUMBA_CACHE_DIR"] = _private_cache()
        numba.config.reload_config()  # type: ignore[no-untyped-call]
        compiled = numba.njit(**options)(function)
    return compiled


@contextmanager
def announce_compiling(say: Callable[[str], None] = _LOG.warning) -> Iterator[None]:
    """Call `say` once if the block compiles kernels, so that the wait does not look like a fault."""
    if not jit_enabled():
        yield
        return
    from numba.core import event  # noqa: PLC0415 - as in `jit`

    class FirstCompilation(event.Listener):
        """Reports the first compilation; numba reports no kernel that it loads from the cache."""

        said = False

        def on_start(self, _: event.Event) -> None:
            """Say the line."""
            if not self.said:
                self.said = True
                say(
                    "headgate: compiling its kernels, once per machine and kind of query: about 30 s."
                )

        def on_end(self, _: event.Event) -> None:
            """Do nothing."""

    with event.install_listener("numba:compile", FirstCompilation()):
        yield


def _private_cache() -> str:
    """Return a cache directory that only this user can write: processes execute code from it."""
    wanted = Path(tempfile.gettempdir()) / f"headgate-numba-{os.geteuid()}"
    with suppress(OSError):
        wanted.mkdir(mode=0o700, exist_ok=True)
        status = wanted.lstat()
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        if private and status.st_uid == os.geteuid():
            return str(wanted)
    return tempfile.mkdtemp(prefix="headgate-numba-")
