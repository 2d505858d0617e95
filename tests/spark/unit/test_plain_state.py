"""State that moves between plain Spark and headgate: what belongs together, what stands for what.

Columns and frames are only said, so no session is needed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.join.spec import JoinKind, JoinSpec
from headgate.operators.processor import TIMERS, Keyed, ProcessorSpec, TimeMode, Variable
from headgate.operators.spec import NO_TIME_US, Kind, Leaf
from headgate.spark.plain import (
    adopting,
    duplicates,
    entries,
    joins,
    plain_state,
    plain_stores,
    processors,
    records,
)
from headgate.spark.read.plan import Passed, Routed

LONG, TIME, TEXT = T.LongType(), T.TimestampType(), T.StringType()
WINDOW = T.StructType([T.StructField("start", TIME), T.StructField("end", TIME)])
INTEGER = Leaf(Kind.INTEGER)
SPARK: Any = "the session"


def struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put texts in place of columns, and types in place of Spark's."""
    modules = (adopting, duplicates, entries, joins, plain_state, processors)
    for module in modules:
        monkeypatch.setattr(module, "F", F, raising=False)
        monkeypatch.setattr(module, "data_type", lambda kind: kind, raising=False)
    leaves = lambda kind, value, *_: [(INTEGER, value)]  # noqa: E731
    for name in ("leaves", "key_leaves"):
        monkeypatch.setattr(processors.types, name, leaves)
    monkeypatch.setattr(processors.types, "normalised", lambda leaf, part: part)


class Asked:
    """The state of an operator, and what is made of it."""

    def __init__(self, operator: Any, state: Any = None) -> None:
        self.operator, self._state, self.spark, self.key_groups = operator, state, SPARK, 16
        self.loads: list[dict[str, str]] = []
        self.made: Any = None

    def load(self, **options: str) -> Any:
        self.loads.append(options)
        return self._state[options["storeName"]] if "storeName" in options else self._state

    def routed(self, rows: Any, keys: Any, values: Any, start_us: Any) -> Any:
        self.made = (
            [(key.name, str(key.value)) for key in keys],
            [(value.name, str(value.value)) for value in values],
            None if start_us is None else str(start_us),
        )
        return Said(f"records of {rows}")


# --- Which state is which operator's ------------------------------------------------------------------


def operator(name: str, *parents: Any, **more: Any) -> Any:
    facts = {"aggregate": None, "node": None, "what": f"{name}; in detail", **more}
    return SimpleNamespace(id=name, parents=parents, **facts)


def stored(*names: tuple[int, str]) -> list[Any]:
    return [SimpleNamespace(operatorId=number, operatorName=name) for number, name in names]


def query(*operators: Any, last: int = 1) -> Any:
    return SimpleNamespace(operators=list(operators), last=list(operators[-last:]))


def test_spark_numbers_operators_from_the_sink_and_has_a_row_for_each_store() -> None:
    a = operator("a")
    b = operator("b", a)
    rows = stored((1, "first of a"), (1, "second of a"), (0, "of b"))
    assert adopting.paired(query(a, b), rows) == [(b, rows[2]), (a, rows[0])]


def test_operators_that_do_not_follow_each_other_are_not_carried() -> None:
    a, b = operator("a"), operator("b")
    refused: list[tuple[Any, str]] = [
        (query(), "has 0 stateful operators, so there is no state to carry"),
        (query(a, b, last=2), "has 2 stateful operators, which do not follow each other"),
        (query(a, b, operator("c", a, b)), "has 3 stateful operators, which do not follow"),
    ]
    for asked, says in refused:
        with pytest.raises(UnsupportedQuery, match=says):
            adopting.paired(asked, stored((0, "x")))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (stored((1, "dedupe"), (0, "stateStoreSave")), "state of stateStoreSave, dedupe where"),
        ([], "state of no operator where the query has a; give the query that wrote it"),
    ],
)
def test_a_checkpoint_of_other_operators_is_refused(rows: Any, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        adopting.paired(query(operator("a")), rows)


def test_functions_are_those_that_spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def aggregate(*functions: str) -> Any:
        parts = [SimpleNamespace(function=Made(name)) for name in functions]
        return operator("a", aggregate=SimpleNamespace(parts=parts))

    frame: Any = "a frame"
    monkeypatch.setattr(adopting, "analysed", lambda df: "its plan")
    monkeypatch.setattr(adopting, "aggregates_as_run", lambda *_: [["Max"], ["Sum", "Count"]])
    asked = query(aggregate("Sum", "Count"), operator("join"), aggregate("Max"))
    adopting.check_order(SPARK, frame, asked)
    with pytest.raises(UnsupportedQuery, match="Spark runs Max where the query says Max, Min, so"):
        adopting.check_order(
            SPARK, frame, query(aggregate("Sum", "Count"), aggregate("Max", "Min"))
        )
    adopting.check_order(SPARK, frame, query(operator("join")))


def test_entries_that_are_lost_on_the_way_are_told() -> None:
    came: Any = [SimpleNamespace(arrived=5), SimpleNamespace(arrived=4)]
    adopting._check_all_kept("aggregate-0", came, 9)
    adopting._check_all_kept("processor-0", came, 12)
    with pytest.raises(CheckpointError, match=r"of 9 entries .* 2 are older than its watermark"):
        adopting._check_all_kept("aggregate-0", came, 7)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Aggregate", "stateStoreSave"),
        ("Aggregate", "sessionWindowStateStoreSaveExec"),
        ("Deduplicate", "dedupe"),
        ("DeduplicateWithinWatermark", "dedupeWithinWatermark"),
        ("FlatMapGroupsInPandasWithState", "applyInPandasWithState"),
        ("Join", "symmetricHashJoin"),
        ("TransformWithStateInPySpark", "transformWithStateInPandasExec"),
    ],
)
def test_state_is_of_the_kind_of_its_operator(kind: str, name: str) -> None:
    of_query = operator("it", node=Made(kind))
    records.check_name(of_query, name)
    with pytest.raises(CheckpointError, match="state is of other where the query has it; give the"):
        records.check_name(of_query, "other")


def test_state_of_other_kinds_is_not_carried() -> None:
    for other in (operator("it"), operator("it", node=Made("GlobalLimit"))):
        with pytest.raises(UnsupportedQuery, match="state of it cannot be carried"):
            records.check_name(other, "stateStoreSave")


SPECS = {DeduplicateSpec: "keys", JoinSpec: "rows", ProcessorSpec: "variables", object: "aggregate"}


@pytest.mark.parametrize("kind", SPECS)
def test_each_kind_of_state_is_read_and_written_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr(records, "of_keys", lambda asked, spec: "keys")
    monkeypatch.setattr(records, "of_rows_waiting", lambda asked, spec: "rows")
    monkeypatch.setattr(records, "of_variables", lambda asked, spec: ("variables", spec))
    monkeypatch.setattr(records, "of_aggregate", lambda asked: "aggregate")
    monkeypatch.setattr(plain_stores, "of_keys", lambda ours: "keys")
    monkeypatch.setattr(plain_stores, "of_rows", lambda ours, spec: {"left": "rows"})
    monkeypatch.setattr(plain_stores, "of_group_state", lambda ours, spec: {"one": "variables"})
    monkeypatch.setattr(plain_stores, "of_aggregate", lambda ours: "aggregate")
    spec = object.__new__(kind)
    asked: Any = SimpleNamespace(operator=SimpleNamespace(spec=spec))
    made: Any = records.records(asked)
    assert made == (SPECS[kind], spec)
    assert list(plain_stores.stores(asked).values()) == [SPECS[kind]]
    where = {"rows": "left", "variables": "one"}.get(SPECS[kind], "default")
    assert list(plain_stores.stores(asked)) == [where]


# --- Columns ------------------------------------------------------------------------------------------


def test_fields_are_taken_by_place_since_buffers_have_one_name_many_times() -> None:
    state = Frame("state", key=struct(k=LONG), value=struct(sum=LONG, last=TEXT))
    rows = plain_state.flat(state, "key", "value")  # type: ignore[arg-type]
    assert rows.columns == ["s0", "s1", "s2"]
    kinds = [T.StructType([T.StructField("s0", LONG)]), struct(s1=LONG, s2=TEXT)]
    assert str(rows) == (
        f"state.select(key.cast({kinds[0]!r}).getField(s0).alias(s0), "
        f"value.cast({kinds[1]!r}).getField(s1).alias(s1), "
        f"value.cast({kinds[1]!r}).getField(s2).alias(s2))"
    )


def test_a_key_is_compared_by_name_unless_spark_made_the_name_up() -> None:
    names = plain_state.named([attribute("k", LONG), Made("Add", dataType=TEXT)])
    assert names == [("k", LONG), ("", TEXT)]
    state: Any = Frame("state", key=struct(k=LONG, made=TEXT))
    keys = [attribute("k", LONG), Made("Add", dataType=TEXT)]
    plain_state.check_key(operator("it"), state, keys)
    with pytest.raises(
        CheckpointError, match="has k bigint, made string where it; in detail keeps"
    ):
        plain_state.check_key(operator("it"), state, [attribute("j", LONG), keys[1]])


def test_columns_of_entries_are_the_leaves_of_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries.types, "leaf_count", lambda kind: 2 if kind is TIME else 1)
    monkeypatch.setattr(entries.types, "rebuild", lambda kind, parts: (kind, list(map(str, parts))))
    assert entries.key_values([LONG, TIME, TEXT]) == [
        (LONG, ["k0"]), (TIME, ["k1", "k2"]), (TEXT, ["k3"]),
    ]  # fmt: skip
    rows: Any = Frame("rows")
    made = entries.entries(rows, [Said("k0"), Said("k1")], [Said("v")])  # type: ignore[list-item]
    assert (made.rows.columns, made.keys, made.hashed) == (["s0", "s1", "s2"], 2, 2)


# --- Keys that were seen ------------------------------------------------------------------------------


def seen(kind: str, keep_us: int | None, *keys: Made, timed: bool = True) -> Any:
    spec = object.__new__(DeduplicateSpec)
    for name, value in (("keep_us", keep_us), ("time", "a time" if timed else None)):
        object.__setattr__(spec, name, value)
    raw = struct(v0=LONG, v1=TEXT)
    values = [Passed("v0", Said("x")), Passed("v1", Said("y"))]  # type: ignore[arg-type]
    of_query = operator("it", node=Made(kind, keys=list(keys)), values=values, raw_schema=raw)
    key = struct(**{one.name(): one.dataType() for one in keys})
    asked: Any = Asked(of_query, Frame("state", key=key, value=struct(expires=LONG)))
    duplicates.of_keys(asked, spec)
    return asked.made


def test_a_key_that_was_seen_is_a_record_that_was_first() -> None:
    keys, values, time_us = seen("Deduplicate", None, attribute("a", LONG), attribute("b", TEXT))
    assert keys == [("k0", "s0"), ("k1", "s1")]
    assert values == [("v0", f"None.cast({LONG!r})"), ("v1", f"None.cast({TEXT!r})")]
    assert time_us == str(NO_TIME_US), "it is remembered for ever"
    assert seen("Deduplicate", None, attribute("a", LONG), timed=False)[2] is None


def test_a_key_is_forgotten_by_its_time_or_by_when_it_ends() -> None:
    a, at = attribute("a", LONG), attribute("at", TIME, watermark=True)
    window = attribute("w", WINDOW, watermark=True)
    assert seen("DeduplicateWithinWatermark", 10, a)[2] == "(s1 - 10)"
    assert seen("Deduplicate", 0, a, at)[2] == f"coalesce(unix_micros(s1), {NO_TIME_US})"
    assert seen("Deduplicate", 0, window, a)[2] == (
        f"coalesce(unix_micros(s0.getField(end)), {NO_TIME_US})"
    )


# --- Rows that wait in a join -------------------------------------------------------------------------


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the plan and the rows of a join's side, from a state with some columns."""

    def make(plan: Made, columns: Any, *, used: Any = (), above: Any = None) -> Any:
        value = T.StructType([T.StructField(name, LONG) for name in columns])
        input_plan = Made("Project", plan, references=list(used)) if above is None else above
        asked: Any = Asked(
            operator("join-0", input_plan=input_plan),
            {"right-keyWithIndexToValue": Frame("state", value=value)},
        )
        found, rows = joins._side(asked, plan, 1)
        return found, str(rows)

    return make


def with_references(plan: Made, *used: Made) -> Made:
    top = Made("Project", plan)
    top.references = lambda: _items(used)  # type: ignore[method-assign]
    return top


def _items(of: Any) -> Any:
    from made_plans import Items

    return Items(of)


def test_rows_have_the_columns_of_their_side_and_nulls_for_those_that_nobody_uses(
    waiting: Any,
) -> None:
    a, b, c = (attribute(name, LONG) for name in "abc")
    plan = source(a, b, c)
    found, rows = waiting(plan, ["c", "a", "matched"], above=with_references(plan, a, c))
    assert found is plan
    assert rows == (
        f"state.select(value.`a`, None.cast({LONG!r}).alias(b), value.`c`, "
        "coalesce(value.matched, False).alias(matched))"
    )


def test_a_join_that_stands_below_a_projection_has_the_rows_from_there(waiting: Any) -> None:
    a, b = attribute("a", LONG), attribute("b", LONG)
    below = source(a)
    projected = Made("Project", below, output=[b], outputSet=[b])
    found, rows = waiting(projected, ["a", "matched"], above=with_references(projected, b))
    assert found is below
    assert rows.startswith("state.select(value.`a`, ")
    plan = Made("Filter", source(b), output=[b], outputSet=[b])
    plan.references = lambda: _items([b])  # type: ignore[method-assign]
    _, rows = waiting(plan, ["a", "matched"], above=with_references(plan))
    assert "None.cast(" in rows, "only what lies below refers to it"
    with pytest.raises(CheckpointError, match="right side lacks column b, which the query needs"):
        waiting(plan, ["a", "matched"], above=with_references(plan, b))


@pytest.mark.parametrize(
    ("columns", "output", "says"),
    [
        (["a", "a", "matched"], ["a"], "has a, which cannot be told apart from columns of join-0"),
        (["a", "matched"], ["a", "a"], "has a, which cannot be told apart"),
        (["matched", "a"], ["a"], "of the right side has no flag matched, which"),
        (["b", "a", "b", "a", "matched"], ["a"], "has a, b, which"),
    ],
)
def test_columns_that_cannot_be_told_apart_are_refused(
    waiting: Any, columns: list[str], output: list[str], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        waiting(source(*(attribute(name, LONG) for name in output)), columns)


@pytest.mark.parametrize(
    ("kind", "frames"),
    [
        (JoinKind.LEFT_OUTER, ["left, alone", "left, met", "right, alone", "right, met"]),
        (JoinKind.LEFT_SEMI, ["left, alone", "right, alone", "right, met"]),
    ],
)
def test_rows_of_one_side_come_at_a_time_with_whether_they_have_met_another(
    monkeypatch: pytest.MonkeyPatch, kind: JoinKind, frames: list[str]
) -> None:
    left, right = source(attribute("a", LONG)), source(attribute("b", LONG))
    spec = object.__new__(JoinSpec)
    object.__setattr__(spec, "kind", kind)
    made: list[str] = []

    def replace_leaf(spark: Any, over: Any, old: Any, new: Any) -> Any:
        parts = {**over.parts(), ("left" if old is left else "right"): new}
        return Made("Project", streams=False, parts=parts)

    def frame(spark: Any, over: Any) -> Any:
        (side,) = [name for name, rows in over.parts().items() if "(matched =" in str(rows)]
        (other,) = [name for name, rows in over.parts().items() if "(False)" in str(rows)]
        assert side != other
        met = "True" in str(over.parts()[side])

        def select(value: Said, flag: Said) -> Any:
            assert (str(value), str(flag)) == ("x.alias(v0)", f"{met}.alias(met)")
            made.append(f"{side}, {'met' if met else 'alone'}")
            return Said("records")

        return SimpleNamespace(select=select)

    monkeypatch.setattr(joins, "_side", lambda asked, plan, side: (plan, Said("rows")))
    monkeypatch.setattr(joins, "named_as", lambda frame, columns: str(frame))
    monkeypatch.setattr(joins, "replace_leaf", replace_leaf)
    monkeypatch.setattr(joins, "of_rows", frame)
    monkeypatch.setattr(joins, "routed_columns", lambda operator, groups: {"v0": Said("x")})
    monkeypatch.setattr(joins, "DataFrame", Said("DataFrame", unionByName=lambda a, b: f"{a}, {b}"))
    of_query = operator(
        "join-0", node=Made("Join", left=left, right=right), input_plan=Made("Join", parts={})
    )
    asked: Any = Asked(of_query)
    assert joins.of_rows_waiting(asked, spec) == ", ".join(["records"] * len(frames))
    assert made == frames
    monkeypatch.setattr(joins, "replace_leaf", lambda *_: Made("Project", streams=True, parts={}))
    with pytest.raises(
        CheckpointError, match="join-0; in detail cannot be put in place of its str"
    ):
        joins.of_rows_waiting(asked, spec)


# --- State of processors ------------------------------------------------------------------------------

COUNT = Variable("count", pa.schema([]), pa.schema([("n", pa.int64())]))
EVENTS = Variable("events", pa.schema([]), pa.schema([("what", pa.string())]), ordered=True)
BY_DAY = Variable("by_day", pa.schema([("day", pa.int64())]), pa.schema([("n", pa.int64())]))


def test_entries_are_put_where_their_variables_are() -> None:
    put: list[Any] = []
    registered: list[Any] = []
    state: Any = SimpleNamespace(
        put=lambda name, of, rows: put.append((name, of.tolist(), rows.to_pydict()))
    )
    timers: Any = SimpleNamespace(
        register=lambda of, at: registered.append((of.tolist(), at.tolist()))
    )
    fields = {
        "which": [1, 0, 1],
        "0:n": [None, 7, None],
        "1:what": ["a", None, "b"],
        "1:n": [1, None, 2],
    }
    placing = processors.Placing(
        pa.schema([]), pa.schema([]), pa.schema([]), {}, ("count", "events", "empty")
    )
    batch = Keyed(np.array([4, 5, 6]), pa.RecordBatch.from_pydict(fields))
    keys = pa.RecordBatch.from_pydict({})
    assert placing.handleBatch(keys, batch, state, timers) is None
    assert put == [
        ("count", [5], {"n": [7]}), ("events", [4, 6], {"what": ["a", "b"], "n": [1, 2]}),
    ]  # fmt: skip
    due = Keyed(np.array([3, 1]), pa.RecordBatch.from_pydict({"at_ms": [50, 60]}))
    assert placing.handleExpired(keys, due, state, timers) is None
    assert registered == [([3, 1], [50, 60])], "a timer stays where it is"


@pytest.mark.parametrize(
    ("variable", "options", "columns", "taken"),
    [
        (COUNT, {"stateVarName": "count"}, {"value": struct(n=LONG)}, "value.getField(n).alias(n)"),
        (
            EVENTS, {"stateVarName": "events"}, {"list_element": struct(what=TEXT)},
            "list_element.getField(what).alias(what)",
        ),
        (
            BY_DAY, {"stateVarName": "by_day"},
            {"user_map_key": struct(day=LONG), "user_map_value": struct(n=LONG)},
            "user_map_key.getField(day).alias(day), user_map_value.getField(n).alias(n)",
        ),
        (TIMERS, {"readRegisteredTimers": "true"}, {}, "expiration_timestamp_ms.alias(at_ms)"),
    ],
)  # fmt: skip
def test_a_variable_is_read_in_the_form_that_it_has(
    variable: Variable, options: dict[str, str], columns: dict[str, Any], taken: str
) -> None:
    node = Made("TransformWithStateInPySpark", leftAttributes=[attribute("k", LONG)])
    asked: Any = Asked(operator("it", node=node), Frame("state", key=struct(k=LONG), **columns))
    rows = processors._variable(asked, variable)
    flattened = {} if variable is TIMERS else {"flattenCollectionTypes": "true"}
    assert asked.loads == [{**options, **flattened}]
    assert str(rows) == f"state.select(key, {taken})"


def test_a_variable_of_other_columns_is_refused() -> None:
    node = Made("TransformWithStateInPySpark", leftAttributes=[attribute("k", LONG)])
    state = Frame("state", key=struct(k=LONG), value=struct(m=LONG))
    asked: Any = Asked(operator("it", node=node), state)
    with pytest.raises(CheckpointError, match="has m bigint where state count keeps n void"):
        processors._variable(asked, COUNT)
    other: Any = Asked(operator("it", node=node), Frame("state", key=struct(j=LONG)))
    with pytest.raises(CheckpointError, match="has j bigint where it; in detail keeps k bigint"):
        processors._variable(other, COUNT)


@pytest.mark.parametrize("timed", [True, False])
def test_one_state_per_key_has_a_value_and_a_timeout_which_is_over_when_it_has_passed(
    timed: bool,
) -> None:
    more = {"timeoutTimestamp": T.IntegerType()} if timed else {}
    value = struct(groupState=struct(n=LONG), **more)
    node = Made("FlatMapGroupsInPandasWithState", groupingAttributes=[attribute("k", LONG)])
    asked: Any = Asked(operator("it", node=node), Frame("state", key=struct(k=LONG), value=value))
    spec: Any = SimpleNamespace(variables=[COUNT, TIMERS], label="fold")
    tables = {one.name: str(rows) for one, rows in processors._group_state(asked, spec).items()}
    at_ms = "value.timeoutTimestamp.cast(bigint)" if timed else "-1.cast(bigint)"
    assert tables == {
        "count": "state.where(value.groupState.isNotNull())"
        ".select(key, value.groupState.getField(n).alias(n))",
        TIMERS.name: f"state.select(key, ({at_ms} + 1).alias(at_ms)).where((at_ms <> 0))",
    }
    wrong: Any = Asked(
        operator("it", node=node),
        Frame("state", key=struct(k=LONG), value=struct(groupState=struct(m=LONG), **more)),
    )
    with pytest.raises(CheckpointError, match="where state of fold keeps n void"):
        processors._group_state(wrong, spec)
    other: Any = Asked(operator("it", node=node), Frame("state", key=struct(j=LONG), value=value))
    with pytest.raises(CheckpointError, match="has j bigint where it; in detail keeps k bigint"):
        processors._group_state(other, spec)


def test_entries_of_all_variables_are_records_of_one_schema() -> None:
    asked: Any = Asked(operator("it"))
    rows: Any = Frame("entries", key=struct(k=LONG, j=TEXT), n=LONG)
    inputs = [pa.field(name, pa.int64()) for name in ("which", "0:n", "1:n", "1:what")]
    processors._numbered(asked, rows, 1, inputs)
    keys, values, start_us = asked.made
    assert keys == [("k0", "key.getField(k)"), ("k1", "key.getField(j)")]
    assert values == [("v0", "1.cast(bigint)"), ("v1", "None"), ("v2", "`n`"), ("v3", "None")]
    assert start_us is None


@pytest.mark.parametrize("kind", ["FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark"])
def test_variables_are_served_by_who_only_places_them(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    states = {"count": (COUNT.entry, COUNT.values)}
    processor: Any = SimpleNamespace(
        keys="the keys", inputs=pa.schema([]), initial=pa.schema([]), states=states
    )
    outputs = pa.schema([("out", pa.int64())])
    spec = ProcessorSpec((INTEGER,), outputs, processor, name="mine", time_mode=TimeMode.EVENT)
    variables = spec.variables
    monkeypatch.setattr(
        processors, "_group_state", lambda *_: dict.fromkeys(variables, "one state")
    )
    monkeypatch.setattr(processors, "_variable", lambda asked, variable: "own state")
    taken: list[Any] = []

    def numbered(asked: Any, rows: Any, number: int, inputs: Any) -> str:
        taken.append((rows, number, [field.name for field in inputs]))
        return f"frame {number}"

    monkeypatch.setattr(processors, "_numbered", numbered)
    monkeypatch.setattr(
        processors, "DataFrame", SimpleNamespace(unionByName=lambda a, b: f"{a}, {b}")
    )
    asked: Any = Asked(operator("it", node=Made(kind)))
    made, served = processors.of_variables(asked, spec)
    known: Any = made
    assert known == "frame 0, frame 1"
    state = "one state" if kind.startswith("Flat") else "own state"
    names = ["which", "0:at_ms", "1:n"]
    assert taken == [(state, 0, names), (state, 1, names)]
    placing: Any = served.processor
    assert (placing.keys, placing.states, placing.names) == ("the keys", states, ("", "count"))
    assert (served.outputs, served.filters, served.order) == (pa.schema([]), False, ())
    states["count"] = (COUNT.entry, COUNT.values, 5)  # type: ignore[assignment]
    with pytest.raises(UnsupportedQuery, match="state count of mine has a time to live, which"):
        processors.of_variables(asked, spec)


def test_records_are_routed_by_the_columns_of_state(monkeypatch: pytest.MonkeyPatch) -> None:
    from headgate.spark.read.plan import PlannedOperator

    of_query = PlannedOperator(
        "a", "it", 0, None, "a spec", None, [], [], "at", None, None, T.StructType(), [], None,  # type: ignore[arg-type]
        "arrival", None, (), None,  # type: ignore[arg-type]
    )  # fmt: skip
    over: list[Any] = []

    def routed_columns(operator: Any, groups: int) -> dict[str, Said]:
        over.append(
            (operator.keys, operator.values, operator.slice_start, operator.arrival, groups)
        )
        return {"group": Said("hash"), "k0": Said("s0")}

    monkeypatch.setattr(plain_state, "routed_columns", routed_columns)
    asked = plain_state.PlainState(SPARK, of_query, None, 16, False, 0)  # type: ignore[arg-type]
    keys: Any = [Routed("k0", INTEGER, Said("s0"))]  # type: ignore[arg-type]
    rows = asked.routed(Frame("rows"), keys, ["v"], "start")  # type: ignore[arg-type, list-item]
    assert str(rows) == "rows.select(hash.alias(group), s0.alias(k0))"
    assert over == [(keys, ["v"], "start", None, 16)]
