"""The handle of a running query."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headgate.core.assignment import Assignment
from headgate.core.errors import HeadgateError
from headgate.core.slo import Slo
from headgate.journal.schema import Decided
from headgate.spark.jvm.completing import complete_events
from headgate.spark.jvm.life import JvmLife
from headgate.spark.steer.commands import Commands
from headgate.spark.steer.control import Controller
from headgate.spark.step.driver import BatchDriver
from headgate.spark.step.ending import Ending
from headgate.state.control import Command

_POLL_S = 0.02
_COMMIT_WAIT_S = 5.0


class Query:
    """A streaming query whose slots can be changed while it runs.

    Everything of PySpark's ``StreamingQuery`` is here with the same meaning, and the query is in
    ``spark.streams.active``. Made by `Writer.start`.
    """

    def __init__(
        self,
        inner: StreamingQuery,
        driver: BatchDriver,
        controller: Controller | None,
        commands: Commands,
        *,
        finite: bool,
        release: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._driver = driver
        self._controller = controller
        self._commands = commands
        self._release = release
        self._life = JvmLife(driver.spark)
        rest = driver.drain if finite else None
        self._end = Ending(inner, driver, self._life, rest=rest, close=self._close)
        self._end.start()
        complete_events(driver.spark, inner, driver.recorder.progress)

    # -- headgate ---------------------------------------------------------------------------------

    @property
    def journal(self) -> Path:
        """Path of the run's journal."""
        return self._driver.recorder.path

    def scale(
        self,
        slots: int,
        *,
        operator: str | None = None,
        partitioning: Literal["minimal", "uniform"] = "minimal",
        by: str = "user",
        reason: str = "",
    ) -> None:
        """Change the number of slots from the next batch boundary on.

        Within a host that is all; state that changes host moves as `Writer.migration` says.

        Parameters
        ----------
        slots : int
            1 to the number of key groups.
        operator : str, optional
            One operator's id; all operators when absent.
        partitioning : "minimal" or "uniform"
            Move as few key groups as balance allows, or give each slot a contiguous range of them, as
            Flink does.
        by, reason : str
            For the journal.

        Raises
        ------
        ConfigError
            `slots` is out of range, or the assignment is frozen.
        HeadgateError
            The query has ended.
        """
        self._end.refuse_if_over("scale")
        changes = self._driver.changes
        changes.check_operator(operator)
        changes.ask(changes.scaled(slots, operator, partitioning), by, reason)

    def remap(
        self,
        changes: Mapping[int, int],
        *,
        operator: str | None = None,
        by: str = "user",
        reason: str = "",
    ) -> None:
        """Move key groups to other slots at the next batch boundary.

        Parameters
        ----------
        changes : mapping of int to int
            Key group -> slot.

        Raises
        ------
        ConfigError
            There is no such key group or slot, or the assignment is frozen.
        HeadgateError
            The query has ended.
        """
        self._end.refuse_if_over("remap")
        self._driver.changes.check_operator(operator)
        names = [operator] if operator else list(self._driver.states)
        held = self._driver.changes
        held.ask({name: held.newest(name).remap(changes) for name in names}, by, reason)

    def assignment(self) -> dict[str, Assignment]:
        """Return the assignment of each operator."""
        return self._driver.changes.assignment()

    def freeze(self) -> None:
        """Forbid changes of the assignment until `thaw`, also over a restart."""
        self._do(Command("freeze", "user"))

    def thaw(self) -> None:
        """Allow changes of the assignment again."""
        self._do(Command("thaw", "user"))

    def rollback(self, epoch: int, *, reason: str = "") -> None:
        """Go back to the assignments of an earlier epoch; state never goes back.

        Raises
        ------
        ConfigError
            Nothing is known of that epoch, or the assignment is frozen.
        """
        self._do(Command("rollback", "user", reason, {"epoch": epoch}))

    def slo(self, *slos: str | Slo) -> None:
        """Judge and steer the query by other SLOs from its next batch on.

        A budget that follows from the SLO follows it.

        Raises
        ------
        ConfigError
            A text is no SLO, the query had none, or they are about other operators than before.
        """
        self._do(Command("slo", "user", "", {"slos": slos}))

    def _do(self, command: Command) -> None:
        self._end.refuse_if_over(command.act)
        self._commands.do(command)

    def decisions(self) -> list[Decided]:
        """Return the last decisions of the query's policy, oldest first."""
        return self._controller.decisions() if self._controller is not None else []

    def _progress(self) -> tuple[int, bool]:
        """Return how many batches were begun, and whether none is under way."""
        return self._driver.batches_begun, self._driver.idle.is_set()

    def drain(self, timeout_s: float = 60.0) -> None:
        """Wait until everything that has arrived is served and all that is due is out.

        Raises
        ------
        HeadgateError
            It took longer than `timeout_s`, or the query failed, or Spark's JVM is gone.
        """
        self._await_settled(timeout_s)

    def _await_settled(self, timeout_s: float | None) -> None:
        """Wait for a quiet batch that was planned after this call; return at once without state."""
        driver = self._driver
        if not driver.states:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # the batch under way may have been planned before the call, so it is the next one that counts
        wanted = driver.batches_begun + 2
        while driver.settled_batch < wanted:
            if self._end.wait(_POLL_S):
                return
            if deadline is not None and time.monotonic() > deadline:
                waiting = sum(s.waiting_rows() for s in driver.states.values())
                msg = f"not drained after {timeout_s:g} s: {waiting} rows wait; raise timeout_s."
                raise HeadgateError(msg)

    # -- StreamingQuery ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identity of the query, kept in its checkpoint."""
        with self._life.asked():
            return str(self._inner.id)

    @property
    def runId(self) -> str:
        """Identity of this run."""
        with self._life.asked():
            return str(self._inner.runId)

    @property
    def name(self) -> str | None:
        """The query's name; None if it was given none."""
        with self._life.asked():
            return None if self._inner.name is None else str(self._inner.name)

    @property
    def isActive(self) -> bool:
        """Whether it is running (a last drain counts)."""
        return not self._end.is_over

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        with self._life.asked():
            return dict(self._inner.status)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The newest progress, with the figures of its batch; our own ones under ``headgate``."""
        with self._life.asked():
            progress = self._inner.lastProgress
        return None if progress is None else self._filled(progress)

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Recent progress, each as `lastProgress` has it."""
        with self._life.asked():
            recent = list(self._inner.recentProgress)
        return [self._filled(progress) for progress in recent]

    def _filled(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        figures = self._driver.recorder.progress
        filled = StreamingQueryProgress.fromJson(figures.filled(json.loads(progress.json)))
        filled["headgate"] = figures.own(progress.batchId)
        return filled

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends; raise its failure.

        Returns
        -------
        bool or None
            With a timeout: whether it has ended.

        Raises
        ------
        StreamingQueryException
            It failed; begins with one sentence, and what Spark says is its ``__cause__``.
        HeadgateError
            Spark's JVM is gone.
        """
        ended = self._end.wait(timeout)
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all that the sources have now is processed and what is due is out."""
        if not self._driver.states:
            with self._life.asked():
                self._inner.processAllAvailable()
            return
        # Spark's own waits for a trigger without any new offset, and the tick brings one each second
        self._await_settled(None)

    def stop(self) -> None:
        """Stop at the next batch boundary.

        Raises
        ------
        HeadgateError
            It ended because Spark's JVM did.
        """
        self._end.stop(self._await_commit)

    def _await_commit(self) -> None:
        """Let Spark commit the batch just done: else the next start delivers its output again.

        The next batch waits for our stop meanwhile, so nothing is begun.
        """
        latest = self._driver.latest
        if latest is None or latest.engine.get("drain"):
            return
        done = self._driver.checkpoint.path / "commits" / str(latest.spark_batch)
        deadline = time.monotonic() + _COMMIT_WAIT_S
        while self._inner.isActive and not done.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def explain(self, extended: bool = False) -> None:
        """Print Spark's plan of the last batch."""
        with self._life.asked():
            self._inner.explain(extended)

    def exception(self) -> Exception | None:
        """Return what the query failed with, or None."""
        return self._end.failure

    def _close(self, failure: Exception | None) -> None:
        """Write the end down, and give back what the query held."""
        asked = self._driver.stopping.is_set()
        reason = "failed" if failure else "stopped" if asked else "source ended"
        try:
            self._driver.migrations.stop()
            if self._controller is not None:
                self._controller.stop()
            self._driver.recorder.stop(reason, failure)
        finally:
            self._release()
