"""Simulates the replicas of one operator: their queues, and the fate of each event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.estimators.grouping import Grouping, load_aware, round_robin, utilisation
from headgate.control.estimators.service_time import ServiceTimeEstimate
from headgate.control.pools.replicas import OperatorInterval, ReplicaPool
from headgate_lab.sim.replicas import kernels
from headgate_lab.sim.replicas.kernels import (
    ARRIVE,
    CHOOSE,
    DEMAND,
    ENTER,
    FATE,
    LEAVE,
    REFUSED,
    REPLICA,
    SERVED,
    START,
    TIMED_OUT,
)
from headgate_lab.sim.replicas.model import GroupingKind, PoolSettings, StatelessOperator

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

NOTHING: F64 = np.zeros((0, 2))


@dataclass
class Counts:
    """Counts the events of an operator in one interval.

    Attributes
    ----------
    received : dict of str to int
        Events received, by parent.
    useful_s : float
        Time that replicas worked on processed events.
    """

    received: dict[str, int]
    from_source: int = 0
    processed: int = 0
    timed_out: int = 0
    refused: int = 0
    useful_s: float = 0.0


class SimulatedPool:
    """Simulates one operator and its pool.

    Parameters
    ----------
    generator : numpy.random.Generator
        For service times and shuffling.
    until_s : float
        End of the run, up to which the cost of events drifts.

    Attributes
    ----------
    pool : ReplicaPool
    counts : Counts
        Counts of the last interval.
    """

    def __init__(
        self,
        operator: StatelessOperator,
        settings: PoolSettings,
        generator: np.random.Generator,
        until_s: float,
    ) -> None:
        self._operator = operator
        self._settings = settings
        self._generator = generator
        self._until_s = until_s
        self.pool = ReplicaPool(tuple(j < settings.active for j in range(operator.pool)))
        self.counts = Counts({})
        self._known = ServiceTimeEstimate(operator.service.mean_s, settings.event_time_weight)
        self._free_s = np.zeros(operator.pool)
        self._speed = operator.replicas.speeds(generator, operator.pool)
        self._processed = np.zeros(operator.pool)
        self._cursor = 0
        self._times: F64 = np.zeros((0, 5))
        self._places = np.zeros((0, 3), dtype=np.int64)

    @property
    def active(self) -> I64:
        """Active replicas, ascending."""
        return np.flatnonzero(self.pool.active)

    @property
    def queued(self) -> I64:
        """Events received and not processed, int64[replicas]."""
        return np.bincount(self._places[:, REPLICA], minlength=self._operator.pool)

    def advance(self, end_s: float, duration_s: float, arrivals: F64, counts: Counts) -> F64:
        """Simulate an interval.

        Parameters
        ----------
        arrivals : float64[n, 2]
            (arrival, entry into the job) of the arriving events, in order of arrival.
        counts : Counts
            Numbers of arriving events by origin; completed here, and assigned to `counts`.

        Returns
        -------
        float64[m, 2]
            (completion, entry) of the events processed, in order of completion.
        """
        known = len(self._times)
        self._append(arrivals, duration_s)
        queue_max = self._settings.queue_events
        kernels.schedule(
            self._times,
            self._places,
            known,
            self._free_s,
            self._speed,
            self.active,
            self._known.event_s,
            self._settings.timeout_s,
            -1 if queue_max is None else queue_max,
        )
        fate = self._places[:, FATE]
        done = (self._times[:, LEAVE] <= end_s) & (fate != REFUSED)
        served = done & (fate == SERVED)
        self._processed = np.bincount(
            self._places[served, REPLICA], minlength=self._operator.pool
        ).astype(np.float64)
        counts.processed = int(served.sum())
        counts.timed_out = int((done & (fate == TIMED_OUT)).sum())
        counts.refused = int((fate == REFUSED).sum())
        counts.useful_s = float((self._times[served, LEAVE] - self._times[served, START]).sum())
        self._known.observe(counts.processed, counts.useful_s)
        self.counts = counts
        left: F64 = self._times[served][:, [LEAVE, ENTER]]
        kept = ~done & (fate != REFUSED)
        self._times, self._places = self._times[kept], self._places[kept]
        ordered: F64 = left[np.argsort(left[:, 0], kind="stable")]
        return ordered

    def observed(self) -> OperatorInterval:
        """Return a policy's view of the last interval."""
        counts = self.counts
        return OperatorInterval(
            active=len(self.active),
            pool=self._operator.pool,
            event_s=self._known.event_s,
            processed=counts.processed,
            received=counts.received,
            from_source=counts.from_source,
            queued=float(len(self._times)),
        )

    def resize(self, wanted: int) -> None:
        """Activate `wanted` replicas from now on; the others only serve their queues."""
        self.pool = self.pool.resized(wanted, self.queued.tolist())

    def restart(self, resume_s: float) -> int:
        """Drop all queues, and serve no event before `resume_s`; return the number of lost events."""
        lost = len(self._times)
        self._times, self._places = self._times[:0], self._places[:0]
        self._free_s[:] = resume_s
        self._processed[:] = 0.0
        return lost

    def _append(self, arrivals: F64, duration_s: float) -> None:
        """Append new events to the queued ones, with a replica and a service time each."""
        count = len(arrivals)
        times = np.zeros((count, 5))
        times[:, [ARRIVE, ENTER]] = arrivals
        drawn = self._operator.service.draw(self._generator, count)
        grown = 1.0 + (self._operator.drift - 1.0) * times[:, ARRIVE] / self._until_s
        times[:, DEMAND] = np.maximum(drawn * grown, self._operator.service.least_s)
        places = np.zeros((count, 3), dtype=np.int64)
        places[:, REPLICA] = self._grouped(count, duration_s)
        self._times = np.concatenate([self._times, times])
        self._places = np.concatenate([self._places, places])

    def _grouped(self, count: int, duration_s: float) -> I64:
        """Return the replica of each event of an interval."""
        active = self.active
        kind = self._settings.grouping
        if kind is GroupingKind.LEAST_WORK:
            return np.full(count, CHOOSE)
        if kind is GroupingKind.SHUFFLE:
            return active[shuffle(count, len(active), self._generator).replica]
        if kind is GroupingKind.ROUND_ROBIN:
            found = round_robin(count, len(active), self._cursor % len(active))
        else:
            event_s = self._known.event_s
            before = self._processed if kind is GroupingKind.PRINTED else self.queued
            load = utilisation(before[active].astype(np.float64), event_s, duration_s)
            step = event_s / duration_s
            found = load_aware(count, load, step, self._cursor % len(active))
        self._cursor = found.cursor
        return active[found.replica]


def shuffle(events: int, replicas: int, random: np.random.Generator) -> Grouping:
    """Send each event to a random replica, as Storm's shuffle grouping; loads stay 0."""
    chosen: npt.NDArray[np.int64] = random.integers(0, replicas, size=events, dtype=np.int64)
    return Grouping(chosen, np.zeros(replicas), 0)
