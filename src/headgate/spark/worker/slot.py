"""Does one slot's work in one batch, in a Python worker."""

from __future__ import annotations

import gc
import os
import platform
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from headgate.checkpoint import changelog
from headgate.journal.histogram import counts_of, sparse_of
from headgate.operators.build import Spec
from headgate.operators.operator import Operator
from headgate.operators.serve import serve, stamped
from headgate.operators.step import GROUP, RECORDS, Request, Served
from headgate.spark.job.columns import INITIAL, MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.job.faults import SlotFaults
from headgate.spark.job.reports import Report
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.failure import located
from headgate.spark.worker.hot_key import hottest_key
from headgate.spark.worker.payloads import TaskFiles, payload, table_payload
from headgate.spark.worker.whereabouts import ran, waited_for_core_ms
from headgate.spark.worker.worker import checkpoint_at, operator_named, run_named, store_of

_frozen = False


@dataclass(frozen=True)
class SlotTask:
    """Serves one slot, as the function of `mapInArrow`; the same object for every batch of a query."""

    operator: str
    spec: Spec
    sender: Any
    """Sends reports to the driver."""
    next_operator: str | None = None
    """The operator that reads this operator's output; None for the last operator of a chain."""
    into_sink: bool = False
    """Whether this job writes the sink, so that the report carries no output."""
    store: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the checkpoint's store."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Serve this task's slot."""
        began = Began.now()
        context = TaskContext.get()
        assert context is not None
        facts = SlotFacts.of(context, self.operator)
        arrived = list(batches)
        began = began.has_read()
        operator = operator_named(self.operator, self.spec)
        records, consumed, watermark_us = _split_markers(arrived, operator, facts)
        report, served = self.answer(
            facts, context.partitionId(), records, consumed, watermark_us, began
        )
        self.sender.add([replace(report, stage=context.stageId())])
        freeze_once()
        if self.next_operator is not None:
            yield _downstream(served, report.token, facts.next_slots)
        elif self.into_sink and served.output.num_rows:
            yield served.output

    def answer(
        self,
        facts: SlotFacts,
        slot: int,
        arriving: pa.Table,
        consumed: tuple[str, ...],
        watermark_us: int,
        began: Began,
    ) -> tuple[Report, Served]:
        """Serve the records of a slot in a step; return the report and the operator's result.

        `arriving` (pyarrow.Table): records, without markers. `consumed`: tokens of the upstream
        slots that put these records out.
        """
        operator = operator_named(self.operator, self.spec)
        token = uuid.uuid4().hex
        run = run_named(facts.arena_root, facts.run_id, facts.memory)
        store = store_of(run, self.operator, operator, facts.memory)
        checkpoint = checkpoint_at(facts.checkpoint, facts.run_id, self.store)
        faults = SlotFaults(facts.faults, slot, facts.step, facts.attempt)
        request = facts.request(slot, token, watermark_us, checkpoint, self.operator)
        backlog = facts.waiting(slot, checkpoint)
        if facts.memory is not None:
            committed = {g: s.token for g, s in request.groups.items() if g not in request.held}
            # a failed attempt may have left tables with changes to undo: then no table moves
            store.balance(committed, facts.step, moving=facts.attempt == 1)
        if facts.delta_ms:
            # a record of another operator arrives now, and not when the batch was read
            arriving = stamped(arriving, facts.arrived_ms if not consumed else time.time() * 1e3)
        arriving, initial = _split_initial(arriving, operator)
        with located(f"{self.operator}, slot {slot}, step {facts.step}"):
            served = serve(
                operator,
                store,
                request,
                arriving,
                backlog,
                initial=initial,
                on_group=faults.on_group,
            )
        faults.dawdle(served.served_rows)
        done = time.perf_counter()
        with TaskFiles(checkpoint, facts.slot_count) as writes:
            report = _report(self, facts, slot, request, consumed, served, writes)
        if facts.show_keys:
            report = replace(report, hottest_key=hottest_key(arriving))
        phases = {
            "read": (began.read - began.started) * 1e3,
            "serve": (done - began.read) * 1e3,
            "log": (time.perf_counter() - done) * 1e3,
        }
        report = replace(
            report,
            tiering=store.tiering(),
            waited_ms=waited_for_core_ms() - began.waited_ms,
            useful_ms=(time.perf_counter() - began.read) * 1e3,
            cpu_ms=(time.process_time() - began.cpu) * 1e3,
            phases_ms=phases,
            ran=ran(began.at_ms),
        )
        return report, served


@dataclass(frozen=True)
class Began:
    """Holds the clocks at the beginning of a slot's work."""

    started: float
    read: float
    """`started`, `read`: times when the slot began, and when it had its records; seconds of
    `time.perf_counter`."""
    cpu: float
    """Processor time at `read`, seconds."""
    waited_ms: float
    """Time that the thread had waited for a core until `read`."""
    at_ms: float
    """Time when the slot began, ms since 1970."""

    @classmethod
    def now(cls) -> Began:
        """Read all clocks."""
        return cls(
            time.perf_counter(),
            time.perf_counter(),
            time.process_time(),
            waited_for_core_ms(),
            time.time() * 1e3,
        )

    def has_read(self) -> Began:
        """Read the clocks again when the slot has its records; `started` and `at_ms` stay."""
        return replace(self.now(), started=self.started, at_ms=self.at_ms)


def _split_markers(
    batches: list[pa.RecordBatch], operator: Operator, facts: SlotFacts
) -> tuple[pa.Table, tuple[str, ...], int]:
    """Return (records, tokens of the upstream slots, the operator's watermark)."""
    if not batches:
        return no_records(operator), (), facts.watermark_us
    table = pa.Table.from_batches(batches).combine_chunks()
    if MARKER_TO not in table.column_names:
        return table, (), facts.watermark_us
    is_marker = table.column(MARKER_TO).is_valid()
    markers = table.filter(is_marker)
    tokens = tuple(sorted(markers.column(MARKER_TOKEN).to_pylist()))
    watermark_us = min([facts.watermark_us, *markers.column(MARKER_US).to_pylist()])
    records = table.filter(table.column(MARKER_TO).is_null()).combine_chunks()
    records = records.drop_columns([MARKER_TO, MARKER_TOKEN, MARKER_US])
    return records, tokens, watermark_us


def _split_initial(arriving: pa.Table, operator: Operator) -> tuple[pa.Table, pa.Table | None]:
    """Return (records, initial state), each with its own columns."""
    schema = operator.initial_schema() if INITIAL in arriving.column_names else None
    if schema is None:
        return arriving, None
    own = [*schema.names, GROUP]
    initial = arriving.filter(arriving.column(INITIAL).is_valid()).select(own)
    records = arriving.filter(arriving.column(INITIAL).is_null())
    others = [n for n in own if n[0] == "i"]
    return records.drop_columns([INITIAL, *others]), initial


def no_records(operator: Operator) -> pa.Table:
    """Return an empty input for a slot."""
    fields = [pa.field(GROUP, pa.int32()), *operator.input_schema(), pa.field(RECORDS, pa.int64())]
    return pa.schema(fields).empty_table()


def _downstream(served: Served, token: str, next_slots: int) -> pa.RecordBatch:
    """Return a slot's output, with a marker for every slot of the next operator."""
    rows, total = served.output.num_rows, served.output.num_rows + next_slots
    nothing = np.arange(total) < rows
    columns = [
        pa.concat_arrays([column, pa.nulls(next_slots, column.type)])
        for column in served.output.columns
    ]
    names = list(served.output.schema.names)
    to = np.concatenate([np.zeros(rows, np.int32), np.arange(next_slots, dtype=np.int32)])
    columns.append(pa.array(to, mask=nothing))
    columns.append(pa.array([None] * rows + [token] * next_slots, pa.string()))
    columns.append(pa.array(np.full(total, served.holds_us), mask=nothing))
    names += [MARKER_TO, MARKER_TOKEN, MARKER_US]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _report(
    task: SlotTask,
    facts: SlotFacts,
    slot: int,
    request: Request,
    consumed: tuple[str, ...],
    served: Served,
    writes: TaskFiles,
) -> Report:
    token = request.token
    blob, refs = changelog.encode(served.sections) if served.sections else (b"", {})
    keeps_output = task.next_operator is None and not task.into_sink
    late = pa.concat_tables([served.late, served.partly_late]) if facts.keep_late else None
    waiting, segments = _waiting(facts, slot, served)
    shares = facts.shares_at(slot)
    latency, weights = served.latency
    most = writes.inline_bytes
    return Report(
        step=facts.step,
        attempt=facts.attempt,
        operator=task.operator,
        slot=slot,
        token=token,
        consumed=consumed,
        groups={g: (d.emitted_us, d.due_us, d.rows) for g, d in served.groups.items()},
        sections=refs,
        changelog=payload(writes, "changelog", token, blob, inline_bytes=most) if blob else None,
        output=table_payload(writes, "output", token, served.output, inline_bytes=most)
        if keeps_output
        else None,
        waiting=table_payload(writes, "backlog", token, waiting, inline_bytes=0),
        late=table_payload(writes, "late", token, late, inline_bytes=0),
        output_rows=served.output.num_rows,
        late_rows=served.late.num_rows,
        segments=segments,
        taken={shares.get(group, group): rows for group, rows in served.taken.items()},
        arrived=served.arrived_records,
        served=served.served_records,
        late_records=served.late_records,
        waiting_records=int(served.waiting.column(RECORDS).to_numpy().sum()),
        served_rows=served.served_rows,
        touched_rows=served.touched_rows,
        served_by_group=served.served_by_group,
        histogram=sparse_of(counts_of(latency, weights)) if len(latency) else (),
        latency_sum_ms=float((latency * weights).sum()),
        latency_max_ms=float(latency.max()) if len(latency) else 0.0,
        watermark_us=request.watermark_us,
        holds_us=served.holds_us,
        useful_ms=0.0,
        counts=served.counts,
        merged_rows=served.merged_rows,
        apart_holds_us=served.apart_holds_us,
        daemon=f"{platform.node()}:{os.getppid()}",
        tries=_tries(),
        inputs=served.inputs,
        newest_ms=served.newest_ms,
        results=served.results,
        touched_by_group=served.touched_by_group,
        apart_records=_records(served.apart),
    )


def _records(apart: pa.Table | None) -> dict[int, int]:
    """Return the records that merged rows stand for, by key group."""
    if apart is None:
        return {}
    groups, records = (apart.column(name).to_numpy() for name in (GROUP, RECORDS))
    sums = np.bincount(groups, records).astype(np.int64)
    return {int(group): int(sums[group]) for group in np.unique(groups)}


def _waiting(
    facts: SlotFacts, slot: int, served: Served
) -> tuple[pa.Table, dict[int, tuple[int, int]]]:
    """Return the backlog after the step, and (first row, rows) of each key (see `share_key`).

    Merged rows of split key groups are behind the slot's own rows; the groups' owners serve them.
    """
    segments: dict[int, tuple[int, int]] = {}
    shares, start = facts.shares_at(slot), 0
    for table, key_of in ((served.waiting, shares), (served.apart, {})):
        if table is None:
            continue
        parts = np.unique(table.column(GROUP).to_numpy(), return_index=True, return_counts=True)
        for group, first, count in zip(*(part.tolist() for part in parts), strict=True):
            segments[key_of.get(group, group)] = (start + first, count)
        start += table.num_rows
    if served.apart is None:
        return served.waiting, segments
    both = [served.waiting, served.apart]
    return pa.concat_tables(both, promote_options="default").combine_chunks(), segments


def _tries() -> int:
    """Return the number of this task's earlier attempts in Spark."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def freeze_once() -> None:
    """Exempt loaded objects from garbage collection: Spark's daemon collects after every task."""
    global _frozen  # noqa: PLW0603 -- once per worker process
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
