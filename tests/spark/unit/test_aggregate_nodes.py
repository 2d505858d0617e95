"""Tests what becomes of a whole Aggregate node: its keys, time, values, output and parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.operators.spec import NO_TIME_US, Kind, Leaf, OutputMode, TimeKey
from headgate.spark.read import aggregate, types
from headgate.spark.read.reading import Reading

SPARK: Any = "the session"
LONG, TEXT, DOUBLE, TIME = T.LongType(), T.StringType(), T.DoubleType(), T.TimestampType()
WINDOW = T.StructType([T.StructField("start", TIME), T.StructField("end", TIME)])
INTEGER = Leaf(Kind.INTEGER)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (aggregate, types):
        monkeypatch.setattr(module, "F", F)
    for name in ("aggregate", "reading"):
        monkeypatch.setattr(
            f"headgate.spark.read.{name}.column", lambda spark, one: Said(one.sql())
        )
    for name in ("aggregate", "reading"):
        monkeypatch.setattr(f"headgate.spark.read.{name}.data_type", lambda kind: kind)
    monkeypatch.setattr("headgate.spark.read.reading.kafka_arrival", lambda spark, plan: None)


# --- aggregates -------------------------------------------------------------------------------------


class Functions:
    """Stands for the functions of an aggregate: a count."""

    def __init__(self, spark: Any, grouping: Any, order: Any) -> None:
        del spark
        self.grouping, self.order = grouping, order
        self.aggregates, self.kept = ["count"], [SimpleNamespace(kept="kept")]
        self.values, self.kept_values = ["v"], ["x"]
        self.parts = ["part"]
        self.buffers = [SimpleNamespace(value=lambda: Said("v0"), name="b0", nullable=False)]
        self.did: list[str] = []

    def add_end(self, value: Any) -> None:
        self.did.append(f"end {value}")

    def add_first(self, kind: Any, value: Any) -> Any:
        self.did.append(f"first {value}")
        return SimpleNamespace(value=lambda: Said("shown"))

    def collect(self, expression: Made) -> None:
        self.did.append(f"collect {expression.sql()}")

    def how(self) -> str:
        return " in any order"

    def results(self, expression: Any, replacements: Any, attributes: Any) -> Any:
        made = dict(replacements).get(expression)
        return made or Made("Alias", said=f"alias of {sorted(attributes)}", id=expression.exprId())


class Read:
    """An Aggregate node that is read with functions, plans and schemas that are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, time: Any, grouping: list[Made]) -> None:
        self.made: list[Functions] = []
        monkeypatch.setattr(
            aggregate,
            "AggregateFunctions",
            lambda *given: self.made.append(Functions(*given)) or self.made[-1],  # type: ignore[func-returns-value]
        )
        monkeypatch.setattr(aggregate._AggregateReader, "_time_key", time)
        monkeypatch.setattr(aggregate, "AggregateSpec", SimpleNamespace)
        monkeypatch.setattr(aggregate, "raw_schema", lambda spec, values: ("raw", values))
        monkeypatch.setattr(
            aggregate, "template", lambda spark, schema: Frame(f"template{schema[1]}")
        )
        monkeypatch.setattr(aggregate, "known_not_null", lambda value: Said(f"sure({value})"))
        monkeypatch.setattr(aggregate, "analysed", self._analysed)
        monkeypatch.setattr(
            aggregate, "alias", lambda spark, new, name, *_: f"{new.sql()} as {name}"
        )
        monkeypatch.setattr(aggregate, "project", lambda spark, outputs, plan: (outputs, str(plan)))
        self.grouping = grouping
        self.count = Made("AggregateExpression", said="count(1)", metadata=None)
        for one in (*grouping, self.count):
            one._parts["toAttribute"] = one
        self.count._parts["name"] = "count"
        child = source(attribute("v", LONG), attribute("at", TIME))
        self.child = child
        node = Made(
            "Aggregate", child, groupingExpressions=grouping,
            aggregateExpressions=[*grouping, self.count],
        )  # fmt: skip
        reading = Reading(SPARK, node, OutputMode.APPEND, "at", ("v",), 2)
        self.operator: Any = aggregate.READER.read(reading, node, None)
        self.functions = self.made[0]

    def _analysed(self, frame: Frame) -> Any:
        columns = [attribute(name) for name in frame.columns]
        node = Made("analysed", said=str(frame), output=columns)
        self.selected = str(frame)
        return node


def test_an_aggregate_of_keys_and_a_time_has_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    k, at = attribute("k", LONG, nullable=False), attribute("at", TIME)
    key = TimeKey(0, 1, 0)
    read = Read(monkeypatch, lambda reader: (1, key, Said("start")), [k, at])
    made, spec = read.operator, read.operator.spec
    assert (made.id, made.what) == (
        "aggregate-2",
        "Aggregate keys k; time at; count(1) in any order",
    )
    assert (spec.keys, spec.time, spec.aggregates) == ((INTEGER,), key, ("count",))
    assert (spec.mode, spec.kept) == (OutputMode.APPEND, ("kept",))
    assert [(one.name, str(one.value)) for one in made.keys] == [("k0", "k.cast(bigint)")]
    assert (made.values, made.key_names, str(made.slice_start)) == (
        ["v", "x"],
        ["k", "at"],
        "start",
    )
    assert (str(made.arrival), made.time_output, made.raw_schema) == ("at", 1, ("raw", ["v"]))
    assert (made.input_plan, read.functions.order.given) == (read.child, True)
    assert read.functions.did == ["collect k", "collect at", "collect count(1)"]
    parts = made.aggregate
    assert (parts.grouping, parts.spans) == ((k, at), ((0, 1), (1, 1)))
    assert (parts.time_index, parts.keeps_start, parts.advance_us) == (1, False, 0)
    assert (parts.parts, parts.order) == (("part",), ())
    assert read.selected == (
        f"template['v'].select(sure(k0.cast({LONG!r})).alias(g0), when((t <> "
        f"{NO_TIME_US}), call_function(timestamp_micros, t)).alias(g1), sure(v0).alias(b0))"
    )
    outputs, _ = made.output_plan
    assert outputs == ["g0 as k", "g1 as at", "alias of ['b0', 'g0', 'g1'] as count"]
    assert made.placeholder.sql() == "template['v']"


def test_a_session_has_an_end_and_a_text_under_a_collation_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(types, "key_leaves", lambda kind, value: [(INTEGER, value)])
    monkeypatch.setattr(types, "rebuild", lambda kind, columns: Said(f"rebuilt({columns})"))
    w, text = attribute("w", WINDOW), attribute("s", T.StringType("UNICODE_CI"))
    key = TimeKey(5, 5, session=True)
    read = Read(monkeypatch, lambda reader: (0, key, None), [w, text])
    assert read.functions.did[:2] == ["end unix_micros(w.getField(end))", "first s"]
    assert read.operator.time_output == 0
    assert "shown.alias(g1)" in read.selected
    start, end = (f"call_function(timestamp_micros, {one})" for one in ("v0", "t"))
    assert (
        f"when(t.isNotNull(), struct({start}.alias(start), {end}.alias(end))).alias(g0)"
        in read.selected
    )


def test_the_start_of_a_window_that_came_with_the_rows_is_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_start(reader: Any) -> Any:
        reader._keeps_start, reader._advance_us = True, 7
        return 1, TimeKey(0, 1, 0), None

    k, w = attribute("k", LONG), attribute("w", WINDOW)
    read = Read(monkeypatch, with_start, [k, w])
    assert [(one.name, str(one.value)) for one in read.operator.keys] == [
        ("k0", "k.cast(bigint)"), ("k1", "unix_micros(w.getField(start))"),
    ]  # fmt: skip
    parts = read.operator.aggregate
    assert (parts.spans, parts.keeps_start, parts.advance_us) == (((0, 1), (1, 2)), True, 7)
    assert "when(k1.isNotNull(), struct(call_function(timestamp_micros, k1)" in read.selected


def test_an_aggregate_without_a_time_puts_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Read(monkeypatch, lambda reader: (-1, None, None), [attribute("k", LONG)])
    assert (read.operator.time_output, read.operator.aggregate.time_index) == (None, -1)
    assert f"select(k0.cast({LONG!r}).alias(g0)" in read.selected
