"""Keeps stdout for the result, and stderr for messages to people."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def json_only() -> Iterator[None]:
    """Send everything that is written to stdout to stderr meanwhile.

    Done on the file descriptor, not only on `sys.stdout`: the JVM and the Python workers that are
    started meanwhile inherit descriptor 1 and keep it, so that their later words go there, too.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    os.set_inheritable(saved, False)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # What C libraries and this process still hold must leave before stdout is stdout again.
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved, 1)
        os.close(saved)


_NOISE = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|"
    r"Setting default log level to|To adjust logging level use|"
    r".* WARN (Utils: (Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader: )"
)
"""What Spark says at every start, whatever it is started for."""

_PANIC = re.compile(r"thread '.*' .*panicked at ")
_OF_PANIC = re.compile(r"called `|stack backtrace:|note: |\s+(\d+: |at )")
"""How a native library's panic is told by Rust; the command says it in one sentence."""

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
        """Pass on the output that was held back."""
        for raw in self._held:
            self._write(raw)
        self._held = []


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Send descriptor 2 through a `NoiseFilter`; the JVM, which inherits it, as well."""
    sys.stderr.flush()
    real = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def pump() -> None:
        # Its own copy: the JVM may write on when the original is back in its place.
        passed = NoiseFilter(lambda raw: os.write(real, raw))
        with os.fdopen(reading, "rb") as lines:
            for raw in lines:
                passed.line(raw)
        passed.flush()

    thread = threading.Thread(target=pump, name="headgate-stderr", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        # The JVM may outlive us by seconds and holds the pipe open: wait for what is there.
        thread.join(timeout=0.2)
        if not thread.is_alive():
            os.close(real)
