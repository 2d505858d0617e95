"""Tests which columns plain Spark's state gets from rows of a join and from states of a processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.core.errors import UnsupportedQuery
from headgate.operators.join.operator import MET
from headgate.operators.processor import TIMERS
from headgate.spark.plain import entries, waiting
from headgate.spark.plain.joins import MATCHED
from headgate.spark.read import types

LONG = T.LongType()


class Schema:
    """A schema as an Arrow's, which is made one of Spark's."""

    def __init__(self, **kinds: T.DataType) -> None:
        self.kinds = kinds


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (waiting, entries):
        monkeypatch.setattr(module, "F", F)
        monkeypatch.setattr(module, "data_type", lambda kind: kind)
    monkeypatch.setattr(waiting, "Window", Said("window"))
    monkeypatch.setattr(waiting, "DataFrame", SimpleNamespace(unionByName=_union))
    monkeypatch.setattr(types, "spark_type", lambda leaf: leaf)
    monkeypatch.setattr(types, "leaf_count", lambda kind: 2 if kind == "pair" else 1)
    monkeypatch.setattr(types, "rebuild", lambda kind, leaves: Said(f"{kind}{leaves}"))
    monkeypatch.setattr(
        waiting, "from_arrow_schema",
        lambda schema: [SimpleNamespace(dataType=kind) for kind in schema.kinds.values()],
    )  # fmt: skip


def _union(one: Said, other: Said) -> Said:
    return Said(f"({one} and {other})")


A, B, K = attribute("a", "pair"), attribute("b", "long"), attribute("k", "key")
RENAMED = attribute("r", "pair")


def side(**parts: Any) -> Any:
    told = {"keys": [K], "attributes": [A], "spans": [(1, 3)], "compared": [(4, B)]}
    return SimpleNamespace(**told | parts)


KEYS: Any = [Said("the key")]


@pytest.mark.parametrize(
    ("column", "said"),
    [("a", "pair[v1, v2]"), ("k", "the key"), ("b", "long[v4]")],
)
def test_a_column_is_that_which_was_kept_or_the_key_or_compared(column: str, said: str) -> None:
    plan: Any = Made("Relation", output=[A, B, K])
    assert str(waiting._kept(plan, side(), KEYS, column)) == said


def test_a_column_of_which_nothing_was_kept_is_named() -> None:
    plan: Any = Made("Relation", output=[A, B, K])
    none = side(attributes=[], spans=[], compared=[(4, Made("Add"))], keys=[Made("Add")])
    with pytest.raises(UnsupportedQuery) as refused:
        waiting._kept(plan, none, KEYS, "a")
    assert str(refused.value) == (
        "state of the join cannot be carried to plain Spark: it keeps column a, of which headgate has "
        "kept nothing; select that column."
    )
    with pytest.raises(UnsupportedQuery, match="it keeps column z, of which"):
        waiting._kept(plan, side(), KEYS, "z")


def test_a_column_that_is_renamed_is_found_under_both_names() -> None:
    child = attribute("r", "pair")
    alias = Made("Alias", child, toAttribute=A, name="a")
    other = Made("Alias", Made("Add", name="r"), toAttribute=B, name="b")
    project: Any = Made("Project", output=[A, B], projectList=[K, alias, other])
    assert list(waiting._named(project, "a")) == [A]
    assert list(waiting._named(project, "r")) == [A]
    assert list(waiting._named(project, "z")) == []
    assert list(waiting._named(Made("Filter", output=[A, B], projectList=[alias]), "r")) == []


def test_rows_of_both_sides_are_numbered_by_key_in_their_order() -> None:
    asked: list[Any] = []

    def part(fields: list[T.StructField], number: int) -> Said:
        asked.append(([(field.name, field.dataType) for field in fields], number))
        return Said(f"rows{number}")

    forms: list[str] = []

    def form(storeName: str) -> Any:
        forms.append(storeName)
        value = T.StructType().add("a", LONG).add(MATCHED, T.BooleanType())
        return Frame("form", value=value)

    plans = [Made("Relation", output=[A]) for _ in range(2)]
    keyed = SimpleNamespace(dataType=lambda: "key")
    node = SimpleNamespace(left=lambda: plans[0], right=lambda: plans[1])
    ours: Any = SimpleNamespace(
        operator=SimpleNamespace(
            node=node, join=[side(keys=[keyed]), side(keys=[keyed], spans=[(0, 1)])],
            keys=[SimpleNamespace(name="k0"), SimpleNamespace(name="k1")],
        ),
        part=part, form=form,
    )  # fmt: skip
    spec: Any = SimpleNamespace(sides=[[LONG, LONG], [LONG]])
    stores = waiting.of_rows(ours, spec)
    own = [("number", LONG), (MET, T.BooleanType())]
    assert asked == [([*own, ("v0", LONG), ("v1", LONG)], 0), ([*own, ("v0", LONG)], 1)]
    assert forms == ["left-keyWithIndexToValue", "right-keyWithIndexToValue"]
    of_key = "window.partitionBy(k0, k1).orderBy(number)"
    index = f"(row_number().over({of_key}) - 1).cast(bigint).alias(s1)"
    assert {name: (str(one.rows), one.keys, one.hashed) for name, one in stores.items()} == {
        name: told
        for at, (word, leaves) in enumerate((("left", "v1, v2"), ("right", "v0")))
        for name, told in (
            (
                f"{word}-keyWithIndexToValue",
                (
                    f"rows{at}.select(key[k0].alias(s0), {index}, pair[{leaves}].alias(s2),"
                    f" {MET}.alias(s3))", 2, 1,
                ),
            ),
            (
                f"{word}-keyToNumValues",
                (
                    f"rows{at}.groupBy(k0, k1).agg(count(*).alias(count))"
                    ".select(key[k0].alias(s0), count.alias(s1))", 1, 1,
                ),
            ),
        )
    }  # fmt: skip


def grouped(kind: str, **value: T.DataType) -> Any:
    node = Made(kind, groupingAttributes=[K])
    state = T.StructType().add("n", T.IntegerType()).add("m", T.StringType())
    schema = T.StructType().add("groupState", state)
    for name, one in value.items():
        schema = schema.add(name, one)
    return SimpleNamespace(
        operator=SimpleNamespace(node=node, keys=[SimpleNamespace(name="k0")]),
        form=lambda: Frame("form", value=schema),
        part=lambda fields, number: Said(f"part{number}{[f.name for f in fields]}"),
    )


STATE = SimpleNamespace(name="state", schema=Schema(a=LONG, b=T.StringType()))
TIMER = SimpleNamespace(name=TIMERS.name, schema=Schema(at=LONG))
SPEC: Any = SimpleNamespace(variables=[STATE, TIMER], label="transformWithState")


@pytest.mark.parametrize("timed", [True, False])
def test_a_key_s_state_and_timeout_are_one_entry(timed: bool) -> None:
    timeout = {"timeoutTimestamp": LONG} if timed else {}
    ours = grouped("FlatMapGroupsInPandasWithState", **timeout)
    [(name, made)] = waiting.of_group_state(ours, SPEC).items()
    kind = ours.form().schema["value"].dataType["groupState"].dataType
    state = "struct(v0.cast(IntegerType()).alias(n), v1.cast(StringType()).alias(m)).alias(state)"
    both = (
        f"(part0['v0', 'v1'].select(k0, {state}, None.cast(bigint).alias(at_ms)) and "
        f"part1['v0'].select(k0, None.cast({kind!r}).alias(state), (v0 - 1).alias(at_ms)))"
    )
    rows = f"{both}.groupBy(k0).agg(first(state, ignorenulls=True).alias(state), max(at_ms).alias(at_ms))"
    at = ", coalesce(at_ms, -1).cast(LongType()).alias(s2)" if timed else ""
    assert str(made.rows) == f"{rows}.select(key[k0].alias(s0), state.alias(s1){at})"
    assert (name, made.keys, made.hashed) == (entries.DEFAULT, 1, 1)


def test_variables_of_other_processors_stay_ours() -> None:
    with pytest.raises(
        UnsupportedQuery, match=r"^state of transformWithState cannot be carried to plai"
    ):
        waiting.of_group_state(grouped("TransformWithStateInPySpark"), SPEC)
