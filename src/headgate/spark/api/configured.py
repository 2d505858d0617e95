"""Builds job settings, limits, checkpoint location, sink and Spark's writer from a query's settings."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.spark_log import newest_commit
from headgate.control import registry
from headgate.core import formats
from headgate.core.errors import ConfigError
from headgate.spark.cluster import session as sessions
from headgate.spark.cluster.location import Place, place
from headgate.spark.job.job import JobConfig
from headgate.spark.job.pools import PoolConfig
from headgate.spark.jvm.plans import analysed, no_rows
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.sinks import sinks
from headgate.spark.sinks.ports import Sink, Target
from headgate.spark.steer.controller import DELTA_S
from headgate.spark.step.steps import delivered_output


def cores_of(spark: SparkSession) -> int:
    """Return Spark's default parallelism: the cores of the application."""
    return int(spark.sparkContext.defaultParallelism)


def machine_cores(spark: SparkSession) -> int | None:
    """Return the cores that this process may use, which may differ from Spark's local[n].

    None unless Spark's master is local.
    """
    if not str(spark.sparkContext.master).startswith("local"):
        return None
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count()


def job_config(settings: QuerySettings, cores: int) -> JobConfig:
    """Return the settings of a job that has `cores` cores.

    Raises `ConfigError`: not 1 <= min <= start <= max slots, or more slots than key groups.
    """
    least, most, start = settings.slots
    most_slots = settings.key_groups if most == "auto" else int(most)
    if most_slots > settings.key_groups:
        msg = f"slots max={most_slots} exceeds the {settings.key_groups} key groups; use at most that."
        raise ConfigError(msg)
    first = max(min(4, cores, most_slots), least) if start == "auto" else int(start)
    if not 1 <= least <= first <= most_slots:
        msg = (
            f"slots min={least}, start={first}, max={most_slots} are not 1 <= min <= start <= max."
        )
        raise ConfigError(msg)
    options = settings.options
    rate = own.SLOT_RATE.of(options)
    return JobConfig(
        name=settings.name or "headgate",
        key_groups=settings.key_groups,
        slots=first,
        slots_max=most_slots,
        budget_s=settings.budget_s,
        mode=settings.mode,
        snapshot_every=own.SNAPSHOT_EVERY.of(options),
        attempts=own.ATTEMPTS.of(options),
        # a fixed rate counts records, so each row must be one record
        preaggregate="off" if rate else own.PREAGGREGATE.of(options),
        keep_late=own.KEEP_LATE.of(options),
        show_keys=own.SHOW_KEYS.of(options),
        backlog_bytes_max=own.BACKLOG_BYTES_MAX.of(options),
        backlog_age_max_s=own.BACKLOG_AGE_MAX.of(options),
        slot_rate=rate,
        delta_ms=DELTA_S * 1e3 if settings.slos else 0.0,
        processor_limit_s=own.TIME_LIMIT.of(options) or 0.0,
        memory_max=own.MEMORY_MAX.of(options),
        migration=settings.migration,
        faults=[dict(fault) for fault in settings.faults],
    )


def limits(settings: QuerySettings, job: JobConfig, cores: int) -> dict[str, Any]:
    """Return the limits of a policy, as fields of `ControlConfig`."""
    least, most, _ = settings.slots
    policy_max = job.slots_max
    if most == "auto" and job.slot_rate is None:
        policy_max = max(job.slots, min(cores, job.slots_max))
    floor_s = own.FLOOR.of(settings.options)
    return {"slots_min": least, "slots_max": policy_max, "floor_s": floor_s}


def parameters(
    settings: QuerySettings, job: JobConfig, cores: int, machine: int | None
) -> dict[str, Any]:
    """Return the settings for the journal's header; `machine` is the result of `machine_cores`."""
    values = dataclasses.asdict(job) | (limits(settings, job, cores) if settings.slos else {})
    policy = settings.policy.name if settings.policy is not None else registry.DEFAULT
    return values | {
        "slo": [str(slo) for slo in settings.slos],
        "advise": settings.advise,
        "policy": policy if settings.slos else "static",
        "cores": cores,
        "machine_cores": machine,
        "trigger": dict(settings.trigger),
        "format": settings.format,
    }


def checkpoint_place(spark: SparkSession, settings: QuerySettings) -> Place:
    """Check the session, and return the location of the checkpoint."""
    options = {key.lower(): value for key, value in settings.options.items()}  # as Spark reads them
    location = options.get("checkpointlocation")
    has_function = settings.function is not None or settings.row_function is not None
    one_time = has_function or (settings.format or "").lower() in formats.ONE_TIME
    where = place(spark, location, settings.name, one_time=one_time, options=settings.options)
    sessions.check(spark, str(where.path))
    return where


def sink(spark: SparkSession, settings: QuerySettings, plan: PlannedQuery, where: Place) -> Sink:
    """Return the sink for the rows of `plan`, with columns as nullable as in the user's query."""
    options = settings.sink_options
    if settings.name:
        options["queryName"] = settings.name  # Spark's writer sets it, too, and some sinks read it
    target = Target(
        file_format=settings.format,
        mode=settings.mode,
        name=settings.name,
        table=settings.table,
        partition_by=list(settings.partition_by),
        options=options,
        function=settings.function,
        checkpoint=where.path,
        last_output=partial(last_output, where),
        delivered=partial(delivered, where),
        row_function=settings.row_function,
        cluster_by=list(settings.cluster_by),
        exactly_once=own.DELIVERY.of(settings.options) == own.EXACTLY_ONCE,
    )
    return sinks.sink_of(spark, target, analysed(no_rows(spark, plan.schema)))


def last_output(where: Place) -> int | None:
    """Return the number of the last output in the newest manifest; None without a manifest."""
    store = Checkpoint(where.url or where.path, where.options)
    latest = store.latest() if store.files.is_there() else None
    return None if latest is None else int(latest.engine["sink_batch"])


def delivered(where: Place) -> int:
    """Return the number of the newest output that a restart will not deliver again; -1 if none."""
    store = Checkpoint(where.url or where.path, where.options)
    latest = store.latest() if store.files.is_there() else None
    # a query without operators has no manifest; its outputs have the numbers of Spark's batches
    return (
        newest_commit(where.path) if latest is None else delivered_output(store, latest, where.path)
    )


def inner_writer(frame: DataFrame, settings: QuerySettings, where: Place) -> DataStreamWriter:
    """Return Spark's writer of the streaming query that provides the batches."""
    writer = frame.writeStream.option("checkpointLocation", where.uri)
    writer = writer.queryName(settings.name) if settings.name else writer
    return writer.trigger(**settings.trigger) if settings.trigger else writer


def plain_writer(df: DataFrame, settings: QuerySettings) -> DataStreamWriter:
    """Return Spark's writer of the whole query, without headgate."""
    writer = df.writeStream.outputMode(settings.mode).options(**settings.sink_options)
    if settings.format:
        writer = writer.format(settings.format)
    if settings.partition_by:
        writer = writer.partitionBy(*settings.partition_by)
    if settings.cluster_by:
        writer = writer.clusterBy(*settings.cluster_by)
    if settings.name:
        writer = writer.queryName(settings.name)
    if settings.trigger:
        writer = writer.trigger(**settings.trigger)
    if settings.function is not None:
        writer = writer.foreachBatch(settings.function)
    if settings.row_function is not None:
        writer = writer.foreach(settings.row_function)
    return writer


def pool_config(
    spark: SparkSession,
    slots: tuple[int, int | str, int | str],
    options: Mapping[str, str],
    box_s: float | None,
) -> PoolConfig:
    """Return the settings of pools.

    `slots`: least, most and first number of replicas of a pool. If most is "auto", it is Spark's default
    parallelism, but at least 4; if first is "auto", it is the least. `box_s`: seconds for which a replica
    may serve in a batch. Raises `ConfigError`: not 1 <= least <= first <= most, or an option has a wrong
    value.
    """
    least, most, first = slots
    size = max(4, spark.sparkContext.defaultParallelism) if most == "auto" else int(most)
    start_with = least if first == "auto" else int(first)
    if not 1 <= least <= start_with <= size:
        msg = f"slots min={least}, start={start_with}, max={size} are not 1 <= min <= start <= max."
        raise ConfigError(msg)
    return PoolConfig(
        least=least,
        most=size,
        start=start_with,
        interval_s=own.REPLICAS_INTERVAL.of(options),
        box_s=box_s,
        replica_rate=own.SLOT_RATE.of(options),
        restart_s=own.REPLICAS_RESTART.of(options),
        groupings=own.GROUPING.of(options),
        timeout_s=own.REPLICAS_TIMEOUT.of(options),
        queue_max=own.REPLICAS_QUEUE_MAX.of(options),
        attempts=own.ATTEMPTS.of(options),
    )
