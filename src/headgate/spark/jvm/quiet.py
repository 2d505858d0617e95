"""What Spark says at every start, kept off stderr: the JVM has no switch for it."""

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
"""What Spark says at every start, whatever it is started for."""

_TRACEBACK = "Traceback (most recent call last):"


class NoiseFilter:
    """Passes on the lines of a stream but Spark's greetings and its daemons' last words.

    PySpark's daemons print a traceback when the JVM hangs up on an idle worker, which is how every
    worker ends. Any other traceback passes.

    Parameters
    ----------
    write : callable
        Takes the lines that pass, as bytes.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._held: list[bytes] = []

    def line(self, raw: bytes) -> None:
        """Take one line."""
        text = raw.decode("utf-8", "replace")
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
def quiet_stderr() -> Iterator[None]:
    """Have a JVM that is started meanwhile, and its Python workers, speak through a `NoiseFilter`.

    They inherit descriptor 2, which is a pipe until the end of the block. ``HEADGATE_QUIET=0`` leaves
    everything as it is.
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

    threading.Thread(target=pump, name="headgate-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
