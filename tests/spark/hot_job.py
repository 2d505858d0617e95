"""A job with a hot key on a virtual clock: its slots, counters and control loop as they are, no JVM.

Files of records come twice a second and are seen when they are whole; the slots serve a fixed rate; a
batch takes as long as the test says. The job can be killed and go on from its manifest.
"""

from __future__ import annotations

import secrets

import numpy as np
import pyarrow as pa

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.core.slo import parse_slo
from headgate.journal import Decided
from headgate.operators.aggregate import AggregateOperator
from headgate.operators.serve import serve
from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode
from headgate.operators.step import ARRIVED_FIRST, ARRIVED_LAST, GROUP, RECORDS
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.steer import controller
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import next_manifest
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.payloads import TaskFiles
from headgate.spark.worker.slot import SlotTask, _report
from headgate.tables.heap import HeapStore

NAME, GROUPS, HOT = "aggregate", 32, 12
FILE_S, SEEN_AFTER_S = 0.5, 0.05
BEGAN_S = 1_000_000.0
INTEGER = Leaf(Kind.INTEGER)
SPEC = AggregateSpec(
    (Leaf(Kind.INTEGER),),
    None,
    (Aggregate(Op.COUNT, (INTEGER,)), Aggregate(Op.SUM_INTEGER, (INTEGER,))),
    OutputMode.UPDATE,
)


class Clock:
    """Stands in for the module `time` in the controller."""

    def __init__(self):
        self.now_s = BEGAN_S

    def time(self):
        return self.now_s

    def monotonic(self):
        return self.now_s

    def thread_time(self):
        return 0.0


class HotJob:
    """Key 0, which is all of key group 12, has `share` of `rate` records a second.

    Attributes
    ----------
    clock : Clock
    batches : list of (end_s, latency_sum_s, records)
        Of each step, seconds since the load began.
    events : list
        Of the journal.
    """

    def __init__(self, monkeypatch, path, *, rate=3_500, share=0.6, slot_rate=1_000.0, slots=2):
        self.clock = Clock()
        monkeypatch.setattr(controller, "time", self.clock)
        self.rate, self.share, self.slot_rate = rate, share, slot_rate
        self.until_s = float("inf")
        self.operator = AggregateOperator(SPEC)
        self.checkpoint = Checkpoint(str(path))
        self.uuid = self.checkpoint.open({})
        self.state = OperatorState.fresh(slots, GROUPS)
        self.latest = None
        self.draw = np.random.default_rng(1)
        self.files_read = 0
        self.events, self.batches, self.assignments = [], [], []
        self._start()

    def _start(self):
        self.store = HeapStore(self.operator.layout.table)
        self.changes = Changes({NAME: self.state}, slots_max=8)
        self.controller = controller.Controller(
            controller.ControlConfig(
                (parse_slo("mean < 3 s over 2 s"),),
                StreamSwitch(0.2),
                1,
                8,
                unsplittable={NAME: ""},
            ),
            JobConfig("job", key_groups=GROUPS, slot_rate=self.slot_rate, delta_ms=100.0),
            {NAME: self.state},
            self.changes,
            self._note,
            budget_s=lambda: None,
            cores=controller.Cores(lambda: 4),
            parents={},
        )
        self.served_s = self.clock.now_s

    def _note(self, event):
        self.events.append((round(self.now, 2), event))

    @property
    def now(self):
        """Seconds since the load began."""
        return self.clock.now_s - BEGAN_S

    def kill(self, down_s):
        """Lose the driver, and go on from the manifest `down_s` later."""
        self.clock.now_s += down_s
        self.state = OperatorState.recovered(self.latest, NAME)
        self._start()

    def run(self, until_s, batch_s=0.6):
        """Do batches until a time since the load began; `batch_s` may be a function."""
        while self.now < until_s:
            self.batch(batch_s() if callable(batch_s) else batch_s)

    def batch(self, batch_s):
        started_s = self.clock.now_s
        for name, new in self.changes.put_in_force().items():
            self.controller.assigned(name, new)
            self.assignments.append((round(self.now, 2), new.assignment))
        self._work_off()
        rows = self._rows(started_s)
        step = 0 if self.latest is None else self.latest.step + 1
        quotas = self.state.limited(self.slot_rate, started_s - self.served_s)
        self.served_s = started_s
        facts = self._facts(step, quotas)
        held = self.state.assignment
        slot_of = np.asarray(held.slot_of)[rows[GROUP]]
        for group, shares in held.split.items():
            mine = rows[GROUP] == group
            slot_of[mine] = self.draw.choice(shares, mine.sum())
        reports = []
        for slot in range(held.slots):
            # two cores: slots run in turns
            from_s = started_s + batch_s * (0.3 + 0.5 * slot / held.slots)
            to_s = from_s + batch_s * 0.5 / held.slots
            reports.append(self._serve(facts, slot, rows, slot_of == slot, from_s, to_s))
        self.clock.now_s = started_s + batch_s
        begun = Begun(step, step, 0, [], 0.0, 0.0, 0, drain=False, latest=self.latest)
        manifest = next_manifest(begun, self.uuid, self.changes.epoch, {NAME: self.state}, reports)
        self.latest = self.checkpoint.commit(manifest)
        self.checkpoint.collect_garbage(self.latest)
        self.controller.committed(reports, started_s * 1e3, started_s * 1e3)
        served = sum(count for r in reports for _, count in r.histogram)
        self.batches.append((self.now, sum(r.latency_sum_ms for r in reports) / 1e3, served))
        self._work_off()

    def _work_off(self):
        loop = self.controller
        while not loop._events.empty():
            loop._events.get()()
        if loop._due:
            loop._due = False
            loop._cycle()

    def _rows(self, at_s):
        """Return what the files hold that have become whole since the last batch."""
        whole = int((min(at_s - BEGAN_S, self.until_s) - SEEN_AFTER_S) / FILE_S)
        first, self.files_read = self.files_read, max(whole, self.files_read)
        count = max(0, self.files_read - first)
        each = int(self.rate * FILE_S)
        keys = self.draw.integers(1, 200, count * each)
        keys[self.draw.random(len(keys)) < self.share] = 0
        groups = np.where(keys == 0, HOT, (keys * 7) % GROUPS)
        at = BEGAN_S + (first + np.arange(count * each) / each) * FILE_S
        return {GROUP: groups, "key": keys, "at_ms": at * 1e3}

    def _facts(self, step, quotas):
        state = self.state
        told = SlotFacts(
            step=step,
            attempt=1,
            arena_root=None,
            run_id="run",
            checkpoint=str(self.checkpoint.path),
            watermark_us=0,
            slot_of=state.assignment.slot_of,
            held=[],
            tokens=state.tokens,
            steps=state.steps,
            emitted_us=state.emitted_us,
            due_us=state.due_us,
            snapshots=state.due_for_snapshot(step, 32),
            backlog={str(g): s for g, s in state.backlog.items()},
            waiting_crc32=self.latest.checksums("backlog") if self.latest else {},
            quotas=quotas,
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

    def _serve(self, facts, slot, rows, mine, from_s, to_s):
        times = iter([from_s * 1e3, to_s * 1e3])
        request = facts.request(slot, secrets.token_hex(16), 0, self.checkpoint, NAME)
        served = serve(
            self.operator,
            self.store,
            request,
            _table({name: values[mine] for name, values in rows.items()}),
            facts.waiting(slot, self.checkpoint),
            now_ms=lambda: next(times),
        )
        task = SlotTask(NAME, SPEC, None)
        with TaskFiles(self.checkpoint, 1) as writes:
            return _report(task, facts, slot, request, (), served, writes)

    # -- what came of it ---------------------------------------------------------------------------

    def decided(self):
        """Return (time, rule, reason) of what was decided and carried out."""
        return [
            (at, e.rule, e.reason) for at, e in self.events if isinstance(e, Decided) and e.acts
        ]

    def seconds(self, from_s, to_s):
        """Return the mean latency of each second's records."""
        held = {}
        for at, total, count in self.batches:
            if from_s <= at < to_s and count:
                one = held.setdefault(int(at), [0.0, 0])
                one[0] += total
                one[1] += count
        return {at: total / count for at, (total, count) in sorted(held.items())}


def _table(rows):
    n = len(rows[GROUP])
    return pa.table(
        {
            GROUP: pa.array(rows[GROUP], pa.int32()),
            "k0": pa.array(rows["key"], pa.int64()),
            "v0": pa.array(np.ones(n, dtype=np.int64)),
            "v1": pa.array(rows["key"], pa.int64()),
            RECORDS: pa.array(np.ones(n, dtype=np.int64)),
            ARRIVED_FIRST: pa.array(rows["at_ms"], pa.float64()),
            ARRIVED_LAST: pa.array(rows["at_ms"], pa.float64()),
        }
    )
