"""Keeps the pool of one stage between two batches: active replicas, waiting rows, measurements."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np

from headgate.control.estimators.grouping import (
    F64,
    I64,
    least_work,
    load_aware,
    round_robin,
    utilisation,
)
from headgate.control.estimators.service_time import ServiceTimeEstimate
from headgate.control.pools.groupings import DEFAULT, Groupings
from headgate.control.pools.replicas import OperatorInterval, ReplicaPool
from headgate.operators.quota import timed_quota
from headgate.spark.job.reports import ReplicaReport

Segment = list[Any]
"""[file in the checkpoint's backlog, first row, rows]."""

SOURCE = -1
"""The number of what is no stage: where rows come from that the source brings."""

TOO_OLD, QUEUE_FULL = "too_old", "queue_full"
"""Why rows are dropped."""

_PATTERN_ROWS = 512
"""The longest order of replicas that a batch's plan carries. Chosen, not tuned."""

_GOLDEN = 0.618


def stride(count: int, replicas: int) -> int:
    """Return how far apart in an order of `count` entries the partitions of a batch begin.

    About the golden section, so that any number of partitions begins all over the order, and without a
    divisor in common with `count` and `replicas`: where all began alike, a batch of many small
    partitions would go to the first replicas alone.
    """
    return next(n for n in itertools.count(round(_GOLDEN * count)) if gcd(n, count * replicas) == 1)


@dataclass(frozen=True)
class PoolConfig:
    """Holds the settings of pools on Spark."""

    least: int
    most: int
    start: int
    """`least`, `most`, `start`: active replicas of each stage; `most` is the pool."""
    interval_s: float = 10.0
    """td: time between two decisions, rounded up to whole batches."""
    box_s: float | None = None
    """Time a replica may serve per batch; what exceeds it waits with this replica. None serves all."""
    replica_rate: float | None = None
    """Experiment: rows that a replica serves per second of wall time."""
    restart_s: float = 5.0
    """How long a policy that restarts the job stops it."""
    attempts: int = 4
    """Executions of a batch before the query fails."""
    groupings: Groupings = field(default_factory=Groupings)
    """Which replica of a stage a row goes to."""
    timeout_s: float | None = None
    """t_out: a row that is older when its turn comes is dropped; None drops none."""
    queue_max: int | None = None
    """q_size: rows that may wait at a stage; what comes beyond is dropped. None is no bound."""


@dataclass
class PoolState:
    """One stage's pool."""

    pool: ReplicaPool
    backlog: dict[int, list[Segment]] = field(default_factory=dict)
    """What each replica holds, oldest first; also of inactive ones."""
    received: Counter[int] = field(default_factory=Counter)
    """Rows that came since the interval began, by the number of the stage they came from."""
    processed: float = 0.0
    useful_s: float = 0.0
    """`processed`, `useful_s`: since the interval began."""
    event: ServiceTimeEstimate | None = None
    """None until something was measured."""
    grouping: str = DEFAULT
    """Which replica a row goes to; see `headgate.control.pools.groupings`."""
    speeds: dict[int, ServiceTimeEstimate] = field(default_factory=dict)
    """Time of a row at each replica that has served some, batch by batch."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows dropped since the query's first start: too old (`TOO_OLD`), or come to a full queue
    (`QUEUE_FULL`)."""
    _expected: int = 0
    _cursor: int = 0
    _done: Counter[int] = field(default_factory=Counter)
    _given: Counter[int] = field(default_factory=Counter)
    _used: dict[int, float] = field(default_factory=dict)

    @classmethod
    def fresh(cls, config: PoolConfig) -> PoolState:
        """Return a pool that has seen nothing."""
        return cls(ReplicaPool(tuple(j < config.start for j in range(config.most))))

    @classmethod
    def recovered(cls, config: PoolConfig, facts: Mapping[str, Any]) -> PoolState:
        """Return the pool that a manifest describes; its size may have changed."""
        backlog = {int(j): [list(s) for s in segments] for j, segments in facts["backlog"].items()}
        size = max(config.most, max(backlog, default=-1) + 1)
        was = set(facts["active"])
        active = [j in was for j in range(size)]
        if not any(active):
            active[0] = True
        pool = ReplicaPool(tuple(active))
        state = cls(pool, backlog, dropped=Counter(facts.get("dropped", {})))
        state.resize(min(max(len(was), config.least), config.most))
        return state

    def facts(self) -> dict[str, Any]:
        """Return the pool's entries in the manifest."""
        return {
            "active": self.active,
            "backlog": {str(j): segments for j, segments in self.backlog.items() if segments},
            "dropped": dict(self.dropped),
        }

    @property
    def active(self) -> list[int]:
        """The active replicas, ascending."""
        return [j for j, active in enumerate(self.pool.active) if active]

    @property
    def lanes(self) -> list[int]:
        """The replicas that have a task in the next batch: active ones, and those that hold rows."""
        return [j for j, active in enumerate(self.pool.active) if active or self.backlog.get(j)]

    def queued(self) -> list[int]:
        """Return the rows that wait at each replica."""
        return [
            sum(rows for _, _, rows in self.backlog.get(j, ()))
            for j in range(len(self.pool.active))
        ]

    def resize(self, wanted: int) -> None:
        """Have `wanted` replicas active from the next batch on; the others serve what they hold."""
        self.pool = self.pool.resized(wanted, self.queued())

    def forget(self) -> int:
        """Drop waiting rows, as a restart does; return their number."""
        lost = sum(self.queued())
        self.backlog.clear()
        return lost

    def order(self, config: PoolConfig, rows: int | None = None) -> list[int]:
        """Return the lanes that the rows of the next batch go to, one after another.

        Shuffled rows have no order: for them it is the lanes of all active replicas.

        `rows`: rows of the batch; None where that is not known, then as many as in the last one.

        References
        ----------
        PSPS IV-A, Algorithm 1, for all rows at once. Differs: unless it is ``as-printed``, the load is
        what waits at a replica now, not what it processed in the last interval, and starts anew in
        each batch. An order of at most `_PATTERN_ROWS` stands for longer batches, and repeats.
        """
        active, lanes = self.active, self.lanes
        expected = max(self._expected if rows is None else rows, len(active))
        chosen = self._chosen(config, expected, min(expected, _PATTERN_ROWS))
        self._cursor += 1
        lane_of = {replica: lane for lane, replica in enumerate(lanes)}
        return [lane_of[active[j]] for j in chosen.tolist()]

    def _chosen(self, config: PoolConfig, expected: int, count: int) -> I64:
        """Return `count` of the active replicas, in the order in which they take `expected` rows."""
        active = self.active
        if self.grouping == "shuffle":
            return np.arange(len(active), dtype=np.int64)
        waiting = np.array(self.queued(), dtype=np.float64)[active]
        cursor = self._cursor % len(active)
        if self.grouping == "least-work":
            row_s = self._row_s(config)
            return least_work(count, waiting * row_s, row_s * (expected / count)).replica
        if self.grouping == "load-aware" and self.event is not None:
            used = self.event.event_s / config.interval_s
            return load_aware(count, waiting * used, used * expected / count, cursor).replica
        if self.grouping == "as-printed" and self.event is not None:
            used = self.event.event_s / config.interval_s
            load = np.array([self._used.get(j, 0.0) + used * self._given[j] for j in active])
            return load_aware(count, load, used * expected / count, cursor).replica
        return round_robin(count, len(active), cursor).replica

    def _row_s(self, config: PoolConfig) -> F64:
        """Return the time per row of each active replica; the others' mean for a new replica."""
        if config.replica_rate is not None or not self.speeds:
            return np.ones(len(self.active))
        usual = float(np.mean([speed.event_s for speed in self.speeds.values()]))
        known = [self.speeds.get(j) for j in self.active]
        return np.array([usual if speed is None else speed.event_s for speed in known])

    def quotas(self, config: PoolConfig, elapsed_s: float) -> list[int | None]:
        """Return how many rows the replica of each lane may serve; None for all."""
        if config.replica_rate is None:
            return [None] * len(self.lanes)
        return [timed_quota(config.replica_rate, elapsed_s)] * len(self.lanes)

    def apply(self, reports: Sequence[ReplicaReport], lanes: Sequence[int]) -> None:
        """Take over what a committed batch did; `lanes` as they were in it."""
        for report in reports:
            replica = lanes[report.lane]
            self._advance(replica, report.taken)
            if report.waiting is not None:
                segment = [report.waiting.name, 0, report.waiting_rows]
                self.backlog.setdefault(replica, []).append(segment)
            if report.served and report.rows_s > 0.0:
                fresh = ServiceTimeEstimate(report.rows_s / report.served)
                self.speeds.setdefault(replica, fresh).observe(report.served, report.rows_s)
        self._expected = sum(report.arrived for report in reports)
        for report in reports:
            self.received.update(report.origins or {SOURCE: report.arrived})
        self.processed += sum(report.served for report in reports)
        self._done.update({lanes[report.lane]: report.served for report in reports})
        self._given.update({lanes[report.lane]: report.arrived for report in reports})
        self.useful_s += sum(report.useful_s for report in reports)
        self.dropped[TOO_OLD] += sum(report.too_old for report in reports)

    def refuse(self, most: int, reports: Sequence[ReplicaReport], lanes: Sequence[int]) -> None:
        """Drop of what a batch left waiting the newest rows, until no more than `most` wait.

        To be called right after `apply`. Each replica gives up the same share of what came to it;
        what has waited for longer stays.

        References
        ----------
        PSPS V-B, q_size. Open there: one bound for all replicas of an operator. Differs: a queue is
        looked at when a batch is over, so that what is served in the batch it comes with never waited.
        """
        came = {lanes[r.lane]: r.waiting_rows for r in reports if r.waiting is not None}
        total = sum(came.values())
        excess = min(sum(self.queued()) - most, total)
        if excess <= 0:
            return
        so_far = gone = 0
        for replica, rows in came.items():
            so_far += rows
            fewer = excess * so_far // total - gone
            gone += fewer
            segments = self.backlog[replica]
            segments[-1] = [*segments[-1][:2], rows - fewer]
            if fewer == rows:
                segments.pop()
            if not segments:
                del self.backlog[replica]
        self.dropped[QUEUE_FULL] += excess

    def _advance(self, replica: int, rows: int) -> None:
        segments = self.backlog.get(replica, [])
        while rows:
            name, start, count = segments[0]
            served = min(rows, count)
            rows -= served
            segments[:1] = [[name, start + served, count - served]] if served < count else []
        if not segments:
            self.backlog.pop(replica, None)

    def interval(self, config: PoolConfig, parents: Mapping[int, str]) -> OperatorInterval | None:
        """Return the stage's work since the last call; None while the time per row is unknown.

        `parents`: the stages that it reads, by their numbers; empty for one that reads the source.
        """
        if config.replica_rate is not None:
            self.event = ServiceTimeEstimate(1.0 / config.replica_rate)
        elif self.event is not None:
            self.event.observe(self.processed, self.useful_s)
        elif self.processed and self.useful_s > 0.0:
            self.event = ServiceTimeEstimate(self.useful_s / self.processed)
        received, processed, done = self.received, self.processed, self._done
        self.received, self._done, self._given = Counter(), Counter(), Counter()
        self.processed = self.useful_s = 0.0
        if self.event is None:
            return None
        counts = np.array([float(done[j]) for j in self.active])
        # equation 5, from which the interval that begins starts
        loads = utilisation(counts, self.event.event_s, config.interval_s)
        self._used = dict(zip(self.active, loads.tolist(), strict=True))
        return OperatorInterval(
            active=len(self.active),
            pool=config.most,
            least=config.least,
            event_s=self.event.event_s,
            processed=processed,
            received={name: float(received[n]) for n, name in parents.items()},
            from_source=0.0 if parents else float(received.total()),
            queued=float(sum(self.queued())),
        )
