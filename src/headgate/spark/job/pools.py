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
"""Stands for the source where a stage's number is expected."""

TOO_OLD, QUEUE_FULL = "too_old", "queue_full"
"""Reasons for which rows are dropped."""

_PATTERN_ROWS = 512
"""The longest sequence of replicas that a batch's plan carries. Chosen, not tuned."""

_GOLDEN = 0.618


def stride(count: int, replicas: int) -> int:
    """Return the distance between the starts of two partitions in a sequence of `count` replicas.

    It is about the golden section of `count`, so that any number of partitions begins spread over the
    sequence, and it has no divisor in common with `count` and `replicas`. With one common start, a batch
    of many small partitions would go to the first replicas alone.
    """
    return next(n for n in itertools.count(round(_GOLDEN * count)) if gcd(n, count * replicas) == 1)


@dataclass(frozen=True)
class PoolConfig:
    """Holds the settings of pools on Spark."""

    least: int
    most: int
    start: int
    """`least`, `most`, `start`: active replicas of each stage; `most` is the pool's size."""
    interval_s: float = 10.0
    """td: time between two decisions, rounded up to whole batches."""
    box_s: float | None = None
    """Time a replica may serve per batch; further rows wait with the replica. None serves all."""
    replica_rate: float | None = None
    """Experiment: rows that a replica serves per second of wall time."""
    restart_s: float = 5.0
    """Time that the job stands still after a decision of a policy that restarts the job."""
    attempts: int = 4
    """Executions of a batch before the query fails."""
    groupings: Groupings = field(default_factory=Groupings)
    """Names how rows are distributed over a stage's replicas."""
    timeout_s: float | None = None
    """t_out: a replica drops rows that are older when their turn comes; None drops none."""
    queue_max: int | None = None
    """q_size: rows that may wait at a stage; further rows are dropped. None is no bound."""


@dataclass
class PoolState:
    """Holds one stage's pool."""

    pool: ReplicaPool
    backlog: dict[int, list[Segment]] = field(default_factory=dict)
    """Waiting rows of each replica, active or not, oldest first."""
    received: Counter[int] = field(default_factory=Counter)
    """Rows that came since the interval began, by the number of the stage they came from."""
    processed: float = 0.0
    useful_s: float = 0.0
    """`processed`, `useful_s`: rows served, and time in the user's function, since the interval began."""
    event: ServiceTimeEstimate | None = None
    """Time per row; None before the first measurement."""
    grouping: str = DEFAULT
    """Names how rows are distributed over replicas; see `headgate.control.pools.groupings`."""
    speeds: dict[int, ServiceTimeEstimate] = field(default_factory=dict)
    """Time per row of each replica that has served rows."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows dropped since the query's first start, by reason: `TOO_OLD` or
    `QUEUE_FULL`."""
    _expected: int = 0
    _cursor: int = 0
    _done: Counter[int] = field(default_factory=Counter)
    _given: Counter[int] = field(default_factory=Counter)
    _used: dict[int, float] = field(default_factory=dict)

    @classmethod
    def fresh(cls, config: PoolConfig) -> PoolState:
        """Return the pool of a query's first start."""
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
        """The replicas with a task in the next batch: active replicas, and replicas with waiting rows."""
        return [j for j, active in enumerate(self.pool.active) if active or self.backlog.get(j)]

    def queued(self) -> list[int]:
        """Return the rows that wait at each replica."""
        return [
            sum(rows for _, _, rows in self.backlog.get(j, ()))
            for j in range(len(self.pool.active))
        ]

    def resize(self, wanted: int) -> None:
        """Have `wanted` replicas active from the next batch on; the others serve their waiting rows."""
        self.pool = self.pool.resized(wanted, self.queued())

    def forget(self) -> int:
        """Drop waiting rows, as a restart does; return their number."""
        lost = sum(self.queued())
        self.backlog.clear()
        return lost

    def order(self, config: PoolConfig, rows: int | None = None) -> list[int]:
        """Return the lane of each row of the next batch, as indices into `lanes`.

        For the grouping ``shuffle`` the result is the lanes of all active replicas.

        `rows`: rows of the batch; None if unknown, which stands for the rows of the last batch.

        References
        ----------
        PSPS IV-A, Algorithm 1, for all rows at once. Differs: except for ``as-printed``, the load is
        the rows that wait at a replica now, not the rows of the last interval, and starts anew in
        each batch. The result has at most `_PATTERN_ROWS` entries; longer batches repeat it.
        """
        active, lanes = self.active, self.lanes
        expected = max(self._expected if rows is None else rows, len(active))
        chosen = self._chosen(config, expected, min(expected, _PATTERN_ROWS))
        self._cursor += 1
        lane_of = {replica: lane for lane, replica in enumerate(lanes)}
        return [lane_of[active[j]] for j in chosen.tolist()]

    def _chosen(self, config: PoolConfig, expected: int, count: int) -> I64:
        """Return a sequence of `count` active replicas, as indices into `active`, for `expected` rows."""
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
        """Return the time per row of each active replica; a new replica gets the mean of the others."""
        if config.replica_rate is not None or not self.speeds:
            return np.ones(len(self.active))
        usual = float(np.mean([speed.event_s for speed in self.speeds.values()]))
        known = [self.speeds.get(j) for j in self.active]
        return np.array([usual if speed is None else speed.event_s for speed in known])

    def quotas(self, config: PoolConfig, elapsed_s: float) -> list[int | None]:
        """Return the quota of each lane in rows; None for all rows."""
        if config.replica_rate is None:
            return [None] * len(self.lanes)
        return [timed_quota(config.replica_rate, elapsed_s)] * len(self.lanes)

    def apply(self, reports: Sequence[ReplicaReport], lanes: Sequence[int]) -> None:
        """Take over the reports of a committed batch; `lanes` are the lanes of that batch."""
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
        """Drop the newest waiting rows of a batch, until at most `most` rows wait.

        Must be called right after `apply`. Each replica drops the same share of the batch's rows; rows
        of earlier batches stay.

        References
        ----------
        PSPS V-B, q_size. Open in the paper: one bound for all replicas of an operator. Differs: the
        bound is applied when a batch is over, so rows that are served in their batch never count.
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

        `parents`: the stages that this stage reads, by number; empty if it reads the source.
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
        # PSPS equation 5: the loads with which the next interval begins
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
