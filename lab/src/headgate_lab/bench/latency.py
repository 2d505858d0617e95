"""Measures the time from a record's producer to a reader of its result, in batches and in real time.

The job reads from and writes to a Kafka broker on the same machine. Each record carries the time at which
it was made, and each result the time of its newest record; a ``read_committed`` reader compares that with
its clock. Results during the warm-up do not count. The modes are headgate's, plain Spark's micro-batches
and, from 4.2 on, Spark's real-time mode, on the same input. The result's cores are those of the job, with
its JVM, workers and slots, without the traffic, which the benchmark's own process makes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyspark
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import headgate as hg
from headgate.core.errors import EngineError
from headgate.spark.settings.kafka import confluent
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.clicks import connector
from headgate_demo.spark.topics import make_topic
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env
from headgate_lab.bench.processor_time import cpu_by_kind_s

BATCHES, SPARKS_REAL_TIME = "spark-micro-batch", "spark-real-time"
"""Modes of plain Spark."""

MODES = (BATCHES, SPARKS_REAL_TIME, "micro-batch", "real-time", "early")
QUERIES = {"count": 1_000, "duplicates": 0, "processor": 50_000, "stateless": 1_000}
"""Number of keys of each query: a count in windows of a minute; a deduplication, in which each key comes
twice, so that the number of keys is unlimited (0); a count by a processor in Python; a projection."""

PERCENTILES = (50, 90, 99, 99.9, 100)
_STARTS_S = 120.0
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""Settings of plain Spark."""

_CORES = {SPARKS_REAL_TIME: 6}
"""Cores of Spark's real-time mode. Its tasks run all the time, two of the source and two of the shuffle,
and with fewer cores it starts no batch."""


@dataclass(frozen=True)
class LatencyParameters:
    """Holds the arguments of `run`."""

    seconds: float = 60.0
    """Measured time of each run; > 0."""

    warm_s: float = 30.0
    """Warm-up before the measured time; > 0. Must be several seconds longer than a start."""

    rates: tuple[int, ...] = (1_000,)
    """Records per second; >= 1."""

    epoch: str = "50 ms"
    """Time between two commits in headgate's real time."""

    queries: str = "count"
    """Queries that run, of `QUERIES`, separated by commas."""

    only: str = ",".join(MODES)
    """Modes that run, separated by commas, in this order."""

    seed: int = 1
    """Seed of the keys; >= 0."""

    def __post_init__(self) -> None:
        require(self.seconds > 0, f"seconds={self.seconds:g} of latency is out of range; use > 0.")
        rates = ",".join(map(str, self.rates))
        require(min(self.rates) >= 1, f"rates={rates} of latency is out of range; use 1 or more.")
        for name, given, known in (
            ("only", self.only, MODES),
            ("queries", self.queries, tuple(QUERIES)),
        ):
            fits = all(one in known for one in given.split(","))
            require(fits, f'{name}="{given}" of latency is not known; use {", ".join(known)}.')


def run(**given: Any) -> dict[str, Any]:
    """Run each query in each mode at each rate, one after another, with one broker.

    Parameters
    ----------
    **given
        Fields of `LatencyParameters`.

    Returns
    -------
    dict
        ``runs`` (each with ``query``, ``rate``, ``mode``, and ``made_per_s``, ``results``, ``latency_ms``
        by percentile, ``behind_ms``: p50 of the last third minus that of the first, ``longest_gap_ms``
        between two results, ``cores``; or ``left_out``, with the reason), ``parameters``, ``machine``.
    """
    chosen = parameters(LatencyParameters, given)
    found = []
    with tempfile.TemporaryDirectory(prefix="headgate-latency-") as work, Broker() as broker:
        for query in chosen.queries.split(","):
            for rate in chosen.rates:
                for mode in chosen.only.split(","):
                    named = {"query": query, "rate": rate, "mode": mode}
                    why = _left_out(query, mode)
                    if why is not None:
                        found.append({**named, "left_out": why})
                        continue
                    progress(f"{query}, {mode}, {rate} records/s for {chosen.seconds:g} s")
                    told = {**asdict(chosen), **named, "servers": broker.servers, "work": work}
                    found.append({**named, **_measured(told)})
    return {"runs": found, "parameters": asdict(chosen), "machine": machine()}


def _left_out(query: str, mode: str) -> str | None:
    """Return the reason why a query does not run in a mode; None if it does."""
    if mode != SPARKS_REAL_TIME:
        return None
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        return "Spark has a real-time mode from 4.2 on"
    return "Spark's real-time mode has no Python" if query == "processor" else None


def _measured(told: dict[str, Any]) -> dict[str, Any]:
    """Run a job in a child process, and its traffic in this process."""
    name = f"{told['query']}-{told['rate']}-{told['mode']}"
    topics = (f"in-{name}", f"out-{name}")
    for topic in topics:
        make_topic(told["servers"], topic, 2)
    traffic = _Traffic(told, topics)
    try:
        command = [sys.executable, "-m", __name__, json.dumps({**told, "topics": topics})]
        found = child(command, spark_env(), told["seconds"] + told["warm_s"] + _STARTS_S)
    finally:
        traffic.end()
    began_us, ended_us = found["began_us"], found["ended_us"]
    counted = np.array([pair for pair in traffic.found if began_us <= pair[0] < ended_us])
    require(len(counted) > 0, "no result came out while it counted; use a longer warm_s.")
    latency_ms = (counted[:, 0] - counted[:, 1]) / 1e3
    thirds = np.digitize(counted[:, 0], np.linspace(began_us, ended_us, 4)[1:3])
    ends = [latency_ms[thirds == n] for n in (0, 2)]
    require(all(map(len, ends)), "a third of the time had no result; use more seconds.")
    at_us, made = np.array(traffic.made).T
    made_rows = np.diff(np.interp([began_us, ended_us], at_us, made)).item()
    # silence at the begin or the end is a gap, too
    gaps_ms = np.diff([began_us, *np.unique(counted[:, 0]), ended_us]) / 1e3
    return {
        "made_per_s": round(made_rows / (ended_us - began_us) * 1e6),
        "results": len(counted),
        "latency_ms": {
            f"p{p:g}": round(float(np.percentile(latency_ms, p)), 1) for p in PERCENTILES
        },
        "behind_ms": round(float(np.median(ends[1]) - np.median(ends[0])), 1),
        "longest_gap_ms": round(float(gaps_ms.max()), 1),
        "cores": found["cores"],
    }


class _Traffic:
    """Writes records at a rate, and reads the job's results."""

    def __init__(self, told: dict[str, Any], topics: tuple[str, str]) -> None:
        self._told, self._topics = told, topics
        self._over = threading.Event()
        self.found: list[tuple[int, int]] = []
        """For each result, the time of reading it and the time of its newest record; us since 1970."""
        self.made: list[tuple[int, int]] = []
        """Times, us since 1970, with the number of records made until then."""
        self._threads = [threading.Thread(target=work) for work in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        client = confluent().Producer({"bootstrap.servers": self._told["servers"], "linger.ms": 1})
        rng, keys = np.random.default_rng(self._told["seed"]), QUERIES[self._told["query"]]
        began_s, sent = time.monotonic(), 0
        while not self._over.is_set():
            due = int((time.monotonic() - began_s) * self._told["rate"])
            numbers = rng.integers(0, keys, due - sent) if keys else np.arange(sent, due) // 2
            for key in numbers.tolist():
                now = str(time.time_ns() // 1000)
                client.produce(self._topics[0], key=str(key).encode(), value=now.encode())
            sent = due
            self.made.append((time.time_ns() // 1000, sent))
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
            # `consume` waits until it has the full number of messages: wait for the first one alone
            first = client.consume(1, 0.01)
            for message in first + (client.consume(2_000, 0) if first else []):
                if message.error() is None:
                    now = time.time_ns() // 1000
                    self.found.append((now, int(message.value().split(b",")[1])))
        client.close()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


# --- in the child --------------------------------------------------------------------------------


class _Counts(StatefulProcessor):
    """Counts the records of each key."""

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        times = [row.us for row in rows]
        count = (self._seen.get()[0] if self._seen.exists() else 0) + len(times)
        self._seen.update((count,))
        yield Row(k=key[0], n=count, us=max(times))


def _answered(query: str, records: DataFrame) -> DataFrame:
    """Return a query's results: a key, a number and the time of the newest record."""
    if query == "count":
        groups = records.groupBy(F.window("timestamp", "1 minute"), "k")
        return groups.agg(F.count("*").alias("n"), F.max("us").alias("us"))
    if query == "processor":
        groups = records.groupBy("k")
        return groups.transformWithState(_Counts(), "k string, n long, us long", "Update", "None")
    found = records.dropDuplicates(["k"]) if query == "duplicates" else records
    return found.select("k", F.lit(1).alias("n"), "us")


def _start(spark: SparkSession, told: dict[str, Any]) -> Any:
    mode, topics = told["mode"], told["topics"]
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", told["servers"])
    # records from before the start do not count
    read = reader.option("subscribe", topics[0]).option("startingOffsets", "latest").load()
    made_us = F.col("value").cast("string").cast("long").alias("us")
    records = read.select(F.col("key").cast("string").alias("k"), made_us, "timestamp")
    if told["query"] == "count":
        records = records.withWatermark("timestamp", "10 seconds")
    answered = _answered(told["query"], records)
    value = F.concat_ws(",", F.col("n").cast("string"), F.col("us").cast("string"))
    result = answered.select(F.col("k").alias("key"), value.alias("value"))
    is_plain = mode in (BATCHES, SPARKS_REAL_TIME)
    writer: Any = result.writeStream if is_plain else hg.writeStream(result).slots(start=2)
    writer = writer.format("kafka").option("kafka.bootstrap.servers", told["servers"])
    writer = writer.option("topic", topics[1]).outputMode("update")
    place = f"{told['work']}/{told['query']}-{told['rate']}-{mode}"
    writer = writer.option("checkpointLocation", place)
    if mode in ("real-time", "early"):
        writer = writer.option("headgate.epoch", told["epoch"])
        writer = writer.release("early" if mode == "early" else "committed")
    if mode in (SPARKS_REAL_TIME, "real-time", "early"):
        writer = writer.trigger(realTime="5 minutes")
    return writer.start()


def _one(told: dict[str, Any]) -> dict[str, Any]:
    mode = told["mode"]
    settings = {"spark.jars": ",".join(map(str, connector()))}
    settings |= ROCKSDB if mode in (BATCHES, SPARKS_REAL_TIME) else {}
    master = f"local[{_CORES.get(mode, 2)}]"
    spark = hg.session(master=master, name="latency", **settings)
    query = _start(spark, told)
    try:
        time.sleep(told["warm_s"])
        began_us, cpu_s = time.time_ns() // 1000, sum(cpu_by_kind_s().values())
        began_s = time.monotonic()
        time.sleep(told["seconds"])
        cores = (sum(cpu_by_kind_s().values()) - cpu_s) / (time.monotonic() - began_s)
        ended_us = time.time_ns() // 1000
    finally:
        failure = query.exception()
        query.stop()
        spark.stop()
    if failure is not None:
        raise EngineError(str(failure)) from failure
    return {"began_us": began_us, "ended_us": ended_us, "cores": round(cores, 2)}


if __name__ == "__main__":
    print(json.dumps(_one(json.loads(sys.argv[1]))))
