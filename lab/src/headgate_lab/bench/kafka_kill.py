"""Kills two jobs from Kafka to Kafka, one that writes exactly once and one that writes as Spark does.

Both count the same records in the same driver, and change their slots meanwhile. Kills hit the driver (at
random, alone or with its JVM, or exactly between sink and Spark's commit), its JVM alone, Python workers,
executors, and the broker, which starts again on its data. At the end a ``read_committed`` reader counts
how often each window is in their topics.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import EngineError
from headgate.journal import AssignmentChange, Batch, Event, read
from headgate.spark.cluster.session import session
from headgate.spark.job.faults import CRASH
from headgate.spark.settings.kafka import SERVERS, confluent
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.clicks import connector
from headgate_demo.spark.topics import committed, make_topic
from headgate_lab.bench.common import (
    machine,
    parameters,
    progress,
    require,
    spark_env,
    terminate_as_exit,
)
from headgate_lab.bench.lives import driver_jvms, end, is_of_jobs, last_line, python_workers

DRIVER, JVM, WORKER, EXECUTOR = "driver", "jvm", "worker", "executor"
BROKER, PAUSE = "broker", "pause"
VICTIMS = (DRIVER, JVM, WORKER, EXECUTOR, BROKER, PAUSE)
"""Victims of kills; a pause suspends a process for a while, and kills none."""

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
_OUT = {EXACTLY_ONCE: "once", AT_LEAST_ONCE: "plain"}
"""Topics of the two jobs, by their delivery."""

_IN = "in"
_PARTITIONS = 6
_KEYS = 20
_EVENT_MS = 10
"""Event time between two records, in ms: windows of 10 s have 1,000 records."""

_BASE_S = 1_700_000_000
_READY = "ready"
_PROCESSES = "processes"
_POLL_S = 0.02
_ENDS_S = 60.0
_SLOTS_MAX = 4
_EXACTLY = 0.7
"""Share of kills at a point of a step, among kills of a driver that must be started anyway. Chosen."""


@dataclass(frozen=True)
class KafkaKillParameters:
    """Holds the parameters of `run`."""

    count: int = 10
    """Kills; >= 1."""

    brokers: float = 0.3
    """Share of kills that hit the broker; 0 to 1."""

    workers: float = 0.2
    """Share of kills that hit a Python worker; 0 to 1. The sum of all shares is at most 1."""

    jvms: float = 0.0
    """Share of kills that hit only the driver's JVM; 0 to 1."""

    executors: float = 0.0
    """Share of kills that hit an executor; 0 to 1. If above 0, the jobs run on a cluster of two hosts,
    and kills of workers may hit feeders, slots and agents."""

    pauses: float = 0.0
    """Share of kills that are pauses of a driver, JVM, worker or executor; 0 to 1."""

    pause_s: float = 60.0
    """Length of a pause, in seconds; > 0."""

    seed: int = 0
    """Seed of victims and moments; >= 0."""

    rate: int = 2_000
    """Records per second into the topic; > 0."""

    moment_s_max: float = 2.0
    """Longest time from the progress of both jobs after a kill to the next kill, in seconds; >= 0."""

    limit_s: float = 3_600.0
    """Time after which no further kill begins, in seconds; > 0. The result has the number of kills."""

    life_s_max: float = 300.0
    """A job without a step for this many seconds has failed; > 0."""

    watermark_s: int = 600
    """Watermark delay, in seconds; > 0. At 2,000 records a second, 10 ms of event time apart, 40 s of
    event time are two seconds of wall-clock time. After a restart of the broker partitions may be
    further apart; with a short delay their records are late, as in plain Spark."""

    jobs: str = "exactly-once,at-least-once"
    """Jobs that run, separated by commas; a single one costs half as much."""

    real_time: bool = False
    """Whether jobs run in real time; then the job at least once releases its output early."""

    def __post_init__(self) -> None:
        require(
            self.count >= 1, f"count={self.count} of kafka-kill is out of range; use 1 or more."
        )
        fits = set(self.jobs.split(",")) <= set(_OUT)
        require(fits, f'jobs="{self.jobs}" of kafka-kill is not known; use {", ".join(_OUT)}.')
        shares = self.shares.values()
        said = ", ".join(f"{victim}s={share:g}" for victim, share in self.shares.items())
        require(
            # shares such as 0.1 have no exact sum
            min(shares) >= 0 and sum(shares) < 1 + 1e-9,
            f"{said} of kafka-kill are no shares of 1.",
        )
        require(
            self.watermark_s > 0,
            f"watermark_s={self.watermark_s} of kafka-kill is out of range; use 1 or more.",
        )
        require(self.rate > 0, f"rate={self.rate} of kafka-kill is out of range; use 1 or more.")

    @property
    def shares(self) -> dict[str, float]:
        """Share of kills by victim; the other kills hit the driver."""
        return {
            BROKER: self.brokers,
            WORKER: self.workers,
            JVM: self.jvms,
            EXECUTOR: self.executors,
            PAUSE: self.pauses,
        }


def run(**given: Any) -> dict[str, Any]:
    """Kill the two jobs `count` times, let them finish, and check their topics.

    Parameters
    ----------
    **given
        Fields of `KafkaKillParameters`.

    Returns
    -------
    dict
        ``kills`` by victim, ``windows`` (number of expected windows), ``exactly-once`` and
        ``at-least-once`` (each with ``lost``, ``doubled`` and ``wrong``: windows that are missing, that
        are there more than once, and that have a wrong count; ``late``: records that were too late for
        their window by the journal, so that windows are lost or wrong without a fault; ``short``: records
        that the first counts of all windows lack), ``silence_s`` (by victim: median and maximum of the
        longest times without an output of the first job between two kills), ``changes`` (of slots),
        ``ended`` (last line of each life that ended by itself), ``duration_s``, ``parameters``,
        ``machine``.
    """
    chosen = parameters(KafkaKillParameters, given)
    began = time.monotonic()
    with (
        terminate_as_exit(),
        tempfile.TemporaryDirectory(
            prefix="headgate-kafka-kill-", ignore_cleanup_errors=True
        ) as at,
        Broker() as broker,
        _cluster_of(chosen, Path(at)) as cluster,
    ):
        result = _Run(chosen, Path(at), broker, cluster).result()
    result["duration_s"] = round(time.monotonic() - began, 1)
    return result | {"parameters": asdict(chosen), "machine": machine()}


def _cluster_of(chosen: KafkaKillParameters, work: Path) -> Any:
    """Return a context with the jobs' cluster, or with None if the jobs run in local mode."""
    if not chosen.executors:
        return contextlib.nullcontext()
    # Late and by name: test kits lie above the engines.
    kit = importlib.import_module("headgate_lab.testing.cluster")
    # in real time each job has a task that runs all the time
    return kit.StandaloneCluster(work, workers=2, cores=3)


def _victims(chosen: KafkaKillParameters) -> list[str]:
    """Return the victim of each kill, in random order."""
    shares = chosen.shares.items()
    some = [victim for victim, share in shares for _ in range(round(chosen.count * share))]
    found = (some + [DRIVER] * chosen.count)[: chosen.count]
    random.Random(chosen.seed).shuffle(found)
    return found


class _Feed:
    """Writes records to the topic, evenly over its partitions, until it is told to end."""

    def __init__(self, servers: str, rate: int) -> None:
        self._rate = rate
        self._over = threading.Event()
        # a record that the client gives up is in no job's input, and does not count
        self._producer = confluent().Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self._number = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.wait(_POLL_S):
            due = int((time.monotonic() - began) * self._rate)
            with contextlib.suppress(BufferError):
                while self._number < due:
                    self._put(self._number, self._number)
                    self._number += 1
            self._producer.poll(0)

    def _put(self, number: int, at: int) -> None:
        at_ms = _BASE_S * 1000 + at * _EVENT_MS
        value = json.dumps({"k": number % _KEYS, "at": at_ms}).encode()
        self._producer.produce(_IN, value, partition=number % _PARTITIONS)

    def end(self) -> None:
        """Write records that close all windows, and wait until all records are written."""
        self._over.set()
        self._thread.join()
        for number in range(_PARTITIONS):
            self._put(number, self._number + 1_000_000)
        if self._producer.flush(60):
            msg = "the input could not be written; look at the broker."
            raise EngineError(msg)


@dataclass
class _Kill:
    """Holds the victim of a kill and its time, in milliseconds since 1970."""

    victim: str
    at_ms: float


class _Run:
    """Starts and kills the driver of the jobs, life after life."""

    def __init__(
        self, chosen: KafkaKillParameters, work: Path, broker: Broker, cluster: Any
    ) -> None:
        self._chosen = chosen
        self._out = {job: _OUT[job] for job in chosen.jobs.split(",")}
        self._cluster = cluster
        self._work = work
        self._said = work / "said"
        self._broker = broker
        self._random = random.Random(chosen.seed + 1)
        self._kills: list[_Kill] = []
        self._ended: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def result(self) -> dict[str, Any]:
        servers = self._broker.servers
        make_topic(servers, _IN, _PARTITIONS)
        for topic in self._out.values():
            make_topic(servers, topic, 3)
        feed = _Feed(servers, self._chosen.rate)
        try:
            until = time.monotonic() + self._chosen.limit_s
            for number, victim in enumerate(_victims(self._chosen), 1):
                if time.monotonic() > until:
                    break
                self._strike(number, victim)
            self._await_steps()
            self._over_ms = time.time() * 1e3
            feed.end()
            self._finish()
        finally:
            self._kill_group()
        return self._found()

    # -- lives ----------------------------------------------------------------------------------------

    def _start(self, what: str, crash: str | None = None) -> None:
        (self._work / _PROCESSES).unlink(missing_ok=True)
        request = {
            "directory": str(self._work),
            "servers": self._broker.servers,
            "real_time": self._chosen.real_time,
            "jobs": list(self._out),
            "watermark_s": self._chosen.watermark_s,
            "master": None if self._cluster is None else self._cluster.master,
        }
        env = spark_env() | ({} if crash is None else {CRASH: crash})
        with open(self._said, "wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headgate_lab.bench.kafka_kill", what, json.dumps(request)],
                env=env,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )

    def _strike(self, number: int, victim: str) -> None:
        """Wait until the jobs have made progress, and carry out a kill."""
        if victim == DRIVER and self._process is None and self._random.random() < _EXACTLY:
            # a point at which the step is committed, or in Kafka, and Spark does not know it
            point = self._random.choice(("after-sink", "after-sink", "after-manifest"))
            whom = self._random.choice(("driver", "group"))
            step = max(self._steps().values()) + self._random.randint(3, 6)
            self._start("live", f"{point}:{step}:{whom}")
            self._await_end()
            self._kills.append(_Kill(victim, time.time() * 1e3))
            self._kill_group()
            what = f"driver {point}"
        else:
            self._await_steps()
            time.sleep(self._random.uniform(0.0, self._chosen.moment_s_max))
            self._kills.append(_Kill(victim, time.time() * 1e3))
            what = self._kill(victim)
        progress(f"kill {number} of {self._chosen.count}: {what}; steps {self._steps()}")

    def _kill(self, victim: str) -> str:
        assert self._process is not None
        if victim == BROKER:
            self._broker.kill()
            time.sleep(self._random.uniform(0.0, 2.0))
            self._broker.start()
            return "broker"
        if victim == PAUSE:
            return self._pause()
        if victim == DRIVER:
            whole = self._random.random() < 0.5  # noqa: PLR2004 (half of them)
            if not whole:
                end(self._process, "driver")
                time.sleep(self._random.uniform(0.0, 1.0))  # its JVM goes on for a while
            self._kill_group()
            return "driver and JVM" if whole else "driver"
        some = self._some(victim)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._random.choice(some), signal.SIGKILL)
        if victim == JVM:
            self._await_end_without_jvm()
        return f"one of {len(some)} {victim}s"

    def _pause(self) -> str:
        """Suspend a process for a while."""
        assert self._process is not None
        whom = self._random.choice(
            [DRIVER, JVM, WORKER, *[EXECUTOR] * bool(self._chosen.executors)]
        )
        paused = self._process.pid if whom == DRIVER else self._random.choice(self._some(whom))
        with contextlib.suppress(ProcessLookupError):
            os.kill(paused, signal.SIGSTOP)
            time.sleep(self._chosen.pause_s)
            os.kill(paused, signal.SIGCONT)
        return f"a pause of the {whom}"

    def _some(self, victim: str) -> list[int]:
        """Return the processes of a kind; wait until there is one."""
        assert self._process is not None
        if victim == EXECUTOR:
            look: Callable[[], list[int]] = self._cluster.executor_pids
        elif victim == WORKER and self._cluster is not None:
            look = self._processes
        else:
            look = partial(driver_jvms if victim == JVM else python_workers, self._process.pid)
        deadline = time.monotonic() + self._chosen.life_s_max
        while not (some := look()):
            if time.monotonic() > deadline:
                msg = f"there is no {victim} to kill; look at the jobs."
                raise EngineError(msg)
            time.sleep(_POLL_S)
        return some

    def _processes(self) -> list[int]:
        """Return feeders, slots and agents, from the file of the jobs."""
        with contextlib.suppress(OSError):
            named = (self._work / _PROCESSES).read_text().split()
            # the id of an ended process may belong to an unrelated process now
            return [int(one) for one in named if is_of_jobs(int(one))]
        return []

    def _kill_group(self) -> None:
        if self._process is not None:
            end(self._process, "group")
            self._process = None

    def _await_steps(self) -> None:
        """Wait until each job has made two more steps; start the driver if it does not run."""
        before, restarts = self._steps(), 0
        deadline = time.monotonic() + self._chosen.life_s_max
        while any(now < before[job] + 2 for job, now in self._steps().items()):
            if self._process is None or self._process.poll() is not None:
                restarts += self._process is not None
                self._note_end()
                self._start("live")
            if time.monotonic() > deadline or restarts > 3:  # noqa: PLR2004 (it ends again and again)
                raise EngineError(f"the jobs do not go on: {last_line(self._said)}.")
            time.sleep(_POLL_S * 5)

    def _await_end(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(self._chosen.life_s_max)
        except subprocess.TimeoutExpired:
            self._ended.append("a planned crash never came")
        self._note_end()

    def _await_end_without_jvm(self) -> None:
        """Wait until a driver without its JVM has ended by itself, as it should."""
        assert self._process is not None
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._ended.append(f"a driver without its JVM still ran after {_ENDS_S:g} s")
        self._kill_group()

    def _note_end(self) -> None:
        """Record a life that ended by itself."""
        if self._process is not None and self._process.poll() not in (None, -signal.SIGKILL):
            self._ended.append(last_line(self._said))
        self._kill_group()

    def _finish(self) -> None:
        for _ in range(3):
            self._kill_group()
            self._start("finish")
            assert self._process is not None
            try:
                code = self._process.wait(self._chosen.life_s_max)
            except subprocess.TimeoutExpired:
                code = -1
            if code == 0:
                return
            self._ended.append(last_line(self._said))
        msg = f"the jobs do not finish: {last_line(self._said)}."
        raise EngineError(msg)

    def _steps(self) -> dict[str, int]:
        """Return the newest committed step of each job, -1 for none."""
        stores = {job: Checkpoint(self._work / job) for job in self._out}
        return {
            job: max(store.steps(), default=-1) if (store.root / "manifests").is_dir() else -1
            for job, store in stores.items()
        }

    # -- what came of it ------------------------------------------------------------------------------

    def _found(self) -> dict[str, Any]:
        expected: Counter[str] = Counter()
        last = 0
        for record in committed(self._broker.servers, [_IN]):
            one = json.loads(record.value or b"")
            last = max(last, one["at"])
            expected[f"{one['k']}-{one['at'] // 10_000 * 10}"] += 1
        closed = last - 60_000
        expected = Counter(
            {key: n for key, n in expected.items() if int(key.split("-")[1]) * 1000 <= closed}
        )
        result: dict[str, Any] = {
            "kills": {
                victim: sum(kill.victim == victim for kill in self._kills) for victim in VICTIMS
            },
            "windows": len(expected),
        }
        for job, topic in self._out.items():
            got: dict[str, list[int]] = {}
            records = committed(self._broker.servers, [topic])
            if "silence_s" not in result:
                result["silence_s"] = self._silences([record.at_ms for record in records])
            for record in records:
                got.setdefault((record.key or b"").decode(), []).append(int(record.value or b"0"))
            result[job] = {
                "lost": sum(key not in got for key in expected),
                "doubled": sum(len(counts) > 1 for counts in got.values()),
                "wrong": sum(set(counts) != {expected[key]} for key, counts in got.items()),
                "late": sum(batch.late for batch in self._journal(job) if isinstance(batch, Batch)),
                "short": sum(n - got.get(key, [0])[0] for key, n in expected.items()),
            }
        result["changes"] = sum(self._changes(job) for job in self._out)
        return result | {"ended": self._ended}

    def _silences(self, outputs_ms: list[int]) -> dict[str, dict[str, float]]:
        """Return the longest time without an output after kills, by victim, in seconds."""
        found: dict[str, list[float]] = {}
        at_ms = np.sort(np.array(outputs_ms, dtype=np.float64))
        ends_ms = [*(kill.at_ms for kill in self._kills[1:]), self._over_ms]
        for kill, end_ms in zip(self._kills, ends_ms, strict=True):
            # the output that ends the last silence may come after the next kill
            inside = at_ms[(at_ms > kill.at_ms) & (at_ms < end_ms)]
            gaps_s = np.diff([kill.at_ms, *inside, end_ms]) / 1e3
            found.setdefault(kill.victim, []).append(float(gaps_s.max()))
        return {
            victim: {
                "p50": round(float(np.median(silences)), 1),
                "max": round(max(silences), 1),
            }
            for victim, silences in found.items()
        }

    def _changes(self, job: str) -> int:
        return sum(isinstance(event, AssignmentChange) for event in self._journal(job))

    def _journal(self, job: str) -> Iterator[Event]:
        return read(Checkpoint(self._work / job).root / "journal.jsonl")


# --- in the child --------------------------------------------------------------------------------


def counts(spark: SparkSession, servers: str, watermark_s: int) -> DataFrame:
    """Return records per key in windows of 10 s, with a watermark delay of `watermark_s`."""
    reader = spark.readStream.format("kafka").option(SERVERS, servers).option("subscribe", _IN)
    records = reader.option("startingOffsets", "earliest").load()
    read = F.from_json(F.col("value").cast("string"), "k int, at long")
    events = records.select(read.alias("r")).select("r.k", F.timestamp_millis("r.at").alias("at"))
    windows = events.withWatermark("at", f"{watermark_s} seconds").groupBy(
        F.window("at", "10 seconds"), "k"
    )
    key = F.concat_ws("-", "k", F.unix_seconds("window.start"))
    return windows.agg(F.count("*").alias("n")).select(
        key.alias("key"), F.col("n").cast("string").alias("value")
    )


def _writers(
    spark: SparkSession, request: dict[str, Any], *, real_time: bool = False
) -> Iterator[Any]:
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    work, servers = Path(request["directory"]), request["servers"]
    for delivery in request["jobs"]:
        topic = _OUT[delivery]
        writer = (
            hg.writeStream(counts(spark, servers, request["watermark_s"]))
            .slots(start=2)
            .keyGroups(32)
            .queryName(topic)
            .format("kafka")
            .option(SERVERS, servers)
            .option("topic", topic)
            .option("checkpointLocation", str(work / delivery))
        )
        if real_time:
            writer = writer.trigger(realTime="5 minutes")
            yield writer.release("early" if delivery == AT_LEAST_ONCE else "committed")
        else:
            yield writer.option("headgate.delivery", delivery)


def _child(what: str, request: dict[str, Any]) -> None:
    work = Path(request["directory"])
    found = ",".join(str(jar) for jar in connector())
    settings = {"spark.jars": found, "spark.local.dir": str(work / "local")}
    # in real time each job has a task that runs all the time
    cores = 4 if request["real_time"] else 2
    if request["master"]:
        settings |= {"spark.executor.memory": "700m", "spark.driver.host": "127.0.0.1"}
    spark = session(
        master=request["master"] or f"local[{cores}]", name="bench-kafka-kill", **settings
    )
    spark.sparkContext.setLogLevel("ERROR")
    if what == "finish":
        queries = [w.trigger(availableNow=True).start() for w in _writers(spark, request)]
        for query in queries:
            query.awaitTermination()
        spark.stop()
        return
    if request["real_time"]:
        queries = [w.start() for w in _writers(spark, request, real_time=True)]
    else:
        often = {"processingTime": "300 milliseconds"}
        queries = [w.trigger(**often).start() for w in _writers(spark, request)]
    print(_READY, flush=True)
    chance = random.Random()
    while not any(query.awaitTermination(0.5) for query in queries):
        for query in queries:
            query.scale(1 + chance.randrange(_SLOTS_MAX))
        if request["real_time"]:
            named = [str(one) for query in queries for one in query.processes.values()]
            (work / f"{_PROCESSES}.new").write_text("\n".join(named))
            (work / f"{_PROCESSES}.new").rename(work / _PROCESSES)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A life of the killed jobs.")
    arguments.add_argument("what", choices=["live", "finish"])
    arguments.add_argument("request")
    told = arguments.parse_args()
    _child(told.what, json.loads(told.request))
