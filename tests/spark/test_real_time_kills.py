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

KILLS = 8
VICTIMS = ("feeder", "slot", "slot", "driver")
LIMIT_S = 180.0

# a start of the JVM for each driver that is killed
pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]


class Victims:
    """A driver in a program of its own, which starts again when it is killed."""

    def __init__(self, work: Path) -> None:
        self.work, self.files = work, Files(work / "out")
        self.driver = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        (self.work / "processes").unlink(missing_ok=True)
        program = Path(__file__).parent / "real_time_driver.py"
        command = [sys.executable, str(program), str(self.work), "scale"]
        with (self.work / "log").open("ab") as log:
            return subprocess.Popen(command, stderr=log)

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
