"""How a step's rows get into a table once: in PostgreSQL by one transaction; without a database."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from said_columns import F, Said

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.spark.sinks import jdbc_merge, merge_rows, merging
from headgate.spark.sinks.jdbc_merge import JdbcMerge

URL = "jdbc:postgresql://h/d?password=p"
SPARK: Any = "the session"


class Database:
    """A database that answers, and tells what it was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.did: list[Any] = []
        self.version, self.newest, self.noted, self.nulls = 150002, [], 1, 0
        self.left: list[Any] = []
        self.fails: Exception | None = None
        monkeypatch.setattr(jdbc_merge, "transaction", self._transaction)
        monkeypatch.setattr(jdbc_merge, "one_row_per_key", lambda frame, spec: frame)
        monkeypatch.setattr(
            jdbc_merge.uuid, "uuid4", lambda: SimpleNamespace(hex="0123456789abcdef")
        )

    @contextmanager
    def _transaction(self, spark: Any, url: str, table: str, properties: Any) -> Any:
        if self.fails is not None:
            raise self.fails
        self.did.append(f"begin at {url}")
        yield self
        self.did.append("commit")

    def rows(self, text: str, *given: Any) -> list[Any]:
        self.did.append((text, *given))
        for known, rows in (
            ("server_version", [(self.version,)]), ("pg_tables", self.left),
            ("FOR UPDATE", self.newest), ("count(*)", [(self.nulls,)]),
        ):  # fmt: skip
            if known in text:
                return rows
        raise AssertionError(text)

    def columns(self, text: str) -> tuple[str, ...]:
        return ("k", "n")

    def run(self, text: str, *given: Any) -> int:
        self.did.append((text, *given))
        return self.noted

    @property
    def ran(self) -> list[str]:
        """What was done, by its first words."""
        return [
            " ".join(str(one[0] if isinstance(one, tuple) else one).split()[:2]) for one in self.did
        ]


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


def merge(table: str = "s.totals") -> JdbcMerge:
    spec = hg.merge(table, on="k", url=URL, properties={"user": "u"}).spec
    return JdbcMerge(SPARK, spec)


class Rows:
    """Rows that say where they are written."""

    def __init__(self, did: list[Any]) -> None:
        self._did = did
        self.write = SimpleNamespace(jdbc=lambda *given: did.append(("rows", *given)))


def write(database: Database, made: JdbcMerge, batch: int = 3, again: bool | None = None) -> None:
    frame: Any = Rows(database.did)
    made.write("w", batch, frame, again=again)


STAGED = "s.headgate_rows_50e721e4_01234567"
"""Named by the writer and by chance."""


def test_a_step_is_staged_by_executors_and_merged_with_its_number_by_the_driver(
    database: Database,
) -> None:
    made = merge()
    write(database, made)
    assert database.ran == [
        "begin at", "CREATE TABLE", "SELECT tablename::text", "SELECT step", "commit",
        "rows", "begin at", "INSERT INTO", "SELECT count(*)", "MERGE INTO", "DROP TABLE", "commit",
    ]  # fmt: skip
    assert ("rows", URL, STAGED, "overwrite", {"user": "u"}) in database.did
    assert database.did[3] == ("SELECT step FROM s.headgate_steps WHERE writer = ? FOR UPDATE", "w")
    insert = next(one for one in database.did if str(one[0]).startswith("INSERT"))
    assert insert[1:] == ("w", 3)
    merged = next(one[0] for one in database.did if str(one[0]).startswith("MERGE"))
    assert merged.startswith(
        f'MERGE INTO s.totals AS target USING (SELECT DISTINCT ON ("k") * FROM {STAGED}) AS source ON '
        'target."k" = source."k"'
    )
    assert database.did[-2] == (f"DROP TABLE {STAGED}",)
    database.did.clear()
    write(database, made, 4)
    assert database.ran[:4] == ["begin at", "SELECT step", "commit", "rows"], "it was swept before"


def test_null_keys_are_keys_where_there_are_any(database: Database) -> None:
    database.nulls = 1
    write(database, merge())
    merged = next(one[0] for one in database.did if str(one[0]).startswith("MERGE"))
    assert 'target."k" IS NOT DISTINCT FROM source."k"' in merged


def test_what_another_driver_has_noted_meanwhile_is_not_merged(database: Database) -> None:
    database.noted = 0
    write(database, merge())
    assert database.ran[-3:] == ["INSERT INTO", "DROP TABLE", "commit"]


@pytest.mark.parametrize(("newest", "written"), [(2, True), (3, False), (4, False)])
def test_a_step_that_the_table_has_is_skipped(
    database: Database, newest: int, written: bool
) -> None:
    database.newest = [(newest,)]
    write(database, merge())
    assert ("MERGE INTO" in database.ran) is written
    if written:
        return
    with pytest.raises(
        CheckpointError, match=r"table s\.totals has output 3 of this query already"
    ):
        write(database, merge(), again=False)
    write(database, merge(), again=True)


@pytest.mark.parametrize(
    ("table", "where"),
    [
        ("totals", ("schemaname = current_schema()",)),
        ("s.totals", ("schemaname = ?", "s")),
        ('"S".totals', ("schemaname = ?", "S")),
    ],
)
def test_rows_that_killed_drivers_have_left_are_dropped(
    database: Database, table: str, where: tuple[str, ...]
) -> None:
    database.left = [("headgate_rows_50e721e4_old",)]
    write(database, merge(table))
    looked = next(one for one in database.did if "pg_tables" in str(one))
    assert where[0] in looked[0]
    assert looked[1:] == (*where[1:], "headgate_rows_50e721e4_")
    schema = table.removesuffix("totals")
    assert (f"DROP TABLE {schema}headgate_rows_50e721e4_old",) in database.did


def test_a_database_is_asked_before_anything_runs(database: Database) -> None:
    merge().check(("k", "n"))
    assert database.did[0] == f"begin at {URL}"
    with pytest.raises(ConfigError, match="k"):
        merge().check(("n",))
    database.version = 149999
    with pytest.raises(
        ConfigError, match=r"newer, whose SQL has MERGE; jdbc:postgresql://h/d is version 14"
    ):
        merge().check(("k", "n"))
    database.fails = AnalysisException("no such table.")
    with pytest.raises(
        ConfigError, match=r"table s\.totals of jdbc:postgresql://h/d cannot be merged into"
    ):
        merge().check(("k", "n"))
    with pytest.raises(EngineError, match=r"writing to table s\.totals failed"):
        write(database, merge())


# --- Rows and conflicts -------------------------------------------------------------------------------


def test_of_several_rows_of_a_key_the_latest_is_taken_or_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_rows, "F", F)
    monkeypatch.setattr(merge_rows, "Window", Said("Window"))
    frame: Any = Said("rows")
    latest = merge_rows.one_row_per_key(frame, hg.merge("t", on="k", latest="at").spec)
    assert str(latest) == (
        "rows.withColumn(headgate_rank, row_number().over(Window.partitionBy(`k`).orderBy(`at`.desc())))"
        ".where((headgate_rank = 1)).drop(headgate_rank)"
    )
    one = merge_rows.one_row_per_key(frame, hg.merge("t", on=["k", "j"]).spec)
    assert str(one) == (
        "rows.withColumn(headgate_count, count(*).over(Window.partitionBy(`k`, `j`)))"
        ".where(when((headgate_count > 1), raise_error(HEADGATE_SEVERAL_ROWS).cast(boolean))"
        ".otherwise(True)).drop(headgate_count)"
    )


# --- Tables that know the steps -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "program"), [("delta", None), ("iceberg", None), ("iceberg", "the program's")]
)
def test_a_merge_is_that_of_the_tables_kind(
    monkeypatch: pytest.MonkeyPatch, kind: str, program: Any
) -> None:
    monkeypatch.setattr(merging, "clone_of", lambda spark: f"a copy of {spark}")
    monkeypatch.setattr(merging, "kind_of_name", lambda session, name: kind)
    monkeypatch.setattr(merging, "_DeltaMerge", lambda session, spec: ("delta", session))
    monkeypatch.setattr(
        merging, "_IcebergMerge", lambda session, spec, home: ("iceberg", session, home)
    )
    spec = hg.merge("t", on="k").spec
    home = () if kind == "delta" else (program or SPARK,)
    made: Any = merging.merging_of(SPARK, spec, program)
    assert made == (kind, "a copy of the session", *home)
    assert isinstance(
        merging.merging_of(SPARK, hg.merge("t", on="k", url=URL).spec, None), JdbcMerge
    )
    monkeypatch.setattr(merging, "kind_of_name", lambda session, name: "parquet")
    with pytest.raises(ConfigError, match="table t is neither of Delta nor of Iceberg"):
        merging.merging_of(SPARK, spec, None)


@pytest.mark.parametrize(
    ("known", "batch", "again"), [(None, 5, None), (5, 5, True), (5, 6, False), (5, 4, True)]
)
def test_a_merge_is_told_whether_its_step_may_be_there(
    monkeypatch: pytest.MonkeyPatch, known: int | None, batch: int, again: bool | None
) -> None:
    did: list[Any] = []
    stream = SimpleNamespace(query_id="q", numbered=lambda batch, frame: nullcontext())
    inner = SimpleNamespace(
        check=did.append, write=lambda *given, again: did.append((*given, again))
    )
    monkeypatch.setattr(merging, "merging_of", lambda *given: inner)
    monkeypatch.setattr(merging.sparksinks, "WrittenStream", lambda spark, place: stream)
    named = hg.merge("t", on="k", name="second").spec
    sink = merging.MergeSink(SPARK, named, ("k",), Path("place"), lambda: known)
    sink.begin()
    frame: Any = "rows"
    sink.write(batch, frame)
    assert did == [("k",), ("q/second", batch, "rows", again)]
    assert sink.description == "Merge[t]"
    assert merging.writer_of("q", None) == "q"


class Session:
    """A session of a merge's own."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.conf = SimpleNamespace(set=self.settings.__setitem__)
        self.said: list[str] = []
        self.answer: list[Any] = [1]

    def table(self, name: str) -> Any:
        return SimpleNamespace(columns=["k", "n"])

    def sql(self, text: str) -> Any:
        self.said.append(text.partition("\n")[0])
        return SimpleNamespace(collect=lambda: self.answer)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session()
    rows = SimpleNamespace(createOrReplaceTempView=session.said.append)
    for name, stub in {
        "one_row_per_key": lambda frame, spec: rows,
        "of_rows": lambda session, plan: plan,
        "analysed": lambda frame: "plan",
        "identity": lambda session, table: "id",
        "commit_setting": lambda session: "write.",
        "NamedTable": lambda session, table: SimpleNamespace(full=f"cat.{table}"),
    }.items():
        monkeypatch.setattr(merging, name, stub)
    return session


FRAME: Any = SimpleNamespace(columns=["k", "n"])
MERGED = "MERGE INTO t AS target USING headgate_merged_rows AS source ON target.`k` <=> source.`k`"


def test_delta_keeps_a_steps_number_and_says_nothing_of_one_that_it_has(own: Session) -> None:
    made = merging._DeltaMerge(own, hg.merge("t", on="k").spec)  # type: ignore[arg-type]
    made.check(("k", "n"))
    made.write("w", 3, FRAME, again=False)
    assert list(own.settings.values()) == ["w", "3"]
    assert own.said == ["headgate_merged_rows", MERGED]
    own.answer = []
    made.write("w", 4, FRAME, again=True)
    with pytest.raises(CheckpointError, match="table t has output 4"):
        made.write("w", 4, FRAME, again=False)


def test_iceberg_is_asked_for_its_snapshots_at_the_first_write_alone(
    own: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed: list[str] = []
    home: Any = SimpleNamespace(catalog=SimpleNamespace(refreshTable=refreshed.append))
    spec = hg.merge("t", on="k").spec
    made = merging._IcebergMerge(own, spec, home)  # type: ignore[arg-type]
    asked: list[Any] = []
    there = [SimpleNamespace(number=3, complete=True)]

    def last_merge(*given: Any) -> Any:
        asked.append(given[1:3])
        return there[0]

    monkeypatch.setattr(merging, "last_merge", last_merge)
    made.write("w", 3, FRAME, again=True)
    assert (own.said, refreshed) == ([], [])
    there[0] = SimpleNamespace(number=2, complete=True)
    made.write("w", 3, FRAME, again=True)
    assert own.settings == {"write.headgate-merge": "w", "write.headgate-step": "3"}
    assert (own.said, refreshed) == (["headgate_merged_rows", MERGED], ["cat.t"])
    made.write("w", 4, FRAME, again=False)
    assert asked == [("t", "w")] * 2
    made.write("w", 5, FRAME, again=None)
    assert len(asked) == 3, "where it is not known, the table is"
    monkeypatch.setattr(merging, "commit_setting", lambda session: None)
    with pytest.raises(ConfigError, match=r"use Iceberg 1\.11 or newer"):
        merging._IcebergMerge(own, spec, home)  # type: ignore[arg-type]


def test_a_table_that_was_made_anew_is_not_merged_into(
    own: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = merging._DeltaMerge(own, hg.merge("t", on="k").spec)  # type: ignore[arg-type]
    made.write("w", 3, FRAME, again=False)
    for now, says in (
        ("other", "table t was dropped and created again"),
        (None, "table t does not exist"),
    ):
        monkeypatch.setattr(merging, "identity", lambda session, table, now=now: now)
        with pytest.raises(CheckpointError, match=says):
            made.write("w", 4, FRAME, again=False)
