"""Checks the part of a plan that multiplies rows in the batch instead of the stream; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made, plain_seq
from said_columns import F, Frame, Said

from headgate.spark.step import unfold

SPARK: Any = "spark"


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfold, "F", F)
    monkeypatch.setattr(unfold, "tree_patterns", lambda _, names: list(names))
    monkeypatch.setattr(unfold, "data_type", lambda kind: kind)
    monkeypatch.setattr(unfold, "column", lambda _, value: Said(value.name()))


class Expression:
    """An expression of a node: whether it is deterministic, and the patterns in its tree."""

    def __init__(self, *patterns: str, deterministic: bool = True) -> None:
        self.deterministic = lambda: deterministic
        self.containsPattern = patterns.__contains__


def node(kind: str, *children: Made, of: list[Expression] | None = None) -> Made:
    return Made(kind, *children, expressions=of or [])


LEAF = node("StreamingRelationV2")


def lowest(plan: Made) -> Any:
    return unfold._lowest_multiplied(SPARK, plan)


@pytest.mark.parametrize("kind", ["Generate", "Expand"])
def test_rows_are_multiplied_in_the_batch_from_the_lowest_such_node_on(kind: str) -> None:
    assert lowest(node(kind, LEAF)) is LEAF
    below = node("Project", LEAF)
    twice = node("Filter", node(kind, node("View", node("Generate", below))))
    assert lowest(twice) is below


@pytest.mark.parametrize("kind", ["Project", "Filter", "SubqueryAlias", "View", "ResolvedHint"])
def test_nodes_that_multiply_nothing_stay_in_the_stream(kind: str) -> None:
    assert lowest(node(kind, LEAF)) is None


def test_nothing_moves_from_below_a_node_that_must_stay() -> None:
    staying = node("EventTimeWatermark", node("Generate", LEAF))
    assert lowest(staying) is None
    assert lowest(node("Expand", staying)) is staying


@pytest.mark.parametrize("pattern", ["CURRENT_LIKE", "PYTHON_UDF", "PLAN_EXPRESSION"])
def test_an_expression_that_spark_computes_by_batch_stays_in_the_stream(pattern: str) -> None:
    plain, bound = Expression("ALIAS"), Expression("ALIAS", pattern)
    assert lowest(node("Generate", LEAF, of=[plain])) is LEAF
    assert lowest(node("Generate", LEAF, of=[plain, bound])) is None
    below = node("Project", node("Generate", LEAF), of=[bound])
    assert lowest(node("Expand", below)) is below


def test_a_random_expression_stays_in_the_stream() -> None:
    assert lowest(node("Generate", LEAF, of=[Expression(deterministic=False)])) is None


def test_only_a_query_of_one_chain_is_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfold, "Unfolding", lambda *told: told)
    first = SimpleNamespace(input_plan=node("Generate", LEAF))
    second = SimpleNamespace(input_plan=node("Project", LEAF))
    one: Any = SimpleNamespace(chains=[[first, second]])
    found: Any = unfold.unfolding(SPARK, one, 8)
    assert found == (SPARK, first, LEAF, 8)
    two: Any = SimpleNamespace(chains=[[first], [second]])
    assert unfold.unfolding(SPARK, two, 8) is None
    none: Any = SimpleNamespace(chains=[[second]])
    assert unfold.unfolding(SPARK, none, 8) is None


class Nullable(Made):
    """An attribute that may be made nullable, and stays the same."""

    def withNullability(self, to: bool) -> Made:
        self.nullable_now = to
        return self


def test_only_columns_that_the_plan_above_uses_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = [
        Nullable("AttributeReference", name=name, dataType=f"type of {name}") for name in "abc"
    ]
    below = Made("Project", output=Items(attributes), said="below")
    asked: list[Any] = []
    monkeypatch.setattr(unfold, "seq", plain_seq)
    monkeypatch.setattr(
        unfold, "of_rows", lambda _, plan: Frame(f"rows of {getattr(plan, 'sql', lambda: plan)()}")
    )
    monkeypatch.setattr(unfold, "template", lambda _, schema: "template")
    monkeypatch.setattr(unfold, "internal_rows", lambda frame: f"rows of {frame}")
    monkeypatch.setattr(
        unfold, "leaf", lambda _, columns, rows: f"leaf of {len(columns)} with {rows}"
    )
    monkeypatch.setattr(
        unfold, "replace_leaf", lambda _, plan, old, new: f"{plan}, {new} for {old.sql()}"
    )
    monkeypatch.setattr(unfold, "analysed", lambda frame: f"analysed {frame}")
    monkeypatch.setattr(unfold, "optimised", lambda frame: f"optimised {frame}")

    def attributes_used(plan: Any, hole: Any) -> set[str]:
        asked.append((plan, hole))
        return {attributes[n].exprId().toString() for n in (0, 2)}

    monkeypatch.setattr(unfold, "attributes_used", attributes_used)
    monkeypatch.setattr(
        unfold, "routed_columns", lambda op, groups: {"g": Said(f"{groups} groups"), "n": Said("1")}
    )
    operator: Any = SimpleNamespace(input_plan="input")
    made = unfold.Unfolding(SPARK, operator, below, 8)
    hole = "leaf of 3 with rows of template"
    assert str(made.hole) == hole
    routed = f"rows of input, {hole} for below.select(8 groups.alias(g), 1.alias(n))"
    assert str(made.plan) == f"analysed {routed}"
    assert asked == [(f"optimised {routed}", hole)]
    assert made.used == ["a", "c"]
    assert all(one.nullable_now is True for one in attributes)
    assert str(made.stream()) == (
        "rows of below.select(a.alias(c0), None.cast(type of b).alias(c1), c.alias(c2))"
    )
