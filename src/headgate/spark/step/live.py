"""Holds a job of stateful operators between two batches, for its observers and its control loop."""

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
    """Holds the parts of a running job of stateful operators."""

    query: PlannedQuery
    """The operators and plans that were read from the user's plan."""
    config: JobConfig
    """The current settings: the budget may change."""
    latest: Manifest | None
    """The newest manifest when the job started."""
    states: dict[str, OperatorState]
    """By operator."""
    changes: Changes
    """Requested changes of the assignments in `states`."""
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
        """Return the job of the manifest `latest`, or of a first start if it is None."""
        states = {
            op.id: OperatorState.fresh(config.slots, config.key_groups)
            if latest is None
            else OperatorState.recovered(latest, op.id)
            for op in query.operators
        }
        changes = Changes(states, config.slots_max, executors)
        return cls(query, config, latest, states, changes, recorder)

    def set_budget(self, budget_s: float | None) -> None:
        """Change the slots' time budget from the next step on."""
        self.config = replace(self.config, budget_s=budget_s)

    def slots_in_use(self, operator: str) -> int:
        """Return the slots of an operator: in force, or after its newest change if these are more."""
        return max(self.states[operator].assignment.slots, self.changes.newest(operator).slots)
