"""The batches of a running job, seen from the driver.

One step: assignment, intent, slots, manifest (the commit point), sink. `process` is what Spark calls
for each micro-batch; it owns the retries, since in ``local[N]`` a single failed task fails the job and
an exception out of ``foreachBatch`` ends the query.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headgate.spark.job.changes import Changes
from headgate.spark.job.faults import crash_point
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.phases import Beside, Phases
from headgate.spark.job.ports import Commands, Observer
from headgate.spark.job.reports import Report, ReportChannel, consistent
from headgate.spark.jvm.gateway import ArrowMap
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.move.errand import Errands
from headgate.spark.move.migrations import Migrations
from headgate.spark.move.placement import Placement
from headgate.spark.move.porter import Porter
from headgate.spark.read.plan import Operator, Query
from headgate.spark.step import exchange
from headgate.spark.step.chain import ChainJob
from headgate.spark.step.commit import StepFacts, assigned, next_manifest
from headgate.spark.step.intake import Intake
from headgate.spark.step.output import Outputs, Results
from headgate.spark.step.preaggregate import Preaggregation
from headgate.spark.step.record import Recorder
from headgate.spark.step.recovery import (
    check_begins,
    check_continues,
    check_has_state,
    check_same_data,
)
from headgate.spark.step.sinks import Sink
from headgate.spark.worker.failure import is_final, processor_error
from headgate.spark.worker.slot import STEP_PROPERTY, SlotTask
from headgate.state.arena import RunDirectory
from headgate.state.checkpoint import Checkpoint
from headgate.state.manifest import Manifest

_QUIET_S = 0.8
"""How long waiting records are served between two ticks."""

_HEARTBEAT_STEPS = 40
"""Quiet batches after which a manifest is written all the same: Spark keeps 100 batches of offsets, and
a restart must be able to tell quiet batches from lost ones."""


class BatchDriver:
    """Runs the steps of one job.

    Parameters
    ----------
    spark : SparkSession
        The session that the query was started in.
    query : Query
    config : JobConfig
    checkpoint : Checkpoint
        Opened.
    job : str
        The checkpoint's uuid.
    run : RunDirectory
        The arena directory of this run.
    sink : Sink
    recorder : Recorder
        Writes the journal.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        config: JobConfig,
        checkpoint: Checkpoint,
        job: str,
        run: RunDirectory,
        sink: Sink,
        recorder: Recorder,
    ) -> None:
        self.spark = spark
        self.query = query
        self.config = config
        self.checkpoint = checkpoint
        self.job = job
        self.run = run
        self.sink = sink
        self.recorder = recorder
        self.channel: ReportChannel[Report] = ReportChannel(spark.sparkContext)
        self.log = SparkLog(spark)
        self.latest: Manifest | None = checkpoint.latest()
        if self.latest is None and query.operators:
            check_has_state(checkpoint.path)
        self.states = self._states()
        self.stopping = threading.Event()
        self.idle = threading.Event()
        self.idle.set()
        self.failed: Exception | None = None
        self.changes = Changes(self.states, config.slots_max)
        self.observer: Observer | None = None
        self.commands: Commands | None = None
        self.after_step: Callable[[], None] = lambda: None
        self._read_ms = self._served_ms = time.time() * 1e3
        self._intents, self._garbage = Beside("headgate-intents"), Beside("headgate-garbage")
        self._quiet_batches = 0
        self._timestamp_ms = 0
        self.batches_begun = 0
        self.settled_batch = 0
        self._last_sources: list[str] | None = None
        self._recovering = self.latest is not None
        self._cores = max(1, int(spark.sparkContext.defaultParallelism))
        self._tasks = self._make_tasks()
        self._slots = {
            op.id: ArrowMap(self._tasks[op.id], self._emitted_schema(op, self._tasks[op.id]))
            for op in query.operators
        }
        self.intake = Intake(spark, query, config.key_groups, checkpoint.path)
        self._results = Results(spark, query)
        self._placements = {op.id: Placement(spark) for op in query.operators}
        self._jobs = self._make_jobs()
        self._porter = Porter(self._errands)
        self.migrations = Migrations(
            # of a shared operator every slot has every record: none could wait for one key group
            {op.id: self.states[op.id] for op in query.operators if not op.shared},
            self.changes,
            self._placements,
            self._porter,
            config.migration,
            recorder.write,
        )
        self._resume_migrations()

    def _states(self) -> dict[str, OperatorState]:
        config = self.config
        if self.latest is not None:
            names = [op.id for op in self.query.operators]
            return {name: OperatorState.recovered(self.latest, name) for name in names}
        return {
            op.id: OperatorState.fresh(config.slots, config.key_groups)
            for op in self.query.operators
        }

    def _resume_migrations(self) -> None:
        facts = self.latest.engine["operators"] if self.latest is not None else {}
        for name in self.states:
            if facts and facts[name].get("migration"):
                self.migrations.restore(name, facts[name]["migration"])

    def _errands(self) -> Errands:
        specs = {op.id: op.spec for op in self.query.operators}
        return Errands(self.spark, specs, self._places(), self.config.name)

    def _make_tasks(self) -> dict[str, SlotTask]:
        tasks = {}
        for chain in self.query.chains:
            following = [op.id for op in chain[1:]] + [None]
            for op, after in zip(chain, following, strict=True):
                tasks[op.id] = SlotTask(
                    op.id, op.spec, self.channel.sender, after, into_sink=self._into_sink
                )
        return tasks

    def _make_jobs(self) -> list[ChainJob]:
        chains, config = self.query.chains, self.config
        return [
            ChainJob(
                self.spark,
                chain,
                self._slots,
                self.states,
                self._placements,
                Preaggregation(chain[0], config.preaggregate, self.intake.unfolding),
                config.key_groups,
                alone=len(chains) == 1,
            )
            for chain in chains
        ]

    @property
    def _into_sink(self) -> bool:
        """Whether the job that computes a step writes it too."""
        return self.sink.inside and len(self.query.chains) == 1

    def hosts_in_use(self) -> set[str]:
        """Return the hosts that slots are placed on; none where Spark places them."""
        placed = [(n, self._placements[n]) for n in self.states if self._placements[n].active]
        return {h for n, one in placed for h in one.hosts_of(self.slots_in_use(n))}

    def slots_in_use(self, operator: str) -> int:
        """Return how many slots an operator has, or will have when what moves has moved."""
        return max(self.states[operator].assignment.slots, self.changes.newest(operator).slots)

    def set_cores(self, cores: int) -> None:
        """Reckon with another number of cores from the next step on."""
        self._cores = max(1, cores)

    def set_budget(self, budget_s: float | None) -> None:
        """Give slots another time budget from the next step on."""
        self.config = replace(self.config, budget_s=budget_s)

    def rehearse(self) -> None:
        """Plan an empty batch and an empty result, and run neither.

        The JVM loads and compiles Catalyst on the way, which else costs the first batches seconds.
        """
        if not self.query.operators:
            return
        nothing = self.intake.rehearsal()
        for job in self._jobs:
            job.rows(nothing)
            job.forget()
        self._results.stored(Outputs(), self.checkpoint)._jdf.queryExecution().executedPlan()

    # -- steps ------------------------------------------------------------------------------------

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Do one micro-batch; Spark's ``foreachBatch`` function."""
        self.idle.clear()
        self.batches_begun += 1
        try:
            if self.stopping.is_set():
                self._refuse_while_stopping()
            if self.commands is not None:
                self.commands.poll()
            if self.query.operators:
                self._process(batch, batch_id)
            else:
                self._stateless(batch, batch_id)
        except Exception as error:
            self.failed = error  # Spark hands on its text only
            raise
        finally:
            self.idle.set()

    def _refuse_while_stopping(self) -> None:
        """Leave a batch that Spark began after `stop` was asked to the next start."""
        self.idle.set()  # this batch has begun nothing, and `stop` waits for that
        self.log.refuse_batch()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        self.intake.settle_in(batch, [schema for job in self._jobs for schema in job.into_slots])
        arrived_ms = time.time() * 1000
        log = self.log.batch(batch_id)
        watermark_us, sources = log.watermark_us, log.offsets
        self._read_ms = log.begun_ms
        if self.latest is None:
            check_begins(self.checkpoint.path, batch_id)
        elif self._recovering:
            self._recovering = False
            if self.latest.spark_batch == batch_id:
                check_same_data(self.checkpoint.path, self.latest, batch_id, sources)
                # the step was committed, its output perhaps not: the same bytes once more
                self._deliver(self.latest)
                self.intake.look_through(batch)
                self._last_sources = sources
                return
            check_continues(self.checkpoint.path, self.latest, batch_id, self.log)
        quiet = sources == self._last_sources
        self._last_sources = sources
        if quiet and not self._due(watermark_us, arrived_ms) and not self._changing:
            self._quiet_batches += 1
            for op in self.query.operators:  # what comes behind it is late, as it is in Spark
                self.states[op.id].nothing_due(watermark_us - op.behind_us)
            self.settled_batch = self.batches_begun
            self._served_ms = arrived_ms
            if self.observer is not None:
                self.observer.quiet(self._read_ms)
            if self._quiet_batches % _HEARTBEAT_STEPS:
                return
        self._step(batch, batch_id, watermark_us, budget=True, started_ms=arrived_ms)
        if quiet:
            self._serve_backlog(batch_id, watermark_us)

    def _serve_backlog(self, batch_id: int, watermark_us: int) -> None:
        """Go on with what waits while the source is quiet: the next batch only comes with a tick."""
        until = time.monotonic() + _QUIET_S
        while time.monotonic() < until and not self.stopping.is_set():
            if not self._changing and not any(s.backlog for s in self.states.values()):
                return
            now_ms = time.time() * 1e3
            self._step(
                self.intake.nothing(), batch_id, watermark_us, budget=True, started_ms=now_ms
            )

    @property
    def _changing(self) -> bool:
        """Whether assignments change at the next boundaries, so that these must come."""
        return self.changes.pending or self.migrations.running

    def drain(self) -> None:
        """After the last batch: serve the backlog and emit what its watermark allows.

        Spark runs one more batch for its own stateful operators when a query with
        ``trigger(availableNow=True)`` ends; to Spark this query is stateless.
        """
        if not self.query.operators or self.latest is None:
            return
        evicted_us: int = self.latest.watermarks["evict_us"]
        final_us = self.log.next_watermark_us(self.latest.spark_batch)
        watermark_us = max(evicted_us, final_us or evicted_us)
        clock_ms = time.time() * 1e3
        while self._due(watermark_us, clock_ms) and not self.stopping.is_set():
            self.intake.enter()
            batch_id, now_ms = self.latest.spark_batch, time.time() * 1e3
            self._step(
                self.intake.nothing(), batch_id, watermark_us, budget=False, started_ms=now_ms
            )

    def give_up(self) -> None:
        """Do no batch any more, and wait for one that is under way."""
        self.stopping.set()
        self.idle.wait()

    def close(self) -> None:
        """Finish what goes on beside the batches; there will be none any more."""
        self.intake.close()
        self._intents.close()
        self._garbage.close()

    def redeliver_drained(self) -> None:
        """At the start: deliver what a drain had committed, if the driver died before its sink."""
        latest = self.latest
        if latest is None or not latest.engine.get("drain"):
            return
        noted = self.checkpoint.read_intent(latest.step) or {}
        if not noted.get("delivered"):
            self._deliver(latest)

    def _due(self, watermark_us: int, clock_ms: float) -> bool:
        """Whether there is work without any new record."""
        for op in self.query.operators:
            now_us = int(clock_ms * 1e3) if op.spec.by_clock else watermark_us - op.behind_us
            if self.states[op.id].backlog or min(self.states[op.id].due_us) <= now_us:
                return True
        return False

    def _step(
        self,
        batch: DataFrame,
        batch_id: int,
        watermark_us: int,
        *,
        budget: bool,
        started_ms: float,
    ) -> None:
        self._quiet_batches = 0
        # one per step, whatever its attempts; a clock that is put back does not put timers back
        self._timestamp_ms = max(self._timestamp_ms, int(started_ms))
        step = 0 if self.latest is None else self.latest.step + 1
        if self.latest is not None:
            watermark_us = max(watermark_us, self.latest.watermarks["evict_us"])
        self._take_wanted(step)
        clock = Phases()
        quotas = self._quotas(started_ms) if budget else dict.fromkeys(self.states)
        intent = self._intent(step, batch_id, watermark_us, quotas)
        self._intents.do(lambda: self.checkpoint.write_intent(step, intent))
        crash_point("after-intent", step)
        clock.lap("plan")
        reports, attempts = self._attempts(batch, step, watermark_us, quotas, clock)
        clock.lap("slots")
        crash_point("before-manifest", step)
        self._intents.wait()
        manifest = self._commit(step, batch_id, watermark_us, reports, drain=not budget)
        crash_point("after-manifest", step)
        clock.lap("manifest")
        emitted = self._deliver(manifest)
        if not budget:
            # Spark has no batch of its own for a drain whose commit would say so
            self.checkpoint.write_intent(step, {"step": step, "delivered": True})
        if self._into_sink:
            emitted = sum(r.output_rows for r in reports)
        crash_point("after-sink", step)
        clock.lap("sink")
        self.recorder.batch(
            self, manifest, reports, clock.phases_ms, attempts=attempts, emitted=emitted
        )
        if self.observer is not None:
            self.observer.committed(reports, started_ms, self._read_ms)
        self.after_step()
        for job in self._jobs:
            mine = [r for r in reports if r.operator == job.chain[0].id]
            job.preaggregation.learn(mine, self._cores)
        self._garbage.do(lambda: self.checkpoint.collect_garbage(manifest))

    def _quotas(self, now_ms: float) -> dict[str, list[int] | None]:
        """Return how many rows each slot of each operator may serve in the step that begins."""
        elapsed_s, self._served_ms = (now_ms - self._served_ms) / 1e3, now_ms
        rate = self.config.slot_rate
        quotas: dict[str, list[int] | None] = {}
        for operator in self.query.operators:
            state = self.states[operator.id]
            if operator.shared:
                # a copy waits in no slot's backlog: it would have to move with all key groups
                quotas[operator.id] = None
            elif rate is not None and operator.upstream is None:
                quotas[operator.id] = state.limited(rate, elapsed_s)
            else:
                quotas[operator.id] = state.quotas(self.config, self._cores, int(now_ms))
        return quotas

    def _take_wanted(self, step: int) -> None:
        asked = [name for name in self.states if self.changes.wanted(name) is not None]
        governed = [name for name in asked if self.migrations.governs(name)]
        for name, (before, new) in self.changes.take(governed).items():
            self.recorder.assignment(step, name, before, new)
            if self.observer is not None:
                self.observer.assigned(name, new)
        for name, one in self.migrations.begin(step).items():
            if one.final:
                self.recorder.assignment(step, name, one.before, one.wanted, one.moved_bytes)
            if self.observer is not None:
                self.observer.assigned(name, one.wanted, final=one.final)

    def _intent(
        self, step: int, batch_id: int, watermark_us: int, quotas: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "step": step,
            "spark_batch": batch_id,
            "epoch": self.changes.epoch,
            "watermark_us": watermark_us,
            "assignments": {n: assigned(s.assignment) for n, s in self.states.items()},
            "quotas": dict(quotas),
        }

    def _attempts(
        self,
        batch: DataFrame,
        step: int,
        watermark_us: int,
        quotas: Mapping[str, list[int] | None],
        clock: Phases,
    ) -> tuple[list[Report], int]:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._attempt(batch, step, attempt, watermark_us, quotas, clock), attempt
            except Exception as error:
                failed = processor_error(error)
                if failed is not None:
                    raise failed from None  # it would fail again, and its trace says no more
                if self.stopping.is_set() or attempt >= self.config.attempts or is_final(error):
                    raise
                self.recorder.retry(step, attempt, error)

    def _attempt(
        self,
        batch: DataFrame,
        step: int,
        attempt: int,
        watermark_us: int,
        quotas: Mapping[str, list[int] | None],
        clock: Phases,
    ) -> list[Report]:
        context = self.spark.sparkContext
        chains = self.query.chains
        for operator in self.query.operators:
            facts = self._facts(operator, step, attempt, watermark_us, quotas[operator.id])
            context.setLocalProperty(STEP_PROPERTY + operator.id, json.dumps(facts))
        if len(chains) > 1:
            batch = batch.persist()
        try:
            for job in self._jobs:
                self._describe(step, job.chain)
                rows = job.rows(batch, first=self.latest is None)
                if self._into_sink:
                    rows = self._results.straight(rows)
                clock.lap("plan")
                rows.count()
                clock.lap("slots")
        finally:
            if len(chains) > 1:
                batch.unpersist()
            # the sink's jobs are not slots' work
            context.setLocalProperty("spark.job.description", f"{self.config.name} b{step}: sink")
        reports = self.channel.drain(step, attempt)
        slots = {name: state.assignment.slots for name, state in self.states.items()}
        chosen: list[Report] = []
        for chain in chains:
            names = [op.id for op in chain]
            mine = [r for r in reports if r.operator in names]
            chosen += consistent(mine, slots, names)
        return chosen

    def _describe(self, step: int, chain: list[Operator]) -> None:
        parts = [f"{op.id} x{self.states[op.id].assignment.slots}" for op in chain]
        text = f"{self.config.name} b{step}: {', '.join(parts)}, epoch {self.changes.epoch}"
        self.spark.sparkContext.setLocalProperty("spark.job.description", text)

    def _emitted_schema(self, operator: Operator, task: SlotTask) -> T.StructType:
        if task.into_sink and task.next_operator is None:
            return operator.raw_schema
        if task.next_operator is None:
            # the last operator's output goes to the checkpoint, from where the sink gets it
            return T.StructType([T.StructField("nothing", T.IntegerType())])
        return T.StructType(operator.raw_schema.fields + exchange.MARKERS.fields)

    def _facts(
        self,
        operator: Operator,
        step: int,
        attempt: int,
        watermark_us: int,
        quotas: list[int] | None,
    ) -> dict[str, Any]:
        state = self.states[operator.id]
        following = self._tasks[operator.id].next_operator
        return {
            "step": step,
            "attempt": attempt,
            **self._places(),
            "watermark_us": watermark_us,
            "slot_of": state.assignment.slot_of,
            "held": sorted(state.held),
            "tokens": state.tokens,
            "steps": state.steps,
            "snapshot_every": self.config.snapshot_every,
            "quotas": quotas,
            "waiting_crc32": self.latest.checksums("backlog") if self.latest else {},
            "next_slots": self.states[following].assignment.slots if following else 0,
            "keep_late": self.config.keep_late,
            "delta_ms": self.config.delta_ms,
            "timestamp_ms": self._timestamp_ms,
            "time_limit_s": self.config.processor_limit_s,
            "bound_ms": self.observer.bound_ms(operator.id) if self.observer else 0.0,
            "arrived_ms": self._read_ms,
            "faults": [
                f for f in self.config.faults if f.get("operator", operator.id) == operator.id
            ],
            **state.engine_facts(),
        }

    def _places(self) -> dict[str, Any]:
        """Return where tasks find state: the arena and the checkpoint."""
        local = str(self.spark.sparkContext.master).startswith("local")
        return {
            # workers on other hosts have arenas of their own
            "arena_root": str(self.run.path.parent) if local else None,
            "run_id": self.run.run_id,
            "checkpoint": str(self.checkpoint.path),
        }

    # -- commit and delivery ----------------------------------------------------------------------

    def _commit(
        self, step: int, batch_id: int, watermark_us: int, reports: list[Report], *, drain: bool
    ) -> Manifest:
        facts = StepFacts(
            job=self.job,
            step=step,
            spark_batch=batch_id,
            epoch=self.changes.epoch,
            watermark_us=watermark_us,
            sources=self._last_sources,
            drain=drain,
        )
        manifest = next_manifest(facts, self.states, reports, self.latest, self.migrations.to_dict)
        self.latest = self.checkpoint.commit(manifest)
        self.migrations.committed(step)
        return self.latest

    def _deliver(self, manifest: Manifest) -> int:
        """Give a committed step's output to the sink; return its rows before the user's filters."""
        outputs = Outputs.read(manifest)
        if outputs.rows:
            frame = self._results.stored(outputs, self.checkpoint)
            self.sink.write(manifest.engine["sink_batch"], frame)
        return outputs.rows

    def _stateless(self, batch: DataFrame, batch_id: int) -> None:
        clock = Phases()
        self.sink.write(batch_id, batch)
        clock.lap("sink")
        self.recorder.stateless(batch_id, clock.phases_ms)
