"""Defines the port of a sink, and the target from which a sink is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame


class Sink(Protocol):
    """Takes the outputs of steps in order; a step may be repeated."""

    inside: bool
    """Whether the slots' own job may compute the rows, since none are kept."""
    description: str
    """The sink's name in Spark's progress."""

    def begin(self) -> None:
        """Prepare for the first write; called when the query holds its checkpoint."""

    def write(self, batch: int, frame: DataFrame) -> None:
        """Write one step's rows."""


@dataclass(frozen=True)
class Target:
    """Holds the target of a writer, in the terms of PySpark's ``DataStreamWriter``."""

    file_format: str | None
    mode: str
    name: str | None
    table: str | None
    partition_by: list[str]
    options: Mapping[str, str] = field(repr=False)
    """The writer's options without headgate's own."""
    function: Callable[[DataFrame, int], None] | None
    """The function of ``foreachBatch``."""
    checkpoint: Path
    """Checkpoint of the query."""
    last_output: Callable[[], int | None]
    """Returns the number of the last output that the checkpoint knows of; None without a manifest."""
    delivered: Callable[[], int]
    """Returns the number of the newest output that no start delivers again, -1 for none."""
    row_function: Any
    """The function or object of ``foreach``."""
    cluster_by: list[str]
    exactly_once: bool
    """Whether headgate writes a format itself, and not Spark, if headgate can do so exactly once."""
