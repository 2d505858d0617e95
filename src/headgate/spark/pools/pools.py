"""Runs the steps of a query of stateless Python stages, each on a pool of replicas.

A replica can serve any row. It is one task in each batch, on one of the warm Python workers. An inactive
replica without rows has no task, so it costs nothing; a deactivated replica has tasks until its rows
are served.

A stage's output is stored in the checkpoint before the next stage reads it, so that the output of a
repeated execution is never mixed with that of an earlier one.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.core.errors import EngineError
from headgate.journal.histogram import Sparse, merge
from headgate.spark.job.phases import Phases
from headgate.spark.job.ports import NoPoolObserver, PoolObserver
from headgate.spark.job.reports import ReplicaReport, ReportChannel
from headgate.spark.jvm.plans import ArrowMap, run_through
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.pools.dealing import lane_of_rows
from headgate.spark.pools.pool_input import Grafts, SourceRows
from headgate.spark.pools.pool_loop import PoolLoop
from headgate.spark.read.stages import Pipeline, Stage
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import pool_manifest
from headgate.spark.step.intake import Intake
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.output import Outputs, raw_frame
from headgate.spark.worker.facts import ReplicaFacts
from headgate.spark.worker.replica import ARRIVED, LANE, ORIGIN, ReplicaTask

_NOTHING = T.StructType([T.StructField("nothing", T.IntegerType())])
_KEPT = 10_000
"""Number of batches that a query keeps, since it may run for months."""


@dataclass(frozen=True)
class BatchLine:
    """Holds the result of one step of pools."""

    at_s: float
    """Seconds since the query began."""
    arrived: int
    emitted: int
    waiting: int
    lost: int
    """`arrived`, `emitted`, `waiting`, `lost`: rows from the source, rows put out, rows that wait at
    all stages, and rows lost in restarts since the first start."""
    active: dict[str, int]
    lanes: dict[str, int]
    """`active`, `lanes`: active replicas, and tasks, of each stage."""
    took_ms: float
    latency_sum_ms: float
    """Sum of the latencies at the last stages."""
    histogram: Sparse
    """Latencies at the last stages."""
    dropped: dict[str, int]
    """Rows dropped at all stages since the query's first start, by reason."""


@dataclass
class _Plan:
    """Holds the plan of one step of pools."""

    lanes: dict[str, list[int]]
    elapsed_s: float
    payloads: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)


class PoolWork:
    """Runs the steps of pools of replicas; a `Work`.

    `loop`: holds the pools, and changes them between two batches.

    Attributes
    ----------
    batches : deque of BatchLine    The last batches of this run.
    observer : PoolObserver    Observer of the steps; set before the first batch.
    """

    has_steps = True
    changing = False
    """Requested changes come into force without a step."""

    def __init__(
        self,
        spark: SparkSession,
        results: SparkSession,
        pipeline: Pipeline,
        loop: PoolLoop,
        checkpoint: Checkpoint,
        uuid: str,
    ) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.loop = loop
        self.config = loop.config
        self.states = loop.states
        self.recorder = loop.recorder
        self.checkpoint = checkpoint
        self.uuid = uuid
        schemas = {stage.id: stage.input_plan.schema() for stage in pipeline.stages}
        self.columns = {name: str(schema.catalogString()) for name, schema in schemas.items()}
        self.observer: PoolObserver = NoPoolObserver()
        self.batches: deque[BatchLine] = deque(maxlen=_KEPT)
        self._sources = SourceRows(spark, pipeline.sources)
        stream = self._sources.stream
        self.intake = Intake(stream, checkpoint.path, results, ticks=True, stateful=False)
        self._session, self._results = spark, results
        self._channel: ReportChannel[ReplicaReport] = ReportChannel(spark.sparkContext)
        self._maps = {
            stage.id: ArrowMap(
                ReplicaTask(
                    stage.id,
                    stage.function,
                    self._channel.sender,
                    stage.feeds,
                    checkpoint.options,
                ),
                _NOTHING,
            )
            for stage in pipeline.stages
        }
        self._numbers = {stage.id: n for n, stage in enumerate(pipeline.stages)}
        self._inputs = {
            stage.id: Grafts(spark, stage.input_plan, stage.holes)
            for stage in pipeline.stages
            if stage.holes
        }
        self._top = Grafts(spark, pipeline.plan, pipeline.holes)
        self._served_s = time.monotonic()
        self._plan = _Plan({}, 0.0)

    # -- what there is to do ----------------------------------------------------------------------

    @property
    def attempts(self) -> int:
        """Executions of a step before the query fails."""
        return self.config.attempts

    @property
    def waits(self) -> bool:
        """Return whether rows wait at a replica."""
        return self.waiting_rows() > 0

    def waiting_rows(self) -> int:
        """Return the number of rows that wait to be served."""
        return sum(sum(state.queued()) for state in self.states.values())

    def settle_in(self, batch: DataFrame) -> None:
        """Use the session of the batches from now on."""
        self._session = self.intake.settle_in(batch)

    def arrived(self) -> None:
        """Let the policy decide, and carry out requests; replicas never change within a batch."""
        self.loop.between_batches()

    def due(self, watermark_us: int, clock_ms: float) -> bool:
        """Return whether rows wait: no work of a stateless stage is due at a time."""
        return self.waits

    def quiet(self, watermark_us: int, read_ms: float, clock_ms: float) -> bool:
        """Record a batch with nothing to do, which needs no step."""
        self._served_s = time.monotonic()
        self.observer.quiet()
        return False

    def last_watermark_us(self, latest: Manifest, log: SparkLog) -> int:
        """Return 0: stateless stages use no watermark."""
        return 0

    # -- a step -----------------------------------------------------------------------------------

    def prepare(self, begun: Begun) -> dict[str, Any]:
        """Fix the step's lanes: one task for each replica that is active or has rows."""
        self.recorder.begun(begun)
        began_s = time.monotonic()
        elapsed_s, self._served_s = began_s - self._served_s, began_s
        lanes = {name: state.lanes for name, state in self.states.items()}
        self._plan = _Plan(lanes, elapsed_s)
        return {"lanes": lanes}

    def compute(
        self, batch: DataFrame, begun: Begun, attempt: int, clock: Phases
    ) -> list[ReplicaReport]:
        """Run all stages, one job each; return one report of each lane."""
        plan = self._plan = _Plan(self._plan.lanes, self._plan.elapsed_s)
        collected: list[ReplicaReport] = []
        made: dict[str, Outputs] = {}
        for stage in self.pipeline.stages:
            frame, rows = self._input(stage, batch, made)
            reports = self._run(stage, frame, rows, begun, attempt, clock)
            collected += reports
            outputs = made[stage.id] = Outputs(inline=plan.payloads)
            for report in reports:
                if report.output is not None:
                    outputs.add(report, plan.payloads, plan.files)
            if stage.id in self.pipeline.last:
                plan.outputs.entries += outputs.entries
        return collected

    def _input(
        self, stage: Stage, batch: DataFrame, made: dict[str, Outputs]
    ) -> tuple[DataFrame, int | None]:
        """Return the rows that a stage reads, and their number, if known."""
        if not stage.holes:
            return self._sources.of(stage, batch), None
        rows = sum(made[parent].rows for parent in stage.parents)
        filled = self._inputs[stage.id].over(lambda name: self._rows(name, made[name]))
        return filled, rows

    def _run(
        self,
        stage: Stage,
        frame: DataFrame,
        rows: int | None,
        begun: Begun,
        attempt: int,
        clock: Phases,
    ) -> list[ReplicaReport]:
        """Run one stage's replicas on the rows of `frame`."""
        state, context = self.states[stage.id], self.spark.sparkContext
        lanes = self._plan.lanes[stage.id]
        facts = self._facts(stage, begun, attempt).to_json()
        context.setLocalProperty(ReplicaFacts.PROPERTY + stage.id, facts)
        text = f"b{begun.number}: {stage.id} x{len(state.active)}, {len(lanes)} tasks"
        context.setLocalProperty("spark.job.description", text)
        lane = lane_of_rows(state, self.config, rows, seed=begun.number)
        routed = frame.withColumn(LANE, lane)
        routed = routed.repartitionById(len(lanes), LANE)
        mapped = self._maps[stage.id].apply(routed)
        clock.lap("plan")
        run_through(mapped)
        clock.lap("slots")
        reports = self._channel.drain(begun.number, attempt)
        by_lane = {r.lane: r for r in reports if r.operator == stage.id}
        if len(by_lane) != len(lanes):
            msg = (
                f"{len(by_lane)} reports came from {len(lanes)} replicas of {stage.id}; the batch runs "
                "again."
            )
            raise EngineError(msg, transient=True)
        return list(by_lane.values())

    def _facts(self, stage: Stage, begun: Begun, attempt: int) -> ReplicaFacts:
        state, lanes = self.states[stage.id], self._plan.lanes[stage.id]
        quotas = state.quotas(self.config, self._plan.elapsed_s)
        return ReplicaFacts(
            step=begun.number,
            attempt=attempt,
            checkpoint=self.checkpoint.location,
            backlog=[state.backlog.get(replica, []) for replica in lanes],
            waiting_crc32=begun.latest.checksums("backlog") if begun.latest else {},
            quotas=[0] * len(lanes) if self.loop.blocked else quotas,
            box_s=self.config.box_s,
            now_ms=time.time() * 1e3,
            timeout_s=self.config.timeout_s,
        )

    def _rows(self, name: str, outputs: Outputs, session: SparkSession | None = None) -> DataFrame:
        """Return the output of a stage, with the columns that accompany each row."""
        stage = self.pipeline.stages[self._numbers[name]]
        entries = [entry for entry in outputs.entries if entry["operator"] == name]
        schema = stage.raw_schema
        if stage.feeds:
            schema = T.StructType([*schema.fields, T.StructField(ARRIVED, T.DoubleType())])
        frame = raw_frame(
            session or self._session, schema, entries, outputs.inline, self.checkpoint
        )
        if not stage.feeds:
            frame = frame.withColumn(ARRIVED, F.lit(None).cast("double"))
        return frame.withColumn(ORIGIN, F.lit(self._numbers[name]))

    # -- commit and delivery ----------------------------------------------------------------------

    def manifest(self, begun: Begun, reports: list[ReplicaReport]) -> Manifest:
        """Return the manifest that commits the step; update the pools from the replicas' reports."""
        plan = self._plan
        for name, state in self.states.items():
            own = [report for report in reports if report.operator == name]
            state.apply(own, plan.lanes[name])
            if self.config.queue_max is not None:
                state.refuse(self.config.queue_max, own, plan.lanes[name])
            names = {segment[0] for segments in state.backlog.values() for segment in segments}
            for report in own:
                if report.waiting is not None and report.waiting.name in names:
                    file = f"backlog/{report.waiting.name}"
                    waiting = report.waiting
                    plan.files[file] = FileEntry(file, waiting.length, waiting.crc32)
        return pool_manifest(
            begun,
            self.uuid,
            self.states,
            plan.outputs,
            plan.files,
            plan.payloads,
            lost=self.loop.lost,
        )

    def committed(self, step: int) -> None:
        """Set the number of the next step."""
        self.loop.step = step + 1

    def result(self, outputs: Outputs) -> DataFrame:
        """Return the plan above the last stages, over the output of their replicas."""
        return self._top.over(lambda name: self._rows(name, outputs, self._results))

    def done(self, outcome: Outcome[ReplicaReport], begun: Begun) -> None:
        """Record a step whose output is delivered."""
        first = [stage.id for stage in self.pipeline.sources]
        leaving = [r for r in outcome.reports if r.operator in self.pipeline.last]
        now_s, lanes = time.monotonic(), self._plan.lanes
        arrived = sum(r.arrived for r in outcome.reports if r.operator in first)
        self.loop.arrived(arrived)
        self.batches.append(
            BatchLine(
                at_s=now_s - self.loop.began_s,
                arrived=arrived,
                emitted=outcome.emitted,
                waiting=self.waiting_rows(),
                lost=self.loop.lost,
                active={name: len(state.active) for name, state in self.states.items()},
                lanes={name: len(numbers) for name, numbers in lanes.items()},
                took_ms=sum(outcome.phases_ms.values()),
                latency_sum_ms=sum(r.latency_sum_ms for r in leaving),
                histogram=merge(r.histogram for r in leaving),
                dropped=self.loop.dropped(),
            )
        )
        self.recorder.batch(outcome, self.states, lanes[first[0]], now_s, self.loop.dropped())
        self.observer.committed(outcome.reports, lanes, outcome.phases_ms, begun.started_ms)

    def retry(self, step: int, attempt: int, error: Exception) -> None:
        """Write into the journal that an attempt failed and the step runs again."""
        self.recorder.retry(step, attempt, error)

    def passed_on(self, batch_id: int, phases_ms: dict[str, float]) -> None:
        """Do nothing: there is always a stage."""
