"""Removes the start messages of Spark and the panics of native libraries from stderr."""

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
"""Lines that Rust prints when a native library panics. headgate's own error states the cause in one
sentence, so these lines are dropped."""

_TRACEBACK = "Traceback (most recent call last):"


class NoiseFilter:
    """Passes on the lines of a stream, without Spark's start messages, panics and one kind of traceback.

    When the JVM closes the connection of an idle worker, as it does at the end of every worker, a daemon
    of PySpark prints a traceback that ends in BrokenPipeError. Only such tracebacks are dropped.

    `write`: function that gets the lines that pass, as bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._held: list[bytes] = []
        self._panics = False

    def line(self, raw: bytes) -> None:
        """Pass on one line, hold it back, or drop it."""
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
        """Pass on the lines that are held back."""
        for raw in self._held:
            self._write(raw)
        self._held = []


@contextlib.contextmanager
def quiet_stderr(wait_s: float = 0.0) -> Iterator[None]:
    """Pass stderr through a `NoiseFilter`, also that of a JVM that is started within the block.

    Within the block, descriptor 2 of this process is a pipe. A JVM that starts then inherits the pipe,
    as do its Python workers, and keeps it after the block; a thread goes on filtering their lines.
    With ``HEADGATE_QUIET=0`` in the environment, nothing is filtered.

    `wait_s`: longest wait for the last lines at the end of the block, in seconds; a JVM may keep the
    pipe open.
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
