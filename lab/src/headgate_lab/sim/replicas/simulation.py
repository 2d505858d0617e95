"""Simulates a job of stateless operators on a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headgate.control.pools.replicas import Interval, ReplicaDecision, ReplicaPolicy
from headgate.core.errors import ConfigError
from headgate.loop.replicas import run_interval
from headgate_lab import replica_metrics
from headgate_lab.sim.replicas.model import PoolJob, PoolSettings
from headgate_lab.sim.replicas.pool import NOTHING, Counts, SimulatedPool

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PoolRun:
    """Holds the results of a run; arrays have one entry per interval.

    Attributes
    ----------
    arrived, left : float64[intervals]
        Events that entered and left the job. An event with copies leaves once for each copy.
    active : int64[intervals, operators]
        Replicas active in the interval.
    enter_s, leave_s : float64[events]
        Times of entry and completion of the events that left.
    lost, timed_out, refused, waiting : int
        Events lost in restarts, dropped for their age, refused by a full queue, and still queued at
        the end, at all operators together.
    useful_s : float
        Time that replicas worked.
    decisions : list of (float, str)
        Time and reason of each decision.
    """

    policy: str
    interval_s: float
    arrived: F64
    left: F64
    active: I64
    enter_s: F64
    leave_s: F64
    lost: int
    timed_out: int
    refused: int
    waiting: int
    restarts: int
    useful_s: float
    decisions: list[tuple[float, str]] = field(default_factory=list)

    @property
    def dropped(self) -> int:
        """Number of events lost, timed out or refused."""
        return self.lost + self.timed_out + self.refused

    def measures(self, overprovisioned: float, window_s: float | None = None) -> dict[str, float]:
        """Return the four measures of PSPS V-A3; latency in milliseconds, as its tables have it.

        Parameters
        ----------
        overprovisioned : float
            r_over, of all operators together.
        window_s : float, optional
            Window of the degradation, a multiple of the interval; default: each interval. Policies with
            different intervals need the same window, since with a shorter one more events of a burst
            leave in a later window.
        """
        intervals = 1 if window_s is None else round(window_s / self.interval_s)
        latency_s = replica_metrics.mean_latency_s(self.enter_s, self.leave_s)
        return {
            "saved": replica_metrics.saved_resources(
                self.active.sum(axis=1).astype(np.float64), overprovisioned
            ),
            "degradation": replica_metrics.throughput_degradation(
                _in_windows(self.arrived, intervals), _in_windows(self.left, intervals)
            ),
            "processed": replica_metrics.processed_share(
                float(self.arrived.sum()), float(self.left.sum())
            ),
            "latency_ms": latency_s * 1e3,
        }


def _in_windows(counts: F64, intervals: int) -> F64:
    """Return the sums over windows of `intervals` intervals; the last window may be shorter."""
    sums: F64 = np.add.reduceat(counts, np.arange(0, len(counts), intervals))
    return sums


def simulate(
    job: PoolJob,
    policy: ReplicaPolicy | None,
    arrivals_s: F64,
    until_s: float,
    settings: PoolSettings | None = None,
    *,
    seed: int = 1,
) -> PoolRun:
    """Run a job.

    Parameters
    ----------
    policy : ReplicaPolicy or None
        None: the active replicas do not change.
    arrivals_s : float64[n]
        Times at which events enter the job, ascending, in seconds from 0.
    until_s : float
        The run ends with the first interval that ends at or after this.
    seed : int
        Seed of service times, routes and shuffling.
    """
    engine = _Engine(job, arrivals_s, until_s, settings or PoolSettings(), seed)
    return engine.run(policy)


class _Engine:
    """Implements `PoolEngine` for a simulated job."""

    def __init__(
        self, job: PoolJob, arrivals_s: F64, until_s: float, settings: PoolSettings, seed: int
    ) -> None:
        if len(arrivals_s) and (np.diff(arrivals_s).min(initial=0.0) < 0.0 or arrivals_s[0] < 0.0):
            msg = "arrivals are not ascending from 0 s; sort them."
            raise ConfigError(msg)
        self._job = job
        self._settings = settings
        self._arrivals_s = arrivals_s
        self._intervals = max(1, int(np.ceil(until_s / settings.interval_s - 1e-9)))
        seeds = np.random.SeedSequence(seed).spawn(len(job.operators) + 1)
        generators = [np.random.default_rng(each) for each in seeds]
        self._routes = generators.pop()
        self._pools = {
            name: SimulatedPool(operator, settings, generator, until_s)
            for (name, operator), generator in zip(job.operators.items(), generators, strict=True)
        }
        self._now_s = 0.0
        self._input = 0
        self._lost = self._restarts = 0

    def run(self, policy: ReplicaPolicy | None) -> PoolRun:
        arrived, left, active, events = [], [], [], []
        timed_out = refused = 0
        useful_s = 0.0
        decisions = []
        for number in range(1, self._intervals + 1):
            active.append([len(pool.active) for pool in self._pools.values()])
            gone = self._live(number * self._settings.interval_s)
            arrived.append(float(self._input))
            left.append(float(len(gone)))
            events.append(gone)
            for pool in self._pools.values():
                timed_out += pool.counts.timed_out
                refused += pool.counts.refused
                useful_s += pool.counts.useful_s
            decision = ReplicaDecision() if policy is None else run_interval(policy, self)
            if decision:
                decisions.append((self._now_s, decision.reason))
        gone = np.concatenate([NOTHING, *events])
        return PoolRun(
            policy="static" if policy is None else policy.name,
            interval_s=self._settings.interval_s,
            arrived=np.array(arrived),
            left=np.array(left),
            active=np.array(active),
            enter_s=gone[:, 1],
            leave_s=gone[:, 0],
            lost=self._lost,
            timed_out=timed_out,
            refused=refused,
            waiting=int(sum(pool.queued.sum() for pool in self._pools.values())),
            restarts=self._restarts,
            useful_s=useful_s,
            decisions=decisions,
        )

    def _live(self, end_s: float) -> F64:
        """Simulate up to `end_s`; return (completion, entry) of the events that left the job.

        Events only flow from parents to children, so that each operator simulates the whole interval
        before its children do.
        """
        first, last = np.searchsorted(self._arrivals_s, [self._now_s, end_s], side="left")
        entered = self._arrivals_s[first:last]
        self._input = len(entered)
        source = np.column_stack([entered, entered])
        feeds: dict[str, dict[str, F64]] = {name: {} for name in self._pools}
        gone = [NOTHING]
        for name, pool in self._pools.items():
            has_parents = bool(self._job.operators[name].parents)
            parts = feeds[name]
            received = {parent: len(part) for parent, part in parts.items()}
            arriving = _merged(list(parts.values())) if has_parents else source
            counts = Counts(received, from_source=0 if has_parents else len(source))
            done = pool.advance(end_s, self._settings.interval_s, arriving, counts)
            gone.append(self._route(name, done, feeds))
        self._now_s = end_s
        return np.concatenate(gone)

    def _route(self, name: str, done: F64, feeds: dict[str, dict[str, F64]]) -> F64:
        """Pass completed events to the children; return those that no edge takes."""
        drawn = self._routes.random(len(done))
        taken = np.zeros(len(done), dtype=bool)
        for child, edge in self._job.children(name):
            takes = (edge.low <= drawn) & (drawn < edge.high)
            feeds[child][name] = done[takes]
            taken |= takes
        return done[~taken]

    def monitor(self) -> Interval:
        """Return the statistics of the interval that just ended."""
        operators = {name: pool.observed() for name, pool in self._pools.items()}
        return Interval(self._settings.interval_s, float(self._input), operators)

    def resize(self, active: Mapping[str, int]) -> None:
        """Activate and deactivate."""
        for name, wanted in active.items():
            self._pools[name].resize(wanted)

    def restart(self, active: Mapping[str, int]) -> None:
        """Restart: all queues are lost, and no event is served for a while."""
        self._restarts += 1
        for pool in self._pools.values():
            self._lost += pool.restart(self._now_s + self._settings.restart_s)
        self.resize(active)


def _merged(parts: list[F64]) -> F64:
    """Return the events of several parents in order of arrival."""
    events = np.concatenate([NOTHING, *parts])
    return events[np.argsort(events[:, 0], kind="stable")]
