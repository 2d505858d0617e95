"""Kills a job again and again, and compares its output with Spark's batch answer.

Each life of the job is a process with the same checkpoint and output, in batches or in real time. Some
lives end exactly between manifest and sink, or at another point of a step, the others at a random moment;
the JVM dies with the driver, or goes on alone. The job has sliding windows and changes its slots; in
batches it also has a slow slot with a time budget, and therefore a backlog. At the end the rest of the
input is served, and the output is compared.
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
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.shipping import journal_at
from headgate.core.errors import EngineError
from headgate.spark.api.verify import verify
from headgate.spark.cluster.session import session
from headgate.spark.job.faults import CRASH
from headgate_demo.spark import sources
from headgate_demo.spark.queries import WATERMARK_BIDS
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.bench.kill_sinks import server_of, sink
from headgate_lab.bench.lives import end
from headgate_lab.testing import faults
from headgate_lab.testing.locations import located

BETWEEN = "between manifest and sink"
AT_RANDOM = "at random"
STARTING = "while starting"

_POLL_S = 0.01
_END_S = 300.0
"""Time limit of the last life and the comparison, in seconds. Chosen, not tuned."""

_LAST_STARTS = 3
"""Most starts of the last life: under ``availableNow`` Spark 4.1 reads a Python source for one batch
only, which may be the batch that a kill had cut short."""

_SCALE_EVERY = 3
"""Steps between two changes of slots."""

_SLOTS_MAX = 5
_READY = "ready"


@dataclass(frozen=True)
class KillParameters:
    """Holds the parameters of `run`."""

    count: int = 20
    """Number of kills; >= 1. A run with a kill that was not carried out has failed."""

    seed: int = 0
    """Seed of the end of each life, the changes of slots, and the input; >= 0."""

    rate: int = 2_000
    """Events per second of event time; > 0. The windows advance by one second."""

    batch_rows: int = 4_000
    """Events per batch; > 0. By default those of two seconds, so that each batch closes windows."""

    events: int | None = None
    """Total number of events; default: enough for 12 batches per kill."""

    budget: str = "100 ms"
    """Time a slot may serve per batch."""

    us_per_row: float = 100.0
    """Extra time per row of slot 0; >= 0. By default the budget suffices for half of the slot's rows."""

    moment_s_max: float = 3.0
    """Longest time from the start of the query to a random kill, in seconds; >= 0."""

    life_s_max: float = 180.0
    """Time limit of a life, in seconds; a kill that has not been carried out by then has failed; > 0."""

    steps_max: int = 5
    """A kill at a point of a step comes 2 to this many steps after the newest; >= 2."""

    sink: str = "files"
    """files, or a table: delta, iceberg, merge-delta, merge-iceberg, merge-postgres."""

    location: str | None = None
    """Location of the checkpoint, for `located`; None for a directory."""

    memory_max: str | None = None
    """Memory limit of the state, such as ``50 kB``; the rest is on disk; None: no limit."""

    real_time: bool = False
    """Whether lives run in real time: input by the clock and without end, no budget and no backlog."""

    def __post_init__(self) -> None:
        require(self.count >= 1, f"count={self.count} of kill is out of range; use 1 or more.")
        require(self.seed >= 0, f"seed={self.seed} of kill is out of range; use 0 or more.")
        require(self.rate > 0, f"rate={self.rate} of kill is out of range; use 1 or more.")
        require(
            self.batch_rows > 0,
            f"batch_rows={self.batch_rows} of kill is out of range; use 1 or more.",
        )
        sink(self.sink)

    @property
    def all_events(self) -> int:
        """Total number of events."""
        return self.events or 12 * self.batch_rows * (self.count + 1)


@dataclass(frozen=True)
class Plan:
    """Describes the end of one life.

    Attributes
    ----------
    where : str
        A crash point of the driver, `AT_RANDOM` or `STARTING`.
    after : float
        Crash point: steps after the newest one, a whole number. `AT_RANDOM`: seconds after the query
        started. `STARTING`: seconds after the process started.
    whom : str
        driver: only the Python process; group: its process group, with the JVM.
    """

    where: str
    after: float
    whom: str

    @property
    def kind(self) -> str:
        """Return the name of the kind of kill in the result."""
        return BETWEEN if self.where == "after-manifest" else self.where


def run(**given: Any) -> dict[str, Any]:
    """Kill the job `count` times, let it finish, and compare its output.

    Parameters
    ----------
    **given
        Fields of `KillParameters`.

    Returns
    -------
    dict
        ``kills``, ``at`` (kills per kind), ``whom``, ``restarts``, ``undelivered`` (kills that left a
        committed step whose output was not in the sink), ``with_backlog`` (kills while records waited),
        ``changes`` (of slots), ``retries``, ``steps``, ``verified``, ``rows_compared``, ``doubled``,
        ``missing``, ``extra``, ``late``, ``recovery_s`` (start of a process to its first committed step),
        ``failed`` (kills that were not carried out, and other errors), ``duration_s``, ``parameters``,
        ``machine``.
    """
    chosen = parameters(KillParameters, given)
    began = time.monotonic()
    made = tempfile.TemporaryDirectory(prefix="headgate-kill-", ignore_cleanup_errors=True)
    with made as work, server_of(chosen.sink), located(chosen.location) as location:
        result = _Run(replace(chosen, location=location), Path(work)).result()
    result["duration_s"] = round(time.monotonic() - began, 1)
    return result | {"parameters": asdict(chosen), "machine": machine()}


_OTHERS = "others"
_TO_FILES = ("after-manifest", AT_RANDOM, AT_RANDOM, "after-manifest", _OTHERS, STARTING)
_TO_TABLES = ("after-sink", AT_RANDOM, "after-sink", "after-manifest", _OTHERS, STARTING)
"""Turns of the kinds of kills. Between a table's commit and Spark's, only the table knows the step."""


def _poll_s(chosen: KillParameters) -> float:
    """Return the interval between two looks for steps; on a store each look is a request."""
    return _POLL_S if chosen.location is None else 10 * _POLL_S


def place(chosen: KillParameters, work: Path) -> str:
    """Return the location of the checkpoint of the run in `work`."""
    return str(work / "checkpoint") if chosen.location is None else f"{chosen.location}/{work.name}"


def _plans(chosen: KillParameters) -> list[Plan]:
    """Return the end of each life, with the kinds of `_TO_FILES` or `_TO_TABLES` in turns."""
    rng = random.Random(chosen.seed)
    plans = []
    for index in range(chosen.count):
        whom = ("driver", "group")[(index + index // 6) % 2]
        where = (_TO_FILES if chosen.sink == "files" else _TO_TABLES)[index % 6]
        if where == _OTHERS:
            where = ("before-manifest", "after-sink", "after-intent")[index // 6 % 3]
        elif where == STARTING and index // 6 % 2 == 0:
            where = AT_RANDOM
        if where == AT_RANDOM:
            after = rng.uniform(0.0, chosen.moment_s_max)
        elif where == STARTING:
            after = rng.uniform(1.0, 6.0)
        else:
            after = float(rng.randint(2, max(2, chosen.steps_max)))
        plans.append(Plan(where, after, whom))
    return plans


class _Run:
    """Starts and kills the job, life after life."""

    def __init__(self, chosen: KillParameters, work: Path) -> None:
        self._chosen = chosen
        self._work = work
        self._store = Checkpoint(place(chosen, work))
        self._at: Counter[str] = Counter()
        self._whom: Counter[str] = Counter()
        self._undelivered = 0
        self._with_backlog = 0
        self._restarts = 0
        self._recovery_s: list[float] = []
        self._failed: list[str] = []

    def result(self) -> dict[str, Any]:
        for number, plan in enumerate(_plans(self._chosen), 1):
            if number > 1:
                self._restarts += 1
            self._live(number, plan)
        self._restarts += 1
        progress("last life: serve the rest and compare")
        found = child(self._command("finish"), spark_env(), _END_S)
        complete = self._chosen.real_time or found["events"] == self._chosen.all_events
        if not complete:
            self._failed.append(
                f"only {found['events']} of {self._chosen.all_events} events served"
            )
        return {
            "kills": self._at.total(),
            "at": dict(self._at),
            "whom": dict(self._whom),
            "restarts": self._restarts,
            "undelivered": self._undelivered,
            "with_backlog": self._with_backlog,
            "changes": found["changes"],
            "retries": found["retries"],
            "steps": found["steps"],
            "verified": found["verified"],
            "rows_compared": found["rows_compared"],
            "doubled": found["doubled"],
            "missing": found["missing"],
            "extra": found["extra"],
            "late": found["dropped"]["late"],
            "recovery_s": _quantiles(self._recovery_s),
            "failed": self._failed,
        }

    def _command(self, what: str) -> list[str]:
        request = {"directory": str(self._work), "parameters": asdict(self._chosen)}
        name = "headgate_lab.bench.kill"
        return [sys.executable, "-m", name, "--child", what, json.dumps(request)]

    def _live(self, number: int, plan: Plan) -> None:
        """Start a process, kill it as planned, and record its state."""
        before = self._step()
        env = spark_env()
        if plan.where not in (AT_RANDOM, STARTING):
            env[CRASH] = f"{plan.where}:{before + int(plan.after)}:{plan.whom}"
        with open(self._work / "said", "wb") as said:
            started = time.monotonic()
            process = subprocess.Popen(
                self._command("live"),
                env=env,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )
        try:
            fired = self._watch(process, plan, started, before)
        except BaseException:
            end(process, "group")
            raise
        text = f"{plan.kind}, {plan.whom}"
        if not fired:
            end(process, "group")
            self._failed.append(f"kill {number}: {text}")
        else:
            self._at[plan.kind] += 1
            self._whom[plan.whom] += 1
            self._look(plan, before)
        state = "" if fired else " never fired"
        progress(f"kill {number} of {self._chosen.count}: {text}{state}, step {self._step()}")

    def _watch(
        self, process: subprocess.Popen[bytes], plan: Plan, started: float, before: int
    ) -> bool:
        """Wait for the planned end, and carry it out; return whether it came in time."""
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        ready: float | None = None
        recovered = False
        while (now := time.monotonic()) < started + self._chosen.life_s_max:
            if process.poll() is not None:
                if process.returncode != -signal.SIGKILL:
                    raise EngineError(self._reason(process.returncode))
                return True
            if ready is None and _READY.encode() in (process.stdout.read() or b""):
                ready = now
            if not recovered and before >= 0 and self._step() > before:
                recovered = True
                self._recovery_s.append(now - started)
            at_random = plan.where == AT_RANDOM and ready is not None and now >= ready + plan.after
            if at_random or (plan.where == STARTING and now >= started + plan.after):
                end(process, plan.whom)
                return True
            time.sleep(_poll_s(self._chosen))
        return False

    def _look(self, plan: Plan, before: int) -> None:
        """Count the state in which the kill left the checkpoint."""
        if self._step() < 0:
            return
        # a new `Checkpoint`, without cached manifests
        latest = Checkpoint(self._store.location).latest()
        assert latest is not None
        facts = latest.engine
        if any(state["backlog"] for state in facts["operators"].values()):
            self._with_backlog += 1
        if plan.kind != BETWEEN:
            return
        if latest.step != before + int(plan.after):
            self._failed.append(f"{plan.kind}: died after step {latest.step}")
        if facts["outputs"] and sink(self._chosen.sink).newest(self._work) < facts["sink_batch"]:
            self._undelivered += 1

    def _step(self) -> int:
        """Return the newest committed step, -1 for none."""
        if not self._store.files.is_there():
            return -1
        return max(self._store.steps(), default=-1)

    def _reason(self, code: int) -> str:
        said = (self._work / "said").read_text(errors="replace").splitlines()
        causes = [line for line in said if line.startswith("Caused by:")]
        return "\n".join([f"the job ended with exit code {code} of itself:", *causes, *said[-8:]])


def _quantiles(seconds: list[float]) -> dict[str, float | int | None]:
    if not seconds:
        return {"count": 0, "p50": None, "p99": None}
    p50, p99 = (round(float(np.quantile(seconds, q)), 2) for q in (0.5, 0.99))
    return {"count": len(seconds), "p50": p50, "p99": p99}


# --- in the child --------------------------------------------------------------------------------


def bids_per_auction(spark: SparkSession, **options: str) -> DataFrame:
    """Return bids per auction in windows of 2 s, every second, as in the first part of NEXMark Q5."""
    reader = spark.readStream.format("nexmark").options(
        **{"columns": "event_type,bid.auction,bid.price,bid.dateTime", **options}
    )
    return (
        reader.load()
        .where("event_type = 2")
        .select("bid.*")
        .withWatermark("dateTime", WATERMARK_BIDS)
        .groupBy(F.window("dateTime", "2 seconds", "1 second"), "auction")
        .agg(F.count("*").alias("bids"), F.sum("price").alias("total"))
    )


def flat_windows(spark: SparkSession, **options: str) -> DataFrame:
    """Return the same with the window's start and end as columns, for tables."""
    counts = bids_per_auction(spark, **options)
    return counts.selectExpr("window.start", "window.end", "auction", "bids", "total")


def _build(chosen: KillParameters) -> Callable[..., DataFrame]:
    return bids_per_auction if chosen.sink == "files" else flat_windows


def _options(chosen: KillParameters) -> dict[str, str]:
    made = {"seed": str(chosen.seed), "rate": str(chosen.rate)}
    if chosen.real_time:
        return made
    return made | {
        "events": str(chosen.all_events),
        # long ago: all events are due, and only `batch_rows` limits a batch
        "base": str(1_700_000_000_000_000),
    }


def _writer(
    spark: SparkSession, chosen: KillParameters, work: Path, options: dict[str, str]
) -> Any:
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    bound = {} if chosen.memory_max is None else {"headgate.state.memoryMax": chosen.memory_max}
    return (
        hg.writeStream(_build(chosen)(spark, **options))
        .slots(start=2)
        .keyGroups(32)
        .option("checkpointLocation", place(chosen, work))
        .option("headgate.keepLate", "true")
        .option("headgate.snapshotEvery", "8")
        .option("headgate.preaggregate", "off")
        .options(**bound)
    )


def live(spark: SparkSession, chosen: KillParameters, work: Path) -> None:
    """Run until killed."""
    options = _options(chosen) | {"batch_rows": str(chosen.batch_rows)}
    writer = _writer(spark, chosen, work, options)
    if chosen.real_time:
        writer = writer.trigger(realTime="5 minutes")
    else:
        writer = writer.budget(chosen.budget).trigger(processingTime="0 seconds")
        faults.inject(writer, faults.slow(0, chosen.us_per_row))
    query = sink(chosen.sink).start(writer, work)
    print(_READY, flush=True)
    store = Checkpoint(place(chosen, work))
    changed = -1
    while not query.awaitTermination(_poll_s(chosen)):
        step = max(store.steps(), default=0)
        if step % _SCALE_EVERY == 0 and step != changed:
            changed = step
            query.scale(1 + random.Random(chosen.seed * 1_000_003 + step).randrange(_SLOTS_MAX))


def serve_rest(spark: SparkSession, chosen: KillParameters, work: Path) -> None:
    """Serve the rest of the input, without budget."""
    for _ in range(_LAST_STARTS):
        writer = _writer(spark, chosen, work, _options(chosen)).trigger(availableNow=True)
        sink(chosen.sink).start(writer, work).awaitTermination()
        latest = Checkpoint(place(chosen, work)).latest()
        assert latest is not None
        if chosen.real_time:
            break  # the input has no end
        if json.loads(latest.engine["sources"][0])["event"] == chosen.all_events:
            break


def compared(spark: SparkSession, chosen: KillParameters, work: Path) -> dict[str, Any]:
    """Compare the output with Spark's batch answer."""
    return verify(
        spark,
        _build(chosen),
        checkpoint=place(chosen, work),
        output=sink(chosen.sink).read(spark, work),
        options=_options(chosen),
    )


def _finish(spark: SparkSession, chosen: KillParameters, work: Path) -> dict[str, Any]:
    """Serve the rest of the input, without budget, and compare the output."""
    serve_rest(spark, chosen, work)
    store = Checkpoint(place(chosen, work))
    latest = store.latest()
    assert latest is not None
    with journal_at(store) as journal:
        events = list(_events(journal))
    offsets = latest.engine["sources"]
    return compared(spark, chosen, work) | {
        "doubled": sink(chosen.sink).doubled(spark, work),
        "events": json.loads(offsets[0])["event"],
        "steps": latest.step + 1,
        "changes": sum(1 for e in events if e.get("event") == "assignment"),
        "retries": sum(1 for e in events if e.get("event") == "retry"),
    }


def _events(journal: Path) -> Iterator[dict[str, Any]]:
    for line in journal.read_text().splitlines():
        with contextlib.suppress(ValueError):  # a line that a kill cut short
            yield json.loads(line)


def _child(what: str, request: Mapping[str, Any]) -> None:
    chosen, work = KillParameters(**request["parameters"]), Path(request["directory"])
    into = sink(chosen.sink)
    settings = {"spark.local.dir": str(work / "local"), **into.settings(work)}
    spark = session(master="local[2]", name="bench-kill", **settings)
    sources.register(spark)
    into.prepare(spark)
    if what == "finish":
        print(json.dumps(_finish(spark, chosen, work)))
    else:
        live(spark, chosen, work)
    spark.stop()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="A life of the killed job.")
    arguments.add_argument("--child", nargs=2, required=True)
    kind, text = arguments.parse_args().child
    _child(kind, json.loads(text))
