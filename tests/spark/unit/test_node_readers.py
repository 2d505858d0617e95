"""What the readers of joins, duplicates, windows and passing rows make of a node; on made-up plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, plain_seq, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.core.errors import UnsupportedQuery
from headgate.operators.join.spec import Comparison, JoinKind
from headgate.operators.spec import NEVER_US, NO_TIME_US, Kind, Leaf, OutputMode, TimeKey
from headgate.spark.read import (
    conditions,
    deduplicate,
    expressions,
    join,
    passing,
    reading,
    windows,
)
from headgate.spark.read.reading import Reading

SPARK: Any = "the session"
LONG, TIME, TEXT = T.LongType(), T.TimestampType(), T.StringType()
INTEGER, BYTES = Leaf(Kind.INTEGER), Leaf(Kind.BYTES)


def leaves(kind: Any, value: Any, *_: Any) -> list[Any]:
    """Return one leaf of a value, of a text two."""
    return (
        [(BYTES, value), (INTEGER, Said(f"length({value})"))]
        if kind is TEXT
        else [(INTEGER, value)]
    )


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put texts in place of columns, frames and plans, and types in place of Spark's."""
    modules = (join, deduplicate, passing, windows, conditions, expressions, reading)
    for module in modules:
        for name, stub in {
            "F": F,
            "column": lambda spark, one: Said(one.sql()),
            "data_type": lambda kind: kind,
            "of_rows": lambda spark, plan: Said(f"rows of {plan}"),
            "analysed": str,
            "template": lambda spark, schema: f"a hole for {','.join(schema.names)}",
            "placeholder": lambda spark, schema, output: f"a hole for {','.join(schema.names)}",
            "named_as": lambda frame, columns: (
                f"{frame} as {','.join(one.sql() for one in columns)}"
            ),
            "filtered": lambda spark, condition, plan: f"{plan} where {condition.sql()}",
            "known_not_null": lambda value: Said(f"{value}!"),
            "seq": plain_seq,
        }.items():
            monkeypatch.setattr(module, name, stub, raising=False)
    for name in ("any_leaves", "key_leaves", "leaves"):
        monkeypatch.setattr(join.types, name, leaves)
    rebuild = lambda kind, parts: Said(f"rebuilt({', '.join(map(str, parts))})")  # noqa: E731
    monkeypatch.setattr(join.types, "rebuild", rebuild)


# --- Joins --------------------------------------------------------------------------------------------


class Joined:
    """A join of two streams, with or without watermarks, and what is read of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = [
            attribute("k", LONG),
            attribute("v", LONG),
            attribute("at", TIME, watermark=True),
        ]
        self.right = [attribute("j", LONG), attribute("w", TEXT, nullable=False)]
        self.kind, self.parts = "INNER", [self.call("EqualTo", self.left[0], self.right[0])]
        self.ends_ms: int | None = None
        self.asked: list[Any] = []

        def watermark_ms(spark: Any, own: Any, other: Any, between: Any, at_ms: int) -> int | None:
            self.asked.append((own, other, between.sql()))
            return None if self.ends_ms is None else at_ms + self.ends_ms

        monkeypatch.setattr(join, "state_watermark_ms", watermark_ms)
        monkeypatch.setattr(conditions, "both", lambda spark, a, b: self.call("And", a, b))

    @staticmethod
    def call(kind: str, *children: Made) -> Made:
        return Made(kind, *children, dataType=LONG)

    def node(self) -> Made:
        whole = self.parts[0] if self.parts else None
        for part in self.parts[1:]:
            whole = self.call("And", *(one for one in (whole, part) if one is not None))
        condition = SimpleNamespace(isDefined=lambda: whole is not None, get=lambda: whole)
        output = [*self.left, *self.right]
        return Made(
            "Join", left=source(*self.left), right=source(*self.right), condition=condition,
            joinType=SimpleNamespace(sql=lambda: self.kind), output=output,
        )  # fmt: skip

    def read(self, monkeypatch: pytest.MonkeyPatch, used: Any) -> Any:
        known = self.reader(monkeypatch, used).reading
        return join.READER.read(known, self.node(), None)

    def reader(self, monkeypatch: pytest.MonkeyPatch, used: Any = None) -> Any:
        ids = {one.exprId().toString() for one in (used or [*self.left, *self.right])}
        monkeypatch.setattr(join, "attributes_used", lambda plan, node: set(ids))
        facts: dict[str, Any] = {"arrival": None, "ordered": (), "number": 0}
        known = Reading(SPARK, "the plan", OutputMode.APPEND, asks_kafka=False, **facts)
        return join._JoinReader(known, self.node())


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Joined:
    return Joined(monkeypatch)


def test_both_sides_of_a_join_become_one_stream_of_routed_rows(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "of_rows", lambda spark, plan: Frame(f"side {len(plan.output())}"))
    joined.parts.append(joined.call("IsNotNull", joined.right[1]))
    reader = joined.reader(monkeypatch)
    keys, key_leaves = reader._keys()
    assert ([[str(one) for one in side] for side in keys], key_leaves) == (
        [["k"], ["j"]],
        [INTEGER],
    )
    left = str(reader._side_frame(0, keys, True))
    assert left.startswith(
        "side 3.where(coalesce((True and k.isNotNull()), False)).select(k.alias(k0), "
    )
    assert "0.cast(bigint).alias(v0), " in left
    assert f"{int(NEVER_US)}.alias(v2), k.alias(v3), v.alias(v4), at.alias(v5), " in left
    assert "None.cast(BinaryType()).alias(v7), None.cast(LongType()).alias(v8)" in left
    assert left.endswith(f"coalesce(unix_micros(at), {NO_TIME_US}).alias(t))")
    right = str(reader._side_frame(1, keys, True))
    assert "coalesce(((True and IsNotNull(w)) and j.isNotNull()), False)" in right
    assert "1.cast(bigint).alias(v0), " in right
    assert (
        "None.cast(LongType()).alias(v5), j.alias(v6), w.alias(v7), length(w).alias(v8), " in right
    )
    assert right.endswith(f"{NO_TIME_US}.alias(t))")
    assert ".alias(t)" not in str(reader._side_frame(0, keys, False))


def test_rows_that_can_match_none_are_kept_only_where_they_come_out_alone(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, kept in (
        ("LEFT OUTER", [True, False]),
        ("FULL OUTER", [True, True]),
        ("LEFT SEMI", [False] * 2),
    ):
        joined.kind = kind
        reader = joined.reader(monkeypatch)
        keys, _ = reader._keys()
        frames = [str(reader._side_frame(at, keys, False)) for at in (0, 1)]
        assert [".where(" not in frame for frame in frames] == kept, kind


def test_what_is_constant_holds_for_both_sides_and_null_keys_may_match(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    k, v, _ = joined.left
    j, _ = joined.right
    joined.parts = [
        joined.call("EqualNullSafe", k, j), Made("Literal", said="flag"), joined.call("IsNull", v),
        joined.call("LessThan", v, j),
    ]  # fmt: skip
    reader = joined.reader(monkeypatch)
    assert [str(reader._may_match(at)) for at in (0, 1)] == [
        "coalesce((((True and flag) and IsNull(v)) and v.isNotNull()), False)",
        "coalesce(((True and flag) and j.isNotNull()), False)",
    ]


def test_a_join_is_described_with_its_leaves_keys_and_times(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    k, v, _ = joined.left
    j, w = joined.right
    rest = joined.call("Like", k, w)
    joined.parts += [
        joined.call("LessThan", v, j),
        joined.call("LessThan", joined.call("Abs", v), j),
        rest,
    ]
    frame = SimpleNamespace(
        columns=["v0"], unionByName=lambda other: SimpleNamespace(columns=["v0"])
    )
    monkeypatch.setattr(join._JoinReader, "_side_frame", lambda *given: frame)
    joined.ends_ms = -5000
    operator = joined.read(monkeypatch, [k, v])
    spec: Any = operator.spec
    assert (spec.keys, spec.kind, spec.mode) == ((INTEGER,), JoinKind.INNER, OutputMode.APPEND)
    assert spec.sides == ((INTEGER,) * 3, (BYTES, INTEGER, INTEGER, INTEGER))
    assert spec.put_out == (2, 2)
    assert spec.comparisons == (Comparison(1, 2, "<"), Comparison(2, 3, "<")) or spec.comparisons[
        0
    ] == (Comparison(1, 2, "<"))
    assert spec.time == TimeKey(0, 1)
    assert spec.holds_us is None, "the right side has no time, and is kept for ever"
    assert operator.what == (
        "Join inner on k = j; v < j; Abs(v) < j; left kept for 5 s; right kept for ever; "
        "Catalyst checks Like(k, w)"
    )
    assert operator.key_names == ["k = j"]
    assert operator.output_plan == (
        "rows of a hole for v0,v1,v2,v3.select(rebuilt(v0).alias(o0), rebuilt(v1).alias(o1), "
        "rebuilt(v2, v3)!.alias(o2)) as k,v,w where Like(k, w)"
    )
    left, right = operator.join
    assert (left.attributes, left.spans) == ((k, v), ((0, 1), (1, 2)))
    assert (right.attributes, right.spans, right.keys) == ((w,), ((0, 2),), (j,))
    assert [at for at, _ in left.compared] == [2]
    (own, other, between), *_ = joined.asked
    assert (own, other) == (joined.left, joined.right)
    assert between.startswith("And(And(And(EqualTo(k, j), LessThan(v, j))")


def test_records_are_kept_until_the_watermark_has_passed_what_they_may_meet(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = joined.left[2]
    joined.right.append(attribute("to", TIME, watermark=True))
    time_us = f"coalesce(unix_micros(at), {NO_TIME_US})"
    for ends_ms, lag_us in ((-7000, 7_000_000), (2000, -2_000_000), (None, None)):
        joined.ends_ms = ends_ms
        reader = joined.reader(monkeypatch)
        reader._expiries()
        left = reader.sides[0]
        assert left.lag_us == lag_us
        assert str(left.expiry_us) == (f"({time_us} + {lag_us})" if lag_us is not None else "None")
        assert reader.sides[1].lag_us == lag_us
    joined.parts = [joined.call("EqualTo", at, joined.right[2])]
    reader = joined.reader(monkeypatch)
    reader._expiries()
    assert [side.lag_us for side in reader.sides] == [0, 0]
    assert str(reader.sides[0].expiry_us) == time_us
    frame = SimpleNamespace(columns=["arrival"], unionByName=lambda other: frame)
    monkeypatch.setattr(join._JoinReader, "_side_frame", lambda *given: frame)
    joined.parts, joined.ends_ms = (
        [joined.call("EqualTo", *(joined.left[0], joined.right[0]))],
        -3000,
    )
    operator = joined.reader(monkeypatch).read()
    assert operator.spec.holds_us == -3_000_000
    assert str(operator.arrival) == "arrival"


@pytest.mark.parametrize(
    ("kind", "parts", "says"),
    [
        ("LEFT ANTI", [], "cannot run a left anti join of two streams elastically"),
        (
            "LEFT OUTER",
            ["EqualTo", "Like"],
            r"cannot run a left outer join on Like\(k, j\): compare",
        ),
        ("FULL OUTER", [], "cannot run a full outer join without an equality; add one"),
    ],
)
def test_joins_that_slots_cannot_run_are_refused(
    joined: Joined, monkeypatch: pytest.MonkeyPatch, kind: str, parts: list[str], says: str
) -> None:
    joined.kind = kind
    joined.parts = [joined.call(part, joined.left[0], joined.right[0]) for part in parts]
    with pytest.raises(UnsupportedQuery, match=says):
        joined.reader(monkeypatch)


def test_a_join_of_which_nothing_is_kept_is_refused_and_a_semi_join_keeps_its_left_side(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = [attribute("other", LONG)]
    with pytest.raises(
        UnsupportedQuery, match="cannot join two streams and keep no column of them"
    ):
        joined.reader(monkeypatch, nobody).read()
    joined.kind = "LEFT SEMI"
    reader = joined.reader(monkeypatch)
    assert [side.attributes for side in reader.sides] == [joined.left, []]
    joined.kind, joined.parts = "CROSS", []
    reader = joined.reader(monkeypatch)
    assert reader._what().startswith("Join inner without an equality: every slot sees every record")
    assert join._joins_streams(Made("Join", source(), source()))
    assert not join._joins_streams(Made("Join", source(), source(streams=False)))


# --- Duplicates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys", "keep_us", "remembered"),
    [
        ("Deduplicate", "kt", 0, "until the watermark is 0 s past"),
        ("Deduplicate", "k", None, "for ever"),
        ("DeduplicateWithinWatermark", "k", 10_000_000, "until the watermark is 10 s past"),
    ],
)
def test_a_key_is_remembered_as_long_as_spark_remembers_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, keys: str, keep_us: int | None, remembered: str
) -> None:
    k, at = attribute("k", TEXT), attribute("at", TIME, watermark=True, nullable=False)
    monkeypatch.setattr(
        deduplicate, "to_arrow_schema", lambda schema, timezone: (schema.names, timezone)
    )
    known = Reading(SPARK, None, OutputMode.UPDATE, None, (), 2, asks_kafka=False)
    columns = [{"k": k, "t": at}[one] for one in keys]
    operator = deduplicate.READER.read(known, Made(kind, source(k, at), keys=columns), None)
    spec: Any = operator.spec
    assert (operator.id, spec.keep_us, spec.time, spec.mode) == (
        "deduplicate-2", keep_us, TimeKey(0, 1), OutputMode.UPDATE,
    )  # fmt: skip
    names = ", ".join(one.sql() for one in columns)
    assert operator.what == f"{kind} keys {names}; remembered {remembered}"
    routed = [(one.name, str(one.value)) for one in operator.keys]
    assert routed == [("k0", "k"), ("k1", "length(k)"), ("k2", "at")][: len(keys) + 1]
    assert [(one.name, str(one.value)) for one in operator.values] == [("v0", "k"), ("v1", "at")]
    assert str(operator.slice_start) == f"coalesce(unix_micros(at), {NO_TIME_US})"
    assert spec.outputs == (["v0", "v1"], "UTC")
    assert operator.output_plan == (
        "rows of a hole for v0,v1.select(v0.alias(o0), v1!.alias(o1)) as k,at"
    )
    timeless = deduplicate.READER.read(known, Made(kind, source(k), keys=[k]), None)
    spec = timeless.spec
    assert (spec.time, spec.keep_us, timeless.slice_start) == (None, None, None)


# --- Windows ------------------------------------------------------------------------------------------

SLIDING = (
    "named_struct(start, precisetimestampconversion(((x - ((x - -5000000) % 10000000)) - 0), LongType, "
    "TimestampType), end, precisetimestampconversion((((x - ((x - -5000000) % 10000000)) - 0) + "
    "60000000), LongType, TimestampType))"
)


def test_numbers_of_a_window_are_read_off_its_expression() -> None:
    assert windows.window_numbers(Made("CreateNamedStruct", said=SLIDING)) == (
        60_000_000, 10_000_000, -5_000_000,
    )  # fmt: skip
    with pytest.raises(UnsupportedQuery, match=r"^cannot read the window odd; use F\.window"):
        windows.window_numbers(Made("CreateNamedStruct", said="odd"))


def test_a_window_is_found_whatever_name_it_was_given_on_the_way() -> None:
    wanted = attribute("w")
    made = Made("CreateNamedStruct", said="precisetimestampconversion")
    alias = Made("Alias", made, said="precisetimestampconversion AS w")
    alias.exprId = wanted.exprId  # type: ignore[method-assign]
    bottom = Made("Project", source(), projectList=[Made("Alias", Made("X")), alias])
    assert windows.find_window(bottom, wanted) == (bottom, made)
    assert windows.find_window(Made("Filter", bottom), wanted) == (bottom, made)
    other = attribute("renamed")
    again = Made("Alias", wanted, said="w AS renamed")
    again.exprId = other.exprId  # type: ignore[method-assign]
    assert windows.find_window(Made("Project", bottom, projectList=[again]), other) == (
        bottom,
        made,
    )
    expand = Made("Expand", source(), output=[other, wanted], projections=[_list(Made("X"), alias)])
    assert windows.find_window(expand, wanted) == (expand, alias)
    assert windows.find_window(expand, other) is None
    assert windows.find_window(Made("Join", bottom, bottom), wanted) is None


def _list(*of: Made) -> Any:
    from made_plans import Items

    return Items(of)


@pytest.mark.parametrize(
    ("interval", "gap_us"),
    [((0, 0, 3_000_000), 3_000_000), ((0, 1, 5), 86_400_000_005), ((1, 0, 0), None)],
)
def test_a_session_has_one_gap_or_each_record_its_own(
    monkeypatch: pytest.MonkeyPatch, interval: tuple[int, int, int], gap_us: int | None
) -> None:
    monkeypatch.setattr(windows, "interval_parts", lambda value: value)

    class Value(tuple[int, ...]):
        def toString(self) -> str:
            return "0 seconds"

    def session(parts: tuple[int, int, int], *, foldable: bool = True) -> Made:
        gap = Made("Literal", foldable=foldable, eval=Value(parts))
        end = Made("Conversion", Made("TimestampAddInterval", Made("Time"), gap))
        user = Made("TimeAdd", Made("Time"), Made("Literal", foldable=True, eval=Value((0, 0, 9))))
        return Made("CreateNamedStruct", user, end)

    made = [session(interval)]
    monkeypatch.setattr(
        windows, "find_window", lambda plan, attribute: (plan, made[0]) if plan else None
    )
    assert windows.session_gap_us(SPARK, "plan", None) == gap_us  # type: ignore[arg-type]
    made[0] = session(interval, foldable=False)
    assert windows.session_gap_us(SPARK, "plan", None) is None  # type: ignore[arg-type]
    assert windows.session_gap_us(SPARK, None, None) is None
    made[0] = session((0, 0, 0))
    with pytest.raises(UnsupportedQuery, match="with a gap of 0 seconds; make it longer than 0"):
        windows.session_gap_us(SPARK, "plan", None)  # type: ignore[arg-type]


def test_the_time_of_a_window_is_its_innermost_timestamp() -> None:
    inner = attribute("at")
    first = Made("PreciseTimestampConversion", inner)
    outer = Made("PreciseTimestampConversion", Made("Subtract", Made("Literal"), first))
    assert windows.time_column_of(Made("CreateNamedStruct", Made("Literal"), outer)) is inner
    with pytest.raises(UnsupportedQuery, match="cannot read the window"):
        windows.time_column_of(Made("CreateNamedStruct", Made("Literal"), inner))


# --- Rows that pass -----------------------------------------------------------------------------------


def test_rows_that_pass_are_spread_by_what_can_be_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    of_map = T.MapType(TEXT, LONG)
    deep = T.StructType([T.StructField("n", LONG), T.StructField("m", T.ArrayType(of_map))])
    for kind, hashed in ((TEXT, True), (T.ArrayType(TEXT), True), (of_map, False), (deep, False)):
        assert passing._hashes(kind) is hashed
    assert not passing._hashes(T.VariantType())


@pytest.mark.parametrize("hashed", [True, False])
def test_a_stateless_query_gets_an_operator_that_its_records_pass(
    monkeypatch: pytest.MonkeyPatch, hashed: bool
) -> None:
    asked: list[Any] = []

    def operator(known: Any, plan: Any, place: Any, made: Any, kind: str, what: str) -> Any:
        asked.append((plan, str(place), made, kind, what, known.mode))
        return SimpleNamespace(output_plan="what passes")

    monkeypatch.setattr(passing, "_operator", operator)
    monkeypatch.setattr(passing, "_hashes", lambda kind: hashed and kind is LONG)
    rows = source(attribute("a", LONG), attribute("b", TEXT))
    query: Any = passing.PlannedQuery([], rows, None, OutputMode.UPDATE)  # type: ignore[arg-type]
    found = passing.passed(SPARK, query)
    assert (found.plan, len(found.operators)) == ("what passes", 1)
    place = f"pmod(xxhash64(a), {2**20})" if hashed else "0.cast(bigint)"
    what = "Pass: what keeps no state passes by"
    assert asked == [(rows, place, passing.Passing, "pass", what, OutputMode.UPDATE)]
    assert passing.passed(SPARK, found) is found
    limit = Made("GlobalLimit", rows, limitExpr=SimpleNamespace(eval=lambda _: 7))
    known = Reading(SPARK, None, OutputMode.APPEND, None, (), 1)
    passing.LIMIT_READER.read(known, limit, None)
    plan, place, made, kind, what, _ = asked[1]
    assert (plan, place, kind, what) == (rows, "0.cast(bigint)", "limit", "Limit 7")
    assert made.keywords == {"most": 7}
