"""Turns the output of slots, stored in the checkpoint, into the DataFrame of the sink.

The sink gets committed bytes, never a plan that contains a slot task: a second action on such a plan, or
a sort, would run the slots twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.core.errors import CheckpointError
from headgate.operators.hidden import without_hidden_nulls
from headgate.spark.job.reports import ReplicaReport, Report
from headgate.spark.jvm.gateway import Jvm, each
from headgate.spark.jvm.narrow import NarrowPlan
from headgate.spark.jvm.observed import CountedRows, observes
from headgate.spark.jvm.planned import Planned
from headgate.spark.jvm.plans import (
    analysed,
    computed_rows,
    internal_rows,
    leaf,
    named_as,
    no_rows,
    of_rows,
    replace_leaf,
)
from headgate.spark.jvm.sessions import created
from headgate.spark.read.plan import PlannedQuery
from headgate.spark.worker.payloads import read_table


@dataclass
class Outputs:
    """Holds the output of one step."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """Entries of the manifest: operator, rows, and ``inline`` (a payload's name) or ``file``."""
    inline: dict[str, bytes] = field(default_factory=dict)
    """Payloads by name."""

    @property
    def rows(self) -> int:
        """Rows that the slots put out."""
        return sum(entry["rows"] for entry in self.entries)

    def table(self, checkpoint: Checkpoint) -> pa.Table | None:
        """Read and return the rows in this process; None without entries."""
        tables = [
            read_table(
                self.inline[entry["inline"]]
                if "inline" in entry
                else _file(checkpoint, entry["file"], entry["crc32"])
            )
            for entry in self.entries
        ]
        return pa.concat_tables(tables) if tables else None

    def add(
        self,
        report: Report | ReplicaReport,
        payloads: dict[str, bytes],
        files: dict[str, FileEntry],
    ) -> None:
        """Add a slot's output to these entries, and to the payloads or files of a new manifest."""
        payload = report.output
        assert payload is not None
        entry: dict[str, Any] = {"operator": report.operator, "rows": report.output_rows}
        if payload.data is not None:
            entry["inline"] = f"output-{report.token}"
            payloads[entry["inline"]] = payload.data
        else:
            entry["file"] = payload.name
            name = f"output/{payload.name}"
            files[name] = FileEntry(name, payload.length, payload.crc32)
        self.entries.append(entry)

    @classmethod
    def reported(cls, reports: Iterable[Report | ReplicaReport]) -> Outputs:
        """Return the outputs named in reports of a step that is not committed yet."""
        made = cls()
        files: dict[str, FileEntry] = {}
        for report in reports:
            if report.output is not None:
                made.add(report, made.inline, files)
        for entry in made.entries:
            if "file" in entry:
                entry["crc32"] = files[f"output/{entry['file']}"].crc32
        return made

    @classmethod
    def read(cls, manifest: Manifest) -> Outputs:
        """Return the outputs that a manifest names."""
        entries = [dict(entry) for entry in manifest.engine["outputs"]]
        by_name = {f.name: f for f in manifest.files}
        for entry in entries:
            if "file" in entry:
                known = by_name[f"output/{entry['file']}"]
                entry.setdefault("crc32", known.crc32)
        named = [entry["inline"] for entry in entries if "inline" in entry]
        return cls(entries, {name: bytes(manifest.payloads[name]) for name in named})


@dataclass(frozen=True)
class _ReadOutput:
    """Reads output files of the checkpoint on the executors."""

    checkpoint: str
    store: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        checkpoint = Checkpoint(self.checkpoint, self.store, known=True)
        for batch in batches:
            for row in batch.to_pylist():
                data = row["data"]
                if data is None:
                    data = _file(checkpoint, row["file"], row["crc32"])
                yield from read_table(data).to_batches()


def _file(checkpoint: Checkpoint, name: str, crc32: int) -> bytes:
    """Return an output file's bytes; raise CheckpointError if the checksum differs."""
    data = checkpoint.read_file("output", name)
    if zlib.crc32(data) != crc32:
        msg = f"output file {name} was altered; see headgate inspect --verify."
        raise CheckpointError(msg)
    return data


class Results:
    """Computes the user's result rows from the slots' output; plans only once where it can."""

    def __init__(self, spark: SparkSession, query: PlannedQuery) -> None:
        self._spark = spark
        self._last = query.last
        self._plan = query.plan
        # of the streaming query, in whose schema all columns of an operator's output may be null
        self._columns = analysed(no_rows(spark, query.schema)).output()
        self._planned: Planned | None = None
        self._counts = observes(query.plan)
        self._observed: CountedRows | None = None

    def observed(self) -> Jvm | None:
        """Return the metrics of ``observe()`` of the last results; None without such metrics."""
        return None if self._observed is None else self._observed.metrics()

    def straight(self, rows: Jvm) -> Jvm:
        """Return the RDD of the results of a query with one chain; `rows`: the slots' output."""
        if self._planned is None:
            (last,) = self._last
            empty = internal_rows(no_rows(self._spark, last.raw_schema))
            hole = leaf(self._spark, last.placeholder.output(), empty)
            plan = replace_leaf(self._spark, self._plan, last.placeholder, hole)
            self._planned = Planned(of_rows(self._spark, plan), hole)
        return self._planned.rows(rows)

    def stored(self, outputs: Outputs, checkpoint: Checkpoint) -> DataFrame:
        """Return the result rows of a committed step."""
        parts = []
        for last in self._last:
            entries = [e for e in outputs.entries if e["operator"] == last.id]
            frame = raw_frame(self._spark, last.raw_schema, entries, outputs.inline, checkpoint)
            parts.append(internal_rows(frame))
        if len(parts) == 1 and not self._counts:
            rows = self.straight(parts[0])
            return of_rows(self._spark, leaf(self._spark, self._columns, rows))
        plan = self._plan
        for last, rows in zip(self._last, parts, strict=True):
            made = leaf(self._spark, last.placeholder.output(), rows)
            plan = replace_leaf(self._spark, plan, last.placeholder, made)
        frame = of_rows(self._spark, plan)
        if self._counts:
            self._observed = CountedRows(frame)
        rows = self._observed.rows if self._observed is not None else computed_rows(frame)
        return of_rows(self._spark, leaf(self._spark, self._columns, rows))

    def project_rows(
        self, above: Callable[[DataFrame], DataFrame], file: Path
    ) -> NarrowPlan | None:
        """Return a plan that computes `above` of the results in place from an operator's rows.

        The JVM may write into `file`. None if the results need more than one operator's rows and a
        narrow plan.
        """
        last = self._last[0]
        if self._counts or len(self._last) > 1 or _stored(last.raw_schema) != last.raw_schema:
            return None
        empty = internal_rows(no_rows(self._spark, last.raw_schema))
        hole = leaf(self._spark, last.placeholder.output(), empty)
        plan = replace_leaf(self._spark, self._plan, last.placeholder, hole)
        return NarrowPlan.of(above(of_rows(self._spark, plan)), hole, last.raw_schema, file)

    def at_hand(self, outputs: Outputs, checkpoint: Checkpoint) -> DataFrame:
        """Return the result rows of a step with few rows; the same as `stored` if some are in files.

        The plan contains the rows, so Catalyst computes a projection of them without a job.
        """
        entries = outputs.entries
        last = self._last[0]
        in_files = any("file" in entry for entry in entries)
        kinds = _stored(last.raw_schema) == last.raw_schema
        if self._counts or len(self._last) > 1 or not entries or in_files or not kinds:
            return self.stored(outputs, checkpoint)
        frame = raw_frame(self._spark, last.raw_schema, entries, outputs.inline, checkpoint)
        rows = named_as(frame, each(last.placeholder.output()))
        return of_rows(self._spark, replace_leaf(self._spark, self._plan, last.placeholder, rows))


def raw_frame(
    spark: SparkSession,
    schema: T.StructType,
    entries: list[dict[str, Any]],
    inline: dict[str, bytes],
    checkpoint: Checkpoint,
) -> DataFrame:
    """Return the rows of a step's outputs; user-defined types have their storage types."""
    schema = _stored(schema)
    if not entries:
        return created(spark, [], schema)
    if all("inline" in entry for entry in entries):
        tables = [read_table(inline[entry["inline"]]) for entry in entries]
        return created(spark, without_hidden_nulls(pa.concat_tables(tables)), schema)
    rows = [
        (i, entry.get("file"), inline.get(entry.get("inline", "")), entry.get("crc32"))
        for i, entry in enumerate(entries)
    ]
    files = created(spark, rows, "i int, file string, data binary, crc32 bigint")
    reader = _ReadOutput(checkpoint.location, checkpoint.options)
    return files.repartitionById(len(rows), "i").mapInArrow(reader, schema)


def _stored(schema: T.StructType) -> T.StructType:
    """Return a schema in which storage types replace user-defined types, which Arrow lacks."""
    fields = [T.StructField(f.name, _as_stored(f.dataType), f.nullable) for f in schema.fields]
    return T.StructType(fields)


def _as_stored(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.UserDefinedType):
        return _as_stored(kind.sqlType())
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_as_stored(kind.elementType), kind.containsNull)
    return _stored(kind) if isinstance(kind, T.StructType) else kind
