"""What a table is asked before the first write of a run, and what follows from its answer."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.spark.jvm.tables import LastCommit
from headgate.spark.sinks import table_sinks
from headgate.spark.sinks.table_sinks import KnownTable, TableSink, _check_columns, check_there


class FakeInner:
    description = "a table"

    def __init__(self):
        self.written = []

    def begin(self):
        self.begun = True

    def write(self, batch, frame):
        if frame == "bad":
            raise AnalysisException("no such\ncolumn")
        self.written.append(batch)


@pytest.fixture
def table(tmp_path):
    """From what the checkpoint knows, and what the table has, to its sink."""
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))

    def made(known, has, complete=True):
        asked = []

        def look(query_id):
            asked.append(query_id)
            return LastCommit(has, complete)

        aim = SimpleNamespace(
            checkpoint=tmp_path, last_output=lambda: known, delivered=lambda: made.delivered
        )
        place = tmp_path / "table"
        place.write_text("first")
        known_table = KnownTable(
            lambda: place.read_text() if place.exists() else None,
            lambda: _check_columns("t", ["k"], made.rows, {}),
            silent=made.silent,
        )
        sink = TableSink(FakeInner(), None, "t", aim, look, known_table)
        sink.begin()
        return sink, asked

    made.rows, made.silent, made.delivered = ["k"], True, -1
    return made


@pytest.mark.filterwarnings("ignore:table t has none of this query's earlier outputs")
@pytest.mark.parametrize(
    ("known", "has", "batch", "written"),
    [
        (3, 3, 3, []),  # killed after the table's commit
        (3, 2, 3, [3]),  # killed before it
        (3, 3, 4, [4]),  # stopped in between
        (None, None, 0, [0]),  # the first of all
        (None, 7, 7, []),  # without state nobody knows but the table
        (3, None, 4, [4]),  # another table than before: from now on
    ],
)
def test_an_output_is_written_unless_the_table_has_it(table, known, has, batch, written):
    sink, asked = table(known, has)
    sink.write(batch, "rows")
    assert sink._inner.written == written
    assert asked == ["q"]
    assert sink.description == "a table"  # which progress shows


def test_who_has_read_the_table_is_told_of_each_write(table):
    sink, _ = table(3, 3)
    told = []
    sink._refresh = lambda: told.append(list(sink._inner.written))
    for batch in (3, 4, 5):
        sink.write(batch, "rows")
    assert told == [[4], [4, 5]]


def test_the_table_is_asked_until_something_was_written(table):
    sink, asked = table(3, 3)
    for batch in (3, 4, 5, 6):
        sink.write(batch, "rows")
    assert sink._inner.written == [4, 5, 6]
    assert len(asked) == 2


def test_a_table_that_is_ahead_of_the_checkpoint_is_refused(table):
    sink, _ = table(3, 9)
    with pytest.raises(CheckpointError, match="table t has output 4 of this query already"):
        sink.write(4, "rows")
    assert sink._inner.written == []


def test_what_a_table_has_forgotten_is_not_guessed(table):
    sink, _ = table(3, None, complete=False)
    with pytest.raises(CheckpointError, match="cannot tell whether the table has output 3"):
        sink.write(3, "rows")
    sink, _ = table(3, None, complete=False)
    sink.write(4, "rows")  # it cannot be there
    assert sink._inner.written == [4]


def test_a_table_that_goes_while_the_query_runs_is_not_made_anew(table, tmp_path):
    sink, _ = table(None, None)
    sink.write(0, "rows")
    (tmp_path / "table").unlink()
    with pytest.raises(
        CheckpointError, match="table t does not exist, but this query has written 1"
    ):
        sink.write(1, "rows")
    assert sink._inner.written == [0]


@pytest.mark.parametrize("silent", [True, False])
def test_a_table_that_is_made_anew_is_told_from_the_one_before(table, tmp_path, silent):
    table.silent = silent
    sink, _ = table(None, None)
    sink.write(0, "rows")
    (tmp_path / "table").write_text("second")
    with pytest.raises(CheckpointError, match="table t was dropped and created again while"):
        sink.write(1, "rows" if silent else "bad")
    assert sink._inner.written == [0]


def test_a_column_that_is_dropped_meanwhile_is_named(table):
    sink, _ = table(None, None)
    sink.write(0, "rows")
    table.rows = ["k", "more"]
    with pytest.raises(ConfigError, match="table t has no column more, which the result has"):
        sink.write(1, "bad")


@pytest.mark.parametrize(
    ("known", "batch", "warned"), [(None, 3, 0), (0, 0, 0), (0, 1, 1), (3, 4, 1)]
)
def test_a_table_that_has_nothing_of_ours_is_gone_on_in_and_said(table, known, batch, warned):
    sink, _ = table(known, None)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sink.write(batch, "rows")
    assert len(said) == warned
    assert sink._inner.written == [batch]


@pytest.mark.parametrize(("delivered", "warned"), [(1, 0), (2, 1), (3, 1)])
def test_a_table_that_was_put_back_is_gone_on_in_and_said(table, delivered, warned):
    table.delivered = delivered
    sink, _ = table(3, 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sink.write(4, "rows")
    assert len(said) == warned
    assert all(
        "t was restored to an older version: it has this query's outputs up to 1," in str(w)
        for w in said
    )
    assert sink._inner.written == [4]


def test_what_fails_is_one_sentence(table):
    sink, _ = table(None, None)
    with pytest.raises(
        EngineError, match=r"writing to table t failed \(no such\), and the step is"
    ):
        sink.write(0, "bad")


def test_a_table_that_is_gone_is_refused_once_something_was_written():
    for last in (None, -1):
        check_there("t", last)
    with pytest.raises(CheckpointError, match="has written 5 outputs to it"):
        check_there("t", 4)


def test_a_column_more_is_refused_unless_the_table_may_change():
    check = table_sinks._check_columns
    check("t", ["K", "n"], ["k", "N"], {})
    check("t", ["k"], ["k", "n"], {"mergeSchema": "true"})
    with pytest.raises(ConfigError, match="table t has no column n, m, which the result has"):
        check("t", ["k"], ["k", "n", "m"], {"mergeSchema": "false"})
