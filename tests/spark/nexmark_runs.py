"""Runs of some NEXMark queries at once; as a program, a run that will be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import headgate as hg
from headgate.engines.spark import queries, sources
from headgate.state.checkpoint import Checkpoint

EVENTS, BATCH, PER_S = 3_000, 500, 50
BASE_US = 1_700_000_000_000_000
LONGEST_S = 12
STATELESS = ("q0", "q1", "q2")
STATEFUL = ("q3", "q4", "q5", "q6", "q7", "q8")
GROUPS = (("q0", "q3", "q6"), ("q1", "q4", "q7"), ("q2", "q5", "q8"))
"""Queries that run at once: each start takes seconds of a core, and nine would starve each other."""

STEPS = 7
"""Steps of a stateful query over all events."""

_POLL_S = 0.02
_LIFE_S = 240.0


def frame(session: SparkSession, name: str, seed: int) -> DataFrame:
    """Return a query on the events of a seed."""
    more = {"longest": f"{LONGEST_S} seconds"} if name in ("q4", "q6") else {}
    made: DataFrame = getattr(queries, name)(
        session,
        **more,
        seed=str(seed),
        rate=str(PER_S),
        events=str(EVENTS),
        batch_rows=str(BATCH),
        base=str(BASE_US),
    )
    return made


def start(
    session: SparkSession, names: Sequence[str], seed: int, place: Path, *, slots: int
) -> dict[str, Any]:
    """Start some queries, each with a folder of its own in `place`; return them by name."""
    started = {}
    for name in names:
        made = hg.writeStream(frame(session, name, seed)).queryName(name).format("parquet")
        made = made.option("path", str(place / name / "out"))
        made = made.option("checkpointLocation", str(place / name / "checkpoint"))
        started[name] = made.slots(start=slots).trigger(availableNow=True).start()
    return started


def finish(started: dict[str, Any], *, changes: random.Random | None = None) -> None:
    """Wait until all queries have ended; with `changes`, scale them at random times until then."""
    stateful = [query for name, query in started.items() if name in STATEFUL]
    while changes is not None and any(query.isActive for query in stateful):
        for query in stateful:
            if changes.random() < 0.5:
                query.scale(changes.randint(1, 4))
        stateful[-1].awaitTermination(changes.random())
    for query in started.values():
        query.awaitTermination()


def steps(place: Path) -> int:
    """Return how many steps all queries together have committed."""
    stores = (Checkpoint(place / name / "checkpoint") for name in STATEFUL)
    return sum(len(s.steps()) for s in stores if (s.root / "manifests").is_dir())


def kill_at(names: Sequence[str], seed: int, place: Path, *, committed: int, whom: str) -> None:
    """Run queries in a process of their own and kill it.

    Parameters
    ----------
    names : sequence of str
    seed : int
    place : Path
    committed : int
        The kill comes with the step that makes it so many.
    whom : str
        *driver*: Python alone, which its JVM outlives for a moment; *group*: its process group.
    """
    with open(place / "said", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, __file__, str(place), str(seed), *names],
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    end_s = time.monotonic() + _LIFE_S
    while steps(place) < committed and process.poll() is None and time.monotonic() < end_s:
        time.sleep(_POLL_S)
    struck = process.poll() is None and time.monotonic() < end_s
    if whom == "driver":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert struck, f"it was not there to be killed: {(place / 'said').read_text()[-2000:]}"
    assert process.returncode == -signal.SIGKILL


def _live(place: Path, seed: int, names: Sequence[str]) -> None:
    session = hg.session(master="local[2]", name="to be killed")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    sources.register(session)
    finish(start(session, names, seed, place, slots=2))


if __name__ == "__main__":
    _live(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
