"""Watermarks of a pipe, by the records that its sources have brought; here without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.realtime import plan
from headgate.spark.realtime.plan import Branch, PipePlan


def pipe(*watermarks: dict[str, int], least: bool = True, delays_ms: Any = (10_000,)) -> PipePlan:
    branches = [Branch("op", object(), object(), of, 0) for of in watermarks]  # type: ignore[arg-type]
    return PipePlan(tuple(branches), tuple(delays_ms), least)


@pytest.mark.parametrize(
    ("least", "newest_us", "watermark_us"),
    [
        (True, {0: 60_000_000, 1: 90_000_000}, 50_000_000),
        (False, {0: 60_000_000, 1: 90_000_000}, 85_000_000),
        (True, {0: 60_000_000}, 0),
        (False, {0: 60_000_000}, 50_000_000),
        (True, {}, 0),
        (False, {0: 5_000_000, 1: 3_000_000}, 0),
        (False, {0: 60_000_999}, 50_000_000),
        (False, {0: 60_001_999}, 50_001_000),
    ],
)
def test_a_watermark_is_behind_the_newest_record_by_its_delay_in_whole_milliseconds(
    least: bool, newest_us: dict[int, int], watermark_us: int
) -> None:
    """Of two, delayed by 10 s and by 5 s: the least or the greatest, as the session says."""
    made = pipe({"a": 0}, {"b": 1}, least=least, delays_ms=(10_000, 5_000))
    assert made.watermark_us(newest_us) == watermark_us


def test_a_query_without_a_watermark_stays_at_the_beginning() -> None:
    assert pipe({}, delays_ms=()).watermark_us({}) == 0
    assert pipe({}, delays_ms=(), least=False).watermark_us({}) == 0


@pytest.mark.parametrize(
    ("watermarks", "sources", "least", "shared"),
    [
        ([{"a": 0}], [0], True, False),
        ([{"a": 0}, {"a": 0}], [0, 1], True, True),
        ([{"a": 0}, {"a": 0}], [0, 0], True, False),
        ([{"a": 0}, {"b": 1}], [0, 1], True, False),
        ([{"a": 0}, {"b": 1}], [0, 1], False, True),
        ([{"a": 0}, {}], [0, 1], False, False),
        ([{}, {}], [0, 1], True, False),
    ],
)
def test_sources_share_a_watermark_that_records_of_several_move(
    watermarks: list[dict[str, int]], sources: list[int], least: bool, shared: bool
) -> None:
    assert pipe(*watermarks, least=least).shares_watermark(sources) is shared


class Node:
    """A node of Catalyst's."""

    def __init__(self, kind: str, *children: Node, streams: bool = True, delay: Any = None) -> None:
        self.kind, self._children, self._streams, self._delay = kind, children, streams, delay

    def children(self) -> list[Node]:
        return list(self._children)

    def isStreaming(self) -> bool:
        return self._streams

    def delay(self) -> Any:
        return self._delay

    def nodeId(self) -> Any:
        return SimpleNamespace(toString=lambda: f"id of {self._delay}")


@pytest.fixture
def catalyst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "each", iter)
    monkeypatch.setattr(plan, "class_name", lambda node: node.kind)
    monkeypatch.setattr(plan, "interval_parts", lambda delay: delay)


@pytest.mark.usefixtures("catalyst")
def test_the_nodes_of_a_line_go_down_to_its_stream_past_what_is_beside_it() -> None:
    source = Node("Source")
    table = Node("Table", streams=False)
    line: Any = Node("Project", Node("Join", table, Node("Filter", source)))
    assert [node.kind for node in plan._nodes(line)] == ["Project", "Join", "Filter", "Source"]


@pytest.mark.usefixtures("catalyst")
def test_a_delay_is_in_milliseconds_and_a_month_of_it_has_31_days() -> None:
    def watermark(*delay: int) -> Any:
        return Node("EventTimeWatermark", delay=delay)

    nodes = [Node("Project"), watermark(0, 0, 10_000_999), watermark(0, 2, 0), watermark(1, 1, 0)]
    assert list(plan._delays_ms(nodes).values()) == [10_000, 172_800_000, 32 * 86_400_000]  # type: ignore[arg-type]
