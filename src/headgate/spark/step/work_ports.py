"""Defines the ports of a kind of query: its input, its demand, its computation, its notes."""

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
    """Tells what there is to do."""

    @property
    def has_steps(self) -> bool:
        """Return whether there is anything to compute; else batches go to the sink as they are."""

    @property
    def changing(self) -> bool:
        """Return whether something changes at the next step, so that it must come."""

    @property
    def waits(self) -> bool:
        """Return whether records wait that the next step would serve."""

    def waiting_rows(self) -> int:
        """Return how many rows wait to be served."""

    def arrived(self) -> None:
        """Take note of a batch, of which it is not yet known whether there is anything to do."""

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether there is work without any new record."""

    def quiet(self, watermark_us: int, read_ms: float, clock_ms: float) -> bool:
        """Note a batch with nothing to do; return whether it gets a step nevertheless."""

    def last_watermark_us(self, latest: Manifest, log: SparkLog) -> int:
        """Return the watermark up to which everything is due once the sources have ended."""


class Computation(Protocol[R]):
    """Computes a step, and makes its manifest and its result."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns of rows that wait or are put out, where a start may change them; by operator."""

    @property
    def attempts(self) -> int:
        """Executions of a step before the query fails."""

    def prepare(self, begun: Begun) -> dict[str, Any]:
        """Put in force what was asked for; return what the step's intent says of it."""

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[R]:
        """Run the step's tasks; return one report of each, such that they agree."""

    def manifest(self, begun: Begun, reports: list[R]) -> Manifest:
        """Return the manifest that commits the step, and take over what its tasks did."""

    def committed(self, step: int) -> None:
        """Take note that a step is final."""

    def result(self, outputs: Outputs) -> DataFrame:
        """Return the DataFrame of a step's outputs for the sink."""


class StepNotes(Protocol[R]):
    """Writes down what became of a step, and tells those who watch."""

    def done(self, outcome: Outcome[R], begun: Begun) -> None:
        """Write down a step that is out."""

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write down that an attempt failed and the step runs again."""

    def passed_on(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Write down a batch that went to the sink as it is."""


class Work(Demand, Computation[R], StepNotes[R], Protocol[R]):
    """Does the steps of one kind of query."""

    @property
    def intake(self) -> Intake:
        """Return the source of batches."""

    def settle_in(self, batch: DataFrame) -> None:
        """Take the session that batches come with."""
