"""Compares headgate and Spark with a checkpoint on an object store whose requests are slow.

The job of `wide` runs four times, each time in its own process: headgate and Spark (RocksDB with
changelog checkpointing, by S3A), each with its checkpoint on the local disk and on the store. The server
is Versity's S3 on loopback. A proxy delays and logs each request, so that requests and bytes are counted
in the same way for both: all requests during the timed batches, whatever their purpose (Spark uploads
snapshots every minute, besides batches). Then a new process starts the query for one more batch, and
reads all state from the checkpoint.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame

from headgate.core.duration import parse_duration_s
from headgate.core.errors import EngineError
from headgate.core.size import parse_bytes
from headgate.spark.cluster.session import session
from headgate_demo.spark.jars import jars
from headgate_lab.bench import wide
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    spark_env,
    spread,
)
from headgate_lab.bench.native import HEADGATE, ROCKSDB
from headgate_lab.bench.wide_job import KEPT_PROGRESS, WideJob, WideParameters, WideTimes
from headgate_lab.testing.forward import delayed
from headgate_lab.testing.go_servers import versity
from headgate_lab.testing.servers import BUCKET

SPARK = "spark-rocksdb"
ENGINES = (HEADGATE, SPARK)

DISK, STORE = "disk", "store"

TARGETS = {"ratio": 1.3}
"""Largest ratio of headgate's median batch on the store to that on the disk."""

_HOUR_MS = 3_600_000.0

_FIRST, _SECOND = "first", "second"
"""Names of the two processes of a part."""


@dataclass(frozen=True)
class FarParameters(WideParameters):
    """Holds the parameters of `run`; the rows of a batch have different keys."""

    batches: int = 40
    engines: str = ",".join(ENGINES)

    delay: str = "50 ms"
    """Delay of each request to the store."""

    def __post_init__(self) -> None:
        parse_duration_s(self.delay)
        self.check("far", ENGINES)


def run(**given: Any) -> dict[str, Any]:
    """Run the job on each engine, on disk and on the store; parameters are those of `FarParameters`.

    Returns
    -------
    dict
        ``engines``: per engine ``disk`` and ``store`` (``batch_ms``: spread; ``fill_s``; ``restart_s``:
        from the start of a query without state in memory to the end of its first batch; for the store
        also ``requests_per_batch``, ``bytes_per_batch``, ``requests_per_hour``, ``bytes_per_hour`` and
        ``methods``, requests per batch by method) and ``ratio`` of the medians; ``over_spark`` (ratio of
        headgate's median batch to Spark's, on the store); ``targets``, ``met``; ``state_bytes``,
        ``entries``, ``keys_compared``, ``verified``, ``failed`` (with reasons), ``parameters``,
        ``machine``.
    """
    asked = parameters(FarParameters, given)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    failed: list[str] = []
    delay_s = parse_duration_s(asked.delay)
    with tempfile.TemporaryDirectory(prefix="headgate-far-") as name, versity() as options:
        for engine in asked.engines.split(","):
            for place in (DISK, STORE):
                work = Path(name) / engine / place
                work.mkdir(parents=True)
                noted = work / "requests"
                with delayed(options["endpoint"], delay_s, noted) as endpoint:
                    store = {**options, "endpoint": endpoint}
                    try:
                        part = _part(asked, engine, place, work, store)
                    except EngineError as error:
                        progress(f"{engine} on {place}: FAILED, {error}")
                        failed.append(f"{engine} on {place}: {error}")
                        continue
                if place == STORE:
                    part |= _requests(noted, part, asked.batches)
                found.setdefault(engine, {})[place] = part
                progress(f"{engine} on {place}: {part['batch_ms']['median']:g} ms a batch")
    return _judged(found) | {
        "verified": not failed,
        "failed": failed,
        "parameters": asdict(asked),
        "machine": machine(),
    }


def _part(
    asked: FarParameters, engine: str, place: str, work: Path, store: Mapping[str, str]
) -> dict[str, Any]:
    request = {
        "parameters": asdict(asked),
        "directory": str(work),
        "engine": engine,
        "place": place,
        "store": dict(store),
    }
    found: dict[str, Any] = {}
    for life in (_FIRST, _SECOND):
        text = json.dumps(request | {"life": life})
        command = [sys.executable, "-m", "headgate_lab.bench.far", "--request", text]
        found |= child(command, spark_env(), asked.timeout_s)
    return found


def _requests(noted: Path, part: Mapping[str, Any], batches: int) -> dict[str, Any]:
    """Return the numbers of requests during the timed batches."""
    lines = [json.loads(line) for line in noted.read_text(encoding="utf-8").splitlines()]
    began_ms, ended_ms = part["began_ms"], part["ended_ms"]
    within = [line for line in lines if began_ms <= line["at_ms"] <= ended_ms]
    methods = sorted({line["method"] for line in within})
    sent = sum(line["bytes"] for line in within)
    hours = (ended_ms - began_ms) / _HOUR_MS
    return {
        "requests_per_batch": round(len(within) / batches, 2),
        "bytes_per_batch": round(sent / batches),
        "requests_per_hour": round(len(within) / hours),
        "bytes_per_hour": round(sent / hours),
        "methods": {
            method: round(sum(line["method"] == method for line in within) / batches, 2)
            for method in methods
        },
    }


def _judged(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    shared = ("state_bytes", "entries", "keys_compared")
    hidden = (*shared, "began_ms", "ended_ms")
    engines: dict[str, dict[str, Any]] = {}
    for engine, places in found.items():
        engines[engine] = {
            place: {k: v for k, v in part.items() if k not in hidden}
            for place, part in places.items()
        }
        if len(places) == len((DISK, STORE)):
            near, far = (places[place]["batch_ms"]["median"] for place in (DISK, STORE))
            engines[engine]["ratio"] = round(far / near, 3)
    ratio = engines.get(HEADGATE, {}).get("ratio")
    stored = [found.get(engine, {}).get(STORE) for engine in ENGINES]
    over = None
    if stored[0] and stored[1]:
        over = round(stored[0]["batch_ms"]["median"] / stored[1]["batch_ms"]["median"], 3)
    parts = [part for places in found.values() for part in places.values()]
    return {
        "engines": engines,
        "over_spark": over,
        "targets": TARGETS,
        "met": {"ratio": ratio is not None and ratio <= TARGETS["ratio"]},
        **{name: parts[0][name] if parts else None for name in shared},
    }


# --- in the child --------------------------------------------------------------------------------


def s3a(store: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a Spark checkpoint on such a store by Hadoop's S3A.

    The jars come from Maven, in the version of PySpark's Hadoop: some 650 MB. The checkpoint manager is
    Spark's default, which renames files, since Maven has the jar of the one for S3A up to Spark 4.0 only.
    """
    (client,) = (Path(str(pyspark.__file__)).parent / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    found = jars(
        (f"org.apache.hadoop:hadoop-aws:{version}",),
        without=(
            "org.apache.hadoop:hadoop-client-api",
            "org.apache.hadoop:hadoop-client-runtime",
        ),
    )
    own = {
        "endpoint": store["endpoint"],
        "endpoint.region": store["region"],
        "access.key": store["accessKeyId"],
        "secret.key": store["secretAccessKey"],
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    return {
        "spark.driver.extraClassPath": ":".join(map(str, found)),
        **{f"spark.hadoop.fs.s3a.{name}": text for name, text in own.items()},
    }


def _settings(
    asked: FarParameters, engine: str, work: Path, store: Mapping[str, str]
) -> dict[str, str]:
    settings = {
        "spark.local.dir": str(work / "local"),
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(asked.slots),
        "spark.sql.streaming.numRecentProgressUpdates": str(KEPT_PROGRESS),
    }
    if engine == SPARK:
        changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
        settings |= {**ROCKSDB, changelog: "true", **s3a(store)}
    return settings


def _child(request: Mapping[str, Any]) -> dict[str, Any]:
    asked, work = FarParameters(**request["parameters"]), Path(request["directory"])
    engine, place, store = request["engine"], request["place"], request["store"]
    settings = _settings(asked, engine, work, store)
    spark = session(f"local[{asked.slots}]", f"bench-far-{engine}-{place}", **settings)

    def writer(frame: DataFrame) -> Any:
        scheme = "s3" if engine == HEADGATE else "s3a"
        far = f"{scheme}://{BUCKET}/{engine}"
        checkpoint = str(work / "checkpoint") if place == DISK else far
        if engine == SPARK:
            return frame.writeStream.option("checkpointLocation", checkpoint)
        # Late and by name: the package's front imports the engine, of which this is a part.
        made = importlib.import_module("headgate").writeStream(frame).slots(start=asked.slots)
        if place == STORE:
            for name, text in store.items():
                made = made.option(f"headgate.store.{name}", text)
        return made.option("checkpointLocation", checkpoint)

    job = WideJob(writer, spark=spark, input=work / "input")
    keys = max(asked.rows, parse_bytes(asked.state) // job.entry_bytes)
    data = wide.WideInput(keys, asked.rows, asked.seed)
    touches = asked.dropped_batches + asked.batches
    if request["life"] == _FIRST:
        progress(f"{engine} on {place}: {keys} entries of {job.entry_bytes} B")
        found = _served(job.serve(data, asked.dropped_batches, asked.batches))
    else:
        restart_s = round(job.again(data, touches), 2)
        found = {"restart_s": restart_s, "keys_compared": job.check(data, touches + 1, engine)}
    spark.stop()
    return found | {"state_bytes": keys * job.entry_bytes, "entries": keys}


def _served(served: WideTimes) -> dict[str, Any]:
    batches = len(served.batch_ms)
    timed = [p for p in served.query.recentProgress if int(p["numInputRows"])][-batches:]
    return {
        "batch_ms": spread(served.batch_ms),
        "fill_s": served.fill_s,
        "began_ms": _ms(timed[0]["timestamp"]),
        "ended_ms": _ms(timed[-1]["timestamp"]) + served.batch_ms[-1],
    }


def _ms(timestamp: str) -> float:
    """Return a timestamp of a progress report in milliseconds since 1970."""
    return datetime.fromisoformat(timestamp).timestamp() * 1e3


def main() -> None:
    """Run one part, as asked on the command line."""
    arguments = argparse.ArgumentParser(description="A job whose checkpoint is far away, one part.")
    arguments.add_argument("--request", required=True)
    print(json.dumps(_child(json.loads(arguments.parse_args().request))))


if __name__ == "__main__":
    main()
