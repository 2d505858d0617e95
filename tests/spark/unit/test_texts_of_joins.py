"""Tests the texts of columns that come from a join or a whole plan, and of the gap of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source

from headgate.spark.read import texts
from headgate.spark.read.texts import Texts, interval


def reader(name: str = "Join", *children: Any, plan: Any = None, exact: bool = False) -> Any:
    """Return a reader of a node whose children are told."""
    made: Any = object.__new__(Texts)
    ids = set[str]().union(*(child._ids for child in children))
    vars(made).update(
        name=name, plan=plan, exact=exact, spark=None, inexact=set(), lookups=set(), _known={},
        _children=list(children), _ids=ids, text=lambda part: part.sql(), _look_up=lambda: None,
    )  # fmt: skip
    return made


def child(said: str, number: str, *, streams: bool, static_joins: int = 0) -> Any:
    return SimpleNamespace(
        _column=lambda wanted, name: said, _ids={number}, _static_joins=static_joins,
        plan=SimpleNamespace(isStreaming=lambda: streams), whole=lambda: said,
    )  # fmt: skip


def test_a_gap_is_an_interval_months_an_expression_or_each_records_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texts, "interval_parts", lambda value: value)
    made = reader()

    def gap(*value: int) -> Any:
        return Made("Literal", foldable=True, eval=value)

    assert made._gap(None) == "a gap of its own"
    assert made._gap(attribute("g", foldable=False)) == "g"
    assert made._gap(gap(0, 0, 5_000_000)) == interval(5_000_000)
    assert made._gap(gap(0, 2, 1)) == interval(2 * 86_400_000_000 + 1)
    assert made._gap(gap(3, 0, 0)) == "'3 months'"


@pytest.mark.parametrize(
    ("sides", "wanted", "text"),
    [
        ((True, True), "1", "left.a"), ((True, True), "2", "right.b"),
        ((False, False), "2", "right.b"),
        ((True, False), "1", "a"), ((True, False), "2", "static.b"), ((False, True), "1", "static.a"),
    ],
)  # fmt: skip
def test_a_column_of_a_join_says_its_side(sides: tuple[bool, bool], wanted: str, text: str) -> None:
    left, right = child("a", "1", streams=sides[0]), child("b", "2", streams=sides[1])
    assert reader("Join", left, right)._from_below(wanted, "name") == text


def test_of_several_static_tables_each_has_its_number() -> None:
    below = child("a", "1", streams=True, static_joins=1)
    table = child("b", "2", streams=False)
    made = reader("Join", below, table)
    assert (made._from_below("2", "b"), made.inexact) == ("static.b", {"b"})
    made = reader("Join", below, table, exact=True)
    assert (made._from_below("2", "b"), made.inexact) == ("static2.b", {"b"})


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [("Join", "Inner", 3), ("Join", "Left Semi", 2), ("Join", "LEFT ANTI", 2), ("Filter", "", 2)],
)
def test_static_tables_that_add_columns_are_counted(name: str, kind: str, count: int) -> None:
    plan = SimpleNamespace(joinType=lambda: SimpleNamespace(sql=lambda: kind))
    below = child("a", "1", streams=True, static_joins=2)
    table = child("b", "2", streams=False, static_joins=7)
    assert reader(name, below, table, plan=plan)._static_joins == count
    assert reader(name, below, below, plan=plan)._static_joins == 4


def test_a_whole_plan_is_its_nodes_expressions_and_the_names_of_its_tables_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texts, "id_of", lambda one: one.exprId().toString())
    a, b, own = attribute("a"), attribute("b"), attribute("own")
    table = reader("LogicalRelation", plan=source(b, a))
    assert table.whole() == "(a, b)"
    held = child("(a, b)", a.exprId().toString(), streams=False)
    plan = Made("Filter", expressions=[Made("GreaterThan", said="a > 1"), a, own])
    assert reader("Filter", held, plan=plan).whole() == "Filter(a > 1, a, (a, b))"
    for name in ("SubqueryAlias", "View"):
        assert reader(name, held, plan=plan).whole() == "(a, b)"
