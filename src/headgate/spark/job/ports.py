"""Declares the ports through which a job's batches reach observers, commands, executors and the fleet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.control.fleet.grant import Grant
from headgate.journal.parts import SloState
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.reports import ReplicaReport, Report


class CommandPort(Protocol):
    """Delivers the requests of people to a running job."""

    def poll(self) -> None:
        """Carry out the requests since the last batch."""


class Observer(Protocol):
    """Receives news of the steps of a job while it runs; no call may take long."""

    def assigned(self, operator: str, request: AssignmentRequest) -> None:
        """Take note that the step about to begin runs under a new assignment.

        While the request is moving, this is an intermediate assignment on the way to the requested one.
        """

    def committed(self, reports: list[Report], started_ms: float, horizon_ms: float) -> None:
        """Take note of a committed step; for the parameters see `SparkMetrics.committed`."""

    def quiet(self, horizon_ms: float) -> None:
        """Take note of a batch with nothing to do."""

    def lost(self, operator: str, slot: int) -> None:
        """Take note that a slot lost its executor or Python worker; its work is run again."""

    def bound_ms(self, operator: str) -> float:
        """Return the latency within which an operator's records count as in time, ms; 0 for no bound."""

    def asks_origins(self) -> bool:
        """Return whether the observer reads `Report.inputs`, `newest_ms` and `results`."""

    def state(self) -> SloState | None:
        """Return the state of the SLO for the journal's next `batch` line; None without an SLO."""


class PoolObserver(Protocol):
    """Receives news of the steps of a query of pools; no call may take long."""

    def committed(
        self,
        reports: list[ReplicaReport],
        lanes: Mapping[str, Sequence[int]],
        phases_ms: Mapping[str, float],
        started_ms: float,
    ) -> None:
        """Take note of a committed step; `lanes` has the replica of each task, by stage."""

    def quiet(self) -> None:
        """Take note of a batch with nothing to do."""


class Executors(Protocol):
    """Provides the executors that run slots."""

    @property
    def cores(self) -> int:
        """Return the number of slots that run at a time."""

    def ready(self, slots: int) -> bool:
        """Return whether a change to `slots` may come into force."""

    def need(self, slots: int) -> None:
        """Take note that a change to `slots` is requested: more executors may have to come."""

    def settled(self, slots: int, hosts: Callable[[], Collection[str]]) -> None:
        """Take note that a step was committed with `slots` slots.

        `hosts` returns the hosts that should run the slots; none if Spark places them.
        """


class SlotHolder(Protocol):
    """Keeps slots of operators, or active replicas of stages, within a fleet's grant."""

    def held(self) -> dict[str, int]:
        """Return the slots in force, by operator."""

    def holds(self) -> dict[str, float]:
        """Return the end of the hold on each operator's slots, seconds since 1970."""

    def changing(self) -> bool:
        """Return whether a requested change of slots is not in force yet."""

    def limit(self, grant: Grant) -> None:
        """Limit operators to the slots of `grant`; slots above it end at the next boundary."""

    def requests(self) -> dict[str, int]:
        """Return the slots that the job's own policy requests, where they exceed the grant."""


class NoCommands:
    """Delivers no requests; a `CommandPort`."""

    def poll(self) -> None:
        """Do nothing."""


class NoObserver:
    """Ignores all news; an `Observer`."""

    def assigned(self, operator: str, request: AssignmentRequest) -> None:
        """Do nothing."""

    def committed(self, reports: list[Report], started_ms: float, horizon_ms: float) -> None:
        """Do nothing."""

    def quiet(self, horizon_ms: float) -> None:
        """Do nothing."""

    def lost(self, operator: str, slot: int) -> None:
        """Do nothing."""

    def bound_ms(self, operator: str) -> float:
        """Return 0: there is no bound."""
        return 0.0

    def asks_origins(self) -> bool:
        """Return False: the observer reads no reports."""
        return False

    def state(self) -> SloState | None:
        """Return None: there is no SLO."""
        return None


class NoPoolObserver:
    """Ignores all news; a `PoolObserver`."""

    def committed(
        self,
        reports: list[ReplicaReport],
        lanes: Mapping[str, Sequence[int]],
        phases_ms: Mapping[str, float],
        started_ms: float,
    ) -> None:
        """Do nothing."""

    def quiet(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class SameExecutors:
    """Provides the same executors for any number of slots; an `Executors`."""

    cores: int = 1

    def ready(self, slots: int) -> bool:
        """Return True: no more executors will come."""
        return True

    def need(self, slots: int) -> None:
        """Do nothing."""

    def settled(self, slots: int, hosts: Callable[[], Collection[str]]) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Ports:
    """Holds the ports of one job; the defaults do nothing."""

    observer: Observer = field(default_factory=NoObserver)
    commands: CommandPort = field(default_factory=NoCommands)
    executors: Executors = field(default_factory=SameExecutors)
