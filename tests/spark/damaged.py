"""Damages to the files of a checkpoint, drawn by lot, and what a restart makes of each.

``python tests/spark/damaged.py --count 200 --seed 28`` prints a table by kind of source and of damage:
how many restarts were refused by name, gave the right answer, or gave another one and said nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.spark_log import newest_batch, newest_note
from headgate.core.errors import CheckpointError
from headgate_demo.spark.broker import Broker
from headgate_demo.spark.sources import register
from headgate_demo.spark.topics import make_topic, put
from headgate_lab.testing.kafka import add_connector

WAIT_S = 120
ROWS = 40
"""Records of a file, and of a window that is whole."""

SOURCES = ("files", "rate", "python")
"""Kinds of source that need nothing beside Spark."""

DAMAGES = ("bit", "digit", "cut", "gone", "swapped", "older", "foreign")
"""What is done to one file."""

BACK = ("all", "spark", "headgate", "offsets", "commits", "sources")
"""What is put back as it was before: the whole checkpoint, or a part of it."""

REMEDIES = ("restore", "headgate inspect", "checkpointlocation", "newest checkpoint")
"""Words of what to do, one of which is in every refusal, beside the file."""

BEHIND = "behind its output"
"""What is said of a checkpoint that is well, and older than what its sink has."""

PARTS = (
    "offsets", "commits", "sources", "metadata",
    "headgate/manifests", "headgate/intents", "headgate/changelog", "headgate",
)  # fmt: skip
"""Directories that damages are drawn from alike, however many files they have."""


@dataclass(frozen=True)
class Base:
    """A checkpoint to be damaged, with what belongs to it.

    Attributes
    ----------
    name : str
    place : Path
        Where the query runs; `kept` and `older` are put there again.
    kept, older : Path
        Its checkpoint and output at the end, and before.
    start : callable
        Starts the query, which ends by itself.
    answer : callable
        Returns what is in the output by now, each row with its count.
    wrong : callable
        Returns what is wrong with such an answer, an empty text if nothing.
    knows : bool
        Whether the sink knows what it has; of a function nobody knows what it wrote, so that a whole
        checkpoint that is older than its output cannot be told.
    """

    name: str
    place: Path
    kept: Path
    older: Path
    start: Callable[[], Any]
    answer: Callable[[], Counter[Any]]
    wrong: Callable[[Counter[Any]], str]
    knows: bool


def made_base(
    spark: SparkSession, kind: str, place: Path, *, running: bool, sink: str = "foreachBatch"
) -> Base:
    """Run a query twice, with a copy after each run, and add the input of a third.

    Parameters
    ----------
    spark : SparkSession
    kind : str
        Of the source: ``files``, ``rate``, ``python``, or the servers of a Kafka broker.
    place : Path
    running : bool
        Whether the copy is made while the query rests, as a driver leaves it that is killed; else
        after its end.
    sink : str
        ``parquet``, or a function that keeps the newest rows of each batch's number.
    """
    out = place / "out"
    inputs = _Inputs(spark, kind, place / "in")

    def start(**trigger: Any) -> Any:
        made = hg.writeStream(windows(inputs.stream())).keyGroups(8).slots(start=2)
        made = made.option("checkpointLocation", str(place / "ck"))
        made = made.trigger(**(trigger or {"availableNow": True}))
        if sink == "foreachBatch":
            return made.foreachBatch(_keeper(out)).start()
        return made.format(sink).option("path", str(out)).start()

    def answer() -> Counter[Any]:
        if sink == "foreachBatch":
            rows = [row for file in out.glob("*.json") for row in json.loads(file.read_text())]
            return Counter(map(tuple, rows))
        return Counter((row.s, row.n) for row in spark.read.parquet(str(out)).collect())

    inputs.add(6, at_once=2)
    start().awaitTermination(WAIT_S)
    _copy(place, place / "older")
    inputs.add(10, at_once=2)
    if running:
        batches = newest_batch(place / "ck") + 2
        query = start(processingTime="0 seconds")
        if kind == "rate":  # there is always something new
            until_s = time.monotonic() + WAIT_S
            while newest_batch(place / "ck") < batches and time.monotonic() < until_s:
                time.sleep(0.1)
        else:
            query.processAllAvailable()
        time.sleep(1.5)  # Spark's log is noted twice a second, and a killed driver does no more
        _copy(place, place / "kept")
        until_s = time.monotonic() + WAIT_S
        while not _is_noted(place / "kept" / "ck") and time.monotonic() < until_s:
            _copy(place, place / "kept")
        query.stop()
    else:
        start().awaitTermination(WAIT_S)
        _copy(place, place / "kept")
    inputs.add(6, at_once=5)
    knows = sink != "foreachBatch"
    name = "kafka" if ":" in kind else kind
    return Base(name, place, place / "kept", place / "older", start, answer, inputs.wrong, knows)


def _is_noted(checkpoint: Path) -> bool:
    """Return whether headgate knows of Spark's newest batch, so that nobody can take it away unseen."""
    note = newest_note(Checkpoint(checkpoint), Checkpoint(checkpoint).latest())
    return note is not None and note["batch"] == newest_batch(checkpoint)


def windows(stream: DataFrame) -> DataFrame:
    """Return how many records there are in each window of 40 s that is over."""
    timed = stream.withWatermark("t", "10 seconds").groupBy(F.window("t", f"{ROWS} seconds"))
    return timed.agg(F.count("*").alias("n")).select(F.unix_seconds("window.start").alias("s"), "n")


class _Inputs:
    """The input of a query: records whose times are their numbers, one a second."""

    def __init__(self, spark: SparkSession, kind: str, folder: Path) -> None:
        self._spark, self._kind, self._folder = spark, kind, folder
        self._at_once = 1
        self.files = 0
        folder.mkdir(parents=True)
        self._topic = f"damaged-{abs(hash(folder))}"
        if self._is_kafka:
            make_topic(kind, self._topic, 2)

    @property
    def _is_kafka(self) -> bool:
        return ":" in self._kind

    def add(self, files: int, *, at_once: int) -> None:
        """Add files, of which a batch takes so many; more rows of other sources."""
        self._at_once = at_once
        for number in range(self.files, self.files + files):
            file = self._folder / f"{number}.json"
            rows = range(number * ROWS, (number + 1) * ROWS)
            file.write_text("".join(f'{{"n": {n}}}\n' for n in rows))
            os.utime(file, (1000 + number, 1000 + number))
            if self._is_kafka:
                put(self._kind, self._topic, ({"value": str(n), "partition": n % 2} for n in rows))
        self.files += files
        if self._kind == "rate":
            time.sleep(0.5)

    def stream(self) -> DataFrame:
        if self._kind == "files":
            reader = self._spark.readStream.schema("n bigint")
            made = reader.option("maxFilesPerTrigger", self._at_once).json(str(self._folder))
        elif self._kind == "rate":
            made = self._spark.readStream.format("rate").option("rowsPerSecond", 100).load()
            made = made.withColumnRenamed("value", "n")
        elif self._is_kafka:
            reader = self._spark.readStream.format("kafka").option("subscribe", self._topic)
            reader = reader.option("kafka.bootstrap.servers", self._kind)
            reader = reader.option("startingOffsets", "earliest")
            made = reader.option("maxOffsetsPerTrigger", self._at_once * ROWS).load()
            made = made.select(F.col("value").cast("string").cast("bigint").alias("n"))
        else:
            reader = self._spark.readStream.format("nexmark").option("columns", "scheduled")
            options = {"events": self.files * ROWS, "rate": "1", "base": "0", "seed": 5}
            options |= {"batch_rows": self._at_once * ROWS, "partitions": 1}
            made = reader.options(**options).load()
            # its first event is due after a second
            return made.withColumn("t", F.expr("scheduled - interval 1 second"))
        return made.withColumn("t", F.timestamp_seconds("n"))

    def wrong(self, found: Counter[Any]) -> str:
        """Return what is wrong with an answer; empty for a right one."""
        last = max((start for start, _ in found), default=-ROWS)
        least = (self.files - 2) * ROWS if self._kind != "rate" else 0
        wanted = Counter((start, ROWS) for start in range(0, last + 1, ROWS))
        if found != wanted:
            return f"missing {sorted(wanted - found)[:3]}, extra {sorted((found - wanted).items())[:3]}"
        return "" if last >= least else f"ends at {last}, not {least}"


def _keeper(out: Path) -> Callable[[DataFrame, int], None]:
    out.mkdir(parents=True, exist_ok=True)

    def keep(frame: DataFrame, batch: int) -> None:
        (out / f"{batch}.json").write_text(json.dumps([tuple(row) for row in frame.collect()]))

    return keep


def _copy(place: Path, to: Path) -> None:
    """Copy a checkpoint and its output as they are between two batches."""
    until_s = time.monotonic() + WAIT_S
    while True:
        with contextlib.suppress(OSError):  # a query that runs makes files that are gone again
            before = _listing(place)
            for name in ("ck", "out"):
                if (place / name).exists():
                    ignored = shutil.ignore_patterns("*.tmp")
                    shutil.copytree(place / name, to / name, ignore=ignored)
            if _listing(place) == before:
                return
        assert time.monotonic() < until_s, "the query does not rest"
        shutil.rmtree(to, ignore_errors=True)


def _listing(place: Path) -> list[tuple[str, int]]:
    """Return the names of the files of both, and their sizes."""
    every = (file for name in ("ck", "out") for file in (place / name).rglob("*"))
    files = sorted(file for file in every if not file.name.endswith(".tmp"))
    return [(str(file), file.lstat().st_size) for file in files]


def put_back(base: Base) -> None:
    """Put a base's checkpoint and output where its query runs."""
    for name in ("ck", "out"):
        shutil.rmtree(base.place / name, ignore_errors=True)
        shutil.copytree(base.kept / name, base.place / name)


def drawn(rng: random.Random, base: Base, others: Sequence[Base]) -> tuple[str, str]:
    """Damage what was put back, by lot; return the kind of damage and what it was done to."""
    checkpoint = base.place / "ck"
    if rng.random() < 0.08:
        part = rng.choice([part for part in PARTS if (checkpoint / part).is_dir()])
        shutil.rmtree(checkpoint / part)
        return "part gone", part
    if rng.random() < 0.15:
        what = rng.choice(BACK if base.knows else BACK[1:])
        _go_back(base, what)
        return "older parts", what
    while True:
        part = rng.choice(PARTS)
        files = files_in(checkpoint, part)
        if files:
            file = rng.choice(files)
            kind = rng.choice(DAMAGES)
            if kind == "foreign":
                files = [
                    other.kept / "ck" / file.relative_to(checkpoint)
                    for other in others
                    if other is not base
                ]
            if damage(rng, kind, file, files):
                return kind, str(file.relative_to(checkpoint))


def files_in(checkpoint: Path, part: str) -> list[Path]:
    """Return the files of a part of a checkpoint, in order of their numbers."""
    place = checkpoint / part
    if place.is_file():
        return [place]
    found = place.iterdir() if part == "headgate" else place.rglob("*")
    files = [file for file in found if file.is_file() and not file.name.startswith("driver.")]
    return sorted(files, key=lambda file: (len(file.name), file.name))


def damage(rng: random.Random, kind: str, file: Path, beside: list[Path]) -> bool:
    """Damage a file; return whether it is another one now."""
    before = file.read_bytes()
    if kind == "gone":
        file.unlink()
        return True
    if kind == "foreign":
        there = [other for other in beside if other.exists()]
        file.write_bytes(rng.choice(there).read_bytes() if there else before)
    elif kind == "swapped":
        other = rng.choice(beside)
        file.write_bytes(other.read_bytes())
        other.write_bytes(before)
    elif kind == "older":
        file.write_bytes(beside[max(beside.index(file) - 1, 0)].read_bytes())
    elif kind == "cut":
        file.write_bytes(before[: rng.randrange(len(before))] if before else b"")
    elif kind == "digit":
        digits = [found.start() for found in re.finditer(rb"[0-9]", before)]
        if digits:
            place = rng.choice(digits)
            new = rng.choice([d for d in b"0123456789" if d != before[place]])
            file.write_bytes(before[:place] + bytes([new]) + before[place + 1 :])
    elif before:
        place = rng.randrange(len(before))
        new = before[place] ^ 1 << rng.randrange(8)
        file.write_bytes(before[:place] + bytes([new]) + before[place + 1 :])
    return file.read_bytes() != before


def _go_back(base: Base, what: str) -> None:
    """Put the older copy of a part of the checkpoint in the place of the newer one."""
    parts = {"all": [""], "spark": ["offsets", "commits", "sources"]}.get(what, [what])
    for part in parts:
        shutil.rmtree(base.place / "ck" / part, ignore_errors=True)
        if (base.older / "ck" / part).exists():
            shutil.copytree(
                base.older / "ck" / part,
                base.place / "ck" / part,
                ignore=shutil.ignore_patterns("*.tmp"),
            )


def restarted(base: Base) -> tuple[str, str]:
    """Start the damaged query; return ``equal``, ``refused``, ``unnamed`` or ``silent``, and the text."""
    try:
        query = base.start()
        if not query.awaitTermination(WAIT_S):
            query.stop()
            return "silent", "it did not end"
    except Exception as error:
        text = str(error)
        named = str(base.place) in text and any(remedy in text.lower() for remedy in REMEDIES)
        return "refused" if named else "unnamed", text
    wrong = base.wrong(base.answer())
    return ("silent", wrong) if wrong else ("equal", "")


def main() -> None:
    """Draw damages and print what came of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--sources", nargs="+", default=["files", "rate", "python", "kafka"])
    given = parser.parse_args()
    spark = hg.session(name="damaged", master="local[2]")
    register(spark)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
        servers = ""
        if "kafka" in given.sources:
            add_connector(spark)
            servers = ending.enter_context(Broker()).servers
        made = bases(spark, Path(folder), given.sources, servers, given.seed)
        check_sound(made)
        print_table(made, given.count, given.seed)
    spark.stop()


def bases(
    spark: SparkSession,
    folder: Path,
    sources: Sequence[str] = SOURCES,
    servers: str = "",
    turn: int = 0,
) -> list[Base]:
    """Return checkpoints of kinds of source, ended and killed in turn; `turn` is who begins."""
    made = []
    for number, source in enumerate(sources):
        kind = servers if source == "kafka" else source
        made.append(made_base(spark, kind, folder / f"{number}", running=(number + turn) % 2 == 1))
        if source == "files":
            place = folder / "out"
            made.append(made_base(spark, kind, place, running=False, sink="parquet"))
    return made


def check_sound(of: list[Base]) -> None:
    """See that each query goes on rightly where nothing is damaged."""
    for base in of:
        put_back(base)
        outcome = restarted(base)
        assert outcome == ("equal", ""), (base.name, outcome)


def print_table(of: list[Base], count: int, seed: int) -> Counter[Any]:
    """Do so many damages; return how often each came out, by source, damage and outcome.

    Of what is refused, ``inspect --verify`` has to find something as well: else it is ``unseen``.
    """
    rng = random.Random(seed)
    found: Counter[Any] = Counter()
    for number in range(count):
        base = of[number % len(of)]
        put_back(base)
        kind, what = drawn(rng, base, of)
        try:
            sound = hg.inspect(base.place / "ck", verify=True)["sound"]
        except CheckpointError:
            sound = False
        outcome, text = restarted(base)
        if outcome == "refused" and sound and BEHIND not in text:
            outcome = "unseen"
        found[base.name, kind, outcome] += 1
        line = " ".join(text.split())[:600]
        print(number, base.name, kind, what, outcome, line, sep=" | ", flush=True)
    columns = ("refused", "equal", "unnamed", "unseen", "silent")
    print("seed", seed, "damages", count)
    for source, kind in sorted({(s, k) for s, k, _ in found}):
        print(f"{source:8}{kind:14}", *(f"{c} {found[source, kind, c]:3}" for c in columns))
    print("together", {c: sum(n for (_, _, o), n in found.items() if o == c) for c in columns})
    return found


if __name__ == "__main__":
    main()
