"""Measures Spark's way to change the number of partitions: stop, rewrite the state, start again.

This is the external baseline of a change of slots. A plain stateful aggregation with Spark's RocksDB
store runs in batches. At a request, the query is stopped after its batch; then
`StreamingCheckpointManager.repartition` rewrites the state, and the query starts again. The result is the
time from the request to the first commit after the restart, since until then there is no output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import EngineError
from headgate.core.size import parse_bytes
from headgate.spark.cluster.session import session
from headgate_lab.bench import wide
from headgate_lab.bench.common import (
    Answer,
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.bench.native import ROCKSDB

_BATCHES_BEFORE = 8
"""Batches before the request, so that plans and stores are warm; the second half of them is timed."""

_POLL_S = 0.01

_WAIT_S = 600.0


@dataclass(frozen=True)
class RepartitionParameters:
    """Holds the parameters of `run`."""

    state: str = "100 MB"
    """Size of the state in headgate's layout, with its unit."""

    from_partitions: int = 8
    """State partitions before the change; >= 1."""

    to_partitions: int = 12
    """State partitions afterwards; >= 1, another number."""

    rows: int = 1_000
    """Rows per batch around the change; >= 1."""

    seed: int = 0
    """Seed of the input."""

    cores: int = 2
    """Cores: N of ``local[N]``."""

    timeout_s: float = 1_800.0
    """Time limit; then the process is stopped."""

    def __post_init__(self) -> None:
        parse_bytes(self.state)
        require(
            min(self.from_partitions, self.to_partitions, self.rows, self.cores) >= 1,
            "from_partitions, to_partitions, rows and cores must be >= 1.",
        )
        require(
            self.from_partitions != self.to_partitions,
            f"to_partitions={self.to_partitions} is what there is; ask for another number.",
        )


def run(**given: Any) -> dict[str, Any]:
    """Run the benchmark; parameters are those of `RepartitionParameters`.

    Returns
    -------
    dict
        The result of `measure`, with ``parameters`` and ``machine``.
    """
    asked = parameters(RepartitionParameters, given)
    found = _measure(asked)
    return found | {"parameters": asdict(asked), "machine": machine()}


def measure(state_bytes: int, from_partitions: int, to_partitions: int) -> dict[str, Any]:
    """Return the time of Spark's change to another number of partitions.

    Parameters
    ----------
    state_bytes : int
        Size of the state in headgate's layout.

    Returns
    -------
    dict
        total_ms: from the request to the first batch committed after it; its parts stop_ms,
        repartition_ms and restart_ms; batch_ms: median batch before; state_bytes, entries,
        entry_bytes; verified: whether counts and sums were right afterwards; keys_compared.

    Raises
    ------
    WrongAnswer
        Counts or sums were wrong afterwards.
    EngineError
        Spark failed.
    """
    return _measure(
        RepartitionParameters(f"{state_bytes} B", from_partitions, to_partitions),
    )


def _measure(asked: RepartitionParameters) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="headgate-repartition-") as work:
        request = json.dumps({"parameters": asdict(asked), "directory": work})
        command = [sys.executable, "-m", "headgate_lab.bench.repartition"]
        return child([*command, "--request", request], spark_env(), asked.timeout_s)


# --- in the child --------------------------------------------------------------------------------


class _Feed:
    """Holds the state of the thread that writes files while a query runs.

    Attributes
    ----------
    count : int
        Files written so far.
    paused : bool
        Whether the thread writes no files; changed under `lock`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.paused = False
        self.lock = threading.Lock()

    def pause(self, paused: bool) -> None:
        """Stop writing files, or go on."""
        with self.lock:
            self.paused = paused


class _Plain:
    """Fills, runs and repartitions the plain Spark query."""

    def __init__(self, spark: SparkSession, asked: RepartitionParameters, work: Path) -> None:
        self._spark = spark
        self._asked = asked
        self._input = work / "input"
        self._input.mkdir()
        self._checkpoint = work / "checkpoint"
        self._updates: list[Any] = []
        self.entry_bytes = wide.entry_bytes(spark, self._input)
        keys = max(asked.rows, parse_bytes(asked.state) // self.entry_bytes)
        self.data = wide.WideInput(keys, asked.rows, asked.seed)

    def fill(self) -> None:
        """Fill the state to its size, in one query that ends."""
        files = self.data.fill(self._input)
        rows = wide.source(self._spark, self._input, files)
        writer = self._writer(rows).format("noop").trigger(availableNow=True)
        writer.start().awaitTermination()

    def start(self) -> Any:
        """Start the query, with one file per batch."""
        rows = wide.source(self._spark, self._input)
        return self._writer(rows).foreachBatch(self._collect).start()

    def _writer(self, rows: DataFrame) -> Any:
        writer = wide.totals(rows).writeStream.outputMode("update")
        return writer.option("checkpointLocation", str(self._checkpoint))

    def _collect(self, frame: DataFrame, batch_id: int) -> None:
        table: Any = frame.select("k", "c", "s0").toArrow()
        self._updates.append(tuple(table.column(name).to_numpy() for name in ("k", "c", "s0")))

    def committed(self) -> int:
        """Return the last batch that Spark has committed."""
        names = (path.name for path in (self._checkpoint / "commits").glob("[0-9]*"))
        return max((int(name) for name in names), default=-1)

    def repartition(self) -> None:
        """Rewrite the state by Spark's own function."""
        manager = self._spark._streamingCheckpointManager
        manager.repartition(str(self._checkpoint), self._asked.to_partitions)

    @contextmanager
    def fed(self) -> Iterator[_Feed]:
        """Write a file for each next batch, in a thread, while the context is active."""
        feed, ended = _Feed(), threading.Event()
        first = self.committed()

        def write() -> None:
            while not ended.wait(_POLL_S):
                with feed.lock:
                    if not feed.paused and feed.count <= self.committed() - first:
                        self.data.touch(self._input, feed.count)
                        feed.count += 1

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield feed
        finally:
            ended.set()
            thread.join()

    def check(self, touches: int) -> int:
        """Compare counts and sums of all updated keys; return the number of keys."""
        exact = self.data.answer(touches)
        exact.check(Answer.of_updates(self._updates), "spark after repartition")
        return len(exact.keys)


def _child(asked: RepartitionParameters, work: Path) -> dict[str, Any]:
    settings = dict(ROCKSDB) | {
        "spark.sql.shuffle.partitions": str(asked.from_partitions),
        "spark.driver.memory": "4g",
        "spark.local.dir": str(work / "local"),
    }
    spark = session(master=f"local[{asked.cores}]", name="bench-repartition", **settings)
    plain = _Plain(spark, asked, work)
    progress(f"filling {plain.data.keys} entries of {plain.entry_bytes} B")
    plain.fill()
    with plain.fed() as feed:
        first = plain.committed()
        query = plain.start()
        _await(lambda: plain.committed() >= first + _BATCHES_BEFORE, query)
        batch_ms = _median_batch_ms(query)
        progress(f"request: {asked.from_partitions} to {asked.to_partitions} partitions")
        at = [time.perf_counter()]
        # Spark only rewrites the state of a finished batch
        feed.pause(True)
        _await(lambda: plain.committed() - first >= feed.count, query)
        query.stop()
        at.append(time.perf_counter())
        plain.repartition()
        at.append(time.perf_counter())
        last = plain.committed()
        feed.pause(False)
        query = plain.start()
        _await(lambda: plain.committed() > last, query)
        at.append(time.perf_counter())
    query.processAllAvailable()
    query.stop()
    compared = plain.check(feed.count)
    spark.stop()
    stop_ms, repartition_ms, restart_ms = (round((b - a) * 1e3, 1) for a, b in pairwise(at))
    return {
        "total_ms": round((at[-1] - at[0]) * 1e3, 1),
        "stop_ms": stop_ms,
        "repartition_ms": repartition_ms,
        "restart_ms": restart_ms,
        "batch_ms": batch_ms,
        "state_bytes": plain.data.keys * plain.entry_bytes,
        "entries": plain.data.keys,
        "entry_bytes": plain.entry_bytes,
        "verified": True,
        "keys_compared": compared,
    }


def _median_batch_ms(query: Any) -> float:
    took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]
    return float(statistics.median(took[len(took) // 2 :]))


def _await(done: Any, query: Any) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not done():
        if query.exception() is not None:
            raise query.exception()
        if time.monotonic() > deadline:
            msg = f"Spark's query has not got there within {_WAIT_S:g} s"
            raise EngineError(msg)
        time.sleep(_POLL_S)


def main() -> None:
    """Measure in this process, as asked on the command line."""
    arguments = argparse.ArgumentParser(description="Spark's own way to another partitioning.")
    arguments.add_argument("--request", required=True)
    request: Mapping[str, Any] = json.loads(arguments.parse_args().request)
    asked = RepartitionParameters(**request["parameters"])
    print(json.dumps(_child(asked, Path(request["directory"]))))


if __name__ == "__main__":
    main()
