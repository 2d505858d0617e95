"""Prepares the rows of a merge, and describes its failures, for every database."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from headgate.core.errors import CheckpointError, EngineError
from headgate.spark.jvm.errors import JavaError
from headgate.spark.sinks.merge_statement import MergeSpec
from headgate.spark.worker.failure import told

_ATTEMPTS = 4
_WAIT_S = 0.5
_CONFLICT = re.compile(
    r"Concurrent\w+Exception|DELTA_CONCURRENT|CommitFailedException|CommitStateUnknownException"
    r"|Found conflicting|could not serialize|deadlock detected"
)
"""Texts of Delta, Iceberg and PostgreSQL if another program wrote to the table at the same time."""

_SEVERAL = "HEADGATE_SEVERAL_ROWS"
_COUNT, _RANK = "headgate_count", "headgate_rank"


def one_row_per_key(frame: DataFrame, spec: MergeSpec) -> DataFrame:
    """Return one row of each key: the latest; without `latest`, the rows fail if a key has several."""
    keys = [F.col(f"`{key}`") for key in spec.on]
    if spec.latest is not None:
        order = Window.partitionBy(*keys).orderBy(F.col(f"`{spec.latest}`").desc())
        numbered = frame.withColumn(_RANK, F.row_number().over(order))
        return numbered.where(F.col(_RANK) == 1).drop(_RANK)
    counted = frame.withColumn(_COUNT, F.count("*").over(Window.partitionBy(*keys)))
    single = F.when(F.col(_COUNT) > 1, F.raise_error(F.lit(_SEVERAL)).cast("boolean")).otherwise(
        True
    )
    return counted.where(single).drop(_COUNT)


@contextmanager
def failing(table: str, keys: Sequence[str] = ()) -> Iterator[None]:
    """Turn a failure to write to a table into an error of one sentence.

    `keys`: columns of a row's key, for a merge. Raises `EngineError`.
    """
    try:
        yield
    except (PySparkException, JavaError) as error:
        if _SEVERAL in str(error):
            msg = (
                f"a step has several rows of one key ({', '.join(keys)}) for table {table}; add latest= "
                "with the column that says which is the newest, or more columns to on=."
            )
        else:
            msg = (
                f"writing to table {table} failed ({told(error).removesuffix('.')}), and the step is not "
                "lost: the next start writes it."
            )
        raise EngineError(msg) from error


def merge_with_retries(merge: Callable[[bool | None], None], again: bool | None) -> None:
    """Merge a step; after a conflict try again, which the step's number makes safe.

    `merge`: merges the step; takes `again`, or None after a failure, when the outcome is unknown.
    `again`: whether the step may have been merged before.
    """
    for attempt in range(1, _ATTEMPTS):
        try:
            return merge(again)
        except EngineError as error:
            if not _CONFLICT.search(str(error.__cause__)):
                raise
            again = None
            time.sleep(_WAIT_S * attempt)
    return merge(again)


def ahead(table: str, batch: int) -> CheckpointError:
    """Return the error for a table with a step that the checkpoint lacks."""
    msg = (
        f"table {table} has output {batch} of this query already, which the checkpoint lacks: the "
        "checkpoint is an older copy; use the newest copy, or begin with a new checkpoint."
    )
    return CheckpointError(msg)
