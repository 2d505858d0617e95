"""Delta and Iceberg tables as sinks: which steps they have, and what is wrong with them in one sentence.

Both keep the id of Spark's query and the number of the output in the commit that holds its rows, and skip
what they have; Delta for ever, Iceberg as long as it keeps the snapshot. What they cannot know is looked
up here before the first write of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.jvm.files import HadoopPath
from headgate.spark.jvm.gateway import Jvm
from headgate.spark.jvm.sparksinks import WrittenStream
from headgate.spark.jvm.tables import (
    STREAM,
    LastCommit,
    delta_columns,
    kind,
    last_commit,
    last_transaction,
)
from headgate.spark.step.merge_rows import ahead, failing
from headgate.state.checkpoint import Checkpoint

_EVOLVES = ("mergeschema", "merge-schema", "overwriteschema", "check-ordering")


class SparksTableSink(Protocol):
    """Spark's own sink of a table."""

    description: str

    def begin(self) -> None:
        """Make ready."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write one step's rows."""


class TableTarget(Protocol):
    """What a query says of where its results go."""

    @property
    def table(self) -> str | None:
        """The table's name."""

    @property
    def file_format(self) -> str | None:
        """The format."""

    @property
    def options(self) -> Mapping[str, str]:
        """The sink's."""

    @property
    def checkpoint(self) -> Path:
        """The query's."""


def iceberg(
    spark: SparkSession, inner: SparksTableSink, table: Jvm, aim: TableTarget, plan: Jvm
) -> TableSink | None:
    """Return the sink of an Iceberg table, None of any other.

    Raises
    ------
    ConfigError
        The result has a column that the table lacks.
    """
    if kind(table) != "iceberg":
        return None
    name = aim.table or str(table.name())
    there = list(table.schema().fieldNames())
    _check_columns(name, there, list(plan.schema().fieldNames()), aim.options)
    look = partial(last_commit, table, keys=STREAM)
    return TableSink(inner, spark, name, aim.checkpoint, look)


def delta(
    spark: SparkSession, inner: SparksTableSink, aim: TableTarget, plan: Jvm
) -> TableSink | None:
    """Return the sink of a Delta table, None of any other.

    Raises
    ------
    ConfigError
        The result has a column that the table lacks.
    CheckpointError
        The table is gone.
    """
    path = {key.lower(): value for key, value in aim.options.items()}.get("path")
    if (aim.file_format or "").lower() != "delta" or path is None:
        return None
    name = aim.table or path
    if HadoopPath(spark, path, "_delta_log").exists():
        there = delta_columns(spark, path)
        _check_columns(name, there, list(plan.schema().fieldNames()), aim.options)
    else:
        check_there(name, aim.checkpoint)
    return TableSink(inner, spark, name, aim.checkpoint, partial(last_transaction, spark, path))


class TableSink:
    """A table that knows which outputs of a query it has.

    Parameters
    ----------
    inner : SparksTableSink
    spark : SparkSession
    name : str
        Of the table, for messages.
    checkpoint : Path
        The query's.
    look : callable
        From the id of Spark's query to what the table knows of it.
    """

    inside = False

    def __init__(
        self,
        inner: SparksTableSink,
        spark: SparkSession,
        name: str,
        checkpoint: Path,
        look: Callable[[str], LastCommit],
    ) -> None:
        self.description = inner.description
        self._inner = inner
        self._name = name
        self._checkpoint = checkpoint
        self._stream = WrittenStream(spark, checkpoint)
        self._look = look
        self._looked = False
        self._known: int | None = None

    def begin(self) -> None:
        """Look up which output was committed last: it alone may be in the table already."""
        self._known = last_output(self._checkpoint)
        self._inner.begin()

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write the step, unless the table has it.

        Raises
        ------
        CheckpointError
            The table has a step that the checkpoint does not know of, or cannot tell whether it has one.
        EngineError
            Spark or the table refused.
        """
        with failing(self._name):
            if self._looked or self._wanted(batch):
                self._inner.write(batch, frame)
                self._looked = True

    def _wanted(self, batch: int) -> bool:
        # without a manifest, of a query without state, Spark may give any batch again
        again = self._known is None or batch <= self._known
        last = self._look(self._stream.query_id)
        if last.number is not None and last.number >= batch:
            if not again:
                raise ahead(self._name, batch)
            return False
        if (
            last.number is None
            and not last.complete
            and again
            and self._known is not None
            and batch > 0
        ):
            msg = (
                f"table {self._name} keeps no snapshot of what this query wrote last, so it cannot be "
                f"told whether output {batch} is in it; look, and begin with a new checkpoint."
            )
            raise CheckpointError(msg)
        return True


def last_output(checkpoint: Path) -> int | None:
    """Return the number of the last output that a checkpoint knows of; None without a manifest."""
    store = Checkpoint(checkpoint)
    latest = store.latest() if (store.root / "manifests").is_dir() else None
    return None if latest is None else int(latest.engine["sink_batch"])


def check_there(name: str, checkpoint: Path) -> None:
    """Refuse a table that is gone although the query has written to it; else it would be made anew.

    Raises
    ------
    CheckpointError
    """
    last = last_output(checkpoint)
    if last is not None and last >= 0:
        msg = (
            f"table {name} is not there, and this query has put {last + 1} outputs into it; restore the "
            "table, or begin with a new checkpoint."
        )
        raise CheckpointError(msg)


def _check_columns(
    name: str, there: Sequence[str], rows: Sequence[str], options: Mapping[str, str]
) -> None:
    """Refuse a result with columns that the table lacks, unless the query may change the table.

    Raises
    ------
    ConfigError
    """
    if any(key.lower() in _EVOLVES and value == "true" for key, value in options.items()):
        return
    known = {column.lower() for column in there}
    new = [column for column in rows if column.lower() not in known]
    if new:
        msg = (
            f"table {name} has no column {', '.join(new)}, which the result has; add it to the table "
            "with ALTER TABLE, or drop it from the result."
        )
        raise ConfigError(msg)
