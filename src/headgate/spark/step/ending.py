"""The end of a query: why it came, what is done then, and those who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark.sql.streaming.query import StreamingQuery

from headgate.core.errors import EngineError, EngineGone
from headgate.spark.jvm.life import JvmLife
from headgate.spark.worker.failure import QueryFailed, told

_POLL_S = 0.02
_LAST_BATCH_S = 2.0
"""How long a batch that the JVM's end has caught may take to notice it."""


class Batches(Protocol):
    """Declares the part of the step machine that the end of a query needs."""

    stopping: threading.Event
    """Set where no batch shall be done any more."""

    idle: threading.Event
    """Set while no batch is under way."""

    @property
    def failed(self) -> Exception | None:
        """What made the query fail, as far as headgate knows."""


class Ending:
    """Waits for the end of a query in a thread of its own; whatever ended it, those who wait go on.

    Parameters
    ----------
    inner : StreamingQuery
    batches : Batches
    life : JvmLife
    rest : callable or None
        Called when Spark's query has ended by itself: what is left to do for a finite one.
    close : callable
        Given the failure, or None: writes it down and gives back all that the query held.
    reads : callable, optional
        Returns what the query reads of Kafka, and where, for the sentence that says why it failed.
    """

    def __init__(
        self,
        inner: StreamingQuery,
        batches: Batches,
        life: JvmLife,
        *,
        rest: Callable[[], None] | None,
        close: Callable[[Exception | None], None],
        reads: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._inner = inner
        self._batches = batches
        self._life = life
        self._rest = rest
        self._close = close
        self._reads = reads
        self._failure: Exception | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-end", daemon=True)

    def start(self) -> None:
        """Begin to wait; what `close` needs is there by now."""
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the query has ended and everything is given back."""
        return self._over.is_set()

    @property
    def failure(self) -> Exception | None:
        """Why the query failed; None as long as it runs, and if it did not fail."""
        return self._failure if self._over.is_set() else None

    def refuse_if_over(self, act: str) -> None:
        """Raise EngineError if the query has ended, so that nothing can be asked of it."""
        if self._over.is_set():
            why = f" ({told(self._failure)})" if self._failure is not None else ""
            msg = f"this query has ended{why}, so it takes no {act}; start it again first."
            raise EngineError(msg)

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether the query has ended; raise its failure.

        Raises
        ------
        QueryFailed, EngineGone
        """
        over = self._over.wait(timeout_s)
        if over and self._failure is not None:
            raise self._failure
        return over

    def stop(self, before: Callable[[], None]) -> None:
        """End the query at the next batch boundary; `before` is called once no batch is under way.

        Raises
        ------
        EngineGone
            It had ended, or ends, because Spark's JVM did.
        """
        self._batches.stopping.set()
        while not self._batches.idle.wait(_POLL_S) and not self._over.is_set():
            pass  # a batch that hangs in a user's code is not waited for once the JVM is gone
        try:
            before()
            self._inner.stop()
        except Exception as error:
            if self._life.meaning(error) is None:
                raise
        self._over.wait()
        if isinstance(self._failure, EngineGone):
            raise self._failure

    def _run(self) -> None:
        try:
            self._failure = self._awaited()
            self._close(self._failure)
        except Exception as error:  # the query has ended all the same
            self._failure = self._failure or error
        finally:
            self._over.set()

    def _awaited(self) -> Exception | None:
        try:
            self._inner.awaitTermination()
            if self._rest is not None and not self._batches.stopping.is_set():
                self._rest()
        except Exception as error:  # the end of the thread is the query's end, whatever it was
            gone = self._life.meaning(error)
            if gone is None:
                return QueryFailed.of(error, self._batches.failed, self._reads())
            # a batch under way fails too, and writes so before the journal is closed
            self._batches.idle.wait(_LAST_BATCH_S)
            return gone
        return None
