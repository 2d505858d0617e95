"""Writes a journal line for each batch, and the figures of `lastProgress`."""

from __future__ import annotations

import dataclasses
import importlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyspark

from headgate.checkpoint.manifest import Manifest
from headgate.journal import histogram
from headgate.journal.parts import (
    GroupRecords,
    Latency,
    MemoryUse,
    OperatorInfo,
    SloState,
    SlotStats,
)
from headgate.journal.schema import (
    AssignmentChange,
    Batch,
    BatchBegun,
    Event,
    Restart,
    Retry,
    Start,
    Stop,
)
from headgate.journal.writer import JournalWriter
from headgate.operators.build import row_bytes
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import ReplicaReport, Report
from headgate.spark.read.plan import PlannedOperator, PlannedQuery
from headgate.spark.step.begun import Begun
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.progress import Progress
from headgate.spark.worker.failure import QueryFailed, told
from headgate.tables.tiers import Tiering

_HOTTEST = 5

VERSIONS = {
    # not from the package's metadata, which a headgate shipped as a file of modules lacks
    "headgate": str(importlib.import_module("headgate").__version__),
    "spark": pyspark.__version__,
    "python": platform.python_version(),
}


class StepRecorder:
    """Writes the journal lines that all kinds of query have.

    `texts`: whether the journal has the texts of users' exceptions, which may quote a record.

    Attributes
    ----------
    progress : Progress    The figures of the last batches.
    """

    def __init__(self, path: Path, *, texts: bool = False) -> None:
        self.path = path
        self._texts = texts
        self.progress = Progress()
        self._writer = JournalWriter(path)

    def begin(self, start: Start, latest: Manifest | None) -> None:
        """Write that the query started, and from which step."""
        self.write(dataclasses.replace(start, versions=VERSIONS))
        if latest is not None:
            self.write(Restart(step=latest.step + 1, recovered_from=latest.step))

    def begun(self, begun: Begun) -> None:
        """Write that a batch begins."""
        self.write(BatchBegun(step=begun.number, spark_batch=begun.spark_batch))

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write that an attempt failed and the batch runs again."""
        self.write(Retry(step=step, attempt=attempt, error=sentence(error, texts=self._texts)))

    def stop(self, reason: str, error: Exception | None = None) -> None:
        """Write that the query ended, and close the journal."""
        why = None if error is None else sentence(error, texts=self._texts)
        self.write(Stop(reason=reason, error=why))
        self._writer.close()

    def write(self, event: Event) -> None:
        """Append an event to the journal."""
        self._writer.write(event)


class Recorder(StepRecorder):
    """Writes the journal of a query of stateful operators, and keeps the newest figures.

    `query`: the operators read from the user's plan.
    """

    def __init__(self, path: Path, query: PlannedQuery, *, texts: bool = False) -> None:
        super().__init__(path, texts=texts)
        self._query = query
        self._first = {chain[0].id for chain in query.sources}
        self.last: Batch | None = None
        self.late_records = 0

    def started(
        self,
        uuid: str,
        config: JobConfig,
        states: Mapping[str, OperatorState],
        latest: Manifest | None,
        parameters: dict[str, Any],
        *,
        workload: str | None,
    ) -> None:
        """Write that the query started, and from which step."""
        start = Start(
            job=uuid,
            name=config.name,
            key_groups=config.key_groups,
            slots=max((s.assignment.slots for s in states.values()), default=0),
            workload=workload,
            seed=parameters.get("seed"),
            parameters=parameters,
            operators=tuple(OperatorInfo(o.id, o.what) for o in self._query.operators),
        )
        self.begin(start, latest)

    def operators(
        self, states: Mapping[str, OperatorState], reports: list[Report]
    ) -> list[dict[str, Any]]:
        """Return each operator's figures in the form of Spark's ``stateOperators``."""
        return [_operator_progress(op, states[op.id], reports) for op in self._query.operators]

    def assignment(self, step: int, operator: str, request: AssignmentRequest) -> None:
        """Write that a new assignment comes into force."""
        before, after = request.before, request.assignment
        assert before is not None
        number = {old: slot for slot, old in enumerate(request.survivors) if old is not None}
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
                bytes_moved=request.moved_bytes,
                by=request.by,
                reason=request.reason,
                operator=operator,
                slot_of=after.slot_of,
                split=tuple((g, *shares) for g, shares in sorted(after.split.items())),
            )
        )

    def batch(
        self,
        outcome: Outcome[Report],
        states: Mapping[str, OperatorState],
        slo: SloState | None,
        epochs: int = 0,
    ) -> None:
        """Write a line for a committed batch, or for `epochs` epochs of real time."""
        manifest, reports, phases_ms = outcome.manifest, outcome.reports, outcome.phases_ms
        entering = [r for r in reports if r.operator in self._first]
        merged = histogram.merge(r.histogram for r in entering)
        served_groups = _served_groups(reports)
        served_by_group: Counter[int] = Counter()
        for served in served_groups:
            if served.operator in self._first:
                served_by_group.update(dict(zip(served.groups, served.records, strict=True)))
        store_requests, store_bytes = _store(outcome)
        holder = _holder(entering, manifest.watermarks["evict_us"])
        hottest = sorted(served_by_group.items(), key=lambda pair: (-pair[1], pair[0]))
        event = Batch(
            step=manifest.step,
            spark_batch=manifest.spark_batch,
            epoch=manifest.epoch,
            slots=max(s.assignment.slots for s in states.values()),
            duration_ms=round(_duration_ms(phases_ms, epochs), 3),
            phases_ms={name: round(ms, 3) for name, ms in phases_ms.items()},
            arrived=sum(r.arrived for r in entering),
            served=sum(r.served for r in entering),
            emitted=outcome.emitted,
            late=sum(r.late_records for r in reports),
            backlog=sum(s.waiting_rows() for s in states.values()),
            backlog_bytes=waiting_bytes(manifest),
            latency_ms=latency_of(entering, max((r.latency_max_ms for r in entering), default=0.0)),
            histogram=merged,
            watermark_us=manifest.watermarks["evict_us"] or None,
            slot_stats=_slot_stats(states, entering),
            hottest=tuple(hottest[:_HOTTEST]),
            hottest_key=self._hottest_key(entering),
            arrivals=_arrivals(entering),
            served_groups=served_groups,
            state_rows=sum(sum(s.rows) for s in states.values()),
            state_bytes=sum(_entry_bytes(op, states[op.id]) for op in self._query.operators),
            changelog_bytes=sum(r.changelog.length for r in reports if r.changelog),
            attempts=outcome.attempts,
            watermark_holder=None if holder is None else holder.slot,
            watermark_operator="" if holder is None else holder.operator,
            slo=slo,
            lag=self.progress.lag,
            store_requests=store_requests,
            store_bytes=store_bytes,
            memory=_memory(reports),
            epochs=epochs,
        )
        self.late_records += event.late
        self.progress.add(event, self.operators(states, reports), emitted=event.emitted)
        self.last = event
        self.write(event)

    def _hottest_key(self, entering: Sequence[Report]) -> str | None:
        """Return the most frequent key, with the names of its parts; None if no report names a key."""
        keys = [(r.hottest_key, r.operator) for r in entering if r.hottest_key is not None]
        if not keys:
            return None
        (records, values), operator = max(keys)
        names = next(o.key_names for o in self._query.operators if o.id == operator)
        return f"{', '.join(names)} = {values} ({records:,} records)"

    def stateless(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Write a batch of a query without operators; its numbers of records are 0, as uncounted."""
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
            backlog=0,
            backlog_bytes=0,
            lag=self.progress.lag,
        )
        self.progress.add(event, [], emitted=None)
        self.write(event)


def _store(outcome: Outcome[Report]) -> tuple[int | None, int | None]:
    """Return (requests to the store, bytes written) of driver and slots; None without a store."""
    if outcome.store is None:
        return None, None
    written = [
        payload.length
        for report in outcome.reports
        for payload in (report.changelog, report.output, report.waiting, report.late)
        if payload is not None and payload.name is not None
    ]
    return outcome.store.requests + len(written), outcome.store.written_bytes + sum(written)


def _memory(reports: Sequence[Report]) -> MemoryUse | None:
    """Return the use of memory and disk after a step; None if memory has no bound."""
    reported = [(r, r.tiering) for r in reports if r.tiering is not None]
    if not reported:
        return None
    newest: dict[tuple[str, str], tuple[float, Tiering]] = {}
    for report, tiering in reported:
        host, ended_ms = (report.ran.host, report.ran.ended_ms) if report.ran else ("", 0.0)
        key = (report.operator, host)  # each slot reports all tables of the operator on its host
        newest[key] = max(
            newest.get(key, (ended_ms, tiering)), (ended_ms, tiering), key=itemgetter(0)
        )
    return MemoryUse(
        memory_bytes=sum(figures.memory_bytes for _, figures in newest.values()),
        cold_bytes=sum(figures.cold_bytes for _, figures in newest.values()),
        groups_back=sum(figures.back for _, figures in reported),
        groups_away=sum(figures.away for _, figures in reported),
        groups_cold=sum(figures.cold for _, figures in reported),
        moving_ms=round(max(figures.ms for _, figures in reported), 3),
    )


def latency_of(
    reports: Sequence[Report | ReplicaReport], most_ms: float | None = None
) -> Latency | None:
    """Return the latency of the served records; None without any.

    `most_ms`: the largest latency; None takes it from the histogram.
    """
    merged = histogram.merge(r.histogram for r in reports)
    count = histogram.completed(merged)
    if count == 0:
        return None
    p50, p95, p99, top = (
        round(histogram.percentile_ms(merged, q) or 0.0, 3) for q in (0.5, 0.95, 0.99, 1.0)
    )
    mean = round(sum(r.latency_sum_ms for r in reports) / count, 3)
    longest = top if most_ms is None else round(most_ms, 3)
    return Latency(mean=mean, p50=p50, p95=p95, p99=p99, max=longest)


def waiting_bytes(manifest: Manifest) -> int:
    """Return the size of the backlog's files."""
    return sum(file.length for file in manifest.files if file.name.startswith("backlog/"))


def _served_groups(reports: Sequence[Report]) -> tuple[GroupRecords, ...]:
    """Return the served records by key group of each operator."""
    by_operator: dict[str, Counter[int]] = {}
    for report in reports:
        by_operator.setdefault(report.operator, Counter()).update(report.served_by_group)
    return tuple(
        GroupRecords(operator, sorted(served), [served[group] for group in sorted(served)])
        for operator, served in by_operator.items()
        if served
    )


def _arrivals(entering: list[Report]) -> tuple[GroupRecords, ...]:
    """Return the arrivals by key group of each operator that counts them."""
    arrivals = []
    for name in dict.fromkeys(r.operator for r in entering):
        counted = [r.counts.arrivals for r in entering if r.operator == name and r.counts]
        if sum(len(new.group) for new in counted):
            groups = np.concatenate([new.group for new in counted])
            records = np.bincount(groups, np.concatenate([new.records for new in counted]))
            some = np.flatnonzero(records)
            arrivals.append(
                GroupRecords(name, some.tolist(), records[some].astype(np.int64).tolist())
            )
    return tuple(arrivals)


def _slot_stats(
    states: Mapping[str, OperatorState], entering: list[Report]
) -> tuple[SlotStats, ...]:
    stats = []
    for (operator, slot), group in _by_slot(entering).items():
        state = states[operator]
        groups = state.assignment.groups_of(slot)
        keys = state.assignment.waiting_at(slot)
        backlog = sum(s[2] for key in keys for s in state.backlog.get(key, ()))
        latency = latency_of(group, max(report.latency_max_ms for report in group))
        stats.append(
            SlotStats(
                slot=slot,
                groups=len(groups),
                served=sum(report.served for report in group),
                backlog=backlog,
                useful_ms=round(sum(report.useful_ms for report in group), 3),
                latency_mean_ms=latency.mean if latency else None,
                latency_p95_ms=latency.p95 if latency else None,
                computing_ms=round(sum(report.cpu_ms for report in group), 3),
                waited_ms=round(sum(report.waited_ms for report in group), 3),
                operator=operator,
            )
        )
    return tuple(stats)


def _by_slot(reports: list[Report]) -> dict[tuple[str, int], list[Report]]:
    """Return the reports of each slot, one for each summed epoch."""
    by_slot: dict[tuple[str, int], list[Report]] = {}
    for report in sorted(reports, key=lambda r: (r.operator, r.slot)):
        by_slot.setdefault((report.operator, report.slot), []).append(report)
    return by_slot


def _duration_ms(phases_ms: Mapping[str, float], epochs: int) -> float:
    """Return the sum of the phases; for epochs without the sink, which writes beside later epochs."""
    return sum(ms for name, ms in phases_ms.items() if not (epochs and name == "sink"))


def _holder(entering: list[Report], watermark_us: int) -> Report | None:
    behind = [r for r in entering if r.holds_us < watermark_us]
    return min(behind, key=lambda r: r.holds_us) if behind else None


def _operator_progress(
    operator: PlannedOperator, state: OperatorState, reports: list[Report]
) -> dict[str, Any]:
    """Return an operator's figures in the form of Spark's ``stateOperators``."""
    own = [r for r in reports if r.operator == operator.id]
    return {
        "operatorName": operator.id,
        "numRowsTotal": sum(state.rows),
        "numRowsUpdated": sum(r.touched_rows for r in own),
        "allUpdatesTimeMs": int(sum(r.useful_ms for r in own)),
        "numRowsRemoved": 0,
        "allRemovalsTimeMs": 0,
        "commitTimeMs": int(sum(r.phases_ms.get("log", 0.0) for r in own)),
        "memoryUsedBytes": _entry_bytes(operator, state),
        "numRowsDroppedByWatermark": sum(r.late_records for r in own),
        "numShufflePartitions": state.assignment.slots,
        "numStateStoreInstances": state.assignment.key_groups,
        "customMetrics": {},
    }


def _entry_bytes(operator: PlannedOperator, state: OperatorState) -> int:
    """Return the size of an operator's entries, without strings and free rows of the tables."""
    return sum(state.rows) * row_bytes(operator.spec)


def sentence(error: Exception, *, texts: bool) -> str:
    """Return the kind of an error and its first line, for the journal.

    Without `texts` the text of a user's exception is left out, so nothing quotes a record.
    """
    if isinstance(error, QueryFailed):
        return (told(error) if texts else error.journalled)[:500]
    text, kind = told(error, withhold=not texts), type(error).__name__
    return (text if text.startswith(kind) else f"{kind}: {text}")[:500]
