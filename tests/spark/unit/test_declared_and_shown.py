"""Tests what is known of a query before it runs, and what its gauges and its handle show."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from headgate.journal import Batch, OperatorInfo, Start
from headgate.operators.join.spec import JoinSpec
from headgate.operators.processor import TimeMode
from headgate.spark.api import metrics as shown_metrics
from headgate.spark.fleet import flows
from headgate.spark.fleet.flows import Entrance, Graph
from headgate.spark.read.declaration import declared
from headgate.spark.steer.decisions import DecisionWriter

# --- declarations of processors ---------------------------------------------------------------------


def test_a_processor_that_declared_its_states_is_closed_and_stays_as_it_was() -> None:
    done: list[str] = []
    number = T.StructType([T.StructField("n", T.LongType())])

    class Counting(StatefulProcessor):
        held: Any = None

        def init(self, handle: Any) -> None:
            self.held = handle
            handle.getValueState("n", number)
            handle.getListState("l", number, None)
            handle.getMapState("m", T.StructType([T.StructField("k", T.StringType())]), number)
            handle.getValueState("gone", number)
            handle.deleteIfExists("gone")
            handle.deleteIfExists("was never there")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            return iter([])

        def close(self) -> None:
            done.append("closed" if self.held is not None else "closed too early")

    made = Counting()
    states = declared(made, TimeMode.NONE)
    assert (done, made.held) == (["closed"], None)
    facts = {n: (e.names, v.names, ttl, ordered) for n, (e, v, ttl, ordered) in states.items()}
    assert facts == {
        "n": ([], ["n"], None, False), "l": ([], ["n"], None, True), "m": (["k"], ["n"], None, False),
    }  # fmt: skip


# --- what is shown ----------------------------------------------------------------------------------


def test_a_batch_of_a_query_whose_start_nobody_saw_sets_no_gauge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    set_to: list[Any] = []
    monkeypatch.setattr(shown_metrics, "Gauges", lambda *given: SimpleNamespace(set=set_to.append))
    gauges = shown_metrics._InSpark(None, tmp_path / "j")  # type: ignore[arg-type]
    batch = Batch(0, 0, 0, 2, 500.0, {"slots": 400.0}, 100, 90, 40, 1, 5, 7, at_ms=2_000)
    gauges(str(tmp_path / "j"), batch)
    gauges.end()
    assert set_to == []
    gauges(str(tmp_path / "j"), Start("j", "n", 8, 2, operators=(OperatorInfo("a", "c"),), at_ms=1))
    assert set_to == []
    gauges(str(tmp_path / "other"), batch)
    assert set_to == []
    gauges(str(tmp_path / "j"), batch)
    gauges.end()
    assert [values["query_up"] for values in set_to] == [1, 0.0]
    assert "latency_mean_seconds" not in set_to[0], "what is not known is not set"


def test_a_handle_keeps_the_last_thousand_decisions() -> None:
    written: list[Any] = []
    writer = DecisionWriter(written.append, "p")
    seen: Any = SimpleNamespace(operators={})
    for number in range(1_003):
        decision: Any = SimpleNamespace(reason=str(number), rule="r", changes={}, numbers={})
        writer.decided(seen, decision, acts=True)
    assert len(written) == 1_003
    assert [one.reason for one in writer.kept] == [str(number) for number in range(3, 1_003)]


# --- the graph that a fleet sees --------------------------------------------------------------------


def planned(id: str, plan: Any, *parents: Any, join: bool = False, upstream: Any = None) -> Any:
    spec = object.__new__(JoinSpec) if join else SimpleNamespace()
    return SimpleNamespace(
        id=id, input_plan=plan, parents=parents, spec=spec, upstream=upstream, placeholder=source()
    )


def test_entrances_of_a_graph_name_each_stream_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "results_after_us", lambda operators: {"sum": len(operators)})
    left, right = source(attribute("l")), source(attribute("r"))
    for leaf in (left, right):
        leaf._parts["collectLeaves"] = [leaf]
    both = Made("Union", left, right, collectLeaves=[left, right])
    sums, joins = planned("sum", left), planned("join", both, join=True)
    same = planned("more", Made("Project", joins.placeholder), joins, upstream=joins)
    fewer = planned("less", Made("Filter", joins.placeholder), joins, sums, upstream=joins)
    apart = planned("late", Made("Project", joins.placeholder), joins)
    graph = Graph.of([sums, joins, same, fewer, apart])
    assert graph.entrances == (
        Entrance("sum", 0, "source of sum", (0,)),
        Entrance("join", 0, "left source of join", (0,)),
        Entrance("join", 1, "right source of join", (1,)),
    )
    assert graph.parents == {"more": "join", "less": "join", "late": "join"}
    assert (set(graph.lossless), graph.windows_us) == ({"more"}, {"sum": 5})
    assert graph.at_once() == set()
    assert Graph(graph.entrances, {}, (), {"join": 1}).at_once() == {"sum"}


def test_the_sides_of_a_join_that_is_no_union_have_no_known_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flows, "results_after_us", lambda operators: {})
    graph = Graph.of([planned("join", Made("Project", source()), join=True)])
    assert [(one.place, one.sources) for one in graph.entrances] == [(0, ()), (1, ())]
