"""Implements the part of a running query's handle that all kinds of queries share."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headgate.checkpoint.command_files import CommandFiles
from headgate.core.errors import HeadgateError, require
from headgate.report.notebook import history_figure
from headgate.spark.api.ending import Ending
from headgate.spark.api.query_view import QueryView
from headgate.spark.job.ports import SlotHolder
from headgate.spark.jvm.completing import complete_events
from headgate.spark.jvm.life import JvmLife
from headgate.spark.jvm.plans import analysed
from headgate.spark.read.brokers import kafka_sources
from headgate.spark.step.machine import StepMachine
from headgate.spark.step.record import StepRecorder
from headgate.spark.step.steps import drained
from headgate.spark.step.stop_requests import StopRequests

if TYPE_CHECKING:
    from headgate.report.plot import Figure

_POLL_S = 0.02
_COMMIT_WAIT_S = 5.0

R = TypeVar("R")


class RunningQuery(Generic[R]):
    """A streaming query that runs on headgate.

    It has all methods of PySpark's ``StreamingQuery`` with the same meaning, and the query is in
    ``spark.streams.active``.

    Parameters
    ----------
    inner : StreamingQuery
        Spark's query, which provides the batches.
    control : CommandFiles
        Requests to stop, in files of the checkpoint.
    finite : bool
        Whether the sources end; the query then serves its backlog and ends.
    release : callable
        Releases the query's resources.
    """

    _slots: SlotHolder
    """The query's slots, for a fleet."""

    def __init__(
        self,
        inner: StreamingQuery,
        machine: StepMachine[R],
        recorder: StepRecorder,
        *,
        control: CommandFiles,
        finite: bool,
        release: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._machine = machine
        self._recorder = recorder
        self._release = release
        self._finite = finite
        self._life = JvmLife(machine.spark)
        self._stops = StopRequests(control, recorder.write)
        rest = (lambda: machine.drain(str(inner.runId))) if finite else None
        plan = analysed(machine.work.intake.stream)
        self._end = Ending(
            inner,
            machine,
            self._life,
            rest=rest,
            close=self._close,
            before=self._await_commit,
            look=self._stops.poll,
            reads=lambda: kafka_sources(plan),
        )
        self._end.start()
        self._show_progress()

    def _show_progress(self) -> None:
        """Add the slots' figures to Spark's own progress of the query."""
        inner, progress = self._inner, self._recorder.progress
        complete_events(self._machine.spark, inner, progress)
        progress.follow(lambda: inner.lastProgress)

    def __repr__(self) -> str:
        latest = self._machine.latest
        state = "running" if self.isActive else "failed" if self._end.failure else "ended"
        step = "no batch yet" if latest is None else f"step {latest.step}"
        return f"<{type(self).__name__}: {state}, {step}, journal {self.journal}>"

    # -- in a notebook ----------------------------------------------------------------------------

    @cached_property
    def _view(self) -> QueryView:
        checkpoint = self._machine.checkpoint.location
        return QueryView(self.journal, checkpoint, lambda: self.isActive)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: the text of `headgate diagnose`, and the latency."""
        return self._view.html()

    def display(self, every_s: float = 1.0) -> None:
        """Show the query in a notebook's cell until it ends; returns at once.

        Parameters
        ----------
        every_s : float
            Seconds between two updates.

        Raises
        ------
        ConfigError
            IPython is not installed, so this is no notebook.
        """
        self._view.display(every_s)

    def plot(self) -> Figure:
        """Return a picture of the run so far: latency with its bound, backlog, and slots.

        Raises
        ------
        ConfigError
            matplotlib is not installed (``pip install "headgate[plot]"``).
        """
        return history_figure(self.journal)

    # -- headgate ---------------------------------------------------------------------------------

    @property
    def journal(self) -> Path:
        """Path of the run's journal."""
        return self._recorder.path

    def _progress(self) -> tuple[int, bool]:
        """Return the number of batches begun, and whether no batch is running."""
        return self._machine.batches_begun, self._machine.idle.is_set()

    def drain(self, timeout_s: float = 60.0) -> None:
        """Wait until all records that have arrived are served and all results that are due are out.

        Raises
        ------
        HeadgateError
            The wait took longer than `timeout_s`, the query failed, or Spark's JVM is gone.
        """
        self._await_settled(timeout_s)

    def _await_settled(self, timeout_s: float | None) -> None:
        """Wait for a quiet batch that was planned after this call; return at once without steps."""
        machine = self._machine
        if not machine.work.has_steps:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # the running batch may have been planned before this call, so wait for the next batch
        wanted = machine.batches_begun + 2
        machine.awaited += 1
        try:
            while machine.settled_batch < wanted:
                if self._end.wait(_POLL_S):
                    return
                if deadline is not None and time.monotonic() > deadline:
                    waiting = machine.work.waiting_rows()
                    msg = (
                        f"not drained after {timeout_s:g} s: {waiting} rows wait; raise timeout_s."
                    )
                    raise HeadgateError(msg)
        finally:
            machine.awaited -= 1

    # -- StreamingQuery ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identity of the query, stored in its checkpoint."""
        with self._life.asked():
            return str(self._inner.id)

    @property
    def runId(self) -> str:
        """Identity of this run."""
        with self._life.asked():
            return str(self._inner.runId)

    @property
    def name(self) -> str | None:
        """The query's name; None for a query without a name."""
        with self._life.asked():
            return None if self._inner.name is None else str(self._inner.name)

    @property
    def isActive(self) -> bool:
        """Return whether the query runs, or serves its backlog after the sources' end."""
        return not self._end.is_over

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        with self._life.asked():
            return dict(self._inner.status)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The newest progress with its batch's figures; headgate's own figures under ``headgate``."""
        with self._life.asked():
            progress = self._inner.lastProgress
        return None if progress is None else self._filled(progress)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Recent progress, each in the form of `lastProgress`."""
        with self._life.asked():
            recent = list(self._inner.recentProgress)
        return [self._filled(progress) for progress in recent]

    def _filled(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        figures = self._recorder.progress
        filled = StreamingQueryProgress.fromJson(figures.filled(json.loads(progress.json)))
        filled["headgate"] = figures.own(progress.batchId)
        return filled

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; raise its failure.

        Returns
        -------
        bool or None
            With a timeout: whether the query has ended.

        Raises
        ------
        StreamingQueryException
            The query failed; one sentence comes first, and Spark's error is its ``__cause__``.
        HeadgateError
            Spark's JVM is gone.
        """
        number = isinstance(timeout, int | float) and 0 <= timeout <= threading.TIMEOUT_MAX
        fits = timeout is None or number
        require(fits, "awaitTermination: timeout", timeout, "seconds, or None to wait for the end")
        ended = self._end.wait(timeout)
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all records that the sources have now are processed and due results are out."""
        if not self._machine.work.has_steps:
            with self._life.asked():
                self._inner.processAllAvailable()
            return
        # Spark's method waits for a trigger without new offsets, and the tick has one each second
        self._await_settled(None)

    def stop(self) -> None:
        """Stop at the next batch boundary, or within a batch that takes too long.

        If a batch goes on for 10 s, its jobs are cancelled, as Spark does it, and the next start runs
        the batch again. Called in the query's own function, `stop` returns at once, and the query ends
        with that batch.

        Raises
        ------
        HeadgateError
            The query ended because Spark's JVM ended, or the user's code does not return.
        """
        self._end.stop()

    def _await_commit(self) -> None:
        """Wait until Spark has committed the last batch; else the next start delivers its output again.

        The next batch waits for the stop meanwhile, so no batch begins.
        """
        latest = self._machine.latest
        if latest is None or drained(latest):
            return
        done = self._machine.checkpoint.path / "commits" / str(latest.spark_batch)
        deadline = time.monotonic() + _COMMIT_WAIT_S
        while self._inner.isActive and not done.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def explain(self, extended: bool = False) -> None:
        """Print Spark's plan of the last batch."""
        with self._life.asked():
            self._inner.explain(extended)

    def exception(self) -> Exception | None:
        """Return the exception of the query, or None."""
        return self._end.failure

    def _before_end(self) -> None:
        """Stop the threads that change the query outside of its batches."""

    def _close(self, failure: Exception | None) -> None:
        """Write the end to the journal, and release the query's resources."""
        # Spark's own handle stops a query, too, and only a finite query ends by itself
        by_itself = self._finite and not self._machine.stopping.is_set()
        reason = "failed" if failure else "source ended" if by_itself else "stopped"
        try:
            self._before_end()
            self._recorder.stop(reason, failure)
        finally:
            self._release()
            self._stops.answer()
