"""Tests which plan computes the results from what slots have put out; on plans that are only said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from noted_calls import Calls
from pyspark.sql import types as T

from headgate.spark.step import output
from headgate.spark.step.output import Outputs, Results, raw_frame
from headgate.spark.worker.payloads import read_table

SCHEMA = T.StructType().add("n", T.LongType())
HERE = {"operator": "a", "rows": 1, "inline": "t"}
IN_FILE = {"operator": "a", "rows": 1, "file": "f", "crc32": 7}


class Point(T.UserDefinedType):
    """A type of a library's."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.LongType()


def last(name: str, schema: T.StructType = SCHEMA) -> Any:
    return SimpleNamespace(
        id=name, raw_schema=schema,
        placeholder=SimpleNamespace(name=name, output=lambda: SimpleNamespace(of=name, __str__=None)),
    )  # fmt: skip


class Query:
    """A query whose results are planned, in words."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *lasts: Any, observes: bool = False
    ) -> None:
        self.calls = calls = Calls(monkeypatch)
        said: dict[str, Any] = {
            "analysed": lambda frame: SimpleNamespace(output=lambda: f"columns of {frame}"),
            "no_rows": lambda spark, schema: f"no rows of {getattr(schema, 'names', schema)}",
            "internal_rows": lambda frame: f"rows of {frame}",
            "leaf": lambda spark, columns, rows: f"<{getattr(columns, 'of', columns)}: {rows}>",
            "replace_leaf": lambda spark, plan, old, new: f"{plan} with {new} for {old.name}",
            "of_rows": lambda spark, plan: f"frame of {plan}",
            "computed_rows": lambda frame: f"computed {frame}",
            "raw_frame": lambda spark, schema, entries, inline, checkpoint: (
                f"{[entry['operator'] for entry in entries]} in {sorted(inline)} at {checkpoint}"
            ),
            "observes": lambda plan: observes,
            "CountedRows": lambda frame: SimpleNamespace(rows=f"counted {frame}", metrics=lambda: "m"),
            "named_as": lambda frame, columns: f"{frame} as {columns}",
            "each": lambda columns: columns.of,
        }  # fmt: skip
        for name, function in said.items():
            monkeypatch.setattr(output, name, function)
        planned = calls.several(rows="planned rows")
        monkeypatch.setattr(output, "Planned", calls.one("Planned", planned))
        query: Any = SimpleNamespace(last=lasts, plan="plan", schema="result")
        self.results: Any = Results(SPARK, query)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


SPARK: Any = "spark"
AT: Any = "here"
OUTPUTS = Outputs([HERE, {"operator": "b", "rows": 2, "inline": "u"}], {"t": b"", "u": b""})


def test_results_of_one_operator_are_planned_once(patch: pytest.MonkeyPatch) -> None:
    query = Query(patch, last("a"))
    hole = "<a: rows of no rows of ['n']>"
    put = "rows of ['a'] in ['t', 'u'] at here"
    said = "frame of <columns of no rows of result: planned rows>"
    assert [query.results.stored(OUTPUTS, AT) for _ in range(2)] == [said, said]
    assert query.calls.did == [
        ("Planned", f"frame of plan with {hole} for a", hole), ("rows", put), ("rows", put),
    ]  # fmt: skip
    assert query.results.observed() is None


def test_results_of_several_operators_are_those_of_the_whole_plan(
    patch: pytest.MonkeyPatch,
) -> None:
    query = Query(patch, last("a"), last("b"))
    plan = "plan"
    for name in "ab":
        plan += f" with <{name}: rows of ['{name}'] in ['t', 'u'] at here> for {name}"
    assert query.results.stored(OUTPUTS, AT) == (
        f"frame of <columns of no rows of result: computed frame of {plan}>"
    )
    assert query.calls.did == []
    assert query.results.observed() is None


def test_a_query_that_observes_has_the_metrics_of_its_last_results(
    patch: pytest.MonkeyPatch,
) -> None:
    query = Query(patch, last("a"), observes=True)
    assert query.results.observed() is None
    put = "<a: rows of ['a'] in ['t', 'u'] at here>"
    assert query.results.stored(OUTPUTS, AT) == (
        f"frame of <columns of no rows of result: counted frame of plan with {put} for a>"
    )
    assert query.results.observed() == "m"


def test_rows_at_hand_are_within_the_plan(patch: pytest.MonkeyPatch) -> None:
    here = Outputs([HERE], {"t": b""})
    one = Query(patch, last("a")).results
    assert one.at_hand(here, AT) == "frame of plan with ['a'] in ['t'] at here as a for a"
    patch.setattr(Results, "stored", lambda *told: "stored")
    for outputs in (Outputs(), Outputs([HERE, IN_FILE], {"t": b""})):
        assert one.at_hand(outputs, AT) == "stored"
    assert (
        Query(patch, last("a", T.StructType().add("p", Point()))).results.at_hand(here, AT)
        == "stored"
    )
    assert Query(patch, last("a"), last("b")).results.at_hand(here, AT) == "stored"
    assert Query(patch, last("a"), observes=True).results.at_hand(here, AT) == "stored"


def test_a_narrow_plan_is_of_one_operator_s_rows(patch: pytest.MonkeyPatch) -> None:
    narrow = Calls(patch)
    patch.setattr(output, "NarrowPlan", narrow.several(of="narrow"))

    def projected(query: Query) -> Any:
        return query.results.project_rows(lambda frame: f"above {frame}", Path("f"))

    assert projected(Query(patch, last("a"))) == "narrow"
    hole = "<a: rows of no rows of ['n']>"
    assert narrow.did == [("of", f"above frame of plan with {hole} for a", hole, SCHEMA, Path("f"))]
    assert projected(Query(patch, last("a", T.StructType().add("p", Point())))) is None
    assert projected(Query(patch, last("a"), last("b"))) is None
    assert projected(Query(patch, last("a"), observes=True)) is None


def stream(*numbers: int) -> bytes:
    table, sink = pa.table({"n": pa.array(numbers, pa.int64())}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_rows_come_from_the_manifest_or_are_read_by_executors(patch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    calls = Calls(patch)
    frame = calls.several(mapInArrow="read")
    frame.repartitionById = calls.one("repartitionById", frame)

    def created(spark: Any, rows: Any, schema: Any) -> Any:
        made.append((rows, schema))
        return frame

    patch.setattr(output, "created", created)
    at: Any = SimpleNamespace(location="at", options={"k": "v"})
    schema = T.StructType().add("n", Point())
    assert raw_frame(SPARK, schema, [], {}, at) is frame
    assert made.pop() == ([], SCHEMA)
    inline = {"t": stream(1, 2), "u": stream(3)}
    two = [HERE, {"operator": "a", "rows": 1, "inline": "u"}]
    raw_frame(SPARK, schema, two, inline, at)
    table, stored = made.pop()
    assert (table.to_pydict(), stored) == ({"n": [1, 2, 3]}, SCHEMA)
    assert calls.did == []
    answer: Any = raw_frame(SPARK, schema, [HERE, IN_FILE], inline, at)
    assert answer == "read"
    rows, columns = made.pop()
    assert [(row[0], row[1], row[3]) for row in rows] == [(0, None, None), (1, "f", 7)]
    assert read_table(rows[0][2]).to_pydict() == {"n": [1, 2]}
    assert rows[1][2] is None
    assert columns == "i int, file string, data binary, crc32 bigint"
    assert calls.did == [
        ("repartitionById", 2, "i"),
        ("mapInArrow", output._ReadOutput("at", {"k": "v"}), SCHEMA),
    ]  # fmt: skip
