"""Checks that Spark's log and headgate's newest manifest agree."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import CheckpointError
from headgate.spark.jvm.sparklog import SparkLog


def check_same_data(path: str, latest: Manifest, batch_id: int, sources: list[str]) -> None:
    """Refuse a batch with the number of the committed batch, but with other data.

    Raises `CheckpointError`.
    """
    if sources != latest.engine["sources"]:
        msg = (
            f"Spark's log has other data for batch {batch_id} than headgate's manifest; the "
            f"checkpoint {path} was altered. Restore it from a copy, or use a new one."
        )
        raise CheckpointError(msg)


def check_begins(path: str, batch_id: int) -> None:
    """Refuse to continue Spark's log if headgate has no manifest.

    The first batch of a query always leaves a manifest, before Spark commits it. Raises
    `CheckpointError`.
    """
    if batch_id > 0:
        msg = (
            f"Spark's log begins batch {batch_id}, and headgate has no manifest of any before it; the "
            f"checkpoint {path} lost its state. Restore it from a copy, or use a new one."
        )
        raise CheckpointError(msg)


def check_has_state(path: str, log: Path) -> None:
    """Refuse to start on a checkpoint without a manifest in which Spark has committed batches.

    Raises `CheckpointError`.
    """
    try:
        committed = [
            int(entry.name) for entry in (log / "commits").iterdir() if entry.name.isdecimal()
        ]
    except FileNotFoundError:
        return
    check_begins(path, max(committed, default=-1) + 1)


def check_continues(path: str, latest: Manifest, batch_id: int, log: SparkLog) -> None:
    """Refuse a Spark log that is ahead of headgate's manifest, or was replaced by an older copy.

    Raises `CheckpointError`.
    """
    if batch_id < latest.spark_batch:
        msg = (
            f"Spark's log begins batch {batch_id}, headgate's state is of batch "
            f"{latest.spark_batch}; the checkpoint {path} was altered. Restore it from a copy, or "
            "use a new one."
        )
        raise CheckpointError(msg)
    for missing in range(latest.spark_batch + 1, batch_id):
        offsets = log.offsets(missing)
        if offsets is not None and offsets != latest.engine["sources"]:
            msg = (
                f"Spark's log has batch {missing} with data that no manifest of headgate covers; "
                f"the checkpoint {path} was altered. Restore it from a copy."
            )
            raise CheckpointError(msg)


COLUMNS = "columns"
"""Key of a manifest's engine facts: the columns of backlog and output, by operator."""


def check_columns(path: str, latest: Manifest, columns: Mapping[str, str], what: str) -> None:
    """Refuse stored rows, of a backlog or an output, whose columns are not the query's columns now.

    Raises `CheckpointError`.
    """
    known = latest.engine.get(COLUMNS, {})
    for operator, current in columns.items():
        if known.get(operator, current) != current:
            msg = (
                f"checkpoint {path} has {what} of {operator} with the columns "
                f"`{known[operator]}`, now `{current}`; start the query as it was, with "
                "trigger(availableNow=True), until it ends, then change it."
            )
            raise CheckpointError(msg)
