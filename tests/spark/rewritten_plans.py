"""Writes plans anew for markers as texts: what calls the JVM makes a text of what it would make."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, plain_seq
from pyspark.sql import types as T
from said_columns import F, Said

from headgate.spark.realtime import markers

SPARK: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda key: f"{key.rsplit('.')[-1]} UTC"))
NUMBER = T.LongType()


def attr(name: str, kind: Any = NUMBER, *, said: str = "") -> Made:
    """Return a column; as nullable it has a question mark."""
    parts: dict[str, Any] = {"name": name, "said": said or name, "dataType": kind, "metadata": "m"}
    made = Made("AttributeReference", **parts)
    nullable: Any = made
    nullable.withNullability = lambda may: attr(name, kind, said=f"{name}?") if may else made
    made._parts["toAttribute"] = made
    return made


def expression(said: str, kind: str = "Add", **parts: Any) -> Made:
    """Return an expression as a text."""
    return Made(kind, said=said, **parts)


def node(said: str, output: Any, kind: str = "Node", *children: Any, **parts: Any) -> Made:
    """Return a node as a text."""
    return Made(kind, *children, said=said, output=list(output), streams=True, **parts)


def _alias(spark: Any, new: Made, name: str, identity: Any, metadata: Any) -> Made:
    assert metadata == "m"
    return expression(f"{new.sql()} as {name}", "Alias", name=name, toAttribute=attr(name))


def _resolved(spark: Any, output: Any, columns: Any) -> list[Made]:
    found = []
    for column in columns:
        text, name = re.fullmatch(r"(.*)\.alias\((.*)\)", str(column), re.DOTALL).groups()  # type: ignore[union-attr]
        inner = expression(text)
        found.append(
            Made("Alias", inner, said=f"{text} as {name}", name=name, toAttribute=attr(name))
        )
    return found


def _project(spark: Any, columns: Any, plan: Made) -> Made:
    output = [c if c._kind == "AttributeReference" else c.toAttribute() for c in columns]
    return node(f"{plan.sql()} > {', '.join(c.sql() for c in columns)}", output)


def put_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what makes texts in the place of what calls the JVM."""

    def of_two(name: str) -> Any:
        return lambda spark, a, b: expression(
            f"{name}({a.sql()}, {b.sql()})", "Guard", toAttribute=b
        )

    told = {
        "F": F, "seq": plain_seq, "alias": _alias, "resolved": _resolved, "project": _project,
        "column": lambda spark, one: Said(one.sql()),
        "data_type": lambda kind: kind,
        "filtered": lambda spark, condition, plan: node(
            f"{plan.sql()} > if {condition.sql()}", plan.output()),
        "present_or": of_two("present_or"), "null_where_present": of_two("guarded"),
        "default_where_present": of_two("whole"),
        "unless_marker": lambda spark, one, marker: of_two("unless")(spark, marker, one),
        "absent_and": lambda spark, marker, parts: (
            f"absent({marker.sql()}) and {next(iter(parts)).sql()}"),
        "outer_join": lambda spark, plan, table, condition: node(
            f"{plan.sql()} > outer {table.sql()} on {condition}", [*plan.output(), *table.output()]),
        "marked_join": lambda spark, plan, table, condition, mark: node(
            f"{plan.sql()} > marked {table.sql()} on {condition}", [*plan.output(), mark]),
        "generate": lambda spark, plan, made, below, outer: node(
            f"{below.sql()} > {made.sql()} outer={outer}", below.output()),
        "expand": lambda spark, rows, output, plan: node(
            f"{plan.sql()} > {[[c.sql() for c in row] for row in rows]} {[c.sql() for c in output]}",
            plan.output()),
    }  # fmt: skip
    for name, function in told.items():
        monkeypatch.setattr(markers, name, function)


A, B = attr("a"), attr("b")
STREAM = Made("Relation", output=[A, B], streams=True)


def written(plan: Made, times: bool = False) -> str:
    """Return a plan that was written anew over a source, without its first projection."""
    columns = [attr("x"), attr("y"), attr("m_to"), attr("m_token")]
    passed = markers._over(markers._Walk(SPARK, node("source", columns), {"w": 2}), plan)
    first = "source > x as a, y as b, m_to, m_token"
    text = str(passed.plan.sql())
    assert text.startswith(first)
    assert [one.name() for one in passed.ours] == ["m_to", "m_token", "m_us2"][: 2 + times]
    return text[len(first) :]


def timed(kind: Any = None) -> Made:
    """Return a watermark over the stream."""
    number, time = SimpleNamespace(toString=lambda: "w"), attr("t", kind or T.TimestampType())
    return Made("EventTimeWatermark", STREAM, eventTime=time, nodeId=number)


OURS = "m_to, m_token"
WATERMARK = f" > a, b, {OURS}, when(not m_to.isNotNull(), unix_micros(t)) as m_us2"
