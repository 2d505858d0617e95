"""Merges into PostgreSQL, in a process whose session has its driver; `test_jdbc_merge` reads the result.

python jdbc_jobs.py URL DIRECTORY [JOB ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from altered_tables import CHANGES, COLUMNS, Job
from pyspark.sql import functions as F
from table_jobs import Tables, begin, elastic

import headgate as hg
from headgate_lab.testing import connectors, postgres

DRIVER = {"driver": "org.postgresql.Driver"}


class Database(Tables):
    """Tables of PostgreSQL, and the streams of the others."""

    def __init__(self, url: str, work: Path) -> None:
        self.url, self.work = url, work
        settings = connectors.settings(["postgres"], work / "warehouse")
        self.spark = hg.session(master="local[2]", name="jdbc", **settings)
        self.spark.sparkContext.setLogLevel("OFF")

    def merge(self, table: str, on: Any = "k", **more: Any) -> Any:
        return hg.merge(table, on, url=self.url, properties=DRIVER, **more)

    def sql(self, text: str) -> list[list[str]]:
        return postgres.run(self.url, text)


def upserts(base: Database) -> Any:
    folder = begin(base, "upserts")
    base.sql("create schema s; create table s.totals (k int primary key, n bigint, seen int)")
    merge = (
        base.merge("s.totals")
        .whenMatchedUpdate(set={"n": "source.n", "seen": "target.seen + 1"})
        .whenNotMatchedInsert(values={"k": "source.k", "n": "source.n", "seen": "1"})
    )
    rows = "select * from s.totals order by k"

    def run(again: bool = False) -> None:
        made = elastic(base.totals(folder)).outputMode("update").foreachBatch(merge)
        (base.once_more if again else base.run)(made, "ck-upserts")

    run()
    first = base.sql(rows)
    (writer,) = base.sql("select writer from s.headgate_steps")
    base.sql("create table s.headgate_rows_00000000_left (k int)")  # of another query
    run(again=True)
    again = base.sql(rows)
    base.put(folder, 3, [(0, 600)])
    run()
    tables = base.sql("select tablename from pg_tables where schemaname = 's' order by 1")
    return {
        "first": first, "again": again, "further": base.sql(rows), "tables": tables,
        "steps": base.sql("select step from s.headgate_steps"), "writer": writer,
    }  # fmt: skip


def leftovers(base: Database) -> Any:
    """Rows that a killed driver had staged are dropped by the next start."""
    from headgate.spark.sinks.jdbc_merge import _prefix

    base.sql("create table left_over (k int, n bigint)")
    base.sql(f"create table {_prefix('w')}dead (k int)")
    frame = base.spark.createDataFrame([(1, 2), (None, 3)], "k int, n bigint")
    from headgate.spark.sinks.jdbc_merge import JdbcMerge

    made = JdbcMerge(base.spark, base.merge("left_over").spec)
    made.write("w", 0, frame, again=False)
    made.write("w", 0, frame, again=True)
    made.write("w", 1, frame.withColumn("n", F.col("n") + 1), again=False)
    behind = base.fails(lambda: made.write("w", 1, frame, again=False))
    staged = base.sql("select count(*) from pg_tables where tablename like 'headgate_rows_%dead'")
    return {
        "rows": base.sql("select * from left_over order by k"), "staged": staged, "behind": behind
    }  # fmt: skip


def failures(base: Database) -> Any:
    folder = begin(base, "failures")
    base.sql("create table strict (k int primary key, n bigint check (n < 4))")

    def run(merge: Any, checkpoint: str) -> str:
        made = elastic(base.totals(folder)).outputMode("update").foreachBatch(merge)
        return base.fails(lambda: base.run(made, checkpoint))

    missing = run(base.merge("nosuch"), "ck-missing")
    away = hg.merge("strict", "k", url="jdbc:postgresql://127.0.0.1:1/d", properties=DRIVER)
    gone = run(away, "ck-away")
    checked = run(base.merge("strict"), "ck-strict")
    rows = base.sql("select * from strict order by k")
    base.sql("alter table strict drop constraint strict_n_check")
    after = run(base.merge("strict"), "ck-strict")
    base.sql("create table later (k int, n bigint, t timestamptz)")
    several = base.events(folder).dropDuplicates(["k", "t"]).select("k", F.lit(7).alias("n"), "t")
    twice = base.fails(
        lambda: base.run(elastic(several).foreachBatch(base.merge("later")), "ck-twice")
    )
    base.run(elastic(several).foreachBatch(base.merge("later", latest="t")), "ck-later")
    return {
        "missing": missing, "away": gone, "checked": checked, "rows": rows, "after": after,
        "all": base.sql("select * from strict order by k"), "twice": twice,
        "later": base.sql("select k, n from later order by k"),
    }  # fmt: skip


class DatabaseJob(Job):
    """A query that merges into a table of PostgreSQL."""

    def made(self) -> str:
        self.sql(f"create table {self.name} ({COLUMNS}, unique (k, s))")
        return self.name

    def sql(self, text: str) -> None:
        self.tables.sql(text)

    def merge(self) -> Any:
        return self.tables.merge(self.table, on=["k", "s"])

    def there(self) -> list[list[int]]:
        rows = self.tables.sql(f"select k, s % 60 from {self.table} order by k, s")
        return [[int(value) for value in row] for row in rows]


def altered(base: Database) -> Any:
    return {c.__name__: c(DatabaseJob(base, f"merge_{c.__name__}", "merge")) for c in CHANGES}


def main() -> None:
    url, work, *wanted = sys.argv[1:]
    base = Database(url, Path(work))
    jobs = {run.__name__: run for run in (upserts, leftovers, failures, altered)}
    found = {name: jobs[name](base) for name in wanted}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
