"""What `hg.merge` says in SQL, and what it refuses; tables of their own are in `test_tables`."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError, EngineError, HeadgateError
from headgate.spark.jvm.tables import LastCommit
from headgate.spark.sinks import merge_rows, merging
from headgate.spark.sinks.merge_statement import SPARK, Dialect, MergedColumns

POSTGRES = Dialect('"', "=")


def said(merge, there=("k", "n"), rows=("k", "n"), into=SPARK):
    """Return the SQL of a merge into a table with columns `there`."""
    return merge.spec.statement(into, "t", "rows", MergedColumns("t", tuple(there), tuple(rows)))


def test_without_clauses_rows_are_updated_or_inserted():
    assert said(hg.merge("t", on="k")) == (
        "MERGE INTO t AS target USING rows AS source ON target.`k` <=> source.`k`\n"
        "WHEN MATCHED THEN UPDATE SET `n` = source.`n`\n"
        "WHEN NOT MATCHED THEN INSERT (`k`, `n`) VALUES (source.`k`, source.`n`)"
    )


def test_clauses_come_in_their_order_with_their_conditions():
    merge = (
        hg.merge("t", on=["k"])
        .whenMatchedDelete("source.gone")
        .whenMatchedUpdate("source.n > target.n", set={"n": "target.n + source.n"})
        .whenNotMatchedInsert("not source.gone", values={"k": "source.k"})
    )
    assert said(merge, rows=("k", "n", "gone"), into=POSTGRES).splitlines()[1:] == [
        "WHEN MATCHED AND (source.gone) THEN DELETE",
        'WHEN MATCHED AND (source.n > target.n) THEN UPDATE SET "n" = target.n + source.n',
        'WHEN NOT MATCHED AND (not source.gone) THEN INSERT ("k") VALUES (source.k)',
    ]


def test_a_merge_is_a_value_that_its_methods_leave_alone():
    plain = hg.merge("t", on="k")
    plain.whenMatchedDelete()
    assert plain == hg.merge("t", on=["k"])
    assert "password" not in repr(
        hg.merge("t", on="k", url="jdbc:postgresql://h/d", properties={"password": "p"})
    )


def test_names_are_matched_in_any_case_and_quoted_as_the_table_spells_them():
    text = said(hg.merge("t", on="K"), there=("k", "Per `Cent`"), rows=("k", "per `cent`"))
    assert "SET `Per ``Cent``` = source.`per ``cent```" in text


def test_a_column_of_the_result_that_the_table_lacks_is_refused_unless_a_clause_reads_it():
    merge = hg.merge("t", on="k")
    with pytest.raises(ConfigError, match="table t has no column m, which the result has; add it"):
        said(merge, rows=("k", "n", "m"))
    assert "`m`" not in said(merge.whenMatchedDelete("source.m > 3"), rows=("k", "n", "m"))
    with pytest.raises(ConfigError, match="no column m"):  # m is not what source.mm is
        said(merge.whenMatchedDelete("source.mm > 3"), rows=("k", "n", "m"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: hg.merge("", on="k"), "table='' of hg.merge"),
        (lambda: hg.merge("t", on=[]), r"on=\[\] of hg.merge"),
        (lambda: hg.merge("t", on=[1]), "use names of columns"),
        (lambda: hg.merge("t", on="k", latest=3), "latest=3 of hg.merge"),
        (lambda: hg.merge("t", on="k", properties={"user": "u"}), "go with a url"),
        (lambda: hg.merge("t", on="k", url="jdbc:mysql://h/d?password=p"), "is not of PostgreSQL"),
        (lambda: hg.merge("t", on="k", url="jdbc:sqlserver://h;password=p"), "jdbc:sqlserver:..."),
        (lambda: hg.merge("t", on="k", url="jdbc:mysql://me:password@h/d"), "jdbc:mysql:..."),
        (lambda: hg.merge("t", on="k").whenMatchedUpdate("a"), "set=None of a merge"),
        (lambda: hg.merge("t", on="k").whenMatchedUpdate(set={"n": 3}), "set of n=3 of a merge"),
        (lambda: said(hg.merge("t", on="nn")), 'on names column "nn", .* did you mean "n"'),
        (
            lambda: said(hg.merge("t", on="k").whenMatchedUpdate(set={"m": "1"})),
            'update names column "m", which table t does not have',
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(make, why):
    with pytest.raises(ConfigError, match=why) as refused:
        make()
    assert "\n" not in str(refused.value)
    assert "password" not in str(refused.value)


def test_no_text_of_a_merge_has_its_password():
    url, properties = "jdbc:postgresql://h/d?password=secret", {"password": "secret"}
    made = hg.merge("t", on="k", url=url, properties=properties)
    assert "secret" not in f"{made!r}{made.spec!r}"


@pytest.mark.parametrize(
    ("said", "calls"),
    [("org.apache.ConcurrentAppendException: files were added", 3), ("no such column", 1)],
)
def test_a_merge_that_others_were_in_the_way_of_is_tried_again(monkeypatch, said, calls):
    monkeypatch.setattr(merge_rows, "_WAIT_S", 0.0)
    told = []

    def merge(again):
        told.append(again)
        if len(told) < 3:
            with merge_rows.failing("t"):
                raise AnalysisException(said)

    with nullcontext() if calls == 3 else pytest.raises(EngineError, match=said):
        merge_rows.merge_with_retries(merge, False)
    # after an attempt nobody knows: the commit may have been heard by the table only
    assert told == [False, None, None][:calls]


@pytest.mark.parametrize("fails", [merge_rows._ATTEMPTS - 1, merge_rows._ATTEMPTS])
def test_a_merge_fails_by_what_its_last_attempt_says(monkeypatch, fails):
    monkeypatch.setattr(merge_rows, "_WAIT_S", 0.0)
    told = []

    def merge(again):
        told.append(again)
        if len(told) <= fails:
            with merge_rows.failing("t"):
                raise AnalysisException(f"deadlock detected by attempt {len(told)}")

    is_lost = fails == merge_rows._ATTEMPTS
    with pytest.raises(EngineError, match=f"attempt {fails}") if is_lost else nullcontext():
        merge_rows.merge_with_retries(merge, False)
    assert len(told) == merge_rows._ATTEMPTS


def test_a_merge_outside_of_a_query_or_by_columns_is_refused(spark):
    with pytest.raises(ConfigError, match="is a Column; write it in SQL"):
        hg.merge("t", on="id").whenMatchedDelete(F.lit(True))
    with pytest.raises(hg.HeadgateError, match="give it to foreachBatch"):
        hg.merge("t", on="id")(spark.range(1), 0)


def test_a_table_that_cannot_take_merges_is_refused_before_there_is_a_checkpoint(spark, tmp_path):
    ticks = spark.readStream.format("rate").load().groupBy("value").count()
    for table, why in (
        ("nosuch", "TABLE_OR_VIEW_NOT_FOUND|not found"),
        ("plain_files", "neither of Delta nor of Iceberg"),
    ):
        if table == "plain_files":
            spark.sql(f"create table {table} (value bigint) using json location '{tmp_path}/t'")
        writer = (
            hg.writeStream(ticks).outputMode("update").foreachBatch(hg.merge(table, on="value"))
        )
        try:
            with pytest.raises(ConfigError, match=why) as refused:
                writer.option("checkpointLocation", str(tmp_path / "ck")).start()
        finally:
            spark.sql(f"drop table if exists {table}")
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "ck").exists()


# -- a table of Iceberg, without Iceberg -----------------------------------------------------------


class FakeIceberg:
    """A session with one table of Iceberg's: its identity, and the last merge that a snapshot names."""

    def __init__(self, monkeypatch):
        self.identity, self.last, self.merged = "first", LastCommit(None, complete=True), []
        self.settings = {}
        self.conf = SimpleNamespace(set=self.settings.__setitem__)
        self.catalog = SimpleNamespace(refreshTable=lambda name: self.merged.append("refreshed"))
        monkeypatch.setattr(merging, "identity", lambda session, name: self.identity)
        monkeypatch.setattr(merging, "commit_setting", lambda session: "snapshot.")
        monkeypatch.setattr(merging, "last_merge", self.last_merge)
        monkeypatch.setattr(merging._TableMerge, "_merge", self.merge)
        monkeypatch.setattr(merging, "NamedTable", lambda session, name: SimpleNamespace(full=name))
        self.merging = merging._IcebergMerge(self, hg.merge("t", on="k").spec, self)

    def last_merge(self, session, table, writer, keys):
        return self.last

    def merge(self, frame):
        self.merged.append(dict(self.settings))
        self.last = LastCommit(int(self.settings["snapshot.headgate-step"]), complete=True)
        return True

    def write(self, batch, again):
        self.merging.write("query", batch, None, again=again)


@pytest.fixture
def iceberg(monkeypatch):
    return FakeIceberg(monkeypatch)


def test_a_merge_leaves_its_writer_and_its_step_in_the_snapshot(iceberg):
    iceberg.write(3, False)
    iceberg.write(4, False)
    names = ("snapshot.headgate-merge", "snapshot.headgate-step")
    of_steps = [dict(zip(names, ("query", n), strict=True)) for n in ("3", "4")]
    assert iceberg.merged == [of_steps[0], "refreshed", of_steps[1], "refreshed"]


def test_a_step_that_the_table_has_is_not_merged_again(iceberg):
    iceberg.write(3, False)
    iceberg.merged.clear()
    iceberg.write(3, None)  # after an attempt of which nobody knows
    assert iceberg.merged == []
    anew = merging._IcebergMerge(iceberg, iceberg.merging._spec, iceberg)  # after a restart
    anew.write("query", 3, None, again=True)
    assert iceberg.merged == []
    anew.write("query", 4, None, again=False)
    assert len(iceberg.merged) == 2


def test_a_table_that_is_ahead_of_the_checkpoint_is_refused(iceberg):
    iceberg.last = LastCommit(7, complete=True)
    with pytest.raises(CheckpointError, match="table t has output 3 of this query already"):
        iceberg.write(3, False)
    assert iceberg.merged == []


def test_a_merge_into_a_table_that_is_another_by_now_or_is_gone_is_refused(iceberg):
    iceberg.write(3, False)
    iceberg.merged.clear()
    for identity, why in (
        ("second", "table t was dropped and created again"),
        (None, "table t does not exist"),
    ):
        iceberg.identity = identity
        with pytest.raises(CheckpointError, match=why):
            iceberg.write(4, False)
    assert iceberg.merged == []


def test_an_iceberg_that_does_not_mark_its_commits_is_refused(iceberg, monkeypatch):
    monkeypatch.setattr(merging, "commit_setting", lambda session: None)
    with pytest.raises(ConfigError, match=r"use Iceberg 1\.11 or newer"):
        merging._IcebergMerge(iceberg, iceberg.merging._spec, iceberg)


class FakeDelta(FakeIceberg):
    """A session with one table of Delta's, which skips by itself what it has."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.merging = merging._DeltaMerge(self, hg.merge("t", on="k").spec)

    def merge(self, frame):
        writer, version = (
            self.settings[f"spark.databricks.delta.write.{n}"] for n in ("txnAppId", "txnVersion")
        )
        if self.merged and int(version) <= self.merged[-1][1]:
            return False
        self.merged.append((writer, int(version)))
        return True


def test_delta_is_told_whose_step_it_is_and_skips_what_it_has(monkeypatch):
    delta = FakeDelta(monkeypatch)
    for batch, again in ((3, False), (3, True), (3, None), (4, False)):
        delta.write(batch, again)
    assert delta.merged == [("query", 3), ("query", 4)]
    with pytest.raises(CheckpointError, match="table t has output 4 of this query already"):
        delta.write(4, False)
    delta.identity = "second"
    with pytest.raises(CheckpointError, match="table t was dropped and created again"):
        delta.write(5, False)
    assert delta.merged[-1] == ("query", 4)


def test_each_merge_of_a_query_is_made_once_and_two_into_one_table_need_names(monkeypatch):
    made, written = [], []

    def merging_of(spark, spec, program):
        made.append(spec)
        write = lambda writer, batch, frame, *, again: written.append((writer, batch, again))  # noqa: E731
        return SimpleNamespace(write=write)

    query = ["q", "run"]
    monkeypatch.setattr(merging, "_running", {})
    monkeypatch.setattr(merging, "merging_of", merging_of)
    monkeypatch.setattr(merging.sparksinks, "query_of_thread", lambda spark: tuple(query))
    monkeypatch.setattr(merging.sparksinks, "program_of_thread", lambda: None)
    frame = SimpleNamespace(sparkSession=None)
    spec = hg.merge("t", on="k").spec
    for batch in (1, 2):
        merging.merge_of_thread(spec, frame, batch)
    assert made == [spec]
    assert written == [("q", 1, None), ("q", 2, None)]
    other = hg.merge("t", on="n").spec
    with pytest.raises(
        ConfigError, match=r"two merges of one query go into table t; give each a name"
    ):
        merging.merge_of_thread(other, frame, 3)
    merging.merge_of_thread(hg.merge("t", on="n", name="second").spec, frame, 3)
    assert written[-1] == ("q/second", 3, None)
    query[:] = [None, None]
    with pytest.raises(HeadgateError, match="give it to foreachBatch, or call it in there"):
        merging.merge_of_thread(spec, frame, 4)
