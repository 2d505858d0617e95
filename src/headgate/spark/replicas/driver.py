"""The batches of a running query of pools, seen from the driver.

One step: lanes, intent, one job per stage, manifest (the commit point), sink. What a stage puts out is
kept in the checkpoint before the next one reads it, so that an execution that Spark repeats reads, and
puts out, rows of its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.control.replicas import Interval, ReplicaPolicy
from headgate.core.errors import EngineError, HeadgateError, NotReady
from headgate.journal.histogram import Sparse, merge
from headgate.loop.replicas import run_interval
from headgate.spark.job.faults import crash_point
from headgate.spark.job.reports import ReportChannel
from headgate.spark.jvm.gateway import ArrowMap, Graft, leaf, of_rows
from headgate.spark.jvm.sparklog import SparkLog
from headgate.spark.jvm.tick import Tick
from headgate.spark.replicas.pools import PoolConfig, PoolState, stride
from headgate.spark.replicas.reading import Pipeline, Stage, arrived_ms
from headgate.spark.replicas.record import PoolRecorder
from headgate.spark.replicas.task import (
    ARRIVED,
    FACTS_PROPERTY,
    LANE,
    ReplicaReport,
    ReplicaTask,
)
from headgate.spark.step.exchange import with_ticks
from headgate.spark.step.output import Outputs, raw_frame
from headgate.spark.step.recovery import (
    check_begins,
    check_continues,
    check_has_state,
    check_same_data,
)
from headgate.spark.step.sinks import Sink
from headgate.state.checkpoint import Checkpoint
from headgate.state.manifest import FileEntry, Manifest

_NOTHING = T.StructType([T.StructField("nothing", T.IntegerType())])
_QUIET_S = 0.8
"""How long waiting rows are served between two ticks."""

_ROW_BITS = 2**33 - 1
"""The part of ``monotonically_increasing_id`` that numbers the rows within a partition."""

_BACKLOG = "backlog/"
_KEPT = 10_000
"""Batches and decisions that a query tells of; a query may run for months."""

_ADAPTIVE = "spark.sql.adaptive.enabled"


@dataclass(frozen=True)
class BatchLine:
    """What one step did.

    Attributes
    ----------
    at_s : float
        Since the query began.
    arrived, emitted, waiting, lost : int
        Rows: of the source, put out, waiting at all stages, lost in restarts since the start.
    active, lanes : dict of str to int
        Active replicas, and tasks, of each stage.
    took_ms : float
    latency_sum_ms : float
        At the last stage.
    histogram : Sparse
        At the last stage.
    """

    at_s: float
    arrived: int
    emitted: int
    waiting: int
    lost: int
    active: dict[str, int]
    lanes: dict[str, int]
    took_ms: float
    latency_sum_ms: float
    histogram: Sparse


@dataclass
class _Step:
    """What a step has done so far, before it is committed."""

    lanes: dict[str, list[int]]
    attempts: int = 1
    reports: dict[str, list[ReplicaReport]] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    outputs: Outputs = field(default_factory=Outputs)


class ReplicaDriver:
    """Runs the steps of one query; a `PoolEngine`.

    Parameters
    ----------
    spark : SparkSession
    pipeline : Pipeline
    config : PoolConfig
    policy : ReplicaPolicy
    checkpoint : Checkpoint
        Opened.
    job : str
        The checkpoint's uuid.
    sink : Sink
    recorder : PoolRecorder
        Writes the journal.

    Attributes
    ----------
    states : dict of str to PoolState
        By stage, from the source upwards.
    batches : deque of BatchLine
        The last ones of this run.
    decisions : deque of (float, str)
        The last ones: when, in seconds since the query began, and why.
    tick : Tick
        What begins a batch where the source is quiet.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        config: PoolConfig,
        policy: ReplicaPolicy,
        checkpoint: Checkpoint,
        job: str,
        sink: Sink,
        recorder: PoolRecorder,
    ) -> None:
        self.spark = spark
        self.pipeline = pipeline
        self.config = config
        self.policy = policy
        self.checkpoint = checkpoint
        self.job = job
        self.sink = sink
        self.recorder = recorder
        self.latest: Manifest | None = checkpoint.latest()
        if self.latest is None:
            check_has_state(checkpoint.path)
        self.states = self._states()
        self.batches: deque[BatchLine] = deque(maxlen=_KEPT)
        self.decisions: deque[tuple[float, str]] = deque(maxlen=_KEPT)
        self.lost = 0 if self.latest is None else int(self.latest.engine["lost"])
        self.stopping = threading.Event()
        self.idle = threading.Event()
        self.idle.set()
        self.failed: Exception | None = None
        self.settled = 0
        self.begun = 0
        self.tick = Tick(spark, checkpoint.path)
        self._recovering = self.latest is not None
        self._log = SparkLog(spark)
        self._channel: ReportChannel[ReplicaReport] = ReportChannel(spark.sparkContext)
        self._maps = {
            stage.id: ArrowMap(
                ReplicaTask(stage.id, stage.function, self._channel.sender), _NOTHING
            )
            for stage in pipeline.stages
        }
        self._grafts = _grafts(spark, pipeline)
        self._schema: T.StructType | None = None
        self._session: SparkSession | None = None
        self._sources: list[str] | None = None
        self._start_s = self._interval_s = self._served_s = time.monotonic()
        self._blocked_until_s = 0.0
        self._input = 0
        self._wanted: dict[str, int] = {}
        self._seen: Interval | None = None

    def _states(self) -> dict[str, PoolState]:
        known = {} if self.latest is None else self.latest.engine["pools"]
        return {
            stage.id: PoolState.recovered(self.config, known[stage.id])
            if stage.id in known
            else PoolState.fresh(self.config)
            for stage in self.pipeline.stages
        }

    def streaming_input(self) -> DataFrame:
        """Return the streaming DataFrame that batches are made of: the first stage's rows, and ticks."""
        first = self.pipeline.stages[0]
        rows = of_rows(self.spark, first.input_plan)
        rows = rows.withColumn(ARRIVED, arrived_ms(self.pipeline.arrival))
        frame = with_ticks(rows, self.tick.frame)
        self._schema = frame.schema
        return frame

    # -- steps ------------------------------------------------------------------------------------

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Do one micro-batch; Spark's ``foreachBatch`` function."""
        self.idle.clear()
        self.begun += 1
        try:
            if self.stopping.is_set():
                self.idle.set()
                self._log.refuse_batch()
            self._process(batch, batch_id)
        except Exception as error:
            self.failed = error  # Spark hands on its text only
            raise
        finally:
            self.idle.set()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        if self._session is None:
            # an adaptive plan runs its stages while it is being made
            batch.sparkSession.conf.set(_ADAPTIVE, "false")
            self._session = batch.sparkSession
        sources = self._log.batch(batch_id).offsets
        if self.latest is None:
            check_begins(self.checkpoint.path, batch_id)
        elif self._recovering:
            self._recovering = False
            if self._delivered_again(batch_id, sources):
                self._sources = sources
                return
        quiet = sources == self._sources
        self._sources = sources
        self._end_interval()
        self._take_wanted()
        if not quiet or self._waiting:
            self._step(batch, batch_id)
        else:
            self.settled = self.begun
            self._served_s = time.monotonic()
        until_s = time.monotonic() + _QUIET_S
        while quiet and self._waiting and time.monotonic() < until_s and not self.stopping.is_set():
            self._step(self._nothing(), batch_id)

    def serve_rest(self) -> None:
        """After the last batch of a finite query: serve what waits."""
        while self._waiting and not self.stopping.is_set():
            assert self.latest is not None
            self._step(self._nothing(), self.latest.spark_batch, rest=True)

    def redeliver_rest(self) -> None:
        """At the start: deliver what `serve_rest` had committed, if the driver died before its sink."""
        latest = self.latest
        if latest is None or not latest.engine["rest"]:
            return
        noted = self.checkpoint.read_intent(latest.step) or {}
        if not noted.get("delivered"):
            self._deliver(latest)

    def _take_wanted(self) -> None:
        """Do what was asked for while a batch ran: within one, replicas never change."""
        wanted, self._wanted = self._wanted, {}
        before = {name: len(self.states[name].active) for name in wanted}
        for name, replicas in wanted.items():
            self.states[name].resize(replicas)
        self._note_sizes(before, "user", "")

    def ask(self, wanted: Mapping[str, int]) -> None:
        """Have so many replicas of each stage named active from the next batch on."""
        self._wanted = {**self._wanted, **wanted}

    @property
    def _waiting(self) -> int:
        return sum(sum(state.queued()) for state in self.states.values())

    @property
    def _next_step(self) -> int:
        return 0 if self.latest is None else self.latest.step + 1

    def _nothing(self) -> DataFrame:
        assert self._session is not None
        assert self._schema is not None
        return self._session.createDataFrame([], self._schema)

    def _delivered_again(self, batch_id: int, sources: list[str]) -> bool:
        """After a restart: deliver what was committed, its output perhaps not; the same bytes."""
        latest, path = self.latest, self.checkpoint.path
        assert latest is not None
        if latest.spark_batch != batch_id:
            check_continues(path, latest, batch_id, self._log)
            return False
        check_same_data(path, latest, batch_id, sources)
        self._deliver(latest)
        return True

    def _step(self, batch: DataFrame, batch_id: int, *, rest: bool = False) -> None:
        began_s = time.monotonic()
        number = self._next_step
        elapsed_s, self._served_s = began_s - self._served_s, began_s
        step = self._attempts(batch, number, elapsed_s)
        crash_point("before-manifest", number)
        self._commit(step, number, batch_id, rest=rest)
        crash_point("after-manifest", number)
        assert self.latest is not None
        self._deliver(self.latest)
        if rest:
            # Spark has no batch of its own for these steps whose commit would say so
            self.checkpoint.write_intent(number, {"step": number, "delivered": True})
        self.checkpoint.collect_garbage(self.latest)
        self._note(step, began_s)

    def _attempts(self, batch: DataFrame, number: int, elapsed_s: float) -> _Step:
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._attempt(batch, number, attempt, elapsed_s)
            except Exception as error:
                final = isinstance(error, HeadgateError) and not getattr(error, "transient", False)
                if self.stopping.is_set() or attempt >= self.config.attempts or final:
                    raise
                self.recorder.retry(number, attempt, error)

    def _attempt(self, batch: DataFrame, number: int, attempt: int, elapsed_s: float) -> _Step:
        step = _Step({name: state.lanes for name, state in self.states.items()}, attempt)
        frame, rows = batch, None
        for stage in self.pipeline.stages:
            self._run(step, stage, frame, rows, (number, attempt, elapsed_s))
            outputs = Outputs()
            for report in step.reports[stage.id]:
                if report.output is not None:
                    outputs.add(report, step.payloads, step.files)
            if stage is self.pipeline.stages[-1]:
                step.outputs = outputs
            else:
                outputs.inline = step.payloads
                frame = self._following(stage, outputs)
                rows = outputs.rows
        return step

    def _run(
        self,
        step: _Step,
        stage: Stage,
        frame: DataFrame,
        rows: int | None,
        facts: tuple[int, int, float],
    ) -> None:
        """Run one stage's replicas on the rows of `frame`."""
        number, attempt, elapsed_s = facts
        state, context = self.states[stage.id], self.spark.sparkContext
        lanes = step.lanes[stage.id]
        blocked = time.monotonic() < self._blocked_until_s
        given = {
            "step": number,
            "attempt": attempt,
            "checkpoint": str(self.checkpoint.path),
            "crc32": self.latest.checksums("backlog") if self.latest else {},
            "backlog": [state.backlog.get(replica, []) for replica in lanes],
            "quotas": [0] * len(lanes) if blocked else state.quotas(self.config, elapsed_s),
            "box_s": self.config.box_s,
            "now_ms": time.time() * 1e3,
        }
        context.setLocalProperty(FACTS_PROPERTY + stage.id, json.dumps(given))
        text = f"b{number}: {stage.id} x{len(state.active)}, {len(lanes)} tasks"
        context.setLocalProperty("spark.job.description", text)
        order = state.order(self.config, rows)
        begin = f"spark_partition_id() * {stride(len(order), len(state.active))}"
        row = f"(monotonically_increasing_id() & {_ROW_BITS})"
        place = f"cast(pmod({begin} + {row}, {len(order)}) as int) + 1"
        lane = F.expr(f"element_at(array({','.join(map(str, order))}), {place})")
        routed = frame.withColumn(LANE, lane)
        routed = routed.repartitionById(len(lanes), LANE)
        self._maps[stage.id].apply(routed)._jdf.queryExecution().toRdd().count()
        found = {r.lane: r for r in self._channel.drain(number, attempt) if r.operator == stage.id}
        if len(found) != len(lanes):
            msg = (
                f"{len(found)} reports came from {len(lanes)} replicas of {stage.id}; the batch runs "
                "again."
            )
            raise EngineError(msg, transient=True)
        step.reports[stage.id] = list(found.values())

    def _following(self, stage: Stage, outputs: Outputs) -> DataFrame:
        """Return the rows that the stage above `stage` reads."""
        made = self._rows(stage, outputs)
        frame = of_rows(made.sparkSession, self._grafts[stage.id].onto(_leaf(made, stage)))
        return frame.withColumn(ARRIVED, F.lit(None).cast("double"))

    def _rows(self, stage: Stage, outputs: Outputs) -> DataFrame:
        session = self._session or self.spark
        return raw_frame(
            session, stage.raw_schema, outputs.entries, outputs.inline, self.checkpoint
        )

    # -- commit and delivery ----------------------------------------------------------------------

    def _commit(self, step: _Step, number: int, batch_id: int, *, rest: bool) -> None:
        latest = self.latest
        for name, state in self.states.items():
            state.apply(step.reports[name], step.lanes[name])
            for report in step.reports[name]:
                if report.waiting is not None:
                    file = f"{_BACKLOG}{report.waiting.name}"
                    waiting = report.waiting
                    step.files[file] = FileEntry(file, waiting.length, waiting.crc32)
        first = self.pipeline.stages[0].id
        self._input += sum(report.arrived for report in step.reports[first])
        held = {
            f"{_BACKLOG}{name}"
            for state in self.states.values()
            for segments in state.backlog.values()
            for name, _, _ in segments
        }
        older = {f.name: f for f in (latest.files if latest else ()) if f.name in held}
        kept = {entry["inline"] for entry in step.outputs.entries if "inline" in entry}
        before: int = latest.engine["sink_batch"] if latest else -1
        delivered = bool(step.outputs.rows)
        manifest = Manifest(
            job=self.job,
            step=number,
            spark_batch=batch_id,
            epoch=0,
            assignments={},
            watermarks={},
            heads={},
            sections={},
            files=tuple((older | step.files).values()),
            engine={
                "pools": {name: state.facts() for name, state in self.states.items()},
                "outputs": step.outputs.entries,
                "sink_batch": before + 1 if delivered else before,
                "sources": self._sources,
                "rest": rest,
                "lost": self.lost,
            },
            previous=latest.digest if latest else None,
            payloads={name: data for name, data in step.payloads.items() if name in kept},
        )
        self.latest = self.checkpoint.commit(manifest)

    def _deliver(self, manifest: Manifest) -> None:
        outputs = Outputs.read(manifest)
        if outputs.rows:
            last = self.pipeline.stages[-1]
            rows = self._rows(last, outputs)
            frame = of_rows(rows.sparkSession, self._grafts[last.id].onto(_leaf(rows, last)))
            self.sink.write(manifest.engine["sink_batch"], frame)

    def _note(self, step: _Step, began_s: float) -> None:
        first, last = self.pipeline.stages[0].id, self.pipeline.stages[-1].id
        line = BatchLine(
            at_s=time.monotonic() - self._start_s,
            arrived=sum(r.arrived for r in step.reports[first]),
            emitted=step.outputs.rows,
            waiting=self._waiting,
            lost=self.lost,
            active={name: len(state.active) for name, state in self.states.items()},
            lanes={name: len(lanes) for name, lanes in step.lanes.items()},
            took_ms=(time.monotonic() - began_s) * 1e3,
            latency_sum_ms=sum(r.latency_sum_ms for r in step.reports[last]),
            histogram=merge(r.histogram for r in step.reports[last]),
        )
        self.batches.append(line)
        assert self.latest is not None
        self.recorder.batch(
            self.latest,
            self.states,
            step.reports,
            step.lanes[first],
            emitted=line.emitted,
            attempts=step.attempts,
            took_ms=line.took_ms,
            now_s=time.monotonic(),
        )

    # -- the loop ---------------------------------------------------------------------------------

    def _end_interval(self) -> None:
        now_s = time.monotonic()
        if now_s - self._interval_s < self.config.interval_s or now_s < self._blocked_until_s:
            return
        before = {name: len(state.active) for name, state in self.states.items()}
        try:
            decision = run_interval(self.policy, self)
        except NotReady:
            return
        finally:
            self._interval_s, self._input = now_s, 0
        if decision:
            assert self._seen is not None  # it was decided on
            self.decisions.append((now_s - self._start_s, decision.reason))
            self.recorder.decided(now_s, self._seen, decision)
            self._note_sizes(before, self.policy.name, decision.reason)

    def _note_sizes(self, before: Mapping[str, int], by: str, reason: str) -> None:
        """Write down which stages have another number of active replicas than `before`."""
        for name, replicas in before.items():
            after = len(self.states[name].active)
            if after != replicas:
                self.recorder.resized(self._next_step, name, replicas, after, by, reason)

    def monitor(self) -> Interval:
        """Return what happened since the last decision; NotReady before anything was measured."""
        operators = {}
        parent = None
        for name, state in self.states.items():
            seen = state.interval(self.config, parent)
            parent = name
            if seen is not None:
                operators[name] = seen
        if len(operators) < len(self.states):
            msg = "a stage has served nothing yet."
            raise NotReady(msg)
        self._seen = Interval(time.monotonic() - self._interval_s, float(self._input), operators)
        return self._seen

    def resize(self, active: Mapping[str, int]) -> None:
        """Activate and deactivate from the next batch on."""
        for name, wanted in active.items():
            self.states[name].resize(max(wanted, self.config.least))

    def restart(self, active: Mapping[str, int]) -> None:
        """Drop what waits, and serve nothing for a while."""
        self.lost += sum(state.forget() for state in self.states.values())
        self._blocked_until_s = time.monotonic() + self.config.restart_s
        self.resize(active)


def _grafts(spark: SparkSession, pipeline: Pipeline) -> dict[str, Graft]:
    """Return, by stage, the plan that stands on what it puts out: up to the next one, or the top."""
    above = [stage.input_plan for stage in pipeline.stages[1:]] + [pipeline.plan]
    return {
        stage.id: Graft(spark, plan, stage.placeholder)
        for stage, plan in zip(pipeline.stages, above, strict=True)
    }


def _leaf(rows: DataFrame, stage: Stage) -> Any:
    spark = rows.sparkSession
    return leaf(spark, stage.placeholder.output(), rows._jdf.queryExecution().toRdd())
