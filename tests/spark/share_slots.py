"""All slots of an aggregate on one host, step by step through real manifests; no JVM."""

from __future__ import annotations

import secrets
from collections import Counter

import pyarrow as pa

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.assignment import Assignment
from headgate.operators.aggregate import AggregateOperator
from headgate.operators.serve import serve
from headgate.operators.step import ARRIVED_FIRST, ARRIVED_LAST, GROUP, RECORDS, TIME
from headgate.spark.job.job import OperatorState
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import next_manifest
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.payloads import TaskFiles
from headgate.spark.worker.slot import SlotTask, _report
from headgate.tables.heap import HeapStore

NAME = "aggregate"
GROUPS = 4


class Slots:
    """Serves steps; what they put out, and what they refused as late, is kept."""

    def __init__(self, spec, path, slots=3):
        self.spec = spec
        self.operator = AggregateOperator(spec)
        self.checkpoint = Checkpoint(str(path))
        self.uuid = self.checkpoint.open({})
        self.state = OperatorState.fresh(slots, GROUPS)
        self.store = HeapStore(self.operator.layout.table)
        self.latest = None
        self.out = Counter()
        self.last = {}
        self.late = []
        self.reports = []

    def split(self, split, slot_of=None, slots=None):
        """Put another assignment in force."""
        held = self.state.assignment
        slot_of, slots = slot_of or held.slot_of, slots or held.slots
        self.state.assign(Assignment(tuple(slot_of), slots, held.epoch + 1, split))

    def restart(self):
        """Go on from the manifest alone, as a driver that was killed."""
        self.state = OperatorState.recovered(self.latest, NAME)
        self.store = HeapStore(self.operator.layout.table)

    def facts(self, step, watermark_us, quota):
        state = self.state
        told = SlotFacts(
            step=step,
            attempt=1,
            arena_root=None,
            run_id="0" * 32,
            checkpoint=str(self.checkpoint.path),
            watermark_us=watermark_us,
            slot_of=state.assignment.slot_of,
            held=[],
            tokens=state.tokens,
            steps=state.steps,
            emitted_us=state.emitted_us,
            due_us=state.due_us,
            snapshots=state.due_for_snapshot(step, 5),
            backlog={str(g): s for g, s in state.backlog.items()},
            waiting_crc32=self.latest.checksums("backlog") if self.latest else {},
            quotas=None if quota is None else [quota] * state.assignment.slots,
            next_slots=0,
            keep_late=False,
            delta_ms=100.0,
            bound_ms=0.0,
            timestamp_ms=step,
            time_limit_s=0.0,
            arrived_ms=0.0,
            faults=[],
            split={str(g): shares for g, shares in state.assignment.split.items()},
            stands_us={str(g): us for g, us in state.standing().items()},
        )
        return SlotFacts.from_json(told.to_json())

    def step(self, rows, watermark_us, draw, quota=None, lost=()):
        """Serve rows (group, time, key, value); slots in `lost` do their work twice.

        Nothing of what a lost execution said is used.
        """
        step = 0 if self.latest is None else self.latest.step + 1
        facts, assignment = self.facts(step, watermark_us, quota), self.state.assignment
        mine = [[] for _ in range(assignment.slots)]
        for row in rows:
            mine[draw.choice(assignment.shares_of(row[0]))].append(row)
        order = list(range(assignment.slots))
        draw.shuffle(order)
        reports, late, outputs = [], [], []
        for slot in lost:
            self._serve(facts, slot, mine[slot])
        for slot in order:
            report, served = self._serve(facts, slot, mine[slot])
            reports.append(report)
            late += served.late.to_pylist()
            outputs.append(served.output)
        begun = Begun(step, step, watermark_us, [], 0.0, 0.0, 0, drain=False, latest=self.latest)
        manifest = next_manifest(begun, self.uuid, 0, {NAME: self.state}, reports)
        self.latest = self.checkpoint.commit(manifest)
        self.checkpoint.collect_garbage(self.latest)
        self.late += late
        self.reports.append(reports)
        for output in outputs:
            for row in output.to_pylist():
                found = tuple(v.decode() if isinstance(v, bytes) else v for v in row.values())
                self.out[found] += 1
                self.last[found[: len(self.spec.keys) + (self.spec.time is not None)]] = found

    def _serve(self, facts, slot, rows):
        token = secrets.token_hex(16)
        request = facts.request(slot, token, facts.watermark_us, self.checkpoint, NAME)
        served = serve(
            self.operator,
            self.store,
            request,
            self._table(rows),
            facts.waiting(slot, self.checkpoint),
        )
        task = SlotTask(NAME, self.spec, None)
        with TaskFiles(self.checkpoint, 1) as writes:
            return _report(task, facts, slot, request, (), served, writes), served

    def _table(self, rows):
        groups, times, keys, values = zip(*rows, strict=True) if rows else ((), (), (), ())
        columns = {GROUP: pa.array(groups, pa.int32())}
        if self.spec.time is not None:
            width = self.spec.time.slice_us
            columns[TIME] = pa.array([t - t % width for t in times], pa.int64())
        columns["k0"] = pa.array(keys, pa.string())
        columns["v0"] = pa.array([1] * len(rows), pa.int64())
        columns["v1"] = pa.array(values, pa.int64())
        columns["v2"] = pa.array(values, pa.int64())
        columns[RECORDS] = pa.array([1] * len(rows), pa.int64())
        columns[ARRIVED_FIRST] = columns[ARRIVED_LAST] = pa.array([0.0] * len(rows), pa.float64())
        return pa.table(columns)

    def waits(self):
        return bool(self.state.backlog)
