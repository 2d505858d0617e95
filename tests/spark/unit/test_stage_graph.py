"""The graph of a query's Python stages, and which calls are evaluated together; on made-up plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made, attribute, plain_seq, source
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.core.errors import UnsupportedQuery
from headgate.spark.read import calls, stages
from headgate.spark.read.stages import NoPythonStage

LONG = T.LongType()
NAMES = [field.name for field in stages._CARRIED]


class Rows:
    """A frame over a plan, of which each further column makes another plan."""

    def __init__(self, plan: Made) -> None:
        self.plan = plan

    def withColumn(self, name: str, value: Any) -> Rows:
        output = [*self.plan.output(), attribute(name, LONG)]
        return Rows(Made("Project", self.plan, output=output, said=f"{name}={value}"))


def template(spark: Any, schema: T.StructType) -> Rows:
    return Rows(source(*(attribute(field.name, field.dataType) for field in schema)))


def project(spark: Any, columns: Any, child: Made) -> Made:
    return Made("Project", child, output=list(columns), projectList=list(columns))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stages, calls):
        for name, stub in {
            "F": F,
            "seq": plain_seq,
            "analysed": lambda frame: frame.plan,
            "of_rows": lambda spark, plan: Rows(plan),
            "template": template,
            "project": project,
            "data_type": lambda kind: kind,
            "column": lambda spark, one: Said(one.sql()),
            "alias": lambda spark, value, name, id_: Made(
                "Alias", value, name=name, said=f"{value.sql()} as {name}"
            ),
            "tree_patterns": lambda spark, names: names,
            "filtered": lambda spark, condition, plan: Made(
                "Filter", plan, output=list(plan.output()), said=condition.sql()
            ),
            "placeholder": lambda spark, schema, output: source(
                *output, kind="Hole", names=schema.names
            ),
            "function_of": lambda node: node.function(),
        }.items():
            monkeypatch.setattr(module, name, stub, raising=False)
    monkeypatch.setattr(
        stages._Reader, "_pandas", lambda self, node: f"frames of {node.function()}"
    )
    monkeypatch.setattr(Made, "containsPattern", lambda self, _: "udf" in self.sql(), raising=False)
    monkeypatch.setattr(Made, "sameResult", Made.equals, raising=False)
    monkeypatch.setattr(
        Made, "expressions", lambda self: Items(self._parts.get("projectList", [])), raising=False
    )


def node(kind: str, *children: Made, output: Any = None, **parts: Any) -> Made:
    return Made(
        kind, *children, output=list(children[0].output() if output is None else output), **parts
    )


def mapped(name: str, child: Made, *, kind: str = "MapInArrow", output: Any = None) -> Made:
    def function() -> None: ...

    function.__name__ = name
    return node(kind, child, function=function, output=output or [attribute("w", LONG)])


def read(plan: Made, arrival: str | None = None) -> Any:
    frame: Any = SimpleNamespace(sparkSession="the session", plan=plan)
    return stages.read_pipeline(frame, "psps", arrival)


def leaf() -> Made:
    return source(attribute("v", LONG), attribute("at", T.TimestampType()))


def test_a_stage_that_reads_the_source_is_given_when_each_row_arrived() -> None:
    found = read(mapped("f", leaf()))
    (stage,) = found.stages
    assert (stage.id, stage.what, stage.holes, stage.feeds) == (
        "map-0",
        "f (mapInArrow)",
        [],
        False,
    )
    assert [one.name() for one in stage.input_plan.output()] == ["v", "at", *NAMES]
    assert stage.input_plan.child().sql() == f"{NAMES[0]}=None.cast(double)"
    assert stage.input_plan.sql() == f"{NAMES[1]}=-1"
    assert stage.raw_schema.names == ["w"]
    assert (found.sources, found.last) == ([stage], ["map-0"])
    assert [one.name() for one in found.plan.output()] == ["w"]
    (hole,) = found.holes
    assert hole.leaf.names() == ["w", *NAMES]
    (stage,) = read(mapped("f", leaf()), "at").stages
    assert stage.input_plan.child().sql() == f"{NAMES[0]}=(unix_micros(at) / 1000.0)"
    with pytest.raises(
        UnsupportedQuery, match='first Python stage reads no column "other"; set headgate'
    ):
        read(mapped("f", leaf()), "other")


def test_a_stage_reads_the_stage_below_it_and_frames_are_made_of_batches() -> None:
    below = mapped("f", leaf())
    found = read(mapped("g", node("SubqueryAlias", below), kind="MapInPandas"))
    first, second = found.stages
    assert (second.id, second.what, second.parents) == ("map-1", "g (mapInPandas)", ["map-0"])
    assert str(second.function).startswith("frames of ")
    assert (first.feeds, second.feeds) == (True, False)
    assert found.sources == [first]
    assert [one.name() for one in second.input_plan.output()] == ["w", *NAMES]


def test_a_stage_that_is_used_twice_runs_once() -> None:
    shared = mapped("f", leaf())
    found = read(node("Union", shared, shared))
    assert [stage.id for stage in found.stages] == ["map-0"]
    assert [hole.stage for hole in found.holes] == ["map-0", "map-0"]
    assert found.last == ["map-0"]
    two = read(node("Union", mapped("f", leaf()), mapped("g", leaf())))
    assert [stage.id for stage in two.sources] == ["map-0", "map-1"]
    assert two.last == ["map-0", "map-1"]


def test_what_stands_above_a_stage_keeps_what_goes_along_with_each_row() -> None:
    below = mapped("f", leaf())
    selected = node("Project", below, projectList=[attribute("x", LONG)])
    kept = node("Filter", selected, condition=Made("X", said="x > 1"))
    found = read(kept)
    filtered = found.plan.child()
    assert filtered.sql() == "x > 1"
    assert [one.name() for one in filtered.output()] == ["x", *NAMES]
    assert [one.name() for one in found.plan.output()] == ["x"]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (leaf(), "psps has no operator to run: this query has no Python stage"),
        (node("Aggregate", leaf()), 'psps cannot run operator "Aggregate", which keeps state'),
        (node("Join", leaf(), leaf()), 'psps cannot run operator "Join", which keeps state'),
        (node("Sort", mapped("f", leaf())), "psps cannot keep Sort above a Python stage"),
        (node("Union", mapped("f", leaf()), leaf()), "a union of which one side has no Python stage"),
        (node("Generate", leaf(), projectList=[Made("X", said="udf")]), "cannot run a Python UDF in Gen"),
        (source(streams=False), r"this DataFrame is not streaming; read its source with spark\.readStr"),
    ],
)  # fmt: skip
def test_what_pools_cannot_run_is_refused(plan: Made, says: str) -> None:
    with pytest.raises(UnsupportedQuery, match=says):
        read(plan)
    assert not stages.has_stages(SimpleNamespace(sparkSession="s", plan=plan))  # type: ignore[arg-type]


def test_a_table_that_is_joined_below_a_stage_stays_there() -> None:
    joined = node("Join", leaf(), source(attribute("t", LONG), streams=False))
    assert stages.has_stages(SimpleNamespace(sparkSession="s", plan=mapped("f", joined)))  # type: ignore[arg-type]
    with pytest.raises(NoPythonStage):
        read(joined)


def test_a_function_that_pyspark_has_let_go_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(node: Made) -> Any:
        raise PySparkRuntimeError("broadcast")

    monkeypatch.setattr(stages, "function_of", gone)
    with pytest.raises(UnsupportedQuery, match="takes more than 1 MB with all that it holds"):
        read(mapped("f", leaf()))


# --- Calls within expressions -------------------------------------------------------------------------


def udf(name: str, *arguments: Made, kind: int = calls.PLAIN) -> Made:
    said = f"udf {name}({', '.join(one.sql() for one in arguments)})"
    return Made("PythonUDF", *arguments, name=name, said=said, eval_type=kind, dataType=LONG)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "kind_of", lambda call: call.eval_type())
    monkeypatch.setattr(calls, "settings_of", lambda spark: {})
    monkeypatch.setattr(calls, "schema_json", lambda schema: ",".join(schema.names))
    monkeypatch.setattr(calls, "arguments_of", lambda call: [
        ("n" if number == 1 else "", one) for number, one in enumerate(call.children())
    ])  # fmt: skip
    monkeypatch.setattr(calls, "command_of", lambda call: call.name().encode())
    monkeypatch.setattr(calls, "unpickled", lambda command: (command, "a type"))
    monkeypatch.setattr(calls, "AsPickled", lambda function, returns: function)
    monkeypatch.setattr(calls, "pickled", lambda function, returns: b"pickled " + function)


SPARK: Any = "the session"


@pytest.mark.usefixtures("kinds")
def test_calls_that_need_no_other_are_evaluated_together() -> None:
    v, w = attribute("v", LONG), attribute("w", LONG)
    inner, other = udf("f", v), udf("g", v, w)
    outer = udf("h", inner)
    made = calls.next_round(SPARK, [Made("Add", outer, other), Made("Abs", other), inner])
    assert made is not None
    assert made.calls == [inner, other]
    assert [one.name() for one in made.results] == ["r0", "r1"]
    assert made.what.startswith("f, g (")
    replaced = made.replaced(Made("Add", outer, Made("Abs", v)))
    assert replaced.sql() == "Add(udf h(udf f(v)), Abs(v))"
    assert replaced.children()[0].children() == [made.results[0]]
    same = Made("Abs", v)
    assert made.replaced(same) is same
    plan = made.evaluated(leaf())
    assert [one.sql() for one in plan.output()][2:] == ["udf f(v) as r0", "udf g(v, w) as r1"]
    function, arguments = made.stage_of(3)
    assert arguments == [v, v, w]
    assert [(one.command, one.args, one.kwargs) for one in function.evaluation.calls] == [
        (b"pickled f", (0,), {}), (b"pickled g", (1,), {"n": 2}),
    ]  # fmt: skip
    assert function.evaluation.inputs == "a0,a1,a2"
    assert function.kept == 3
    assert calls.next_round(SPARK, [same]) is None


@pytest.mark.usefixtures("kinds")
def test_calls_of_other_kinds_wait_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    v = attribute("v", LONG)
    other = next(kind for kind in calls.SCALAR if kind not in (calls.PLAIN, *calls.ALONE))
    alone = next(iter(calls.ALONE))
    first, second, third = udf("f", v), udf("g", v, kind=other), udf("h", v)
    made = calls.next_round(SPARK, [first, second, third])
    assert made is not None
    assert made.calls == [first, third]
    made = calls.next_round(SPARK, [udf("i", v, kind=alone), udf("j", v, kind=alone)])
    assert made is not None
    assert made.what.startswith("i (")
    function, _ = calls.Round(SPARK, [second], []).stage_of(0)
    assert function.evaluation.calls[0].command == b"g"
    with pytest.raises(
        UnsupportedQuery, match="cannot run k on a pool: it is no function of single"
    ):
        calls.next_round(SPARK, [udf("k", v, kind=-1)])

    def gone(command: bytes) -> Any:
        raise TypeError("broadcast")

    monkeypatch.setattr(calls, "unpickled", gone)
    with pytest.raises(UnsupportedQuery, match="takes more than 1 MB"):
        calls.Round(SPARK, [first], []).stage_of(0)


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("select", [True, False])
def test_calls_of_a_select_or_a_where_are_stages_below_it(select: bool) -> None:
    below = leaf()
    v = below.output()[0]
    outer = udf("g", udf("f", v))
    if select:
        made = node("Project", below, projectList=[outer, v], output=[attribute("x", LONG)])
    else:
        made = node("Filter", below, projectList=[outer], condition=outer)
    found = read(made)
    first, second = found.stages
    assert [stage.id for stage in found.stages] == ["udf-0", "udf-1"]
    assert (first.parents, second.parents, first.feeds) == ([], ["udf-0"], True)
    assert first.what.startswith("f (")
    assert first.raw_schema.names == ["c0", "c1", "r0"]
    assert [one.sql() for one in first.input_plan.output()] == [
        "v as c0",
        "at as c1",
        "v as a2",
        *NAMES,
    ]
    assert second.raw_schema.names == ["c0", "c1", "c2", "r0"]
    arguments = [one.sql() for one in second.input_plan.output()]
    assert arguments == ["v as c0", "at as c1", "r0 as c2", "r0 as a3", *NAMES]
    function: Any = second.function
    assert function.kept == 3
    columns = [one.sql() for one in found.plan.output()]
    assert columns == (["r0", "v"] if select else ["v", "at"])
    kept = found.plan.child()
    assert [one.sql() for one in kept.output()] == [*columns, *NAMES]
    assert (kept.child().sql() == "r0") is not select
