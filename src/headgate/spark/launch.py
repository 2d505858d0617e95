"""Opens the checkpoint of a query, starts Spark's query, and releases at its end what the start took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headgate.spark.cluster.location import Place, check_seen
from headgate.spark.jvm.lock import CheckpointLock
from headgate.spark.jvm.logfiles import limits, raw_local_files
from headgate.spark.step.begin import begin
from headgate.spark.step.carried import CarriedLog
from headgate.spark.step.machine import StepMachine
from headgate.state.checkpoint import Checkpoint
from headgate.state.shipping import resumed

R = TypeVar("R")


def journal_of(where: Place) -> Path:
    """Return where a driver writes its journal."""
    return where.path / "headgate" / "journal.jsonl"


def opened(
    spark: SparkSession, where: Place, identity: Mapping[str, Any], undo: ExitStack
) -> tuple[Checkpoint, str, Callable[[], None]]:
    """Return a checkpoint, its uuid, and what gives up its lock, which this driver holds from now on.

    Parameters
    ----------
    spark : SparkSession
    where : Place
    identity : mapping
        What of a query its checkpoint depends on.
    undo : ExitStack
        Gives up the lock if the query does not start.

    Raises
    ------
    CheckpointError
        It belongs to something else, is held, or is damaged.
    """
    if where.url is not None:
        # no lock: whose manifest is there first goes on, and the other stops
        checkpoint = Checkpoint(where.url, where.options, where.path)
        uuid = checkpoint.open(identity)
        latest = checkpoint.latest()
        if latest is not None:
            CarriedLog(checkpoint).restore(latest)
        journal = resumed(checkpoint.files, journal_of(where))
        undo.callback(journal.close)
        return checkpoint, uuid, journal.close
    checkpoint = Checkpoint(where.path)
    uuid = checkpoint.open(identity)
    check_seen(spark, checkpoint.root / "identity.json")
    lock = CheckpointLock(spark, checkpoint.root)
    undo.callback(lock.release)
    return checkpoint, uuid, lock.release


def launched(
    machine: StepMachine[R], writer: DataStreamWriter, undo: ExitStack, *, finite: bool
) -> StreamingQuery:
    """Start Spark's query, whose batches `machine` does from now on.

    Parameters
    ----------
    machine : StepMachine
    writer : DataStreamWriter
        Of the machine's stream.
    undo : ExitStack
        Stops the machine if the query does not start as it should.
    finite : bool
        Whether the sources end, so that no tick has to begin batches.
    """
    intake = machine.work.intake
    writer = writer.foreachBatch(machine.process)
    undo.callback(machine.give_up)  # in case Spark has started the query all the same
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
    """Return what gives back what a query held, the last one first, and leaves its checkpoint."""

    def release() -> None:
        with ExitStack() as undo:  # what one cannot give back does not keep the others
            undo.callback(lambda: where.leave(failed=inner.exception() is not None))
            for give_back in held:
                undo.callback(give_back)

    return release
