"""A program that runs generated queries in real time, in a session with cores for all sources.

``python real_time_grammar.py FOLDER HAPPENINGS QUERY ...`` prints a line of JSON for each: its fault, or
nothing. While a query runs, its slots change, processes are killed, and micro-batches go on in between.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grammar_data
import nexmark_oracle as oracle
import nexmark_runs as runs
import pyarrow as pa
import pytest
import real_time_files
from generated import generate
from grammar import Query
from grammar_forms import FORMS
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from test_grammar import _SETTINGS, UNJUDGED, expected
from written import counted, final, shape

import headgate as hg
from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.plans import analysed
from headgate.spark.jvm.streams import option_of, streams_of
from headgate_demo.generators import nexmark
from headgate_demo.spark import queries

Build = Callable[[Path], DataFrame]

LEFT_OUT = "NOT IN REAL TIME"
BACKLOG = "two streams with a backlog"
_MOST_SLOTS = 4
HAPPENINGS = {
    "nothing": ("nothing",),
    "changes": ("nothing", "scale", "remap"),
    "all": ("nothing", "scale", "remap", "switch", "kill"),
}
"""What may happen before a file comes, by name."""


class Run:
    """One query, run until all files are in it; `newest` is the last one made.

    Parameters
    ----------
    place : Path
        Of the run's files.
    build : callable
        From where it is said which files there are to the query.
    mode : str
    files : int
        Of each stream.
    """

    newest: Run | None = None

    def __init__(self, place: Path, build: Build, mode: str, files: int) -> None:
        self.place, self.mode, self.files = place, mode, files
        self.released = real_time_files.Released(place / "released")
        self.released.release(0)
        self.build = build
        self.batches: dict[int, list[Any]] = {}
        self.came_again = 0
        self.shape: list[tuple[str, str]] = []
        self.done: list[str] = []
        """What happened, in order."""
        Run.newest = self

    def keep(self, batch: DataFrame, batch_id: int) -> None:
        self.came_again += batch_id in self.batches
        self.batches[batch_id] = batch.collect()
        self.shape = shape(batch)

    def start(self, *, real_time: bool, slots: int) -> Any:
        frame = self.build(self.released.folder)
        leaves = streams_of(analysed(frame))
        self.released.together(str(option_of(leaf, "stream")) for leaf in leaves)
        made = hg.writeStream(frame).outputMode(self.mode).slots(start=slots).keyGroups(16)
        made = made.option("checkpointLocation", str(self.place / "checkpoint"))
        made = made.foreachBatch(self.keep)
        if real_time:
            return made.trigger(realTime="5 minutes").start()
        return made.trigger(processingTime="0 seconds").start()

    def go(self, rng: random.Random, happenings: tuple[str, ...]) -> None:
        """Release one file after the other; before each something may happen."""
        query = self.start(real_time=True, slots=rng.randint(1, 3))
        real_time, requested = True, _MOST_SLOTS
        try:
            for files in range(1, self.files + 1):
                happening = rng.choice(happenings)
                self.done.append(happening)
                if happening == "switch" and all(
                    one.startswith("pass") for one in query.assignment()
                ):
                    happening = "nothing"  # what has no state has no steps in micro-batches
                if happening == "scale":
                    requested = rng.randint(1, _MOST_SLOTS)
                    query.scale(requested)
                elif happening == "remap":
                    # what was requested may be in force by now, or not yet: these slots are in both
                    slots = min(requested, *(held.slots for held in query.assignment().values()))
                    query.remap({rng.randrange(16): rng.randrange(slots) for _ in range(5)})
                elif happening == "switch":
                    query.stop()
                    real_time, requested = not real_time, _MOST_SLOTS
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

    @property
    def steps(self) -> list[list[Any]]:
        """The rows of each step."""
        return [self.batches[step] for step in sorted(self.batches)]

    def fault(self, got: Counter[Any], wanted: Counter[Any]) -> str:
        """Return what is wrong with the rows that came."""
        missing, extra = wanted - got, got - wanted
        if missing or extra:
            return (
                f"WRONG {self.done}\n    missing {missing.total()} {list(missing)[:2]}\n"
                f"    extra {extra.total()} {list(extra)[:2]}"
            )
        return f"AGAIN {self.done}" if self.came_again else ""


def nexmark_outcome(
    spark: SparkSession, folder: Path, place: Path, name: str, happenings: tuple[str, ...]
) -> str:
    """Return what is wrong with a query of NEXMark, named as ``q5 3`` with its seed."""
    query, seed = name.split()
    schema = json.dumps(from_arrow_schema(nexmark.schema(None)).jsonValue())
    files = runs.EVENTS // runs.BATCH
    for number in range(files):
        begin = number * runs.BATCH
        made = nexmark.events(runs.config(int(seed)), begin, begin + runs.BATCH, runs.BASE_US, None)
        real_time_files.keep(folder, f"nexmark {seed}", number, pa.Table.from_batches([made]))

    def build(released: Path) -> DataFrame:
        stream = real_time_files.stream(spark, folder, released, f"nexmark {seed}", schema)
        made: DataFrame = getattr(queries, query)(_Recorded(stream), **runs.more_options(query))
        return made

    run = Run(place, build, "append", files)
    run.go(random.Random(f"real time {name}"), happenings)
    got = Counter(oracle.ROWS[query](row) for step in run.steps for row in step)
    wanted = oracle.expected(query, oracle.events(int(seed)), place / "checkpoint")
    assert wanted or seed != "0", "the first seed must show something"
    return run.fault(got, wanted)


@dataclass
class _Recorded:
    """A session as NEXMark's queries use it."""

    stream: DataFrame

    def __getattr__(self, name: str) -> Any:
        return self

    def format(self, name: str) -> Any:
        return self

    def options(self, **given: str) -> Any:
        return self

    def load(self) -> DataFrame:
        return self.stream


def backlog_outcome(spark: SparkSession, folder: Path, place: Path) -> str:
    """Return what is wrong with a union under one watermark of a short and a long stream of one time.

    A file comes with each epoch, so the one file of the short stream is read while the long one begins.
    """
    minutes, files = 24, 12
    every = [datetime.datetime.fromtimestamp(60 * n, datetime.UTC) for n in range(minutes)]
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    streams = []
    for name, parts in (("short", 1), ("long", files)):
        released = real_time_files.Released(place / name)
        released.release(parts)
        released.together([name])
        for number in range(parts):
            mine = every[number * minutes // parts : (number + 1) * minutes // parts]
            real_time_files.keep(folder, name, number, pa.table({"at": mine}, schema))
        streams.append(real_time_files.stream(spark, folder, released.folder, name, "at timestamp"))
    both = streams[0].union(streams[1]).withWatermark("at", "0 seconds")
    counted = both.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n"))
    got: list[Any] = []
    made = hg.writeStream(counted).outputMode("append").slots(start=2).keyGroups(16)
    made = made.foreachBatch(lambda frame, _: got.extend(frame.collect()))
    made = made.option("checkpointLocation", str(place / "checkpoint"))
    query = made.trigger(realTime="5 minutes").start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    counts = [row.n for row in sorted(got, key=lambda row: row.window.start)]
    return "" if counts == [2] * (minutes - 1) else f"WRONG counts {counts}"


def outcome(
    spark: SparkSession, folder: Path, place: Path, name: str, happenings: tuple[str, ...]
) -> str:
    """Return nothing where all is well, and what is wrong with a query otherwise.

    Parameters
    ----------
    name : str
        A seed, a form's name, a query of NEXMark with a seed, as ``q5 3``, or `BACKLOG`. What happens to
        a query is drawn by this name: ``17/2`` is query 17 again, and other things happen.
    """
    try:
        if name == BACKLOG:
            return backlog_outcome(spark, folder, place)
        if re.fullmatch(r"q\d \d+", name):
            return nexmark_outcome(spark, folder, place, name, happenings)
        seed, _, _ = name.partition("/")
        query = generate(int(seed))[0] if seed.isdigit() else FORMS[name]
        return generated_outcome(spark, folder, place, query, name, happenings)
    except Exception:
        return f"FAILED {traceback.format_exc()[-1500:]}"


def sparks_stream(
    spark: SparkSession, folder: Path, place: Path, query: Query
) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Return the answer of Spark's own stream, which waits behind each file as `Run.go` does.

    Where a timeout counts from the watermark of its batch, the batches decide: those without a file, too.
    """
    released = real_time_files.Released(place / "plain")
    released.release(0)
    frame = query.build(real_time_files.Given(spark, folder, run=released.folder))
    rows: list[Any] = []
    made = frame.writeStream.outputMode(query.mode)
    made = made.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
    stream = made.option("checkpointLocation", str(place / "plain-checkpoint")).start()
    try:
        for files in range(1, grammar_data.FILES + 1):
            released.release(files)
            stream.processAllAvailable()
    finally:
        stream.stop()
    return counted(spark, rows), shape(frame)


def generated_outcome(
    spark: SparkSession,
    folder: Path,
    place: Path,
    query: Query,
    name: str,
    happenings: tuple[str, ...],
) -> str:
    """Return the same of a generated query, or of a form."""
    text = query.text or f"{query.mode}: {name}"
    try:
        if query.stream and query.mode != "complete":
            wanted, wanted_shape = sparks_stream(spark, folder, place, query)
        else:
            wanted, wanted_shape = expected(spark, folder, query)
    except (AnalysisException, StreamingQueryException) as error:
        return f"{UNJUDGED} {text}\n    {str(error)[:300]}"

    def build(released: Path) -> DataFrame:
        return query.build(real_time_files.Given(spark, folder, run=released))

    run = Run(place, build, query.mode, grammar_data.FILES)
    try:
        run.go(random.Random(f"real time {name}"), happenings)
    except UnsupportedQuery as error:
        return f"{LEFT_OUT} {text}\n    {error}"
    except Exception as error:
        return f"FAILED {text}\n    {run.done} {type(error).__name__}: {str(error)[:900]}"
    keys = [] if query.stream else query.keys
    fault = run.fault(counted(spark, final(run.steps, query.mode, keys)), wanted)
    if not fault and run.shape and run.shape != wanted_shape:
        fault = f"SCHEMA {run.shape}\n    wanted {wanted_shape}"
    return fault and f"{text}\n    {fault}"


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
    for number, name in enumerate(sys.argv[3:]):
        started_s = time.monotonic()
        wrong = outcome(spark, folder / "files", folder / str(number), name, happenings)
        seconds = round(time.monotonic() - started_s, 1)
        line = {"query": name, "wrong": wrong, "seconds": seconds}
        line["happened"] = [] if Run.newest is None else Run.newest.done
        Run.newest = None
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
