"""Kills a driver with several jobs into tables again and again, headgate's and plain Spark's.

Each job counts the same numbers in windows, and has its own checkpoint and table. headgate's jobs change
their slots all the time. In each life of the driver all Python workers are killed once, and then the
driver: at a point between two parts of a step, at a random moment, or while it starts. At the end each
table must have each closed window once. The answer is computed from the number of input rows that a job
has read, since a number is its position in the input.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import Manifest
from headgate.core.errors import EngineError, HeadgateError, nearest
from headgate.spark.api.verify import end_offsets
from headgate.spark.cluster.session import session
from headgate.spark.job.faults import CRASH
from headgate_demo.spark.jars import jars
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
    terminate_as_exit,
)
from headgate_lab.bench.kill_sinks import PLAIN, SINKS, TABLES, KillSink, server_of
from headgate_lab.bench.lives import end, last_line, python_workers
from headgate_lab.bench.table_answer import Numbers
from headgate_lab.testing import connectors

_POLL_S = 0.05
_END_S = 400.0
"""Time limit of the last life and the comparison, in seconds. Chosen, not tuned."""

_GIVE_UP = 3
"""The run fails after this many consecutive lives that ended by themselves."""

_SLOTS_MAX = 5
_SCALE_EVERY_S = 0.7
_EVERY = "1 second"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_BEGUN = "begun "
_AT_POINTS = (
    "after-sink",
    "after-manifest",
    "after-sink",
    "before-manifest",
    "after-sink",
    "after-intent",
)
AT_RANDOM, STARTING = "at random", "while starting"
WORKERS = "all workers"

COMPUTING = "in a step"
BEFORE_TABLE = "manifest, not in table"
BEFORE_COMMIT = "in table, not in Spark's log"
BETWEEN = "between steps"
CHANGING = "with a change of slots"


@dataclass(frozen=True)
class TableKillParameters:
    """Holds the parameters of `run`."""

    count: int = 10
    """Kills of the driver; >= 1."""

    workers: bool = True
    """Whether all Python workers are killed once in each life in which half of the jobs make progress."""

    seed: int = 0
    """Seed of the end of each life; >= 0."""

    jobs: tuple[str, ...] = TABLES
    """Sinks of headgate's jobs, and ``spark-...`` for plain Spark's."""

    rows: int = 1_000
    """Numbers per batch; > 0."""

    keys: int = 50
    """Distinct keys; > 0."""

    moment_s_max: float = 3.0
    """Python workers are killed up to this long after half of the jobs have made progress, in seconds,
    and the driver at random up to twice as long after that; >= 0."""

    life_s_max: float = 240.0
    """Time limit of a life, in seconds; > 0."""

    limit_s: float = 3_600.0
    """Time after which no further kill begins, in seconds; > 0. The result has the number of kills."""

    def __post_init__(self) -> None:
        require(
            self.count >= 1, f"count={self.count} of table-kill is out of range; use 1 or more."
        )
        require(self.rows > 0, f"rows={self.rows} of table-kill is out of range; use 1 or more.")
        require(self.keys > 0, f"keys={self.keys} of table-kill is out of range; use 1 or more.")
        known = [*TABLES, *PLAIN]
        for job in self.jobs:
            hint = nearest(job, known) or f"; use {', '.join(known)}."
            require(job in known, f'job "{job}" of table-kill is unknown{hint}')


def run(**given: Any) -> dict[str, Any]:
    """Kill the driver of all jobs `count` times, let the jobs go on, and check their tables.

    Parameters
    ----------
    **given
        Fields of `TableKillParameters`.

    Returns
    -------
    dict
        ``kills`` by kind; ``jobs``, each with ``kills`` (of its driver, once the job had begun),
        ``windows`` (rows that the table must have), ``lost``, ``doubled`` (rows that are there more than
        once, or were merged more than once), ``wrong``, ``steps``, ``changes`` (of slots) and ``caught``
        (kills by the state in which they hit this job); ``ended`` (last line of each life that ended by
        itself), ``start_s`` (median from a start to the first steps of half of the jobs),
        ``duration_s``, ``parameters``, ``machine``.
    """
    chosen = parameters(TableKillParameters, given)
    began = time.monotonic()
    made = tempfile.TemporaryDirectory(prefix="headgate-table-kill-", ignore_cleanup_errors=True)
    database = "merge-postgres"
    wanted = server_of(database if database in chosen.jobs else "", _table(database))
    with terminate_as_exit(), made as work, wanted:
        result = _Run(chosen, Path(work)).result()
    result["duration_s"] = round(time.monotonic() - began, 1)
    return result | {"parameters": asdict(chosen), "machine": machine()}


def _table(job: str) -> str:
    return "kills_" + job.replace("-", "_")


def _sink(job: str) -> KillSink:
    made: KillSink = {**SINKS, **PLAIN}[job](_table(job))
    return made


def _is_plain(job: str) -> bool:
    return job in PLAIN


class _Run:
    """Starts and kills the driver, life after life."""

    def __init__(self, chosen: TableKillParameters, work: Path) -> None:
        self._chosen = chosen
        self._work = work
        self._random = random.Random(chosen.seed)
        self._kills: Counter[str] = Counter()
        self._caught: dict[str, Counter[str]] = {job: Counter() for job in chosen.jobs}
        self._ended: list[str] = []
        self._start_s: list[float] = []
        self._ours = [job for job in chosen.jobs if not _is_plain(job)]
        self._points = 0
        self._begun: Counter[str] = Counter()
        self._settings = _settings(chosen, work)

    def result(self) -> dict[str, Any]:
        until = time.monotonic() + self._chosen.limit_s
        in_a_row = 0
        for number in range(1, self._chosen.count + 1):
            if time.monotonic() > until:
                break
            ended = len(self._ended)
            what = self._live(number)
            self._look()
            in_a_row = in_a_row + 1 if len(self._ended) > ended else 0
            if in_a_row == _GIVE_UP:
                msg = f"the driver ended of itself {_GIVE_UP} times in a row: {self._ended[-1]}."
                raise EngineError(msg)
            progress(f"kill {number} of {self._chosen.count}: {what}; steps {self._steps()}")
        progress("last life: go on once more and compare")
        found = child(self._command("finish"), spark_env(), _END_S)
        jobs = found["jobs"]
        for job, counts in self._caught.items():
            jobs[job] |= {"kills": self._begun[job], "caught": dict(counts)}
        start_s = sorted(self._start_s)
        return {
            "kills": dict(self._kills),
            "jobs": jobs,
            "ended": self._ended,
            "start_s": round(start_s[len(start_s) // 2], 1) if start_s else None,
        }

    def _command(self, what: str) -> list[str]:
        request = {
            "directory": str(self._work),
            "parameters": asdict(self._chosen),
            "settings": self._settings,
        }
        name = "headgate_lab.bench.table_kill"
        return [sys.executable, "-m", name, what, json.dumps(request)]

    def _live(self, number: int) -> str:
        """Start a driver and kill it; return a description of the kill."""
        chance = self._random
        kind = STARTING if number % 10 == 7 else AT_RANDOM if number % 2 else "at a point"  # noqa: PLR2004
        if kind == "at a point" and not self._ours:
            kind = AT_RANDOM
        whom = chance.choice(("driver", "group"))
        env = spark_env()
        if kind == "at a point":
            point = _AT_POINTS[self._points % len(_AT_POINTS)]
            # jobs have different steps: the first job that reaches this step kills the driver
            step = self._steps()[chance.choice(self._ours)] + chance.randint(1, 2)
            self._points += 1
            kind = point
            env[CRASH] = f"{point}:{step}:{whom}"
        self._kills[kind] += 1
        before, began = self._steps(), time.monotonic()
        with open(self._work / "said", "wb") as said:
            process = subprocess.Popen(
                self._command("live"), env=env, stdout=said, stderr=said, start_new_session=True
            )
        try:
            self._await(process, kind, before, began)
            if process.poll() is None:
                end(process, whom)
            if whom == "driver":
                time.sleep(chance.uniform(0.0, 1.0))  # its JVM goes on for a while
        finally:
            end(process, "group")
        return f"{kind}, {whom}"

    def _await(
        self,
        process: subprocess.Popen[bytes],
        kind: str,
        before: dict[str, int],
        began: float,
    ) -> None:
        """Wait for the moment of the kill, or until the driver has died at its point."""
        until = began + self._chosen.life_s_max
        moment = self._random.uniform(0.0, self._chosen.moment_s_max)
        starting_s = self._random.uniform(2.0, 20.0)
        gone_on = False
        while time.monotonic() < until:
            if process.poll() is not None:
                if process.returncode != -signal.SIGKILL:
                    self._ended.append(last_line(self._work / "said"))
                return
            gone = sum(now > before[job] for job, now in self._steps().items())
            if not gone_on and 2 * gone >= len(before):
                gone_on = True
                self._start_s.append(time.monotonic() - began)
                time.sleep(moment)
                if self._chosen.workers and process.poll() is None:
                    self._kill_workers(process)
                if kind == AT_RANDOM:
                    time.sleep(self._random.uniform(0.0, 2 * self._chosen.moment_s_max))
                    return
            if kind == STARTING and time.monotonic() > began + starting_s:
                return
            time.sleep(_POLL_S)
        self._ended.append(f"nothing went on: {last_line(self._work / 'said')}")

    def _kill_workers(self, process: subprocess.Popen[bytes]) -> None:
        found = python_workers(process.pid)
        for worker in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self._kills[WORKERS] += bool(found)

    def _steps(self) -> dict[str, int]:
        """Return the newest committed step of each job, -1 for none."""
        return {job: _newest_step(self._work, job) for job in self._chosen.jobs}

    def _look(self) -> None:
        """Count the state in which the kill hit each job that had begun."""
        said = (self._work / "said").read_text(errors="replace")
        for job, counts in self._caught.items():
            if f"{_BEGUN}{job}\n" not in said:
                continue
            self._begun[job] += 1
            for met in _met(self._work, job):
                counts[met] += 1


def _newest_step(work: Path, job: str) -> int:
    if _is_plain(job):
        return _committed(work / job)
    store = Checkpoint(work / job)
    return max(store.steps(), default=-1) if store.files.is_there() else -1


def _committed(checkpoint: Path) -> int:
    """Return the newest batch that Spark has committed, -1 for none."""
    names = (path.name for path in (checkpoint / "commits").glob("[0-9]*"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _met(work: Path, job: str) -> list[str]:
    """Return the state in which a kill has hit a job."""
    has = _sink(job).newest(work)
    committed = _committed(work / job)
    if _is_plain(job):
        planned = (path.name for path in (work / job / "offsets").glob("[0-9]*"))
        newest = max((int(name) for name in planned if name.isdecimal()), default=-1)
        if newest <= committed:
            return [BETWEEN]
        return [BEFORE_COMMIT if has >= newest else COMPUTING]
    store = Checkpoint(work / job)
    latest: Manifest | None = store.latest() if store.files.is_there() else None
    step = -1 if latest is None else latest.step
    intent = store.read_intent(step + 1) if store.files.is_there() else None
    epoch = 0 if latest is None else latest.epoch
    changing = [CHANGING] if intent is not None and intent.get("epoch", epoch) != epoch else []
    if latest is not None and committed < latest.spark_batch and intent is None:
        rows = bool(latest.engine["outputs"])
        missing = rows and has < latest.engine["sink_batch"]
        return [BEFORE_TABLE if missing else BEFORE_COMMIT]
    return [COMPUTING if intent is not None else BETWEEN, *changing]


def _settings(chosen: TableKillParameters, work: Path) -> dict[str, str]:
    """Return the sessions' settings; for a fast start jars come as files, and Spark compiles no code."""
    kinds = [kind for kind in ("delta", "iceberg") if any(kind in job for job in chosen.jobs)]
    kinds.append("postgres")
    made = connectors.settings(kinds, work / "warehouse")
    without = made.pop("spark.jars.excludes").split(",")
    found = jars(made.pop("spark.jars.packages").split(","), without)
    return made | {
        "spark.jars": ",".join(map(str, found)),
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.local.dir": str(work / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }


# --- in the child --------------------------------------------------------------------------------


def _start(spark: SparkSession, chosen: TableKillParameters, work: Path, job: str) -> Any:
    frame = Numbers(chosen.rows, chosen.keys).windows(spark)
    if _is_plain(job):
        writer = frame.writeStream
    else:
        # Late and by name: the package's front imports the engine, of which this is a part.
        hg = importlib.import_module("headgate")
        writer = hg.writeStream(frame).slots(start=2).keyGroups(16)
    writer = writer.queryName(job).option("checkpointLocation", str(work / job))
    return writer.outputMode("append")


def _live(spark: SparkSession, chosen: TableKillParameters, work: Path) -> None:
    """Run all jobs until killed."""
    queries: dict[str, Any] = {}
    threading.Thread(target=_change_slots, args=(queries,), daemon=True).start()
    # in random order, so that no job is always the last one to begin
    for job in random.sample(chosen.jobs, len(chosen.jobs)):
        sink = _sink(job)
        sink.prepare(spark)
        writer = _start(spark, chosen, work, job).trigger(processingTime=_EVERY)
        queries[job] = sink.start(writer, work)
        print(f"{_BEGUN}{job}", flush=True)
    while True:
        time.sleep(_SCALE_EVERY_S)
        for job, query in queries.items():
            if not query.isActive:
                query.awaitTermination()
                msg = f"the job into {job} has ended of itself."
                raise EngineError(msg)


def _change_slots(queries: Mapping[str, Any]) -> None:
    """Give each query of headgate a random number of slots, again and again."""
    chance = random.Random()
    while True:
        time.sleep(_SCALE_EVERY_S)
        for job, query in list(queries.items()):
            if not _is_plain(job):
                with contextlib.suppress(HeadgateError):  # it has just ended
                    query.scale(1 + chance.randrange(_SLOTS_MAX))


def _finish(spark: SparkSession, chosen: TableKillParameters, work: Path) -> dict[str, Any]:
    """Serve the available batches, and compare the tables."""
    queries = []
    for job in chosen.jobs:
        sink = _sink(job)
        sink.prepare(spark)
        writer = _start(spark, chosen, work, job).trigger(availableNow=True)
        queries.append(sink.start(writer, work))
    for query in queries:
        query.awaitTermination()
    return {"jobs": {job: _compared(spark, chosen, work, job) for job in chosen.jobs}}


def _compared(
    spark: SparkSession, chosen: TableKillParameters, work: Path, job: str
) -> dict[str, int]:
    """Return the numbers of lost, duplicate and wrong rows of a table."""
    sink = _sink(job)
    (offset, *_) = end_offsets(work / job, _committed(work / job))
    assert offset is not None
    numbers = Numbers(chosen.rows, chosen.keys)
    seen = numbers.compared(spark, json.loads(offset)["offset"], sink.read(spark, work))
    seen["doubled"] += sink.doubled(spark, work)
    seen["steps"] = _newest_step(work, job) + 1
    seen["changes"] = 0 if _is_plain(job) else _changes(work / job)
    progress(f"{job}: {seen}")
    return seen


def _changes(checkpoint: Path) -> int:
    lines = (Checkpoint(checkpoint).root / "journal.jsonl").read_text().splitlines()
    events: Iterator[dict[str, Any]] = (json.loads(line) for line in lines if line.endswith("}"))
    return sum(event.get("event") == "assignment" for event in events)


def _child(what: str, request: dict[str, Any]) -> None:
    given = request["parameters"]
    chosen = TableKillParameters(**{**given, "jobs": tuple(given["jobs"])})
    work = Path(request["directory"])
    spark = session(master="local[2]", name="bench-table-kill", **request["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    if what == "finish":
        print(json.dumps(_finish(spark, chosen, work)))
    else:
        _live(spark, chosen, work)
    spark.stop()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A life of the killed jobs.")
    arguments.add_argument("what", choices=["live", "finish"])
    arguments.add_argument("request")
    told = arguments.parse_args()
    _child(told.what, json.loads(told.request))
