"""Measures how fast a job works off records that already lie in Kafka, in batches and in real time.

A topic is filled first. Then each mode counts and sums the records of each key, from the first record to
the last, into the sink ``noop``. What counts begins when a quarter of the records is done, so that starts
and cold code are left out. Processor time is that of the job, by kind of process.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import EngineError
from headgate.spark.settings.kafka import confluent
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.clicks import connector
from headgate_demo.spark.topics import make_topic
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env
from headgate_lab.bench.latency import BATCHES, ROCKSDB
from headgate_lab.bench.processor_time import cpu_by_kind_s

MODES = (BATCHES, "micro-batch", "real-time")
_TOPIC = "records"
_LOOK_S = 0.2
"""Time between two looks at the progress."""
_BEGIN = 0.25
"""Share of the records that is done before it counts."""


@dataclass(frozen=True)
class BackfillParameters:
    """Holds the arguments of `run`."""

    records: int = 4_000_000
    """Records in the topic; >= 1."""

    keys: tuple[int, ...] = (20_000, 1_000_000)
    """Numbers of keys, each a topic of its own; >= 1."""

    batch: int = 1_000_000
    """Most records of a micro-batch; >= 1."""

    only: str = ",".join(MODES)
    """Modes that run, separated by commas, in this order."""

    limit_s: float = 300.0
    """Time limit of each run; > 0."""

    seed: int = 1
    """Seed of the keys; >= 0."""

    def __post_init__(self) -> None:
        for name in ("records", "batch"):
            value = getattr(self, name)
            require(value >= 1, f"{name}={value} of backfill is out of range; use 1 or more.")
        keys = ",".join(map(str, self.keys))
        require(min(self.keys) >= 1, f"keys={keys} of backfill is out of range; use 1 or more.")
        fits = all(mode in MODES for mode in self.only.split(","))
        require(fits, f'only="{self.only}" of backfill is not known; use {", ".join(MODES)}.')


def run(**given: Any) -> dict[str, Any]:
    """Work off each topic in each mode, one after another, with one broker.

    Parameters
    ----------
    **given
        Fields of `BackfillParameters`.

    Returns
    -------
    dict
        ``runs`` (each with ``keys``, ``mode``, ``rows_per_s``, and ``cpu_ns_per_row`` by kind of process
        and in ``all``), ``parameters``, ``machine``.
    """
    chosen = parameters(BackfillParameters, given)
    runs = []
    for keys in chosen.keys:
        with tempfile.TemporaryDirectory(prefix="headgate-backfill-") as work, Broker() as broker:
            progress(f"{chosen.records} records of {keys} keys are written")
            make_topic(broker.servers, _TOPIC, 2)
            _fill(broker.servers, chosen, keys)
            for mode in chosen.only.split(","):
                progress(f"{keys} keys, {mode}")
                told = {**asdict(chosen), "mode": mode, "servers": broker.servers, "work": work}
                command = [sys.executable, "-m", __name__, json.dumps(told)]
                found = child(command, spark_env(), chosen.limit_s + 60.0)
                runs.append({"keys": keys, "mode": mode, **found})
    return {"runs": runs, "parameters": asdict(chosen), "machine": machine()}


def _fill(servers: str, chosen: BackfillParameters, keys: int) -> None:
    client = confluent().Producer({"bootstrap.servers": servers, "linger.ms": 20})
    numbers = np.random.default_rng(chosen.seed).integers(0, keys, chosen.records)
    for number in numbers.tolist():
        while True:
            try:
                client.produce(_TOPIC, key=str(number).encode(), value=b"1")
                break
            except BufferError:
                client.poll(0.1)
    client.flush(60)


# --- in the child --------------------------------------------------------------------------------


def _start(spark: SparkSession, told: dict[str, Any]) -> Any:
    mode = told["mode"]
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", told["servers"])
    reader = reader.option("subscribe", _TOPIC).option("startingOffsets", "earliest")
    if mode != "real-time":
        reader = reader.option("maxOffsetsPerTrigger", told["batch"])
    key, value = (F.col(name).cast("string") for name in ("key", "value"))
    records = reader.load().select(key.alias("k"), value.cast("long").alias("v"))
    result = records.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
    writer: Any = result.writeStream
    if mode != BATCHES:
        writer = hg.writeStream(result).slots(start=2)
    writer = writer.format("noop").outputMode("update")
    writer = writer.option("checkpointLocation", f"{told['work']}/{mode}")
    trigger = {"realTime": "5 minutes"} if mode == "real-time" else {"processingTime": "0 seconds"}
    return writer.trigger(**trigger).start()


def _one(told: dict[str, Any]) -> dict[str, Any]:
    settings = {"spark.jars": ",".join(map(str, connector()))}
    settings |= ROCKSDB if told["mode"] == BATCHES else {}
    spark = hg.session(master="local[2]", name="backfill", **settings)
    query = _start(spark, told)
    until_s = time.monotonic() + told["limit_s"]
    first: tuple[float, int, dict[str, float]] | None = None
    try:
        while True:
            if query.exception() is not None:
                raise EngineError(str(query.exception()))
            require(time.monotonic() < until_s, "the records took longer than limit_s; raise it.")
            done, cpu_s = _done(query.lastProgress), cpu_by_kind_s()
            now_s = time.monotonic()
            if first is None and done >= _BEGIN * told["records"]:
                first = now_s, done, cpu_s
            if first is not None and done >= told["records"]:
                break
            time.sleep(_LOOK_S)
    finally:
        query.stop()
        spark.stop()
    rows = done - first[1]
    require(rows > 0, "all records were done at once; use more records.")
    ns = {
        kind: round((cpu_s[kind] - first[2].get(kind, 0.0)) / rows * 1e9) for kind in sorted(cpu_s)
    }
    return {
        "rows_per_s": round(rows / (now_s - first[0])),
        "cpu_ns_per_row": {**ns, "all": sum(ns.values())},
    }


def _done(progress: Any) -> int:
    """Return the number of records before the offset that the last progress ends with."""
    if not progress:
        return 0
    ends = progress["sources"][0]["endOffset"]
    ends = json.loads(ends) if isinstance(ends, str) else ends
    return sum((ends or {}).get(_TOPIC, {}).values())


if __name__ == "__main__":
    print(json.dumps(_one(json.loads(sys.argv[1]))))
