"""Measures one query for its fleet: its committed steps over the last minute."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headgate.control.fleet.juice import Flow, job_juice
from headgate.control.fleet.view import FleetOperator, operator_capacity
from headgate.core.utility import Intent, Metric
from headgate.journal import histogram
from headgate.journal.parts import SloState
from headgate.spark.fleet.flows import Graph, Read, Span, flows_of, told
from headgate.spark.fleet.hosts import HostTime, beside_s, summed, times_of
from headgate.spark.fleet.lag import SourceLag
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.origins import Finished, sparse
from headgate.spark.job.ports import Observer
from headgate.spark.job.reports import Report
from headgate.spark.step.live import LiveJob

_TWO = 2
_LEAST_S = 1e-3


@dataclass(frozen=True)
class _Step:
    """Holds the measurements of one committed step."""

    began_s: float
    """On the engine's clock; for differences only."""
    ended_s: float
    """On the monotonic clock."""
    read: Read
    """Counts of the records that the step read and put out."""
    reports: tuple[Report, ...]
    """Reports of all operators, without their output."""
    results: list[Finished]
    """Results of the last operators, if the results' age differs from that of the step's records."""
    sink_s: float
    """Time from the end of the slots' work until the sink had the step's rows."""
    hosts: dict[str, HostTime]
    """Time that slot tasks ran or waited for a core, by host."""
    waiting: dict[str, int]
    """Backlog of each operator after the step, rows."""
    rate_per_s: dict[str, float]
    """Records per second that each operator's slots serve together, if known."""


class Probe:
    """Measures the steps of one query, and passes all calls on to the query's own observer.

    The batches' thread reports steps, and the fleet's thread asks for values.

    `window_s`: length of the window over which it measures, in seconds: Henge's sliding minute.
    `slots_min`: the fewest slots that the user allows for an operator.
    """

    def __init__(self, window_s: float, slots_min: int) -> None:
        self._window_s = window_s
        self._slots_min = slots_min
        self._lock = threading.Lock()
        self._steps: deque[_Step] = deque()
        self._since_s = time.monotonic()
        self._changed_s: dict[str, float] = {}
        self._idle = False
        self._inner: Observer | None = None
        self._job: LiveJob | None = None
        self._graph = Graph((), {})
        self._origins = self._graph.origins()
        self._lag = SourceLag()
        self._read_s: float
        self._beside_s = math.inf
        self._unserved: dict[tuple[str, int], int] = {}
        self._due: _Step | None = None

    def around(self, inner: Observer | None, job: LiveJob) -> Probe:
        """Begin to observe a query whose own observer is `inner`."""
        self._inner, self._job = inner, job
        self._since_s = self._read_s = time.monotonic()
        self._graph = Graph.of(job.query.operators)
        self._origins = self._graph.origins()
        return self

    # -- the port of an observer ------------------------------------------------------------------

    def assigned(self, operator: str, request: AssignmentRequest) -> None:
        """Record that the next step runs under a new assignment; see `Observer`."""
        with self._lock:
            # Measurements under another assignment do not hold for the present slots.
            self._changed_s[operator] = time.monotonic()
        if self._inner is not None:
            self._inner.assigned(operator, request)

    def committed(self, reports: list[Report], started_ms: float, horizon_ms: float) -> None:
        """Record a committed step."""
        assert self._job is not None
        batch = self._job.recorder.last
        phases_s = {} if batch is None else {k: ms / 1e3 for k, ms in batch.phases_ms.items()}
        after_s = phases_s.get("manifest", 0.0) + phases_s.get("sink", 0.0)
        slots_s = phases_s.get("slots", 0.0)
        self._beside_s = min(self._beside_s, beside_s(reports, slots_s))
        hosts = times_of(reports, slots_s, self._beside_s)
        # Read here, in the thread that changes the states.
        states = self._job.states.items()
        waiting = {name: state.waiting_rows() for name, state in states}
        rates = {name: sum(state.rate_per_s.values()) for name, state in states}
        # Without this, outputs would stay in memory for the whole window.
        slim = tuple(
            replace(r, changelog=None, output=None, waiting=None, late=None) for r in reports
        )
        now_s, read_s = time.monotonic(), _monotonic_s(horizon_ms)
        number = -1 if batch is None else batch.spark_batch
        read = Read(number, read_s, now_s, told(reports))
        put_out, last = self._origins.step(reports), self._origins.last
        results = [
            result for name in last if self._origins.judges(name) for result in put_out[name]
        ]
        with self._lock:
            for name, result in read.operators.items():
                for place, new in enumerate(result.inputs):
                    left = self._unserved.get((name, place), 0) + new.arrived - new.executed
                    self._unserved[name, place] = max(0, left)
            self._idle = False
            self._read_s = read_s
            self._steps.append(
                _Step(started_ms / 1e3, now_s, read, slim, results, after_s, hosts, waiting, rates)
            )
            self._due = self._steps[-1] if results else self._due
            # one step from before the window stays, since `_flows` needs its counts as the start
            while len(self._steps) > 1 and self._steps[1].ended_s < now_s - self._window_s:
                self._steps.popleft()
        if self._inner is not None:
            self._inner.committed(reports, started_ms, horizon_ms)

    def quiet(self, horizon_ms: float) -> None:
        """Record that the query has nothing to do."""
        with self._lock:
            self._idle = True
            self._read_s = _monotonic_s(horizon_ms)
        if self._inner is not None:
            self._inner.quiet(horizon_ms)

    def lost(self, operator: str, slot: int) -> None:
        """Pass on that a slot was lost."""
        if self._inner is not None:
            self._inner.lost(operator, slot)

    def bound_ms(self, operator: str) -> float:
        """Return the bound that the query's own observer has; 0 without an observer."""
        return 0.0 if self._inner is None else self._inner.bound_ms(operator)

    def asks_origins(self) -> bool:
        """Return True: a fleet needs origins for juice and for the age of results."""
        return True

    def state(self) -> SloState | None:
        """Return the state of the SLO from the query's own observer."""
        return None if self._inner is None else self._inner.state()

    # -- what the fleet asks ----------------------------------------------------------------------

    def note_progress(self, progress: Mapping[str, Any] | None) -> None:
        """Record Spark's newest progress, which may have the sources' newest offsets."""
        if progress is not None:
            self._lag.note(progress)

    def values(self, intents: Sequence[Intent]) -> tuple[float, ...] | None:
        """Return the measurement of each intent over the window; None without measurements.

        An idle query has latency 0 and juice 1. If a batch takes longer than the window, only the juice
        is known: it falls.
        """
        steps, length_s, idle = self._recent()
        values = [self._value(intent, steps, length_s, idle=idle) for intent in intents]
        known = [value for value in values if value is not None]
        return tuple(known) if len(known) == len(values) else None

    def operators(self) -> dict[str, FleetOperator]:
        """Return each operator's slots, and the capacity of the busiest slot."""
        job = self._job
        assert job is not None
        steps, _, _ = self._recent()
        now_s = time.monotonic()
        operators = {}
        for operator in job.query.operators:
            name, slots = operator.id, job.states[operator.id].assignment.slots
            rate = job.config.slot_rate if not operator.parents else None
            since_s = max(self._since_s, self._changed_s.get(name, 0.0), now_s - self._window_s)
            busy_s: dict[int, float] = {}
            for step in steps:
                for report in step.reports:
                    if report.operator == name and step.ended_s > since_s:
                        spent_s = report.served / rate if rate else report.useful_ms / 1e3
                        busy_s[report.slot] = busy_s.get(report.slot, 0.0) + spent_s
            waiting = steps[-1].waiting[name] if steps else 0
            known_per_s = steps[-1].rate_per_s[name] if steps else 0.0
            served_per_s = rate * slots if rate else known_per_s
            operators[name] = FleetOperator(
                slots=slots,
                capacity=operator_capacity(busy_s.values(), max(now_s - since_s, _LEAST_S)),
                backlog_s=waiting / served_per_s if served_per_s else 0.0,
                slots_min=self._slots_min,
                slots_max=job.config.slots_max,
            )
        return operators

    def input_rate(self) -> float:
        """Return the records per second that arrived at the sources, read or unread.

        A step's records arrived since the step before it began. So the first step of the window only
        marks the start, and its records do not count.
        """
        steps, length_s, _ = self._recent()
        if len(steps) < _TWO:
            first = {entrance.operator for entrance in self._graph.entrances}
            arrived = sum(r.arrived for s in steps for r in s.reports if r.operator in first)
            return arrived / length_s
        return self._flows()[1]

    def hosts(self, seconds: float) -> dict[str, HostTime]:
        """Return by host how long slot tasks were runnable within the last `seconds`."""
        with self._lock:
            since_s = time.monotonic() - seconds
            return summed([step.hosts for step in self._steps if step.ended_s > since_s])

    def _recent(self) -> tuple[list[_Step], float, bool]:
        """Return the steps of the window, its length in seconds, and whether the query is idle."""
        with self._lock:
            now_s = time.monotonic()
            steps = [step for step in self._steps if step.ended_s > now_s - self._window_s]
            length_s = min(self._window_s, now_s - self._since_s)
            # if the last look at a quiet source is long ago, a long batch may be running since
            idle = self._idle and self._read_s > now_s - self._window_s
            return steps, max(length_s, _LEAST_S), idle

    def _value(
        self, intent: Intent, steps: Sequence[_Step], length_s: float, *, idle: bool
    ) -> float | None:
        if intent.metric is Metric.JUICE:
            return 1.0 if idle and not steps else self._juice()
        if not steps and not idle:
            return None
        first = {entrance.operator for entrance in self._graph.entrances}
        entering = [r for s in steps for r in s.reports if r.operator in first]
        if intent.metric is Metric.THROUGHPUT:
            return sum(r.served for r in entering) / length_s
        if any(step.results for step in steps):
            first = self._graph.at_once()  # for the other operators, results count
            return _latency_s(intent, steps, first) or 0.0
        # no window was due: take the last results' latency, or the new records' latency if larger
        due = self._due
        last_s = None if due is None else _latency_s(intent, [due], self._graph.at_once())
        return max(last_s or 0.0, _latency_s(intent, steps, first) or 0.0)

    def _juice(self) -> float | None:
        """Return the job's juice; None before the first step."""
        with self._lock:
            if not self._steps:
                return None
        return job_juice(self._flows()[0])

    def _flows(self) -> tuple[list[Flow], float]:
        """Return the flow along each edge of the graph, and the arrivals per second."""
        with self._lock:
            steps, read_s, now_s = list(self._steps), self._read_s, time.monotonic()
        recent = [step for step in steps if step.ended_s > now_s - self._window_s] or steps[-1:]
        older = steps[: len(steps) - len(recent)]
        if not older and len(recent) > 1:
            older, recent = recent[:1], recent[1:]
        before = older[-1].read if older else None
        span = Span(before, [step.read for step in recent], read_s, now_s)
        joins = {entrance.operator for entrance in self._graph.entrances if entrance.place}
        unserved = {key: float(n) for key, n in self._unserved.items() if key[0] in joins}
        waiting = {(name, 0): float(rows) for name, rows in steps[-1].waiting.items()}
        return flows_of(self._graph, span, waiting | unserved, self._lag)


def _monotonic_s(at_ms: float) -> float:
    """Return a time of the wall clock, ms since 1970, as seconds of the monotonic clock."""
    return time.monotonic() - (time.time() - at_ms / 1e3)


def _latency_s(intent: Intent, steps: Sequence[_Step], first: Collection[str]) -> float | None:
    """Return the latency of an intent's kind, until the sink had the rows; None without rows.

    `first`: see `_aged`.
    """
    aged = [_aged(step, first) for step in steps]
    merged = histogram.merge(part for part, _ in aged)
    count = histogram.completed(merged)
    if count == 0:
        return None
    # Mean time from the end of the slots' work to the sink, weighted by the steps' outputs.
    weights = [histogram.completed(part) for part, _ in aged]
    sink_s = sum(s.sink_s * n for s, n in zip(steps, weights, strict=True)) / sum(weights)
    if intent.percentile is not None:
        return (histogram.percentile_ms(merged, intent.percentile / 100) or 0.0) / 1e3 + sink_s
    return sum(sum_ms for _, sum_ms in aged) / count / 1e3 + sink_s


def _aged(step: _Step, first: Collection[str]) -> tuple[histogram.Sparse, float]:
    """Return the ages of a step's outputs as a histogram, and their sum, in ms.

    `first`: operators whose incoming records count as outputs: their results leave in the same step, or
    no result has been due for long.
    """
    entering = [report for report in step.reports if report.operator in first]
    latencies = histogram.merge([*(r.histogram for r in entering), sparse(step.results)])
    results_ms = sum(result.latency_ms * result.count for result in step.results)
    return latencies, results_ms + sum(report.latency_sum_ms for report in entering)
