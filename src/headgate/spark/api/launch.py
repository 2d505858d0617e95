"""Opens the checkpoint of a query, starts Spark's query, and releases its resources at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.epochs import write_log
from headgate.checkpoint.shipping import resume_shipping
from headgate.checkpoint.spark_log import check_log
from headgate.core.errors import CheckpointError, ConfigError, UnsupportedQuery
from headgate.spark.api.begin import begin
from headgate.spark.cluster.location import Place, check_seen
from headgate.spark.jvm.lock import CheckpointLock
from headgate.spark.jvm.logfiles import limits, raw_local_files
from headgate.spark.step.carried import CarriedLog
from headgate.spark.step.machine import StepMachine

R = TypeVar("R")

_REPLACES = "spark.sql.streaming.stopActiveRunOnRestart"
_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


class ActiveRun(Protocol):
    """Defines the members of a running query that this module uses."""

    @property
    def name(self) -> str | None:
        """Return the query's name, as the user set it."""

    @property
    def isActive(self) -> bool:
        """Return whether the query still runs."""

    def stop(self) -> None:
        """End the query."""


Q = TypeVar("Q", bound=ActiveRun)

_runs: dict[str, ActiveRun] = {}
"""The newest query of this process on each checkpoint."""


def check_name(spark: SparkSession, name: str | None) -> None:
    """Refuse the name of a query that is active in a session, as Spark does.

    Raises `ConfigError`.
    """
    if name is not None and any(query.name == name for query in spark.streams.active):
        msg = (
            f'queryName "{name}" is that of a query which is active in this session, as Spark refuses '
            "it; stop that one first, or use another name."
        )
        raise ConfigError(msg)


def check_evolution(spark: SparkSession) -> None:
    """Refuse a session in which Spark asks for a name of each source: headgate's own have none."""
    if str(spark.conf.get(_EVOLUTION, "false")).lower() == "true":
        msg = (
            f"{_EVOLUTION} is true in this session, which headgate does not support yet; "
            "set it to false, and leave out .name() of each source."
        )
        raise UnsupportedQuery(msg)


def register_run(where: Place, run: Q) -> Q:
    """Register a query that has started on a checkpoint, and return it."""
    for place in [place for place, known in _runs.items() if not known.isActive]:
        _runs.pop(place, None)
    _runs[_same(where)] = run
    return run


def _replace_run(spark: SparkSession, where: Place) -> None:
    """Stop a query of this process that runs on a checkpoint, as Spark does for a new run."""
    run = _runs.get(_same(where))
    if run is None or not run.isActive:
        return
    if str(spark.conf.get(_REPLACES, "true")).lower() != "true":
        called = "a query without a name" if run.name is None else f'query "{run.name}"'
        msg = (
            f"checkpoint {_name(where)} is in use by {called} of this very process; stop that query "
            f"first, or set {_REPLACES} to true, with which a new run replaces it."
        )
        raise CheckpointError(msg)
    run.stop()


def _name(where: Place) -> str:
    return where.url or str(where.path)


def _same(where: Place) -> str:
    """Return a text that identifies a checkpoint; symbolic links are resolved."""
    return where.url or os.path.realpath(where.path)


def journal_of(where: Place) -> Path:
    """Return the path of the driver's journal."""
    return where.path / "headgate" / "journal.jsonl"


def opened(
    spark: SparkSession, where: Place, identity: Mapping[str, Any], undo: ExitStack
) -> tuple[Checkpoint, str, Callable[[], None]]:
    """Lock a checkpoint for this driver; return it, its uuid, and a function that releases the lock.

    `identity`: the parts of the query on which the checkpoint depends. `undo`: releases the lock if
    the query does not start. Raises `CheckpointError`: the checkpoint belongs to another query, is
    locked, or is damaged; `EngineError`: a query of this process on the checkpoint does not stop.
    """
    if where.url is not None:
        # a store has no lock: the driver that writes the next manifest first goes on, the other stops
        checkpoint = Checkpoint(where.url, where.options, where.path)
        uuid = checkpoint.open(identity)
        _replace_run(spark, where)
        latest = checkpoint.latest()
        if latest is not None:
            CarriedLog(checkpoint).restore(latest)
            write_log(checkpoint.path, latest)
        journal = resume_shipping(checkpoint.files, journal_of(where))
        undo.callback(journal.close)
        return checkpoint, uuid, journal.close
    checkpoint = Checkpoint(where.path)
    uuid = checkpoint.open(identity)
    check_seen(spark, checkpoint.root / "identity.json")
    _replace_run(spark, where)
    lock = CheckpointLock(spark, checkpoint.root)
    undo.callback(lock.release)
    latest = checkpoint.latest()
    write_log(checkpoint.path, latest)
    check_log(checkpoint, latest)
    return checkpoint, uuid, lock.release


def launched(
    machine: StepMachine[R], writer: DataStreamWriter, undo: ExitStack, *, finite: bool
) -> StreamingQuery:
    """Start Spark's query, whose batches `machine` processes.

    Parameters
    ----------
    writer : DataStreamWriter    Writer of the machine's stream.
    undo : ExitStack    Stops the machine if the start fails.
    finite : bool    Whether the sources end, so that the query needs no ticks.
    """
    intake = machine.work.intake
    writer = writer.foreachBatch(machine.process)
    undo.callback(machine.give_up)  # Spark may have started the query nevertheless
    with ExitStack() as files:
        if not limits(intake.stream):
            files.enter_context(raw_local_files(machine.spark))
        inner = begin(writer.start, intake.stream, lambda: machine.batches_begun > 0)
    if not finite:
        # if ticks were as frequent as triggers, Spark would always find a new tick, and
        # `processAllAvailable` of the handle in `spark.streams` would never return
        intake.start_ticking(lambda: machine.settled and bool(inner.status["isDataAvailable"]))
    return inner


def giving_back(
    inner: StreamingQuery, where: Place, *held: Callable[[], None]
) -> Callable[[], None]:
    """Return a function that releases a query's resources, the last first, and leaves its checkpoint."""

    def release() -> None:
        with ExitStack() as undo:  # an error in one release does not prevent the others
            undo.callback(lambda: where.leave(failed=inner.exception() is not None))
            for give_back in held:
                undo.callback(give_back)

    return release
