"""The job of `wide` on one engine: state is brought to its size, then come batches that count."""

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
"""Reports of batches that a session has to keep for `WideJob.serve`."""


@dataclass(frozen=True)
class WideParameters:
    """Holds the parameters that every benchmark of this job takes."""

    state: str = "100 MB"
    """Size of the state: entries times their size in headgate's layout."""

    batches: int = 20
    """Batches that count; >= 1."""

    dropped_batches: int = 10
    """First batches after state has its size, which do not count; >= 0."""

    rows: int = 10_000
    """Rows per batch; >= 1."""

    slots: int = 2
    """Slots of headgate, shuffle partitions of Spark, cores of both; >= 1."""

    engines: str = ""
    """Who runs, separated by commas."""

    seed: int = 0
    """Of the input; >= 0."""

    timeout_s: float = 3_600.0
    """After this an engine's process is stopped and counts as failed."""

    def check(self, name: str, engines: Sequence[str]) -> None:
        """Refuse what is out of range.

        Raises
        ------
        ConfigError
        """
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
        The sum of the batches that brought state to its size.
    batch_ms : list of float
        Of the batches that count.
    query : the query, ended
    """

    fill_s: float
    batch_ms: list[float]
    query: Any


class WideJob:
    """One engine's run of the job; its files are its own.

    Parameters
    ----------
    writer : callable
        From the job's frame to the engine's writer, which knows its checkpoint.
    spark : SparkSession
        Keeps `KEPT_PROGRESS` reports.
    input : Path
        A directory that is made if it is not there.
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
        """Fill state, serve the later batches, of which the first do not count.

        Raises
        ------
        EngineError
            Not as many batches came as there are files.
        """
        fills = data.fill(self._input)
        for index in range(dropped + batches):
            data.touch(self._input, index)
        # one after the other, whatever the clock of the disk says
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
        """Start the query once more for one more batch; return the seconds until that is done."""
        data.touch(self._input, index)
        began_s = time.monotonic()
        query = self._writer().format("noop").start()
        query.awaitTermination()
        return time.monotonic() - began_s

    def check(self, data: wide.WideInput, touches: int, engine: str) -> int:
        """Compare all keys that were touched with the exact answer, in one last batch.

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
