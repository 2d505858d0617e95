"""Defines the jobs of `headgate bench storm`: plain PySpark queries, their input, and their process.

A query function gets a reader of its input, streaming or batch, and nothing of headgate; its batch answer
is the oracle. A *life* is a process that runs the query from its checkpoint until it is told to finish,
or dies.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from headgate.spark.api.comparison import compare
from headgate.spark.cluster.session import session
from headgate.spark.job.faults import CRASH

Read = Callable[[str], DataFrame]
"""Returns the rows of an input by name."""

SCHEMA = "t timestamp, user string, item string, value bigint"

FILE_S = 2
"""Event time between the begins of two files, in seconds."""

SPREAD_S = 4
"""Longest time from a file's begin to its records, in seconds; more than `FILE_S`, so files overlap."""

WATERMARK = "5 seconds"
"""More than `SPREAD_S`, so that no record is late, however batches divide the files."""

BEGIN_S = 1_700_000_000
FLUSH_S = 1_900_000_000
"""Event time of the records that close all windows before them; they are not compared."""

USERS, ITEMS = 60, 12
_NAMES = ["anna", "Björn", "çelik", "", "东", "long-" + "x" * 40]
LEFT, RIGHT = "left", "right"

STARTED, CALM, FINISH, FINISHED = "started", "calm", "finish", "finished"
"""Names of files by which a life and its supervisor signal to each other."""

NO_JVM = 70
"""Exit code of a life whose JVM died, with `watch_jvm`."""

_POLL_S = 0.05


def rows(seed: int, side: str, number: int, count: int) -> pa.Table:
    """Return the rows of one file of an input.

    The first tenth of the records comes twice, and some records come again in the next file.
    """
    draw = np.random.default_rng([seed, side == RIGHT, number])
    table = _drawn(draw, number, count)
    parts = [table, table.slice(0, count // 10)]
    if number:
        before = np.random.default_rng([seed, side == RIGHT, number - 1])
        # records from the present file's begin on, so that they are not late
        repeated = _drawn(before, number - 1, count)
        inside = pa.compute.greater_equal(repeated["t"], table["t"][0])
        parts.append(repeated.filter(inside).slice(0, count // 10))
    return pa.concat_tables(parts)


def _drawn(draw: np.random.Generator, number: int, count: int) -> pa.Table:
    # the first record is the file's earliest
    within_us = draw.integers(0, SPREAD_S * 1_000_000, count)
    within_us[0] = 0
    times = (BEGIN_S + number * FILE_S) * 1_000_000 + within_us
    users = [f"{_NAMES[n % len(_NAMES)]}{n}" for n in draw.integers(0, USERS, count)]
    items = [f"item {n}" for n in draw.integers(0, ITEMS, count)]
    return pa.table(
        {
            "t": pa.array(times, pa.timestamp("us", tz="UTC")),
            "user": users,
            "item": items,
            "value": pa.array(draw.integers(0, 1_000, count), pa.int64()),
        }
    )


def flush() -> pa.Table:
    """Return a record with an event time far after all others, which closes all windows."""
    return pa.table(
        {
            "t": pa.array([FLUSH_S * 1_000_000], pa.timestamp("us", tz="UTC")),
            "user": ["flush"],
            "item": ["flush"],
            "value": pa.array([0], pa.int64()),
        }
    )


# --- queries -------------------------------------------------------------------------------------


def aggregates(read: Read) -> DataFrame:
    """Return statistics of the users' totals, per window and item: an aggregate over an aggregate."""
    per_user = (
        read(LEFT)
        .withWatermark("t", WATERMARK)
        .groupBy(F.window("t", "6 seconds", "3 seconds"), "user", "item")
        .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    )
    return per_user.groupBy("window", "item").agg(
        F.count("*").alias("users"),
        F.sum("n").alias("n"),
        F.max("total").alias("most"),
        F.max("user").alias("last"),
    )


def join(read: Read) -> DataFrame:
    """Return each left record with the right ones that follow within 3 s, or with nulls."""
    left = read(LEFT).withWatermark("t", WATERMARK)
    right = read(RIGHT).withWatermark("t", WATERMARK)
    right = right.select(
        F.col("t").alias("then"),
        F.col("user").alias("who"),
        F.col("item").alias("what"),
        F.col("value").alias("paid"),
    )
    near = "user = who and item = what and then between t and t + interval 3 seconds"
    return left.join(right, F.expr(near), "left_outer")


def processor(read: Read) -> DataFrame:
    """Return totals per user, interval of 5 s and item, by a processor with a map and timers."""
    seen = read(LEFT).withWatermark("t", WATERMARK)
    return seen.groupBy("user").transformWithState(Totals(), TOTALS, "append", "EventTime")


def processor_answer(read: Read) -> DataFrame:
    """Return the answer of `processor` and `group_state`, as a plain aggregate."""
    ended = (F.floor(F.unix_micros("t") / BUCKET_US) + 1) * BUCKET_US
    by = read(LEFT).groupBy("user", ended.cast("bigint").alias("end_us"), "item")
    return by.agg(F.sum("value").alias("total"), F.count("*").alias("n"))


def duplicates(read: Read) -> DataFrame:
    """Return each distinct record once."""
    return read(LEFT).withWatermark("t", WATERMARK).dropDuplicates(["user", "item", "t", "value"])


TOTALS = "user string, end_us bigint, item string, total bigint, n bigint"
BUCKET_US = 5_000_000


class Totals(StatefulProcessor):
    """Sums values per interval of 5 s and item, and emits the sums at the end of the interval."""

    def init(self, handle: Any) -> None:
        """Declare the state: a map of open totals, and the number of timers that have fired."""
        self._handle = handle
        self._open = handle.getMapState(
            "open", "end_us bigint, item string", "total bigint, n bigint"
        )
        self._fired = handle.getValueState("fired", "times bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the rows to the totals."""
        for row in rows:
            micros = round(row.t.timestamp() * 1e6)
            end_us = (micros // BUCKET_US + 1) * BUCKET_US
            entry = (end_us, row.item)
            total, n = self._open.getValue(entry) if self._open.containsKey(entry) else (0, 0)
            self._open.updateValue(entry, (total + row.value, n + 1))
            self._handle.registerTimer(end_us // 1000)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        """Emit and remove the totals of the ended interval."""
        end_us = expiredTimerInfo.getExpiryTimeInMs() * 1000
        ended = [(k, v) for k, v in self._open.iterator() if k[0] == end_us]
        times = self._fired.get()[0] if self._fired.exists() else 0
        self._fired.update((times + 1,))
        for (_, item), (total, n) in ended:
            self._open.removeKey((end_us, item))
            yield Row(user=key[0], end_us=end_us, item=item, total=total, n=n)

    def close(self) -> None:
        """Do nothing; no resources are held."""


def group_state(read: Read) -> DataFrame:
    """Return the totals of `processor`, by ``applyInPandasWithState`` and its timeouts."""
    seen = read(LEFT).withWatermark("t", WATERMARK)
    return seen.groupBy("user").applyInPandasWithState(
        open_totals, TOTALS, "open string", "append", GroupStateTimeout.EventTimeTimeout
    )


def open_totals(key: tuple[str, ...], frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
    """Sum values per interval of 5 s and item in pandas frames; yield the sums of ended intervals."""
    totals: dict[tuple[int, str], list[int]] = {}
    if state.exists:
        totals = {(end, item): sums for end, item, sums in json.loads(state.get[0])}
    if not state.hasTimedOut:
        for frame in frames:
            for time_, item, value in zip(frame["t"], frame["item"], frame["value"], strict=True):
                end_us = (time_.value // 1000 // BUCKET_US + 1) * BUCKET_US
                sums = totals.setdefault((end_us, item), [0, 0])
                sums[0] += int(value)
                sums[1] += 1
    # the watermark may have passed several ends at once
    over = [entry for entry in totals if entry[0] // 1000 <= state.getCurrentWatermarkMs()]
    given = [(*key, *entry, *totals.pop(entry)) for entry in over]
    if totals:
        state.update((json.dumps([[*entry, sums] for entry, sums in totals.items()]),))
        state.setTimeoutTimestamp(min(end for end, _ in totals) // 1000)
    elif state.exists:
        state.remove()
    columns = ("user", "end_us", "item", "total", "n")
    rows = [dict(zip(columns, one, strict=True)) for one in given]
    if rows:
        yield pa.Table.from_pylist(rows).to_pandas()


@dataclass(frozen=True)
class Job:
    """Describes a query under the storm.

    Attributes
    ----------
    build : callable
        Makes the query from a reader.
    kept : str
        Condition for rows that are compared: rows without a part of the flushing records.
    answer : callable or None
        Returns the expected rows if the query cannot run as a batch.
    """

    build: Callable[[Read], DataFrame]
    inputs: tuple[str, ...]
    kept: str
    answer: Callable[[Read], DataFrame] | None = None


JOBS: Mapping[str, Job] = {
    "aggregates": Job(aggregates, (LEFT,), "item <> 'flush'"),
    "join": Job(join, (LEFT, RIGHT), "user <> 'flush'"),
    "processor": Job(processor, (LEFT,), "user <> 'flush'", processor_answer),
    "group-state": Job(group_state, (LEFT,), "user <> 'flush'", processor_answer),
    "duplicates": Job(duplicates, (LEFT,), "user <> 'flush'"),
}


# --- a life --------------------------------------------------------------------------------------


def _session(work: Path, name: str) -> Any:
    return session(
        master="local[2]",
        name=name,
        **{"spark.local.dir": str(work / "local"), "spark.sql.session.timeZone": "UTC"},
    )


def live(request: Mapping[str, Any]) -> None:
    """Run the job until it is told to finish, or to stop, or is killed."""
    work, job = Path(request["work"]), JOBS[request["job"]]
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    spark = _session(work, f"storm-{request['job']}")
    gateway = spark.sparkContext._gateway
    if request["watch_jvm"]:
        threading.Thread(target=_die_with, args=(gateway.proc,), daemon=True).start()

    def read(side: str) -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", request["files"])
        rows: DataFrame = reader.parquet(str(work / side))
        return rows

    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    writer = (
        hg.writeStream(job.build(read))
        .slots(start=2)
        .keyGroups(32)
        .format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .option("headgate.snapshotEvery", "8")
    )
    query = writer.trigger(processingTime="0 seconds").start()
    (work / STARTED).touch()
    stop = threading.Event()
    threading.Thread(target=_obey, args=(stop,), daemon=True).start()
    draw = random.Random(f"{request['seed']} {request['life']}")
    change_at = time.monotonic() + draw.uniform(0.5, request["scale_s"])
    while not stop.is_set() and not (work / FINISH).exists():
        if query.awaitTermination(_POLL_S):
            break
        if time.monotonic() > change_at and not (work / CALM).exists():
            query.scale(draw.randint(1, request["slots_max"]))
            change_at = time.monotonic() + draw.uniform(0.5, request["scale_s"])
    if not stop.is_set():
        query.processAllAvailable()
    query.stop()
    spark.stop()
    if not stop.is_set():
        (work / FINISHED).touch()


def _die_with(jvm: Any) -> None:
    """End this process when its JVM ends."""
    jvm.wait()
    os._exit(NO_JVM)


def _obey(stop: threading.Event) -> None:
    """Carry out the supervisor's commands from stdin; at the end of stdin, kill the process group."""
    for line in sys.stdin:
        what, _, rest = line.strip().partition(" ")
        if what == "crash":
            os.environ[CRASH] = rest
        if what == "stop":
            stop.set()
            return
    os.killpg(os.getpgrp(), signal.SIGKILL)


def judge(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the output with the batch answer on the same files."""
    work, job = Path(request["work"]), JOBS[request["job"]]
    spark = _session(work, "storm-oracle")

    def read(side: str) -> DataFrame:
        rows: DataFrame = spark.read.schema(SCHEMA).parquet(str(work / side))
        return rows

    output = spark.read.parquet(str(work / "output")).where(job.kept)
    found = compare((job.answer or job.build)(read).where(job.kept), output)
    spark.stop()
    return found


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A life of a job in a storm.")
    arguments.add_argument("what", choices=("live", "judge"))
    arguments.add_argument("request")
    given = arguments.parse_args()
    if given.what == "judge":
        print(json.dumps(judge(json.loads(given.request))))
    else:
        live(json.loads(given.request))
