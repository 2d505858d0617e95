"""Runs small batches for hours, and measures which resources grow with the number of steps.

The stream has few keys, and its state keeps its size. In one part the number of slots changes with every
step, in the other never. Samples have the memory of the driver's Python, of the JVM and of Python
workers, threads, open files, and the entries that the driver keeps of completed steps. The result is
their slope after a warm-up; without a leak it is 0.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.accumulators import _accumulatorRegistry
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError
from headgate.spark.api.start import start
from headgate.spark.cluster.session import session
from headgate.spark.job.ports import NoObserver
from headgate.spark.job.reports import Report
from headgate_lab.bench.common import (
    child,
    descendants,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)

PARTS = ("with", "without")
"""Parts with a change of slots at each step, and without changes."""

_START_S = 1_200.0
"""Time limit of a part beyond its duration, in seconds."""

_SLOTS = (2, 3)
_TOLD_EVERY_S = 60.0
_POLL_S = 0.5


@dataclass(frozen=True)
class SoakParameters:
    """Holds the parameters of `run`."""

    duration: str = "30 min"
    """Length of each part, from its first batch on, with its unit."""

    warmup: str = "5 min"
    """Begin of a part that does not count for slopes, since caches, workers and the JVM warm up."""

    every: str = "10 s"
    """Time between two samples, each after a garbage collection in the JVM."""

    trigger: str = "500 ms"
    """Time between two batches."""

    rate: int = 2_000
    """Rows per second; >= 1."""

    keys: int = 20_000
    """Entries of the state; >= 1."""

    only: str = ",".join(PARTS)
    """Parts that run, in this order, separated by commas."""

    def __post_init__(self) -> None:
        for text in (self.duration, self.every, self.trigger):
            parse_duration_s(text)
        parse_duration_s(self.warmup, zero=True)
        require(min(self.rate, self.keys) >= 1, "rate and keys must be >= 1")
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown:
            msg = f"only={self.only} has the unknown part {unknown[0]}; use with, without or both."
            raise ConfigError(msg)

    @property
    def parts(self) -> list[str]:
        """Names in `only`, as a list."""
        return [part.strip() for part in self.only.split(",")]


def run(**given: Any) -> dict[str, Any]:
    """Run the parts one after the other; parameters are those of `SoakParameters`.

    Returns
    -------
    dict
        ``parts``: per part ``steps``, ``starts`` (of the query; more than one if it failed, as when Spark
        gives up a worker), ``steps_counted``, ``per_1000_steps`` (slope of each figure), ``first`` and
        ``last`` (figures after the warm-up), ``samples``; ``parameters``, ``machine``.
    """
    asked = parameters(SoakParameters, given)
    if not Path("/proc/self/status").exists():
        return {"benchmark": "soak", "skipped": "needs Linux's /proc to see what is resident"}
    found = {}
    for part in asked.parts:
        progress(f"{part} changes of slots: {asked.duration}")
        with tempfile.TemporaryDirectory(prefix="headgate-soak-") as work:
            samples = _part(asked, work, part)
        found[part] = judged(samples, parse_duration_s(asked.warmup, zero=True))
    return {
        "benchmark": "soak",
        "parts": found,
        "parameters": asdict(asked),
        "machine": machine(),
    }


def _part(asked: SoakParameters, work: str, part: str) -> list[dict[str, float]]:
    request = {"parameters": asdict(asked), "directory": work, "part": part}
    name = "headgate_lab.bench.soak"
    command = [sys.executable, "-m", name, "--request", json.dumps(request)]
    samples: list[dict[str, float]] = child(
        command, spark_env(), parse_duration_s(asked.duration) + _START_S
    )["samples"]
    return samples


def judged(samples: Sequence[Mapping[str, float]], warmup_s: float) -> dict[str, Any]:
    """Summarise the samples of a part.

    Parameters
    ----------
    samples : sequence of mapping
        ``at_s``, ``steps``, ``starts`` and the figures, by time.
    warmup_s : float
        Earlier samples do not count.

    Returns
    -------
    dict
        steps, starts, steps_counted; first, last: the figures; per_1000_steps: least-squares slope of
        each; samples.
    """
    counted = [sample for sample in samples if sample["at_s"] >= warmup_s] or list(samples[-1:])
    steps = np.array([sample["steps"] for sample in counted], dtype=float)
    # a figure that a sample lacks counts as 0
    names = dict.fromkeys(n for s in counted for n in s if n not in ("at_s", "steps", "starts"))
    slopes = {}
    for name in names:
        values = np.array([sample.get(name, 0.0) for sample in counted], dtype=float)
        flat = len(counted) == 0 or float(np.ptp(steps)) == 0.0
        slopes[name] = 0.0 if flat else round(float(np.polyfit(steps, values, 1)[0]) * 1e3, 3)
    return {
        "steps": int(samples[-1]["steps"]) if samples else 0,
        "starts": int(samples[-1]["starts"]) if samples else 0,
        "steps_counted": int(np.ptp(steps)) if len(counted) else 0,
        "per_1000_steps": slopes,
        "first": dict(counted[0]) if counted else {},
        "last": dict(counted[-1]) if counted else {},
        "samples": [dict(sample) for sample in samples],
    }


# --- in the child --------------------------------------------------------------------------------


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    asked, work = SoakParameters(**request["parameters"]), Path(request["directory"])
    settings = {"spark.local.dir": str(work / "local"), "spark.driver.memory": "1g"}
    spark = session("local[2]", f"bench-soak-{request['part']}", **settings)
    hg = importlib.import_module("headgate")  # late: its front imports the engine
    rows = spark.readStream.format("rate").option("rowsPerSecond", asked.rate).load()
    key = (F.col("value") % asked.keys).alias("k")
    totals = rows.groupBy(key).agg(F.count("*").alias("c"), F.sum("value").alias("s"))
    writer = hg.writeStream(totals).outputMode("update").format("noop").slots(start=_SLOTS[0])
    trigger_ms = round(parse_duration_s(asked.trigger) * 1e3)
    writer = writer.trigger(processingTime=f"{trigger_ms} milliseconds")
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    job = _Job(writer, changing=request["part"] == "with")
    samples = _sampled(asked, job, spark)
    job.query.stop()
    spark.stop()
    return {"samples": samples}


class _AfterStep(NoObserver):
    """Calls a function after each step; these queries have no control loop that would do it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def committed(self, reports: list[Report], started_ms: float, horizon_ms: float) -> None:
        """Call the function."""
        self._call()


class _Job:
    """Runs a query, counts its steps, and changes its slots after each step if `changing`.

    A failed query is started again, since on a busy machine Spark gives up a worker that starts slowly.
    """

    def __init__(self, writer: Any, *, changing: bool) -> None:
        self.steps = 0
        self.starts = 0
        self._writer = writer
        self._slots = cycle(reversed(_SLOTS)) if changing else None
        self._stepped = threading.Event()
        self.query: Any = None
        self.begin()

    def begin(self) -> None:
        """Start the query, and wait for its first step."""
        self._stepped.clear()
        deadline = time.monotonic() + _START_S / 2
        while not self._stepped.wait(_POLL_S):
            if self.query is None or not self.query.isActive:
                require(time.monotonic() < deadline, "the query does not come to its first step")
                self.starts += 1
                self.query = start(
                    self._writer.df, self._writer.settings, lambda *_: _AfterStep(self._after)
                )

    def _after(self) -> None:
        self.steps += 1
        if self._slots is not None and self.query is not None:
            self.query.scale(next(self._slots))
        self._stepped.set()


def _sampled(asked: SoakParameters, job: _Job, spark: SparkSession) -> list[dict[str, float]]:
    samples: list[dict[str, float]] = []
    began = time.monotonic()
    duration_s, every_s = parse_duration_s(asked.duration), parse_duration_s(asked.every)
    told_s = 0.0
    while time.monotonic() - began < duration_s:
        time.sleep(every_s)
        if not job.query.isActive:
            progress(f"started again: {job.query.exception()}".splitlines()[0])
            job.begin()
        at_s = round(time.monotonic() - began, 1)
        sample = {"at_s": at_s, "steps": job.steps, "starts": job.starts}
        sample |= _figures(job.query, spark)
        samples.append(sample)
        if at_s - told_s >= _TOLD_EVERY_S:
            told_s = at_s
            shown = ("driver_anon_kb", "jvm_anon_kb", "jvm_heap_kb", "workers_anon_kb")
            figures = ", ".join(f"{name} {sample[name]}" for name in shown)
            progress(f"{at_s:.0f} s, {job.steps} steps: {figures}")
    return samples


def _figures(query: Any, spark: SparkSession) -> dict[str, float]:
    gc.collect()
    java: Any = spark.sparkContext._jvm
    java.java.lang.System.gc()
    beans = java.java.lang.management.ManagementFactory
    jvm_pid = int(java.java.lang.ProcessHandle.current().pid())
    workers = [pid for pid in descendants(jvm_pid) if _memory_kb(pid)]
    figures: dict[str, float] = {}
    for name, pids in {"driver": [os.getpid()], "jvm": [jvm_pid], "workers": workers}.items():
        memory: Counter[str] = Counter()
        for pid in pids:
            memory.update(_memory_kb(pid))
        figures[f"{name}_rss_kb"] = memory["VmRSS"]
        figures[f"{name}_anon_kb"] = memory["RssAnon"]
        figures[f"{name}_threads"] = memory["Threads"]
        figures[f"{name}_files"] = sum(map(_open_files, pids))
    figures["workers"] = len(workers)
    figures["jvm_heap_kb"] = int(beans.getMemoryMXBean().getHeapMemoryUsage().getUsed()) // 1024
    figures["jvm_loaded_classes"] = int(beans.getClassLoadingMXBean().getLoadedClassCount())
    figures["python_objects"] = len(gc.get_objects())
    return figures | entries(query, spark)


def entries(query: Any, spark: SparkSession) -> dict[str, float]:
    """Return the number of entries that the driver keeps of completed steps, by container."""
    driver = query._work
    context: Any = spark.sparkContext
    store: Any = driver.checkpoint
    status = context._jsc.sc().statusStore()
    counted: dict[str, Callable[[], Any]] = {
        "manifests": lambda: len(store._manifests),
        "manifests_kb": lambda: store._manifests.byte_count // 1024,
        "blobs": lambda: len(store._blobs),
        "blobs_kb": lambda: store._blobs.byte_count // 1024,
        "held_epochs": lambda: len(driver.changes._held),
        "garbage_manifests": lambda: len(store._garbage._blobs),
        "garbage_chains": lambda: sum(map(len, store._garbage._chains.values())),
        "garbage_suspects": lambda: len(store._garbage._suspects),
        "accumulators": lambda: len(_accumulatorRegistry),
        "jvm_bindings": lambda: _bindings(context),
        "jvm_jobs": lambda: status.jobsList(None).size(),
        "jvm_executions": lambda: (
            spark._jsparkSession.sharedState().statusStore().executionsCount()
        ),
        "jvm_cached_rdds": lambda: context._jsc.sc().getPersistentRDDs().size(),
        "recent_progress": lambda: len(query._inner.recentProgress),
        "checkpoint_files": lambda: sum(len(files) for _, _, files in os.walk(store.root)),
    }
    found: dict[str, float] = {}
    for name, count in counted.items():
        found[name] = int(count())
    return found


def _bindings(context: Any) -> int:
    """Return how many JVM objects py4j keeps alive for Python."""
    server = context._gateway.java_gateway_server
    return int(server.getGateway().getBindings().size())


def _memory_kb(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    wanted = ("VmRSS", "RssAnon", "Threads")
    return {name: int(value.split()[0]) for name, _, value in pairs if name in wanted}


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def main() -> None:
    """Run one part, as asked on the command line."""
    arguments = argparse.ArgumentParser(description="Hours of small batches, of one part.")
    arguments.add_argument("--request", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().request))))


if __name__ == "__main__":
    main()
