"""A program that runs generated queries in real time, in a session with cores for all sources.

``python real_time_grammar.py FOLDER HAPPENINGS SEED ...`` prints a line of JSON for each: its fault, or
nothing. While a query runs, its slots change, processes are killed, and micro-batches go on in between.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grammar_data
import pytest
import real_time_files
from generated import generate
from grammar import Query
from grammar_forms import FORMS
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from test_grammar import _SETTINGS, UNJUDGED, expected
from written import counted, final, shape

import headgate as hg
from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.plans import analysed
from headgate.spark.jvm.streams import option_of, streams_of

LEFT_OUT = "NOT IN REAL TIME"
HAPPENINGS = {
    "nothing": ("nothing",),
    "changes": ("nothing", "scale", "remap"),
    "all": ("nothing", "scale", "remap", "switch", "kill"),
}
"""What may happen before a file comes, by name."""


class Run:
    """One query, run until all files are in it.

    Parameters
    ----------
    place : Path
        Of the run's files.
    """

    def __init__(self, spark: SparkSession, folder: Path, place: Path, query: Query) -> None:
        self.spark, self.query, self.place = spark, query, place
        self.released = real_time_files.Released(place / "released")
        self.released.release(0)
        self.build = lambda: query.build(
            real_time_files.Given(spark, folder, run=self.released.folder)
        )
        self.batches: dict[int, list[Any]] = {}
        self.came_again = 0
        self.shape: list[tuple[str, str]] = []
        self.done: list[str] = []
        """What happened, in order."""

    def keep(self, batch: DataFrame, batch_id: int) -> None:
        self.came_again += batch_id in self.batches
        self.batches[batch_id] = batch.collect()
        self.shape = shape(batch)

    def start(self, *, real_time: bool, slots: int) -> Any:
        frame = self.build()
        leaves = streams_of(analysed(frame))
        self.released.together(str(option_of(leaf, "stream")) for leaf in leaves)
        made = hg.writeStream(frame).outputMode(self.query.mode).slots(start=slots).keyGroups(16)
        made = made.option("checkpointLocation", str(self.place / "checkpoint"))
        made = made.foreachBatch(self.keep)
        if real_time:
            made = made.option("headgate.experimental.realTime", "true")
            return made.trigger(realTime="5 minutes").start()
        return made.trigger(processingTime="0 seconds").start()

    def go(self, rng: random.Random, happenings: tuple[str, ...]) -> None:
        """Release one file after the other; before each something may happen."""
        query = self.start(real_time=True, slots=rng.randint(1, 3))
        real_time = True
        try:
            for files in range(1, real_time_files.COUNT + 1):
                happening = rng.choice(happenings)
                self.done.append(happening)
                if happening == "scale":
                    query.scale(rng.randint(1, 4))
                elif happening == "remap":
                    slots = next(iter(query.assignment().values())).slots
                    query.remap({rng.randrange(16): rng.randrange(slots) for _ in range(5)})
                elif happening == "switch":
                    query.stop()
                    real_time = not real_time
                    query = self.start(real_time=real_time, slots=rng.randint(1, 3))
                self.released.release(files)
                if happening == "kill" and real_time:
                    self._kill(query, rng)
                query.processAllAvailable()
                assert query.isActive, query.exception()
        finally:
            query.stop()
        if query.exception() is not None:
            raise query.exception()

    def _kill(self, query: Any, rng: random.Random) -> None:
        query._end.wait(rng.random() * 0.3)
        processes = query.processes
        if not processes:
            return  # it has not begun yet
        name = rng.choice(sorted(processes))
        self.done.append(name)
        with suppress(ProcessLookupError):
            os.kill(processes[name], signal.SIGKILL)

    def rows(self) -> Counter[str]:
        steps = [self.batches[step] for step in sorted(self.batches)]
        keys = [] if self.query.stream else self.query.keys
        return counted(self.spark, final(steps, self.query.mode, keys))


def outcome(
    spark: SparkSession, folder: Path, place: Path, seed: int | str, happenings: tuple[str, ...]
) -> str:
    """Return nothing where all is well, and what is wrong with a query otherwise; a form has a name."""
    query = FORMS[seed] if isinstance(seed, str) else generate(seed)[0]
    query = replace(query, text=query.text or f"{query.mode}: {seed}")
    try:
        wanted, wanted_shape = expected(spark, folder, query)
    except (AnalysisException, StreamingQueryException) as error:
        return f"{UNJUDGED} {query.text}\n    {str(error)[:300]}"
    run = Run(spark, folder, place, query)
    try:
        run.go(random.Random(f"real time {seed}"), happenings)
    except UnsupportedQuery as error:
        return f"{LEFT_OUT} {query.text}\n    {error}"
    except Exception as error:
        told = f"{type(error).__name__}: {str(error)[:900]}"
        return f"FAILED {query.text}\n    {run.done} {told}"
    got = run.rows()
    if got != wanted:
        missing, extra = wanted - got, got - wanted
        return (
            f"WRONG {query.text}\n    {run.done}\n"
            f"    missing {missing.total()} {list(missing)[:2]}\n"
            f"    extra {extra.total()} {list(extra)[:2]}"
        )
    if run.came_again:
        return f"AGAIN {query.text}\n    {run.done}"
    if run.shape and run.shape != wanted_shape:
        return f"SCHEMA {query.text}\n    {run.shape}\n    wanted {wanted_shape}"
    return ""


def session_of(folder: Path) -> SparkSession:
    """Return a session in which queries can run, with their files in a folder."""
    spark = hg.session(master="local[16]", name="real-time")
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    real_time_files.install(pytest.MonkeyPatch(), spark)
    grammar_data.write(folder)
    real_time_files.prepare(spark, folder)
    return spark


def main() -> None:
    folder, happenings = Path(sys.argv[1]), HAPPENINGS[sys.argv[2]]
    spark = session_of(folder / "files")
    for name in sys.argv[3:]:
        seed = int(name) if name.isdigit() else name
        started_s = time.monotonic()
        wrong = outcome(spark, folder / "files", folder / str(name), seed, happenings)
        line = {"seed": seed, "wrong": wrong, "seconds": round(time.monotonic() - started_s, 1)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
