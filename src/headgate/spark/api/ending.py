"""Ends a query: finishes its work, records the reason, and wakes the threads that wait for the end."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from headgate.core.errors import EngineError, EngineGone
from headgate.spark.jvm.life import JvmLife
from headgate.spark.step.batch_thread import BrokenOff
from headgate.spark.step.machine import StepMachine
from headgate.spark.worker.failure import QueryFailed, told

_POLL_S = 0.02
_LAST_BATCH_S = 2.0
"""How long a batch may take to fail after the JVM has ended, in seconds."""
_PATIENCE_S = 10.0
"""How long a batch may go on after `stop`, in seconds, before its jobs are cancelled. With a larger value
longer batches finish, which else run again after the next start; `stop` takes longer. Not tuned."""
_RAISES_AFTER_S = 20.0
"""How long after `stop` an exception is raised in the user's Python code in the driver, in seconds: the
cancelled jobs do not end this code. Not tuned."""
_GIVES_UP_AFTER_S = 30.0
"""How long `stop` waits for user's code that does not end, in seconds. Not tuned."""
_LOOK_S = 1.0
"""Seconds between two checks for a request to stop in the checkpoint."""
_AGAIN_S = 1.0
"""Seconds between two attempts to cancel jobs that are still running."""


class Ending:
    """Waits in its own thread for the end of a query, and wakes all waiting threads after any end.

    Parameters
    ----------
    rest : callable or None
        Finishes the work of a finite query; called when Spark's query has ended by itself.
    close : callable
        Takes the failure, or None: records it and releases everything that the query held.
    before : callable, optional    Called before a requested stop, while no batch runs.
    look : callable, optional
        Returns whether someone has requested a stop; called every second while the query runs.
    reads : callable, optional
        Returns the Kafka topics and brokers that the query reads, for the message of its failure.
    """

    def __init__(
        self,
        inner: StreamingQuery,
        batches: StepMachine[Any],
        life: JvmLife,
        *,
        rest: Callable[[], None] | None,
        close: Callable[[Exception | None], None],
        before: Callable[[], None] = lambda: None,
        look: Callable[[], bool] = lambda: False,
        reads: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._inner = inner
        self._batches = batches
        self._life = life
        self._rest = rest
        self._close = close
        self._before, self._look = before, look
        self._reads = reads
        self._failure: Exception | None = None
        self._over = threading.Event()
        # one put may interrupt another: a signal handler stops queries, too
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._unstopped: Exception | None = None
        works = {"headgate-end": self._run, "headgate-stop": self._stop_if_asked}
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True) for name, work in works.items()
        ]

    def start(self) -> None:
        """Begin to wait; the caller has created everything that `close` needs."""
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether the query has ended and has released everything."""
        return self._over.is_set()

    @property
    def failure(self) -> Exception | None:
        """Return the reason of the query's failure; None while it runs or if it did not fail."""
        return self._failure if self._over.is_set() else None

    def refuse_if_over(self, act: str) -> None:
        """Raise EngineError if the query has ended, because it takes no `act` any more."""
        if self._over.is_set():
            why = f" ({told(self._failure)})" if self._failure is not None else ""
            msg = f"this query has ended{why}, so it takes no {act}; start it again first."
            raise EngineError(msg)

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether the query has ended; raise its failure.

        Raises `QueryFailed`, `EngineGone`. `EngineError`: the caller is a batch of the query itself.
        """
        if self._batches.is_of_this_thread:
            msg = (
                "a query's own function waits for its query, which would never end; leave that out."
            )
            raise EngineError(msg)
        over = self._over.wait(timeout_s)
        if over and self._failure is not None:
            raise self._failure
        return over

    def stop(self) -> None:
        """End the query at the next batch boundary, or cancel a batch that takes too long.

        Called by the user's function in a batch, it returns at once, and the query ends after the
        batch. Raises `EngineGone`: the query ended, or ends, because Spark's JVM ended;
        `EngineError`: user's code has not returned, or Spark's own thread has not ended within
        ``spark.sql.streaming.stopTimeout``.
        """
        self._asked.put(True)
        if self._batches.is_of_this_thread:
            self._batches.stopping.set()
            return
        until_s = time.monotonic() + _GIVES_UP_AFTER_S
        while not self._over.is_set():  # no lock: a signal handler may interrupt another stop
            time.sleep(_POLL_S)
            if self._unstopped is not None:
                raise self._unstopped
            if time.monotonic() > until_s and self._batches.interrupted.is_set():
                msg = (
                    f"this query has not ended {_GIVES_UP_AFTER_S:g} s after stop(): its function for "
                    "foreachBatch has not returned; its checkpoint is held until that returns, or the "
                    "program ends."
                )
                raise EngineError(msg)
        for thread in self._threads:
            thread.join(_LAST_BATCH_S)  # the thread has nothing left to do
        if isinstance(self._failure, EngineGone):
            raise self._failure

    def _stop_if_asked(self) -> None:
        if not self._is_asked():
            return  # the query has ended
        batches = self._batches
        batches.stopping.set()
        began_s = time.monotonic()
        try:
            while not batches.idle.wait(_POLL_S):
                if self._over.is_set():
                    return  # the JVM is gone: user's code that hangs is not waited for
                if time.monotonic() - began_s > _PATIENCE_S:
                    self._break_off(began_s)
                    return
            self._before()
            self._inner.stop()
        except Exception as error:
            if self._life.meaning(error) is None:
                self._unstopped = _not_stopped(error)

    def _is_asked(self) -> bool:
        """Wait until a stop is requested or the query has ended; return whether a stop is requested."""
        while True:
            try:
                return self._asked.get(timeout=_LOOK_S)
            except queue.Empty:
                with contextlib.suppress(Exception):  # a failed look must not end the query
                    if self._look():
                        return True

    def _break_off(self, began_s: float) -> None:
        """Stop Spark's query within a batch, as Spark does, and cancel the batch's jobs."""
        self._batches.interrupted.set()
        run = str(self._inner.runId)
        stopped = threading.Thread(target=self._stop_inner, name="headgate-stop-now", daemon=True)
        try:
            stopped.start()
        except RuntimeError:  # Python starts no thread while the program ends
            self._stop_inner()
        while self._inner.isActive and stopped.is_alive():
            time.sleep(_POLL_S)  # to Spark a job cancelled before this would be a failure
        while not (self._batches.idle.is_set() or self._over.is_set()):
            raising = time.monotonic() - began_s > _RAISES_AFTER_S
            self._batches.cancel(run, raising=raising)
            self._batches.idle.wait(_AGAIN_S)

    def _stop_inner(self) -> None:
        try:
            self._inner.stop()
        except Exception as error:
            if self._life.meaning(error) is None:
                self._unstopped = _not_stopped(error)

    def _run(self) -> None:
        try:
            self._failure = self._awaited()
            self._close(self._failure)
        except Exception as error:  # the query has ended in spite of the error
            self._failure = self._failure or error
        finally:
            self._asked.put(False)
            self._over.set()

    def _awaited(self) -> Exception | None:
        try:
            self._inner.awaitTermination()
            if self._rest is not None and not self._batches.stopping.is_set():
                self._rest()
        except BrokenOff:
            return None
        except Exception as error:  # every error of Spark's query is the end of this query
            gone = self._life.meaning(error)
            if gone is None and self._batches.interrupted.is_set():
                return None
            if gone is None:
                return QueryFailed.of(error, self._batches.failed, self._reads())
            # a running batch fails, too, and writes a line before `close` closes the journal
            self._batches.idle.wait(_LAST_BATCH_S)
            return gone
        return None


def _not_stopped(error: Exception) -> EngineError:
    """Return an error that says why Spark has not stopped its query."""
    text = str(error)
    if "TimeoutException" in text:
        text = "its thread has not ended within spark.sql.streaming.stopTimeout"
    failed = EngineError(f"Spark did not stop the query: {text.strip().partition(chr(10))[0]}.")
    failed.__cause__ = error
    return failed
