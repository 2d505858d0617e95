"""Reads, as a batch, the rows of a Delta or Iceberg table that a stream has read, by Spark's offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import CheckpointError, HeadgateError
from headgate.core.input import shown

_ELSEWHERE = (
    "startingversion",
    "startingtimestamp",
    "readchangefeed",
    "readchangedata",
    "skipchangecommits",
    "ignorechanges",
    "ignoredeletes",
    "stream-from-timestamp",
    "streaming-skip-delete-snapshots",
    "streaming-skip-overwrite-snapshots",
)
"""Options with which a stream reads other rows than the table's at one version."""


def rows_until(
    spark: SparkSession, offset: str | None, table: str, *, path: bool, options: Mapping[str, str]
) -> DataFrame | None:
    """Return a table's rows up to an offset; None for an offset of another source.

    Raises `HeadgateError`: the stream has not read exactly the rows of one version of the table.

    Parameters
    ----------
    offset : str or None    From Spark's log.
    table : str    The table's name; with `path` the argument of ``load``.
    options : mapping of str to str    Options of the stream reader.
    """
    fields = _parsed(offset)
    delta, iceberg = "reservoirVersion" in fields, "snapshot_id" in fields
    if not delta and not iceberg:
        return None
    elsewhere = [key for key in options if key.lower() in _ELSEWHERE]
    if elsewhere:
        msg = (
            f"table {table} was read with {', '.join(elsewhere)}, for which there is no batch to compare "
            "with; compare with rows of your own."
        )
        raise HeadgateError(msg)
    if delta:
        version = _delta_version(table, fields)
        if path:
            return spark.read.format("delta").option("versionAsOf", version).load(table)
        return spark.sql(f"SELECT * FROM {table} VERSION AS OF {version}")
    snapshot = _number(table, fields, "snapshot_id")
    _check_whole_snapshot(spark, table, fields, snapshot)
    return spark.sql(f"SELECT * FROM {table} VERSION AS OF {snapshot}")


def _parsed(offset: str | None) -> dict[str, Any]:
    try:
        value = json.loads(offset or "")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _delta_version(table: str, offset: Mapping[str, Any]) -> int:
    """Return the last version that the stream has read completely."""
    if _number(table, offset, "index") >= 0:
        raise _within(table)
    return _number(table, offset, "reservoirVersion") - 1


def _check_whole_snapshot(
    spark: SparkSession, table: str, offset: Mapping[str, Any], snapshot: int
) -> None:
    files = "total-data-files" if offset.get("scan_all_files") else "added-data-files"
    snapshots = spark.table(f"{table}.snapshots").where(f"snapshot_id = {snapshot}")
    (row,) = snapshots.selectExpr(f"summary['{files}'] AS files").collect()
    if int(row.files or 0) != _number(table, offset, "position"):
        raise _within(table)


def _number(table: str, offset: Mapping[str, Any], name: str) -> int:
    """Return a whole number of an offset; refuse a text, because the value goes into SQL."""
    value = offset.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    msg = (
        f'the offset of table {table} in the checkpoint says {name}="{shown(value, 60)}", which is no '
        "number; restore the checkpoint from a copy."
    )
    raise CheckpointError(msg)


def _within(table: str) -> HeadgateError:
    return HeadgateError(
        f"the job stopped within a version of table {table}, which no batch can read; let it go on with "
        "availableNow, and verify then."
    )
