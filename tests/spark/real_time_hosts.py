"""Queries in real time on a cluster: a driver process of `test_real_time_hosts`, a line of JSON per run.

``python real_time_hosts.py DIRECTORY NAME ...`` runs each on a cluster of two hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from real_time import Rows, bids, totals, writer

import headgate as hg
from headgate.spark.jvm.hosts import living_hosts
from headgate.spark.realtime.agent import LEASE_S
from headgate_demo.spark.sources import register
from headgate_lab.testing import s3_server
from headgate_lab.testing.cluster import NetworkedCluster, StandaloneCluster
from headgate_lab.testing.s3_server import BUCKET

LIMIT_S = 180.0
HOSTS = 2


class Run:
    """One query, what happens to it, and what came of it."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: StandaloneCluster,
        place: Path | str,
        name: str,
        store: Mapping[str, str],
    ) -> None:
        self.spark, self.cluster, self.name = spark, cluster, name
        self.rng = random.Random(name)
        self.checkpoint, self.store = f"{place}/ck-{name}", store
        self.rows = Rows()
        self.query: Any = None
        self.kept: list[bool] = []
        """Whether feeders went on where slots were killed."""

    def go(self, strategy: str, *acts: Callable[[Run], None]) -> None:
        made = writer(totals(rate=1000)(self.spark), self.rows, self.checkpoint, "update")
        for option, text in self.store.items():
            made = made.option(f"headgate.store.{option}", text)
        self.writer = made.migration(strategy) if strategy else made
        self.query = self.writer.start()
        self.steps(3)
        seen = dict(self.query.processes)
        for act in acts:
            act(self)
            self.steps(3)
        self.query.stop()
        found = hg.verify(
            self.spark,
            totals(rate=1000),
            checkpoint=self.checkpoint,
            output=self.rows.last_by(self.spark, "k"),
            mode="update",
        )
        failed = self.query.exception()
        moves = self.events("migration")
        print(
            json.dumps({
                "name": self.name,
                "verified": found["verified"],
                "rows": found["rows_compared"],
                "failed": None if failed is None else str(failed),
                "came_again": self.rows.came_again,
                "processes": sorted(seen),
                "kept": self.kept,
                "slots": self.query.assignment()["aggregate-0"].slots,
                "what": [one["what"] for one in moves],
                "bytes_moved": sum(one["bytes_moved"] for one in moves),
                "retries": [one["error"] for one in self.events("retry")],
                # a feeder is a Python worker, which Spark keeps
                "left": [
                    name
                    for name, pid in seen.items()
                    if not name.startswith("feeder") and Path(f"/proc/{pid}").exists()
                ],
                "arenas": sorted(str(run) for one in self.cluster.arenas() for run in one.glob("*")),
            }),
            flush=True,
        )  # fmt: skip

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.query.journal.read_text().splitlines())
        return [one for one in lines if one["event"] == kind]

    def wait_until(self, reached: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + LIMIT_S
        while not reached():
            if not self.query.isActive or time.monotonic() > until_s:
                raise AssertionError(f"{self.name}: {what}: {self.query.exception()}")
            time.sleep(0.01)

    def steps(self, more: int) -> None:
        done = len(self.rows.steps)
        self.wait_until(lambda: len(self.rows.steps) >= done + more, f"{more} steps")


def scale(slots: int) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.query.scale(slots)
        run.wait_until(lambda: not run.query._work.changing, f"scale to {slots}")
        assert run.query.assignment()["aggregate-0"].slots == slots

    return act


def kill(kind: str, slots: int) -> Callable[[Run], None]:
    """Kill a process of the query at a drawn moment while key groups move to so many slots."""

    def act(run: Run) -> None:
        moved = len(run.events("migration"))
        run.query.scale(slots)
        moves = run.rng.randrange(2, 6)  # the request is the first
        run.wait_until(lambda: len(run.events("migration")) >= moved + moves, f"{moves} moves")
        names = sorted(name for name in run.query.processes if name.startswith(kind))
        feeder = run.query.processes["feeder 0"]
        os.kill(run.query.processes[run.rng.choice(names)], signal.SIGKILL)
        run.steps(2)
        if kind == "slot":
            run.kept.append(run.query.processes["feeder 0"] == feeder)
        scale(slots)(run)

    return act


def kill_executor(run: Run) -> None:
    os.kill(run.rng.choice(run.cluster.executor_pids()), signal.SIGKILL)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pause_executor(run: Run) -> None:
    """Stop the JVM of an executor through which records pass, and nothing else."""
    feeder = run.query.processes["feeder 0"]
    jvm = parent(parent(feeder))
    assert jvm in run.cluster.executor_pids()
    os.kill(jvm, signal.SIGSTOP)
    run.wait_until(lambda: bool(run.events("retry")), "the loss of a stopped executor")


def stop_and_start(slots: int) -> Callable[[Run], None]:
    """Stop the query while key groups move to so many slots; start it, and wait until they have."""

    def act(run: Run) -> None:
        run.query.scale(slots)
        moved = lambda: "routed" in [one["what"] for one in run.events("migration")]  # noqa: E731
        run.wait_until(moved, "the first key groups are routed")
        run.query.stop()
        shown = hg.inspect(run.checkpoint)["operators"]["aggregate-0"]
        assert shown["migration"]["slots_to"] == slots
        run.query = run.writer.start()
        run.wait_until(lambda: not run.query._work.changing, f"scale to {slots}")

    return act


def lose_and_restart_host(run: Run) -> None:
    """Kill all of a host, and wait until it is there again and slots could be placed on it."""
    host = "127.0.0.12"
    agent = run.query.processes[f"agent {host}"]
    for pid in run.cluster.host_pids(host, agent):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait_until(lambda: bool(run.events("retry")), "the loss of a host")
    run.steps(3)
    assert f"agent {host}" not in run.query.processes
    run.cluster.restart_worker(host)
    run.wait_until(lambda: f"agent {host}" in run.query.processes, "the host comes back")


def stop_host(run: Run) -> None:
    """Stop all that runs on a host for twice as long as it may be silent."""
    host = "127.0.0.12"
    agent = run.query.processes[f"agent {host}"]
    slots = [
        pid for pid in run.cluster.host_pids(host, agent) if os.getsid(pid) == os.getsid(agent)
    ]
    stopped = run.cluster.host_pids(host, agent)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    until_s = time.monotonic() + 2 * LEASE_S
    try:
        run.steps(1)  # those under way may still come out
        run.wait_until(lambda: bool(run.events("retry")), "the loss of a stopped host")
        run.steps(3)
        while time.monotonic() < until_s:
            run.steps(1)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    gone = lambda: not any(Path(f"/proc/{pid}").exists() for pid in slots)  # noqa: E731
    run.wait_until(gone, "slots without a lease end")


def cut_host_off(run: Run) -> None:
    """Lose all packets between a host and the others for half a minute, while key groups move."""
    assert isinstance(run.cluster, NetworkedCluster)
    host = run.cluster.hosts[-1]
    run.query.scale(4)
    run.wait_until(lambda: bool(run.events("migration")), "the migration begins")
    run.cluster.cut_off(host)
    until_s = time.monotonic() + 30.0
    try:
        run.wait_until(lambda: bool(run.events("retry")), "the loss of a host that is cut off")
        while time.monotonic() < until_s:
            run.steps(1)  # the rest goes on
    finally:
        run.cluster.join_again(host)
    run.wait_until(lambda: f"agent {host}" in run.query.processes, "the host comes back")


def part_hosts(run: Run) -> None:
    """Lose all packets between two hosts that the driver reaches, until that is noticed."""
    assert isinstance(run.cluster, NetworkedCluster)
    run.cluster.part()
    try:
        run.wait_until(lambda: bool(run.events("retry")), "hosts that cannot reach each other")
    finally:
        run.cluster.part(parted=False)


def function_raises(run: Run) -> None:
    """Run a second query, in which a Python function below the operator works at first, then raises."""

    @F.udf("long")
    def checked(number: int) -> int:
        if number > 3000:  # those of three seconds
            msg = "too many"
            raise ValueError(msg)
        return number

    bids = run.spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    frame = bids.select(checked("value").alias("v")).groupBy(F.col("v") % 10).count()
    rows = Rows()
    query = writer(frame, rows, f"{run.checkpoint}-function", "update", slots=1).start()
    run.wait_until(lambda: not query.isActive, "the end of a query whose function raises")
    assert "ValueError: too many" in str(query.exception())


def near_pairs(session: Any) -> Any:
    """Bids of nearly one price within a second: a join without a key, so each slot gets every row."""

    def side(name: str) -> Any:
        read = bids(session, rate=200, prob_delayed=0).withWatermark("dateTime", "1 second")
        return read.select(F.col("price").alias(name), F.col("dateTime").alias(f"{name}_at"))

    near = "abs(a - b) < 20 and a_at between b_at - interval 1 second and b_at"
    return side("a").join(side("b"), F.expr(near))


def relayed(run: Run) -> None:
    """Run a second query, whose rows cross to a host once and are passed on there."""
    rows = Rows()
    made = writer(near_pairs(run.spark), rows, f"{run.checkpoint}-pairs", "append", slots=2)
    query = made.start()
    for slots in (4, 3):
        done = len(rows.steps)
        run.wait_until(lambda done=done: len(rows.steps) >= done + 3, "three steps")  # type: ignore[misc]
        query.scale(slots)
        run.wait_until(lambda: not query._work.changing, f"scale to {slots}")
    query.stop()
    found = hg.verify(
        run.spark,
        near_pairs,
        checkpoint=f"{run.checkpoint}-pairs",
        output=rows.frame(run.spark),
        mode="append",
    )
    assert found["verified"], found
    assert found["rows_compared"] > 50


SLOW = "subscale(groups_min=1, per_host=1)"
"""A strategy whose migrations take many epochs."""

RUNS: dict[str, tuple[Any, ...]] = {
    "plain": ("",),
    "subscale": ("subscale", scale(4), function_raises, scale(3)),
    "kills": (SLOW, kill("slot", 4), kill("agent", 3), kill("feeder", 4), kill("slot", 2)),
    "rival": ("all-at-once", scale(4), kill("slot", 3), kill("agent", 4)),
    "again": (SLOW, stop_and_start(4)),
    "executor": ("", kill_executor, scale(3)),
    "pause": ("", pause_executor, scale(3)),
    "host": ("", lose_and_restart_host, scale(4)),
    "cut": (SLOW, cut_host_off, scale(4), scale(3)),
    "parted": ("", part_hosts, scale(3)),
    "stopped": ("", scale(4), stop_host, scale(3)),
    "relayed": ("", relayed),
    "store": (SLOW, stop_and_start(4), kill("slot", 2), kill("agent", 4), kill("feeder", 2)),
}


def main() -> None:
    base = Path(sys.argv[1])
    kind = NetworkedCluster if {"cut", "parted"} & {*sys.argv} else StandaloneCluster
    with kind(base, workers=HOSTS, cores=2) as cluster, s3_server.serving() as store:
        os.environ |= store.environment  # for who looks at a checkpoint; slots have it by options
        spark = hg.session(
            cluster.master,
            "real time on hosts",
            **{
                "spark.executor.memory": "700m",
                "spark.driver.host": cluster.own_host,
                "spark.driver.bindAddress": cluster.own_host,
            },
        )
        register(spark)
        for name in sys.argv[2:]:
            until_s = time.monotonic() + LIMIT_S
            while len(living_hosts(spark)) < HOSTS and time.monotonic() < until_s:
                time.sleep(0.1)
            on_store = name == "store"
            place = f"s3://{BUCKET}" if on_store else base
            Run(spark, cluster, place, name, store.options if on_store else {}).go(*RUNS[name])
        spark.stop()


if __name__ == "__main__":
    main()
