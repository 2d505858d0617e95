"""Counts clicks from a Kafka topic into another one; starts a broker, and a generator of clicks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.spark.settings.kafka import SERVERS, confluent
from headgate.workloads.rates import RateFunction, parse_rate
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.jars import jars
from headgate_demo.spark.topics import has_topic, make_topic

IN, OUT = "clicks", "counts"
PARTITIONS = 6
PAGES = 1_000

_CLICK = "page string, user bigint, at timestamp"
_POLL_S = 0.02

CONNECTORS = {"4.1": "4.1.1", "4.2": "4.2.0", "4.3": "4.2.0"}
"""For each minor version of Spark, the newest Kafka connector for it on Maven."""

_IN_SPARK = ("org.apache.hadoop:hadoop-client-runtime", "org.apache.hadoop:hadoop-client-api")


def connector() -> list[Path]:
    """Return the jars of Spark's Kafka connector for the installed Spark.

    Raises
    ------
    HeadgateError
        The jars cannot be fetched.
    """
    version = CONNECTORS[".".join(pyspark.__version__.split(".")[:2])]
    return jars([f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"], _IN_SPARK)


def kafka_clicks(
    spark: SparkSession,
    *,
    servers: str = "127.0.0.1:9092",
    topic: str = IN,
    rate: object = None,
    seed: object = None,
) -> DataFrame:
    """Return clicks per page and window of 5 s as records for Kafka.

    Parameters
    ----------
    servers, topic : str
        Broker and topic of the clicks.
    rate, seed : object
        For the generator of clicks; the query ignores them.
    """
    reader = spark.readStream.format("kafka").option(SERVERS, servers).option("subscribe", topic)
    return clicks_counted(reader.option("startingOffsets", "earliest").load())


def clicks_counted(records: DataFrame) -> DataFrame:
    """Return clicks per page and window of 5 s, from Kafka's records of a click each."""
    read = F.from_json(F.col("value").cast("string"), _CLICK)
    counts = (
        records.select(read.alias("click"))
        .select("click.*")
        .withWatermark("at", "2 seconds")
        .groupBy(F.window("at", "5 seconds"), "page")
        .agg(F.count("*").alias("clicks"))
    )
    value = F.to_json(F.struct("window", "page", "clicks"))
    return counts.select(F.col("page").alias("key"), value.alias("value"))


class ClicksBesides:
    """Runs a generator of clicks, and a broker unless one is named, beside the query.

    Parameters
    ----------
    directory : Path
        For the data of a broker that is started here; a later start finds them again.
    options : mapping
        ``servers``, ``rate`` and ``seed`` of the scenario.

    Attributes
    ----------
    options : dict
        Options for `kafka_clicks`.
    sink_format, sink_options
        Format and options of the sink of the counts.
    """

    sink_format = "kafka"

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        confluent()  # a missing client is refused before a broker is started
        self._rate = parse_rate(str(options.get("rate", 2_000)))
        self._seed = int(options.get("seed", 1))
        self._undo = ExitStack()
        servers = options.get("servers")
        if servers is None:
            servers = self._undo.enter_context(Broker(directory)).servers
        self.options: Mapping[str, Any] = {"servers": str(servers)}
        self.sink_options: Mapping[str, str] = {SERVERS: str(servers), "topic": OUT}
        for topic in (IN, OUT):
            if not has_topic(servers, topic):
                make_topic(servers, topic, PARTITIONS)

    @staticmethod
    def conf(given: Mapping[str, str]) -> dict[str, str]:
        """Return the setting for Kafka's jars; none if `given` names jars or Kafka's package."""
        if "spark.jars" in given or "kafka" in given.get("spark.jars.packages", ""):
            return {}
        return {"spark.jars": ",".join(str(jar) for jar in connector())}

    def begin(self) -> None:
        """Start the generator of clicks."""
        users = Clicks(self.options["servers"], self._rate, self._seed)
        self._undo.callback(users.stop)
        users.start()

    def output(self, spark: SparkSession, schema: T.StructType) -> DataFrame:
        """Return the committed counts, with the columns of `schema`."""
        reader = spark.read.format("kafka").options(**self.sink_options).option("subscribe", OUT)
        rows = reader.option("kafka.isolation.level", "read_committed").load()
        return rows.select(*(F.col(f.name).cast(f.dataType).alias(f.name) for f in schema))

    def close(self) -> None:
        """Stop the generator, and the broker if it was started here; a second call does nothing."""
        self._undo.close()


class Clicks:
    """Writes clicks at a rate, in a thread.

    Parameters
    ----------
    rate : RateFunction
        Clicks per second, by the time since `start`.
    seed : int
        For the choice of pages and users.
    """

    def __init__(self, servers: str, rate: RateFunction, seed: int, topic: str = IN) -> None:
        self._servers, self._rate, self._topic = servers, rate, topic
        self._random = np.random.default_rng(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-clicks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after a flush of at most 10 s."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        producer = confluent().Producer({"bootstrap.servers": self._servers, "linger.ms": 5})
        began_s, done = time.time(), 0
        while not self._over.wait(_POLL_S):
            due = int(self._rate.count(time.time() - began_s))
            for record in clicks(self._random, due - done, time.time()):
                try:
                    producer.produce(self._topic, record)
                except BufferError:  # the broker is away; users do not wait, the click is lost
                    producer.poll(_POLL_S)
            done = due
            producer.poll(0)
        producer.flush(10)


def clicks(random: np.random.Generator, count: int, now_s: float) -> Iterator[bytes]:
    """Yield `count` clicks at `now_s`, as JSON; a few pages get most of them."""
    pages = np.minimum(random.zipf(1.3, count), PAGES)
    users = random.integers(0, 100_000, count)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s % 1 * 1e3):03d}Z"
    for page, user in zip(pages.tolist(), users.tolist(), strict=True):
        yield json.dumps({"page": f"page-{page}", "user": user, "at": at}).encode()
