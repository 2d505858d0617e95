"""What a job's batches ask of, and tell, those who watch and steer it."""

from __future__ import annotations

from typing import Protocol

from headgate.journal.schema import SloState
from headgate.spark.job.changes import Wanted
from headgate.spark.job.reports import Report


class Commands(Protocol):
    """What people ask of the job while it runs."""

    def poll(self) -> None:
        """Carry out what was asked for since the last batch."""


class Observer(Protocol):
    """What is told about the steps of a job while it runs; no call may take long."""

    def assigned(self, operator: str, wanted: Wanted, *, final: bool = True) -> None:
        """Take note that the step about to begin runs under a new assignment.

        Not `final`: it is on the way to the one that was wanted.
        """

    def committed(self, reports: list[Report], started_ms: float, horizon_ms: float) -> None:
        """Take note of a committed step; parameters as of `Controller.committed`."""

    def quiet(self, horizon_ms: float) -> None:
        """Take note of a batch with nothing to do."""

    def bound_ms(self, operator: str) -> float:
        """Return the latency that an operator's records are counted against; 0 for none."""

    def state(self) -> SloState | None:
        """Return what the next batch line says of the SLO; None where there is none."""
