"""Changes the slots of a job in real time again and again, with large state and under load.

Spark's ``rate`` source numbers its records, so the value of the nth record of each key is known. A
processor with a large state per key emits every tenth record with its number. A lost, doubled or
reordered record shows in the results, and so does the state of a wrong key. Latency counts from a
record's time to the collection of its result in `foreachBatch`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import EngineError
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env

_EVERY = 10
"""Records of a key per result."""

_SLOTS_MAX = 4
_LIMIT_S = 180.0
"""Time limit of one change, and of the start, in seconds."""


@dataclass(frozen=True)
class ChangesParameters:
    """Holds the parameters of `run`."""

    count: int = 200
    """Changes of slots; >= 1."""

    rate: int = 20_000
    """Records per second; >= 1."""

    keys: int = 50_000
    """Number of keys, whose records come in turns; >= 1."""

    key_bytes: int = 20_000
    """State per key, in bytes; >= 1. The default state is 1 GB in total."""

    pause_s: float = 0.3
    """Time between two changes, after the first results that follow a change; >= 0."""

    limit_s: float = 400.0
    """Time after the first change from which no further change begins; > 0."""

    epoch: str = "50 ms"
    """Time between two commits."""

    seed: int = 0
    """Seed of the numbers of slots; >= 0."""

    def __post_init__(self) -> None:
        for name in ("count", "rate", "keys", "key_bytes"):
            value = getattr(self, name)
            require(value >= 1, f"{name}={value} of changes is out of range; use 1 or more.")


def run(**given: Any) -> dict[str, Any]:
    """Change slots `count` times, and check each result.

    Parameters
    ----------
    **given
        Fields of `ChangesParameters`.

    Returns
    -------
    dict
        ``changes``, ``groups_moved``, ``bytes_moved``, ``state_mb``, ``records``, ``change_ms`` (from the
        request until the slots are in force), ``results``, ``lost``, ``doubled``, ``wrong``,
        ``latency_ms`` (by percentile, of results during a ``change`` and at ``rest``),
        ``longest_gap_ms`` between two steps with results, ``retries`` (their errors), ``duration_s``,
        ``parameters``, ``machine``.
    """
    chosen = parameters(ChangesParameters, given)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headgate-changes-") as work:
        told = json.dumps({"work": work, "parameters": asdict(chosen)})
        command = [sys.executable, "-m", __name__, told]
        fill_s = 2 * chosen.keys / chosen.rate
        found = child(command, spark_env(), chosen.limit_s + fill_s + 4 * _LIMIT_S)
    found["duration_s"] = round(time.monotonic() - began, 1)
    return found | {"parameters": asdict(chosen), "machine": machine()}


# --- in the child --------------------------------------------------------------------------------


class _Counts(StatefulProcessor):
    """Counts the records of each key, and holds a large constant value per key."""

    def __init__(self, key_bytes: int) -> None:
        self._bytes = key_bytes

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n long")
        self._large = handle.getValueState("large", "text string")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        if self._seen.exists():
            (count,) = self._seen.get()
        else:
            count = 0
            self._large.update((str(key[0]).zfill(self._bytes),))
        for row in rows:
            count += 1
            if (count + key[0]) % _EVERY == 0:
                (text,) = self._large.get()
                right = len(text) == self._bytes and int(text[-9:]) == key[0] % 10**9
                yield Row(k=key[0], n=count, value=row.value if right else -1, at=row.timestamp)
        self._seen.update((count,))


class _Results:
    """Collects the results of steps."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self.count = self.steps = 0
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, step: int) -> None:
        table = frame.toArrow()
        if table.num_rows:
            now = pa.chunked_array([np.full(table.num_rows, time.time_ns() // 1000)])
            with self._lock:
                self._tables.append(table.append_column("out_us", now))
                self.count, self.steps = self.count + table.num_rows, self.steps + 1

    def table(self) -> pa.Table:
        """Return all results."""
        with self._lock:
            return pa.concat_tables(self._tables)


def _one(chosen: ChangesParameters, work: Path) -> dict[str, Any]:
    spark: SparkSession = hg.session(master="local[3]", name="changes")
    rows = spark.readStream.format("rate").option("rowsPerSecond", str(chosen.rate)).load()
    keyed = rows.withColumn("k", F.col("value") % chosen.keys).groupBy("k")
    schema = "k long, n long, value long, at timestamp"
    counted = keyed.transformWithState(_Counts(chosen.key_bytes), schema, "Update", "None")
    results = _Results()
    writer = hg.writeStream(counted).foreachBatch(results).outputMode("update").slots(start=2)
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    writer = writer.option("headgate.epoch", chosen.epoch)
    query = writer.trigger(realTime="5 minutes").start()
    try:
        wanted = chosen.keys * (_EVERY + 1)
        _wait(lambda: results.count >= chosen.keys, query, _LIMIT_S + 4 * wanted / chosen.rate)
        progress("all keys have their state")
        spans = list(_changes(query, chosen, results))
    finally:
        query.stop()
    if query.exception() is not None:
        raise EngineError(str(query.exception()))
    lines = [json.loads(line) for line in query.journal.read_text().splitlines()]
    moves = [line for line in lines if line["event"] == "assignment"]
    latest = Checkpoint(work / "checkpoint").latest()
    assert latest is not None
    served = json.loads(latest.engine["sources"][0])["event"]
    change_ms = np.diff(np.array(spans)).ravel() / 1e3
    return {
        "changes": len(spans),
        "groups_moved": sum(line["groups_moved"] for line in moves),
        "bytes_moved": sum(line["bytes_moved"] for line in moves),
        # each result has checked the size of its key's state
        "state_mb": round(chosen.keys * chosen.key_bytes / 1e6),
        "records": served,
        "retries": [line["error"] for line in lines if line["event"] == "retry"],
        "change_ms": _percentiles(change_ms),
        **_judged(results.table(), served, spans, chosen),
    }


def _changes(query: Any, chosen: ChangesParameters, results: _Results) -> Iterator[tuple[int, int]]:
    """Change slots; yield the times at which each change was requested and in force, us since 1970."""
    rng, slots = random.Random(chosen.seed), 2
    until_s = time.monotonic() + chosen.limit_s
    for _ in range(chosen.count):
        if time.monotonic() > until_s:
            return
        slots = rng.choice([n for n in range(1, _SLOTS_MAX + 1) if n != slots])
        began_us, steps = time.time_ns() // 1000, results.steps
        query.scale(slots)
        _wait(lambda: _slots(query) == slots, query, _LIMIT_S)  # noqa: B023 (at once)
        yield began_us, time.time_ns() // 1000
        _wait(lambda: results.steps > steps, query, _LIMIT_S)  # noqa: B023
        time.sleep(chosen.pause_s)


def _slots(query: Any) -> int:
    (assignment,) = query.assignment().values()
    return int(assignment.slots)


def _wait(reached: Callable[[], bool], query: Any, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not reached():
        if not query.isActive or time.monotonic() > until_s:
            late = (
                f"the job was not so far after {limit_s:g} s; use a lower rate, or a quiet machine."
            )
            raise EngineError(str(query.exception() or late))
        time.sleep(0.002)


def _judged(
    found: pa.Table, served: int, spans: list[tuple[int, int]], chosen: ChangesParameters
) -> dict[str, Any]:
    """Return the numbers of wrong results, and the latencies of all."""
    k, n, value, out_us = (found[name].to_numpy() for name in ("k", "n", "value", "out_us"))
    at_us = pc.cast(found["at"], pa.int64()).to_numpy()
    keys = np.arange(chosen.keys)
    results_of = (served // chosen.keys + (keys < served % chosen.keys) + keys % _EVERY) // _EVERY
    number = k * (results_of.max() + 1) + (n + k % _EVERY) // _EVERY - 1
    some, times = np.unique(number, return_counts=True)
    came_us, late_ms = np.unique(out_us), (out_us - at_us) / 1e3
    begins, ends = np.array(spans).T
    before = np.searchsorted(begins, out_us, "right") - 1
    counts = out_us >= begins[0]
    # include the first step after a change, whose records waited for the change
    next_us = came_us[np.minimum(np.searchsorted(came_us, ends, "right"), len(came_us) - 1)]
    in_change = counts & (out_us <= next_us[np.maximum(before, 0)])
    gaps_ms = np.diff(came_us[came_us >= begins[0]]) / 1e3
    return {
        "results": len(k),
        "lost": int(results_of.sum() - len(some)),
        "doubled": int((times > 1).sum()),
        "wrong": int((value != (n - 1) * chosen.keys + k).sum()),
        "latency_ms": {
            "change": _percentiles(late_ms[in_change]),
            "rest": _percentiles(late_ms[counts & ~in_change]),
        },
        "longest_gap_ms": round(float(gaps_ms.max()), 1),
    }


def _percentiles(some: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(some):
        return {}
    return {f"p{p}": round(float(np.percentile(some, p)), 1) for p in (50, 90, 99, 100)}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="The job whose slots change.")
    arguments.add_argument("request")
    request = json.loads(arguments.parse_args().request)
    print(json.dumps(_one(ChangesParameters(**request["parameters"]), Path(request["work"]))))
