"""Measures the time from a record's producer to a reader of its result, in batches and in real time.

Kafka to Kafka on one machine with the broker on it: a count in windows of a minute by 1,000 keys in
update mode, written exactly once. Each record has the time of its making, each result that of the newest
record in it, and a ``read_committed`` reader compares with its clock. What came in while the job warmed
up does not count. Cores are those of the driver with its JVM, workers and slots, and of the traffic,
which is made in the driver's process; the broker is left out.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import EngineError
from headgate.spark.settings.kafka import confluent
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.clicks import connector
from headgate_demo.spark.topics import make_topic
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env

MODES = ("micro-batch", "real-time", "early")
PERCENTILES = (50, 90, 99, 99.9, 100)
_KEYS = 1_000
_STARTS_S = 120.0


@dataclass(frozen=True)
class LatencyParameters:
    """Holds the arguments of `run`."""

    seconds: float = 60.0
    """What counts of each run; > 0."""

    warm_s: float = 30.0
    """What does not count before it."""

    rate: int = 1_000
    """Records per second; >= 1."""

    epoch: str = "50 ms"
    """Of real time: time between two commits."""

    only: str = ",".join(MODES)
    """Which modes, in this order."""

    seed: int = 1
    """Of the keys; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds:g} of latency is out of range; use > 0.")
        require(self.rate >= 1, f"rate={self.rate} of latency is out of range; use 1 or more.")
        known = all(mode in MODES for mode in self.only.split(","))
        require(known, f'only="{self.only}" of latency is not known; use {", ".join(MODES)}.')


def run(**given: Any) -> dict[str, Any]:
    """Run each mode on input of its own, one after the other, beside one broker.

    Parameters
    ----------
    **given
        Fields of `LatencyParameters`.

    Returns
    -------
    dict
        ``modes`` (by name: ``results``, ``latency_ms`` by percentile, ``longest_gap_ms`` between two
        results, ``cores``), ``parameters``, ``machine``.
    """
    chosen = parameters(LatencyParameters, given)
    found = {}
    with tempfile.TemporaryDirectory(prefix="headgate-latency-") as work, Broker() as broker:
        for mode in chosen.only.split(","):
            progress(f"{mode}, {chosen.rate} records/s for {chosen.seconds:g} s")
            told = {**asdict(chosen), "mode": mode, "servers": broker.servers, "work": work}
            command = [sys.executable, "-m", __name__, json.dumps(told)]
            limit_s = chosen.seconds + chosen.warm_s + _STARTS_S
            found[mode] = child(command, spark_env(), limit_s)
    return {"modes": found, "parameters": asdict(chosen), "machine": machine()}


def _query(spark: Any, told: dict[str, Any], topics: tuple[str, str]) -> Any:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", told["servers"])
    read = reader.option("subscribe", topics[0]).option("startingOffsets", "earliest").load()
    made_us = F.col("value").cast("string").cast("long").alias("us")
    records = read.select(F.col("key").cast("string").alias("k"), made_us, "timestamp")
    counts = (
        records.withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "1 minute"), "k")
        .agg(F.count("*").alias("n"), F.max("us").alias("us"))
    )
    value = F.concat_ws(",", F.col("n").cast("string"), F.col("us").cast("string"))
    writer = hg.writeStream(counts.select(F.col("k").alias("key"), value.alias("value")))
    writer = writer.format("kafka").option("kafka.bootstrap.servers", told["servers"])
    writer = writer.option("topic", topics[1]).outputMode("update").slots(start=2)
    writer = writer.option("checkpointLocation", f"{told['work']}/{told['mode']}")
    if told["mode"] != "micro-batch":
        writer = writer.option("headgate.experimental.realTime", "true")
        writer = writer.option("headgate.epoch", told["epoch"]).trigger(realTime="5 minutes")
        writer = writer.release("early" if told["mode"] == "early" else "committed")
    return writer.start()


class _Traffic:
    """Writes records at a rate, and reads what the job makes of them."""

    def __init__(self, told: dict[str, Any], topics: tuple[str, str]) -> None:
        self._told, self._topics = told, topics
        self._over = threading.Event()
        self.found: list[tuple[int, int]] = []
        """Of each result: when it was read, and when its newest record was made; us since 1970."""
        self._threads = [threading.Thread(target=work) for work in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        client = confluent().Producer({"bootstrap.servers": self._told["servers"], "linger.ms": 1})
        keys = np.random.default_rng(self._told["seed"])
        began_s, sent = time.monotonic(), 0
        while not self._over.is_set():
            due = int((time.monotonic() - began_s) * self._told["rate"])
            for key in keys.integers(0, _KEYS, due - sent).tolist():
                now = str(time.time_ns() // 1000)
                client.produce(self._topics[0], key=str(key).encode(), value=now.encode())
            sent = due
            client.poll(0)
            time.sleep(0.002)
        client.flush(10)

    def _read(self) -> None:
        module = confluent()
        client = module.Consumer({
            "bootstrap.servers": self._told["servers"],
            "group.id": "headgate-latency",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
        })  # fmt: skip
        client.assign([module.TopicPartition(self._topics[1], n, 0) for n in range(2)])
        while not self._over.is_set():
            for message in client.consume(2_000, 0.01):
                if message.error() is None:
                    now = time.time_ns() // 1000
                    self.found.append((now, int(message.value().split(b",")[1])))
        client.close()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def _one(told: dict[str, Any]) -> dict[str, Any]:
    topics = (f"in-{told['mode']}", f"out-{told['mode']}")
    for topic in topics:
        make_topic(told["servers"], topic, 2)
    jars = ",".join(map(str, connector()))
    spark = hg.session(master="local[2]", name="latency", **{"spark.jars": jars})
    query = _query(spark, told, topics)
    traffic = _Traffic(told, topics)
    try:
        time.sleep(told["warm_s"])
        began_us, cpu_s, began_s = time.time_ns() // 1000, _cpu_s(), time.monotonic()
        time.sleep(told["seconds"])
        cores = (_cpu_s() - cpu_s) / (time.monotonic() - began_s)
        ended_us = time.time_ns() // 1000
    finally:
        traffic.end()
        failure = query.exception()
        query.stop()
        spark.stop()
    if failure is not None:
        raise EngineError(str(failure)) from failure
    counted = np.array([pair for pair in traffic.found if began_us <= pair[0] < ended_us])
    require(len(counted) > 0, "no result came out while it counted; use a longer warm_s.")
    latency_ms = (counted[:, 0] - counted[:, 1]) / 1e3
    gaps_ms = np.diff(np.unique(counted[:, 0])) / 1e3
    return {
        "results": len(counted),
        "latency_ms": {
            f"p{p:g}": round(float(np.percentile(latency_ms, p)), 1) for p in PERCENTILES
        },
        "longest_gap_ms": round(float(gaps_ms.max()), 1),
        "cores": round(cores, 2),
    }


def _cpu_s() -> float:
    """Return the processor time of this process and all below it; threads of traffic are among it."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process in _tree(os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _tree(process: int) -> Iterator[int]:
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:
            continue
        for one in found:
            yield from _tree(int(one))


if __name__ == "__main__":
    print(json.dumps(_one(json.loads(sys.argv[1]))))
