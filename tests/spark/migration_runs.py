"""Queries that migrate on a cluster: a driver process of `test_migration`, one line of JSON per run.

``python migration_runs.py MASTER DIRECTORY first NAME ...`` runs those and is killed in a last one;
``... then`` is the driver that goes on with that one. ``... stage STRATEGY POINT`` asks for a migration
and is killed at a point of it, or goes on with it and is; ``... stage STRATEGY`` goes on to the end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

import headgate as hg
from headgate.spark.cluster.session import session
from headgate.spark.job.faults import CRASH
from headgate.spark.jvm.hosts import living_hosts

FILES, FED_AT_FIRST, ROWS, KEYS, GROUPS = 8, 6, 300, 120, 8
ASK_AT = 2
WAIT_S = 60
HOSTS = 2


def write_input(directory: Path) -> None:
    """Write a file per batch; from the file after the request on there are new keys."""
    directory.mkdir()
    random = np.random.default_rng(7)
    for index in range(FILES):
        most = KEYS if index <= ASK_AT else 2 * KEYS
        keys, values = random.integers(0, most, ROWS), random.integers(0, 1000, ROWS)
        pq.write_table(
            pa.table({"key": keys, "value": values}), directory / f"part-{index}.parquet"
        )


def totals(rows):
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def of_all_kinds(rows):
    """Return totals, and an aggregate of each way: values are kept, a program, a sketch."""
    values = [
        F.sort_array(F.collect_list("value")).alias("values"),
        F.count_distinct(F.col("value").cast("string")).alias("different"),
        F.round(F.stddev("value"), 6).alias("deviation"),
        F.approx_count_distinct("value").alias("about"),
    ]
    return rows.groupBy("key").agg(F.count("*").alias("n"), *values)


class Run:
    """One query from two slots, asked at its third batch to change."""

    def __init__(self, spark, base, name, strategy=None, at=None, slots=2):
        self.spark, self.base, self.name = spark, base, name
        self.given = base / f"in-{name}"
        self.at = at or {}
        self.query = None
        self.totals = of_all_kinds if name == "aggregates" else totals
        self.struck = False
        self.kept = base / f"out-{name}.jsonl"
        self._feed(range(FED_AT_FIRST))
        reader = spark.readStream.schema("key long, value long").option("maxFilesPerTrigger", 1)
        writer = hg.writeStream(self.totals(reader.parquet(str(self.given)))).slots(start=slots)
        writer = writer.keyGroups(GROUPS).outputMode("update").foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(base / f"ck-{name}"))
        writer = writer.option("headgate.executors", "keep")
        self.writer = writer if strategy is None else writer.migration(strategy)

    def _feed(self, indexes):
        self.given.mkdir(exist_ok=True)
        for index in indexes:
            source = self.base / "input" / f"part-{index}.parquet"
            shutil.copy(source, self.given / f".{source.name}")
            (self.given / f".{source.name}").rename(self.given / source.name)

    def _keep(self, frame, batch):
        # kept in a file: a run may be continued by another process
        with self.kept.open("a") as file:
            for row in frame.collect():
                file.write(json.dumps(list(row)) + "\n")
        due = min((number for number in self.at if number <= batch), default=None)
        if due is not None and self.query is not None:
            self.at.pop(due)(self)

    def events(self, kind):
        lines = self.query.journal.read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["event"] == kind]

    def go(self):
        wait_for_hosts(self.spark)
        self.query = self.writer.start()
        began, deadline = time.monotonic(), time.monotonic() + WAIT_S
        while not self._settled() and time.monotonic() < deadline and self.query.isActive:
            time.sleep(0.1)
        self._feed(range(FED_AT_FIRST, FILES))
        self.query.processAllAvailable()
        self.query.stop()
        answer = {}
        for line in self.kept.read_text().splitlines():
            key, *rest = json.loads(line)
            answer[key] = rest
        expected = self.totals(self.spark.read.parquet(str(self.base / "input"))).collect()
        moves = self.events("migration")
        found = {
            "name": self.name,
            "equal": answer == {r.key: list(r)[1:] for r in expected},
            "strategy": next((e["strategy"] for e in moves if e["strategy"]), ""),
            "what": [e["what"] for e in moves],
            "bytes_moved": sum(e["bytes_moved"] for e in self.events("assignment")),
            "slots": self.query.assignment()["aggregate-0"].slots,
            "suspended_s": sum(e["suspended_s"] for e in moves),
            "waited": max(e["backlog"] for e in self.events("batch")),
            "retries": len(self.events("retry")),
            "hosts": sorted(self.query._work._copy_thread.arena_of),
            "took_s": round(time.monotonic() - began, 1),
            "struck": self.struck,
            "threads": self.query._work._copy_thread._thread is not None,
        }
        print(json.dumps(found), flush=True)

    def _settled(self):
        ends = [e["what"] for e in self.events("migration")].count
        return (
            not self.at
            and ends("finished") + ends("failed") >= 1
            and (not self.query._work.migrations.running and not self.query._work.changes.pending)
        )


def scale(slots):
    return lambda run: run.query.scale(slots)


def wait_for_hosts(spark):
    """Wait until both hosts have an executor: one may have been killed by the run before."""
    deadline = time.monotonic() + WAIT_S
    while len(living_hosts(spark)) < HOSTS and time.monotonic() < deadline:
        time.sleep(0.1)


def while_it_runs(act):
    """Return `act`, put off batch by batch until a migration is under way."""

    def attempt(run):
        if run.query._work.migrations.running:
            run.struck = True
            act(run)
        else:
            run.at[0] = attempt

    return attempt


def kill_an_executor(run):
    driver = f"@127.0.0.1:{run.spark.sparkContext.getConf().get('spark.driver.port')} "
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "CoarseGrainedExecutorBackend" in command and driver in command:
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError("there is no executor to kill")


def main(master: str, base: Path, part: str, names: list[str]) -> None:
    spark = session(master, **{"spark.executor.memory": "600m", "spark.sql.shuffle.partitions": 2})
    if part == "stage":
        strategy, *point = names
        os.environ |= {CRASH: f"migration-{point[0]}"} if point else {}
        asked = {} if (base / "ck-stage").exists() else {ASK_AT: scale(4)}
        if asked:
            write_input(base / "input")
        Run(spark, base, "stage", strategy, asked).go()
    elif part == "first":
        write_input(base / "input")
        for name in names:
            run(spark, base, name)
        os.environ[CRASH] = "migration-released:0"
        Run(spark, base, "driver", "subscale(per_host=1)", {ASK_AT: scale(4)}).go()
    else:
        Run(spark, base, "driver", "subscale(per_host=1)").go()
    spark.stop()


def run(spark, base, name):
    """Run one of `test_migration`'s queries."""
    if name in ("default", "aggregates"):
        Run(spark, base, name, None, {ASK_AT: scale(GROUPS)}).go()
    elif name == "to-one":
        Run(spark, base, name, None, {ASK_AT: scale(1)}, slots=4).go()
    elif name == "bounded":
        bounded = "subscale(early_route=true, deferred=1)"
        Run(spark, base, name, bounded, {ASK_AT: scale(4)}).go()
    elif name == "second-request":
        twice = {ASK_AT: scale(4), ASK_AT + 1: while_it_runs(scale(3))}
        Run(spark, base, name, "subscale(per_host=1)", twice).go()
    elif name == "executor":
        killed = {ASK_AT: scale(4), ASK_AT + 1: while_it_runs(kill_an_executor)}
        Run(spark, base, name, "all-at-once", killed).go()
    else:
        Run(spark, base, name, name, {ASK_AT: scale(4)}).go()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
