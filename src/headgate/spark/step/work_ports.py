"""Defines the ports of a kind of query: input, demand, computation, notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame

from headgate.checkpoint.manifest import Manifest
from headgate.spark.job.phases import Phases
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.step.begun import Begun
from headgate.spark.step.intake import Intake
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.output import Outputs

R = TypeVar("R")
"""Report of a task."""


class Demand(Protocol):
    """Says whether a query needs a step."""

    @property
    def has_steps(self) -> bool:
        """Return whether the query has steps; otherwise batches go to the sink unchanged."""

    @property
    def changing(self) -> bool:
        """Return whether a change needs the next step."""

    @property
    def waits(self) -> bool:
        """Return whether records wait that the next step would serve."""

    def waiting_rows(self) -> int:
        """Return the number of rows that wait."""

    def arrived(self) -> None:
        """Take note of a batch, before it is known whether it has anything to do."""

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether there is work without any new record."""

    def quiet(self, watermark_us: int, read_ms: float, clock_ms: float) -> bool:
        """Note a batch with nothing to do; return whether it gets a step nevertheless."""

    def last_watermark_us(self, latest: Manifest, log: SparkLog) -> int:
        """Return the watermark for a drain, after Spark's last batch."""


class Computation(Protocol[R]):
    """Computes a step, and makes its manifest and its result."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns of backlog and output by operator, if a changed query may change them."""

    @property
    def attempts(self) -> int:
        """Executions of a step before the query fails."""

    def prepare(self, begun: Begun) -> dict[str, Any]:
        """Put requested changes in force; return their entries in the step's intent."""

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[R]:
        """Run the step's tasks; return one report of each task, all of the same executions."""

    def manifest(self, begun: Begun, reports: list[R]) -> Manifest:
        """Return the manifest that commits the step, and apply the reports to the job's state."""

    def committed(self, step: int) -> None:
        """Take note that a step is final."""

    def result(self, outputs: Outputs) -> DataFrame:
        """Return the DataFrame of a step's outputs for the sink."""


class StepNotes(Protocol[R]):
    """Writes the results of steps into the journal, and notifies observers."""

    def done(self, outcome: Outcome[R], begun: Begun) -> None:
        """Write a committed step."""

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write that an attempt failed and the step runs again."""

    def passed_on(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Write a batch that went to the sink unchanged."""


class Work(Demand, Computation[R], StepNotes[R], Protocol[R]):
    """Runs the steps of one kind of query."""

    @property
    def intake(self) -> Intake:
        """Return the source of batches."""

    def settle_in(self, batch: DataFrame) -> None:
        """Take the session of the batches."""
