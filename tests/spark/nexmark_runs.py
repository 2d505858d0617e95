"""Runs of some NEXMark queries at once; as a program, a run that will be killed.

Events come from files: a source in Python is a process of its own for each stream of each query, which
takes seconds of a core to start and says nothing about the queries. The other tests of NEXMark have it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.errors import EngineError
from headgate.workloads.rates import ConstantRate
from headgate_demo.generators import nexmark
from headgate_demo.generators.nexmark import NexmarkConfig
from headgate_demo.spark import queries

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


def config(seed: int) -> NexmarkConfig:
    """Return how the events of a seed are made."""
    return NexmarkConfig(seed=seed, rate=ConstantRate(PER_S))


def frame(session: SparkSession, name: str, seed: int, place: Path) -> DataFrame:
    """Return a query on the events of a seed, which lie in `place`, a file per batch."""
    files = place / "events"
    if not files.is_dir():
        _write_events(files, seed)
    made: DataFrame = getattr(queries, name)(_Recorded(session, files), **more_options(name))
    return made


def more_options(name: str) -> dict[str, str]:
    """Return what a query is told besides its source."""
    return {"longest": f"{LONGEST_S} seconds"} if name in ("q4", "q6") else {}


def _write_events(files: Path, seed: int) -> None:
    unnamed = files.with_suffix(".new")
    unnamed.mkdir(parents=True)
    for begin in range(0, EVENTS, BATCH):
        events = nexmark.events(config(seed), begin, begin + BATCH, BASE_US, None)
        path = unnamed / f"{begin:06d}.parquet"
        pa.parquet.write_table(pa.Table.from_batches([events]), path)
        # the file source takes the oldest first
        os.utime(path, (begin, begin))
    unnamed.rename(files)


class _Recorded:
    """A session as the queries use it, whose stream of events is read from files."""

    def __init__(self, session: SparkSession, files: Path) -> None:
        self._session, self._files = session, files

    @property
    def readStream(self) -> _Recorded:
        return self

    def format(self, name: str) -> _Recorded:
        assert name == "nexmark", name
        return self

    def options(self, **given: str) -> _Recorded:
        return self

    def load(self) -> DataFrame:
        reader = self._session.readStream.schema(from_arrow_schema(nexmark.schema(None)))
        return reader.option("maxFilesPerTrigger", 1).parquet(str(self._files))


def start(
    session: SparkSession, names: Sequence[str], seed: int, place: Path, *, slots: int
) -> dict[str, Any]:
    """Start some queries, each with a folder of its own in `place`; return them by name."""
    started = {}
    for name in names:
        made = hg.writeStream(frame(session, name, seed, place)).queryName(name).format("parquet")
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
                with contextlib.suppress(EngineError):  # it may be at its end
                    query.scale(changes.randint(1, 4))
            query.awaitTermination(changes.random() * 0.4)
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
    due = steps(place) >= committed
    with contextlib.suppress(ProcessLookupError):
        if whom == "driver":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    said_last = (place / "said").read_text()[-2000:]
    assert process.wait() == -signal.SIGKILL, f"it ended by itself: {said_last}"
    assert due, f"it did not come so far: {said_last}"


def _live(place: Path, seed: int, names: Sequence[str]) -> None:
    session = hg.session(master="local[2]", name="to be killed")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    finish(start(session, names, seed, place, slots=2))


if __name__ == "__main__":
    _live(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
