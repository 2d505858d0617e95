"""From a query's settings to the running query."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame

from headgate.control.replicas import ReplicaPolicy
from headgate.core.errors import ConfigError, UnsupportedQuery
from headgate.operators.spec import OutputMode
from headgate.spark import configured
from headgate.spark.cluster.allocation import follow_slots
from headgate.spark.cluster.location import check_seen
from headgate.spark.job.job import JobConfig
from headgate.spark.job.ports import Observer
from headgate.spark.jvm.lock import CheckpointLock
from headgate.spark.jvm.logfiles import raw_local_files
from headgate.spark.query import Query
from headgate.spark.read.logical import read
from headgate.spark.read.plan import Query as Plan
from headgate.spark.replicas import start as replicas
from headgate.spark.replicas.reading import read_pipeline
from headgate.spark.settings import given
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.steer.commands import Commands
from headgate.spark.steer.control import ControlConfig, Controller
from headgate.spark.step.begin import begin
from headgate.spark.step.driver import BatchDriver
from headgate.spark.step.record import Recorder
from headgate.spark.step.warmup import warm_workers
from headgate.state.arena import arena_root, open_run, sweep
from headgate.state.checkpoint import Checkpoint
from headgate.state.control import ControlFiles

Watch = Callable[[Observer | None, BatchDriver], Observer | None]
"""From a query's own control loop to what is told about its batches, with that loop inside."""


def start(df: DataFrame, settings: QuerySettings, watch: Watch = lambda loop, _: loop) -> Query:
    """Start a query.

    Parameters
    ----------
    df : DataFrame
        The user's.
    settings : QuerySettings
    watch : callable, optional
        What a fleet puts around the query's own control loop.

    Raises
    ------
    UnsupportedQuery
        A part of the query cannot run elastically.
    ConfigError
        A setting is out of range.
    CheckpointError
        The checkpoint belongs to something else, is held, or is damaged.
    """
    if settings.replica_policy is not None:
        # not a Query: pools have neither assignments nor an SLO to steer by
        pooled: Query = _start_pools(df, settings, settings.replica_policy)
        return pooled
    try:
        plan = read(df, settings.mode, own.ARRIVAL.of(settings.options))
    except UnsupportedQuery:
        if settings.fallback == "spark":
            plain: Query = _start_plain(df, settings)
            return plain
        raise
    return _start_slots(df, settings, plan, watch)


def _start_plain(df: DataFrame, settings: QuerySettings) -> Any:
    """Run the whole query as plain Spark."""
    writer = configured.plain_writer(df, settings)
    return writer.toTable(settings.table) if settings.table else writer.start()


def _start_pools(df: DataFrame, settings: QuerySettings, policy: ReplicaPolicy) -> Any:
    """Run the Python stages of a stateless query on pools of replicas."""
    if settings.advise:
        msg = f"{policy.name} cannot only advise; leave out .advise(), or the policy."
        raise ConfigError(msg)
    if settings.mode == "complete":
        msg = f'{policy.name} runs stateless queries, which have no mode "complete"; use append.'
        raise ConfigError(msg)
    spark = df.sparkSession
    pipeline = read_pipeline(df, policy.name, own.ARRIVAL.of(settings.options))
    plan = Plan([], pipeline.plan, df.schema, OutputMode.APPEND)
    config = replicas.pool_config(spark, settings.slots, settings.options, settings.budget_s)
    with ExitStack() as undo:
        where = configured.checkpoint_place(spark, settings)
        undo.callback(where.leave, failed=False)
        pooled = replicas.start(
            df,
            pipeline,
            config,
            policy,
            configured.sink(spark, settings, plan, where),
            place=where,
            name=settings.name,
            trigger=dict(settings.trigger),
        )
        undo.pop_all()
    return pooled


def _start_slots(df: DataFrame, settings: QuerySettings, plan: Plan, watch: Watch) -> Query:
    """Run the stateful part of a query in slots."""
    spark = df.sparkSession
    cores = configured.cores_of(spark)
    config = configured.job_config(settings, cores)
    with ExitStack() as undo:  # an interrupt, too, leaves nothing behind
        where = configured.checkpoint_place(spark, settings)
        undo.callback(where.leave, failed=False)
        sink = configured.sink(spark, settings, plan, where)
        checkpoint = Checkpoint(where.path)
        job = checkpoint.open(_identity(plan, config))
        check_seen(spark, checkpoint.root / "identity.json")
        lock = CheckpointLock(spark, checkpoint.root)
        undo.callback(lock.release)
        root = arena_root()
        sweep(root)
        run = open_run(root)
        undo.callback(run.close)
        sink.begin()
        recorder = Recorder(checkpoint.root / "journal.jsonl")
        driver = BatchDriver(spark, plan, config, checkpoint, job, run, sink, recorder)
        undo.callback(driver.close)
        frame = driver.intake.stream
        controller = _controller(settings, plan, driver, recorder, cores)
        driver.observer = watch(controller, driver)
        commands = Commands(
            ControlFiles(checkpoint.root),
            driver.changes,
            controller,
            recorder.write,
            recorder.path,
            driver.set_budget if settings.budget == "auto" else lambda _: None,
        )
        driver.commands = commands
        driver.rehearse()
        warm_workers(spark, [op.spec for op in plan.operators])
        leave_executors = follow_slots(
            spark, driver, recorder.write, own.EXECUTORS.of(settings.options)
        )
        undo.callback(leave_executors)
        parameters = configured.parameters(settings, config, cores)
        recorder.start(driver, own.WORKLOAD.of(settings.options), parameters)
        driver.redeliver_drained()
        if controller is not None:
            controller.start()
            undo.callback(controller.stop)
        commands.restore()
        writer = configured.inner_writer(frame, settings, where).foreachBatch(driver.process)
        undo.callback(driver.give_up)  # in case Spark has started the query all the same
        with raw_local_files(spark):
            inner = begin(writer.start, frame, lambda: driver.batches_begun > 0)
        if "availableNow" not in settings.trigger:
            driver.intake.start_ticking()
        undo.pop_all()

    def release() -> None:
        with ExitStack() as held:  # what one cannot give back does not keep the others
            held.callback(lambda: where.leave(failed=inner.exception() is not None))
            for give_back in (run.close, run.end, leave_executors, lock.release, driver.close):
                held.callback(give_back)

    finite = "availableNow" in settings.trigger
    return Query(inner, driver, controller, commands, finite=finite, release=release)


def _controller(
    settings: QuerySettings, plan: Plan, driver: BatchDriver, recorder: Recorder, cores: int
) -> Controller | None:
    """Return what steers the query; None without an SLO or without operators."""
    policy = settings.policy
    if not settings.slos or not plan.operators:
        if policy is not None and policy.name != "static":
            msg = (
                f"policy {policy.name} has nothing to steer by; add .slo(...) to a query with a "
                "stateful operator."
            )
            raise ConfigError(msg)
        return None
    job = driver.config
    config = ControlConfig(
        settings.slos,
        policy or given.policy_of("streamswitch", {}),
        advise=settings.advise,
        **configured.limits(settings, job, cores),
    )
    parents = {op.id: (op.upstream.id,) for op in plan.operators if op.upstream is not None}
    return Controller(
        config,
        job,
        driver.states,
        driver.changes,
        recorder.write,
        budget_s=lambda: driver.config.budget_s,
        cores=cores,
        parents=parents,
    )


def _identity(plan: Plan, config: JobConfig) -> dict[str, Any]:
    """Return what of a query its checkpoint depends on."""
    return {
        "key_groups": config.key_groups,
        "mode": config.mode,
        "operators": {
            op.id: {**op.spec.to_json(), "keys": op.key_names, "kinds": op.spec.to_json()["keys"]}
            for op in plan.operators
        },
    }
