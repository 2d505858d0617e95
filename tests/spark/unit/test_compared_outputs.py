"""Tests what a comparison of two outputs says for what Spark counted; the frames are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.spark.api import comparison

SCHEMA = T.StructType([T.StructField("a", T.LongType()), T.StructField("x", T.DoubleType())])


class Counted:
    """The rows of both outputs, counted; `total` is what they sum to."""

    def __init__(self, **total: int) -> None:
        self.total, self.did = total, list[str]()
        self.rest: Any = SimpleNamespace(
            unpersist=lambda: self.did.append("rest"), persist=lambda: self.rest,
            select=lambda *columns: self.rest,
        )  # fmt: skip

    def where(self, condition: str) -> Any:
        self.did.append(f"where {condition}")
        return self.rest

    def agg(self, *columns: Any) -> Any:
        self.did.append(", ".join(map(str, columns)))
        return SimpleNamespace(collect=lambda: [self.total])

    def unpersist(self) -> None:
        self.did.append("rows")


class World:
    """Two outputs with one schema, and the steps of their comparison."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, counted: Counted, near: bool) -> None:
        self.counted, self.asked = counted, dict[str, Any]()
        monkeypatch.setattr(comparison, "F", F)
        monkeypatch.setattr(
            Said, "__lt__", lambda one, other: Said(f"({one} < {other})"), raising=False
        )
        for name, stub in {
            "names_a_class": lambda frame: False,
            "summed_columns": lambda frame: [True, near],
            "_cells": lambda schema: Said("cells"),
            "_row_of": self._row_of,
            "_floors": lambda rows, near: [0.5],
            "_left_over": self._left_over,
            "_counts": lambda rest: self.asked.get("left", (2, 1)),
            "_beside": lambda rest, names: [{"want": names}],
        }.items():
            monkeypatch.setattr(comparison, name, stub)

    def found(self) -> dict[str, Any]:
        """Return what is said of the outputs."""
        frame: Any = SimpleNamespace(schema=SCHEMA, columns=SCHEMA.names)
        return comparison.compare(frame, frame)

    def _row_of(self, frame: Any, schema: Any, sign: int) -> Any:
        grouped = SimpleNamespace(agg=self._grouped)
        union = SimpleNamespace(groupBy=lambda name: self.asked.update(by=name) or grouped)
        self.asked.setdefault("signs", []).append(sign)
        return SimpleNamespace(unionAll=lambda other: union)

    def _grouped(self, *columns: Any) -> Any:
        self.asked["columns"] = [str(one) for one in columns]
        return SimpleNamespace(persist=lambda: self.counted)

    def _left_over(self, rest: Any, columns: Any, near: Any, floors: Any) -> Any:
        self.asked["near"] = [one.name for one in near], floors
        return rest


def test_rows_that_differ_are_counted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(rows=10, differ=3, any=12)
    world = World(monkeypatch, counted, near=False)
    assert world.found() == {
        "verified": False, "rows_compared": 10, "missing": 2, "extra": 1,
        "differing": [{"want": ["a", "x"]}], "within_tolerance": [],
    }  # fmt: skip
    assert world.asked == {
        "signs": [1, -1], "by": "headgate_row",
        "columns": [
            "sum(sign).alias(net)", "sum(when((sign > 0), 1).otherwise(0)).alias(wanted)",
        ],
    }  # fmt: skip
    assert counted.did == [
        "coalesce(sum(wanted), 0).alias(rows), count(when((net <> 0), 1)).alias(differ), "
        "count(1).alias(any)",
        "where net <> 0", "rest", "rows",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("near", "differ", "asked"), [(True, 3, (["x"], [0.5])), (True, 0, None), (False, 3, None)]
)
def test_only_rows_that_differ_are_compared_within_a_tolerance(
    monkeypatch: pytest.MonkeyPatch, near: bool, differ: int, asked: Any
) -> None:
    world = World(monkeypatch, Counted(rows=10, differ=differ, any=12), near=near)
    found = world.found()
    assert world.asked.get("near") == asked
    assert found["within_tolerance"] == (["x"] if near else [])
    assert (found["missing"], found["verified"]) == ((2, False) if differ else (0, True))
    assert bool(found["differing"]) == bool(differ)


@pytest.mark.parametrize(("left", "verified"), [((0, 0), True), ((1, 0), False), ((0, 1), False)])
def test_outputs_agree_if_nothing_is_missing_and_nothing_extra(
    monkeypatch: pytest.MonkeyPatch, left: tuple[int, int], verified: bool
) -> None:
    world = World(monkeypatch, Counted(rows=10, differ=3, any=12), near=True)
    world.asked["left"] = left
    found = world.found()
    assert (found["verified"], found["missing"], found["extra"]) == (verified, *left)
    assert bool(found["differing"]) is not verified


def test_of_no_rows_at_all_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Counted(rows=0, differ=0, any=0), near=False)
    assert world.found()["verified"] is None


def test_counted_rows_are_released_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(rows=1, differ=1, any=1)
    world = World(monkeypatch, counted, near=False)
    monkeypatch.setattr(comparison, "_counts", lambda rest: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        world.found()
    assert counted.did[-1] == "rows"


def test_rows_without_a_partner_are_searched_in_groups_that_agree_in_all_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "F", F)
    monkeypatch.setattr(comparison, "_exact", lambda value, kind: Said(f"exact({value})"))
    monkeypatch.setattr(comparison, "_numbers", lambda value, kind: Said(f"numbers({value})"))
    made: list[Any] = []
    matching = SimpleNamespace(left_over=lambda rows: ("left over", rows))

    def nearness(*given: Any) -> Any:
        made.append(given)
        return matching

    monkeypatch.setattr(comparison, "Nearness", nearness)
    columns = comparison._columns(SCHEMA, [True, True])
    near = [one for one in columns if one.near]
    asked: list[Any] = []

    def grouped(*names: str) -> Any:
        asked.append(names)
        return SimpleNamespace(applyInArrow=lambda function, schema: (function("rows"), schema))

    def select(*parts: Any) -> Any:
        asked.extend(map(str, parts))
        return SimpleNamespace(groupBy=grouped)

    rest: Any = SimpleNamespace(select=select)
    found: Any = comparison._left_over(rest, columns, near, [0.25])
    assert found == (("left over", "rows"), "net bigint, cells array<string>")
    row = "headgate_row[c0].alias(c0), exact(headgate_row[c1]).alias(c1)"
    exact = f"struct(0.alias(all), {row})"
    assert asked == [
        "net", "cells", f"xxhash64({exact}).alias(h)", f"hash({exact}).alias(g)",
        "numbers(headgate_row[c1]).alias(n1)", ("h", "g"),
    ]  # fmt: skip
    assert made == [(("n1",), (near[0].relative,), (0.25,))]


def test_net_counts_and_sizes_are_those_above_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "F", F)
    monkeypatch.setattr(
        Said, "__lt__", lambda one, other: Said(f"({one} < {other})"), raising=False
    )
    monkeypatch.setattr(Said, "__neg__", lambda one: Said(f"-{one}"), raising=False)
    asked: list[str] = []

    def agg(*columns: Any) -> Any:
        asked.extend(map(str, columns))
        known = dict.fromkeys(("missing", "extra", "s1_largest", "s1_median"))
        return SimpleNamespace(collect=lambda: [known])

    sums: Any = SimpleNamespace(agg=agg, columns=["s1"])
    assert comparison._counts(sums) == (0, 0)
    frame: Any = SimpleNamespace(select=lambda *columns: sums)
    comparison._floors(frame, [])
    assert asked == [
        "sum(when((net > 0), net)).alias(missing)", "sum(when((net < 0), -net)).alias(extra)",
        "max(s1).alias(s1_largest)",
        "percentile_approx(when((s1 > 0), s1), 0.5).alias(s1_median)",
    ]  # fmt: skip


def test_a_row_stands_beside_one_other_row_only() -> None:
    rows = {"net > 0": [["1", "a"], ["1", "b"]], "net < 0": [["1", "c"]]}

    def where(condition: str) -> Any:
        found = [SimpleNamespace(cells=cells) for cells in rows[condition]]
        limited = SimpleNamespace(collect=lambda: found)
        return SimpleNamespace(orderBy=lambda name: SimpleNamespace(limit=lambda most: limited))

    rest: Any = SimpleNamespace(where=where)
    assert comparison._beside(rest, ["k", "v"]) == [
        {"want": {"k": "1", "v": "a"}, "got": {"k": "1", "v": "c"}},
        {"want": {"k": "1", "v": "b"}, "got": None},
    ]
