"""Tables that somebody else alters, drops or writes to while a query writes to them; for `table_jobs`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headgate as hg

COLUMNS = "k int, s bigint, more int"


def altered(tables: Any) -> Any:
    """Between two steps of an append and a merge: what is said, what the next start does, what stays."""
    found = {}
    for how in ("append", "merge"):
        for change in CHANGES:
            name = f"{how}_{change.__name__}"
            try:
                found[name] = change(Job(tables, name, how))
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
            print(name, found[name], flush=True)
    return found


class Job:
    """A query into a table, started and started again."""

    def __init__(self, tables: Any, name: str, how: str) -> None:
        self.tables, self.name, self._how = tables, name, how
        self.table = self.made()
        self._files = 0
        self._query: Any = None

    def made(self) -> str:
        """Make the table."""
        table = f"{self.tables.prefix}{self.name}"
        named = " tblproperties ('delta.columnMapping.mode' = 'name')"
        kind = self.tables.kind + (named if self.tables.kind == "delta" else "")
        self.sql(f"create table {table} ({COLUMNS}) using {kind}")
        return table

    def sql(self, text: str) -> None:
        self.tables.spark.sql(text)

    def start(self) -> str:
        """Start, and return in which sentence that fails."""
        with contextlib.suppress(hg.HeadgateError):
            if self._query is not None:
                self._query.stop()
        rows = self.tables.events(self.name).dropDuplicates(["k", "t"])
        frame: DataFrame = rows.select("k", F.unix_seconds("t").alias("s"), F.lit(1).alias("more"))
        writer = hg.writeStream(frame).slots(start=2).trigger(processingTime="0 seconds")
        writer = writer.option("checkpointLocation", str(self.tables.work / f"ck-{self.name}"))
        return self._failing(lambda: self._begin(writer))

    def _begin(self, writer: Any) -> None:
        if self._how == "append":
            self._query = writer.toTable(self.table, format=self.tables.kind)
        else:
            self._query = writer.foreachBatch(self.merge()).start()
        self._query.processAllAvailable()

    def merge(self) -> Any:
        """Return the merge."""
        return hg.merge(self.table, on=["k", "s"])

    def step(self) -> str:
        """Let one more file come, and return in which sentence the query ends."""
        self._files += 1
        self.tables.put(self.name, self._files, [(0, self._files), (1, self._files)])
        return self._failing(self._query.processAllAvailable)

    def _failing(self, run: Callable[[], Any]) -> str:
        try:
            run()
        except Exception as error:
            return f"{'' if isinstance(error, hg.HeadgateError) else type(error).__name__}{error}"
        return ""

    def rows(self) -> list[list[int]]:
        """Return the steps whose rows are in the table, of each key, as a reader sees them."""
        with contextlib.suppress(hg.HeadgateError):
            self._query.stop()
        return self.there()

    def there(self) -> list[list[int]]:
        """Return the rows of the table."""
        self.tables.spark.catalog.refreshTable(self.table)
        return sorted([k, s % 60] for k, s, *_ in self.tables.spark.table(self.table).collect())

    def begun(self) -> Job:
        """Start, with a step in the table."""
        (self.tables.work / self.name).mkdir()
        assert not self.start()
        assert not self.step()
        return self


def others(job: Job) -> Any:
    """Somebody else's commit between ours."""
    job.begun()
    job.sql(f"insert into {job.table} values (7, 7, 7)")
    said = job.step()
    job.sql(f"delete from {job.table} where k = 7")
    return {"said": [said, job.start(), job.step()], "rows": job.rows()}


def dropped_column(job: Job) -> Any:
    """A column is dropped, and made again."""
    job.begun()
    job.sql(f"alter table {job.table} drop column more")
    said, again = job.step(), job.start()
    job.sql(f"alter table {job.table} add column more int")
    return {"said": said, "again": again, "after": [job.start(), job.step()], "rows": job.rows()}


def gone(job: Job) -> Any:
    """The table is dropped; then one of its name is made."""
    job.begun()
    job.sql(f"drop table {job.table}")
    said, again = job.step(), job.start()
    job.made()
    return {"said": said, "again": again, "after": [job.start(), job.step()], "rows": job.rows()}


def anew(job: Job) -> Any:
    """The table is dropped and made anew, between two steps."""
    job.begun()
    job.sql(f"drop table {job.table}")
    job.made()
    said = job.step()
    return {"said": said, "after": [job.start(), job.step()], "rows": job.rows()}


CHANGES = (others, dropped_column, gone, anew)
