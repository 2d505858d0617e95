"""Tests how each node of a plan is written anew so that markers pass it; on nodes that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made
from pyspark.sql import types as T
from rewritten_plans import (
    OURS,
    SPARK,
    STREAM,
    WATERMARK,
    A,
    B,
    attr,
    expression,
    node,
    put_words,
    timed,
    written,
)

from headgate.core.errors import UnsupportedQuery
from headgate.spark.realtime import markers


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    put_words(monkeypatch)


def test_a_source_s_columns_have_the_stream_s_names_and_markers_theirs() -> None:
    assert written(STREAM) == ""
    source: Any = node("source", [attr("x"), attr("m_to"), attr("m_token")])
    stream = Made("Relation", output=[A], streams=True)
    assert markers.passing(SPARK, stream, source, {}).sql() == "source > x as a, m_to, m_token"


def test_a_watermark_notes_the_times_of_records_alone() -> None:
    assert written(timed(), True) == WATERMARK
    with pytest.raises(UnsupportedQuery) as refused:
        written(timed(T.DateType()))
    assert str(refused.value) == (
        "a watermark on a column of type date before the first stateful operator cannot run in real "
        'time; leave out trigger(realTime=...), or add .fallback("micro-batch").'
    )


def test_a_projection_is_computed_for_records_alone() -> None:
    plan = Made("Project", STREAM, projectList=[A, expression("a + 1", toAttribute=attr("c"))])
    assert written(plan) == f" > unless(m_to, a), unless(m_to, a + 1), {OURS}"


def test_a_row_that_is_dropped_is_a_marker_from_the_watermark_on() -> None:
    plan = Made("Filter", STREAM, condition=expression("a > 1"))
    assert written(plan) == " > if present_or(m_to, a > 1)"
    plan = Made("Filter", timed(), condition=expression("a > 1"))
    to = "when(m_to.isNotNull(), m_to).otherwise(when(a > 1, None.cast(int)).otherwise(-1)) as m_to"
    assert written(plan, True) == f"{WATERMARK} > a, b, {to}, m_token, m_us2"


@pytest.mark.parametrize("kind", ["Repartition", "RepartitionByExpression", "RebalancePartitions"])
def test_a_repartition_is_left_out(kind: str) -> None:
    assert written(Made(kind, STREAM)) == ""


def test_a_node_that_markers_cannot_pass_is_refused_by_its_name() -> None:
    with pytest.raises(
        UnsupportedQuery, match=r"before the first stateful operator cannot run in r"
    ):
        written(Made("Sort", STREAM))


def generated(kind: str, outer: bool, below: Made = STREAM) -> Made:
    generator = Made(kind, expression("n"), expression("xs"))
    return Made("Generate", below, generator=generator, outer=outer, output=[A, attr("made")])


def test_rows_are_made_of_records_and_a_marker_stays_one() -> None:
    end = f"outer=True > a?, made?, {OURS}"
    both = "(guarded(m_to, n), guarded(m_to, xs))"
    for kind in ("Explode", "PosExplode", "Inline"):
        assert written(generated(kind, True)) == f" > {kind}{both} {end}"
        some = " > if (m_to.isNotNull() or (size(n) > 0))"
        assert written(generated(kind, False)) == f"{some} > {kind}{both} {end}"
    end = end.replace("True", "False")
    assert written(generated("JsonTuple", False)) == f" > JsonTuple{both} {end}"
    assert written(generated("Stack", False)) == f" > Stack(n, guarded(m_to, xs)) {end}"
    empty = "when((size(n) > 0), None.cast(int)).otherwise(-1)"
    to = f"when(m_to.isNotNull(), m_to).otherwise({empty}) as m_to"
    assert f" > a, b, {to}, m_token, m_us2 > Explode" in written(
        generated("Explode", False, timed()), True
    )
    with pytest.raises(UnsupportedQuery, match="cannot run in real time"):
        written(generated("UserGenerator", False))


def test_rows_of_several_projections_are_computed_for_records_alone() -> None:
    rows = [Items([A, expression("1", "Literal")]), Items([expression("a + b"), B])]
    plan = Made("Expand", STREAM, projections=rows, output=[A, B])
    ours = "'m_to', 'm_token'"
    assert written(plan) == (
        f" > [['a', '1', {ours}], ['guarded(m_to, a + b)', 'b', {ours}]] ['a?', 'b?', {ours}]"
    )


def joined(kind: str, *, left: bool = True) -> Made:
    table = Made("Table", output=[attr("k")], said="table", streams=False)
    sides = (STREAM, table) if left else (table, STREAM)
    return Made(
        "Join", *sides, left=sides[0], right=sides[1], joinType=SimpleNamespace(sql=lambda: kind),
        condition=[expression("a = k")], output=[A, attr("k")],
    )  # fmt: skip


def test_a_table_is_joined_such_that_markers_stay() -> None:
    on, end = "on absent(m_to) and a = k", f" > a?, k?, {OURS}"
    outer = f" > outer table {on}{end}"
    marked = f" > outer table > k, True as m_meets {on}"
    inner = f"{marked} > if (m_to.isNotNull() or m_meets?.isNotNull()){end}"
    semi = f" > marked table {on} > if (m_to.isNotNull() or "
    assert written(joined("Inner")) == written(joined("cross", left=False)) == inner
    assert written(joined("Left Outer")) == written(joined("RIGHT OUTER", left=False)) == outer
    assert written(joined("LEFT SEMI")) == f"{semi}m_meets){end}"
    assert written(joined("LEFT ANTI")) == f"{semi}not m_meets){end}"
    for kind, left in (("RIGHT OUTER", True), ("LEFT OUTER", False), ("LEFT SEMI", False)):
        said = f"^a {kind.lower()} join before the first"
        with pytest.raises(UnsupportedQuery, match=said):
            written(joined(kind, left=left))
