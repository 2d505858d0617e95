"""Runs of all NEXMark queries at once; as a program, the run of one seed that will be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
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
NAMES = (*STATELESS, *STATEFUL)

STARTED, STEPS_MAX = 6, 24
"""The kill comes when so many steps of all queries together are committed: each query has a first one
or is about to, and none of them all of its seven. Chosen, not tuned."""

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


def start(session: SparkSession, seed: int, place: Path, *, slots: int) -> dict[str, Any]:
    """Start all queries, each with a folder of its own in `place`; return them by name."""
    started = {}
    for name in NAMES:
        made = hg.writeStream(frame(session, name, seed)).queryName(name).format("parquet")
        made = made.option("path", str(place / name / "out"))
        made = made.option("checkpointLocation", str(place / name / "checkpoint"))
        started[name] = made.slots(start=slots).trigger(availableNow=True).start()
    return started


def finish(started: dict[str, Any], *, changes: random.Random | None = None) -> None:
    """Wait until all queries have ended; with `changes`, scale them at random times until then."""
    slots_max = 4
    for name, query in started.items():
        while changes is not None and name in STATEFUL and query.isActive:
            for other in STATEFUL:
                if started[other].isActive and changes.random() < 0.5:
                    started[other].scale(changes.randint(1, slots_max))
            query.awaitTermination(changes.random())
        query.awaitTermination()


def steps(place: Path) -> int:
    """Return how many steps all queries together have committed."""
    stores = (Checkpoint(place / name / "checkpoint") for name in STATEFUL)
    return sum(len(s.steps()) for s in stores if (s.root / "manifests").is_dir())


def kill_at(place: Path, seed: int, committed: int, whom: str) -> int:
    """Run the queries in a process of their own and kill it; return the steps it left committed.

    Parameters
    ----------
    place : Path
    seed : int
    committed : int
        The kill comes with the step that makes it so many.
    whom : str
        *driver*: Python alone, which its JVM outlives for a moment; *group*: its process group.
    """
    with open(place / "said", "wb") as said:
        process = subprocess.Popen(
            [sys.executable, __file__, str(place), str(seed)],
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
    return steps(place)


def _live(place: Path, seed: int) -> None:
    session = hg.session(master="local[2]", name="to be killed")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    sources.register(session)
    finish(start(session, seed, place, slots=2))


if __name__ == "__main__":
    _live(Path(sys.argv[1]), int(sys.argv[2]))
