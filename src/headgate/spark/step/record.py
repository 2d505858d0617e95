"""What a job writes down of each batch: a journal line, and the figures of `lastProgress`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headgate.core.assignment import Assignment
from headgate.journal import histogram
from headgate.journal.schema import (
    Arrivals,
    AssignmentChange,
    Batch,
    Event,
    Latency,
    OperatorInfo,
    Restart,
    Retry,
    SlotStats,
    Start,
    Stop,
)
from headgate.journal.writer import JournalWriter
from headgate.operators.build import row_bytes
from headgate.spark.job.changes import Wanted
from headgate.spark.job.reports import Report
from headgate.spark.step.progress import Progress
from headgate.spark.worker.failure import QueryFailed, told
from headgate.state.manifest import Manifest

if TYPE_CHECKING:
    from headgate.spark.step.driver import BatchDriver

_HOTTEST = 5


class Recorder:
    """Writes the journal beside the checkpoint and keeps the newest figures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = JournalWriter(path)
        self.last: Batch | None = None
        self.progress = Progress()
        self.late_records = 0

    def start(self, driver: BatchDriver, workload: str | None, parameters: dict[str, Any]) -> None:
        """Write that the query started, and from where."""
        config = driver.config
        states = driver.states.values()
        self.write(
            Start(
                job=driver.job,
                name=config.name,
                key_groups=config.key_groups,
                slots=max((s.assignment.slots for s in states), default=0),
                workload=workload,
                seed=parameters.get("seed"),
                parameters=parameters,
                operators=tuple(OperatorInfo(o.id, o.what) for o in driver.query.operators),
            )
        )
        if driver.latest is not None:
            step = driver.latest.step
            self.write(Restart(step=step + 1, recovered_from=step))
        held = [_operator_progress(driver, op.id, []) for op in driver.query.operators]
        self.progress.begin(driver.spark, driver.sink, held, counted=bool(held))

    def assignment(
        self, step: int, operator: str, before: Assignment, new: Wanted, moved_bytes: int = 0
    ) -> None:
        """Write that a new assignment takes effect."""
        after = new.assignment
        number = {old: slot for slot, old in enumerate(new.survivors) if old is not None}
        moved = sum(
            number.get(old) != slot for old, slot in zip(before.slot_of, after.slot_of, strict=True)
        )
        self.write(
            AssignmentChange(
                step=step,
                epoch=after.epoch,
                slots_before=before.slots,
                slots_after=after.slots,
                groups_moved=moved,
                bytes_moved=moved_bytes,
                by=new.by,
                reason=new.reason,
                operator=operator,
                slot_of=after.slot_of,
            )
        )

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write that an attempt failed and the batch runs again."""
        self.write(Retry(step=step, attempt=attempt, error=sentence(error)))

    def batch(
        self,
        driver: BatchDriver,
        manifest: Manifest,
        reports: list[Report],
        phases_ms: dict[str, float],
        *,
        attempts: int,
        emitted: int,
    ) -> None:
        """Write a committed batch."""
        first = {chain[0].id for chain in driver.query.chains}
        entering = [r for r in reports if r.operator in first]
        merged = histogram.merge(r.histogram for r in entering)
        waiting = sum(s.waiting_rows() for s in driver.states.values())
        served_by_group: dict[int, int] = {}
        for report in entering:
            for group, count in report.served_by_group.items():
                served_by_group[group] = served_by_group.get(group, 0) + count
        hottest = sorted(served_by_group.items(), key=lambda pair: (-pair[1], pair[0]))
        changelog_bytes = sum(r.changelog.length for r in reports if r.changelog)
        event = Batch(
            step=manifest.step,
            spark_batch=manifest.spark_batch,
            epoch=manifest.epoch,
            slots=max(s.assignment.slots for s in driver.states.values()),
            duration_ms=round(sum(phases_ms.values()), 3),
            phases_ms={name: round(ms, 3) for name, ms in phases_ms.items()},
            arrived=sum(r.arrived for r in entering),
            served=sum(r.served for r in entering),
            emitted=emitted,
            late=sum(r.late_records for r in reports),
            null_keys=0,
            backlog=waiting,
            backlog_bytes=sum(f.length for f in manifest.files if f.name.startswith("backlog/")),
            latency_ms=_latency(entering, merged),
            histogram=merged,
            watermark_us=manifest.watermarks["evict_us"] or None,
            slot_stats=_slot_stats(driver, entering),
            hottest=tuple(hottest[:_HOTTEST]),
            arrivals=_arrivals(entering),
            state_rows=sum(sum(s.rows) for s in driver.states.values()),
            state_bytes=sum(_entry_bytes(driver, op.id) for op in driver.query.operators),
            changelog_bytes=changelog_bytes,
            attempts=attempts,
            watermark_holder=_holder(entering, manifest.watermarks["evict_us"]),
            slo=driver.observer.state() if driver.observer is not None else None,
        )
        self.late_records += event.late
        operators = [_operator_progress(driver, op.id, reports) for op in driver.query.operators]
        self.progress.add(event, operators, emitted=emitted)
        self.last = event
        self.write(event)

    def stateless(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Write a batch of a query without operators; Catalyst counted nothing for us."""
        event = Batch(
            step=batch_id,
            spark_batch=batch_id,
            epoch=0,
            slots=0,
            duration_ms=round(sum(phases_ms.values()), 3),
            phases_ms={name: round(ms, 3) for name, ms in phases_ms.items()},
            arrived=0,
            served=0,
            emitted=0,
            late=0,
            null_keys=0,
            backlog=0,
            backlog_bytes=0,
        )
        self.progress.add(event, [], emitted=None)
        self.write(event)

    def stop(self, reason: str, error: Exception | None = None) -> None:
        """Write that the query ended, and close the journal."""
        self.write(Stop(reason=reason, error=None if error is None else sentence(error)))
        self._writer.close()

    def write(self, event: Event) -> None:
        """Append an event to the journal."""
        self._writer.write(event)


def _latency(reports: list[Report], merged: histogram.Sparse) -> Latency | None:
    count = histogram.completed(merged)
    if count == 0:
        return None
    p50, p95, p99 = (round(histogram.percentile_ms(merged, q) or 0.0, 3) for q in (0.5, 0.95, 0.99))
    return Latency(
        mean=round(sum(r.latency_sum_ms for r in reports) / count, 3),
        p50=p50,
        p95=p95,
        p99=p99,
        max=round(max(r.latency_max_ms for r in reports), 3),
    )


def _arrivals(entering: list[Report]) -> tuple[Arrivals, ...]:
    """Return what arrived by key group, of the operators that count it."""
    found = []
    for name in dict.fromkeys(r.operator for r in entering):
        counted = [r.counts.arrivals for r in entering if r.operator == name and r.counts]
        if sum(len(new.group) for new in counted):
            groups = np.concatenate([new.group for new in counted])
            records = np.bincount(groups, np.concatenate([new.records for new in counted]))
            some = np.flatnonzero(records)
            found.append(Arrivals(name, some.tolist(), records[some].astype(np.int64).tolist()))
    return tuple(found)


def _slot_stats(driver: BatchDriver, entering: list[Report]) -> tuple[SlotStats, ...]:
    stats = []
    for report in sorted(entering, key=lambda r: (r.operator, r.slot)):
        state = driver.states[report.operator]
        groups = state.assignment.groups_of(report.slot)
        backlog = sum(s[2] for g in groups for s in state.backlog.get(g, ()))
        latency = _latency([report], report.histogram)
        stats.append(
            SlotStats(
                slot=report.slot,
                groups=len(groups),
                served=report.served,
                backlog=backlog,
                useful_ms=round(report.useful_ms, 3),
                latency_mean_ms=latency.mean if latency else None,
                latency_p95_ms=latency.p95 if latency else None,
            )
        )
    return tuple(stats)


def _holder(entering: list[Report], watermark_us: int) -> int | None:
    behind = [r for r in entering if r.holds_us < watermark_us]
    return min(behind, key=lambda r: r.holds_us).slot if behind else None


def _operator_progress(driver: BatchDriver, name: str, reports: list[Report]) -> dict[str, Any]:
    """Return an operator's figures in the form of Spark's ``stateOperators``."""
    mine = [r for r in reports if r.operator == name]
    state = driver.states[name]
    return {
        "operatorName": name,
        "numRowsTotal": sum(state.rows),
        "numRowsUpdated": sum(r.touched_rows for r in mine),
        "allUpdatesTimeMs": int(sum(r.useful_ms for r in mine)),
        "numRowsRemoved": 0,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": int(sum(r.phases_ms.get("log", 0.0) for r in mine)),
        "memoryUsedBytes": _entry_bytes(driver, name),
        "numRowsDroppedByWatermark": sum(r.late_records for r in mine),
        "numShufflePartitions": state.assignment.slots,
        "numStateStoreInstances": state.assignment.key_groups,
        "customMetrics": {},
    }


def _entry_bytes(driver: BatchDriver, name: str) -> int:
    """Return the size of an operator's entries; strings and free rows of the tables come on top."""
    (operator,) = (op for op in driver.query.operators if op.id == name)
    return sum(driver.states[name].rows) * row_bytes(operator.spec)


def sentence(error: Exception) -> str:
    """Return the kind of an error and its first line, as a journal has it."""
    text = told(error)
    kind = f"{type(error).__name__}: "
    return (text if isinstance(error, QueryFailed) else kind + text.removeprefix(kind))[:500]
