"""Jobs into and from tables, in a process whose session has the connectors of Delta or Iceberg.

    python table_jobs.py KIND DIRECTORY [SCENARIO ...]

prints a JSON object with what came of each scenario; `test_tables` says what it must be.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from altered_tables import altered
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headgate as hg
from headgate_lab.testing import connectors

SCENARIOS: dict[str, Callable[[Any], Any]] = {}


def scenario(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    SCENARIOS[run.__name__] = run
    return run


class Tables:
    """A kind of table: how one is made, named, read and written by hand."""

    def __init__(self, kind: str, work: Path) -> None:
        self.kind, self.work = kind, work
        settings = connectors.settings([kind], work / "warehouse")
        settings["spark.local.dir"] = str(work / "local")
        self.spark = hg.session(master="local[2]", name="tables", **settings)
        self.spark.sparkContext.setLogLevel("OFF")
        self.prefix = f"{connectors.CATALOG}.db." if kind == "iceberg" else ""
        if kind == "iceberg":
            self.spark.sql(f"create namespace if not exists {connectors.CATALOG}.db")

    def made(self, name: str, columns: str) -> str:
        self.spark.sql(f"create table {self.prefix}{name} ({columns}) using {self.kind}")
        return self.prefix + name

    def rows(self, table: str) -> list[list[Any]]:
        return sorted([list(row) for row in self.spark.table(table).collect()])

    def put(self, folder: str, number: int, times: list[tuple[int, int]]) -> None:
        """Write a file of (key, second); the stream reads one file per batch."""
        path = self.work / folder
        path.mkdir(exist_ok=True)
        file = path / f".{number}.json"  # not seen before it has the time that puts it in its place
        rows = ({"k": k, "t": f"2026-01-01 00:{t // 60:02d}:{t % 60:02d}"} for k, t in times)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1000 + number, 1000 + number))
        file.rename(path / f"{number}.json")

    def events(self, folder: str) -> DataFrame:
        reader = self.spark.readStream.schema("k int, t timestamp").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.work / folder)).withWatermark("t", "1 second")

    def totals(self, folder: str) -> DataFrame:
        return self.events(folder).groupBy("k").agg(F.count("*").alias("n"))

    def windows(self, folder: str) -> DataFrame:
        counts = self.events(folder).groupBy("k", F.window("t", "10 seconds"))
        return counts.agg(F.count("*").alias("n")).select("k", "n")

    def run(self, writer: Any, checkpoint: str, start: Any = lambda w: w.start()) -> Any:
        place = str(self.work / checkpoint)
        query = start(writer.option("checkpointLocation", place).trigger(availableNow=True))
        query.awaitTermination()
        return query

    def fails(self, run: Callable[[], Any]) -> str:
        """Return the one sentence in which something fails."""
        try:
            run()
        except hg.HeadgateError as error:
            return str(error)
        return "it did not fail"

    def once_more(self, writer: Any, checkpoint: str, start: Any = lambda w: w.start()) -> None:
        """Start again as after a driver that died once the sink had the last step."""
        forget_last_commit(self.work / checkpoint)
        self.run(writer, checkpoint, start)


def elastic(frame: DataFrame) -> Any:
    return hg.writeStream(frame).slots(start=2)


def forget_last_commit(checkpoint: Path) -> None:
    """Take Spark's last commit away, and what says that a drain was delivered."""
    commits = checkpoint / "commits"
    last = max(int(p.name) for p in commits.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    for intent in (checkpoint / "headgate" / "intents").iterdir():
        intent.unlink()


FIRST = ((0, [(0, 1), (1, 2), (0, 3)]), (1, [(1, 21), (1, 22)]), (2, [(0, 300), (1, 301)]))


def begin(tables: Tables, folder: str) -> str:
    for number, times in FIRST:
        tables.put(folder, number, times)
    return folder


@scenario
def appended(tables: Tables) -> Any:
    """A table that the query makes, is given again, and goes on to."""
    folder = begin(tables, "appended")
    table = f"{tables.prefix}appended"

    def start(writer: Any) -> Any:
        return writer.toTable(table, format=tables.kind, partitionBy="k")

    tables.run(elastic(tables.windows(folder)), "ck-appended", start)
    first = tables.rows(table)
    tables.once_more(elastic(tables.windows(folder)), "ck-appended", start)
    again = tables.rows(table)
    shutil.copytree(tables.work / "ck-appended", tables.work / "ck-copied")
    tables.put(folder, 3, [(2, 600)])
    tables.run(elastic(tables.windows(folder)), "ck-appended", start)
    further = tables.rows(table)
    copied = tables.fails(lambda: tables.run(elastic(tables.windows(folder)), "ck-copied", start))
    tables.spark.sql(f"drop table {table}")
    gone = tables.fails(lambda: tables.run(elastic(tables.windows(folder)), "ck-appended", start))
    return {"first": first, "again": again, "further": further, "copied": copied, "gone": gone}


@scenario
def looked_at(tables: Tables) -> Any:
    """A table that is read between steps, once the session that the query began in has forgotten it."""
    folder = "looked_at"
    table = tables.made(folder, "k int, n bigint")
    for number, times in FIRST[:2]:
        tables.put(folder, number, times)
    writer = elastic(tables.windows(folder)).trigger(processingTime="0 seconds")
    writer = writer.option("checkpointLocation", str(tables.work / "ck-looked-at"))
    query = writer.toTable(table, format=tables.kind)
    query.processAllAvailable()
    if tables.kind == "iceberg":
        time.sleep(31.0)  # that long it keeps a table that nobody asks for
    seen = [tables.rows(table)]
    tables.put(folder, *FIRST[2])
    query.processAllAvailable()
    seen.append(tables.rows(table))
    query.stop()
    return seen


@scenario
def replaced(tables: Tables) -> Any:
    """Complete mode, by format and path or name."""
    folder = begin(tables, "replaced")
    if tables.kind == "iceberg":
        path = tables.made("replaced", "k int, n bigint")
    else:
        path = str(tables.work / "replaced-table")
    writer = elastic(tables.totals(folder)).outputMode("complete").format(tables.kind)
    tables.run(writer.option("path", path), "ck-replaced")
    found = tables.spark.read.format(tables.kind).load(path).collect()
    return sorted([list(row) for row in found])


@scenario
def refused(tables: Tables) -> Any:
    """A result that does not fit the table, before the start; a table altered while the query rests."""
    folder = begin(tables, "refused")
    table = tables.made("refused", "k int, n bigint")

    def start(writer: Any) -> Any:
        return writer.toTable(table, format=tables.kind)

    wider = tables.windows(folder).withColumn("more", F.lit(1))
    column = tables.fails(lambda: tables.run(elastic(wider), "ck-wider", start))
    made = (tables.work / "ck-wider").exists()
    other = tables.windows(folder).select("k", F.array("n").alias("n"))
    kind = tables.fails(lambda: tables.run(elastic(other), "ck-kind", start))
    tables.run(elastic(tables.windows(folder)), "ck-refused", start)
    return {"column": column, "made": made, "kind": kind, "rows": tables.rows(table)}


@scenario
def merged(tables: Tables) -> Any:
    """Upserts that count how often they happen, and deletes; given again; in plain Spark, too."""
    folder = begin(tables, "merged")
    found = {}
    for name, write in (("elastic", elastic), ("plain", lambda frame: frame.writeStream)):
        table = tables.made(f"merged_{name}", "k int, n bigint, seen int")
        merge = (
            hg.merge(table, on="k")
            .whenMatchedUpdate(set={"n": "source.n", "seen": "target.seen + 1"})
            .whenNotMatchedInsert(values={"k": "source.k", "n": "source.n", "seen": "1"})
        )
        made = write(tables.totals(folder)).outputMode("update").foreachBatch(merge)
        tables.run(made, f"ck-{name}")
        if name == "plain":  # in a session of Spark's own, of which ours does not hear
            tables.spark.catalog.refreshTable(table)
        found[name] = tables.rows(table)
    table = tables.made("upserted", "k int, n bigint")
    made = elastic(tables.totals(folder)).outputMode("update")
    upsert = hg.merge(table, on="k").whenMatchedDelete("source.n >= 4").whenMatchedUpdateAll()
    tables.run(made.foreachBatch(upsert.whenNotMatchedInsertAll("source.k = 1")), "ck-upserted")
    return found | {"deleted": tables.rows(table)}


@scenario
def merged_again(tables: Tables) -> Any:
    """A step that comes again, as after a kill between the table's commit and Spark's."""
    folder = begin(tables, "again")
    table = tables.made("again", "k int, n bigint, seen int")
    merge = (
        hg.merge(table, on="k")
        .whenMatchedUpdate(set={"n": "source.n", "seen": "target.seen + 1"})
        .whenNotMatchedInsert(values={"k": "source.k", "n": "source.n", "seen": "1"})
    )

    def made() -> Any:
        return elastic(tables.totals(folder)).outputMode("update").foreachBatch(merge)

    tables.run(made(), "ck-again")
    first = tables.rows(table)
    tables.once_more(made(), "ck-again")
    again = tables.rows(table)
    shutil.copytree(tables.work / "ck-again", tables.work / "ck-again-copied")
    tables.put(folder, 3, [(0, 600)])
    tables.run(made(), "ck-again")
    copied = tables.fails(lambda: tables.run(made(), "ck-again-copied"))
    return {"first": first, "again": again, "further": tables.rows(table), "copied": copied}


@scenario
def several(tables: Tables) -> Any:
    """Rows of one key in one step: refused, or the latest of them."""
    folder = begin(tables, "several")
    table = tables.made("several", "k int, n bigint, t timestamp")
    rows = tables.events(folder).dropDuplicates(["k", "t"]).select("k", F.lit(7).alias("n"), "t")
    why = tables.fails(
        lambda: tables.run(elastic(rows).foreachBatch(hg.merge(table, on="k")), "ck-several")
    )
    kept = tables.rows(table)
    latest = hg.merge(table, on="k", latest="t")
    tables.run(elastic(rows).foreachBatch(latest), "ck-latest")
    return {"why": why, "kept": kept, "latest": [[k, n, str(t)] for k, n, t in tables.rows(table)]}


@scenario
def two_merges(tables: Tables) -> Any:
    """Two merges of one function into one table need names."""
    folder = begin(tables, "two")
    table = tables.made("two", "k int, n bigint")

    def run(first: Any, second: Any, checkpoint: str) -> None:
        def both(frame: DataFrame, batch: int) -> None:
            first(frame.where("k = 0"), batch)
            second(frame.where("k = 1"), batch)

        tables.run(
            elastic(tables.totals(folder)).outputMode("update").foreachBatch(both), checkpoint
        )

    one, other = hg.merge(table, on="k"), hg.merge(table, on="k", latest="n")
    why = tables.fails(lambda: run(one, other, "ck-two"))
    run(hg.merge(table, on="k", name="a"), hg.merge(table, on="k", name="b"), "ck-named")
    tables.spark.catalog.refreshTable(table)
    return {"why": why, "rows": tables.rows(table)}


@scenario
def read(tables: Tables) -> Any:
    """A table as a stream's source, whose answer is verified up to the job's own offsets."""
    source = tables.made("source", "k int, v bigint")
    insert = f"insert into {source} select id % 3, id from range"
    tables.spark.sql(f"{insert}(0, 50)")
    tables.spark.sql(f"{insert}(50, 100)")

    def build(spark: Any) -> DataFrame:
        rows = spark.readStream.format(tables.kind).table(source)
        return rows.groupBy("k").agg(F.sum("v").alias("v"))

    result = tables.work / "read-output"
    writer = elastic(build(tables.spark)).outputMode("complete").format("memory").queryName("r")
    tables.run(writer, "ck-read")
    tables.spark.sql(f"{insert}(100, 150)")  # the job has not read these
    output = tables.spark.table("r")
    rows = sorted([list(row) for row in output.collect()])
    place = str(tables.work / "ck-read")
    try:
        verified = hg.verify(tables.spark, build, checkpoint=place, output=output, mode="complete")
    except hg.HeadgateError as error:
        verified = str(error)
    shutil.rmtree(result, ignore_errors=True)
    return {"rows": rows, "verified": verified}


def main() -> None:
    kind, work, *wanted = sys.argv[1:]
    tables = Tables(kind, Path(work))
    SCENARIOS[altered.__name__] = altered
    found = {}
    for name in wanted or SCENARIOS:
        try:
            found[name] = SCENARIOS[name](tables)
        except Exception as error:  # the others are still worth knowing
            found[name] = f"{type(error).__name__}: {error}"
        print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
