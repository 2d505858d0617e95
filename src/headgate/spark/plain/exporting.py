"""Implements `hg.export`: creates a checkpoint from which plain Spark starts, with headgate's state."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import CheckpointError, require, require_place
from headgate.core.formats import FILE_FORMATS
from headgate.core.location import uri
from headgate.spark.api import configured
from headgate.spark.api.launch import opened
from headgate.spark.api.sparkwriter import SparkWriter
from headgate.spark.api.start import identity, planned
from headgate.spark.cluster.location import resolved
from headgate.spark.job.job import OperatorState
from headgate.spark.jvm.expressions import data_type, known_not_null
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.jvm.plans import analysed, named_as, of_rows, replace_leaf
from headgate.spark.jvm.statestores import (
    entry_bytes,
    rewrite,
    rewriting_session,
    state_metadata,
    state_rows,
)
from headgate.spark.jvm.tick import Tick
from headgate.spark.plain import log
from headgate.spark.plain.adopting import check_order, paired
from headgate.spark.plain.entries import OurState
from headgate.spark.plain.plain_stores import stores
from headgate.spark.plain.records import check_name
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.step.steps import drained


def export(writer: SparkWriter, checkpoint: str) -> dict[str, Any]:
    """Write a checkpoint from which plain Spark starts: offsets, watermark and state.

    Parameters
    ----------
    writer : Writer
        Writer of the query with the settings of its start. The query must be stopped; `export` only reads
        its checkpoint.
    checkpoint : str
        The plain query's ``checkpointLocation``, which must be empty or not exist. The state is in
        RocksDB, with ``spark.sql.shuffle.partitions`` partitions.

    Returns
    -------
    dict
        ``checkpoint``, ``batch`` (the plain query continues with the next batch), ``watermark_ms``, and
        for each operator in ``operators`` its ``id`` and ``entries``.

    Raises
    ------
    UnsupportedQuery
        headgate cannot convert some state.
    CheckpointError
        The checkpoint is of another query, has unfinished work, or the new directory is not empty.
    HeadgateError
        This Spark cannot write state.
    """
    require(isinstance(writer, SparkWriter), "hg.export: writer", writer, "hg.writeStream(df)")
    require_place(checkpoint, "hg.export: checkpoint")
    df, settings = writer.df, writer.settings
    spark = df.sparkSession
    query = planned(df, settings, arrivals=False)
    config = configured.job_config(settings, configured.cores_of(spark))
    log.refuse_store(checkpoint)
    target = resolved(spark, checkpoint)
    log.refuse_used(target)
    where = configured.checkpoint_place(spark, settings)
    ordered = bool(own.ORDERED.of(settings.options))
    check_order(spark, df, query)
    with ExitStack() as undo:
        undo.callback(where.leave, failed=False)
        if where.url is not None or not (where.path / "headgate" / "identity.json").is_file():
            place = where.url or where.path
            msg = (
                f"{place} is no directory with a checkpoint of headgate's; give that of the query."
            )
            raise CheckpointError(msg)
        log.refuse_within(target, where.path)
        origin, _, _ = opened(spark, where, identity(spark, query, config), undo)
        latest, newest = _at_rest(origin, where.path)
        skeleton = Path(tempfile.mkdtemp(prefix="headgate-export-"))
        undo.callback(shutil.rmtree, skeleton, ignore_errors=True)
        session = rewriting_session(spark)
        _run_on_nothing(session, df, settings.mode, skeleton)
        pairs = paired(query, state_metadata(session, skeleton))
        states = {op.id: OperatorState.recovered(latest, op.id) for op in query.operators}
        parted: dict[tuple[int, str], DataFrame] = {}
        for operator, row in pairs:
            check_name(operator, row.operatorName)
            number, partitions = int(row.operatorId), int(row.numPartitions)
            form = partial(state_rows, session, skeleton, number, 0)
            ours = OurState(session, operator, states[operator.id], origin, form, ordered)
            for name, store in stores(ours).items():
                rows = entry_bytes(store.rows, store.keys, store.hashed, partitions)
                parted[number, name] = rows
        batch = _last_batch(settings, latest)
        notes = log.entry(skeleton, 0).notes | {
            name: newest.notes[name] for name in ("batchWatermarkMs", "batchTimestampMs")
        }
        newest = replace(newest, batch=batch, notes=notes)
        undo.enter_context(log.fresh(target))
        _copy_forms(skeleton / "state", target / "state")
        log.begin(target, newest, ticks=False)
        rewrite(session, skeleton, target, batch, parted)
        log.copy_beside(where.path, target)
        log.commit(target, newest)
    return {
        "checkpoint": str(target),
        "batch": batch,
        "watermark_ms": newest.watermark_us // 1000,
        "operators": [{"id": name, "entries": sum(store.rows)} for name, store in states.items()],
    }


def _at_rest(origin: Checkpoint, path: Path) -> tuple[Manifest, log.LogEntry]:
    """Return the newest manifest, and Spark's newest batch with the watermarks that plain Spark needs."""
    latest = origin.latest()
    if latest is None:
        msg = (
            f"{path} has no committed step, so there is nothing to export; start plain Spark anew."
        )
        raise CheckpointError(msg)
    waiting = [name for name, facts in latest.engine["operators"].items() if facts["backlog"]]
    newest = log.newest_of_ours(path)
    unsettled = ""
    if waiting:
        unsettled = f"records wait for slots of {', '.join(waiting)}"
    elif (
        newest.batch < latest.spark_batch
        or newest.sources != latest.engine["sources"]
        or not _drain_is_out(origin, latest)
    ):
        unsettled = "its last step may not be with the sink"
    if unsettled:
        msg = (
            f"{path} is not at rest, {unsettled}; run the query with trigger(availableNow=True) to its "
            "end, and try again."
        )
        raise CheckpointError(msg)
    evicted_ms = int(latest.watermarks["evict_us"]) // 1000
    watermark_ms = max(int(newest.notes["batchWatermarkMs"]), evicted_ms)
    notes = newest.notes | {"batchWatermarkMs": watermark_ms}
    after_ms = max(newest.next_watermark_ms, watermark_ms)
    return latest, replace(newest, notes=notes, next_watermark_ms=after_ms)


def _last_batch(settings: QuerySettings, latest: Manifest) -> int:
    """Return the last batch number for plain Spark, the sink's last number of an output."""
    batch = int(latest.engine["sink_batch"])
    calls = settings.function is not None or settings.row_function is not None
    files = (settings.format or "parquet").lower() in FILE_FORMATS
    if batch < 0 and files and not calls and settings.table is None:
        msg = (
            "the query has put out nothing yet, and Spark's sink of files counts its batches from 0; "
            "start plain Spark anew, and nothing is lost."
        )
        raise CheckpointError(msg)
    return max(0, batch)


def _drain_is_out(origin: Checkpoint, latest: Manifest) -> bool:
    """Return whether the sink has the output of a drain, the step after the sources' end."""
    if not drained(latest):
        return True
    return bool((origin.read_intent(latest.step) or {}).get("delivered"))


def _run_on_nothing(spark: SparkSession, df: DataFrame, mode: str, checkpoint: Path) -> None:
    """Run the query on plain Spark for a batch without records, to get the schemas of its state."""
    plan = analysed(df)
    for source in _streams(plan):
        attributes = list(each(source.output()))
        nothing = []
        for attribute in attributes:
            value = F.lit(None).cast(data_type(attribute.dataType()))
            declared = value if attribute.nullable() else known_not_null(value)
            nothing.append(declared.alias(attribute.name()))
        ticks = Tick(spark, checkpoint).frame
        plan = replace_leaf(spark, plan, source, named_as(ticks.select(*nothing), attributes))
    writer = of_rows(spark, plan).writeStream.format("noop").outputMode(mode)
    query = writer.option("checkpointLocation", uri(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def _streams(plan: Jvm) -> list[Jvm]:
    return [leaf for leaf in each(plan.collectLeaves()) if leaf.isStreaming()]


def _copy_forms(origin: Path, target: Path) -> None:
    """Copy Spark's metadata and schemas of operators' state, without the state."""
    for directory, _, names in os.walk(origin):
        below = Path(directory).relative_to(origin)
        if not any(part.startswith("_") for part in below.parts):
            continue
        (target / below).mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(Path(directory) / name, target / below / name)
