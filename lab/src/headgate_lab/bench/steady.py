"""Measures the steady cost of a job on several hosts whose checkpoint store is slow.

Four executors have their own addresses, the state has a given size, and every call of the checkpoint
store is slow. There are three figures: the share of slot tasks that find the state of their key groups on
their host (another task must read the store), the median batch relative to the same job on the local
disk, and the number of objects that a batch writes.

`headgate.checkpoint.store_calls` delays each call that headgate makes. The JVM writes Spark's own two
logs without that delay, so two delays are added to the time of each batch.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headgate.checkpoint.store_calls import DELAY, TRACE
from headgate.core.duration import parse_duration_s
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
    spread,
)

SPARK_LOGS = 2
"""Objects that Spark itself writes per batch, to its logs of offsets and of commits."""

TARGETS = {"found_share": 0.99, "ratio": 1.3}
"""Least share, and largest ratio; design, figures to reach."""

_OTHERS = 4
"""Objects that a batch may write in addition to one per slot: Spark's two, an intent and a manifest."""

_STATE_READS = ("manifests", "changelog")
"""Kinds of objects that a slot task reads only if its key groups are not on its host."""


@dataclass(frozen=True)
class SteadyParameters:
    """Holds the parameters of `run`."""

    state: str = "1 GB"
    """Size of the state in headgate's layout, with its unit."""

    store_delay: str = "50 ms"
    """Delay of each call to the store."""

    hosts: int = 4
    """Executors, each with one core and its own address; also the number of slots."""

    batches: int = 60
    """Timed batches with the delay, and as many without; >= 1."""

    dropped_batches: int = 10
    """First batches of each part that do not count: plans are cold, and state is being loaded."""

    rows: int = 10_000
    """Rows per batch; as many entries change."""

    seed: int = 0
    """Seed of the input."""

    timeout_s: float = 1_800.0
    """Time limit of a part, which is then stopped."""

    def __post_init__(self) -> None:
        parse_bytes(self.state)
        parse_duration_s(self.store_delay)
        require(
            min(self.hosts, self.batches, self.rows) >= 1, "hosts, batches and rows must be >= 1"
        )
        require(self.dropped_batches >= 0, "dropped_batches must be >= 0")


def run(**given: Any) -> dict[str, Any]:
    """Run the same job with a fast store and with a slow one; parameters are those of `SteadyParameters`.

    Returns
    -------
    dict
        ``found_share`` (of slot tasks, far), ``batch_ms`` (``near`` and ``far``: spread), ``ratio`` of
        the medians, ``phases_ms`` (``near`` and ``far``), ``objects_per_batch`` (mean), ``objects`` (the
        same by directory), ``objects_allowed`` (slots + 4), ``reads_per_batch``; ``targets`` and
        ``met``; ``state_bytes``, ``entries``, ``keys_compared``, ``verified``; ``parameters``,
        ``machine``.

    Raises
    ------
    WrongAnswer    Counts or sums were wrong in the end.
    """
    asked = parameters(SteadyParameters, given)
    # Late and by name: the test kit lies in a layer above the engines.
    kit = importlib.import_module("headgate_lab.testing.cluster")
    with (
        tempfile.TemporaryDirectory(prefix="headgate-steady-") as work,
        kit.StandaloneCluster(Path(work), workers=asked.hosts, cores=1) as cluster,
    ):
        progress("near: the local disk")
        near = _part(asked, Path(work), cluster.master, "near")
        progress(f"far: {asked.store_delay} per call")
        far = _part(asked, Path(work), cluster.master, "far")
    return _judged(asked, near, far) | {"parameters": asdict(asked), "machine": machine()}


def _part(asked: SteadyParameters, work: Path, master: str, part: str) -> dict[str, Any]:
    request = {
        "parameters": asdict(asked),
        "directory": str(work),
        "master": master,
        "part": part,
    }
    environment = spark_env() | {TRACE: str(work / f"calls-{part}")}
    if part == "far":
        environment[DELAY] = asked.store_delay
    name = "headgate_lab.bench.steady"
    command = [sys.executable, "-m", name, "--request", json.dumps(request)]
    return child(command, environment, asked.timeout_s)


def _judged(
    asked: SteadyParameters, near: Mapping[str, Any], far: Mapping[str, Any]
) -> dict[str, Any]:
    logs_ms = SPARK_LOGS * parse_duration_s(asked.store_delay) * 1e3
    far_ms = [ms + logs_ms for ms in far["batch_ms"]]
    ratio = statistics.median(far_ms) / statistics.median(near["batch_ms"])
    objects = far["objects"] | {"offsets, commits": SPARK_LOGS}
    written, allowed = sum(objects.values()), asked.hosts + _OTHERS
    return {
        "found_share": far["found_share"],
        "ratio": round(ratio, 3),
        "batch_ms": {"near": spread(near["batch_ms"]), "far": spread(far_ms)},
        "phases_ms": {"near": near["phases_ms"], "far": far["phases_ms"]},
        "objects_per_batch": round(written, 2),
        "objects": objects,
        "objects_allowed": allowed,
        "reads_per_batch": far["reads"],
        "targets": {**TARGETS, "objects_per_batch": allowed},
        "met": {
            "found_share": far["found_share"] >= TARGETS["found_share"],
            "ratio": ratio <= TARGETS["ratio"],
            "objects_per_batch": written <= allowed,
        },
        "state_bytes": near["state_bytes"],
        "entries": near["entries"],
        "verified": True,
        "keys_compared": far["keys_compared"],
    }


# --- in the child --------------------------------------------------------------------------------


class _Job:
    """Runs the job of one part; both parts use the same checkpoint, one after the other."""

    def __init__(self, spark: SparkSession, asked: SteadyParameters, work: Path) -> None:
        self._spark = spark
        self._asked = asked
        self._input = work / "input"
        self._input.mkdir(exist_ok=True)
        self._checkpoint = work / "checkpoint"
        self._updates: list[Any] = []
        self.entry_bytes = wide.entry_bytes(spark, self._input)
        keys = max(asked.rows, parse_bytes(asked.state) // self.entry_bytes)
        self.data = wide.WideInput(keys, asked.rows, asked.seed)
        self.files = self.data.fill(self._input) if not self._checkpoint.exists() else 0

    def _writer(self) -> Any:
        # Late and by name: the package's front imports the engine, of which this is a part.
        hg = importlib.import_module("headgate")
        writer = hg.writeStream(wide.totals(wide.source(self._spark, self._input)))
        writer = writer.outputMode("update").slots(start=self._asked.hosts)
        return writer.option("checkpointLocation", str(self._checkpoint))

    def fill(self) -> None:
        """Fill the state to its size."""
        query = self._writer().format("noop").trigger(availableNow=True).start()
        query.awaitTermination()

    def steady(self, touched_before: int) -> tuple[list[dict[str, Any]], int]:
        """Run until enough batches are done; return their journal lines and the number of later files."""
        batches = self._asked.dropped_batches + self._asked.batches
        query = self._writer().format("noop").start()
        began_ms, done = time.time() * 1e3, threading.Event()
        touched = [touched_before]

        def feed() -> None:
            while not done.is_set():
                # a few files ahead, so that no batch waits for its rows
                if touched[0] - touched_before < len(self._lines(query, began_ms)) + 5:
                    self.data.touch(self._input, touched[0])
                    touched[0] += 1
                done.wait(0.05)

        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        while len(self._lines(query, began_ms)) < batches and not query.awaitTermination(0.2):
            continue
        done.set()
        feeder.join()
        lines = self._lines(query, began_ms)
        query.processAllAvailable()
        query.stop()
        return lines[self._asked.dropped_batches :][: self._asked.batches], touched[0]

    def _lines(self, query: Any, since_ms: float) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in query.journal.read_text().splitlines()]
        return [
            e for e in events if e["event"] == "batch" and e["arrived"] and e["at_ms"] > since_ms
        ]

    def check(self, touches: int) -> int:
        """Compare all keys of the later files with the exact answer, in a last batch."""
        exact = self.data.answer(touches)
        updates: list[Any] = []

        def collect(frame: Any, batch_id: int) -> None:
            table = frame.select("k", "c", "s0").toArrow()
            updates.append(tuple(table.column(name).to_numpy() for name in ("k", "c", "s0")))

        self.data.again(self._input, exact.keys)
        writer = self._writer().foreachBatch(collect).trigger(availableNow=True)
        writer.start().awaitTermination()
        counts = exact.counts + 1
        wanted = Answer(exact.keys, counts, counts * wide.values_of(exact.keys))
        wanted.check(Answer.of_updates(updates), "headgate")
        return len(exact.keys)


def counted(
    calls: Sequence[Mapping[str, Any]], batches: Sequence[Mapping[str, Any]], driver: int
) -> dict[str, Any]:
    """Return figures of the calls to the store during steady batches.

    Parameters
    ----------
    calls : sequence of mapping
        Lines of the trace.
    batches : sequence of mapping
        Consecutive batch events of the journal.
    driver : int
        Process id of the driver, whose reads do not count.

    Returns
    -------
    dict
        objects: written per batch, by directory; reads: calls that read state, per batch;
        found_share: of slot tasks.
    """
    first, last = batches[0], batches[-1]
    began_ms, ended_ms = first["at_ms"] - first["duration_ms"], last["at_ms"]
    within = [call for call in calls if began_ms <= call["at_ms"] <= ended_ms]
    written = Counter(call["kind"] for call in within if call["act"] == "write")
    reading = [
        call
        for call in within
        if call["act"] == "read" and call["kind"] in _STATE_READS and call["pid"] != driver
    ]
    # a worker runs one task at a time, so each process that reads during a batch is one task
    ends_ms = [batch["at_ms"] for batch in batches]
    lost = {(sum(call["at_ms"] > end for end in ends_ms), call["pid"]) for call in reading}
    tasks = sum(batch["slots"] for batch in batches)
    return {
        "objects": {kind: round(n / len(batches), 3) for kind, n in sorted(written.items())},
        "reads": round(len(reading) / len(batches), 3),
        "found_share": round(1 - len(lost) / tasks, 5),
    }


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    asked, work = SteadyParameters(**request["parameters"]), Path(request["directory"])
    part = request["part"]
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.executor.memory": "700m",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(asked.hosts),
    }
    # tasks call the store, too
    told = {f"spark.executorEnv.{n}": os.environ[n] for n in (DELAY, TRACE) if n in os.environ}
    spark = session(request["master"], f"bench-steady-{part}", **settings, **told)
    job = _Job(spark, asked, work)
    noted = work / "touched"
    before = int(noted.read_text()) if noted.exists() else 0
    if part == "near":
        progress(f"filling {job.data.keys} entries of {job.entry_bytes} B")
        job.fill()
    lines, touched = job.steady(before)
    noted.write_text(str(touched))
    with open(work / f"calls-{part}", encoding="utf-8") as file:
        calls = [json.loads(line) for line in file]
    compared = job.check(touched) if part == "far" else 0
    spark.stop()
    names = lines[0]["phases_ms"]
    return counted(calls, lines, os.getpid()) | {
        "batch_ms": [line["duration_ms"] for line in lines],
        "phases_ms": {
            name: round(statistics.median(line["phases_ms"][name] for line in lines), 1)
            for name in names
        },
        "state_bytes": job.data.keys * job.entry_bytes,
        "entries": job.data.keys,
        "keys_compared": compared,
    }


def main() -> None:
    """Run one part, as asked on the command line."""
    arguments = argparse.ArgumentParser(description="A job near its store, or far from it.")
    arguments.add_argument("--request", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().request))))


if __name__ == "__main__":
    main()
