"""The handle of a running query of pools."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.jvm.completing import complete_events
from headgate.spark.jvm.life import JvmLife
from headgate.spark.replicas.driver import BatchLine, ReplicaDriver
from headgate.spark.step.ending import Ending

_POLL_S = 0.02
_COMMIT_WAIT_S = 5.0


class ReplicaQuery:
    """A streaming query whose stateless stages run on pools of replicas.

    What is not here is Spark's own ``StreamingQuery``, to which everything else is passed on. Made by
    `Writer.start` with a policy over pools.
    """

    def __init__(
        self,
        inner: StreamingQuery,
        driver: ReplicaDriver,
        *,
        finite: bool,
        release: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._driver = driver
        self._release = release
        self._life = JvmLife(driver.spark)
        rest = driver.serve_rest if finite else None
        self._end = Ending(inner, driver, self._life, rest=rest, close=self._close)
        self._end.start()
        complete_events(driver.spark, inner, driver.recorder.progress)

    def __getattr__(self, name: str) -> Any:
        with self._life.asked():
            return getattr(self._inner, name)

    @property
    def journal(self) -> Path:
        """Path of the run's journal."""
        return self._driver.recorder.path

    def replicas(self) -> dict[str, int]:
        """Return the active replicas of each stage."""
        return {name: len(state.active) for name, state in self._driver.states.items()}

    def activate(self, replicas: int, *, stage: str | None = None) -> None:
        """Have so many replicas active from the next batch on; the others serve what they hold.

        Parameters
        ----------
        replicas : int
            1 to the size of the pool.
        stage : str, optional
            One stage; all when absent.

        Raises
        ------
        ConfigError
            There is no such stage, or the pool is smaller.
        HeadgateError
            The query has ended.
        """
        self._end.refuse_if_over("activate")
        states = self._driver.states
        if stage is not None and stage not in states:
            msg = f'there is no stage "{stage}"; this query has {", ".join(states)}.'
            raise ConfigError(msg)
        most = self._driver.config.most
        if not 1 <= replicas <= most:
            msg = f"replicas={replicas} is out of range; use 1 to {most}."
            raise ConfigError(msg)
        self._driver.ask({name: replicas for name in states if stage in (None, name)})

    def decisions(self) -> list[tuple[float, str]]:
        """Return when the policy changed something, in seconds, and why; the last 10,000."""
        return list(self._driver.decisions)

    def batches(self) -> list[BatchLine]:
        """Return what each batch with rows did, the last 10,000."""
        return list(self._driver.batches)

    @property
    def isActive(self) -> bool:
        """Whether it is running (a last drain counts)."""
        return not self._end.is_over

    def drain(self, timeout_s: float = 60.0) -> None:
        """Wait until all that has arrived is served.

        Raises
        ------
        HeadgateError
            It took longer than `timeout_s`, or the query failed, or Spark's JVM is gone.
        """
        deadline = time.monotonic() + timeout_s
        # the batch under way may have been planned before the call
        wanted = self._driver.begun + 2
        while self._driver.settled < wanted:
            if self._end.wait(_POLL_S):
                return
            if time.monotonic() > deadline:
                msg = f"not drained after {timeout_s:g} s; raise timeout_s."
                raise HeadgateError(msg)

    def processAllAvailable(self) -> None:
        """Wait until all that the sources have now is served."""
        self.drain(float("inf"))

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

    def stop(self) -> None:
        """Stop at the next batch boundary.

        Raises
        ------
        HeadgateError
            It ended because Spark's JVM did.
        """
        self._end.stop(self._await_commit)

    def exception(self) -> Exception | None:
        """Return what the query failed with, or None."""
        return self._end.failure

    def _await_commit(self) -> None:
        """Let Spark commit the batch just done: else the next start delivers its output again."""
        latest = self._driver.latest
        if latest is None:
            return
        done = self._driver.checkpoint.path / "commits" / str(latest.spark_batch)
        deadline = time.monotonic() + _COMMIT_WAIT_S
        while self._inner.isActive and not done.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def _close(self, failure: Exception | None) -> None:
        """Write the end down, and give back what the query held."""
        asked = self._driver.stopping.is_set()
        reason = "failed" if failure else "stopped" if asked else "source ended"
        try:
            self._driver.recorder.stop(reason, failure)
        finally:
            self._release()
