"""Keeps the greetings of Spark and the panics of native libraries off stderr."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

_NOISE = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|"
    r"Setting default log level to|To adjust logging level use|"
    r".* WARN (Utils: (Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader: )"
)
"""Lines that Spark prints at every start; the JVM has no switch for them."""

_PANIC = re.compile(r"thread '.*' .*panicked at ")
_OF_PANIC = re.compile(r"called `|stack backtrace:|note: |\s+(\d+: |at )")
"""Lines of a native library's panic, as Rust prints it; the error says it in one sentence."""

_TRACEBACK = "Traceback (most recent call last):"


class NoiseFilter:
    """Passes on the lines of a stream but Spark's greetings, its daemons' last words, and panics.

    PySpark's daemons print a traceback when the JVM hangs up on an idle worker, which is how every
    worker ends. Any other traceback passes.

    `write`: takes the lines that pass, as bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._held: list[bytes] = []
        self._panics = False

    def line(self, raw: bytes) -> None:
        """Take one line."""
        text = raw.decode("utf-8", "replace")
        if _PANIC.match(text):
            self._panics = True
            return
        if self._panics and _OF_PANIC.match(text):
            return
        self._panics = False
        if text.startswith(_TRACEBACK):
            self.flush()
            self._held = [raw]
        elif self._held and text.startswith(" "):
            self._held.append(raw)
        elif self._held:
            daemon = any(b"pyspark/daemon.py" in held for held in self._held)
            self._held.append(raw)
            if daemon and text.startswith("BrokenPipeError"):
                self._held = []
            self.flush()
        elif not _NOISE.match(text):
            self._write(raw)

    def flush(self) -> None:
        """Pass on what is held back."""
        for raw in self._held:
            self._write(raw)
        self._held = []


@contextlib.contextmanager
def quiet_stderr(wait_s: float = 0.0) -> Iterator[None]:
    """Pass stderr through a `NoiseFilter`, also that of a JVM that is started within the block.

    The JVM and its Python workers inherit descriptor 2, which is a pipe until the end of the block.
    ``HEADGATE_QUIET=0`` leaves everything as it is.

    `wait_s`: longest wait at the end for lines that are on their way, in seconds; a JVM may hold
    the pipe.
    """
    if os.environ.get("HEADGATE_QUIET") == "0":
        yield
        return
    sys.stderr.flush()
    real = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def pump() -> None:
        passed = NoiseFilter(lambda raw: os.write(real, raw))
        with os.fdopen(reading, "rb") as lines:
            for raw in lines:
                passed.line(raw)
        passed.flush()
        os.close(real)

    thread = threading.Thread(target=pump, name="headgate-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        thread.join(timeout=wait_s)
