"""Kills processes in the middle of migrations of queries in real time on two hosts, all drawn by lot.

``python real_time_hosts_drawn.py DIRECTORY --kills 200 --seed 1 --limit-s 3000 --json-lines FILE``

As root under ``unshare --net --mount`` it also cuts a host off. The queries run in a child process, which
kills itself where the driver is drawn, and which is started again on the same checkpoint.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from real_time import totals
from real_time_driver import Files
from real_time_hosts import HOSTS, LIMIT_S, Run, kill_executor

import headgate as hg
from headgate.spark.jvm.hosts import living_hosts
from headgate_demo.spark.sources import register
from headgate_lab.testing.cluster import NetworkedCluster, StandaloneCluster

STRATEGIES = (
    "subscale(groups_min=1, per_host=1)",
    "subscale(early_route=true, groups_min=1, per_host=1)",
    "subscale(decoupling=false, groups_min=1, per_host=1)",
    "subscale(scheduling=false, groups_min=1, per_host=1)",
    "subscale(division=false)",
    "fluid",
    "on-demand",
    "all-at-once",
    "stop-restart",
)
"""All strategies that move key groups between hosts; `shared` refuses."""

VICTIMS = {
    "slot": 30,
    "agent": 15,
    "feeder": 10,
    "python worker": 10,
    "executor": 15,
    "driver": 5,
    "driver JVM": 3,
    "host cut off": 4,
}
"""Weight of each kind of victim in the lot. Chosen, not tuned."""

CUT_S = 30.0
HUNG_S = 600.0
"""A child whose state has not changed for so long is killed: more than twice `LIMIT_S`."""

GROUPS = 32
"""Key groups: few, so that migrations of one group after the other end on a busy machine."""

KEYS, RATE = 100, 500
"""Keys, and rows per second, of the query that detects rows out of order."""


class Ordered(StatefulProcessor):
    """Counts the rows of a key that are not the next ones, and those that the watermark has passed.

    The watermark has passed a row if the key has seen that watermark before the row, or if a timer that
    is due with the row fires before it.
    """

    def init(self, handle: Any) -> None:
        self.handle = handle
        columns = "last long, n long, wrong long, passed long, seen_ms long"
        self.seen = handle.getValueState("seen", columns)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        first = key[0] - KEYS, 0, 0, 0, 0
        last, n, wrong, passed, seen_ms = self.seen.get() if self.seen.exists() else first
        for row in rows:
            n += 1
            wrong += row.number != last + KEYS
            passed += row.ms <= seen_ms
            last = row.number
        for ms in list(self.handle.listTimers()):
            self.handle.deleteTimer(ms)
        # times are rounded, so a millisecond more
        self.handle.registerTimer(row.ms + 1000 * KEYS // RATE + 1)
        seen_ms = max(seen_ms, timerValues.getCurrentWatermarkInMs())
        self.seen.update((last, n, wrong, passed, seen_ms))
        yield Row(k=key[0], n=n, last=last, wrong=wrong, passed=passed)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        last, n, wrong, passed, seen_ms = self.seen.get()
        self.seen.update((last, n, wrong, passed + 1, seen_ms))
        yield Row(k=key[0], n=n, last=last, wrong=wrong, passed=passed + 1)


def _orders(session: Any) -> DataFrame:
    """Return numbered rows in the order of their times."""
    read = session.readStream.format("stock_exchange").option("rate", str(RATE)).load()
    ms = F.expr("(unix_micros(scheduled) + 999) div 1000").alias("ms")
    key = (F.col("number") % KEYS).alias("k")
    rows: DataFrame = read.withWatermark("scheduled", "0 seconds")
    return rows.select("scheduled", ms, "number", key)


def ordered(session: Any) -> DataFrame:
    """Return the query that detects rows out of order, missing, doubled or late."""
    schema = "k bigint, n bigint, last bigint, wrong bigint, passed bigint"
    grouped = _orders(session).groupBy("k")
    return grouped.transformWithState(Ordered(), schema, "Update", "EventTime")


def in_order(session: Any) -> DataFrame:
    """Return the answer of `ordered` if each key gets each of its rows once, in order."""
    n, last = F.count("*").alias("n"), F.max("number").alias("last")
    none = F.lit(0).cast("bigint")
    return _orders(session).groupBy("k").agg(n, last, none.alias("wrong"), none.alias("passed"))


QUERIES: dict[str, tuple[Callable[[Any], DataFrame], Callable[[Any], DataFrame], str]] = {
    "totals": (totals(rate=1000), totals(rate=1000), "k bigint, n bigint, p bigint"),
    "ordered": (ordered, in_order, "k bigint, n bigint, last bigint, wrong bigint, passed bigint"),
}
"""By name: the query, its answer, and the columns of both."""


class Output(Files):
    """Writes the rows of each step into a file, and counts steps that come again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.steps = {int(file.stem) for file in directory.glob("*.json")}
        self.came_again = 0

    def __call__(self, frame: DataFrame, step: int) -> None:
        self.came_again += step in self.steps
        super().__call__(frame, step)
        self.steps.add(step)


class State:
    """Holds in a file how far the program is; it outlives the process that runs the queries."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.facts: dict[str, Any] = {"query": 0, "total": 0, "run": None}
        if file.exists():
            self.facts = json.loads(file.read_text())

    def write(self) -> None:
        made = self.file.with_suffix(".tmp")
        made.write_text(json.dumps(self.facts))
        made.rename(self.file)


class Drawn(Run):
    """Runs one query with drawn changes of slots and a drawn kill in each; goes on where it was."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: StandaloneCluster,
        state: State,
        given: argparse.Namespace,
    ) -> None:
        work, seed = given.directory, given.seed
        self.state, self.seed, self.number = state, seed, state.facts["query"]
        left_out = {*given.without}
        if not isinstance(cluster, NetworkedCluster):
            left_out.add("host cut off")
        self.weights = {one: weight for one, weight in VICTIMS.items() if one not in left_out}
        super().__init__(spark, cluster, work, f"q{self.number}", {})
        rng = random.Random(f"{seed} {self.number}")
        self.strategy, self.kind = rng.choice(STRATEGIES), rng.choice(sorted(QUERIES))
        self.changes = rng.randint(6, 8)
        self.build, self.answer, self.schema = QUERIES[self.kind]
        self.directory = work / f"out-{self.name}"
        self.rows: Any = Output(self.directory)
        if state.facts["run"] is None:
            state.facts["run"] = {
                "name": self.name, "strategy": self.strategy, "query": self.kind, "change": 0,
                "slots": 2, "kills": [], "migration_of_killed_driver": [], "came_again": 0,
                "began": time.time(),
            }  # fmt: skip
            state.write()
        self.facts = state.facts["run"]
        self._read = 0
        self._moves: list[str] = []

    @property
    def operator(self) -> str:
        """Name of the only operator."""
        (name,) = self.query.assignment()
        return str(name)

    def start(self) -> None:
        """Start the query, and after the death of a driver note whether the migration goes on."""
        made = hg.writeStream(self.build(self.spark)).foreachBatch(self.rows).outputMode("update")
        made = made.option("checkpointLocation", self.checkpoint).keyGroups(GROUPS).slots(start=2)
        again = Path(self.checkpoint).exists()
        shown = hg.inspect(self.checkpoint)["operators"] if again else {}
        moving = [one["migration"]["slots_to"] for one in shown.values() if one.get("migration")]
        self.query = made.migration(self.strategy).trigger(realTime="5 minutes").start()
        if again:
            reached = [one["slots"] for one in shown.values()] == [self.facts["slots"]]
            how = "went on" if moving else "had ended" if reached else "no manifest had it"
            self.facts["migration_of_killed_driver"].append(how)
        self.steps(3)
        if again:
            self.settle(ask=not moving)

    def settle(self, *, ask: bool) -> None:
        """Wait until the slots are those that were asked for last, on both hosts."""
        slots = self.facts["slots"]
        if ask:
            self.query.scale(slots)
        self.wait_until(lambda: not self.query._work.changing, f"scale to {slots}")
        reached = self.query.assignment()[self.operator].slots
        assert reached == slots, f"{reached} slots, not {slots}"
        agents = [f"agent {host}" for host in self.cluster.hosts]
        self.wait_until(lambda: {*agents} <= {*self.query.processes}, "an agent on each host")
        self.steps(3)

    def moves(self) -> list[str]:
        """Return the events of migrations so far; reads only what the journal has got since."""
        with self.query.journal.open("rb") as journal:
            journal.seek(self._read)
            text = journal.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = (line for line in whole.splitlines() if b'"event":"migration"' in line)
        self._moves += [json.loads(line)["what"] for line in lines]
        return self._moves

    def change(self) -> None:
        """Change the slots, and kill a drawn process at a drawn moment meanwhile."""
        facts = self.facts
        rng = random.Random(f"{self.seed} {self.number} {facts['change']}")
        facts["change"] += 1
        facts["slots"] = rng.choice([n for n in (2, 3, 4) if n != facts["slots"]])
        (victim,) = rng.choices(list(self.weights), list(self.weights.values()))
        before = len(self.moves())
        most = before // max(self._moves.count("finished"), 1) or 10  # as many as others had
        after = before + rng.randint(1, most)
        self.query.scale(facts["slots"])
        self.wait_until(
            lambda: len(self.moves()) >= after or "finished" in self._moves[before:],
            f"{after - before} events of a migration",
        )
        time.sleep(rng.random() * 0.05)
        self.moves()
        facts["kills"].append([victim, self._moves[-1]])
        self.state.facts["total"] += 1
        self.state.write()
        self.kill(victim, rng)
        self.steps(2)
        self.settle(ask=False)

    def kill(self, victim: str, rng: random.Random) -> None:
        """Kill a process of a kind, or cut a host off."""
        if victim == "host cut off":
            self.cut()
        elif victim == "driver":
            self.end_driver(jvm=rng.random() < 0.5)
        elif victim == "driver JVM":
            jvm_of(self.spark).kill()
            until_s = time.monotonic() + 60.0
            while self.query.isActive and time.monotonic() < until_s:
                time.sleep(0.1)
            if self.query.isActive:
                self.facts["kills"][-1].append("the query did not end without its JVM")
            self.end_driver(jvm=False)
        elif victim == "executor":
            self.rng = rng
            kill_executor(self)
        elif victim == "python worker":
            self.signal(rng.choice(self.cluster.python_worker_pids()))
        else:
            processes = self.query.processes
            names = sorted(name for name in processes if name.startswith(victim))
            if names:  # a loss may just have been noticed
                self.signal(processes[rng.choice(names)])

    def signal(self, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            self.facts["kills"][-1].append("had ended")

    def end_driver(self, *, jvm: bool) -> None:
        """Kill this process; its JVM before, or it ends by itself when its standard input ends."""
        self.facts["came_again"] += self.rows.came_again
        self.state.write()
        if jvm:
            jvm_of(self.spark).kill()
        os.kill(os.getpid(), signal.SIGKILL)

    def cut(self) -> None:
        """Lose all packets between a host and the others for half a minute."""
        assert isinstance(self.cluster, NetworkedCluster)
        host = self.cluster.hosts[-1]
        self.cluster.cut_off(host)
        until_s = time.monotonic() + CUT_S
        try:
            self.wait_until(lambda: time.monotonic() > until_s, "half a minute")
        finally:
            self.cluster.join_again(host)

    def all(self) -> None:
        """Run the query to its end, and compare its output with Spark's batch answer."""
        self.start()
        while self.facts["change"] < self.changes:
            self.change()
        self.query.stop()
        self.facts["came_again"] += self.rows.came_again
        output = self.spark.createDataFrame(self.rows.last(), self.schema)
        found = hg.verify(
            self.spark, self.build, checkpoint=self.checkpoint, output=output, mode="update",
            reference=self.answer, progress=lambda _: None,
        )  # fmt: skip
        error = self.query.exception()
        last = self.rows.last()
        self.facts |= {
            "verified": found["verified"], "rows": found["rows_compared"],
            "records": sum(row["n"] for row in last),
            "missing": found["missing"], "extra": found["extra"],
            "differing": found["differing"],
            "violations": sum(row.get("wrong", 0) for row in last),
            "passed": sum(row.get("passed", 0) for row in last),
            "late": found["dropped"]["late"], "steps_differ": self.rows.differing,
            "failed": None if error is None else str(error),
            "migrations": Counter(self.moves()), "retries": len(self.events("retry")),
        }  # fmt: skip


def jvm_of(spark: SparkSession) -> Any:
    """Return the process of a session's JVM."""
    return spark.sparkContext._gateway.proc  # type: ignore[union-attr]


def is_fault(run: Mapping[str, Any]) -> bool:
    """Return whether anything is wrong with a query."""
    faults = ("violations", "passed", "late", "steps_differ", "failed")
    return not run.get("verified") or any(run.get(name) for name in faults)


class Program:
    """Runs query after query in child processes, and prints a line of JSON for each."""

    def __init__(self, cluster: StandaloneCluster, given: argparse.Namespace) -> None:
        self.cluster, self.given = cluster, given
        self.until = time.time() + given.limit_s
        self.file = given.directory / "state.json"

    def over(self) -> bool:
        """Return whether no further query begins."""
        kills: int = State(self.file).facts["total"]
        return bool(kills >= self.given.kills) or time.time() > self.until

    def run(self) -> list[dict[str, Any]]:
        """Run until so many processes are killed or the time is up; return the lines."""
        fork = multiprocessing.get_context("fork")
        while not self.over() or State(self.file).facts["run"] is not None:
            child = fork.Process(target=self.drive)
            child.start()
            while child.is_alive():
                child.join(1.0)
                seen = self.file.stat().st_mtime if self.file.exists() else time.time()
                if time.time() - seen > HUNG_S:
                    child.kill()
                    child.join()
                    self.end_run(State(self.file), f"no progress in {HUNG_S:g} s")
        return [json.loads(line) for line in self.given.json_lines.read_text().splitlines()]

    def drive(self) -> None:
        """Run queries in this process; end it with a session that may not be sound any more."""
        cluster, state = self.cluster, State(self.file)
        state.write()
        spark = hg.session(
            cluster.master,
            "drawn kills",
            **{
                "spark.executor.memory": "700m",
                "spark.driver.host": cluster.own_host,
                "spark.driver.bindAddress": cluster.own_host,
            },
        )
        spark.sparkContext.setLogLevel("OFF")
        register(spark)
        while state.facts["run"] is not None or not self.over():
            until_s = time.monotonic() + LIMIT_S
            while len(living_hosts(spark)) < HOSTS and time.monotonic() < until_s:
                time.sleep(0.1)
            try:
                Drawn(spark, cluster, state, self.given).all()
            except Exception:  # a finding: the next query gets another process
                self.end_run(state, traceback.format_exc())
                jvm_of(spark).kill()
                os._exit(1)
            self.end_run(state, None)
        spark.stop()

    def end_run(self, state: State, error: str | None) -> None:
        """Write the line of a query; keep its checkpoint and output if anything is wrong."""
        run = state.facts["run"] or {"name": "start"}
        if error is not None:
            run["failed"] = error
        run["seconds"] = round(time.time() - run.pop("began", time.time()), 1)
        name, work = run["name"], self.given.directory
        if is_fault(run):
            for kind in ("ck", "out"):
                if (work / f"{kind}-{name}").exists():
                    kept = self.given.findings / name / kind
                    shutil.copytree(work / f"{kind}-{name}", kept, dirs_exist_ok=True)
        for kind in ("ck", "out"):
            shutil.rmtree(work / f"{kind}-{name}", ignore_errors=True)
        with self.given.json_lines.open("a") as lines:
            print(json.dumps(run), file=lines)
        print(json.dumps(run), flush=True)
        state.facts["query"] += 1
        state.facts["run"] = None
        state.write()


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many of what was killed where, and what came of it."""
    kills = [(*kill, run["strategy"]) for run in runs for kill in run.get("kills", ())]
    return {
        "queries": len(runs), "kills": len(kills),
        "by_query": Counter(run.get("query", "") for run in runs),
        "by_victim": Counter(kill[0] for kill in kills),
        "by_phase": Counter(kill[1] for kill in kills),
        "by_strategy": Counter(kill[-1] for kill in kills),
        "records": sum(run.get("records", 0) for run in runs),
        "migration_of_killed_driver": Counter(
            one for run in runs for one in run.get("migration_of_killed_driver", ())
        ),
        "wrong": sum(run.get("verified") is False for run in runs),
        "missing": sum(run.get("missing", 0) for run in runs),
        "doubled": sum(len(run.get("steps_differ", ())) for run in runs),
        "violations": sum(run.get("violations", 0) for run in runs),
        "late": sum(run.get("late", 0) + run.get("passed", 0) for run in runs),
        "failed": sum(run.get("failed") is not None for run in runs),
        "retries": sum(run.get("retries", 0) for run in runs),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=3000.0)
    parser.add_argument("--without", nargs="*", default=[], choices=VICTIMS, help="victims")
    parser.add_argument("--json-lines", type=Path, required=True)
    parser.add_argument("--findings", type=Path, help="directory for checkpoints with faults")
    given = parser.parse_args()
    given.findings = given.findings or given.directory / "findings"
    given.directory.mkdir(parents=True, exist_ok=True)
    given.json_lines.write_text("")
    # its own network: only `lo`, as `unshare --net` makes it
    alone = [name for _, name in socket.if_nameindex()] == ["lo"]
    networked = os.getuid() == 0 and shutil.which("ip") and alone
    if not networked:
        print("no host is cut off: that needs root, `ip`, and `unshare --net --mount`", flush=True)
    kind = NetworkedCluster if networked else StandaloneCluster
    with kind(given.directory, workers=HOSTS, cores=2) as cluster:
        runs = Program(cluster, given).run()
    print(json.dumps(summary(runs)), flush=True)


if __name__ == "__main__":
    main()
