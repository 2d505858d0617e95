"""Holds a job of stateful operators between two batches, for those who watch and steer it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headgate.checkpoint.manifest import Manifest
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.ports import Executors
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.step.record import Recorder


@dataclass
class LiveJob:
    """Shows a running job to those who watch it."""

    query: PlannedQuery
    """What was read from the user's plan."""
    config: JobConfig
    """As it is now: the budget may change."""
    latest: Manifest | None
    """What the checkpoint had when the job started."""
    states: dict[str, OperatorState]
    """By operator."""
    changes: Changes
    """What is wanted of their assignments."""
    recorder: Recorder

    @classmethod
    def begin(
        cls,
        query: PlannedQuery,
        config: JobConfig,
        latest: Manifest | None,
        executors: Executors,
        recorder: Recorder,
    ) -> LiveJob:
        """Return a job where its checkpoint left it, or a fresh one where there is none."""
        states = {
            op.id: OperatorState.fresh(config.slots, config.key_groups)
            if latest is None
            else OperatorState.recovered(latest, op.id)
            for op in query.operators
        }
        changes = Changes(states, config.slots_max, executors)
        return cls(query, config, latest, states, changes, recorder)

    def set_budget(self, budget_s: float | None) -> None:
        """Give slots another time budget from the next step on."""
        self.config = replace(self.config, budget_s=budget_s)

    def slots_in_use(self, operator: str) -> int:
        """Return how many slots an operator has, or will have when what moves has moved."""
        return max(self.states[operator].assignment.slots, self.changes.newest(operator).slots)
