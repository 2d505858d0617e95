"""Tests two drivers on one checkpoint: the first is suspended, and wakes when the second has finished.

The first driver and its JVM are suspended at a random moment, by SIGSTOP. Meanwhile a second driver goes
on from the checkpoint and serves all records. Then the first one wakes. It must end by itself, name the
driver that has the checkpoint now, and change neither checkpoint nor output. On a directory, the lock
that the first driver still holds is deleted, as if a file server's lease had expired.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import CheckpointError, EngineError
from headgate.spark.cluster.session import session
from headgate_demo.spark import sources
from headgate_lab.bench import kill
from headgate_lab.bench.common import child, machine, parameters, progress, require, spark_env
from headgate_lab.bench.kill_sinks import TABLE
from headgate_lab.testing.locations import located

_POLL_S = 0.1
_FIRST_STEPS = 3
"""The first driver is suspended after it has committed the step with this number."""

_WAKE_S = 120.0
"""Time in which a driver that wakes must end, in seconds."""


@dataclass(frozen=True)
class DriversParameters:
    """Holds the parameters of `run`."""

    count: int = 5
    """Tries; >= 1."""

    seed: int = 0
    """Chooses the moments, and the input; >= 0."""

    paused_s: float = 0.0
    """How long the first one sleeps at least, in seconds; >= 0. No clock decides anything."""

    location: str | None = None
    """Location of the checkpoints, as in ``bench kill``."""

    def __post_init__(self) -> None:
        require(
            self.count >= 1, f"count={self.count} of two-drivers is out of range; use 1 or more."
        )


def run(**given: Any) -> dict[str, Any]:
    """Suspend a driver while another one does its work, `count` times, and check the output each time.

    Returns
    -------
    dict
        ``tries``, ``told`` (number of drivers that woke and named the other one), ``verified`` (whether
        each output was Spark's answer, and the first driver changed nothing after it woke),
        ``rows_compared``, ``failed`` (one sentence each), ``duration_s``, ``parameters``, ``machine``.
    """
    chosen = parameters(DriversParameters, given)
    began = time.monotonic()
    rng = random.Random(chosen.seed)
    rows, told, failed = 0, 0, []
    with located(chosen.location) as location:
        for number in range(chosen.count):
            made = tempfile.TemporaryDirectory(prefix="headgate-two-", ignore_cleanup_errors=True)
            with made as work:
                job = kill.KillParameters(
                    count=1, seed=chosen.seed + number, location=location, us_per_row=0.0
                )
                found = _Try(job, Path(work), rng.uniform(0.0, 1.5), chosen.paused_s).result()
            rows += found["rows_compared"]
            told += found["told"]
            failed += [f"try {number}: {why}" for why in found["failed"]]
            progress(f"try {number + 1} of {chosen.count}: {found['failed'] or 'equal'}")
    return {
        "tries": chosen.count,
        "told": told,
        "verified": not failed,
        "rows_compared": rows,
        "failed": failed,
        "duration_s": round(time.monotonic() - began, 1),
        "parameters": asdict(chosen),
        "machine": machine(),
    }


class _Try:
    """Runs one pair of drivers."""

    def __init__(
        self, job: kill.KillParameters, work: Path, moment_s: float, paused_s: float
    ) -> None:
        self._job = job
        self._work = work
        self._moment_s = moment_s
        self._paused_s = paused_s
        self._store = Checkpoint(kill.place(job, work))

    def result(self) -> dict[str, Any]:
        with open(self._work / "first", "wb") as said:
            first = subprocess.Popen(
                self._command("first"),
                env=spark_env(),
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            return self._compared(first)
        finally:
            if first.poll() is None:
                os.killpg(first.pid, signal.SIGKILL)
            first.wait()

    def _compared(self, first: subprocess.Popen[bytes]) -> dict[str, Any]:
        self._await_steps(first)
        time.sleep(self._moment_s)
        if first.poll() is not None:
            raise EngineError(self._said("the first driver ended before it was stopped:"))
        os.killpg(first.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        if not self._store.files.shared:
            (self._store.root / "driver.lock").unlink()
        second = child(self._command("second"), spark_env(), 300.0)
        time.sleep(max(0.0, stopped_s + self._paused_s - time.monotonic()))
        before = self._left()
        os.killpg(first.pid, signal.SIGCONT)
        failed = []
        try:
            first.wait(_WAKE_S)
        except subprocess.TimeoutExpired:
            failed.append("the driver that woke did not end")
        who = re.search(
            r"from another driver already \(host \S+, process (\d+), started [0-9: -]+ UTC\)",
            (self._work / "first").read_text(errors="replace"),
        )
        told = who is not None and int(who[1]) == second["pid"]
        if not told:
            said = (self._work / "first").read_text(errors="replace").strip().splitlines()
            failed.append(
                f"the driver that woke does not say who the other one is, but: {said[-1:]}"
            )
        if self._left() != before:
            failed.append("the driver that woke has changed the checkpoint or the output")
        found = child(self._command("compare"), spark_env(), 300.0)
        if not found["verified"]:
            failed.append(f"{found['missing']} rows are missing and {found['extra']} too many")
        return {"rows_compared": found["rows_compared"], "told": told, "failed": failed}

    def _await_steps(self, first: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + 180.0
        while True:
            if first.poll() is not None or time.monotonic() > until_s:
                raise EngineError(self._said("the first driver did not get far:"))
            try:
                if max(self._store.steps(), default=-1) >= _FIRST_STEPS:
                    return
            except CheckpointError:
                pass  # not begun yet
            time.sleep(_POLL_S)

    def _said(self, what: str) -> str:
        said = (self._work / "first").read_text(errors="replace").splitlines()
        return "\n".join([what, *said[-12:]])

    def _left(self) -> dict[str, Any]:
        """Return the manifests' digests and the sink's log, which the first driver must not change."""
        store = Checkpoint(self._store.location)  # a new one, without cached manifests
        log = self._work / TABLE / "_spark_metadata"
        return {
            "manifests": {step: store.read(step).digest for step in store.steps()},
            "sink": {p.name: p.read_text() for p in log.iterdir() if not p.name.startswith(".")},
        }

    def _command(self, what: str) -> list[str]:
        request = {"directory": str(self._work), "parameters": asdict(self._job)}
        name = "headgate_lab.bench.two_drivers"
        return [sys.executable, "-m", name, "--child", what, json.dumps(request)]


# --- in the child --------------------------------------------------------------------------------


def _child(what: str, request: Mapping[str, Any]) -> None:
    job, work = kill.KillParameters(**request["parameters"]), Path(request["directory"])
    spark = session(
        master="local[2]", name="bench-two", **{"spark.local.dir": str(work / f"local-{what}")}
    )
    sources.register(spark)
    if what == "first":
        kill.live(spark, replace(job, us_per_row=0.0), work)
    elif what == "second":
        kill.serve_rest(spark, job, work)
        print(json.dumps({"pid": os.getpid()}))
    else:
        print(json.dumps(kill.compared(spark, job, work)))
    spark.stop()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="One of two drivers.")
    arguments.add_argument("--child", nargs=2, required=True)
    kind, text = arguments.parse_args().child
    _child(kind, json.loads(text))
