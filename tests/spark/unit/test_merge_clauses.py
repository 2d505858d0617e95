"""Tests the clauses of a merge, what a session makes of it, and what functions do without a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from noted_calls import Calls
from pyspark.sql import types as T

from headgate.core.errors import ConfigError, EngineError
from headgate.operators.spec import Kind, Leaf
from headgate.spark.jvm import sparksinks
from headgate.spark.plain import entries
from headgate.spark.plain.entries import EntriesTask, OurState
from headgate.spark.realtime.user_functions import OfArrays, OfIterators, OfRecords, OfSeries
from headgate.spark.sinks import merging
from headgate.spark.sinks.merge import Merge
from headgate.spark.sinks.merge_statement import Clause, MergeSpec
from headgate.tables.ports import EMPTY_TOKEN

SPEC = MergeSpec("t", ("k",), None, "", None, {})


def test_each_clause_says_whom_it_is_for_and_what_it_does() -> None:
    made = (
        Merge(SPEC).whenMatchedDelete("source.n < 0").whenMatchedUpdate(set={"n": "source.n"})
        .whenMatchedUpdateAll("a").whenNotMatchedInsert("b", {"k": "source.k"})
        .whenNotMatchedInsertAll("c").whenMatchedUpdateAll().whenNotMatchedInsertAll()
    )  # fmt: skip
    assert made.spec.clauses == (
        Clause(matched=True, action="delete", condition="source.n < 0"),
        Clause(matched=True, action="update", condition=None, values={"n": "source.n"}),
        Clause(matched=True, action="update", condition="a"),
        Clause(matched=False, action="insert", condition="b", values={"k": "source.k"}),
        Clause(matched=False, action="insert", condition="c"),
        Clause(matched=True, action="update", condition=None),
        Clause(matched=False, action="insert", condition=None),
    )
    wrong: Any = 3
    for ask, says in (
        (made.whenMatchedUpdate, r"^set=None of a merge is not allowed; use SQL as in"),
        (
            lambda: made.whenNotMatchedInsert(values={}),
            r"^values={} of a merge is not allowed; use",
        ),
        (
            lambda: made.whenNotMatchedInsert(values={"k": " "}),
            r"^values of k=' ' of a merge is not",
        ),
        (lambda: made.whenMatchedDelete(wrong), r"^condition=3 of a merge is not allowed; use SQL"),
    ):
        refused: Any = ask
        with pytest.raises(ConfigError, match=says):
            refused()


def test_a_merge_is_called_with_the_rows_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    calls.put(merging, merge_of_thread=None)
    frame: Any = "rows"
    Merge(SPEC)(frame, 3)
    assert calls.did == [("merge_of_thread", SPEC, "rows", 3)]


def test_a_merge_loses_no_rows_that_are_released_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparksinks, "is_early_in_thread", lambda: True)
    frame: Any = SimpleNamespace(sparkSession="spark")
    with pytest.raises(
        ConfigError, match=r'^hg\.merge into t loses rows with \.release\("early"\)'
    ):
        merging.merge_of_thread(SPEC, frame, 3)


# --- Functions ----------------------------------------------------------------------------------------


def test_a_function_is_not_called_without_a_record() -> None:
    def fails(*_: Any) -> Any:
        raise OSError("it is called")

    assert OfRecords(fails)("marker", 1) is None
    assert OfRecords(lambda a, b: a + b)(None, 1, b=2) == 3
    markers = pd.Series([1, 2])
    assert OfSeries(fails, None)(markers, markers).tolist() == [None, None]
    frame = OfSeries(fails, ("p", "q"))(markers, markers)
    assert frame.to_dict("list") == {"p": [None, None], "q": [None, None]}
    nothing = OfArrays(fails, pa.int64())(pa.array([1, 2]), pa.array([1, 2]))
    assert nothing == pa.nulls(2, pa.int64())


def test_a_function_of_iterators_that_ends_is_told() -> None:
    def one(batches: Any) -> Any:
        yield next(iter(batches))

    made = OfIterators(OfArrays(one, pa.int64()))
    numbers, none = pa.array([1, 2]), pa.nulls(2, pa.int32())
    given = iter([(none, numbers), (none, numbers)])
    results = made(given)
    assert next(results) == numbers
    with pytest.raises(
        EngineError,
        match=r"^a Python function of iterators has ended too early; have it yield for e",
    ):
        next(results)


# --- Entries ------------------------------------------------------------------------------------------


def test_entries_are_read_of_groups_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    operator = SimpleNamespace(
        layout=SimpleNamespace(table="layout"), entries=lambda *told: ("entries", *told)
    )
    store = calls.several(acquire="a table")
    checkpoint = calls.several(chain="a chain")
    calls.put(entries, operator_of=operator, HeapStore=store, Checkpoint=checkpoint)
    spec: Any = "spec"
    tokens = ["t0", EMPTY_TOKEN, "t2"]
    task = EntriesTask("a", spec, 1, "at", tokens, [4, -1, 6], [40, 0, 60], {"k": "v"})
    batches = [pa.RecordBatch.from_pydict({"id": [0, 1]}), pa.RecordBatch.from_pydict({"id": [2]})]
    found: list[Any] = list(task(iter(batches)))
    assert found == [("entries", "a table", 40, 1), ("entries", "a table", 60, 1)]
    assert calls.did == [
        ("operator_of", "spec"), ("Checkpoint", "at", {"k": "v"}, {"known": True}),
        ("HeapStore", "layout"), ("chain", "a", 0, 4, "t0"), ("acquire", 0, "t0", "a chain"),
        ("HeapStore", "layout"), ("chain", "a", 2, 6, "t2"), ("acquire", 2, "t2", "a chain"),
    ]  # fmt: skip


def test_groups_are_read_in_as_many_tasks_as_there_are_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch)
    spark = calls.several(range="groups")
    state = SimpleNamespace(
        tokens=["t"] * 8, steps=[1], emitted_us=[2], assignment=SimpleNamespace(slots=3)
    )
    monkeypatch.setattr(
        entries, "ArrowMap", lambda *told: SimpleNamespace(apply=lambda rows: (*told, rows))
    )
    keys = [SimpleNamespace(name="k0", leaf=Leaf(Kind.INTEGER))]
    operator = SimpleNamespace(id="a", spec="spec", keys=keys)
    checkpoint = SimpleNamespace(location="at", options={"k": "v"})
    given: Any = (spark, operator, state, checkpoint, None, True)
    made: Any = OurState(*given).part([T.StructField("t", T.LongType())], 1)
    task, schema, rows = made
    spec: Any = "spec"
    assert task == EntriesTask("a", spec, 1, "at", ["t"] * 8, [1], [2], {"k": "v"})
    assert schema.simpleString() == "struct<k0:bigint,t:bigint>"
    assert rows == "groups"
    assert calls.did == [("range", 0, 8, 1, 3)]
