"""Compares the output of a job with Spark's own batch answer on the same input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import REAL_TIME, Manifest
from headgate.checkpoint.manifest_log import carried_file, offsets_text
from headgate.checkpoint.shipping import journal_at
from headgate.core.errors import CheckpointError, HeadgateError, require, require_place
from headgate.core.input import regular_bytes
from headgate.core.installed import SOURCES, installed
from headgate.journal.reader import read as read_journal
from headgate.journal.schema import Batch
from headgate.operators.spec import AggregateSpec
from headgate.spark.api.comparison import compare
from headgate.spark.api.waiting import report_progress
from headgate.spark.jvm.gateway import (
    Jvm,
    class_name,
    each,
    require_frame,
    require_session,
    seq,
)
from headgate.spark.jvm.plans import analysed, of_rows
from headgate.spark.read.logical import read
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.read.table_offsets import rows_until


class BatchSession:
    """Replaces a session's ``readStream`` by a batch read of the same source up to the job's offsets.

    Everything else is the session's own, so the user's function runs unchanged.

    `until`: end offset (JSON) of each source, in the order of the query: of Kafka, of tables, and of
    installed sources (`SOURCES`), which take it as option ``until``. `since`: first offset of each
    source; None for a source whose log does not have it.
    """

    def __init__(
        self, spark: SparkSession, until: list[str | None], since: Sequence[str | None] = ()
    ) -> None:
        self._spark = spark
        self._until = list(until)
        self._since = list(since)

    @property
    def readStream(self) -> Any:
        """A batch reader in place of the streaming reader; each access takes the next source."""
        until, since = (known[0] if known else None for known in (self._until, self._since))
        for known in (self._until, self._since):
            if len(known) > 1:
                known.pop(0)
        return _BatchReader(self._spark, until, since)

    def __getattr__(self, name: str) -> Any:
        """Return the attribute of the session."""
        return getattr(self._spark, name)


class _BatchReader:
    def __init__(self, spark: SparkSession, until: str | None, since: str | None) -> None:
        self._reader = spark.read
        self._until = until
        self._since = since
        self._source = "parquet"
        self._spark = spark
        self._options: dict[str, str] = {}

    def format(self, source: str) -> _BatchReader:
        self._reader, self._source = self._reader.format(source), source
        if self._until is not None and source in installed(SOURCES):
            self._reader = self._reader.option("until", self._until)
        return self

    def option(self, key: str, value: Any) -> _BatchReader:
        self._options[key] = str(value)
        if key.lower() not in _WHERE_KAFKA_BEGINS:
            self._reader = self._reader.option(key, value)
        return self

    def options(self, **options: Any) -> _BatchReader:
        for key, value in options.items():
            self.option(key, value)
        return self

    def load(self, path: Any = None, format: str | None = None, **more: Any) -> DataFrame:
        if format is not None:
            self.format(format)
        self.options(**more)
        if self._source == "kafka" and self._until is not None:
            since, until = kafka_range(self._since, self._until)
            self._reader = self._reader.option("startingOffsets", since)
            self._reader = self._reader.option("endingOffsets", until)
        loaded: DataFrame = self.__getattr__("load")(*([] if path is None else [path]))
        return loaded

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._reader, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = self._rows_until(name, args)
                result = method(*args, **kwargs) if result is None else result
            except AnalysisException as error:
                if "is not a valid Spark SQL Data Source" not in str(error):
                    raise
                msg = (
                    f'source "{self._source}" cannot be read a second time, so its answer cannot be '
                    "verified; read files, Kafka, a table or an installed source of headgate's."
                )
                raise HeadgateError(msg) from error
            if isinstance(result, DataFrame):
                return result
            self._reader = result
            return self

        return call

    def _rows_until(self, name: str, args: tuple[Any, ...]) -> DataFrame | None:
        """Return the rows of a table that the job had read; None for other sources."""
        if name not in ("table", "load") or not args:
            return None
        return rows_until(
            self._spark, self._until, args[0], path=name == "load", options=self._options
        )


_WHERE_KAFKA_BEGINS = (
    "startingoffsets",
    "startingoffsetsbytimestamp",
    "startingtimestamp",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
)
"""Options of Kafka's streaming source that set its range; `kafka_range` replaces them."""

_EARLIEST = -2


def kafka_range(since: str | None, until: str) -> tuple[str, str]:
    """Return the options ``startingOffsets`` and ``endingOffsets`` for the records that a job has read.

    `since`: first offsets of the source; a partition that is missing there was created later. `until`:
    end offsets of the source.
    """
    began = {} if since is None else json.loads(since)
    ends = json.loads(until)
    starts = {
        topic: {number: began.get(topic, {}).get(number, _EARLIEST) for number in partitions}
        for topic, partitions in ends.items()
    }
    return json.dumps(starts), until


def verify(
    spark: SparkSession,
    build: Callable[..., DataFrame],
    *,
    checkpoint: str,
    output: DataFrame,
    options: Mapping[str, Any] | None = None,
    mode: str = "append",
    reference: Callable[..., DataFrame] | None = None,
    progress: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Compare a stopped job's output with the batch answer of the same function.

    Parameters
    ----------
    build : callable
        Returns the query: ``build(spark, **options)``; must read through ``spark.readStream``.
    output : DataFrame
        All rows in the job's sink.
    options : mapping, optional
        Arguments of `build`.
    mode : str
        Output mode of the job; in append mode only closed windows are compared.
    reference : callable, optional
        Returns the expected rows, with the arguments of `build`; default: `build` itself, so that
        the expected rows are Spark's batch answer.
    progress : callable, optional
        Takes a line about the progress every ten seconds; default: writes the line on stderr.

    Returns
    -------
    dict
        verified (None if both sides have no rows), rows_compared, missing, extra, differing (up to
        three: `want` and `got`), within_tolerance (columns), dropped {late}.

    Notes
    -----
    Columns of floating-point numbers that may be sums match within a tolerance, because addition in
    another order changes the last bits: 1e-9 of the larger number (1e-5 for 32 bits). All other
    columns must be equal, also keys, ``min`` and ``max``, and so must the count of each row.

    Late records are in the batch answer and not in the output. So a run that dropped late records
    does not verify; `dropped` has their number.

    In append mode a record of an outer join that still waits for a partner is in the batch answer
    without a partner, and not in the output. It counts as missing until the watermark has passed it.
    """
    require_session(spark, "hg.verify: spark")
    require(
        callable(build), "hg.verify: build", build, "a function of a session that gives the query"
    )
    require_frame(output, "hg.verify: output")
    require(
        not output.isStreaming, "hg.verify: output", output, "what the sink holds, by spark.read"
    )
    require_place(checkpoint, "hg.verify: checkpoint")
    store = Checkpoint(checkpoint)
    latest = store.latest()
    with journal_at(store) as journal:
        late, last_batch = _journalled(journal)
    if last_batch is None:
        msg = f"checkpoint {checkpoint} holds no batch yet; let the job run first."
        raise CheckpointError(msg)
    # a stateless query has no manifest, so the journal's last batch counts
    until = last_batch if latest is None else latest.spark_batch
    if latest is not None and REAL_TIME in latest.engine:
        offsets = latest.engine["sources"]
    elif store.files.shared:
        offsets = carried_offsets(latest, until)
    else:
        offsets = end_offsets(store.path, until)
    starts = (
        carried_starts(store, latest, len(offsets))
        if store.files.shared
        else start_offsets(store.path, len(offsets))
    )
    session = BatchSession(spark, offsets, starts)
    expected = (reference or build)(session, **dict(options or {}))
    if mode == "append" and latest is not None:
        query = read(build(spark, **dict(options or {})), mode)
        expected = closed(expected, query, latest)
    with report_progress(spark, "verify, Spark's batch answer beside the output", progress):
        try:
            differences = compare(expected, output)
        except PySparkException as error:
            if "google.protobuf" not in str(error):
                raise
            msg = "Spark's batch answer of transformWithState needs protobuf; pip install protobuf."
            raise HeadgateError(msg) from error
    return differences | {"dropped": {"late": late}}


def end_offsets(location: Path, batch: int) -> list[str | None]:
    """Return the end offsets of a Spark batch, as JSON, by source."""
    path = location / "offsets" / str(batch)
    return _offsets(regular_bytes(path).decode()) if path.exists() else [None]


def _offsets(text: str) -> list[str | None]:
    # line 1: version of the format; line 2: Spark's metadata; then one line per source
    _, _, *sources = text.splitlines()
    return [None if source == "-" else source for source in sources]


def start_offsets(location: Path, count: int) -> list[str | None]:
    """Return the first offset of each source, as JSON; None for a source whose log does not have it."""
    paths = [location / "sources" / str(number) / "0" for number in range(count)]
    return [_start(regular_bytes(path).decode()) if path.is_file() else None for path in paths]


def _start(text: str) -> str | None:
    # a byte of padding and the format's version come before the offset
    _, brace, rest = text.partition("{")
    return brace + rest if brace else None


def carried_starts(store: Checkpoint, latest: Manifest | None, count: int) -> list[str | None]:
    """Return the result of `start_offsets` from Spark's log in a manifest."""
    if latest is None:
        return [None] * count
    found = [carried_file(store, latest, f"sources/{number}/0") for number in range(count)]
    return [None if data is None else _start(data.decode()) for data in found]


def carried_offsets(latest: Manifest | None, batch: int) -> list[str | None]:
    """Return the result of `end_offsets` from Spark's log in a manifest."""
    text = None if latest is None else offsets_text(latest, batch)
    return [None] if text is None else _offsets(text)


def _journalled(journal: Path) -> tuple[int, int | None]:
    """Return the number of late records, and Spark's number of the last batch."""
    late, last = 0, None
    for event in read_journal(journal):
        if isinstance(event, Batch):
            late += event.late
            last = event.spark_batch
    return late, last


def closed(batch: DataFrame, query: PlannedQuery, latest: Manifest) -> DataFrame:
    """Return a batch query with only the windows that the job had closed.

    Parameters
    ----------
    batch : DataFrame    The batch form of `query`.
    query : PlannedQuery    The streaming form, as headgate reads it.
    latest : Manifest    The job's last manifest; has the emitted time of every key group.
    """
    spark, plan = batch.sparkSession, analysed(batch)
    facts = latest.engine["operators"]
    windowed = [op for op in query.operators if isinstance(op.spec, AggregateSpec)]
    if _aggregates(plan) != len(
        windowed
    ):  # the user aggregates a static table, too: restrict only the last aggregates
        windowed = [op for op in query.last if isinstance(op.spec, AggregateSpec)]
    whole = len(windowed) == _aggregates(plan)
    bounds = [(op.time_output, min(facts[op.id]["emitted_us"])) for op in windowed]
    return of_rows(spark, _closed(spark, plan, iter(bounds), whole=whole))


def _aggregates(plan: Jvm) -> int:
    return (class_name(plan) == "Aggregate") + sum(map(_aggregates, each(plan.children())))


def _closed(
    spark: SparkSession, plan: Jvm, bounds: Iterator[tuple[int | None, int]], *, whole: bool
) -> Jvm:
    """Return `plan` with only closed windows; `whole`: in all its aggregates, else in the upper ones."""
    aggregate = class_name(plan) == "Aggregate"
    if whole or not aggregate:
        children = [_closed(spark, child, bounds, whole=whole) for child in each(plan.children())]
        plan = plan.withNewChildren(seq(spark, children)) if children else plan
    if not aggregate:
        return plan
    position, watermark_us = next(bounds, (None, 0))
    if position is None:
        return plan
    frame = of_rows(spark, plan)
    field = frame.schema.fields[position]
    time = F.col(f"`{field.name}`")
    end = time.getField("end") if isinstance(field.dataType, T.StructType) else time
    # Spark pushes a filter on a session's end below the merge of sessions, where each record is still
    # a window of its own. It does not push a non-deterministic filter; this random number is always 0.
    nothing = F.rand().cast("long")
    return analysed(frame.where(F.unix_micros(end) + nothing <= watermark_us))
