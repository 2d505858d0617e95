"""Jobs whose checkpoints of an earlier headgate lie in this repository, and the program that wrote them.

``python tests/spark/old_checkpoints.py FILE`` writes the checkpoints of all jobs, each stopped in the
middle of its events, as one archive. It was run once per released form of a checkpoint; an archive is
never written anew, since what it must show is that later code goes on from it.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from ending import ending
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import headgate as hg

cloudpickle.register_pickle_by_value(sys.modules[__name__])

HALF, ALL = 4_000, 8_000
"""Events before the checkpoint was written, and in the end."""

BASE = "1700000000000000"


def events(spark: SparkSession, limit: int, columns: str) -> DataFrame:
    """Return the first events, of which none depends on when this runs."""
    reader = spark.readStream.format("nexmark").option("columns", columns).option("rate", "100")
    return reader.options(events=limit, base=BASE, batch_rows=500, seed=5, partitions=1).load()


def bids(spark: SparkSession, limit: int) -> DataFrame:
    """Return the bids among the first events."""
    fields = "event_type,bid.auction,bid.bidder,bid.price,bid.dateTime,scheduled"
    return events(spark, limit, fields).where("event_type = 2").select("bid.*", "scheduled")


def aggregate(spark: SparkSession, limit: int) -> DataFrame:
    """Return counts and prices per auction and window, with strings in the key."""
    timed = bids(spark, limit).withWatermark("dateTime", "10 seconds")
    window = F.window("dateTime", "20 seconds", "10 seconds")
    key = F.concat(F.lit("auction "), F.col("auction") % 50)
    figures = (F.count("*").alias("bids"), F.max("price").alias("highest"), F.avg("price"))
    return timed.groupBy(window, key.alias("auction")).agg(*figures)


def join(spark: SparkSession, limit: int) -> DataFrame:
    """Return bids with an earlier bid of the same bidder, or with nothing."""
    seen = bids(spark, limit).withWatermark("dateTime", "5 seconds").where("bidder % 3 = 0")
    left = seen.select("bidder", F.col("auction").alias("first"), F.col("dateTime").alias("at"))
    right = seen.select(F.col("bidder").alias("again"), "auction", F.col("dateTime").alias("later"))
    soon = "bidder = again and later > at and later <= at + interval 5 seconds"
    return left.join(right, F.expr(soon), "leftOuter")


class Silence(StatefulProcessor):
    """Says of each bidder how many bids there were until none came for three seconds."""

    output = "bidder bigint, bids bigint, prices int"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "bids bigint, timer bigint")
        self.prices = handle.getMapState("prices", "price bigint", "times int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        bids, timer = self.seen.get() if self.seen.exists() else (0, 0)
        latest = 0
        for row in rows:
            bids += 1
            latest = max(latest, int(row.dateTime.timestamp() * 1000))
            times = (
                self.prices.getValue((row.price,)) if self.prices.containsKey((row.price,)) else [0]
            )
            self.prices.updateValue((row.price,), (times[0] + 1,))
        if latest + 3000 > timer:
            if timer:
                self.handle.deleteTimer(timer)
            timer = latest + 3000
            self.handle.registerTimer(timer)
        self.seen.update((bids, timer))
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        prices = sum(1 for _ in self.prices.keys())
        yield Row(bidder=key[0], bids=self.seen.get()[0], prices=prices)
        self.seen.clear()
        self.prices.clear()


def processor(spark: SparkSession, limit: int) -> DataFrame:
    """Return what a processor with timers, a value and a map puts out."""
    timed = bids(spark, limit).withWatermark("dateTime", "2 seconds")
    keyed = timed.groupBy("bidder")
    return keyed.transformWithState(Silence(), Silence.output, "append", "eventTime")


def tenfold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return prices times ten."""
    for batch in batches:
        price = pc.multiply(batch.column("price"), 10)
        yield pa.record_batch({"auction": batch.column("auction"), "price": price})


def pools(spark: SparkSession, limit: int) -> DataFrame:
    """Return what a pool of replicas puts out."""
    return (
        bids(spark, limit)
        .select("auction", "price")
        .mapInArrow(tenfold, "auction long, price long")
    )


def tenfold_bids(spark: SparkSession, limit: int) -> list[Any]:
    """Return what the pool puts out in the end, by Spark's batch answer."""
    reader = spark.read.format("nexmark").option("columns", "event_type,bid.auction,bid.price")
    options = {"rate": "100", "events": limit, "base": BASE, "seed": 5}
    rows = reader.options(**options).load().where("event_type = 2")
    return [tuple(row) for row in rows.selectExpr("bid.auction", "bid.price * 10").collect()]


JOBS = {job.__name__: job for job in (aggregate, join, processor, pools)}


def writer(spark: SparkSession, job: str, limit: int, checkpoint: Path, out: list[Any]) -> Any:
    """Return the writer of a job that appends its rows to `out`."""
    made = (
        hg.writeStream(JOBS[job](spark, limit))
        .queryName(job)
        .option("checkpointLocation", checkpoint)
    )
    made = made.foreachBatch(lambda frame, _: out.extend(tuple(row) for row in frame.collect()))
    if job == "pools":
        return made.policy("psps").slots(min=1, max=2, start=1)
    return made.outputMode("append").slots(2)


def first_half(spark: SparkSession, job: str, checkpoint: Path) -> list[Any]:
    """Run a job over the first half of its events; in a pool rows still wait after it."""
    out: list[Any] = []
    made = writer(spark, job, HALF, checkpoint, out)
    if job != "pools":
        ending(made).awaitTermination()
        return out
    query = made.option("headgate.slotRate", 300).trigger(processingTime="0 seconds").start()
    while sum(line.arrived for line in query.batches()) < HALF * 46 // 50:
        time.sleep(0.1)
    query.stop()
    return out


def second_half(spark: SparkSession, job: str, checkpoint: Path) -> list[Any]:
    """Go on from a checkpoint to the end of the events, and return what was put out."""
    out: list[Any] = []
    made = writer(spark, job, ALL, checkpoint, out)
    ending(made).awaitTermination()
    return out


def main(archive: str) -> None:
    """Write the checkpoints of all jobs."""
    spark = hg.session(name="old checkpoints", master="local[2]")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive, "x:xz") as tar:
        for job in JOBS:
            print(job, len(first_half(spark, job, Path(folder, job))))
            tar.add(Path(folder, job), arcname=job, filter=_nobodys)
    spark.stop()


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(*sys.argv[1:])
