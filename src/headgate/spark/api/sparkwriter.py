"""Implements the writer's methods for PySpark's own settings: partitioning, name, trigger, `foreach`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from pyspark.sql import DataFrame

from headgate.core.errors import ConfigError, HeadgateError, require
from headgate.spark.settings import arguments
from headgate.spark.settings.query_settings import QuerySettings


class SparkWriter:
    """Takes a writer's settings in the words of PySpark's ``DataStreamWriter``."""

    settings: QuerySettings
    """The settings so far; immutable, every method replaces them."""

    def __init__(self, df: DataFrame) -> None:
        self.df = df
        self.settings = QuerySettings()

    def partitionBy(self, *cols: str | list[str]) -> Self:
        """Partition the files of a file sink."""
        return self._with(partition_by=_flat(cols, "partitionBy"))

    def clusterBy(self, *cols: str | list[str]) -> Self:
        """Cluster the rows of a table or format that supports it; others ignore this, as in Spark."""
        return self._with(cluster_by=_flat(cols, "clusterBy"))

    def queryName(self, queryName: str) -> Self:
        """Set the query's name, any text; for format memory this is the table's name."""
        name = arguments.text("query name", queryName, "a text, or leave queryName out")
        return self._with(name=name)

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> Self:
        """Set how often a batch starts: ``processingTime="1 second"`` or ``availableNow=True``.

        ``once=True`` runs a single batch of all available records, as Spark does; windows that this batch
        makes due come out at the next start. ``realTime="5 minutes"`` has no batches: records reach their
        slots within milliseconds, and results come out every ``headgate.epoch``.
        """
        kinds = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        kinds["realTime"] = realTime
        asked = [kind for kind, value in kinds.items() if value]
        if len(asked) > 1:
            msg = f"trigger() has two kinds; use {' or '.join(f'{kind}=...' for kind in asked)}."
            raise ConfigError(msg)
        if continuous is not None:
            msg = (
                "trigger(continuous=...) is not supported: slots change between micro-batches or epochs; "
                "use processingTime."
            )
            raise HeadgateError(msg)
        if realTime is not None:
            arguments.check_interval(self.df.sparkSession, realTime, "realTime")
            return self._with(trigger={"realTime": realTime})
        if processingTime is not None:
            arguments.check_interval(self.df.sparkSession, processingTime)
            return self._with(trigger={"processingTime": processingTime})
        if availableNow:
            return self._with(trigger={"availableNow": True})
        if once:
            return self._with(trigger={"once": True})
        msg = "trigger() needs processingTime=..., availableNow=True or once=True."
        raise ConfigError(msg)

    def foreach(self, f: Any) -> Self:
        """Call `f(row)` for each row, or the methods ``open``, ``process`` and ``close`` of an object.

        They run on the executors; ``epoch_id`` is the same when a step is delivered again.
        """
        fits = callable(f) or callable(getattr(f, "process", None))
        require(fits, "foreach", f, "a function of a row, or an object with process(row)")
        return self._with(function=None, row_function=f)

    def _with(self, **changes: Any) -> Self:
        """Replace settings, by the names of `QuerySettings`, and return this writer."""
        self.settings = dataclasses.replace(self.settings, **changes)
        return self


def _flat(columns: tuple[str | list[str], ...], method: str) -> tuple[str, ...]:
    """Return the names in arguments that are names or lists of names."""
    names = [
        name for column in columns for name in (column if isinstance(column, list) else [column])
    ]
    return tuple(arguments.text(method, name, "names of columns") for name in names)
