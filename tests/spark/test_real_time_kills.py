"""Real time under kills at drawn moments: nothing is lost, nothing is doubled, no step changes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from real_time import Rows, totals, writer
from real_time_driver import Files
from test_real_time import assert_right, running, wait_until

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.spark.job.faults import CRASH
from headgate_lab.bench import kafka_kill, kill

KILLS = 8
VICTIMS = ("feeder", "slot", "slot", "driver")
LIMIT_S = 180.0

POINTS = ("after-manifest", "after-intent", "before-manifest", "after-sink")
"""Moments of an epoch's step; behind the first it is committed and not delivered."""

# a start of the JVM for each driver that is killed
pytestmark = pytest.mark.timeout(900)


class Victims:
    """A driver in a program of its own, which starts again when it is killed."""

    def __init__(self, work: Path, dies: str | None = None) -> None:
        self.work, self.files = work, Files(work / "out")
        self.driver = self._start(dies)

    def _start(self, dies: str | None = None) -> subprocess.Popen[bytes]:
        (self.work / "processes").unlink(missing_ok=True)
        program = Path(__file__).parent / "real_time_driver.py"
        command = [sys.executable, str(program), str(self.work), "scale"]
        with (self.work / "log").open("ab") as log:
            env = os.environ | ({} if dies is None else {CRASH: dies})
            return subprocess.Popen(command, stderr=log, env=env)

    def wait_for_steps(self, more: int) -> None:
        done, until_s = len(self.files), time.monotonic() + LIMIT_S
        while len(self.files) < done + more:
            assert self.driver.poll() is None, (self.work / "log").read_text()[-3000:]
            assert time.monotonic() < until_s, (self.work / "log").read_text()[-3000:]
            time.sleep(0.01)

    def kill(self, kind: str, rng: random.Random) -> str:
        """Kill a process of a kind; return its name."""
        processes: dict[str, int] = json.loads((self.work / "processes").read_text())
        name = rng.choice(sorted(one for one in processes if one.startswith(kind)))
        with contextlib.suppress(ProcessLookupError):  # a change of slots has ended it
            os.kill(processes[name], signal.SIGKILL)
        if kind == "driver":
            self.driver.wait()
            self.driver = self._start()
        return name

    def end(self) -> None:
        self.driver.kill()
        self.driver.wait()


@pytest.mark.parametrize(
    "point", [POINTS[0], *(pytest.param(p, marks=pytest.mark.thorough) for p in POINTS[1:])]
)
def test_a_driver_that_dies_in_an_epoch_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path, point: str
) -> None:
    step = random.Random(point).randint(6, 30)
    victims = Victims(tmp_path, f"{point}:{step}")
    try:
        assert victims.driver.wait(LIMIT_S) == -signal.SIGKILL, (tmp_path / "log").read_text()
    finally:
        victims.end()
    latest = Checkpoint(tmp_path / "checkpoint").latest()
    assert latest is not None
    assert latest.step == (step if point in {"after-manifest", "after-sink"} else step - 1)
    if point == "after-manifest":
        assert not (tmp_path / "out" / f"{latest.engine['sink_batch']}.json").exists()
    made = writer(totals()(spark), Rows(), tmp_path / "checkpoint", "update")
    done = len(victims.files)
    with running(made.foreachBatch(victims.files)) as query:
        wait_until(lambda: len(victims.files) > done + 3, query)
    assert (tmp_path / "out" / f"{latest.engine['sink_batch']}.json").exists()
    assert not victims.files.differing
    last = spark.createDataFrame(victims.files.last(), "k bigint, n bigint, p bigint")
    assert_right(spark, totals(), tmp_path / "checkpoint", last, "update")


@pytest.mark.thorough
@pytest.mark.parametrize("how", [{}, {"pauses": 1.0, "pause_s": 20.0}], ids=["killed", "paused"])
def test_kafka_has_each_window_once_whatever_is_lost(how: dict[str, float]) -> None:
    """The driver at any moment of a delivery, a slot, the broker; or some stopped for a while."""
    shares = how or {"brokers": 0.25, "workers": 0.25}
    found = kafka_kill.run(count=4, seed=3, rate=1000, real_time=True, **shares)
    assert found["windows"] > 0
    nothing = {"lost": 0, "doubled": 0, "wrong": 0, "late": 0, "short": 0}
    assert found["exactly-once"] == nothing
    assert found["at-least-once"]["lost"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_files_have_each_row_once_whatever_is_killed(seed: int) -> None:
    found = kill.run(count=4, seed=seed, real_time=True)
    assert found["verified"], found
    assert (found["kills"], found["doubled"], found["missing"], found["failed"]) == (4, 0, 0, [])
    assert found["undelivered"] >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_any_moment_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(f"kills {seed}")
    victims = Victims(tmp_path)
    killed = []
    try:
        for _ in range(KILLS):
            victims.wait_for_steps(3)
            time.sleep(rng.random() * 0.2)  # the moment is what is drawn
            killed.append(victims.kill(rng.choice(VICTIMS), rng))
        victims.wait_for_steps(3)
    finally:
        victims.end()
    print("killed", killed)
    assert not victims.files.differing, killed
    made = writer(totals()(spark), Rows(), tmp_path / "checkpoint", "update")
    done = len(victims.files)
    with running(made.foreachBatch(victims.files)) as query:
        wait_until(lambda: len(victims.files) > done + 3, query)
    last = spark.createDataFrame(victims.files.last(), "k bigint, n bigint, p bigint")
    assert_right(spark, totals(), tmp_path / "checkpoint", last, "update")
    assert not victims.files.differing, killed
