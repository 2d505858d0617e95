"""Says in one sentence why an attempt of a batch, or a query, failed.

It also decides whether another attempt can help, and finds errors of the user's code in Spark's texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import PySparkException, StreamingQueryException

from headgate.core.errors import EngineError, HeadgateError, ProcessorError
from headgate.core.frames import frames_in, frames_of, is_headgates, users_part, users_place
from headgate.operators.failure import withheld
from headgate.spark.jvm.errors import JavaError, JvmError, SaidBySpark, text_of
from headgate.spark.worker.kafka_failure import kafka_failure

_TOO_MUCH_TEXT = "TOO_MUCH_TEXT"
_FINAL = (
    "ARITHMETIC_OVERFLOW",
    "DIVIDE_BY_ZERO",
    "CAST_OVERFLOW",
    "CAST_INVALID_INPUT",
    _TOO_MUCH_TEXT,
)
_OUTGROWN = re.compile(
    "offset overflow|overflowed binary|input array too large|more than 2147483646 bytes"
)
"""Arrow's errors for a column of text that needs more than the 2 GB that its offsets reach."""

_TRACEBACK = "Traceback (most recent call last):"
_SPARKS_WORDS = "terminated with exception: "
_MODULE = re.compile(r"(?:\w+\.)+(?=\w+: )")
"""Matches the module before the name of an exception in the last line of a traceback."""

_OURS = HeadgateError.__module__
_STATE = re.compile(r"\s*SQLSTATE: \w+$")
_LOST_TASK = re.compile(r"most recent failure: Lost task .*? executor \S+?\): ")

_FULL = "No space left on device"
_MAKE_ROOM = (
    "make room where Spark writes: its log in the checkpoint's directory (of a checkpoint on a store in "
    "the driver's temporary directory), and spark.local.dir; then start the query again."
)
"""`_FULL`, `_MAKE_ROOM`: the JVM's text for a full disk, without the disk's name, and the remedy."""


class QueryFailed(EngineError, SaidBySpark, StreamingQueryException):
    """Says in one sentence why a query failed; Spark's exception is its ``__cause__``.

    It is a ``StreamingQueryException``, since programs for PySpark catch that. `journalled`: the sentence
    without text that may quote a record.
    """

    journalled = ""

    @classmethod
    def of(
        cls, error: Exception, raised: Exception | None, reads: Sequence[str] = ()
    ) -> QueryFailed:
        """Return the failure of a query.

        `raised`: the exception of the query's batch on the driver; Spark passes on only its text.
        `reads`: descriptions of the query's Kafka sources.
        """
        failure = cls(told(error if raised is None else raised, reads))
        failure.journalled = told(error if raised is None else raised, reads, withhold=True)
        # frames of Spark and headgate explain no failure of a user's code; Spark's text has them
        error.__traceback__ = None
        if raised is not None and _is_users(raised):
            raised.__traceback__ = users_part(raised.__traceback__)
        if raised is not None and raised is not error and error.__cause__ is None:
            error.__cause__ = raised  # its traceback shows the place
        failure.__cause__ = error
        return failure


def _is_users(error: Exception) -> bool:
    """Return whether the user's own code raised an error, on the driver or in a worker."""
    if isinstance(error, JvmError | PySparkException):
        return users_failure(text_of(error)) is not None
    return not isinstance(error, HeadgateError) or isinstance(error, ProcessorError)


def told(error: BaseException, reads: Sequence[str] = (), *, withhold: bool = False) -> str:
    """Return the reason of an error in one line, without the text that py4j and Spark put around it.

    `reads`: descriptions of the query's Kafka sources. `withhold`: whether to leave out text that
    may quote a record: that of a user's exception, and that of Spark's errors about data. The class
    of the exception, and the user's file and line, remain.
    """
    text = text_of(error).strip()
    if isinstance(error, HeadgateError):
        return withheld(_first(text)) if withhold else _first(text)
    if isinstance(error, JvmError | PySparkException):
        if (about := kafka_failure(text, reads)) is not None:
            return about
        theirs = users_failure(text)
        if theirs is not None:
            return theirs.said(withhold=withhold)
        if withhold and (of_data := _OF_DATA.search(text)):
            return f"[{of_data[1]}]"
        return _under_spark(text) or type(error).__name__
    place = users_place(frames_of(error.__traceback__))
    return UsersFailure(type(error).__name__, _first(text), place).said(withhold=withhold)


_OF_DATA = re.compile(r"\[([A-Z][A-Z0-9_.]+)\](?:(?!SQLSTATE).)*SQLSTATE: (?:22|P0)", re.DOTALL)
"""Matches Spark's errors about values (SQLSTATE 22), and errors that a query raises (P0)."""


@dataclass(frozen=True)
class UsersFailure:
    """Holds an exception of the user's own code."""

    kind: str
    text: str
    """`kind`, `text`: class of the exception, and the first line of its text."""
    place: str
    """As ``in jobs.py line 3``; "" if the traceback has no line of the user's code."""

    def said(self, *, withhold: bool) -> str:
        """Return the exception in one line, with its text or without."""
        if withhold or not self.text:
            return f"{self.kind} {self.place}".strip()
        where = f" ({self.place})" if self.place else ""
        return f"{self.kind}: {self.text}{where}"

    @property
    def may_pass(self) -> bool:
        """Return whether another attempt may succeed: a service was away, or memory was short."""
        return _MAY_PASS.search(self.kind) is not None


_MAY_PASS = re.compile(
    "connect|timeout|timedout|^(os|io|memory|eof)error$|brokenpipe|interrupted|unavailable|urlerror"
    "|http|temporar|throttl|retry|ssl|socket|gaierror|kafka|deadlock|clienterror|requestexception",
    re.IGNORECASE,
)


def users_failure(text: str) -> UsersFailure | None:
    """Return the user's exception in a worker from Spark's text; None for other failures."""
    _, python, behind = text.rpartition(_TRACEBACK)
    if not python:
        return None
    lines = behind.strip("\n").splitlines()
    end = next((n for n, line in enumerate(lines) if line and not line[0].isspace()), None)
    frames = frames_in("\n".join(lines[:end]))
    if end is None or (frames and is_headgates(frames[-1][0])):
        return None
    kind, _, said = lines[end].partition(": ")
    if "Py4J" in kind or kind.startswith(_OURS) or not _KIND.fullmatch(kind):
        return None
    return UsersFailure(kind.rpartition(".")[2], said.strip(), users_place(frames))


_KIND = re.compile(r"[\w.]+")


def says(error: BaseException | None, text: str) -> bool:
    """Return whether `text` is in the text of an error or of one of its causes."""
    while error is not None:
        if text in text_of(error):
            return True
        error = error.__cause__
    return False


def _under_spark(text: str) -> str:
    """Return the main line of a text of Spark: the end of a Python traceback, or the first line."""
    _, python, behind = text.rpartition(_TRACEBACK)
    if python:
        # all lines of a traceback are indented but the last, which names the exception
        for number, line in enumerate(lines := behind.strip("\n").splitlines()):
            if line and not line[0].isspace():
                if "Py4JJavaError: " in line:
                    return _under_java("\n".join(lines[number:]))
                module = _MODULE.match(line)
                ours = module is not None and module[0].startswith(_OURS)
                short = _MODULE.sub("", line, count=1).strip()
                return short.partition(": ")[2] if ours else short
    return _under_java(text)


def _under_java(text: str) -> str:
    """Return the main line of a text of the JVM: py4j's ``: ...``, or else the first line."""
    first = next((line for line in text.splitlines() if line.startswith(": ")), _first(text))
    line = first.removeprefix(": ").rpartition(_SPARKS_WORDS)[2]
    line = _LOST_TASK.split(line)[-1]
    said = _MODULE.sub("", _STATE.sub("", line), count=1).strip()
    return f"{said}; {_MAKE_ROOM}" if said.endswith(_FULL) else said


def _first(text: str) -> str:
    return text.partition("\n")[0].strip()


_LOST_WORKER = re.compile(
    "Python worker (failed to connect back|exited unexpectedly|is idle)"
    "|Timed out while waiting for the Python worker"
    "|while reading the port number from|Python daemon failed to launch worker"
    "|java.net.SocketException|java.net.SocketTimeoutException|java.io.EOFException"
)
"""Spark's errors for a worker that died, or that a busy machine was too slow to start."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put `where` into the error of a user's code, or of a column of text that became too large.

    Raises `ProcessorError`: a user's code failed; `EngineError`: a column of text has more than 2
    GB; running the batch again cannot help.
    """
    try:
        yield
    except ProcessorError as error:
        raise ProcessorError(f"{where}: {error}") from None
    except pa.ArrowException as error:
        if _OUTGROWN.search(str(error)) is None:
            raise
        msg = (
            f"[{_TOO_MUCH_TEXT}] {where}: a column of text or binary has more than 2 GB in one slot's "
            "batch; read less per batch (as with maxFilesPerTrigger), use more slots, or select less."
        )
        raise EngineError(msg) from error


def processor_error(error: Exception) -> ProcessorError | None:
    """Return the `ProcessorError` with which a job ended; None for any other error.

    Of an exception in a Python worker Spark passes on only the text.
    """
    match = re.search(rf"{_OURS}\.{ProcessorError.__name__}: (.*)", text_of(error))
    return None if match is None else ProcessorError(match[1])


def is_final(error: Exception) -> bool:
    """Return whether running the batch again cannot help."""
    if isinstance(error, EngineError):
        return not error.transient
    if isinstance(error, JvmError | ConnectionError) and not isinstance(error, JavaError):
        return True  # not from Java: the JVM is gone, and this process cannot start another
    text = text_of(error)
    if isinstance(error, HeadgateError) or any(f"[{name}" in text for name in _FINAL):
        return True
    theirs = users_failure(text) if isinstance(error, JvmError | PySparkException) else None
    # a user's code fails in the same way again
    return theirs is not None and not theirs.may_pass


def is_lost_worker(error: Exception) -> bool:
    """Return whether a Python worker died or did not start in time."""
    return _LOST_WORKER.search(text_of(error)) is not None and not is_final(error)
