"""Ends a query: says why, does what is left, and lets those go on who wait for the end."""

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
"""How long a batch that the JVM's end has caught may take to notice it."""
_PATIENCE_S = 10.0
"""How long a batch may go on after `stop`, in seconds, before its jobs are cancelled. With more, longer
batches are finished rather than done again after the next start, and a stop takes longer. Not tuned."""
_RAISES_AFTER_S = 20.0
"""How long after `stop` a user's Python code in the driver, which no cancelled job ends, is raised
from, in seconds. Not tuned."""
_GIVES_UP_AFTER_S = 30.0
"""How long `stop` waits for code that does not end in any way, in seconds. Not tuned."""
_LOOK_S = 1.0
"""Seconds between two checks for a request to stop in the checkpoint."""
_AGAIN_S = 1.0
"""Seconds between two attempts to cancel jobs that are still running."""


class Ending:
    """Waits for the end of a query in a thread of its own; whatever ended it, those who wait go on.

    Parameters
    ----------
    rest : callable or None
        Called when Spark's query has ended by itself: what is left to do for a finite one.
    close : callable
        Given the failure, or None: writes it down and gives back all that the query held.
    before : callable, optional    Called when the query is to stop and no batch is under way.
    look : callable, optional
        Called every second while the query runs: whether a request to stop is there.
    reads : callable, optional
        Returns what the query reads of Kafka, and where, for the sentence that says why it failed.
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
        # a put may interrupt another one: a signal's handler stops queries, too
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._unstopped: Exception | None = None
        works = {"headgate-end": self._run, "headgate-stop": self._stop_if_asked}
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True) for name, work in works.items()
        ]

    def start(self) -> None:
        """Begin to wait; what `close` needs is there by now."""
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether the query has ended and everything is given back."""
        return self._over.is_set()

    @property
    def failure(self) -> Exception | None:
        """Return the reason of the query's failure; None as long as it runs, and if it did not fail."""
        return self._failure if self._over.is_set() else None

    def refuse_if_over(self, act: str) -> None:
        """Raise EngineError if the query has ended, so that nothing can be asked of it."""
        if self._over.is_set():
            why = f" ({told(self._failure)})" if self._failure is not None else ""
            msg = f"this query has ended{why}, so it takes no {act}; start it again first."
            raise EngineError(msg)

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether the query has ended; raise its failure.

        Raises `QueryFailed`, `EngineGone`. `EngineError`: the query's own batch waits for its end.
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
        """End the query at the next batch boundary, or break off a batch that takes too long.

        Within a batch, in its user's function, it returns at once, and the query ends with the
        batch. Raises `EngineGone`: it had ended, or ends, because Spark's JVM did; `EngineError`:
        user's code has not returned, or Spark's own thread has not ended in
        ``spark.sql.streaming.stopTimeout``.
        """
        self._asked.put(True)
        if self._batches.is_of_this_thread:
            self._batches.stopping.set()
            return
        until_s = time.monotonic() + _GIVES_UP_AFTER_S
        while not self._over.is_set():  # no lock: a signal's handler may come within another stop
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
            thread.join(_LAST_BATCH_S)  # it has nothing left to do
        if isinstance(self._failure, EngineGone):
            raise self._failure

    def _stop_if_asked(self) -> None:
        if not self._is_asked():
            return  # it has ended
        batches = self._batches
        batches.stopping.set()
        began_s = time.monotonic()
        try:
            while not batches.idle.wait(_POLL_S):
                if self._over.is_set():
                    return  # a batch that hangs in a user's code is not waited for once the JVM is gone
                if time.monotonic() - began_s > _PATIENCE_S:
                    self._break_off(began_s)
                    return
            self._before()
            self._inner.stop()
        except Exception as error:
            if self._life.meaning(error) is None:
                self._unstopped = _not_stopped(error)

    def _is_asked(self) -> bool:
        """Wait until the query shall stop, or has ended; return whether it shall stop."""
        while True:
            try:
                return self._asked.get(timeout=_LOOK_S)
            except queue.Empty:
                with contextlib.suppress(Exception):  # of this no query ends, and `stop` goes on
                    if self._look():
                        return True

    def _break_off(self, began_s: float) -> None:
        """Stop Spark's query in the middle of a batch, as Spark does, and all that this batch runs."""
        self._batches.interrupted.set()
        run = str(self._inner.runId)
        stopped = threading.Thread(target=self._stop_inner, name="headgate-stop-now", daemon=True)
        try:
            stopped.start()
        except RuntimeError:  # the program ends, and takes no new thread
            self._stop_inner()
        while self._inner.isActive and stopped.is_alive():
            time.sleep(_POLL_S)  # a job cancelled before would be a failure to Spark
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
        except Exception as error:  # the query has ended nevertheless
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
        except Exception as error:  # the end of the thread is the query's end, whatever it was
            gone = self._life.meaning(error)
            if gone is None and self._batches.interrupted.is_set():
                return None
            if gone is None:
                return QueryFailed.of(error, self._batches.failed, self._reads())
            # a batch under way fails too, and writes so before the journal is closed
            self._batches.idle.wait(_LAST_BATCH_S)
            return gone
        return None


def _not_stopped(error: Exception) -> EngineError:
    """Return in one sentence why Spark has not stopped its query."""
    text = str(error)
    if "TimeoutException" in text:
        text = "its thread has not ended within spark.sql.streaming.stopTimeout"
    failed = EngineError(f"Spark did not stop the query: {text.strip().partition(chr(10))[0]}.")
    failed.__cause__ = error
    return failed
