"""Runs a query by headgate and by Spark on the same files: checks a small answer, then times batches.

Each engine runs in its own process, ``python -m headgate_lab.bench.sides --engine X --request JSON``,
which prints one line of JSON: Spark's RocksDB store needs a file system that headgate's session replaces,
and one engine's garbage would be collected in another's time. First batches are excluded, and rates come
from Spark's `triggerExecution`, since the start of a query takes seconds and a batch tenths of a second.
`aggregate` does the same for the job that Flink and Python per key do as well.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame

from headgate.core.errors import ConfigError, EngineError, nearest
from headgate.spark.cluster.session import session
from headgate_lab.bench.common import (
    WrongAnswer,
    child,
    medians,
    progress,
    require,
    spark_env,
    spread,
)
from headgate_lab.bench.native import (
    HEADGATE,
    MEMORY,
    REPORTED,
    ROCKSDB,
    headgate_phases,
    triggers,
)

I64 = npt.NDArray[np.int64]
Rows = Mapping[str, I64]
"""Columns of whole numbers, of equal length."""

ENGINES: Mapping[str, Mapping[str, str]] = {
    HEADGATE: {},
    "spark-memory": MEMORY,
    "spark-rocksdb": ROCKSDB,
}
"""Settings of each engine in addition to those of all engines."""


@dataclass(frozen=True)
class SidesParameters:
    """Holds the parameters of every comparison on timed files."""

    batches: int = 4
    """Timed batches; more than `dropped_batches`."""

    dropped_batches: int = 1
    """First batches that are excluded from the rate."""

    seconds_per_batch: int = 10
    """Event time that a batch spans, in seconds; >= 1."""

    engines: str = ",".join(ENGINES)
    """Engines that run, separated by commas."""

    slots: int = 2
    """Slots of headgate, shuffle partitions of Spark, cores of both; >= 1."""

    seed: int = 0
    """Seed of the input."""

    timeout_s: float = 900.0
    """Time limit; an engine's process that takes longer is stopped and counts as failed."""

    def __post_init__(self) -> None:
        require(min(self.seconds_per_batch, self.slots) >= 1, "seconds and slots must be >= 1")
        require(
            self.batches > self.dropped_batches >= 0,
            f"batches ({self.batches}) must be more than dropped_batches ({self.dropped_batches})",
        )


@dataclass(frozen=True)
class Case:
    """Describes a query on a small input with a known answer, and on a large input.

    Attributes
    ----------
    name : str
        Name of the case, which the query function gets.
    check, timed : path
        Folders of the small and the large input, with a file per batch and stream.
    rows : int
        Rows of a timed batch, all streams together.
    exact : mapping of str to int64[n]
        The answer on `check`, in any order.
    last_of : str or None
        In update mode, the key column: the last row of each of its values counts. None: append mode.
    """

    name: str
    check: Path
    timed: Path
    rows: int
    exact: Rows
    last_of: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Runs a comparison of engines on some cases.

    Attributes
    ----------
    query : str
        ``module:function``; called with (session, folder, name of the case), it returns the frame.
    directory : path
        For checkpoints and answers.
    """

    query: str
    cases: Sequence[Case]
    directory: Path
    asked: SidesParameters

    def run(self) -> list[dict[str, Any]]:
        """Return an entry per engine and case: ``rows_per_s`` of its batches, or why it ``failed``.

        Raises
        ------
        WrongAnswer    An engine's answer is wrong.
        """
        return [entry for engine in engines_of(self.asked.engines) for entry in self._side(engine)]

    def _side(self, engine: str) -> list[dict[str, Any]]:
        work = self.directory / engine
        work.mkdir(parents=True)
        cases = [
            {"name": c.name, "check": str(c.check), "timed": str(c.timed), "mode": _mode(c)}
            for c in self.cases
        ]
        request = {
            "query": self.query,
            "cases": cases,
            "directory": str(work),
            "slots": self.asked.slots,
            "batches": self.asked.batches,
        }
        command = [sys.executable, "-m", __name__, "--engine", engine]
        try:
            command += ["--request", json.dumps(request)]
            said = child(command, spark_env(), self.asked.timeout_s)
        except EngineError as error:
            # numbers of other engines are still valid; `failed` in the result has the missing ones
            progress(f"{engine}: FAILED, {error}")
            return [{"engine": engine, "case": c.name, "failed": str(error)} for c in self.cases]
        return [self._entry(engine, case, work, said[case.name]) for case in self.cases]

    def _entry(
        self, engine: str, case: Case, work: Path, said: Mapping[str, Any]
    ) -> dict[str, Any]:
        with np.load(work / f"{case.name}.npz") as file:
            got = last_rows(dict(file), case.last_of)
        answer_rows = check(f"{engine}, {case.name}", case.exact, got)
        entry = {"engine": engine, "case": case.name, "answer_rows": answer_rows}
        sizes = [batch["rows"] for batch in said["batches"]]
        if sizes != [case.rows] * self.asked.batches:
            msg = f"made batches of {sizes} rows, not {self.asked.batches} of {case.rows}"
            return entry | {"failed": msg}
        kept = [batch["durations_ms"]["triggerExecution"] for batch in said["batches"]]
        kept = kept[self.asked.dropped_batches :]
        rates = spread(case.rows / ms * 1e3 for ms in kept)
        assert rates is not None, "fewer batches are dropped than run"
        progress(f"{engine}, {case.name}: answer right, {rates['median'] / 1e6:.3f} M rows/s")
        return entry | {
            "rows_per_batch": case.rows,
            "rows_per_s": rates,
            "batch_ms": kept,
            "phases_ms": medians(said["phases_ms"][self.asked.dropped_batches :]),
            "settings": said["settings"],
        }


def engines_of(names: str) -> tuple[str, ...]:
    """Return the engines of a list separated by commas, in the order of `ENGINES`.

    Raises
    ------
    ConfigError    A name is unknown.
    """
    asked = names.split(",")
    for name in asked:
        if name not in ENGINES:
            msg = f"no engine {name!r}{nearest(name, ENGINES)}; there are {', '.join(ENGINES)}."
            raise ConfigError(msg)
    return tuple(name for name in ENGINES if name in asked)


def ratio(
    entries: Sequence[Mapping[str, Any]], ours: tuple[str, str], theirs: tuple[str, str]
) -> dict[str, Any] | None:
    """Return the median rows/s of one entry over another's.

    Parameters
    ----------
    entries : sequence of mapping
        Result of `Comparison.run`.
    ours, theirs : (str, str)
        Engine and case.

    Returns
    -------
    dict or None    None if one of them failed.
    """
    rates = {
        (e["engine"], e["case"]): e["rows_per_s"]["median"] for e in entries if "rows_per_s" in e
    }
    if ours not in rates or theirs not in rates:
        return None
    found = rates[ours] / rates[theirs]
    return {"ours": ", ".join(ours), "theirs": ", ".join(theirs), "ratio": found}


def against_spark(
    entries: Sequence[Mapping[str, Any]], cases: Sequence[str]
) -> list[dict[str, Any]]:
    """Return headgate's `ratio` to each of Spark's stores that ran, case by case."""
    stores = [engine for engine in ENGINES if engine != HEADGATE]
    pairs = [ratio(entries, (HEADGATE, case), (store, case)) for store in stores for case in cases]
    return [pair for pair in pairs if pair is not None]


def failed(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return engine and case of each failure."""
    return [f"{e['engine']}, {e['case']}" for e in entries if "failed" in e]


def last_rows(rows: Rows, column: str | None) -> Rows:
    """Return the last row of every value of `column`; all rows if `column` is None."""
    if column is None:
        return rows
    _, from_end = np.unique(rows[column][::-1], return_index=True)
    return {name: values[::-1][from_end] for name, values in rows.items()}


def check(who: str, exact: Rows, got: Rows) -> int:
    """Compare two sets of rows in any order, and return the number of rows.

    Raises
    ------
    WrongAnswer    The rows differ.
    """
    right, found = _in_order(exact, exact), _in_order(got, exact)
    if right.shape != found.shape:
        msg = f"{who} gave {found.shape[1]} rows, exact are {right.shape[1]}."
        raise WrongAnswer(msg)
    (wrong,) = np.nonzero((right != found).any(axis=0))
    if wrong.size:
        at = wrong[0]
        msg = (
            f"{who} is wrong in {wrong.size} of {right.shape[1]} rows; it gave "
            f"{found[:, at].tolist()} for {', '.join(exact)}, exact is {right[:, at].tolist()}."
        )
        raise WrongAnswer(msg)
    return int(right.shape[1])


def _in_order(rows: Rows, columns: Rows) -> I64:
    table = np.stack([rows[name] for name in columns])
    return table[:, np.lexsort(table[::-1])]


def _mode(case: Case) -> str:
    return "append" if case.last_of is None else "update"


# ---- below: one engine, in its own process -------------------------------------------------------


def measure(engine: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the answer of every case to ``NAME.npz``, then time every case, in this process."""
    slots, work = int(request["slots"]), Path(request["directory"])
    module, _, name = request["query"].partition(":")
    query = getattr(importlib.import_module(module), name)
    shared: dict[str, str | int] = {
        "spark.sql.shuffle.partitions": slots,
        "spark.driver.memory": "4g",
        "spark.sql.streaming.numRecentProgressUpdates": 2 * int(request["batches"]) + 100,
        "spark.local.dir": str(work / "local"),
    }
    settings = dict(ENGINES[engine])
    spark = session(master=f"local[{slots}]", name=f"bench-{engine}", **shared, **settings)

    def writer(case: Mapping[str, str], kind: str) -> Any:
        frame = query(spark, Path(case[kind]), case["name"])
        checkpoint = str(work / f"{case['name']}-{kind}")
        writes = _writer(engine, frame, slots).outputMode(case["mode"])
        return writes.option("checkpointLocation", checkpoint).trigger(availableNow=True)

    for case in request["cases"]:
        answer: Any = collected(writer(case, "check"))
        np.savez(work / f"{case['name']}.npz", **answer)
    said = {}
    for case in request["cases"]:
        timed = writer(case, "timed").format("noop").start()
        timed.awaitTermination()
        said[case["name"]] = {
            "batches": triggers(timed),
            "phases_ms": headgate_phases(Path(timed.journal)) if engine == HEADGATE else [],
            "settings": {key: spark.conf.get(key, None) for key in REPORTED},
        }
    spark.stop()
    return said


def _writer(engine: str, frame: DataFrame, slots: int) -> Any:
    if engine != HEADGATE:
        return frame.writeStream
    # Late and by name: the package's front imports the engine, of which this is a part.
    return importlib.import_module("headgate").writeStream(frame).slots(start=slots)


def collected(writer: Any) -> dict[str, I64]:
    """Run a query that stops by itself, and return all its output rows, in sequence."""
    tables: list[pa.Table] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        tables.append(frame.toArrow())

    writer.foreachBatch(collect).start().awaitTermination()
    table = pa.concat_tables(tables)
    return {name: table.column(name).to_numpy().astype(np.int64) for name in table.column_names}


def in_child(measured: Callable[[str, Any], dict[str, Any]], engines: Sequence[str]) -> None:
    """Run one engine, as the command line of a benchmark's child says, and print one line of JSON."""
    parser = argparse.ArgumentParser(description="Run one engine and print one line of JSON.")
    parser.add_argument("--engine", required=True, choices=engines)
    parser.add_argument("--request", required=True, type=json.loads)
    given = parser.parse_args()
    print(json.dumps(measured(given.engine, given.request)), flush=True)


if __name__ == "__main__":
    in_child(measure, tuple(ENGINES))
