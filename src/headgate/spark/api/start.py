"""Starts a query from its settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.command_files import CommandFiles
from headgate.checkpoint.epochs import check_batches_can_follow
from headgate.checkpoint.manifest import Manifest
from headgate.control import registry
from headgate.control.pools.replicas import ReplicaPolicy
from headgate.core.errors import CheckpointError, ConfigError, UnsupportedQuery
from headgate.core.installed import SINKS, installed
from headgate.operators.spec import OutputMode
from headgate.spark.api import configured
from headgate.spark.api.launch import (
    check_evolution,
    check_name,
    giving_back,
    journal_of,
    launched,
    opened,
    register_run,
)
from headgate.spark.api.metrics import show_metrics
from headgate.spark.api.pool_query import PoolQuery
from headgate.spark.api.query import Query
from headgate.spark.api.real_time import (
    RealTimeFlow,
    RealTimeQuery,
    TooFewCores,
    check_settings,
    flow_of,
)
from headgate.spark.cluster.allocation import follow_slots
from headgate.spark.cluster.location import Place
from headgate.spark.cluster.warmup import Warming, warm_workers
from headgate.spark.job.job import JobConfig
from headgate.spark.job.ports import (
    Executors,
    NoObserver,
    NoPoolObserver,
    Observer,
    PoolObserver,
    Ports,
)
from headgate.spark.jvm.plans import analysed
from headgate.spark.jvm.sessions import active, clone_of
from headgate.spark.pools.pool_loop import PoolLoop
from headgate.spark.pools.pool_record import PoolRecorder
from headgate.spark.pools.pools import PoolWork
from headgate.spark.read.brokers import check_brokers
from headgate.spark.read.limits import source_limits
from headgate.spark.read.logical import read
from headgate.spark.read.meaning import meaning
from headgate.spark.read.passing import passed
from headgate.spark.read.plan import PlannedQuery, results_after_us
from headgate.spark.read.stages import read_pipeline
from headgate.spark.realtime.epoch_lines import EpochRecorder
from headgate.spark.realtime.work import RealTimeWork
from headgate.spark.settings import arguments
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import MICRO_BATCH, QuerySettings
from headgate.spark.sinks.ports import Sink
from headgate.spark.steer.commands import Commands
from headgate.spark.steer.controller import DELTA_S, ControlConfig, Controller, Cores
from headgate.spark.step.live import LiveJob
from headgate.spark.step.machine import StepMachine
from headgate.spark.step.record import Recorder
from headgate.spark.step.stateful import StatefulWork
from headgate.tables.arena import arena_root, open_run, spill_root, sweep

_WITHOUT_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Spark's setting of batches without new records, which put out results that the last batch made due."""

Watch = Callable[[Observer | None, LiveJob], Observer | None]
"""Takes a query's own control loop, and returns the observer of the batches, which includes the loop."""

WatchPools = Callable[[PoolWork], PoolObserver]
"""Takes the work of a query of pools, and returns the observer of its batches."""


def start(
    df: DataFrame,
    settings: QuerySettings,
    watch: Watch = lambda loop, _: loop,
    watch_pools: WatchPools = lambda _: NoPoolObserver(),
) -> Query:
    """Start a query.

    `watch`: puts a fleet's observer around the query's own control loop. `watch_pools`: does so for
    pools of replicas. Raises `UnsupportedQuery`: a part of the query cannot run elastically;
    `ConfigError`: a setting is out of range, or no Kafka broker of the query answers;
    `CheckpointError`: the checkpoint belongs to another query, is locked, or is damaged.
    """
    if settings.is_real_time and settings.fallback == MICRO_BATCH:
        try:
            return start(df, replace(settings, fallback="error"), watch, watch_pools)
        except (UnsupportedQuery, TooFewCores) as why:
            warnings.warn(f"{str(why).partition('; ')[0]}: it runs in micro-batches.", stacklevel=3)
        options = {k: v for k, v in settings.options.items() if k != own.RELEASE.key}
        settings = replace(settings, trigger={}, options=options)
    if settings.is_real_time:
        check_settings(settings)
    elif own.RELEASE.of(settings.options) == own.EARLY:
        msg = f'.release("{own.EARLY}") is for trigger(realTime=...); leave it out.'
        raise ConfigError(msg)
    if settings.replica_policy is not None:
        _check_pools(settings, settings.replica_policy)
    with active(df.sparkSession):  # Spark plans with the session of the thread that calls `start`
        return _started(df, settings, watch, watch_pools)


def _check_pools(settings: QuerySettings, policy: ReplicaPolicy) -> None:
    """Refuse settings that a policy over pools of replicas does not support."""
    if settings.advise:
        msg = f"{policy.name} cannot only advise; leave out .advise(), or the policy."
        raise ConfigError(msg)
    if settings.mode == "complete":
        msg = f'{policy.name} runs stateless queries, which have no mode "complete"; use append.'
        raise ConfigError(msg)


def _started(
    df: DataFrame, settings: QuerySettings, watch: Watch, watch_pools: WatchPools
) -> Query:
    """Start a query; this thread's active session must be the query's session."""
    if settings.replica_policy is not None:
        # the handle is no Query: pools have neither assignments nor an SLO
        pooled: Query = _start_pools(df, settings, settings.replica_policy, watch_pools)
        return pooled
    warming = Warming(df.sparkSession)
    try:
        check_evolution(df.sparkSession)
        plan = planned(df, settings)
    except UnsupportedQuery:
        if settings.fallback == "spark":
            plain: Query = _start_plain(df, settings)
            return plain
        raise
    flow = None
    if settings.is_real_time:
        plan = passed(df.sparkSession, plan)
        flow = flow_of(df.sparkSession, settings, plan)
    check_brokers(analysed(df))
    check_name(df.sparkSession, settings.name)
    return _start_slots(df, settings, plan, watch, warming, flow)


def planned(df: DataFrame, settings: QuerySettings, *, arrivals: bool = True) -> PlannedQuery:
    """Return the operators and plans of a query under its settings.

    `arrivals`: False for a query that does not run: then the plan has no arrival times. Raises
    `UnsupportedQuery`: a part of the query cannot run elastically.
    """
    return read(
        df,
        settings.mode,
        own.ARRIVAL.of(settings.options) if arrivals else None,
        own.ORDERED.of(settings.options) or (),
        asks_kafka=arrivals,
        whole_windows=own.WINDOWS.of(settings.options) == own.WHOLE,
    )


def _start_plain(df: DataFrame, settings: QuerySettings) -> Any:
    """Run the whole query as plain Spark."""
    if (settings.format or "").lower() in installed(SINKS):
        msg = (
            f'format "{settings.format}" is a sink of headgate\'s, to which plain Spark does not write; '
            'leave out .fallback("spark").'
        )
        raise ConfigError(msg)
    writer = configured.plain_writer(df, settings)
    return writer.toTable(settings.table) if settings.table else writer.start()


def _start_pools(
    df: DataFrame, settings: QuerySettings, policy: ReplicaPolicy, watch: WatchPools
) -> Any:
    """Run the Python stages of a stateless query on pools of replicas."""
    spark = df.sparkSession
    pipeline = read_pipeline(df, policy.name, own.ARRIVAL.of(settings.options))
    check_brokers(analysed(df))
    check_name(spark, settings.name)
    plan = PlannedQuery([], pipeline.plan, df.schema, OutputMode.APPEND)
    config = configured.pool_config(spark, settings.slots, settings.options, settings.budget_s)
    config.groupings.check(stage.id for stage in pipeline.stages)
    identity = {"stages": {stage.id: stage.raw_schema.jsonValue() for stage in pipeline.stages}}
    with ExitStack() as undo:  # also undoes a start that Ctrl-C interrupts
        where = configured.checkpoint_place(spark, settings)
        undo.callback(where.leave, failed=False)
        sink = configured.sink(spark, settings, plan, where)
        checkpoint, uuid, unlock = opened(spark, where, identity, undo)
        sink.begin()
        latest = checkpoint.latest()
        texts = own.ERROR_TEXT.of(settings.options)
        recorder = PoolRecorder(journal_of(where), policy.name, texts=texts)
        hide = undo.callback(show_metrics(spark, settings.options, recorder.path))
        parents = {stage.id: stage.parents for stage in pipeline.stages}
        loop = PoolLoop(list(parents), config, policy, latest, recorder, parents)
        recorder.begin_with([stage.id for stage in pipeline.sources], pipeline.last)
        work = PoolWork(spark, clone_of(spark), pipeline, loop, checkpoint, uuid)
        work.observer = watch(work)
        machine = StepMachine(spark, work, checkpoint, latest, sink, Ports())
        undo.callback(machine.close)
        warm_workers(spark, [])
        parameters = {"policy": policy.name, "checkpoint": str(where.path), **asdict(config)}
        name = settings.name or pipeline.stages[-1].id
        recorder.started(uuid, name, work.states, latest, parameters, loop.dropped())
        recorder.progress.begin(spark, sink)
        machine.steps.redeliver_drained()
        writer = configured.inner_writer(work.intake.stream, settings, where)
        finite = "availableNow" in settings.trigger
        inner = launched(machine, writer, undo, finite=finite)
        undo.pop_all()
    release = giving_back(inner, where, hide, unlock, machine.close)
    return register_run(where, PoolQuery(inner, machine, work, finite=finite, release=release))


def _start_slots(
    df: DataFrame,
    settings: QuerySettings,
    plan: PlannedQuery,
    watch: Watch,
    warming: Warming,
    flow: RealTimeFlow | None,
) -> Query:
    """Run the stateful part of a query in slots; with a `flow`, in real time."""
    spark = df.sparkSession
    cores = configured.cores_of(spark)
    config = configured.job_config(settings, cores)
    with ExitStack() as undo:  # also undoes a start that Ctrl-C interrupts
        where = configured.checkpoint_place(spark, settings)
        undo.callback(where.leave, failed=False)
        _check_store(where, plan)
        sink = _sink(spark, settings, plan, where, flow)
        checkpoint, uuid, unlock = opened(spark, where, identity(spark, plan, config), undo)
        root = arena_root()
        sweep(root)
        run = open_run(root, spill_root() if config.memory_max is not None else None)
        undo.callback(run.close)
        sink.begin()
        latest = _newest(checkpoint, flow)
        recorder = (Recorder if flow is None else EpochRecorder)(
            journal_of(where), plan, texts=own.ERROR_TEXT.of(settings.options)
        )
        hide = undo.callback(show_metrics(spark, settings.options, recorder.path))
        specs = [op.spec for op in plan.operators]
        executors = follow_slots(
            spark,
            specs,
            run.run_id,
            recorder.write,
            # in real time slots are no Spark tasks, and the pipe's tasks keep their cores
            own.EXECUTORS.of(settings.options) if flow is None else "keep",
        )
        undo.callback(executors.leave)
        job = LiveJob.begin(plan, config, latest, executors, recorder)
        controller, commands = _steering(spark, settings, job, executors, checkpoint)
        ports = Ports(watch(controller, job) or NoObserver(), commands, executors)
        work = (StatefulWork if flow is None else RealTimeWork)(
            spark, clone_of(spark), job, checkpoint, uuid, run, sink, ports
        )
        machine = StepMachine(
            spark, work, checkpoint, latest, sink, ports, held=_needs_records(spark, settings)
        )
        undo.callback(machine.close)
        if flow is None or not flow.prepare_slots(work, undo):
            warming.load(specs)
        work.rehearse()
        parameters = {
            **configured.parameters(settings, config, cores, configured.machine_cores(spark)),
            "source_limits": source_limits(analysed(df)),
            "unsplittable": {op.id: op.spec.unsplittable for op in job.query.operators},
        }
        workload = own.WORKLOAD.of(settings.options)
        recorder.started(uuid, config, job.states, latest, parameters, workload=workload)
        held = recorder.operators(job.states, [])
        recorder.progress.begin(spark, sink, held, counted=bool(held))
        machine.steps.redeliver_drained()
        if controller is not None:
            controller.start()
            undo.callback(controller.stop)
        commands.restore()
        warming.wait()
        finite = "availableNow" in settings.trigger
        if flow is None:
            writer = configured.inner_writer(work.intake.stream, settings, where)
            inner = launched(machine, writer, undo, finite=finite)
        else:
            inner = flow.begin(machine, work, settings)
        undo.pop_all()
    release = giving_back(
        inner, where, hide, run.close, run.end, executors.leave, unlock, machine.close
    )
    made = Query if flow is None else RealTimeQuery
    return register_run(
        where, made(inner, machine, work, controller, commands, finite=finite, release=release)
    )


def _newest(checkpoint: Checkpoint, flow: RealTimeFlow | None) -> Manifest | None:
    """Return the newest manifest; refuse a manifest of real time that micro-batches cannot continue."""
    latest = checkpoint.latest()
    if flow is None:
        check_batches_can_follow(latest)
    return latest


def _steering(
    spark: SparkSession,
    settings: QuerySettings,
    job: LiveJob,
    executors: Executors,
    checkpoint: Checkpoint,
) -> tuple[Controller | None, Commands]:
    """Return the controller of a query, if any, and the handler of its users' commands."""
    controller = _controller(settings, job, executors, configured.machine_cores(spark))
    commands = Commands(
        CommandFiles(checkpoint.files),
        job.changes,
        controller,
        job.recorder.write,
        job.recorder.path,
        job.set_budget if settings.budget == "auto" else lambda _: None,
    )
    return controller, commands


def _sink(
    spark: SparkSession,
    settings: QuerySettings,
    plan: PlannedQuery,
    where: Place,
    flow: RealTimeFlow | None,
) -> Sink:
    sink = configured.sink(spark, settings, plan, where)
    if flow is not None:
        flow.begin_sink(sink, settings)
    return sink


def _check_store(where: Place, plan: PlannedQuery) -> None:
    """Refuse a store for a query without operators: only manifests carry Spark's log to a store."""
    if where.url is not None and not plan.operators:
        msg = (
            f"checkpoint {where.url} would hold nothing: a query without stateful operators has no "
            "steps of headgate's, with which Spark's log goes to a store; give it a directory."
        )
        raise CheckpointError(msg)


def _needs_records(spark: SparkSession, settings: QuerySettings) -> bool:
    """Return whether results come out only in batches with new records, as in Spark."""
    return "once" in settings.trigger or spark.conf.get(_WITHOUT_DATA) == "false"


_WHOLE_GROUPS = "in real time key groups are not split"


def _controller(
    settings: QuerySettings, job: LiveJob, executors: Executors, machine_cores: int | None
) -> Controller | None:
    """Return the controller of the query; None without an SLO or without operators."""
    policy, operators = settings.policy, job.query.operators
    if not settings.slos or not operators:
        if policy is not None and policy.name != "static":
            msg = (
                f"policy {policy.name} has nothing to steer by; add .slo(...) to a query with a "
                "stateful operator."
            )
            raise ConfigError(msg)
        return None
    config = ControlConfig(
        settings.slos,
        policy or arguments.policy_of(registry.DEFAULT, {}),
        advise=settings.advise,
        unsplittable={
            op.id: _WHOLE_GROUPS if settings.is_real_time else op.spec.unsplittable
            for op in operators
        },
        windows_us=results_after_us(operators),
        cycle_s=DELTA_S / 2 if settings.is_real_time else 0.0,
        **configured.limits(settings, job.config, executors.cores),
    )
    parents = {op.id: tuple(parent.id for parent in op.parents) for op in operators if op.parents}
    controller = Controller(
        config,
        job.config,
        job.states,
        job.changes,
        job.recorder.write,
        budget_s=lambda: job.config.budget_s,
        cores=Cores(lambda: executors.cores, machine_cores),
        parents=parents,
    )
    controller.follow_sources(lambda: job.recorder.progress.unread)
    return controller


def identity(spark: SparkSession, plan: PlannedQuery, config: JobConfig) -> dict[str, Any]:
    """Return the parts of a query on which its checkpoint depends."""
    return {
        "meaning": meaning(spark, plan.operators),
        "key_groups": config.key_groups,
        "mode": config.mode,
        "operators": {
            op.id: {**op.spec.to_json(), "keys": op.key_names, "kinds": op.spec.to_json()["keys"]}
            for op in plan.operators
        },
    }
