"""Runs the steps of a query of stateful operators: runs slots, and builds manifest and result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import EngineError
from headgate.journal.hosts import SlotLost
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.job import JobConfig
from headgate.spark.job.phases import Phases
from headgate.spark.job.ports import Ports
from headgate.spark.job.reports import Report, ReportChannel, consistent
from headgate.spark.jvm.executors import living_executors
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.plans import ArrowMap, internal_rows, leaf, physical
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.move.copy_thread import Copier, CopyThread
from headgate.spark.move.host_tasks import HostTasks
from headgate.spark.move.migrations import Migrations
from headgate.spark.move.placement import Placement
from headgate.spark.read.plan import PlannedOperator, row_by_row
from headgate.spark.sinks.ports import Sink
from headgate.spark.step import exchange
from headgate.spark.step.begun import Begun
from headgate.spark.step.chain import ChainJob
from headgate.spark.step.commit import assigned, next_manifest
from headgate.spark.step.intake import Intake
from headgate.spark.step.live import LiveJob
from headgate.spark.step.losses import Losses, stages_beside
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.output import Outputs, Results, raw_frame
from headgate.spark.step.preaggregate import Preaggregation
from headgate.spark.step.unfold import unfolding
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.slot import SlotTask
from headgate.tables.arena import RunDirectory

_HEARTBEAT_STEPS = 40
"""Quiet batches after which a step runs nevertheless: Spark keeps the offsets of 100 batches, and a
restart must tell quiet batches from lost batches."""


class StatefulWork:
    """Runs the steps of stateful operators; a `Work`.

    `run`: the arena directory of this run.
    """

    has_batches = True
    """Whether its steps belong to Spark's batches; False in real time."""

    def __init__(
        self,
        spark: SparkSession,
        results: SparkSession,
        job: LiveJob,
        checkpoint: Checkpoint,
        uuid: str,
        run: RunDirectory,
        sink: Sink,
        ports: Ports,
    ) -> None:
        self.spark = spark
        self.job = job
        self.query = job.query
        self.checkpoint = checkpoint
        self.uuid = uuid
        self.run = run
        self.recorder = job.recorder
        self.states = job.states
        self.changes = job.changes
        self._observer = ports.observer
        self._executors = ports.executors
        self._channel: ReportChannel[Report] = ReportChannel(spark.sparkContext)
        self._losses = Losses(living_executors(spark), stages_beside(spark.sparkContext))
        self._quotas: dict[str, list[int] | None] = {}
        self._agreed_on: list[Report] = []
        self._served_ms = time.time() * 1e3
        self._quiet_batches = 0
        query, config = self.query, job.config
        inside = self.has_batches and sink.inside
        self._into_sink = inside and len(query.chains) == 1 and row_by_row(query.plan)
        """Whether a step's job also writes the result into the sink."""
        self._tasks = self._make_tasks()
        self._slots = {
            op.id: ArrowMap(self._tasks[op.id], self._emitted_schema(op, self._tasks[op.id]))
            for op in query.operators
        }
        unfolded = unfolding(spark, query, config.key_groups)
        stream = (
            exchange.streaming_input(spark, query, config.key_groups)
            if unfolded is None
            else unfolded.stream()
        )
        stateful = bool(query.operators)
        self.intake = Intake(stream, checkpoint.path, results, ticks=stateful, stateful=stateful)
        self._results = Results(results, query)
        by_operator = {op.id: op.columns for op in query.operators}
        self.columns = {name: columns for name, columns in by_operator.items() if columns}
        self._placements = {op.id: Placement(spark) for op in query.operators}
        self._chains = [
            ChainJob(
                spark,
                chain,
                self._slots,
                self.states,
                self._placements,
                Preaggregation(
                    chain[0], "off" if chain[0].feeds else config.preaggregate, unfolded
                ),
                config.key_groups,
                alone=bool(chain[0].feeds) or len(query.sources) == 1,
            )
            for chain in query.chains
        ]
        self._copy_thread = CopyThread(self._host_tasks)
        self.migrations = Migrations(
            # each slot of a shared operator gets every record, so no record can wait for one key group
            {op.id: self.states[op.id] for op in query.operators if not op.shared},
            self.changes,
            self._placements,
            self._copy_thread,
            config.migration,
            self.recorder.write,
        )
        self._resume_migrations()

    @property
    def config(self) -> JobConfig:
        """The job's current settings."""
        return self.job.config

    def _resume_migrations(self) -> None:
        latest = self.job.latest
        facts = latest.engine["operators"] if latest is not None else {}
        for name in self.states:
            if facts and facts[name].get("migration"):
                self.migrations.restore(name, facts[name]["migration"])

    def _host_tasks(self) -> Copier:
        specs = {op.id: op.spec for op in self.query.operators}
        store = self.checkpoint.options
        return HostTasks(self.spark, specs, self._places(), self.config.name, store)

    def _make_tasks(self) -> dict[str, SlotTask]:
        tasks = {}
        for chain in self.query.chains:
            following = [op.id for op in chain[1:]] + [None]
            for op, after in zip(chain, following, strict=True):
                tasks[op.id] = SlotTask(
                    op.id,
                    op.spec,
                    self._channel.sender,
                    after,
                    into_sink=self._into_sink,
                    store=self.checkpoint.options,
                )
        return tasks

    def rehearse(self) -> None:
        """Plan an empty batch and an empty result, and run neither.

        So the JVM loads and compiles Catalyst now; otherwise this costs the first batches seconds.
        """
        if not self.query.operators:
            return
        nothing = self.intake.rehearsal()
        for chain in self._chains:
            head = chain.chain[0]
            chain.rows(self._fed(nothing.sparkSession, head, []) if head.feeds else nothing)
            chain.forget()
        physical(self._results.stored(Outputs(), self.checkpoint))

    # -- demand -----------------------------------------------------------------------------------

    @property
    def has_steps(self) -> bool:
        """Return whether the query has stateful operators; otherwise Catalyst runs it alone."""
        return bool(self.query.operators)

    @property
    def attempts(self) -> int:
        """Executions of a step before the query fails."""
        return self.config.attempts

    @property
    def changing(self) -> bool:
        """Return whether a change of assignment or a migration needs the next boundary."""
        return self.changes.pending or self.migrations.running

    @property
    def waits(self) -> bool:
        """Return whether records wait for their slots."""
        return any(state.backlog for state in self.states.values())

    def waiting_rows(self) -> int:
        """Return the number of rows that wait."""
        return sum(state.waiting_rows() for state in self.states.values())

    def settle_in(self, batch: DataFrame) -> None:
        """Take the session of the batches."""
        self.intake.settle_in(batch, [rows for chain in self._chains for rows in chain.into_slots])

    def arrived(self) -> None:
        """Request executors if requested changes need more."""
        self.changes.arrange()

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether there is work without any new record."""
        for op in self.query.operators:
            now_us = int(clock_ms * 1e3) if op.spec.by_clock else watermark_us - op.behind_us
            if self.states[op.id].backlog or min(self.states[op.id].due_us) <= now_us:
                return True
        return False

    def quiet(self, watermark_us: int, read_ms: float, clock_ms: float) -> bool:
        """Take note of a batch with nothing to do; return whether a heartbeat step is due."""
        self._quiet_batches += 1
        for op in self.query.operators:  # records behind the watermark are late now, as in Spark
            self.states[op.id].nothing_due(watermark_us - op.behind_us)
        self._served_ms = clock_ms
        self._observer.quiet(read_ms)
        return self._quiet_batches % _HEARTBEAT_STEPS == 0

    def last_watermark_us(self, latest: Manifest, log: SparkLog) -> int:
        """Return the watermark after Spark's last batch."""
        evicted_us: int = latest.watermarks["evict_us"]
        return max(evicted_us, log.next_watermark_us(latest.spark_batch) or evicted_us)

    # -- computation ------------------------------------------------------------------------------

    def prepare(self, begun: Begun) -> dict[str, Any]:
        """Put requested assignments in force; return the intent's entries: assignments and quotas."""
        self._quiet_batches = 0
        self.recorder.begun(begun)
        self._put_requested(begun.number)
        now_ms = begun.started_ms
        self._quotas = dict.fromkeys(self.states) if begun.drain else self._all_quotas(now_ms)
        return {
            "epoch": self.changes.epoch,
            "watermark_us": begun.watermark_us,
            "assignments": {n: assigned(s.assignment) for n, s in self.states.items()},
            "quotas": dict(self._quotas),
        }

    def _all_quotas(self, now_ms: float) -> dict[str, list[int] | None]:
        """Return each slot's quota in rows, by operator, for the step that begins."""
        elapsed_s, self._served_ms = (now_ms - self._served_ms) / 1e3, now_ms
        rate = self.config.slot_rate
        quotas: dict[str, list[int] | None] = {}
        for operator in self.query.operators:
            state = self.states[operator.id]
            if operator.shared:
                # no backlog may have copies of a record: they would have to move with all key groups
                quotas[operator.id] = None
            elif rate is not None and not operator.parents:
                quotas[operator.id] = state.limited(rate, elapsed_s)
            else:
                quotas[operator.id] = state.quotas(self.config, self._executors.cores, int(now_ms))
        return quotas

    def _put_requested(self, step: int) -> None:
        requested = [name for name in self.states if self.changes.requested(name) is not None]
        governed = [name for name in requested if self.migrations.governs(name)]
        self._note_assigned(self.changes.put_in_force(governed), step)
        self._note_assigned(self.migrations.begin(step), step)

    def _note_assigned(self, requests: Mapping[str, AssignmentRequest], step: int) -> None:
        """Write into the journal which requests come into force, and notify the observer."""
        for name, request in requests.items():
            if request.state is not RequestState.MOVING:
                self.recorder.assignment(step, name, request)
            self._observer.assigned(name, request)

    def compute(self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases) -> list[Report]:
        """Run all slots, one chain after another; return one report of each slot."""
        context = self.spark.sparkContext
        step, several = begun.number, len(self.query.sources) > 1
        reports = self._agreed_on = []
        if several:
            batch = batch.persist()
        try:
            for chain in self._chains:
                self._describe(step, chain.chain)
                head = chain.chain[0]
                allowed_us = begun.watermark_us
                frame = batch
                if head.feeds:
                    read = [r for r in reports if r.operator in {up.id for up in head.feeds}]
                    allowed_us = min([allowed_us, *(r.holds_us for r in read)])
                    frame = self._fed(batch.sparkSession, head, read)
                for operator in chain.chain:
                    facts = self._facts(operator, begun, attempt, allowed_us).to_json()
                    context.setLocalProperty(SlotFacts.PROPERTY + operator.id, facts)
                rows = chain.rows(frame, first=begun.latest is None)
                if self._into_sink:
                    rows = self._results.straight(rows)
                clock.lap("plan")
                rows.count()
                reports += self._agreed(chain.chain, self._channel.drain(step, attempt))
                clock.lap("slots")
        finally:
            if several:
                batch.unpersist()
            # the sink's jobs get their own description
            context.setLocalProperty("spark.job.description", f"{self.config.name} b{step}: sink")
        return reports

    def _fed(
        self, spark: SparkSession, head: PlannedOperator, reports: Sequence[Report]
    ) -> DataFrame:
        """Return the routed input of an operator that reads other operators' output of this step."""
        put_out = {}
        for parent in head.parents:
            outputs = Outputs.reported([r for r in reports if r.operator == parent.id])
            frame = raw_frame(
                spark, parent.raw_schema, outputs.entries, outputs.inline, self.checkpoint
            )
            put_out[parent.id] = self._leaf_of(parent, frame)
        return exchange.fed_input(spark, head, put_out, self.config.key_groups)

    def _leaf_of(self, operator: PlannedOperator, frame: DataFrame) -> Jvm:
        """Return an operator's output as a leaf for the plans of its readers."""
        return leaf(frame.sparkSession, operator.placeholder.output(), internal_rows(frame))

    def _agreed(self, chain: list[PlannedOperator], reports: Sequence[Report]) -> list[Report]:
        slots = {name: state.assignment.slots for name, state in self.states.items()}
        names = [op.id for op in chain]
        chosen = consistent([r for r in reports if r.operator in names], slots, names)
        for report in chosen:
            if self.states[report.operator].assignment.split:
                self._refuse_dealt_again(report)
        return chosen

    def _refuse_dealt_again(self, report: Report) -> None:
        """Raise a transient EngineError if Spark has repeated part of a stage while groups are split.

        A record's position among the rows chooses its slot in a split group, and rows that are read again
        may come in another order. A slot that ended before the repetition has the first distribution.
        """
        stage = self.spark.sparkContext.statusTracker().getStageInfo(report.stage)
        if stage is not None and stage.currentAttemptId > 0:
            msg = (
                f"rows for {report.operator} were lost and read again while key groups are split; "
                "the batch runs again."
            )
            raise EngineError(msg, transient=True)

    def _describe(self, step: int, chain: list[PlannedOperator]) -> None:
        parts = [f"{op.id} x{self.states[op.id].assignment.slots}" for op in chain]
        text = f"{self.config.name} b{step}: {', '.join(parts)}, epoch {self.changes.epoch}"
        self.spark.sparkContext.setLocalProperty("spark.job.description", text)

    def _emitted_schema(self, operator: PlannedOperator, task: SlotTask) -> T.StructType:
        if task.into_sink and task.next_operator is None:
            return operator.raw_schema
        if task.next_operator is None:
            # the last operator's output goes to the checkpoint, where the sink reads it
            return T.StructType([T.StructField("nothing", T.IntegerType())])
        return T.StructType(operator.raw_schema.fields + exchange.MARKERS.fields)

    def _facts(
        self, operator: PlannedOperator, begun: Begun, attempt: int, watermark_us: int
    ) -> SlotFacts:
        state, config = self.states[operator.id], self.config
        following = self._tasks[operator.id].next_operator
        return SlotFacts(
            step=begun.number,
            attempt=attempt,
            **self._places(),
            watermark_us=watermark_us,
            slot_of=state.assignment.slot_of,
            split={str(g): shares for g, shares in state.assignment.split.items()},
            stands_us={str(g): us for g, us in state.standing().items()},
            held=sorted(state.held),
            tokens=state.tokens,
            steps=state.steps,
            emitted_us=state.emitted_us,
            due_us=state.due_us,
            snapshots=state.due_for_snapshot(begun.number, config.snapshot_every),
            backlog={str(group): waiting for group, waiting in state.backlog.items() if waiting},
            waiting_crc32=begun.latest.checksums("backlog") if begun.latest else {},
            quotas=self._quotas[operator.id],
            next_slots=self.states[following].assignment.slots if following else 0,
            keep_late=config.keep_late,
            show_keys=config.show_keys,
            delta_ms=config.delta_ms,
            bound_ms=self._observer.bound_ms(operator.id),
            origins=self._observer.asks_origins(),
            timestamp_ms=begun.timestamp_ms,
            time_limit_s=config.processor_limit_s,
            arrived_ms=begun.read_ms,
            faults=[f for f in config.faults if f.get("operator", operator.id) == operator.id],
        )

    def _places(self) -> dict[str, Any]:
        """Return the places of state for tasks: arena, spill directory and checkpoint."""
        local = str(self.spark.sparkContext.master).startswith("local")
        memory = None
        if self.run.spill is not None:
            memory = {
                "byte_count": self.config.memory_max,
                "key_groups": self.config.key_groups,
                "spill_root": str(self.run.spill.path.parent),
            }
        return {
            "memory": memory,
            # on a cluster each host has its own arena
            "arena_root": str(self.run.path.parent) if local else None,
            "run_id": self.run.run_id,
            "checkpoint": self.checkpoint.location,
        }

    # -- commit and delivery ----------------------------------------------------------------------

    def manifest(self, begun: Begun, reports: list[Report]) -> Manifest:
        """Return the manifest that commits the step, and apply the reports to `states`."""
        migration = self.migrations.to_dict
        last = {op.id for op in self.query.last}
        # only the last operators' output is delivered; other operators have read the rest
        committed = [r if r.operator in last else replace(r, output=None) for r in reports]
        return next_manifest(
            begun, self.uuid, self.changes.epoch, self.states, committed, migration
        )

    def committed(self, step: int) -> None:
        """Take note that a step is final."""
        self.migrations.committed(step)

    def result(self, outputs: Outputs) -> DataFrame:
        """Return the result of the user's plan on the slots' output."""
        return self._results.stored(outputs, self.checkpoint)

    def done(self, outcome: Outcome[Report], begun: Begun) -> None:
        """Write a committed step into the journal, and notify observer and executors."""
        reports = outcome.reports
        if self._into_sink:
            outcome = replace(outcome, emitted=sum(r.output_rows for r in reports))
        self.recorder.batch(outcome, self.states, self._observer.state())
        if outcome.emitted:
            self.recorder.progress.observe(begun.spark_batch, self._results.observed())
        self._note_lost(begun.number, self._losses.in_step(reports))
        self._observer.committed(reports, begun.started_ms, begun.read_ms)
        slots = max(self.job.slots_in_use(name) for name in self.states)
        self._executors.settled(slots, self._hosts_in_use)
        for chain in self._chains:
            own = [r for r in reports if r.operator == chain.chain[0].id]
            chain.preaggregation.learn(own, self._executors.cores)

    def _hosts_in_use(self) -> set[str]:
        """Return the hosts on which headgate places slots; none if Spark places them."""
        placed = [(n, self._placements[n]) for n in self.states if self._placements[n].active]
        return {h for n, placement in placed for h in placement.hosts_of(self.job.slots_in_use(n))}

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write into the journal that the step runs again, and note the slots that were lost."""
        self.recorder.retry(step, attempt, error)
        slots = {name: state.assignment.slots for name, state in self.states.items()}
        chains = [{op.id: slots[op.id] for op in chain} for chain in self.query.chains]
        reports = [*self._agreed_on, *self._channel.drain(step, attempt)]
        self._note_lost(step, self._losses.in_attempt(error, chains, reports))

    def _note_lost(self, step: int, lost: Sequence[tuple[str, int]]) -> None:
        for operator, slot in lost:
            # the replacement runs this step under its assignment, and the next step under the newest
            epoch = self.changes.newest(operator).epoch
            self.recorder.write(SlotLost(step, operator, slot, epoch))
            self._observer.lost(operator, slot)

    def passed_on(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Write a batch of a query without operators into the journal."""
        self.recorder.stateless(batch_id, phases_ms)
