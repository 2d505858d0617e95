"""Holds the input and output of a fleet policy: the state of many jobs on one cluster, and a decision."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from headgate.core.errors import NotReady
from headgate.core.utility import Utility

Slots = Mapping[str, Mapping[str, int]]
"""How many slots each operator of each job has: job -> operator -> slots."""

SATURATED = 0.98
"""An operator that works for a larger share of the time than this cannot keep up, or only just."""


@dataclass(frozen=True)
class FleetOperator:
    """Holds the slots, the load and the limits of one operator of one job."""

    slots: int
    """Slots granted now; >= 1."""
    capacity: float
    """Share of the time that its busiest slot works, in [0, 1]; see `operator_capacity`."""
    backlog_s: float = 0.0
    """How long the waiting records would keep the operator busy, in seconds."""
    source: bool = False
    """Whether it is a source (Henge's spout), which is never reduced."""
    slots_min: int = 1
    slots_max: int = 128
    """`slots_min`, `slots_max`: how many slots it may have; ``1 <= slots_min <= slots_max``."""
    request: int | None = None
    """Of a job whose own policy spends what is granted: the slots that it would like, `slots` where
    these are enough. None of a job that holds what it is granted."""

    @property
    def requested(self) -> int:
        """Return the number of further slots that the job's own policy requests."""
        return 0 if self.request is None else max(0, self.request - self.slots)

    @property
    def room(self) -> int:
        """Return the number of further slots that may be granted; at most what the job requests."""
        room = max(0, self.slots_max - self.slots)
        return room if self.request is None else min(room, self.requested)


@dataclass(frozen=True)
class FleetJob:
    """Holds the utility, the measured values and the operators of one job."""

    utility: Utility
    """Its intents and its priority, as they are now."""
    values: tuple[float, ...] | None
    """What was measured for each intent over the last window (one minute). A job with nothing to do
    reports what that is worth: latency 0, juice 1. None, or NaN, where nothing is known."""
    operators: Mapping[str, FleetOperator]
    input_rate: float = 0.0
    """Records per second that arrive at its sources."""

    @property
    def reported(self) -> bool:
        """Return whether every intent was measured."""
        return self.values is not None and not any(map(math.isnan, self.values))

    @property
    def attained(self) -> float:
        """Return the job's current utility; NotReady where a value was not measured."""
        if self.values is None:
            msg = "the job has reported nothing yet."
            raise NotReady(msg)
        return self.utility.current(self.values)

    @property
    def met(self) -> bool:
        """Return whether the job meets its SLO; False where no fresh value is known."""
        return self.values is not None and self.utility.met(self.values)


@dataclass(frozen=True)
class FleetView:
    """Holds all jobs of a fleet at the end of one round."""

    time_s: float
    """Time since the fleet started, in seconds."""
    jobs: Mapping[str, FleetJob]
    slots_max: int
    """The budget: how many slots all operators of all jobs may have together."""
    hosts: int = 1
    """How many hosts there are."""
    hosts_congested: int = 0
    """Hosts whose slot tasks were runnable (running, or waiting for a core) for longer than cores x
    interval."""

    @property
    def slots(self) -> dict[str, dict[str, int]]:
        """Return the allocation in force."""
        return {
            name: {op: view.slots for op, view in job.operators.items()}
            for name, job in self.jobs.items()
        }

    @property
    def slots_free(self) -> int:
        """Return the rest of the budget; negative where the budget shrank below the granted slots."""
        granted = sum(op.slots for job in self.jobs.values() for op in job.operators.values())
        return self.slots_max - granted

    def only(self, names: Iterable[str]) -> FleetView:
        """Return the view without the other jobs, whose slots are taken off the budget."""
        jobs = {name: self.jobs[name] for name in names}
        kept = sum(op.slots for job in jobs.values() for op in job.operators.values())
        return replace(self, jobs=jobs, slots_max=self.slots_free + kept)

    @property
    def congested(self) -> bool:
        """Return whether the majority of hosts is congested.

        References
        ----------
        Henge 5.2. Differs: Henge calls a machine congested when its CPU load exceeds its cores;
        Spark runs one task per core, so that surplus slots wait without raising the load: which hosts
        are congested is told by the time for which their tasks ran or waited.
        """
        return 2 * self.hosts_congested > self.hosts


class Action(StrEnum):
    """Names the kind of a fleet decision: Henge's three actions, and nothing."""

    NOTHING = "nothing"
    RECONFIGURATION = "reconfiguration"
    REDUCTION = "reduction"
    REVERSION = "reversion"


@dataclass(frozen=True)
class FleetDecision:
    """Holds the slots that a fleet policy wants now."""

    action: Action = Action.NOTHING
    slots: Slots = field(default_factory=dict)
    """New number of slots, by job and operator, of the operators that change."""
    reason: str = ""
    """One sentence that somebody on call understands, with its numbers."""
    rule: str = ""
    """The rule that fired, a short name: ``drop -> reversion``."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures behind it."""

    def __bool__(self) -> bool:
        return bool(self.slots)


class FleetPolicy(Protocol):
    """Decides how many slots each operator of each job is granted.

    Deterministic, without clock or I/O. `decide` is called at the end of every round, and not while
    a change is under way.
    """

    @property
    def name(self) -> str:
        """Name and main parameters, as figures print it."""

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the policy's decision for now."""


def operator_capacity(worked_s: Collection[float], window_s: float) -> float:
    """Return the share of a window for which the busiest slot of an operator worked.

    In [0, 1]; 0 where no slot did anything.

    `worked_s`: how long each slot worked in the window, in seconds: the records that it executed
    times the mean time that each took. A rate-limited slot takes 1 / rate. `window_s`: length of
    the window, in seconds; > 0.

    References
    ----------
    Henge 5.1, equation 3.
    """
    return min(1.0, max(worked_s, default=0.0) / window_s)
