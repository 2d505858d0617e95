"""A sink of one's own: `examples/sqlitesink`, found by its entry point, written to by real queries."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import real_time
from own_sink_driver import per_window
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from test_real_time import assert_right, running, wait_until
from test_sinks import elastic, events, finish, per_key, put  # noqa: F401

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.installed import SINKS, installed
from headgate.scenario.fleet_file import JobSettings
from headgate.spark.job.faults import CRASH
from headgate.spark.jvm.sparksinks import WrittenStream
from headgate.spark.sinks.own_sink import OwnSink, Sink

sys.path.insert(0, str(Path(__file__).parents[1] / "control"))
import own_policies

EXAMPLES = own_policies.EXAMPLE.parent
PLAIN = """
import sqlitesink

class PlainSink(sqlitesink.SqliteSink):
    exactly_once = ""
    def write(self, query, number, rows):
        super().write(query + str(id(self)), number, rows)
    def newest(self, query):
        return None
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Install the examples, and a sink that cannot tell what comes again; return the path to them."""
    for name in ("sqlitesink", "sqlitestore"):
        own_policies.install_example(monkeypatch, tmp_path / "site" / name, EXAMPLES / name)
    folder = tmp_path / "site" / "plainsink"
    entries = {"plain": "plainsink:PlainSink"}
    own_policies.install(monkeypatch, folder, "plainsink", entries, group=SINKS, module=PLAIN)
    ours = (str(tmp_path), str(EXAMPLES))
    return os.pathsep.join(place for place in sys.path if place.startswith(ours))


def into(frame: DataFrame, folder: Path, mode: str = "append") -> Any:
    made = elastic(frame).outputMode(mode).format("SQLite").option("TABLE", "out")
    return made.option("path", str(folder / "out.db"))


def asked(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return sorted(database.execute(query).fetchall())


def expected(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    """Return Spark's batch answer, but for the window that no watermark has passed."""
    read = spark.read.schema("k int, t timestamp").json(str(folder / "events"))
    rows = [tuple(row) for row in per_window(read).collect()]
    last = max(start for _, start, _ in rows)
    return sorted(row for row in rows if row[1] < last)


def test_a_query_into_an_installed_sink_has_the_answer_of_sparks_batch(
    spark: SparkSession,
    events: DataFrame,  # noqa: F811
    tmp_path: Path,
) -> None:
    query = finish(into(per_key(events), tmp_path, "complete"), tmp_path / "ck")
    read = spark.read.schema("k int, t timestamp").json(str(tmp_path / "events"))
    assert asked(tmp_path, "SELECT * FROM out") == sorted(map(tuple, per_key(read).collect()))
    assert asked(tmp_path, "SELECT number FROM outputs") == [(0,), (1,), (2,)]
    assert query.lastProgress["sink"]["description"] == "sqlite[SqliteSink]"
    # and without state: each batch is Spark's own
    rows = into(read_again(spark, tmp_path).selectExpr("k", "cast(t AS long) AS t"), tmp_path)
    finish(rows.option("table", "all"), tmp_path / "ck2")
    assert len(asked(tmp_path, 'SELECT * FROM "all"')) == read.count()


def read_again(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema("k int, t timestamp").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "events"))


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    ("name", "checkpoint", "copies"),
    [
        ("sqlite", "ck", 1),
        pytest.param("sqlite", "sqlite://store/ck", 1, marks=pytest.mark.thorough),
        pytest.param("plain", "ck", 2, marks=pytest.mark.thorough),
    ],
)
def test_a_driver_that_dies_between_the_sinks_commit_and_ours_has_delivered_once(
    spark: SparkSession, tmp_path: Path, site: str, name: str, checkpoint: str, copies: int
) -> None:
    """But to a sink that cannot tell, whose guarantee is at least once: that output is there twice."""
    put(tmp_path / "events", 3, [(2, 400)])
    if checkpoint == "ck":
        checkpoint = str(tmp_path / "ck")
    program = str(Path(__file__).parent / "own_sink_driver.py")
    command = [sys.executable, program, str(tmp_path), checkpoint, name]
    env = os.environ | {"PYTHONPATH": site}
    died = subprocess.run(
        command, env=env | {CRASH: "after-sink:2"}, stderr=subprocess.PIPE, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-3000:]
    there = asked(tmp_path, "SELECT * FROM out")
    assert there, "the sink has committed"
    subprocess.run(command, env=env, check=True)
    found, wanted = asked(tmp_path, "SELECT * FROM out"), expected(spark, tmp_path)
    assert sorted(set(found)) == wanted
    if copies == 1:
        assert found == wanted
    else:
        assert len(found) > len(wanted)


# -- what is refused ----------------------------------------------------------------------------------

BROKEN = """
import headgate as hg

class Other:
    pass

class Half(hg.Sink):
    option_names = ("path", "table")
    output_modes = ("update",)

class Once(hg.Sink):
    option_names = ("path", "table")
    def write(self, query, number, rows):
        pass
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.option("tabel", 1), r'"sqlite" has no option "tabel"; did you mean "table"\?'),
        (lambda w: w.option("zz", 1), r'"sqlite" has no option "zz"; it takes path, table\.'),
        (lambda w: replaced(w, {"path": "/x"}), r'"sqlite" needs option "table"; add \.option\('),
        (lambda w: w.partitionBy("k"), '"SQLite" takes no partitionBy'),
        (
            lambda w: w.format("sqlit"),
            r'unknown format "sqlit": .* bring .*sqlite; did you mean "s',
        ),
        (
            lambda w: w.format("zz"),
            r"packages bring broken, .*, sqlite; correct it, or install its",
        ),
        (lambda w: w.option("path", "/no/x"), r'the database "/no/x" refuses to be written to \('),
        (
            lambda w: w.format("broken"),
            r'sink "broken" of .* broken 0\.1\.0 cannot be loaded: Attr',
        ),
        (
            lambda w: w.format("other"),
            r"broken 0\.1\.0 is the class Other; derive it from hg\.Sink",
        ),
        (lambda w: w.format("half"), "cannot be made: TypeError: .*abstract"),
        (lambda w: w.format("once"), 'format "once" takes append mode only; got update'),
    ],
)
def test_what_a_sink_does_not_take_is_refused_in_one_sentence(
    events: DataFrame,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], Any],
    message: str,
) -> None:
    entries = {name.lower(): f"broken:{name}" for name in ("Broken", "Other", "Half", "Once")}
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    own_policies.install(
        monkeypatch, tmp_path / "broken", "broken", entries, group=SINKS, module=BROKEN
    )
    made = change(into(per_key(events), tmp_path, "update"))
    with pytest.raises(ConfigError, match=message) as refused:
        made.option("checkpointLocation", str(tmp_path / "ck")).start()
    assert "\n" not in str(refused.value)


def replaced(made: Any, options: dict[str, str]) -> Any:
    made.settings = dataclasses.replace(made.settings, options=options)
    return made


def _mean(values: pd.Series) -> float:
    return float(values.mean())


def test_plain_spark_is_no_fallback_for_it(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load()
    cannot = frame.groupBy("value").agg(F.pandas_udf(_mean, "double")("value"))
    made = into(cannot, tmp_path, "update").fallback("spark")
    with pytest.raises(ConfigError, match="a sink of headgate's, to which plain Spark does not"):
        made.option("checkpointLocation", str(tmp_path / "ck")).start()


def test_explain_says_what_a_sink_guarantees(events: DataFrame) -> None:  # noqa: F811
    said = {
        name: str(hg.explain(per_key(events), "update", format=name)).splitlines()[-1]
        for name in ("sqlite", "plain", "parquet", "mongodb")
    }
    by = 'exactly once: an output and its number are one transaction (sink "sqlite" of the distribution'
    assert said["sqlite"] == f"sink          sqlite: {by} sqlitesink 0.1.0)"
    assert said["plain"].startswith("sink          plain: at least once: it does not recognise")
    assert said["parquet"].startswith("sink          parquet: exactly once, for readers")
    assert said["mongodb"].startswith("sink          mongodb: its own: an output that comes again")


def test_a_fleets_file_may_name_it() -> None:
    job = {"query": "jobs:a", "slo": ("mean < 1 s over 1 s",), "checkpoint": "/x"}
    JobSettings(**job, sink={"format": "sqlite", "path": "/a"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='there is no sink "sqlit"; did you mean "sqlite"'):
        JobSettings(**job, sink={"format": "sqlit"})  # type: ignore[arg-type]


# -- what it is told ----------------------------------------------------------------------------------


class Told(Sink):
    """Notes what it is told; holds outputs up to `there`."""

    there: int | None = None
    exactly_once = "of a test"

    def __init__(self) -> None:
        super().__init__({}, "append", StructType())
        self.said: list[tuple[Any, ...]] = []

    def begin(self) -> None:
        self.said.append(("begin",))

    def write(self, query: str, number: int, rows: DataFrame) -> None:
        self.said.append((query, number, rows))

    def newest(self, query: str) -> int | None:
        self.said.append(("newest", query))
        return self.there


class FakeStream:
    """The id of a query that has run before, or not."""

    query_id = "q"

    def __init__(self, *, has_run: bool) -> None:
        self.has_run = has_run

    @contextmanager
    def numbered(self, batch: int, frame: DataFrame) -> Iterator[None]:
        yield


def told(there: int | None, known: int, *, has_run: bool = True) -> tuple[OwnSink, Told]:
    sink = Told()
    sink.there = there
    stream = cast(WrittenStream, FakeStream(has_run=has_run))
    return OwnSink(installed(SINKS)["sqlite"], sink, stream, lambda: known), sink


def rows(number: int) -> DataFrame:
    return cast(DataFrame, f"rows {number}")


def test_what_it_has_is_not_written_again() -> None:
    made, sink = told(there=4, known=5)
    made.begin()
    for number in (4, 5, 6):
        made.write(number, rows(number))
    assert sink.said == [("begin",), ("newest", "q"), ("q", 5, "rows 5"), ("q", 6, "rows 6")]


def test_a_first_start_asks_for_nothing() -> None:
    made, sink = told(there=None, known=-1, has_run=False)
    made.begin()
    made.write(0, rows(0))
    assert sink.said == [("begin",), ("q", 0, "rows 0")]


def test_a_checkpoint_that_is_behind_it_is_refused() -> None:
    made, _ = told(there=7, known=5)
    with pytest.raises(CheckpointError, match=r"has output 7 of this query, and .* newest is 5"):
        made.begin()


def test_what_is_released_early_is_a_new_output_each_time() -> None:
    """Number 5 may come again with other rows: under that number a sink would leave it out."""
    said = []
    for _ in range(2):
        made, sink = told(there=9, known=5)
        made.write_early()
        made.begin()
        for number in (5, 5, 6):
            made.write(number, rows(number))
        said.append(sink.said)
    names = [{query for query, *_ in one[1:]} for one in said]
    assert all(len(one) == 1 and next(iter(one)).startswith("q/") for one in names)
    assert names[0] != names[1]
    assert [written[1:] for written in said[0][1:]] == [
        (0, "rows 5"),
        (1, "rows 5"),
        (2, "rows 6"),
    ]


# -- in real time -------------------------------------------------------------------------------------


def windows_of(session: Any) -> DataFrame:
    """Windows of bids, their rows as SQLite takes them."""
    start = F.col("window.start").cast("long").alias("start")
    return real_time.windows()(session).select(start, "auction", "n", "p", "b")


def started(frame: DataFrame, folder: Path, mode: str = "append") -> Any:
    made = into(frame, folder, mode).option("checkpointLocation", str(folder / "ck"))
    return made.trigger(realTime="5 minutes")


def outputs(folder: Path) -> int:
    try:
        return int(asked(folder, "SELECT count(*) FROM outputs")[0][0])
    except sqlite3.OperationalError:  # not made yet
        return 0


def all_of(spark: SparkSession, folder: Path, like: DataFrame) -> DataFrame:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        found = database.execute("SELECT * FROM out ORDER BY rowid").fetchall()
    return spark.createDataFrame(found, like.schema)


def test_epochs_are_outputs_and_each_is_there_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    for more in (5, 10):
        with running(started(windows_of(spark), tmp_path)) as query:
            wait_until(lambda more=more: outputs(tmp_path) > more, query)
            if more == 5:
                os.kill(query.processes["slot 1"], signal.SIGKILL)
                wait_until(lambda: outputs(tmp_path) > 8, query)
    numbers = [n for (n,) in asked(tmp_path, "SELECT number FROM outputs")]
    assert numbers == list(range(len(numbers)))
    assert len(asked(tmp_path, "SELECT DISTINCT query FROM outputs")) == 1
    frame = all_of(spark, tmp_path, windows_of(spark))
    assert_right(spark, windows_of, tmp_path / "ck", frame, "append")


@pytest.mark.thorough
def test_what_is_released_early_loses_nothing_when_a_slot_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    build = real_time.totals()
    for more in (5, 20):
        made = started(build(spark), tmp_path, "update").release("early")
        with running(made) as query:
            wait_until(lambda more=more: outputs(tmp_path) > more, query)
            os.kill(query.processes["slot 1"], signal.SIGKILL)
            wait_until(lambda more=more: outputs(tmp_path) > more + 8, query)
    assert len(asked(tmp_path, "SELECT DISTINCT query FROM outputs")) == 2
    found = {row["k"]: row for row in all_of(spark, tmp_path, build(spark)).collect()}
    last = spark.createDataFrame(list(found.values()), build(spark).schema)
    assert_right(spark, build, tmp_path / "ck", last, "update")
