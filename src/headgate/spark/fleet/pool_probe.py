"""Measures one query of pools for its fleet: its committed steps over the last minute."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.control.fleet.juice import Flow, job_juice
from headgate.control.fleet.view import FleetOperator, operator_capacity
from headgate.core.utility import Intent, Metric
from headgate.journal import histogram
from headgate.journal.histogram import Sparse
from headgate.spark.fleet.hosts import ANYWHERE, HostTime, summed
from headgate.spark.fleet.lag import SourceLag
from headgate.spark.job.reports import ReplicaReport
from headgate.spark.pools.pools import PoolWork

_LEAST_S = 1e-3
_SOURCE = -1
"""Stands for the source in place of a stage's number."""

_TWO = 2


@dataclass(frozen=True)
class _Replica:
    """Holds the work of one replica of one stage in a step."""

    stage: str
    replica: int
    arrived: int
    served: int
    useful_s: float
    histogram: Sparse
    latency_sum_ms: float
    origins: Mapping[int, int]


@dataclass(frozen=True)
class _PoolStep:
    """Holds the measurements of one committed step."""

    began_s: float
    """On the engine's clock; for differences only."""
    ended_s: float
    """On the monotonic clock."""
    replicas: tuple[_Replica, ...]
    sink_s: float
    """Time from the end of the stages' work until the sink had the step's rows."""
    hosts: dict[str, HostTime]
    """Time that replicas' tasks ran, by host."""
    waiting: dict[str, int]
    """Backlog of each stage after the step, rows."""


class PoolProbe:
    """Measures the steps of one query of pools; a `PoolObserver`.

    The batches' thread reports steps, and the fleet's thread asks for values.

    `window_s`: length of the window over which it measures, in seconds: Henge's sliding minute.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._lock = threading.Lock()
        self._steps: deque[_PoolStep] = deque()
        self._since_s = time.monotonic()
        self._sizes: dict[str, int] = {}
        self._changed_s: dict[str, float] = {}
        self._idle = False
        self._lag = SourceLag()
        self._behind: deque[tuple[float, float]] = deque()
        self._work: PoolWork | None = None

    def around(self, work: PoolWork) -> PoolProbe:
        """Begin to observe a query."""
        self._work = work
        self._since_s = time.monotonic()
        return self

    # -- the port of an observer ------------------------------------------------------------------

    def committed(
        self,
        reports: list[ReplicaReport],
        lanes: Mapping[str, Sequence[int]],
        phases_ms: Mapping[str, float],
        started_ms: float,
    ) -> None:
        """Record a committed step; see `PoolObserver`."""
        assert self._work is not None
        replicas = tuple(
            _Replica(
                r.operator,
                lanes[r.operator][r.lane],
                r.arrived,
                r.served,
                r.useful_s,
                r.histogram,
                r.latency_sum_ms,
                r.origins,
            )
            for r in reports
        )
        # Read here, in the thread that changes the states.
        states = self._work.states.items()
        waiting = {name: sum(state.queued()) for name, state in states}
        active = {name: len(state.active) for name, state in states}
        sink_s = (phases_ms.get("manifest", 0.0) + phases_ms.get("sink", 0.0)) / 1e3
        hosts = _times(reports)
        now_s = time.monotonic()
        with self._lock:
            self._idle = False
            for name, size in active.items():
                if self._sizes.get(name) != size:
                    # measurements with another number of replicas do not hold for the present number
                    self._sizes[name], self._changed_s[name] = size, now_s
            self._steps.append(_PoolStep(started_ms / 1e3, now_s, replicas, sink_s, hosts, waiting))
            while self._steps and self._steps[0].ended_s < now_s - self._window_s:
                self._steps.popleft()

    def quiet(self) -> None:
        """Record that the query has nothing to do."""
        with self._lock:
            self._idle = True

    # -- what the fleet asks ----------------------------------------------------------------------

    def note_progress(self, progress: Mapping[str, Any] | None) -> None:
        """Record Spark's newest progress, which may have the source's newest offset."""
        now_s = time.monotonic()
        with self._lock:
            if progress is not None:
                self._lag.note(progress)
            self._behind.append((now_s, self._lag.rows()))
            while self._behind[0][0] < now_s - self._window_s:
                self._behind.popleft()

    def values(self, intents: Sequence[Intent]) -> tuple[float, ...] | None:
        """Return the measurement of each intent over the window; None without measurements."""
        steps, length_s, idle = self._recent()
        if not steps and not idle:
            return None
        return tuple(self._value(intent, steps, length_s) for intent in intents)

    def operators(self) -> dict[str, FleetOperator]:
        """Return each stage's active replicas, and the capacity of the busiest replica."""
        assert self._work is not None
        steps, _, _ = self._recent()
        config, now_s = self._work.config, time.monotonic()
        rate = config.replica_rate
        operators = {}
        for name, state in self._work.states.items():
            since_s = max(self._since_s, self._changed_s.get(name, 0.0), now_s - self._window_s)
            busy_s: dict[int, float] = {}
            rows, useful_s = 0, 0.0
            for step in steps:
                replicas = [r for r in step.replicas if r.stage == name]
                rows += sum(r.served for r in replicas)
                useful_s += sum(r.useful_s for r in replicas)
                if step.ended_s > since_s:
                    for r in replicas:
                        spent_s = r.served / rate if rate else r.useful_s
                        busy_s[r.replica] = busy_s.get(r.replica, 0.0) + spent_s
            active = len(state.active)
            per_s = rate or (rows / useful_s if useful_s > 0.0 else 0.0)
            waiting = steps[-1].waiting[name] if steps else 0
            operators[name] = FleetOperator(
                slots=active,
                capacity=operator_capacity(busy_s.values(), max(now_s - since_s, _LEAST_S)),
                backlog_s=waiting / (per_s * active) if per_s else 0.0,
                slots_min=config.least,
                slots_max=config.most,
            )
        return operators

    def input_rate(self) -> float:
        """Return the rows per second that were read from the source; see `Probe.input_rate`."""
        steps, length_s, _ = self._recent()
        counted = steps if len(steps) < _TWO else steps[1:]
        over_s = length_s if len(steps) < _TWO else steps[-1].began_s - steps[0].began_s
        first = self._entering()
        arrived = sum(r.arrived for s in counted for r in s.replicas if r.stage in first)
        return arrived / max(over_s, _LEAST_S)

    def hosts(self, seconds: float) -> dict[str, HostTime]:
        """Return by host how long replicas' tasks ran within the last `seconds`."""
        with self._lock:
            since_s = time.monotonic() - seconds
            return summed([step.hosts for step in self._steps if step.ended_s > since_s])

    def _entering(self) -> list[str]:
        """Return the stages that read the source."""
        assert self._work is not None
        return [stage.id for stage in self._work.pipeline.sources]

    def _recent(self) -> tuple[list[_PoolStep], float, bool]:
        """Return the steps of the window, its length in seconds, and whether the query is idle."""
        with self._lock:
            now_s = time.monotonic()
            steps = [step for step in self._steps if step.ended_s > now_s - self._window_s]
            length_s = min(self._window_s, now_s - self._since_s)
            return steps, max(length_s, _LEAST_S), self._idle

    def _value(self, intent: Intent, steps: Sequence[_PoolStep], length_s: float) -> float:
        assert self._work is not None
        if intent.metric is Metric.JUICE:
            return job_juice(self._flows(steps))
        if intent.metric is Metric.THROUGHPUT:
            first = self._entering()
            return sum(r.served for s in steps for r in s.replicas if r.stage in first) / length_s
        last = self._work.pipeline.last
        leaving = [[r for r in s.replicas if r.stage in last] for s in steps]
        merged = histogram.merge(r.histogram for step in leaving for r in step)
        count = histogram.completed(merged)
        if count == 0:
            return 0.0
        # Mean time from the end of the stages' work until the sink had a row's step.
        weights = [sum(n for r in step for _, n in r.histogram) for step in leaving]
        sink_s = sum(s.sink_s * n for s, n in zip(steps, weights, strict=True)) / sum(weights)
        if intent.percentile is not None:
            return (histogram.percentile_ms(merged, intent.percentile / 100) or 0.0) / 1e3 + sink_s
        total_ms = sum(r.latency_sum_ms for step in leaving for r in step)
        return total_ms / count / 1e3 + sink_s

    def _flows(self, steps: Sequence[_PoolStep]) -> list[Flow]:
        """Return the flow along each edge of the graph of stages.

        The rows that a stage served are divided among its parents in proportion to the rows they sent.
        """
        assert self._work is not None
        stages = [stage.id for stage in self._work.pipeline.stages]
        with self._lock:
            grown = self._behind[-1][1] - self._behind[0][1] if self._behind else 0.0
        flows = []
        for stage in stages:
            replicas = [r for s in steps for r in s.replicas if r.stage == stage]
            came: Counter[int] = Counter()
            for replica in replicas:
                came.update(replica.origins)
            if stage in self._entering():
                came[_SOURCE] += 0
            arrived, served = sum(came.values()), sum(r.served for r in replicas)
            waiting = float(steps[-1].waiting[stage]) if steps else 0.0
            for origin, sent in came.items():
                more = grown if origin == _SOURCE else 0.0
                part = sent / arrived if arrived else 1.0 / len(came)
                parent = "source" if origin == _SOURCE else stages[origin]
                flows.append(Flow(parent, stage, max(0.0, sent + more), served * part, waiting))
        return flows


def _times(reports: Sequence[ReplicaReport]) -> dict[str, HostTime]:
    """Return by host how long the replicas of a step ran."""
    ran = [(ANYWHERE, None) if r.ran is None else (r.ran.host, r.ran.load) for r in reports]
    return summed(
        [{host: HostTime(r.useful_s, load)} for r, (host, load) in zip(reports, ran, strict=True)]
    )
