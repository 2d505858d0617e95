"""Tests how joins on conditions that slots cannot compute are rewritten; plans are texts here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Items, Made, attribute, plain_seq, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.spark.read import outer
from headgate.spark.read.outer import with_any_condition

SPARK: Any = "the session"
LONG, TIME, MAP = T.LongType(), T.TimestampType(), T.MapType(T.LongType(), T.LongType())


class Sides:
    """A join of ``l(a, t, n)`` and ``r(b, m)`` on ``a = b`` and on ``f(t, m)``, which is beyond slots."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, rest: bool = True, keys: bool = True
    ) -> None:
        self.a, self.t, self.n = attribute("a", LONG), attribute("t", TIME), attribute("n", LONG)
        self.b, self.m = attribute("b", LONG), attribute("m", MAP)
        self.left = source(self.a, self.t, self.n, said="l")
        self.right = source(self.b, self.m, said="r")
        self.equal = Made("EqualTo", self.a, self.b, said="a = b")
        self.own = Made("GreaterThan", self.b, said="b > 0")
        self.other = Made("UDF", self.t, self.m, said="f(t, m)")
        more = Made("UDF", self.m, self.t, said="g(m, t)")
        split = SimpleNamespace(
            rest=[self.other, more] if rest else [],
            keys=[self.equal] if keys else [],
            sides=([], [self.own]),
        )
        reader = SimpleNamespace(
            read=lambda: split, conjuncts=lambda: [self.equal, self.own, self.other, more]
        )
        monkeypatch.setattr(outer, "ConditionReader", lambda spark, join: reader)
        monkeypatch.setattr(outer, "F", F)
        monkeypatch.setattr(outer, "seq", plain_seq)
        monkeypatch.setattr(outer, "column", lambda spark, one: Said(one.sql()))
        monkeypatch.setattr(outer, "data_type", lambda kind: kind)
        monkeypatch.setattr(outer, "inner_join", lambda spark, join: "pairs")
        monkeypatch.setattr(outer, "of_rows", lambda spark, plan: Frame(_text(plan)))
        monkeypatch.setattr(outer, "analysed", self._analysed)
        monkeypatch.setattr(outer, "same_even_null", lambda spark, a, b: f"{a.sql()} <=> {b.sql()}")
        monkeypatch.setattr(outer, "both", lambda spark, a, b: f"{_text(a)} and {_text(b)}")
        monkeypatch.setattr(
            outer,
            "join_of",
            lambda spark, join, inputs, kind, on: f"{kind}[{inputs[0]} | {inputs[1]} on {on}]",
        )
        monkeypatch.setattr(outer, "union", lambda spark, plans: plans)
        monkeypatch.setattr(
            outer, "project", lambda spark, columns, plan: ([c.sql() for c in columns], plan)
        )
        monkeypatch.setattr(
            outer, "named_as", lambda frame, columns: (str(frame), [c.sql() for c in columns])
        )

    def _analysed(self, frame: Any) -> Any:
        names = [name.strip("`") for name in frame.columns]
        said = str(frame)
        return Marked(said, [attribute(name) for name in names])

    def join(self, kind: str, **parts: Any) -> Made:
        output = [self.a, self.t, self.n] + ([] if "SEMI" in kind else [self.b, self.m])
        given = {
            "joinType": SimpleNamespace(sql=lambda: kind), "left": self.left, "right": self.right,
            "output": output,
        }  # fmt: skip
        return Made("Join", self.left, self.right, **(given | parts))

    def rewritten(self, kind: str) -> Any:
        return with_any_condition(SPARK, self.join(kind))


class Marked:
    """An analysed frame."""

    def __init__(self, text: str, output: list[Made]) -> None:
        self.text, self._output = text, output

    def output(self) -> Items:
        return Items(self._output)

    def __str__(self) -> str:
        return self.text


def _text(part: Any) -> str:
    return str(part.sql()) if isinstance(part, Made) else str(part)


L_CONTENT = "struct(a.alias(c)).alias(content0), struct(unix_micros(t).alias(c)).alias(content1)"
R_CONTENT = "struct(b.alias(c)).alias(content0), struct(map_entries(m).alias(c)).alias(content1)"
L, PAIRS_OF_L = f"l.select(a, t, n, {L_CONTENT})", f"pairs.select(b, m, {L_CONTENT})"
R, PAIRS_OF_R = f"r.select(b, m, {R_CONTENT})", f"pairs.select(a, t, {R_CONTENT})"
SAME = "content0 <=> content0 and content1 <=> content1"
COLUMNS = ["a", "t", "n", "b", "m"]
LEFT = (
    f"LeftOuter[{L} | {PAIRS_OF_L} on {SAME} and a = b].where(content0.isNull()).select(a.alias(o0), "
    f"t.alias(o1), n.alias(o2), None.cast({LONG!r}).alias(o3), None.cast({MAP!r}).alias(o4))"
)
RIGHT = (
    f"RightOuter[{PAIRS_OF_R} | {R} on {SAME} and a = b and b > 0].where(content0.isNull()).select("
    f"None.cast({LONG!r}).alias(o0), None.cast({TIME!r}).alias(o1), None.cast({LONG!r}).alias(o2), "
    "b.alias(o3), m.alias(o4))"
)


@pytest.mark.parametrize(
    ("kind", "alone"),
    [("LEFT OUTER", [LEFT]), ("RIGHT OUTER", [RIGHT]), ("FULL OUTER", [LEFT, RIGHT])],
)
def test_an_outer_join_is_its_pairs_and_what_has_none(
    monkeypatch: pytest.MonkeyPatch, kind: str, alone: list[str]
) -> None:
    pairs, *rest = Sides(monkeypatch).rewritten(kind)
    assert pairs == "pairs"
    assert rest == [(text, COLUMNS) for text in alone]


def test_a_semi_join_is_one_with_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Sides(monkeypatch).rewritten("LEFT SEMI")
    assert found == (["a", "t", "n"], f"LeftSemi[{L} | {PAIRS_OF_L} on {SAME} and a = b]")


def test_other_joins_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[str, dict[str, bool]]] = [
        ("INNER", {}), ("LEFT OUTER", {"rest": False}), ("LEFT OUTER", {"keys": False}),
    ]  # fmt: skip
    for kind, given in cases:
        sides = Sides(monkeypatch, **given)
        found = sides.rewritten(kind)
        assert isinstance(found, Made)
        assert (found._kind, list(found.children())) == ("Join", [sides.left, sides.right])
    table = source(attribute("b", LONG), streams=False)
    sides = Sides(monkeypatch)
    join = Made("Join", sides.left, table, joinType=None)
    assert with_any_condition(SPARK, join).children() == [sides.left, table]
    assert with_any_condition(SPARK, table) is table
    assert with_any_condition(SPARK, sides.left) is sides.left


def test_joins_below_other_nodes_are_rewritten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch)
    monkeypatch.setattr(outer, "union", lambda spark, plans: source(said=f"{len(plans)} plans"))
    plan = Made("Project", Made("Filter", sides.join("FULL OUTER"), kept=1), kept=2)
    found = with_any_condition(SPARK, plan)
    assert found.sql() == "Project(Filter(3 plans))"
