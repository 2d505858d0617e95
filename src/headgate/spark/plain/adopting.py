"""Implements `hg.adopt`: creates a headgate checkpoint, with state, from a plain query's checkpoint."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import CheckpointError, UnsupportedQuery, require, require_place
from headgate.operators.build import Spec
from headgate.spark.api import configured
from headgate.spark.api.launch import opened
from headgate.spark.api.sparkwriter import SparkWriter
from headgate.spark.api.start import identity, planned
from headgate.spark.cluster.location import resolved
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Report, ReportChannel, consistent
from headgate.spark.jvm.gateway import class_name
from headgate.spark.jvm.plans import ArrowMap, analysed, run_through
from headgate.spark.jvm.sessions import clone_of
from headgate.spark.jvm.statestores import aggregates_as_run, state_metadata, state_read, state_rows
from headgate.spark.jvm.streams import source_counts
from headgate.spark.plain import log
from headgate.spark.plain.plain_state import PlainState
from headgate.spark.plain.records import check_name, records
from headgate.spark.read.plan import PlannedOperator, PlannedQuery
from headgate.spark.settings import options as own
from headgate.spark.step import exchange
from headgate.spark.step.begun import Begun
from headgate.spark.step.commit import next_manifest
from headgate.spark.worker.facts import SlotFacts
from headgate.spark.worker.slot import SlotTask
from headgate.tables.arena import RunDirectory, arena_root, open_run

_ADAPTIVE = "spark.sql.adaptive.enabled"
_NOTHING = T.StructType([T.StructField("nothing", T.IntegerType())])


def adopt(writer: SparkWriter, checkpoint: str) -> dict[str, Any]:
    """Take over a plain query's checkpoint: offsets, watermark and state.

    It creates the writer's own checkpoint, from which `start` continues where the plain query stopped. It
    only reads the plain checkpoint.

    Parameters
    ----------
    writer : Writer
        ``hg.writeStream(df)`` of the same query, with its output mode, and a ``checkpointLocation`` that
        is empty or does not exist.
    checkpoint : str
        The ``checkpointLocation`` of the plain query, which must be stopped.

    Returns
    -------
    dict
        ``checkpoint``, ``batch`` (the newest of the plain query), ``watermark_ms``, and for each operator
        in ``operators`` its ``id`` and ``entries``.

    Raises
    ------
    UnsupportedQuery
        The query cannot run elastically, or headgate cannot convert some state.
    CheckpointError
        The checkpoint belongs to another query or to a running one, or the new directory is not empty.
    """
    require(isinstance(writer, SparkWriter), "hg.adopt: writer", writer, "hg.writeStream(df)")
    require_place(checkpoint, "hg.adopt: checkpoint")
    df, settings = writer.df, writer.settings
    spark = df.sparkSession
    query = planned(df, settings, arrivals=False)
    config = configured.job_config(settings, configured.cores_of(spark))
    log.refuse_store(checkpoint)
    origin = resolved(spark, checkpoint)
    newest = log.newest(origin)
    log.check_types(origin)
    log.check_sources(origin, newest, source_counts(analysed(df)))
    stored = state_metadata(spark, origin)
    pairs = paired(query, stored)
    for operator, row in pairs:
        check_name(operator, row.operatorName)
    check_order(spark, df, query)
    where = configured.checkpoint_place(spark, settings)
    with ExitStack() as undo:
        undo.callback(where.leave, failed=False)
        if where.url is not None or where.temporary:
            msg = "a checkpoint is adopted into a directory; give the writer one to write to."
            raise CheckpointError(msg)
        log.refuse_within(where.path, origin)
        undo.enter_context(log.fresh(where.path))
        undo.enter_context(state_read(origin))
        session = clone_of(spark)
        session.conf.set(_ADAPTIVE, "false")  # adaptive execution may run slots during planning
        records_of = {
            operator.id: records(
                PlainState(
                    session,
                    operator,
                    partial(state_rows, session, origin, int(row.operatorId), newest.batch),
                    config.key_groups,
                    bool(own.ORDERED.of(settings.options)),
                    newest.watermark_us,
                )
            )
            for operator, row in pairs
        }
        target, uuid, _ = opened(spark, where, identity(spark, query, config), undo)
        log.begin(where.path, newest, ticks=True)
        log.copy_beside(origin, where.path)
        log.commit(where.path, newest)
        counts = _state_step(spark, query, config, records_of, newest, target, uuid)
    return {
        "checkpoint": target.location,
        "batch": newest.batch,
        "watermark_ms": newest.watermark_us // 1000,
        "operators": [{"id": name, "entries": count} for name, count in counts.items()],
    }


def paired(query: PlannedQuery, stored: list[Row]) -> list[tuple[PlannedOperator, Row]]:
    """Return each operator of a query with the metadata of its state in a plain checkpoint.

    Raises `UnsupportedQuery`: there is no operator, or the operators are not one chain;
    `CheckpointError`: the checkpoint has other operators.
    """
    operators = query.operators
    branched = any(len(op.parents) > 1 for op in operators) or len(query.last) > 1
    if not operators or branched:
        what = "which do not follow each other" if operators else "so there is no state to carry"
        msg = (
            f"this query has {len(operators)} stateful operators, {what}; checkpoints are carried "
            "between Spark and headgate where one or several follow each other."
        )
        raise UnsupportedQuery(msg)
    # Spark numbers operators from the sink to the sources, and has one row for each state store
    rows = {int(row.operatorId): row for row in reversed(stored)}
    if len(rows) != len(operators):
        names = ", ".join(str(rows[number].operatorName) for number in sorted(rows))
        msg = (
            f"the checkpoint has state of {names or 'no operator'} where the query has "
            f"{', '.join(op.what.partition(';')[0] for op in operators)}; give the query that wrote it."
        )
        raise CheckpointError(msg)
    return [(op, rows[n]) for op, n in zip(reversed(operators), sorted(rows), strict=True)]


def check_order(spark: SparkSession, df: DataFrame, query: PlannedQuery) -> None:
    """Refuse an aggregate whose functions differ in Spark's optimised plan from the query.

    Spark's state has the buffers in the order of the optimised plan, under names such as ``sum``.
    Raises `UnsupportedQuery`.
    """
    aggregates = [op for op in query.operators if op.aggregate is not None]
    if not aggregates:
        return
    runs = aggregates_as_run(spark, analysed(df))
    for operator, functions in zip(reversed(aggregates), runs, strict=True):
        parts = operator.aggregate
        assert parts is not None
        written = [class_name(part.function) for part in parts.parts]
        if written != functions:
            msg = (
                f"Spark runs {', '.join(functions)} where the query says {', '.join(written)}, so its "
                "state cannot be matched to them; leave out aggregates whose result is not used."
            )
            raise UnsupportedQuery(msg)


def _state_step(
    spark: SparkSession,
    query: PlannedQuery,
    config: JobConfig,
    records_of: dict[str, tuple[DataFrame, Spec]],
    newest: log.LogEntry,
    target: Checkpoint,
    uuid: str,
) -> dict[str, int]:
    """Run step 0, whose records are the state, without output; return entry counts by operator."""
    begun = Begun(
        number=0,
        spark_batch=newest.batch,
        watermark_us=newest.watermark_us,
        sources=newest.sources,
        read_ms=time.time() * 1e3,
        started_ms=time.time() * 1e3,
        timestamp_ms=int(newest.notes.get("batchTimestampMs", 0)),
        drain=False,
        latest=None,
    )
    states = {op.id: OperatorState.fresh(config.slots, config.key_groups) for op in query.operators}
    run = open_run(arena_root())
    reports: list[Report] = []
    try:
        for operator in query.operators:
            facts = _facts(spark, operator, states[operator.id], config, begun, target, run)
            reports += _served(
                spark, operator, records_of[operator.id], states[operator.id], facts, target
            )
    finally:
        run.end()
        run.close()
    manifest = next_manifest(begun, uuid, 0, states, reports)
    for name, state in states.items():
        _check_all_kept(name, [r for r in reports if r.operator == name], sum(state.rows))
    # the sink has batches up to this number from the plain query, and numbering continues
    engine = {**manifest.engine, "sink_batch": newest.batch, "adopted": newest.batch}
    target.commit(replace(manifest, engine=engine))
    return {name: sum(r.arrived for r in reports if r.operator == name) for name in states}


def _check_all_kept(name: str, reports: list[Report], rows: int) -> None:
    """Refuse a state if some entries were lost in step 0; a processor has more rows than entries."""
    came = sum(report.arrived for report in reports)
    if came == rows or name.startswith("processor"):
        return
    msg = (
        f"of {came} entries of the checkpoint's state {came - rows} are older than its watermark or "
        "duplicates, which Spark never writes; restore the checkpoint from a copy."
    )
    raise CheckpointError(msg)


def _served(
    spark: SparkSession,
    operator: PlannedOperator,
    records: tuple[DataFrame, Spec],
    state: OperatorState,
    facts: SlotFacts,
    target: Checkpoint,
) -> list[Report]:
    """Have an operator's slots serve the records of its state; return a report of each."""
    channel: ReportChannel[Report] = ReportChannel(spark.sparkContext)
    # `into_sink`: the slots store no output
    rows, spec = records
    task = SlotTask(operator.id, spec, channel.sender, into_sink=True, store=target.options)
    schema = operator.raw_schema if spec is operator.spec else _NOTHING
    spark.sparkContext.setLocalProperty(SlotFacts.PROPERTY + operator.id, facts.to_json())
    slots = exchange.to_slots(rows, state.assignment, shared=operator.shared)
    run_through(ArrowMap(task, schema).apply(slots))
    reports = channel.drain(0, 1)
    return consistent(reports, {operator.id: state.assignment.slots}, [operator.id])


def _facts(
    spark: SparkSession,
    operator: PlannedOperator,
    state: OperatorState,
    config: JobConfig,
    begun: Begun,
    target: Checkpoint,
    run: RunDirectory,
) -> SlotFacts:
    """Return the instructions for the slots of step 0: serve all records, without a time limit."""
    local = str(spark.sparkContext.master).startswith("local")
    return SlotFacts(
        step=begun.number,
        attempt=1,
        arena_root=str(run.path.parent) if local else None,
        run_id=run.run_id,
        checkpoint=target.location,
        # behind a join, rows may be older than the query's watermark
        watermark_us=max(0, begun.watermark_us - operator.behind_us),
        slot_of=state.assignment.slot_of,
        held=(),
        tokens=state.tokens,
        steps=state.steps,
        emitted_us=state.emitted_us,
        due_us=state.due_us,
        snapshots=state.due_for_snapshot(begun.number, config.snapshot_every),
        backlog={},
        waiting_crc32={},
        quotas=None,
        next_slots=0,
        keep_late=False,
        delta_ms=0.0,
        bound_ms=0.0,
        timestamp_ms=begun.timestamp_ms,
        time_limit_s=0.0,
        arrived_ms=begun.read_ms,
        faults=(),
    )
