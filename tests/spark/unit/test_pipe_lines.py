"""Tests into which lines a plan is cut, one for each source, and who follows slots; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made, plain_seq
from noted_calls import Calls
from said_columns import F

from headgate.core.errors import UnsupportedQuery
from headgate.spark.cluster import allocation
from headgate.spark.realtime import plan
from headgate.spark.realtime.plan import Branch, PipePlan

ID, OTHER = (Made("AttributeReference", name=name, said=name, metadata="m") for name in "ab")
CONF: dict[str, str] = {}
SPARK: Any = SimpleNamespace(conf=SimpleNamespace(get=CONF.get))
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def _said(column: Any) -> str:
    return str(column if isinstance(column, str) else column.sql())


def leaf(name: str, *, streams: bool = True) -> Made:
    return Made("Relation", said=name, output=[ID], streams=streams)


def node(kind: str, *children: Made, **parts: Any) -> Made:
    return Made(kind, *children, **{"output": [ID], **parts})


def watermark(name: str, delay: Any, child: Made) -> Made:
    number = SimpleNamespace(toString=lambda: name)
    return node("EventTimeWatermark", child, nodeId=number, delay=delay)


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> Calls:
    CONF.clear()
    calls = Calls(monkeypatch)
    told: dict[str, Any] = {
        "seq": plain_seq, "interval_parts": lambda delay: delay,
        "alias": lambda spark, old, name, identity, metadata: f"{old.name()} as {name} {metadata}",
        "project": lambda spark, columns, child: node(
            "Project", child, said=f"{child.sql()} > {[_said(c) for c in columns]}"),
        "routed_columns": lambda operator, groups: {"g": F.col(f"{operator.id} of {groups}")},
        "of_rows": lambda spark, plan: SimpleNamespace(select=lambda *columns: (plan, columns)),
        "analysed": lambda frame: frame[0],
        "optimised_stream": lambda frame: frame[0],
        "tree_patterns": lambda spark, names: names,
        "streams_of": lambda whole: whole._parts["sources"],
    }  # fmt: skip
    for name, function in told.items():
        monkeypatch.setattr(plan, name, function)
    return calls


def test_nodes_above_a_union_are_above_each_of_its_inputs() -> None:
    union = node("Union", leaf("one"), node("Union", leaf("two"), leaf("three")), output=[OTHER])
    top = node("Filter", union)
    lines = plan._lines(SPARK, top)
    assert [line.child().sql() for line in lines] == [
        "one > ['a as b m']",
        "two > ['a'] > ['a as b m']",
        "three > ['a'] > ['a as b m']",
    ]


def test_a_table_stays_beside_the_stream() -> None:
    table = leaf("table", streams=False)
    [line] = plan._lines(SPARK, node("Join", table, leaf("one")))
    assert line.sql() == "Join(table, one)"
    [line] = plan._lines(SPARK, node("Join", leaf("one"), table))
    assert line.sql() == "Join(one, table)"
    with pytest.raises(UnsupportedQuery, match=r"^a join of two streams before the first stateful"):
        plan._lines(SPARK, node("Join", leaf("one"), leaf("two")))


def operator(name: str, input_plan: Made, *, now: bool = False, sources: int = 1) -> Any:
    input_plan._parts["sources"] = Items(range(sources))
    input_plan._parts["containsPattern"] = now
    return SimpleNamespace(id=name, input_plan=input_plan)


def test_each_source_is_a_branch_with_its_watermarks() -> None:
    source, two = leaf("one"), leaf("two")
    python = node("MapInPandas", node("BatchEvalPython", watermark("w", (1, 2, 3000), source)))
    other = node("Project", watermark("v", (0, 0, 7_999), two))
    third = watermark("w", (1, 2, 3000), leaf("three"))
    made = PipePlan.of(
        SPARK, [operator("a", python), operator("b", other), operator("c", third)], 16
    )
    lines = [branch.plan.sql() for branch in made.branches]
    assert lines == [python.sql(), other.sql(), third.sql()]
    assert [branch.operator for branch in made.branches] == ["a", "b", "c"]
    assert [branch.leaf.sql() for branch in made.branches] == ["one", "two", "three"]
    assert [branch.watermarks for branch in made.branches] == [{"w": 0}, {"v": 1}, {"w": 0}]
    assert [branch.stages for branch in made.branches] == [2, 0, 0]
    month_ms = (plan._MONTH_DAYS + 2) * 86_400_000
    assert made.delays_ms == (month_ms + 3, 7)
    assert plan._MONTH_DAYS == 31
    assert made.least


@pytest.mark.parametrize(("policy", "least"), [("MIN", True), ("max", False)])
def test_a_query_s_watermark_is_the_least_unless_spark_is_told_otherwise(
    policy: str, least: bool
) -> None:
    CONF[POLICY] = policy
    assert PipePlan.of(SPARK, [operator("a", leaf("one"))], 16).least is least


def test_what_cannot_run_in_a_pipe_is_refused() -> None:
    with pytest.raises(
        UnsupportedQuery, match=r"^a function such as current_timestamp.. before the"
    ):
        PipePlan.of(SPARK, [operator("a", leaf("one"), now=True)], 16)
    with pytest.raises(
        UnsupportedQuery, match=r"^a stream of which no row can come before the first"
    ):
        PipePlan.of(SPARK, [operator("a", leaf("one"), sources=2)], 16)


def test_a_branch_lets_markers_pass_over_a_source(words: Calls) -> None:
    words.put(plan, passing="passed", analysed="its plan")
    line, source = leaf("one"), SimpleNamespace(sparkSession="spark")
    branch = Branch("a", line, line, {"w": 2}, 0)
    given: Any = source
    answer: Any = branch.over(given)
    assert answer == "passed"
    assert words.did[-1] == ("passing", "spark", line, "its plan", {"w": 2})


# --- Executors ----------------------------------------------------------------------------------------


def test_executors_follow_a_query_by_a_follower_of_its_own(words: Calls) -> None:
    follower = SimpleNamespace(ready="ready", need="need", settled="settled", leave="leave")
    words.put(allocation, ExecutorFollower=follower, warm_workers=None)
    pool: Any = SimpleNamespace(cores=5)
    needs, write = SimpleNamespace(), print
    given: Any = (SPARK, ["spec"], pool, needs, "run", write, 3)
    made: Any = allocation._Followed(*given)
    assert (made.cores, made.ready, made.need) == (3, "ready", "need")
    assert (made.settled, made.leave) == ("settled", "leave")
    [(_, *told)] = words.did
    assert told[:4] == [pool, needs, "run", write]
    told[4]()
    assert words.did[1:] == [("warm_workers", SPARK, ["spec"])]
    assert made.cores == 5
    pool.cores = 0
    told[4]()
    assert made.cores == 1
