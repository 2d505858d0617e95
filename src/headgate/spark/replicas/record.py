"""What a query of pools writes down: a journal as elastic queries have it, replicas for slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.control.replicas import Interval, OperatorInterval, ReplicaDecision
from headgate.journal import histogram
from headgate.journal.schema import (
    Applied,
    AssignmentChange,
    Batch,
    Decided,
    Latency,
    Observed,
    OperatorInfo,
    Restart,
    Retry,
    SlotStats,
    Start,
    Stop,
    Wish,
)
from headgate.journal.writer import JournalWriter
from headgate.spark.replicas.pools import PoolState
from headgate.spark.replicas.task import ReplicaReport
from headgate.spark.step.progress import Progress
from headgate.spark.step.record import sentence
from headgate.state.manifest import Manifest

_KIND = "rescale"
"""What every decision about replicas is: another number, and no key group moves."""


class PoolRecorder:
    """Writes the journal beside the checkpoint.

    Parameters
    ----------
    path : path
    policy : str
        Its name.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, path: Path, policy: str) -> None:
        self.path = path
        self.progress = Progress()
        self._policy = policy
        self._writer = JournalWriter(path)
        self._pending: dict[str, tuple[int, float]] = {}

    def start(
        self,
        job: str,
        name: str,
        states: Mapping[str, PoolState],
        latest: Manifest | None,
        parameters: dict[str, Any],
    ) -> None:
        """Write that the query started, and from where."""
        stages = tuple(OperatorInfo(stage, "stateless stage on a pool") for stage in states)
        slots = _most(states)
        self._writer.write(Start(job, name, 0, slots, parameters=parameters, operators=stages))
        if latest is not None:
            self._writer.write(Restart(step=latest.step + 1, recovered_from=latest.step))

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write that an attempt failed and the batch runs again."""
        self._writer.write(Retry(step=step, attempt=attempt, error=sentence(error)))

    def resized(self, step: int, stage: str, before: int, after: int, by: str, reason: str) -> None:
        """Write that a stage has another number of active replicas from batch `step` on."""
        self._writer.write(AssignmentChange(step, 0, before, after, 0, 0, by, reason, stage))

    def decided(self, now_s: float, interval: Interval, decision: ReplicaDecision) -> None:
        """Write what the policy wants, and what it saw."""
        self._pending = {stage: (wanted, now_s) for stage, wanted in decision.active.items()}
        wishes = tuple(Wish(stage, _KIND, wanted, 0) for stage, wanted in decision.active.items())
        observed = tuple(
            _observed(stage, seen, interval.duration_s)
            for stage, seen in interval.operators.items()
        )
        rule = "restart" if decision.restart else "replicas"
        numbers: dict[str, float | None] = {
            name: round(value, 6) for name, value in decision.numbers.items()
        }
        self._writer.write(
            Decided(self._policy, rule, decision.reason, True, wishes, observed, numbers)
        )

    def batch(
        self,
        manifest: Manifest,
        states: Mapping[str, PoolState],
        reports: Mapping[str, Sequence[ReplicaReport]],
        lanes: Sequence[int],
        *,
        emitted: int,
        attempts: int,
        took_ms: float,
        now_s: float,
    ) -> None:
        """Write a committed batch, and that what was decided before is in force.

        Parameters
        ----------
        manifest : Manifest
        states, reports : mapping
            By stage, from the source upwards.
        lanes : sequence of int
            The replica of each task of the first stage.
        emitted, attempts : int
        took_ms, now_s : float
            Of the batch; the clock at its end.
        """
        for stage, (wanted, decided_s) in self._pending.items():
            took = round((now_s - decided_s) * 1e3, 3)
            self._writer.write(Applied(stage, _KIND, wanted, took))
        self._pending = {}
        first, *_, last = [next(iter(reports.values())), *reports.values()]
        duration_ms = round(took_ms, 3)
        event = Batch(
            step=manifest.step,
            spark_batch=manifest.spark_batch,
            epoch=0,
            slots=_most(states),
            duration_ms=duration_ms,
            phases_ms={"slots": duration_ms},
            arrived=sum(report.arrived for report in first),
            served=sum(report.served for report in first),
            emitted=emitted,
            late=0,
            null_keys=0,
            backlog=sum(sum(state.queued()) for state in states.values()),
            backlog_bytes=sum(
                file.length for file in manifest.files if file.name.startswith("backlog/")
            ),
            latency_ms=_latency(last),
            histogram=histogram.merge(report.histogram for report in last),
            slot_stats=_slot_stats(next(iter(states.values())), first, lanes),
            attempts=attempts,
        )
        self.progress.add(event, [], emitted=emitted)
        self._writer.write(event)

    def stop(self, reason: str, error: Exception | None) -> None:
        """Write that the query ended, and close the journal."""
        self._writer.write(Stop(reason=reason, error=None if error is None else sentence(error)))
        self._writer.close()


def _most(states: Mapping[str, PoolState]) -> int:
    return max(len(state.active) for state in states.values())


def _observed(stage: str, seen: OperatorInterval, interval_s: float) -> Observed:
    received = seen.from_source + sum(seen.received.values())
    busy = seen.processed * seen.event_s / (interval_s * seen.active)
    return Observed(
        operator=stage,
        slots=seen.active,
        latency_ms=None,
        bound_ms=None,
        floor_ms=0.0,
        arrived_per_s=round(received / interval_s, 3),
        service_per_s=round(seen.active / seen.event_s, 3),
        utilisation=round(busy, 4),
        backlog=int(seen.queued),
    )


def _latency(reports: Sequence[ReplicaReport]) -> Latency | None:
    merged = histogram.merge(report.histogram for report in reports)
    count = histogram.completed(merged)
    if count == 0:
        return None
    p50, p95, p99, most = (
        round(histogram.percentile_ms(merged, share) or 0.0, 3) for share in (0.5, 0.95, 0.99, 1.0)
    )
    mean = round(sum(report.latency_sum_ms for report in reports) / count, 3)
    return Latency(mean=mean, p50=p50, p95=p95, p99=p99, max=most)


def _slot_stats(
    state: PoolState, reports: Sequence[ReplicaReport], lanes: Sequence[int]
) -> tuple[SlotStats, ...]:
    queued = state.queued()
    return tuple(
        SlotStats(
            slot=lanes[report.lane],
            groups=0,
            served=report.served,
            backlog=queued[lanes[report.lane]],
            useful_ms=round(report.useful_s * 1e3, 3),
        )
        for report in sorted(reports, key=lambda report: report.lane)
    )
