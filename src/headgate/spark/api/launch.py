"""Opens the checkpoint of a query, starts Spark's query, and releases at its end what the start took."""

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
from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.api.begin import begin
from headgate.spark.cluster.location import Place, check_seen
from headgate.spark.jvm.lock import CheckpointLock
from headgate.spark.jvm.logfiles import limits, raw_local_files
from headgate.spark.step.carried import CarriedLog
from headgate.spark.step.machine import StepMachine

R = TypeVar("R")

_REPLACES = "spark.sql.streaming.stopActiveRunOnRestart"


class ActiveRun(Protocol):
    """A query that runs."""

    @property
    def name(self) -> str | None:
        """Return its name by its user."""

    @property
    def isActive(self) -> bool:
        """Return whether it runs still."""

    def stop(self) -> None:
        """End it."""


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


def register_run(where: Place, run: Q) -> Q:
    """Return a query that has started on a checkpoint, and take note of it."""
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
    """Return a text that identifies a directory, by whatever links it is reached."""
    return where.url or os.path.realpath(where.path)


def journal_of(where: Place) -> Path:
    """Return where a driver writes its journal."""
    return where.path / "headgate" / "journal.jsonl"


def opened(
    spark: SparkSession, where: Place, identity: Mapping[str, Any], undo: ExitStack
) -> tuple[Checkpoint, str, Callable[[], None]]:
    """Return a checkpoint, its uuid, and what gives up its lock, which this driver holds from now on.

    `identity`: what of a query its checkpoint depends on. `undo`: gives up the lock if the query
    does not start. Raises `CheckpointError`: it belongs to something else, is held, or is damaged;
    `EngineError`: a query of this process that runs on it does not stop.
    """
    if where.url is not None:
        # no lock: whose manifest is there first goes on, and the other stops
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
    """Start Spark's query, whose batches `machine` does from now on.

    Parameters
    ----------
    writer : DataStreamWriter    Writer of the machine's stream.
    undo : ExitStack    Stops the machine if the query does not start as it should.
    finite : bool    Whether the sources end, so that no tick has to begin batches.
    """
    intake = machine.work.intake
    writer = writer.foreachBatch(machine.process)
    undo.callback(machine.give_up)  # Spark may have started the query nevertheless
    with ExitStack() as files:
        if not limits(intake.stream):
            files.enter_context(raw_local_files(machine.spark))
        inner = begin(writer.start, intake.stream, lambda: machine.batches_begun > 0)
    if not finite:
        # with triggers as far apart as ticks Spark would always find a new one, and
        # `processAllAvailable` of the handle in `spark.streams` would wait for ever
        intake.start_ticking(lambda: machine.settled and bool(inner.status["isDataAvailable"]))
    return inner


def giving_back(
    inner: StreamingQuery, where: Place, *held: Callable[[], None]
) -> Callable[[], None]:
    """Return a function that releases a query's resources, the last first, and leaves its checkpoint."""

    def release() -> None:
        with ExitStack() as undo:  # what one cannot give back does not keep the others
            undo.callback(lambda: where.leave(failed=inner.exception() is not None))
            for give_back in held:
                undo.callback(give_back)

    return release
