"""The lines of `hg.explain`, in their order; here over plans that are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source

from headgate.core.errors import CheckpointError, ConfigError, UnsupportedQuery
from headgate.spark.api import explain as explaining
from headgate.spark.api.explain import Explanation, explain
from headgate.spark.read import tree as drawing
from headgate.spark.read.logical import ModeRefused
from headgate.spark.read.stages import NoPythonStage

FRAME: Any = SimpleNamespace(sparkSession="the session")


def operator(
    what: str, *, kafka: bool | None = None, arrival: Any = None, parents: Any = ()
) -> Any:
    return SimpleNamespace(
        id="join-0", what=what, spec=24, input_plan=kafka, arrival=arrival, parents=parents
    )


def query(*operators: Any, notes: Any = ()) -> Any:
    sources = [[one] for one in operators if not one.parents]
    return SimpleNamespace(operators=list(operators), notes=list(notes), sources=sources)


class Modes:
    """What a query is in each output mode, or why it is refused."""

    def __init__(self) -> None:
        self.modes: dict[str, Any] = {}
        self.asked: list[str] = []
        self.required: list[Any] = []
        self.stages: Any = NoPythonStage("none")
        self.flow: Any = None

    def read(self, df: Any, mode: str) -> Any:
        self.asked.append(mode)
        found = self.modes[mode]
        if isinstance(found, Exception):
            raise found
        return found

    def pipeline(self, df: Any, policy: str) -> Any:
        assert policy == "psps"
        if isinstance(self.stages, Exception):
            raise self.stages
        return SimpleNamespace(stages=self.stages)

    def below(self, spark: Any, plan: Any) -> Any:
        if isinstance(self.flow, Exception):
            raise self.flow
        return SimpleNamespace(feeds=SimpleNamespace(tasks=self.flow))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Modes:
    found = Modes()
    for name, stub in {
        "require_frame": lambda df, what: found.required.append((df, what)),
        "require_classic": found.required.append,
        "read": found.read,
        "read_pipeline": found.pipeline,
        "shown": lambda df, mode: [f"the tree in {mode}", "below it"],
        "row_bytes": lambda spec: spec,
        "reads_kafka": bool,
        "flow_below": found.below,
        "passed": lambda spark, query: query,
        "arena_root": lambda: Path("/dev/shm/a"),
        "spill_path": lambda: Path("/tmp/s"),
        "guarantee": lambda name: f"what {name} guarantees",
    }.items():
        monkeypatch.setattr(explaining, name, stub)
    return found


STATELESS = [
    "elastic       nothing: the query is stateless, Catalyst runs all of it",
    "catalyst      all below the first operator; above: nothing (unchanged)",
    "not elastic   none",
]


def test_a_query_with_state_says_its_operators_and_where_each_part_runs(made: Modes) -> None:
    first = operator("Aggregate keys k")
    second = operator("Join", parents=(first,))
    made.modes = {"append": query(first, second, notes=["orderBy()", "where()"])}
    assert explain(FRAME).splitlines() == [
        "elastic       Aggregate keys k; about 24 B per entry",
        "elastic       Join; about 24 B per entry",
        "catalyst      all below the first operator; above: orderBy(), where() (unchanged)",
        "              what stands between two operators (unchanged)",
        "not elastic   none",
        "where         the tree in append",
        "              below it",
    ]
    assert made.asked == ["append"]
    assert made.required == [(FRAME, "hg.explain: df"), "the session"]


def test_memory_and_requests_stand_behind_the_operators(made: Modes) -> None:
    made.modes = {"append": query(operator("Join"))}
    given: dict[str, Any] = {"memoryMax": "2 GB", "checkpointLocation": "s3://b/k"}
    lines = explain(FRAME, "append", **given, format="parquet").splitlines()
    assert lines[1] == (
        "store         s3://b/k: about 3 requests per batch, 1 per second, and 1 of each slot that "
        "changes more than its share of 1 MB; with a batch per second 14,400 an hour"
    )
    assert lines[2] == (
        "memory        at most 2 GB of each host's for state in /dev/shm/a; key groups that are touched "
        "least lie in /tmp/s"
    )
    assert lines[-1] == "sink          parquet: what parquet guarantees"
    made.modes = {"append": query()}
    assert explain(FRAME, **given).splitlines() == STATELESS
    with pytest.raises(CheckpointError):
        explain(FRAME, checkpointLocation="s3://")


def test_a_directory_is_no_store(made: Modes) -> None:
    made.modes = {"append": query(operator("Join"))}
    made.stages = UnsupportedQuery("it keeps state.")
    assert "no pools" not in explain(FRAME)
    assert "store" not in explain(FRAME, checkpointLocation="/tmp/k")


def test_stages_of_a_stateless_query_are_named_with_who_takes_their_rows(made: Modes) -> None:
    made.modes = {"append": query()}
    assert explain(FRAME).splitlines() == STATELESS
    made.stages = UnsupportedQuery("psps cannot keep Sort.")
    assert explain(FRAME).splitlines()[1] == "no pools      psps cannot keep Sort."
    made.stages = [
        SimpleNamespace(id="map-0", what="f (mapInArrow)"),
        SimpleNamespace(id="udf-1", what="g"),
    ]
    lines = explain(FRAME, grouping="shuffle, map-0: least-work").splitlines()
    assert lines[1] == 'pools         with .policy("psps"), of replicas that follow the load:'
    assert lines[2].startswith("  map-0       f (mapInArrow); rows go to ")
    assert lines[2].endswith(": least-work")
    assert lines[3].endswith(": shuffle")
    assert lines[4:] == STATELESS[1:]
    with pytest.raises(ConfigError, match="udf-2"):
        explain(FRAME, grouping="udf-2: shuffle")


def test_of_modes_the_first_that_runs_is_explained_and_why_append_does_not(made: Modes) -> None:
    why = UnsupportedQuery("no watermark.")
    made.modes = {
        "append": why,
        "update": query(operator("Join")),
        "complete": query(operator("All")),
    }
    lines = explain(FRAME).splitlines()
    assert lines[0] == 'output mode   "update" or "complete"; not append: no watermark.'
    assert lines[1].startswith("elastic       Join;")
    assert lines[-2] == "where         the tree in update"
    assert made.asked == ["append", "update", "complete"]
    assert explain(FRAME, "complete").splitlines()[0].startswith("elastic       All")


def test_of_several_reasons_the_one_that_is_of_no_mode_is_told(made: Modes) -> None:
    of_mode = UnsupportedQuery("[STREAMING_OUTPUT_MODE.X] append.")
    of_spark, other = ModeRefused("complete needs an aggregate."), UnsupportedQuery("no pandas.")
    made.modes = {"append": of_mode, "update": of_spark, "complete": other}
    assert explain(FRAME) == "not elastic   no pandas."
    made.modes = {"append": of_mode, "update": of_mode, "complete": of_spark}
    assert explain(FRAME) == "not elastic   complete needs an aggregate."
    assert explain(FRAME, "append") == "not elastic   [STREAMING_OUTPUT_MODE.X] append."


def test_real_time_is_told_with_the_cores_it_needs_or_what_stops_it(made: Modes) -> None:
    made.modes, made.flow = {"append": query()}, 3
    said = explain(FRAME, realTime=True).splitlines()[-1]
    assert said == "real time     yes: trigger(realTime=...); on one host it needs 4 cores"
    made.flow = UnsupportedQuery("no feed.")
    assert explain(FRAME, realTime=True).splitlines()[-1] == "no real time  no feed."
    assert "real time" not in explain(FRAME)


def test_arrivals_are_told_of_operators_that_read_kafka(made: Modes) -> None:
    known, unknown = operator("a", kafka=True, arrival="at"), operator("b", kafka=True)
    made.modes = {"append": query(known, operator("other"), unknown)}
    arrivals = [line for line in explain(FRAME).splitlines() if line.startswith("arrival")]
    assert arrivals == [
        "arrival       of join-0: Kafka's timestamp",
        "arrival       of join-0: unknown, since Kafka's timestamp does not reach it; name a column by "
        '.option("headgate.arrival", ...)',
    ]


def test_a_shell_and_a_notebook_show_an_explanation_line_by_line() -> None:
    text = Explanation("a\nb <c>")
    assert repr(text) == "a\nb <c>"
    assert "b &lt;c&gt;" in text._repr_html_()


# --- The tree -----------------------------------------------------------------------------------------


def drawn(plan: Made) -> list[str]:
    return drawing.tree(plan, lambda node: node.getClass().getSimpleName() == "Aggregate")


def test_each_part_of_a_plan_stands_below_what_reads_it_with_where_it_runs() -> None:
    leaf = source(attribute("k"), kind="StreamingRelation")
    projected = Made("Project", Made("SubqueryAlias", leaf), said="k")
    plan = Made("Sort", Made("Aggregate", projected), said="s")
    assert drawn(plan) == [
        "Catalyst  orderBy()",
        "slots       groupBy(...).agg(...)",
        "stream        select() or withColumn()",
        "source          readStream",
    ]


def test_a_table_stands_behind_the_stream_that_it_is_joined_with() -> None:
    leaf, table = source(attribute("k")), Made("LocalRelation", streams=False)
    assert drawn(Made("Join", table, leaf)) == [
        "stream    a join with a static table",
        "source      readStream",
        "table       a table or batch DataFrame",
    ]
    assert drawn(Made("Join", leaf, leaf))[0] == "stream    a join of two streams"
    other = Made("TransformWithStateInPySpark", leaf, table)
    assert drawn(other) == ["stream    transformWithState", "source      readStream"]
    assert drawn(table) == ["table     a table or batch DataFrame"]


def test_what_spark_makes_of_a_window_is_not_shown() -> None:
    leaf = source(attribute("k"))
    window = Made("Project", leaf, said="w precisetimestampconversion")
    below = Made("Project", leaf, said="k\n precisetimestampconversion")
    kept = Made("Filter", window, said="f", condition=Made("X", said="(a > 1)"))
    not_null = Made("Filter", leaf, said="f", condition=Made("X", said="isnotnull(at)"))
    real = Made("Filter", leaf, said="f", condition=Made("X", said="(a > 1)"))
    assert drawn(window) == drawn(kept) == drawn(not_null) == ["source    readStream"]
    assert drawn(real) == ["stream    where()", "source      readStream"]
    assert drawn(below)[0] == "stream    select() or withColumn()"
