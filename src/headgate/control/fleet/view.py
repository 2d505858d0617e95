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
"""Number of slots of each operator of each job: job -> operator -> slots."""

SATURATED = 0.98
"""Capacity above which an operator cannot keep up, or only just."""


@dataclass(frozen=True)
class FleetOperator:
    """Holds the slots, the load and the limits of one operator of one job."""

    slots: int
    """Slots granted now; >= 1."""
    capacity: float
    """Share of the time that its busiest slot works, in [0, 1]; see `operator_capacity`."""
    backlog_s: float = 0.0
    """Time for which the waiting records would keep the operator busy, in seconds."""
    source: bool = False
    """Whether the operator is a source (Henge's spout), which no reduction takes slots from."""
    slots_min: int = 1
    slots_max: int = 128
    """`slots_min`, `slots_max`: limits on the slots; ``1 <= slots_min <= slots_max``."""
    request: int | None = None
    """Slots that the job's own policy would use; `slots` if these are enough. None for a job without
    a policy of its own, which holds all granted slots."""

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
    """The present intents and priority of the job."""
    values: tuple[float, ...] | None
    """Measured value of each intent over the last window (one minute). A job without records to
    process reports latency 0 and juice 1. None, or NaN, where a value is unknown."""
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
    """The budget: most slots of all operators of all jobs together."""
    hosts: int = 1
    """Number of hosts."""
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
        """Return the view of these jobs only; the slots of the other jobs leave the budget."""
        jobs = {name: self.jobs[name] for name in names}
        kept = sum(op.slots for job in jobs.values() for op in job.operators.values())
        return replace(self, jobs=jobs, slots_max=self.slots_free + kept)

    @property
    def congested(self) -> bool:
        """Return whether the majority of hosts is congested.

        References
        ----------
        Henge 5.2. Differs: Henge calls a machine congested when its CPU load exceeds its cores. Spark
        runs one task per core, so that surplus slots wait without raising the load. So here a host is
        congested by the time for which its tasks ran or waited.
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
    """One sentence, with its numbers, that an engineer on call understands."""
    rule: str = ""
    """Short name of the rule that led to the decision: ``drop -> reversion``."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The figures that led to the decision, by name."""

    def __bool__(self) -> bool:
        return bool(self.slots)


class FleetPolicy(Protocol):
    """Decides how many slots each operator of each job is granted.

    Deterministic, without clock or I/O. The fleet calls `decide` at the end of every round, but not
    while a change is under way.
    """

    @property
    def name(self) -> str:
        """Name and main parameters, as figures print it."""

    def decide(self, view: FleetView) -> FleetDecision:
        """Return the policy's decision for now."""


def operator_capacity(worked_s: Collection[float], window_s: float) -> float:
    """Return the share of a window for which the busiest slot of an operator worked.

    The result is in [0, 1]; 0 where no slot worked.

    `worked_s`: time that each slot worked in the window, in seconds: its executed records times their
    mean time. The time of a record at a rate-limited slot is 1 / rate. `window_s`: length of the
    window, in seconds; > 0.

    References
    ----------
    Henge 5.1, equation 3.
    """
    return min(1.0, max(worked_s, default=0.0) / window_s)
