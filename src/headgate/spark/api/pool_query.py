"""Implements the user's handle of a running query of pools."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from headgate.checkpoint.command_files import CommandFiles
from headgate.core.errors import ConfigError
from headgate.spark.api.running import RunningQuery
from headgate.spark.job.reports import ReplicaReport
from headgate.spark.pools.pools import BatchLine, PoolWork
from headgate.spark.step.machine import StepMachine


class PoolQuery(RunningQuery[ReplicaReport]):
    """A streaming query whose stateless stages run on pools of replicas.

    `Writer.start` returns it for a policy over pools.
    """

    def __init__(
        self,
        inner: StreamingQuery,
        machine: StepMachine[ReplicaReport],
        work: PoolWork,
        *,
        finite: bool,
        release: Callable[[], None],
    ) -> None:
        self._work = work
        self._slots = work.loop
        control = CommandFiles(machine.checkpoint.files)
        super().__init__(
            inner, machine, work.recorder, control=control, finite=finite, release=release
        )

    def scale(
        self, slots: int, *, operator: str | None = None, by: str = "user", reason: str = ""
    ) -> None:
        """Set the number of active replicas, as `activate`; a fleet calls this.

        Raises `ConfigError`, `HeadgateError`: as `activate`.
        """
        self._activate(slots, operator, by, reason)

    def replicas(self) -> dict[str, int]:
        """Return the active replicas of each stage."""
        return {name: len(state.active) for name, state in self._work.states.items()}

    def activate(self, replicas: int, *, stage: str | None = None) -> None:
        """Set the number of active replicas from the next batch on; others serve their backlog.

        `replicas`: 1 to the size of the pool. `stage`: id of one stage; None for all stages. Raises
        `ConfigError`: there is no such stage, the pool is smaller, or a fleet grants fewer;
        `HeadgateError`: the query has ended.
        """
        self._activate(replicas, stage, "user", "")

    def _activate(self, replicas: int, stage: str | None, by: str, reason: str) -> None:
        self._end.refuse_if_over("activate")
        states = self._work.states
        if stage is not None and stage not in states:
            msg = f'there is no stage "{stage}"; this query has {", ".join(states)}.'
            raise ConfigError(msg)
        most = self._work.config.most
        if not 1 <= replicas <= most:
            msg = f"replicas={replicas} is out of range; use 1 to {most}."
            raise ConfigError(msg)
        wanted = {name: replicas for name in states if stage in (None, name)}
        self._work.loop.ask(wanted, by, reason)

    def decisions(self) -> list[tuple[float, str]]:
        """Return the last 10,000 decisions: seconds since the query began, and the reason."""
        return list(self._work.loop.decisions)

    def batches(self) -> list[BatchLine]:
        """Return the figures of the last 10,000 batches with rows."""
        return list(self._work.batches)
