"""Explains, before a query runs, which part of it would run elastically."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headgate.control.pools.groupings import GROUPINGS, Groupings
from headgate.core.errors import UnsupportedQuery
from headgate.core.size import format_bytes
from headgate.core.stores import store_url
from headgate.operators.build import row_bytes
from headgate.report.notebook import text_html
from headgate.spark.api.real_time import check_settings, flow_below
from headgate.spark.jvm.gateway import require_classic, require_frame
from headgate.spark.read.arrival import reads_kafka
from headgate.spark.read.logical import ModeRefused, read, shown
from headgate.spark.read.passing import passed
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.read.stages import NoPythonStage, read_pipeline
from headgate.spark.settings import options as own
from headgate.spark.settings.query_settings import QuerySettings
from headgate.spark.sinks.sinks import guarantee
from headgate.tables.arena import arena_root, spill_path

_REQUESTS_PER_BATCH = 3
"""Requests of the driver: intent, manifest, one deletion of garbage."""

_REQUESTS_PER_S = 1
"""Requests of the driver: the journal, and a look for commands, each every 2 s."""


class Explanation(str):
    """A text that a shell and a notebook show without quotes, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the text as HTML for a notebook."""
        return text_html(self)


MODES = ("append", "update", "complete")


def explain(
    df: DataFrame,
    outputMode: str | None = None,
    *,
    grouping: str | None = None,
    memoryMax: str | None = None,
    checkpointLocation: str | None = None,
    realTime: bool = False,
    format: str | None = None,
) -> Explanation:
    """Describe the parts of `df` that run elastically, that stay in Catalyst, and that cannot run.

    A tree of the plan follows. It marks parts that run in *slots*, parts of Spark's *stream* below the
    slots, and parts in which *Catalyst* processes the slots' output of each batch.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame of a classic session.
    outputMode : str or None
        append, update or complete; None for the first of these in which the query runs.
    grouping : str or None
        As option ``headgate.grouping``, for the Python stages of a stateless query.
    memoryMax : str or None
        As option ``headgate.state.memoryMax``.
    checkpointLocation : str or None
        Location of the checkpoint; it is not accessed.
    realTime : bool
        Whether to add if the query could run with ``trigger(realTime=...)``, or the reason against it.
    format : str or None
        The sink's format, to describe its guarantee; a format that Spark does not know is allowed.

    Raises
    ------
    ConfigError
        `grouping` names an unknown grouping or stage, `memoryMax` is no size, or the package of the
        format does not work.
    CheckpointError
        The location is a store without a bucket or key.
    """
    chosen = own.GROUPING.default if grouping is None else own.GROUPING.value_of(grouping)
    bound = None if memoryMax is None else own.MEMORY_MAX.value_of(memoryMax)
    store = None if checkpointLocation is None else store_url(checkpointLocation)
    require_frame(df, "hg.explain: df")
    require_classic(df.sparkSession)
    refused: dict[str, UnsupportedQuery] = {}
    runs: dict[str, PlannedQuery] = {}
    for mode in MODES if outputMode is None else (outputMode,):
        try:
            runs[mode] = read(df, mode)
        except UnsupportedQuery as error:
            refused[mode] = error
        if "append" in runs:
            break
    if not runs:
        # a refusal of the mode comes last: another mode's reason tells more about the query
        reasons = sorted(refused.values(), key=lambda e: (_of_mode(e), isinstance(e, ModeRefused)))
        return Explanation(f"not elastic   {reasons[0]}")
    mode, query = next(iter(runs.items()))
    lines = _lines(query)
    if query.operators:
        lines += [
            f"{'where' if n == 0 else '':<14}{line}" for n, line in enumerate(shown(df, mode))
        ]
    if query.operators and bound is not None:
        lines.insert(len(query.operators), _memory(bound))
    if query.operators and store is not None:
        lines.insert(len(query.operators), _requests(store))
    if not query.operators:
        lines[1:1] = _stages(df, chosen)
    if format is not None:
        lines.append(f"sink          {format}: {guarantee(format)}")
    if realTime:
        lines.append(_real_time(df, query, mode))
    if refused:
        modes = " or ".join(f'"{mode}"' for mode in runs)
        lines.insert(0, f"output mode   {modes}; not append: {refused['append']}")
    return Explanation("\n".join(lines))


def _real_time(df: DataFrame, query: PlannedQuery, mode: str) -> str:
    """Return whether a query could run in real time."""
    try:
        check_settings(QuerySettings(mode=mode))
        flow = flow_below(df.sparkSession, passed(df.sparkSession, query))
    except UnsupportedQuery as error:
        return f"no real time  {error}"
    cores = flow.feeds.tasks + 1
    return f"real time     yes: trigger(realTime=...); on one host it needs {cores} cores"


def _of_mode(error: UnsupportedQuery) -> bool:
    return "STREAMING_OUTPUT_MODE" in str(error)


def _stages(df: DataFrame, chosen: Groupings) -> list[str]:
    """Describe the stages of a stateless query that can run on pools, or the reason against pools."""
    try:
        stages = read_pipeline(df, "psps").stages
    except NoPythonStage:
        return []
    except UnsupportedQuery as error:
        return [f"no pools      {error}"]
    chosen.check(stage.id for stage in stages)
    return ['pools         with .policy("psps"), of replicas that follow the load:'] + [
        f"  {stage.id:<12}{stage.what}; rows go to {GROUPINGS[chosen.of(stage.id)]}: "
        f"{chosen.of(stage.id)}"
        for stage in stages
    ]


def _memory(bound: int) -> str:
    """Describe the effect of a bound on memory on this host."""
    return (
        f"memory        at most {format_bytes(bound)} of each host's for state in {arena_root()}; "
        f"key groups that are touched least lie in {spill_path()}"
    )


def _requests(store: str) -> str:
    """Describe the expected requests of a checkpoint on a store."""
    per_h = 3600 * (_REQUESTS_PER_BATCH + _REQUESTS_PER_S)
    return (
        f"store         {store}: about {_REQUESTS_PER_BATCH} requests per batch, {_REQUESTS_PER_S} per "
        "second, and 1 of each slot that changes more than its share of 1 MB; with a batch per second "
        f"{per_h:,} an hour"
    )


def _arrivals(query: PlannedQuery) -> list[str]:
    """Describe, for operators that read Kafka, whether Kafka's timestamp is the arrival time."""
    lines = []
    for first in (chain[0] for chain in query.sources):
        if not reads_kafka(first.input_plan):
            continue
        if first.arrival is not None:
            lines.append(f"arrival       of {first.id}: Kafka's timestamp")
        else:
            lines.append(
                f"arrival       of {first.id}: unknown, since Kafka's timestamp does not reach it; name "
                f'a column by .option("{own.ARRIVAL.key}", ...)'
            )
    return lines


def _lines(query: PlannedQuery) -> list[str]:
    lines = [
        f"elastic       {op.what}; about {row_bytes(op.spec)} B per entry" for op in query.operators
    ]
    if not query.operators:
        lines.append("elastic       nothing: the query is stateless, Catalyst runs all of it")
    lines += _arrivals(query)
    above = ", ".join(query.notes) or "nothing"
    lines.append(f"catalyst      all below the first operator; above: {above} (unchanged)")
    if any(op.parents for op in query.operators):
        lines.append("              what stands between two operators (unchanged)")
    lines.append("not elastic   none")
    return lines
