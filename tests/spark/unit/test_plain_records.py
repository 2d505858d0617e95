"""Checks the records that entries of plain Spark's state become: keys, rows that wait; without Spark."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from made_plans import Items, Made, attribute, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.join.operator import MET
from headgate.operators.join.spec import JoinKind, JoinSpec
from headgate.operators.processor import ProcessorSpec
from headgate.operators.spec import NO_TIME_US, Kind, Leaf, TimeKey
from headgate.spark.plain import duplicates, joins, plain_state, plain_stores, records
from headgate.spark.read import types
from headgate.spark.read.plan import Passed, Routed

LONG, TIME = T.LongType(), T.TimestampType()
INTEGER = Leaf(Kind.INTEGER)
WINDOW = T.StructType([T.StructField("start", TIME), T.StructField("end", TIME)])


def struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (duplicates, joins, plain_state):
        monkeypatch.setattr(module, "F", F)
        monkeypatch.setattr(module, "data_type", lambda kind: kind)
    monkeypatch.setattr(
        types,
        "key_leaves",
        lambda kind, value: [(INTEGER, value), (INTEGER, Said("more"))],
    )


def seen(kind: str, *keys: Made, keep_us: int | None = 5, timed: bool = True) -> tuple[Any, Any]:
    """Return the state of keys that were seen, and its spec."""
    spec = DeduplicateSpec((), pa.schema([]), TimeKey(0, 1) if timed else None, keep_us)
    operator = SimpleNamespace(
        node=Made(kind, keys=list(keys)), what="dropDuplicates",
        values=[Passed("v0", None), Passed("v1", None)],  # type: ignore[arg-type]
        raw_schema=struct(a=LONG, b=TIME),
    )  # fmt: skip
    key = struct(**{one.name(): one.dataType() for one in keys})
    state = Frame("state", key=key, value=struct(at=LONG))

    def routed(rows: Any, keys: list[Routed], values: list[Passed], time: Any) -> Any:
        said = [[(one.name, str(one.value)) for one in some] for some in (keys, values)]
        return (*said, None if time is None else str(time))

    return SimpleNamespace(operator=operator, load=lambda: state, routed=routed), spec


K = attribute("k", LONG)
NOTHING = [("v0", "None.cast(LongType())"), ("v1", "None.cast(TimestampType())")]


def test_a_key_that_was_seen_is_a_record_without_values() -> None:
    asked, spec = seen("Deduplicate", K, attribute("j", LONG), timed=False)
    found: Any = duplicates.of_keys(asked, spec)
    keys = [("k0", "s0"), ("k1", "more"), ("k2", "s1"), ("k3", "more")]
    assert found == (keys, NOTHING, None)


def test_a_state_with_other_keys_is_refused() -> None:
    asked, spec = seen("Deduplicate", K)
    asked.operator.node._parts["keys"] = [attribute("other", LONG)]
    with pytest.raises(
        CheckpointError, match="has k bigint where dropDuplicates keeps other bigint"
    ):
        duplicates.of_keys(asked, spec)


@pytest.mark.parametrize(
    ("kind", "second", "keep_us", "time"),
    [
        ("DeduplicateWithinWatermark", attribute("at", TIME), 5, "(s2 - 5)"),
        ("Deduplicate", attribute("at", TIME, watermark=True), None, str(NO_TIME_US)),
        (
            "Deduplicate", attribute("at", TIME, watermark=True), 5,
            f"coalesce(unix_micros(s1), {NO_TIME_US})",
        ),
        (
            "Deduplicate", attribute("w", WINDOW, watermark=True), 5,
            f"coalesce(unix_micros(s1.getField(end)), {NO_TIME_US})",
        ),
    ],
)  # fmt: skip
def test_the_time_of_a_key_is_that_from_which_its_removal_follows(
    kind: str, second: Made, keep_us: int | None, time: str
) -> None:
    asked, spec = seen(kind, K, second, keep_us=keep_us)
    found: Any = duplicates.of_keys(asked, spec)
    assert found[2] == time


# --- Joins ----------------------------------------------------------------------------------------------


def side(plan: Any, state: T.StructType, whole: Any = None, number: int = 0) -> Any:
    """Return plan and rows of one side, from a state with the given columns."""
    asked: list[Any] = []

    def load(**options: str) -> Frame:
        asked.append(options)
        return Frame("state", value=state)

    operator = SimpleNamespace(input_plan=whole or plan, what="the join")
    of_join: Any = SimpleNamespace(operator=operator, load=load)
    found_plan, rows = joins._side(of_join, plan, number)
    name = ("left", "right")[number]
    assert asked[0] == {"storeName": f"{name}-keyWithIndexToValue"}
    return found_plan, str(rows)


FLAG = T.BooleanType()
A, B = attribute("a", LONG), attribute("b", LONG)


@pytest.mark.parametrize("number", [0, 1])
def test_a_waiting_row_has_the_columns_of_its_side_and_whether_it_met(number: int) -> None:
    plan = source(A, B)
    found, rows = side(plan, struct(b=LONG, more=LONG, a=LONG, matched=FLAG), number=number)
    assert found is plan
    assert rows == (
        "state.select(value.`a`, value.`b`, coalesce(value.matched, False).alias(matched))"
    )


class Needs(Made):
    """A node whose expressions refer to attributes."""

    def references(self) -> Any:
        return Items(self._parts["needs"])


def test_a_column_that_nothing_above_needs_is_null() -> None:
    plan = Needs("Filter", output=[A, B], needs=[B])
    whole = Needs("Join", plan, needs=[A])
    _, rows = side(plan, struct(a=LONG, matched=FLAG), whole)
    assert rows.startswith("state.select(value.`a`, None.cast(LongType()).alias(b), coalesce(")


def test_a_column_that_the_query_needs_is_looked_for_below_a_projection() -> None:
    below = Made("Filter", output=[A])
    plan = Made("Project", below, output=[A, B])
    whole = Needs("Join", plan, needs=[B])
    found, rows = side(plan, struct(a=LONG, matched=FLAG), whole)
    assert found is below
    assert rows.startswith("state.select(value.`a`, coalesce(")
    plan = Made("Filter", output=[A, B])
    with pytest.raises(CheckpointError, match="of the left side lacks column b, which the query"):
        side(plan, struct(a=LONG, matched=FLAG), Needs("Join", plan, needs=[A, B]))


@pytest.mark.parametrize(
    ("output", "state", "what"),
    [
        ([A, attribute("a", LONG)], struct(a=LONG, matched=FLAG), "has a, which cannot be told"),
        ([A], struct(a=LONG, matched=FLAG).add("a", LONG), "has a, which"),
        ([A, B], struct(b=LONG, a=LONG, z=LONG), "has no flag matched, which"),
        (
            [A, B], T.StructType([*struct(b=LONG, a=LONG), *struct(b=LONG, a=LONG, matched=FLAG)]),
            "right side has a, b, which",
        ),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_told_apart_are_named(
    output: list[Made], state: T.StructType, what: str
) -> None:
    with pytest.raises(CheckpointError, match=what):
        side(source(*output), state, number=1)


@pytest.mark.parametrize(
    ("kind", "parts"), [(JoinKind.INNER, 4), (JoinKind.FULL_OUTER, 4), (JoinKind.LEFT_SEMI, 3)]
)
def test_rows_of_each_side_become_records_with_and_without_a_partner(
    monkeypatch: pytest.MonkeyPatch, kind: JoinKind, parts: int
) -> None:
    sides = [Made("Filter", output=[A], said="left"), Made("Filter", output=[B], said="right")]
    monkeypatch.setattr(joins, "_side", lambda asked, plan, number: (plan, Said(f"rows{number}")))
    monkeypatch.setattr(joins, "named_as", lambda rows, names: f"{rows} as {len(names)}")
    streams: list[str] = []

    def replace_leaf(spark: Any, plan: Any, old: Any, new: str) -> Any:
        text = f"{plan}; {old.sql()} = {new}"
        return Plan(text, streaming=text in streams)

    class Plan:
        def __init__(self, text: str, *, streaming: bool = False) -> None:
            self.text, self.isStreaming = text, lambda: streaming

        def __repr__(self) -> str:
            return self.text

    monkeypatch.setattr(joins, "replace_leaf", replace_leaf)
    monkeypatch.setattr(joins, "of_rows", lambda spark, plan: Said(f"[{plan}]"))
    monkeypatch.setattr(joins, "routed_columns", lambda op, groups: {"g": Said(f"of {groups}")})
    united: list[list[str]] = []

    def reduce(function: Any, frames: list[Any]) -> Any:
        united.append([str(frame) for frame in frames])
        return functools.reduce(lambda one, _: one, frames)

    monkeypatch.setattr(joins, "reduce", reduce)
    node = Made("Join", left=sides[0], right=sides[1])
    operator = SimpleNamespace(node=node, input_plan="input", what="the join")
    asked: Any = SimpleNamespace(operator=operator, key_groups=8, spark="spark")
    spec = JoinSpec((INTEGER,), ((), ()), (0, 0), kind, (), None)
    joins.of_rows_waiting(asked, spec)
    ((*frames,),) = united

    def frame(left: str, right: str, met: bool) -> str:
        rows = [f"rows{n}.where({what}).drop(matched) as 1" for n, what in enumerate((left, right))]
        return f"[input; left = {rows[0]}; right = {rows[1]}].select(of 8.alias(g), {met}.alias({MET}))"

    whole = [
        frame("(matched = False)", "False", met=False),
        frame("(matched = True)", "False", met=True),
        frame("False", "(matched = False)", met=False),
        frame("False", "(matched = True)", met=True),
    ]
    assert len(frames) == parts
    assert frames == [one for n, one in enumerate(whole) if parts == 4 or n != 1]
    streams.append(frames[0].partition("]")[0].removeprefix("["))
    with pytest.raises(CheckpointError, match="rows that wait in the join cannot be put in place"):
        joins.of_rows_waiting(asked, spec)


# --- Kinds of operators ---------------------------------------------------------------------------------


def of_node(kind: str | None) -> Any:
    return SimpleNamespace(node=None if kind is None else Made(kind), what="Thing; more of it")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Aggregate", "stateStoreSave"), ("Aggregate", "sessionWindowStateStoreSaveExec"),
        ("Deduplicate", "dedupe"), ("DeduplicateWithinWatermark", "dedupeWithinWatermark"),
        ("FlatMapGroupsInPandasWithState", "applyInPandasWithState"),
        ("Join", "symmetricHashJoin"),
        ("TransformWithStateInPySpark", "transformWithStateInPySparkExec"),
        ("TransformWithStateInPySpark", "transformWithStateInPandasExec"),
    ],
)  # fmt: skip
def test_state_of_the_same_operator_is_taken_and_of_another_is_not(kind: str, name: str) -> None:
    records.check_name(of_node(kind), name)
    with pytest.raises(CheckpointError, match="state is of other where the query has Thing; give"):
        records.check_name(of_node(kind), "other")


@pytest.mark.parametrize("kind", [None, "Limit"])
def test_state_of_other_kinds_of_operators_cannot_be_carried(kind: str | None) -> None:
    with pytest.raises(
        UnsupportedQuery, match="state of Thing cannot be carried between Spark and"
    ):
        records.check_name(of_node(kind), "dedupe")


def of_kind(kind: type) -> Any:
    return object.__new__(kind)


KINDS: list[tuple[type, str, str]] = [
    (DeduplicateSpec, "of_keys", "of_keys"), (JoinSpec, "of_rows_waiting", "of_rows"),
    (ProcessorSpec, "of_variables", "of_group_state"), (object, "of_aggregate", "of_aggregate"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "taken", "given"), KINDS)
def test_each_kind_of_operator_has_its_own_records_and_stores(
    monkeypatch: pytest.MonkeyPatch, kind: type, taken: str, given: str
) -> None:
    for _, into, out in KINDS:
        monkeypatch.setattr(records, into, lambda *told, name=into: (name, "a spec of its own"))
        monkeypatch.setattr(plain_stores, out, lambda *told, name=out: name)
    spec = of_kind(kind)
    state: Any = SimpleNamespace(operator=SimpleNamespace(spec=spec))
    found: Any = records.records(state)
    if kind is ProcessorSpec:
        assert found == (taken, "a spec of its own")
    else:
        assert found[0] == (taken, "a spec of its own")
        assert found[1] is spec
    stores: Any = plain_stores.stores(state)
    alone = kind in (JoinSpec, ProcessorSpec)
    assert stores == (given if alone else {"default": given})
