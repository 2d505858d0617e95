"""Runs the job of `wide` on one engine: fills the state, then serves the timed batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import EngineError
from headgate.core.size import parse_bytes
from headgate_lab.bench import wide
from headgate_lab.bench.common import Answer, require

KEPT_PROGRESS = 100_000
"""Number of progress reports that a session must keep for `WideJob.serve`."""


@dataclass(frozen=True)
class WideParameters:
    """Holds the parameters that all benchmarks of this job have."""

    state: str = "100 MB"
    """Size of the state: number of entries times their size in headgate's layout."""

    batches: int = 20
    """Timed batches; >= 1."""

    dropped_batches: int = 10
    """Untimed batches between the filling of the state and the timed batches; >= 0."""

    rows: int = 10_000
    """Rows per batch; >= 1."""

    slots: int = 2
    """Slots of headgate, shuffle partitions of Spark, cores of both; >= 1."""

    engines: str = ""
    """Names of the engines that run, separated by commas."""

    seed: int = 0
    """Seed of the input; >= 0."""

    timeout_s: float = 3_600.0
    """Time limit; an engine's process that takes longer is stopped and counts as failed."""

    def check(self, name: str, engines: Sequence[str]) -> None:
        """Raise ConfigError if a parameter is out of range."""
        parse_bytes(self.state)
        sizes = (self.batches, self.rows, self.slots)
        require(min(sizes) >= 1, f"batches, rows and slots of {name} must be >= 1.")
        first = min(self.dropped_batches, self.seed)
        require(first >= 0, f"dropped_batches and seed of {name} must be >= 0.")
        known = set(self.engines.split(",")) <= set(engines)
        require(known, f"engines={self.engines} of {name}; use {', '.join(engines)}.")


@dataclass(frozen=True)
class WideTimes:
    """Holds the times that `WideJob.serve` measured.

    Attributes
    ----------
    fill_s : float
        Sum of the times of the batches that filled the state.
    batch_ms : list of float
        Times of the timed batches.
    query : the query, ended
    """

    fill_s: float
    batch_ms: list[float]
    query: Any


class WideJob:
    """Runs the job on one engine, with its own input files.

    Parameters
    ----------
    writer : callable
        Makes the engine's writer, with its checkpoint, from the job's frame.
    spark : SparkSession
        Must keep `KEPT_PROGRESS` progress reports.
    input : Path
        Directory of the input; made if missing.
    """

    def __init__(
        self, writer: Callable[[DataFrame], Any], *, spark: SparkSession, input: Path
    ) -> None:
        self._make, self._spark, self._input = writer, spark, input
        input.mkdir(parents=True, exist_ok=True)
        self.entry_bytes = wide.entry_bytes(spark, input)

    def _writer(self) -> Any:
        frame = wide.totals(wide.source(self._spark, self._input))
        return self._make(frame).outputMode("update").trigger(availableNow=True)

    def serve(self, data: wide.WideInput, dropped: int, batches: int) -> WideTimes:
        """Fill the state, then serve `dropped` untimed and `batches` timed batches.

        Raises
        ------
        EngineError
            The number of batches is not that of the files.
        """
        fills = data.fill(self._input)
        for index in range(dropped + batches):
            data.touch(self._input, index)
        # Spark reads by modification time: make the sequence independent of the disk's clock
        for number, path in enumerate(sorted(self._input.glob("*.parquet"))):
            os.utime(path, (1_000_000_000 + number,) * 2)
        query = self._writer().format("noop").start()
        query.awaitTermination()
        took_ms = [
            float(p["durationMs"]["triggerExecution"])
            for p in query.recentProgress
            if int(p["numInputRows"])
        ]
        timed = took_ms[fills + dropped :]
        if len(timed) != batches:
            msg = f"{len(timed)} batches counted where {batches} were wanted"
            raise EngineError(msg)
        return WideTimes(round(sum(took_ms[:fills]) / 1e3, 2), timed, query)

    def again(self, data: wide.WideInput, index: int) -> float:
        """Start the query again for one more batch, and return the seconds until its end."""
        data.touch(self._input, index)
        began_s = time.monotonic()
        query = self._writer().format("noop").start()
        query.awaitTermination()
        return time.monotonic() - began_s

    def check(self, data: wide.WideInput, touches: int, engine: str) -> int:
        """Compare all keys of the first `touches` later files with the exact answer, in a last batch.

        Raises
        ------
        WrongAnswer
            Counts or sums differ.
        """
        exact = data.answer(touches)
        updates: list[Any] = []

        def collect(frame: DataFrame, batch_id: int) -> None:
            del batch_id
            table = frame.select("k", "c", "s0").toArrow()
            updates.append(tuple(table.column(name).to_numpy() for name in ("k", "c", "s0")))

        data.again(self._input, exact.keys)
        self._writer().foreachBatch(collect).start().awaitTermination()
        counts = exact.counts + 1
        wanted = Answer(exact.keys, counts, counts * wide.values_of(exact.keys))
        wanted.check(Answer.of_updates(updates), engine)
        return len(exact.keys)
