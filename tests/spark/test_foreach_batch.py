"""Functions for foreachBatch work in their query's own copy of the session, as under plain Spark.

::

    program   start() of three queries ── SET, USE, views of its own ──────────────► stays as it is
    a         copy of the session ─ batch 0 ─ batch 1 ─ end
    b         copy of the session ─ batch 0 ─ batch 1 ─ end
    c         copy of the session ─ batch 0 ─ batch 1 ─ end
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pool_runs
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.spark.jvm.sessions import clone_of, created

NAMES = ("a", "b", "c")
BATCHES = 2
ZONE = "spark.sql.session.timeZone"
WAIT_S = 300


@dataclass
class Program:
    """What the functions of three queries share with the program that started them."""

    spark: SparkSession
    folder: Path
    write: Callable[[DataFrame], Any]
    changed: threading.Event = field(default_factory=threading.Event)
    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(len(NAMES)))
    queries: dict[str, Any] = field(default_factory=dict)
    said: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in NAMES})

    def meet(self) -> None:
        """Wait until the three queries are here: what one does to the session, the others see."""
        self.together.wait(WAIT_S)


@dataclass
class Batch:
    """One call of a query's function."""

    program: Program
    name: str
    number: int
    frame: DataFrame

    @property
    def session(self) -> SparkSession:
        return self.frame.sparkSession

    def rows(self, sql: str) -> list[Any]:
        """What a statement gives, in an order of its own."""
        return sorted(tuple(row) for row in self.session.sql(sql).collect())


def view_and_statement(batch: Batch) -> Any:
    """The usual upsert's first half: a view of one name in all queries."""
    batch.frame.createOrReplaceTempView("updates")
    batch.program.meet()
    return batch.rows("SELECT k, n FROM updates")


def merge_by_views(batch: Batch) -> Any:
    """An upsert by two views, into files that each query has of its own."""
    target = batch.program.folder / f"target-{batch.name}"
    old = target / str(batch.number - 1)
    if old.exists():
        batch.session.read.parquet(str(old)).createOrReplaceTempView("target")
    else:
        batch.session.sql("SELECT '' AS k, 0L AS n WHERE false").createOrReplaceTempView("target")
    batch.frame.createOrReplaceTempView("source")
    batch.program.meet()
    merged = batch.session.sql(
        "SELECT coalesce(s.k, t.k) AS k, coalesce(s.n, t.n) AS n "
        "FROM target t FULL OUTER JOIN source s ON s.k = t.k"
    )
    merged.write.parquet(str(target / str(batch.number)))
    return sorted(tuple(row) for row in merged.collect())


def settings_of_its_own(batch: Batch) -> Any:
    """A time zone that stays set for the query's next batches, and for nobody else's."""
    before = batch.session.conf.get(ZONE)
    batch.program.meet()
    zone = {"a": "Asia/Tokyo", "b": "America/Lima", "c": "UTC"}[batch.name]
    batch.session.conf.set(ZONE, zone)
    batch.program.meet()
    shown = batch.frame.select(F.date_format("m", "yyyy-MM-dd HH:mm"), F.col("m").cast("string"))
    return before, sorted(tuple(row) for row in shown.collect())


def other_database(batch: Batch) -> Any:
    """USE, and tables by their short names."""
    before = batch.session.catalog.currentDatabase()
    batch.program.meet()
    batch.session.sql(f"USE of_{batch.name}")
    batch.program.meet()
    batch.frame.select("k", "n").write.mode("append").saveAsTable("written")
    rows = batch.rows("SELECT k, n FROM written")
    batch.session.sql("USE default")
    return before, rows


def cached(batch: Batch) -> Any:
    """Several actions over rows that are kept meanwhile."""
    batch.frame.persist()
    counted = batch.frame.count(), batch.frame.agg(F.sum("n")).collect()[0][0]
    kept = batch.frame.is_cached
    batch.frame.unpersist()
    batch.frame.createOrReplaceTempView("kept")
    batch.session.sql("CACHE TABLE kept")
    rows = batch.rows("SELECT k FROM kept")
    batch.session.sql("UNCACHE TABLE kept")
    return counted, kept, rows


def several_sinks(batch: Batch) -> Any:
    """Files of two formats and the memory of pandas."""
    folder = batch.program.folder / f"out-{batch.name}"
    for file_format in ("parquet", "json"):
        place = str(folder / file_format)
        batch.frame.select("k", "n").write.mode("append").format(file_format).save(place)
    read = batch.session.read.schema("k string, n bigint")
    counts = [read.format(one).load(str(folder / one)).count() for one in ("parquet", "json")]
    frame = batch.frame.select("k", "n").toPandas()
    return counts, sorted(map(tuple, frame.to_numpy().tolist()))


def functions(batch: Batch) -> Any:
    """A function of one name that does something else in each query."""
    factor = 1 + NAMES.index(batch.name)
    batch.session.udf.register("times", lambda n: n * factor, "bigint")
    batch.frame.createOrReplaceTempView("numbers")
    batch.program.meet()
    return batch.rows("SELECT k, times(n), of_the_program(n) FROM numbers")


def exceptions(batch: Batch) -> Any:
    """What a statement cannot find, caught, and views that are dropped."""
    seen = []
    for sql in ("SELECT nothing FROM updates", "SELECT * FROM made_later"):
        try:
            seen.append(batch.rows(sql))
        except AnalysisException as error:
            seen.append(error.getCondition())
    dropped = batch.session.catalog.dropTempView("of_the_program")
    return seen, dropped, batch.session.catalog.tableExists("of_the_program")


def second_query(batch: Batch) -> Any:
    """A query over what the batch has just written, started and ended within the function."""
    if batch.number:
        return None
    folder = batch.program.folder / f"in-{batch.name}"
    batch.frame.select("k", "n").write.parquet(str(folder))
    stream = batch.session.readStream.schema("k string, n bigint").parquet(str(folder))
    found: list[Any] = []

    def take(frame: DataFrame, _: int) -> None:
        found.extend(sorted(tuple(row) for row in frame.collect()))

    query = batch.program.write(stream.groupBy("k").agg(F.sum("n"))).outputMode("update")
    query = query.foreachBatch(take).trigger(availableNow=True).start()
    return query.awaitTermination(WAIT_S), found


def whose_session(batch: Batch) -> Any:
    """One session for all batches of a query, which is that of Spark's thread and nobody else's."""
    java = batch.session._jsparkSession
    sessions = batch.program.spark._jvm.org.apache.spark.sql.classic.SparkSession
    active = sessions.getActiveSession().get().sessionUUID() == java.sessionUUID()
    number = batch.session.conf.get("spark.sql.shuffle.partitions")
    batch.session.conf.set("test.batches", str(batch.number))
    before = batch.session.conf.get("spark.sql.adaptive.enabled")
    same = java.sessionUUID() == batch.program.spark._jsparkSession.sessionUUID()
    python = SparkSession.getActiveSession() is batch.program.spark
    return number, before, active, python, same, batch.frame.schema.json()


def stop(batch: Batch) -> Any:
    """A query that ends itself with its last batch."""
    if batch.number == BATCHES - 1:
        try:
            batch.program.queries[batch.name].stop()
        except Exception:  # plain Spark interrupts its own thread
            return "stopped"
        return "stopped"
    return None


HABITS: tuple[Callable[[Batch], Any], ...] = (
    view_and_statement,
    merge_by_views,
    settings_of_its_own,
    other_database,
    cached,
    several_sinks,
    functions,
    exceptions,
    second_query,
    whose_session,
    stop,
)
QUICK = (view_and_statement, settings_of_its_own, other_database, exceptions, whose_session, stop)
"""Habits that take no time of their own."""


def query_of(program: Program, name: str) -> DataFrame:
    """Counts and newest times by key, of three files that are a batch each."""
    folder = program.folder / f"events-{name}"
    folder.mkdir()
    for number in range(BATCHES):
        rows = [
            {"k": f"{name}{i}", "at": 1767225600 + number * 90_000 + i} for i in range(number + 1)
        ]
        file = folder / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(file, (1000 + number, 1000 + number))  # the order in which they are read
    stream = program.spark.readStream.schema("k string, at bigint").option("maxFilesPerTrigger", 1)
    events = stream.json(str(folder)).select("k", F.timestamp_seconds("at").alias("ts"))
    return events.groupBy("k").agg(F.count("*").alias("n"), F.max("ts").alias("m"))


def answers(
    program: Program,
    habits: tuple[Callable[[Batch], Any], ...],
) -> dict[str, list[Any]]:
    """What the functions of three queries saw, which run at once while the program goes on."""

    def function_of(name: str) -> Callable[[DataFrame, int], None]:
        def function(frame: DataFrame, number: int) -> None:
            assert program.changed.wait(WAIT_S)
            batch = Batch(program, name, number, frame)
            frame.count()  # plain Spark fails a batch whose rows nobody computes
            for habit in habits:
                program.said[name].append((habit.__name__, number, habit(batch)))

        return function

    spark = program.spark
    for name in NAMES:
        writer = program.write(query_of(program, name)).outputMode("update")
        program.queries[name] = writer.foreachBatch(function_of(name)).start()
    # other cells of the notebook, by which nothing changes for the queries
    spark.conf.set(ZONE, "Europe/Paris")
    spark.sql("USE of_the_program")
    spark.range(1).selectExpr("id AS mine").createOrReplaceTempView("updates")
    spark.range(1).createOrReplaceTempView("made_later")
    program.changed.set()
    for query in program.queries.values():
        if stop in habits:
            assert query.awaitTermination(WAIT_S)
        else:
            query.processAllAvailable()
            query.stop()
    return program.said


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """The session with databases of the program's and of each query's, left as it was."""
    zone = spark.conf.get(ZONE)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    for name in ("the_program", *NAMES):
        spark.sql(f"CREATE DATABASE of_{name} LOCATION '{tmp_path}/of_{name}'")
    yield spark
    spark.sql("USE default")
    for name in ("the_program", *NAMES):
        spark.sql(f"DROP DATABASE of_{name} CASCADE")
    spark.conf.set(ZONE, str(zone))


def before(spark: SparkSession) -> None:
    """What the session is when queries start."""
    spark.sql("USE default")
    spark.conf.set(ZONE, "UTC")
    for name in NAMES:
        spark.sql(f"DROP TABLE IF EXISTS of_{name}.written")
    spark.udf.register("of_the_program", lambda n: -n, "bigint")
    spark.range(2).createOrReplaceTempView("of_the_program")
    spark.catalog.dropTempView("made_later")
    spark.createDataFrame([], "i int")  # makes it PySpark's active one


def both(
    spark: SparkSession, tmp_path: Path, habits: tuple[Callable[[Batch], Any], ...]
) -> list[dict[str, list[Any]]]:
    """The answers under plain Spark and under headgate, each of which leaves the program alone."""
    found = []
    for way, write in (("plain", lambda df: df.writeStream), ("elastic", hg.writeStream)):
        before(spark)
        (tmp_path / way).mkdir()
        found.append(answers(Program(spark, tmp_path / way, write), habits))
        assert spark.conf.get(ZONE) == "Europe/Paris"
        assert spark.conf.get("test.batches", "none") == "none"
        assert spark.catalog.currentDatabase() == "of_the_program"
        assert SparkSession.getActiveSession() is spark
        active = spark._jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().get()
        assert active.sessionUUID() == spark._jsparkSession.sessionUUID()
        assert spark.table("updates").columns == ["mine"]
        assert spark.table("of_the_program").count() == 2
        assert not spark.catalog.tableExists("source")
        assert not spark.catalog.functionExists("times")
    return found


def different(plain: dict[str, list[Any]], elastic: dict[str, list[Any]]) -> list[Any]:
    """Return by query what the functions saw otherwise, plain Spark's first."""
    pairs = ((name, zip_longest(plain[name], elastic[name])) for name in NAMES)
    return [(name, *pair) for name, both in pairs for pair in both if pair[0] != pair[1]]


def test_functions_of_three_queries_at_once_do_what_they_do_under_plain_spark(
    database: SparkSession, tmp_path: Path
) -> None:
    plain, elastic = both(database, tmp_path, QUICK)
    assert different(plain, elastic) == []
    assert all(len(said) == BATCHES * len(QUICK) for said in elastic.values())


@pytest.mark.parametrize("rows", [[], [(1,)], pa.table({"i": pa.array([1], pa.int32())})])
def test_a_frame_that_is_made_for_a_query_shows_nobody_its_session(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows: Any
) -> None:
    """PySpark's createDataFrame makes its session the active one of every thread."""
    own, active = clone_of(spark), []
    spark.createDataFrame([], "i int")
    for name in ("_create_dataframe", "_create_from_arrow_table"):
        inner = getattr(SparkSession, name)

        def made(session: SparkSession, *given: Any, inner: Any = inner) -> DataFrame:
            active.append(SparkSession.getActiveSession())
            return inner(session, *given)  # type: ignore[no-any-return]

        monkeypatch.setattr(SparkSession, name, made)
    frame = created(own, rows, "i int")
    assert frame.sparkSession is own
    assert frame.schema.simpleString() == "struct<i:int>"
    assert frame.count() == len(rows)
    assert active
    assert all(one is spark for one in active)


def test_any_thread_may_start_a_query_and_a_pool(spark: SparkSession, tmp_path: Path) -> None:
    """A thread of Python's has a thread of the JVM's, which knows no session."""
    before(spark)
    counted = query_of(Program(spark, tmp_path, hg.writeStream), "a")
    passed = pool_runs.source(spark, tmp_path, files=1).mapInArrow(pool_runs.doubled, "w long")
    pooled = hg.writeStream(passed).policy("psps").slots(min=1, max=2, start=1)
    writers = (hg.writeStream(counted).outputMode("update"), pooled)
    ended: list[Any] = []

    def start(number: int) -> None:
        hg.explain(counted)
        made = writers[number].format("noop").trigger(availableNow=True)
        query = made.option("checkpointLocation", str(tmp_path / f"ck{number}")).start()
        ended.append(query.awaitTermination(WAIT_S))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert ended == [True, True]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "habit", [*HABITS, None], ids=lambda habit: getattr(habit, "__name__", "all")
)
def test_each_habit_alone_and_all_together_are_as_under_plain_spark(
    database: SparkSession, tmp_path: Path, habit: Callable[[Batch], Any] | None
) -> None:
    plain, elastic = both(database, tmp_path, HABITS if habit is None else (habit,))
    assert different(plain, elastic) == []


def test_the_rows_of_pools_belong_to_their_query_too_and_a_new_run_replaces_it(
    database: SparkSession, tmp_path: Path
) -> None:
    before(database)
    seen: dict[int, Any] = {}
    changed = threading.Event()

    def function(frame: DataFrame, number: int) -> None:
        assert changed.wait(WAIT_S)
        own = frame.sparkSession
        frame.createOrReplaceTempView("updates")
        rows = own.sql("SELECT count(*) FROM updates").collect()[0][0]
        zone = own.conf.get(ZONE)
        own.conf.set(ZONE, "Asia/Tokyo")
        seen[number] = rows, zone, own.catalog.currentDatabase()
        if number == 2:
            query.stop()

    frame = pool_runs.source(database, tmp_path, files=4).mapInArrow(pool_runs.doubled, "w long")

    def started(function: Callable[[DataFrame, int], None], place: str) -> Any:
        writer = hg.writeStream(frame).policy("psps").slots(min=1, max=2, start=1)
        writer = writer.foreachBatch(function)
        return writer.option("checkpointLocation", str(tmp_path / place)).start()

    first, second = (started(lambda *_: None, "replaced") for _ in range(2))
    assert not first.isActive
    second.stop()
    query = started(function, "ck")
    database.conf.set(ZONE, "Europe/Paris")
    database.sql("USE of_the_program")
    database.range(1).selectExpr("id AS mine").createOrReplaceTempView("updates")
    changed.set()
    assert query.awaitTermination(WAIT_S)
    rows = pool_runs.ROWS // 4
    assert seen == {
        0: (rows, "UTC", "default"),
        1: (rows, "Asia/Tokyo", "default"),
        2: (rows, "Asia/Tokyo", "default"),
    }
    assert database.conf.get(ZONE) == "Europe/Paris"
    assert database.table("updates").columns == ["mine"]


def test_the_table_of_the_memory_sink_has_plain_sparks_columns(
    database: SparkSession, tmp_path: Path
) -> None:
    before(database)
    program = Program(database, tmp_path, hg.writeStream)
    frame = query_of(program, "a")
    typed = frame.select("k", "n", F.lit(1).alias("one"), F.struct("n", F.lit("x")).alias("s"))
    windows = frame.sparkSession.readStream.schema("k string, at bigint").json(
        str(tmp_path / "events-a")
    )
    windows = windows.groupBy(F.window(F.timestamp_seconds("at"), "1 day"), "k").count()
    for number, query in enumerate((typed, windows)):
        tables = []
        for way, write in (("plain", lambda df: df.writeStream), ("elastic", hg.writeStream)):
            name = f"{way}{number}"
            made = write(query).outputMode("complete").format("memory").queryName(name)
            made = made.trigger(availableNow=True).start()
            assert made.awaitTermination(WAIT_S)
            tables.append(database.table(name))
        plain, elastic = tables
        assert elastic.schema.json() == plain.schema.json()
        assert sorted(elastic.collect(), key=str) == sorted(plain.collect(), key=str)
