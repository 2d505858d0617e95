"""Writes the journal of a query of pools, with replicas in the place of slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.checkpoint.manifest import Manifest
from headgate.control.pools.replicas import Interval, OperatorInterval, ReplicaDecision
from headgate.journal import histogram
from headgate.journal.parts import Observed, OperatorInfo, SlotStats, Wish
from headgate.journal.schema import Applied, AssignmentChange, Batch, Decided, Start
from headgate.spark.job.pools import PoolState
from headgate.spark.job.reports import ReplicaReport
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.record import StepRecorder, latency_of, waiting_bytes

_KIND = "rescale"
"""Kind of every decision about replicas: their number changes, and no key group moves."""


class PoolRecorder(StepRecorder):
    """Writes the journal of a query of pools.

    `policy`: name of the policy.
    """

    def __init__(self, path: Path, policy: str, *, texts: bool = False) -> None:
        super().__init__(path, texts=texts)
        self._policy = policy
        self._pending: dict[str, tuple[int, float]] = {}
        self._dropped: Mapping[str, int] = {}
        self._entering: Sequence[str] = ()
        self._leaving: Sequence[str] = ()

    def begin_with(self, entering: Sequence[str], leaving: Sequence[str]) -> None:
        """Set the stages that read the source, and the stages whose output the sink gets.

        Without this call they are the first stage and the last stage.
        """
        self._entering, self._leaving = entering, leaving

    def started(
        self,
        uuid: str,
        name: str,
        states: Mapping[str, PoolState],
        latest: Manifest | None,
        parameters: dict[str, Any],
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        """Write that the query started, and from which manifest.

        `uuid`: identity of the checkpoint. `dropped`: rows dropped before, by reason.
        """
        self._dropped = dropped or {}
        stages = tuple(
            OperatorInfo(stage, f"stateless stage on a pool, grouping {state.grouping}")
            for stage, state in states.items()
        )
        slots = _most(states)
        self.begin(Start(uuid, name, 0, slots, parameters=parameters, operators=stages), latest)

    def resized(self, step: int, stage: str, before: int, after: int, by: str, reason: str) -> None:
        """Write that a stage has another number of active replicas from batch `step` on."""
        self.write(AssignmentChange(step, 0, before, after, 0, 0, by, reason, stage))

    def decided(self, now_s: float, interval: Interval, decision: ReplicaDecision) -> None:
        """Write a decision of the policy, and its observation."""
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
        self.write(Decided(self._policy, rule, decision.reason, True, wishes, observed, numbers))

    def batch(
        self,
        outcome: Outcome[ReplicaReport],
        states: Mapping[str, PoolState],
        lanes: Sequence[int],
        now_s: float,
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        """Write a committed batch, and that earlier decisions are in force.

        Parameters
        ----------
        states : mapping of str to PoolState    By stage, from the source upwards.
        lanes : sequence of int    The replica of each task of the first stage.
        now_s : float    The clock at the end of the batch.
        dropped : mapping of str to int, optional
            Rows dropped since the query's first start, by reason.
        """
        for stage, (wanted, decided_s) in self._pending.items():
            took = round((now_s - decided_s) * 1e3, 3)
            self.write(Applied(stage, _KIND, wanted, took))
        self._pending = {}
        manifest = outcome.manifest
        first, last = self._entering or [next(iter(states))], self._leaving or [list(states)[-1]]
        entering = [report for report in outcome.reports if report.operator in first]
        leaving = [report for report in outcome.reports if report.operator in last]
        of_first = [report for report in entering if report.operator == first[0]]
        event = Batch(
            step=manifest.step,
            spark_batch=manifest.spark_batch,
            epoch=0,
            slots=_most(states),
            duration_ms=round(sum(outcome.phases_ms.values()), 3),
            phases_ms={name: round(ms, 3) for name, ms in outcome.phases_ms.items()},
            arrived=sum(report.arrived for report in entering),
            served=sum(report.served for report in entering),
            emitted=outcome.emitted,
            late=0,
            backlog=sum(sum(state.queued()) for state in states.values()),
            backlog_bytes=waiting_bytes(manifest),
            latency_ms=latency_of(leaving),
            histogram=histogram.merge(report.histogram for report in leaving),
            slot_stats=_slot_stats(states[first[0]], of_first, lanes),
            attempts=outcome.attempts,
            dropped=self._newly_dropped(dropped or {}),
        )
        self.progress.add(event, [], emitted=event.emitted)
        self.write(event)

    def _newly_dropped(self, dropped: Mapping[str, int]) -> dict[str, int]:
        """Return the number of rows dropped since the batch before, by reason."""
        before, self._dropped = self._dropped, dict(dropped)
        new = {reason: rows - before.get(reason, 0) for reason, rows in dropped.items()}
        return {reason: rows for reason, rows in new.items() if rows}


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
