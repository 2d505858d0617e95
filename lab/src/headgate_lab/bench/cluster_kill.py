"""Kills processes of a job on a real cluster, one after another, and checks the job's output.

Victims are a Python worker, an executor, a Spark worker and the driver. They are killed at random
moments, or right after an event of the job's journal, such as a step of a migration. The process is then
started again (the driver and the Spark worker by this benchmark, the others by Spark). The recovery time
ends with the commit of a step that began after the kill. At the end the output is compared with Spark's
batch answer on the same input.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import EngineError
from headgate.spark.api.verify import verify
from headgate.spark.cluster.session import session
from headgate_demo.spark import sources
from headgate_lab.bench.common import (
    child,
    machine,
    parameters,
    progress,
    require,
    spark_env,
)
from headgate_lab.bench.kill import bids_per_auction

VICTIMS = ("python worker", "executor", "spark worker", "driver")
AT_RANDOM = "random"

_CAUSE = re.compile(r"Caused by:|[A-Za-z_.]+(Error|Exception): ")
"""Matches a line that names an exception of the JVM or of Python."""

_POLL_S = 0.02
_END_S = 600.0
"""Time limit of the last run and the comparison, in seconds. Chosen, not tuned."""

_SCALE_EVERY = 3
"""Steps between two changes of slots."""

_SLOTS_MAX = 6
_QUIET_STEPS = 2
"""Steps committed between two kills, so that each kill hits a running job."""


@dataclass(frozen=True)
class ClusterKillParameters:
    """Holds the parameters of `run`."""

    count: int = 20
    """Number of kills; >= 1. A run with a kill that was not carried out has failed."""

    seed: int = 0
    """Seed of random moments, processes, changes of slots and the input; >= 0."""

    victims: str = ",".join(VICTIMS)
    """Victims, in turns, separated by commas."""

    at: str = AT_RANDOM
    """Moments, in turns: ``random``, or events of the journal: ``assignment``, ``migration:routed``."""

    workers: int = 3
    """Spark workers, each with one core and its own address; >= 2."""

    rate: int = 2_000
    """Events per second; > 0."""

    moment_s_max: float = 2.0
    """Longest time from the job's steady run to a random kill, in seconds; >= 0."""

    wait_s_max: float = 180.0
    """Time limit of a recovery, and of the wait for an event, in seconds; > 0."""

    def __post_init__(self) -> None:
        require(self.count >= 1, f"count={self.count} of kill is out of range; use 1 or more.")
        require(self.seed >= 0, f"seed={self.seed} of kill is out of range; use 0 or more.")
        require(self.workers > 1, f"workers={self.workers} of kill is out of range; use 2 or more.")
        unknown = set(self.victims.split(",")) - set(VICTIMS)
        require(not unknown, f"victims {sorted(unknown)} are not known; use {', '.join(VICTIMS)}.")


@dataclass(frozen=True)
class Strike:
    """Describes one kill.

    Attributes
    ----------
    victim : str
        One of `VICTIMS`.
    at : str
        `AT_RANDOM`, or an event of the journal; its field `what` may follow after a colon.
    after_s : float
        Delay of a random kill.
    draw : float
        Random number in [0, 1): selects one of several processes, and whether a driver's JVM dies, too.
    """

    victim: str
    at: str
    after_s: float
    draw: float

    def waits_for(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event of the journal is the moment of the kill."""
        kind, _, what = self.at.partition(":")
        return event.get("event") == kind and what in ("", event.get("what"))


def run(**given: Any) -> dict[str, Any]:
    """Kill processes of a job on a cluster `count` times, and compare its output.

    Parameters
    ----------
    **given
        Fields of `ClusterKillParameters`.

    Returns
    -------
    dict
        ``kills``; ``victims`` and ``at`` (kills per victim and moment); ``recovery_s`` and
        ``recovery_by_victim_s`` (count, p50, p99); ``verified``, ``rows_compared``, ``missing``,
        ``extra``, ``late``; ``changes`` (of slots), ``retries``, ``steps``; ``failed`` (kills that were
        not carried out); ``duration_s``, ``parameters``, ``machine``.

    Raises
    ------
    EngineError
        The job ended by itself, or did not recover.
    """
    chosen = parameters(ClusterKillParameters, given)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headgate-kill-", ignore_cleanup_errors=True) as work:
        result = _Run(chosen, Path(work)).result()
    result["duration_s"] = round(time.monotonic() - began, 1)
    return result | {"parameters": asdict(chosen), "machine": machine()}


def strikes(chosen: ClusterKillParameters) -> list[Strike]:
    """Return the kills: victims in turns, and moments in turns after each round of victims."""
    rng = random.Random(chosen.seed)
    victims, moments = chosen.victims.split(","), chosen.at.split(",")
    return [
        Strike(
            victims[index % len(victims)],
            moments[index // len(victims) % len(moments)],
            rng.uniform(0.0, chosen.moment_s_max),
            rng.random(),
        )
        for index in range(chosen.count)
    ]


class _Run:
    """Runs the job on its cluster, and carries out the kills."""

    def __init__(self, chosen: ClusterKillParameters, work: Path) -> None:
        self._chosen = chosen
        self._work = work
        self._store = Checkpoint(work / "checkpoint")
        self._journal = self._store.root / "journal.jsonl"
        self._cluster: Any = None
        self._job: subprocess.Popen[bytes] | None = None
        self._killed_host = ""
        self._victims: Counter[str] = Counter()
        self._moments: Counter[str] = Counter()
        self._recovery_s: dict[str, list[float]] = {}
        self._failed: list[str] = []

    def result(self) -> dict[str, Any]:
        # Late and by name: test kits lie above the engines.
        kit = importlib.import_module("headgate_lab.testing.cluster")
        with kit.StandaloneCluster(self._work, workers=self._chosen.workers, cores=1) as cluster:
            self._cluster = cluster
            self._start_job()
            try:
                self._strike_all()
            finally:
                self._end_job("group")
        progress("last life: serve the rest and compare")
        found = child(self._command("finish"), spark_env(), _END_S)
        every = [took_s for some in self._recovery_s.values() for took_s in some]
        return {
            "kills": self._victims.total(),
            "victims": dict(self._victims),
            "at": dict(self._moments),
            "recovery_s": quantiles(every),
            "recovery_by_victim_s": {v: quantiles(s) for v, s in self._recovery_s.items()},
            "changes": found["changes"],
            "retries": found["retries"],
            "steps": found["steps"],
            "verified": found["verified"],
            "rows_compared": found["rows_compared"],
            "missing": found["missing"],
            "extra": found["extra"],
            "late": found["dropped"]["late"],
            "failed": self._failed,
        }

    def _strike_all(self) -> None:
        for number, strike in enumerate(strikes(self._chosen), 1):
            text = f"kill {number} of {self._chosen.count}: {strike.victim}, {strike.at}"
            before = self._step()
            fired = (
                self._until(lambda before=before: self._step() >= before + _QUIET_STEPS)
                and self._moment(strike)
                and self._kill(strike)
            )
            if not fired:
                self._failed.append(f"{text} never fired")
                progress(self._failed[-1])
                if not self._alive():
                    raise EngineError(self._last_words())
                continue
            self._victims[strike.victim] += 1
            self._moments[strike.at] += 1
            took_s = self._recovered(strike)
            if took_s is None:
                self._failed.append(f"{text}: not recovered in {self._chosen.wait_s_max:g} s")
                raise EngineError(f"{self._failed[-1]}; {self._last_words()}")
            self._recovery_s.setdefault(strike.victim, []).append(took_s)
            progress(f"{text}, step {self._step()}, recovered in {took_s:.1f} s")

    # -- one kill ---------------------------------------------------------------------------------

    def _moment(self, strike: Strike) -> bool:
        """Wait for the moment of a kill; return whether it came."""
        if strike.at == AT_RANDOM:
            time.sleep(strike.after_s)
            return True
        with open(self._journal, encoding="utf-8") as lines:
            lines.seek(0, os.SEEK_END)
            return self._until(lambda: any(strike.waits_for(event) for event in _events(lines)))

    def _kill(self, strike: Strike) -> bool:
        """Kill the victim; return whether such a process was found."""
        if strike.victim == "driver":
            self._end_job("driver" if strike.draw < 1 / 2 else "group")
            return True
        if strike.victim == "spark worker":
            self._killed_host = self._chosen_of(list(self._cluster.hosts), strike)
            self._cluster.kill_worker(self._killed_host)
            return True
        pids_of = {
            "python worker": self._cluster.python_worker_pids,
            "executor": self._cluster.executor_pids,
        }[strike.victim]
        return self._until(lambda: self._killed_one(pids_of(), strike))

    def _killed_one(self, pids: list[int], strike: Strike) -> bool:
        if not pids:
            return False
        try:
            os.kill(self._chosen_of(pids, strike), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _chosen_of(self, some: list[Any], strike: Strike) -> Any:
        return some[int(strike.draw * len(some))]

    def _recovered(self, strike: Strike) -> float | None:
        """Restart a driver or Spark worker; return the recovery time in seconds, None if none."""
        began = time.monotonic()
        # the step after the newest may have been nearly done when the victim died
        wanted = self._step() + (1 if strike.victim == "driver" else 2)
        if strike.victim == "driver":
            self._start_job()
        elif strike.victim == "spark worker":
            self._cluster.restart_worker(self._killed_host)
        went_on = self._until(lambda: self._step() >= wanted)
        return time.monotonic() - began if went_on else None

    # -- the job ----------------------------------------------------------------------------------

    def _command(self, what: str) -> list[str]:
        request = {"directory": str(self._work), "parameters": asdict(self._chosen)}
        if what == "live":
            request["master"] = self._cluster.master
        name = "headgate_lab.bench.cluster_kill"
        return [sys.executable, "-m", name, "--child", what, json.dumps(request)]

    def _start_job(self) -> None:
        with open(self._work / "said", "ab") as said:
            self._job = subprocess.Popen(
                self._command("live"),
                env=spark_env(),
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )

    def _end_job(self, whom: str) -> None:
        """Kill the driver's Python process, alone or with its JVM."""
        job = self._job
        assert job is not None
        with contextlib.suppress(ProcessLookupError):
            if whom == "group":
                os.killpg(job.pid, signal.SIGKILL)
            else:
                job.kill()
        job.wait()

    def _alive(self) -> bool:
        return self._job is not None and self._job.poll() is None

    def _until(self, done: Any) -> bool:
        deadline = time.monotonic() + self._chosen.wait_s_max
        while time.monotonic() < deadline:
            if done():
                return True
            if not self._alive():
                raise EngineError(self._last_words())
            time.sleep(_POLL_S)
        return False

    def _step(self) -> int:
        """Return the newest committed step, -1 for none."""
        if not (self._store.root / "manifests").is_dir():
            return -1
        return max(self._store.steps(), default=-1)

    def _last_words(self) -> str:
        said = (self._work / "said").read_text(errors="replace").splitlines()
        causes = [line for line in said if _CAUSE.match(line)]
        return "\n".join(["the job said at last:", *causes[-6:], *said[-8:]])


def quantiles(seconds: list[float]) -> dict[str, float | int | None]:
    """Return count, median and 99th percentile."""
    if not seconds:
        return {"count": 0, "p50": None, "p99": None}
    p50, p99 = (round(float(np.quantile(seconds, q)), 2) for q in (0.5, 0.99))
    return {"count": len(seconds), "p50": p50, "p99": p99}


def _events(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that a kill cut short
            yield json.loads(line)


# --- in the child --------------------------------------------------------------------------------


def _options(chosen: ClusterKillParameters) -> dict[str, str]:
    return {"seed": str(chosen.seed), "rate": str(chosen.rate)}


def _writer(spark: SparkSession, chosen: ClusterKillParameters, work: Path) -> Any:
    # Late and by name: the package's front imports the engine, of which this is a part.
    hg = importlib.import_module("headgate")
    return (
        hg.writeStream(bids_per_auction(spark, **_options(chosen)))
        .slots(start=chosen.workers)
        .keyGroups(32)
        .format("parquet")
        .option("path", str(work / "output"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .option("headgate.keepLate", "true")
        .option("headgate.snapshotEvery", "8")
        .option("headgate.executors", "keep")
    )


def _live(spark: SparkSession, chosen: ClusterKillParameters, work: Path) -> None:
    """Run until killed, and change slots meanwhile."""
    query = _writer(spark, chosen, work).start()
    store, changed = Checkpoint(work / "checkpoint"), -1
    while not query.awaitTermination(_POLL_S):
        step = max(store.steps(), default=0)
        if step % _SCALE_EVERY == 0 and step != changed:
            changed = step
            query.scale(1 + random.Random(chosen.seed * 1_000_003 + step).randrange(_SLOTS_MAX))


def _finish(spark: SparkSession, chosen: ClusterKillParameters, work: Path) -> dict[str, Any]:
    """Serve the rest of the input, and compare the output."""
    query = _writer(spark, chosen, work).trigger(availableNow=True).start()
    query.awaitTermination()
    latest = Checkpoint(work / "checkpoint").latest()
    assert latest is not None
    with open(query.journal, encoding="utf-8") as lines:
        events = list(_events(lines))
    found = verify(
        spark,
        bids_per_auction,
        checkpoint=str(work / "checkpoint"),
        output=spark.read.parquet(str(work / "output")),
        options=_options(chosen),
    )
    return found | {
        "steps": latest.step + 1,
        "changes": sum(1 for e in events if e.get("event") == "assignment"),
        "retries": sum(1 for e in events if e.get("event") == "retry"),
    }


def main() -> None:
    """Run the job until it is killed, or its last run."""
    arguments = argparse.ArgumentParser(description="A life of the job on a cluster.")
    arguments.add_argument("--child", nargs=2, required=True)
    what, text = arguments.parse_args().child
    request: Mapping[str, Any] = json.loads(text)
    chosen = ClusterKillParameters(**request["parameters"])
    work = Path(request["directory"])
    spark = session(
        master=request.get("master", "local[2]"),
        name="bench-kill",
        **{"spark.local.dir": str(work / "local"), "spark.executor.memory": "700m"},
    )
    sources.register(spark)
    if what == "finish":
        print(json.dumps(_finish(spark, chosen, work)))
    else:
        _live(spark, chosen, work)
    spark.stop()


if __name__ == "__main__":
    main()
