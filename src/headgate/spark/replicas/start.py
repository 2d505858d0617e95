"""From a writer's settings to a running query of pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.control.replicas import ReplicaPolicy
from headgate.core.errors import ConfigError
from headgate.spark.cluster.location import Place, check_seen
from headgate.spark.jvm.lock import CheckpointLock
from headgate.spark.replicas.driver import ReplicaDriver
from headgate.spark.replicas.pools import PoolConfig
from headgate.spark.replicas.query import ReplicaQuery
from headgate.spark.replicas.reading import Pipeline
from headgate.spark.replicas.record import PoolRecorder
from headgate.spark.settings import options as own
from headgate.spark.step.begin import begin
from headgate.spark.step.sinks import Sink
from headgate.spark.step.warmup import warm_workers
from headgate.state.checkpoint import Checkpoint


def pool_config(
    spark: SparkSession,
    slots: tuple[int, int | str, int | str],
    options: Mapping[str, str],
    box_s: float | None,
) -> PoolConfig:
    """Return the settings of pools.

    Parameters
    ----------
    spark : SparkSession
    slots : tuple
        Least, most and first number of replicas; most is "auto" for the cores granted, at least 4,
        first is "auto" for the least.
    options : mapping
        The writer's.
    box_s : float or None
        Time a replica may serve per batch.

    Raises
    ------
    ConfigError
        The numbers are not ascending, or an option is no duration.
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
        attempts=own.ATTEMPTS.of(options),
    )


def start(
    df: DataFrame,
    pipeline: Pipeline,
    config: PoolConfig,
    policy: ReplicaPolicy,
    sink: Sink,
    *,
    place: Place,
    name: str | None,
    trigger: dict[str, Any],
) -> ReplicaQuery:
    """Start the query.

    Parameters
    ----------
    df : DataFrame
        The user's.
    pipeline : Pipeline
        What was read from it.
    config : PoolConfig
    policy : ReplicaPolicy
    sink : Sink
    place : Place
        The checkpoint's.
    name : str or None
    trigger : dict
        As PySpark's ``trigger`` takes it.

    Raises
    ------
    CheckpointError
        The checkpoint belongs to something else, is held, or is damaged.
    """
    spark = df.sparkSession
    checkpoint = Checkpoint(place.path)
    job = checkpoint.open(
        {"stages": {stage.id: stage.raw_schema.jsonValue() for stage in pipeline.stages}}
    )
    check_seen(spark, checkpoint.root / "identity.json")
    lock = CheckpointLock(spark, checkpoint.root)
    try:
        sink.begin()
        recorder = PoolRecorder(checkpoint.root / "journal.jsonl", policy.name)
        driver = ReplicaDriver(spark, pipeline, config, policy, checkpoint, job, sink, recorder)
        frame = driver.streaming_input()
        warm_workers(spark, [])
        parameters = {"policy": policy.name, "checkpoint": str(place.path), **asdict(config)}
        recorder.start(
            job, name or pipeline.stages[-1].id, driver.states, driver.latest, parameters
        )
        recorder.progress.begin(spark, sink)
        driver.redeliver_rest()
        writer = frame.writeStream.foreachBatch(driver.process)
        writer = writer.option("checkpointLocation", place.uri)
        writer = writer.queryName(name) if name else writer
        writer = writer.trigger(**trigger) if trigger else writer
        inner = begin(writer.start, frame, lambda: driver.begun > 0)
    except BaseException:
        lock.release()
        raise
    finite = "availableNow" in trigger
    if not finite:
        driver.tick.start()

    def release() -> None:
        driver.tick.stop()
        lock.release()
        place.leave(failed=inner.exception() is not None)

    return ReplicaQuery(inner, driver, finite=finite, release=release)
