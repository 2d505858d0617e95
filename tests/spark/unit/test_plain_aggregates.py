"""Entries of aggregates and joins that move between plain Spark and headgate; columns are only said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from said_columns import F, Frame, Said

from headgate.core.errors import CheckpointError, UnsupportedQuery
from headgate.operators.spec import NO_TIME_US, Kind, Leaf, TimeKey
from headgate.spark.plain import aggregates, entries, plain_state, waiting
from headgate.spark.read.plan import Routed

LONG, TIME, TEXT = T.LongType(), T.TimestampType(), T.StringType()
INTEGER = Leaf(Kind.INTEGER)
SECOND = 1_000_000


def struct(**kinds: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])


WINDOW = struct(start=TIME, end=TIME)


class Form:
    """The form of a function's buffer: as it is."""

    def taken(self, kinds: Any, columns: Any) -> Any:
        return [Said(f"taken({column})") for column in columns]

    def given(self, kinds: Any, columns: Any) -> Any:
        return [Said(f"given({column})") for column in columns]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (aggregates, entries, plain_state, waiting):
        monkeypatch.setattr(module, "F", F)
        monkeypatch.setattr(module, "data_type", lambda kind: kind, raising=False)
        monkeypatch.setattr(module, "Window", Said("Window"), raising=False)
    for module in (aggregates, entries):
        monkeypatch.setattr(module, "form_of", lambda part, kinds, *, ordered: Form())
        monkeypatch.setattr(
            module, "stored_types", lambda part, there: [kind for _, kind in there[:1]]
        )
    monkeypatch.setattr(
        aggregates, "stored", lambda parts, own: [(name, kind) for name, kind in own[: len(parts)]]
    )
    monkeypatch.setattr(aggregates.types, "key_leaves", lambda kind, value: [(INTEGER, value)])
    monkeypatch.setattr(entries, "time_value", lambda time, kind: Said("the time"))
    rebuilt = lambda kind, parts: Said(f"rebuilt({', '.join(map(str, parts))})")  # noqa: E731
    monkeypatch.setattr(entries.types, "rebuild", rebuilt)


def operator(
    time: TimeKey | None, *grouping: Made, time_index: int = -1, advance_us: int = 0
) -> Any:
    parts = [SimpleNamespace(values=("v1",))]
    made = SimpleNamespace(
        grouping=grouping, time_index=time_index, parts=parts, advance_us=advance_us,
        spans=[(n, n + 1) for n in range(len(grouping))],
    )  # fmt: skip
    keys = len(grouping) - (time_index >= 0)
    values = [Routed(f"v{n}", INTEGER, None) for n in range(2)]  # type: ignore[arg-type]
    return SimpleNamespace(
        aggregate=made, spec=SimpleNamespace(time=time), what="Aggregate", values=values,
        keys=[Routed(f"k{n}", INTEGER, None) for n in range(keys)],  # type: ignore[arg-type]
        raw_schema=struct(k0=LONG, t=LONG, v1=LONG),
    )  # fmt: skip


class Asked:
    """State of an aggregate, and what is made of it."""

    ordered, watermark_us = False, 50 * SECOND

    def __init__(self, operator: Any, **columns: Any) -> None:
        self.operator, self._columns = operator, columns

    def load(self) -> Any:
        return Frame("state", **self._columns)

    def routed(self, rows: Any, keys: Any, values: Any, start_us: Any) -> Any:
        said = [[(one.name, str(one.value)) for one in some] for some in (keys, values)]
        return *said, None if start_us is None else str(start_us)


K, V = attribute("k", LONG), struct(sum=LONG)


def test_an_aggregate_without_time_is_its_keys_and_buffers() -> None:
    found: Any = aggregates.of_aggregate(Asked(operator(None, K), key=struct(k=LONG), value=V))  # type: ignore[arg-type]
    assert found == ([("k0", "s0")], [("v1", "taken(s1)")], None)
    with pytest.raises(CheckpointError, match="has j bigint where Aggregate keeps k bigint"):
        aggregates.of_aggregate(Asked(operator(None, K), key=struct(j=LONG), value=V))  # type: ignore[arg-type]


def test_an_aggregate_of_a_timestamp_has_it_as_its_time() -> None:
    at = attribute("at", TIME)
    asked: Any = Asked(
        operator(TimeKey(0, 1), at, K, time_index=0), key=struct(at=TIME, k=LONG), value=V
    )
    found: Any = aggregates.of_aggregate(asked)
    assert found == (
        [("k0", "s1")], [("v1", "taken(s2)")], f"coalesce(unix_micros(s0), {NO_TIME_US})",
    )  # fmt: skip


def test_windows_are_looked_at_with_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(
        aggregates, "_check_windows", lambda rows, *given: checked.append((str(rows), *given))
    )
    time = TimeKey(10 * SECOND, 10 * SECOND)
    of_query = operator(time, K, attribute("w", WINDOW), time_index=1, advance_us=7)
    asked: Any = Asked(of_query, key=struct(k=LONG, w=WINDOW), value=V)
    found: Any = aggregates.of_aggregate(asked)
    assert found == ([("k0", "s0")], [("v1", "taken(s2)")], "unix_micros(s1.getField(start))")
    ((rows, keys, of, advance_us, watermark_us),) = checked
    assert rows.endswith(
        ".select(unix_micros(s1.getField(start)).alias(start), "
        "unix_micros(s1.getField(end)).alias(end), s0)"
    )
    assert (keys, of, advance_us, watermark_us) == (["s0"], time, 7, 50 * SECOND)
    sliced = operator(TimeKey(10 * SECOND, 2 * SECOND), K)
    with pytest.raises(UnsupportedQuery, match="state of overlapping windows cannot be taken over"):
        aggregates.of_aggregate(Asked(sliced, key=struct(k=LONG), value=V))  # type: ignore[arg-type]


def test_a_session_is_a_value_behind_its_keys() -> None:
    time = TimeKey(SECOND, SECOND, session=True)
    of_query = operator(time, K, attribute("w", WINDOW), time_index=1)
    key = struct(k=LONG, sessionStartTime=TIME)
    value = struct(k=LONG, w=WINDOW, sum=LONG)
    found: Any = aggregates.of_aggregate(Asked(of_query, key=key, value=value))  # type: ignore[arg-type]
    assert found == (
        [("k0", "s0")], [("v0", "unix_micros(s1.getField(end))"), ("v1", "taken(s2)")],
        "unix_micros(s1.getField(start))",
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="sessionStartTime"):
        aggregates.of_aggregate(Asked(of_query, key=struct(k=LONG), value=value))  # type: ignore[arg-type]


class Odd(Said):
    """Windows of which the first that does not fit is known."""

    def __init__(self, first: Any) -> None:
        super().__init__("rows")
        self.did: list[str] = []

        def where(condition: Any) -> Any:
            self.did.append(str(condition))
            return self

        self.known |= {
            "where": where, "first": lambda: first, "select": lambda *_: self,
            "withColumn": lambda *_: self,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("size_us", "advance_us", "parts"),
    [
        (10, 0, ["((end - start) <> 10)"]),
        (10, 10, ["((end - start) <> 10)", "(pmod((start - 3), 10) <> 0)"]),
        (10, 5, ["((end - start) <> 10)", "(pmod((start - 3), 5) <> 0)", "((end - 5) > 50)"]),
        (10, 6, ["((end - start) <> 10)", "(pmod((start - 3), 6) <> 0)"]),
    ],
)
def test_windows_of_the_state_are_those_of_the_query(
    size_us: int, advance_us: int, parts: list[str]
) -> None:
    time = TimeKey(size_us, size_us, 3)
    rows: Any = Odd(None)
    aggregates._check_windows(rows, ["k"], time, advance_us, 50)
    (condition,) = rows.did
    for part in parts:
        assert part in condition
    assert ("until.eqNullSafe" in condition) is (len(parts) == 3)
    assert (condition.count("<>"), condition.count("eqNullSafe")) == (
        min(len(parts), 2), 2 * (len(parts) == 3),
    )  # fmt: skip


def test_other_windows_are_named() -> None:
    time, at = TimeKey(10 * SECOND, 10 * SECOND, 12 * SECOND), "2026-01-01 00:00:01"
    rows: Any = Odd({"us": 20 * SECOND, "at": at})
    with pytest.raises(
        CheckpointError, match=r"has windows of 20 s where the query has those of 10 s"
    ):
        aggregates._check_windows(rows, [], time, 5 * SECOND, 0)
    rows = Odd({"us": 10 * SECOND, "at": at})
    with pytest.raises(CheckpointError, match=rf"from {at} on, .* every 5 s from 2 s on; give"):
        aggregates._check_windows(rows, [], time, 5 * SECOND, 0)


# --- The other way --------------------------------------------------------------------------------------


class Ours:
    """State of an operator of headgate's, and the form of plain Spark's."""

    ordered = False

    def __init__(self, operator: Any, value: T.StructType, **form: Any) -> None:
        self.operator, self._value = operator, value
        self.parts: list[Any] = []

    def form(self, **options: str) -> Any:
        return Frame("form", value=self._value)

    def part(self, values: Any, part: int = 0) -> Any:
        self.parts.append(([one.name for one in values], part))
        return Frame("entries")


def test_an_aggregates_entries_are_its_keys_and_buffers() -> None:
    at = attribute("at", TIME)
    ours: Any = Ours(operator(TimeKey(0, 1), at, K, time_index=0), V)
    made = entries.of_aggregate(ours)
    assert str(made.rows) == (
        "entries.select(the time.cast(TimestampType()).alias(s0), rebuilt(k1).alias(s1), "
        "given(v1).cast(LongType()).alias(s2))"
    )
    assert (made.keys, made.hashed) == (2, 2)
    assert ours.parts == [(["t", "v1"], 0)]


def test_a_sessions_entry_is_spread_by_its_other_keys() -> None:
    of_query = operator(TimeKey(1, 1, session=True), K, attribute("w", WINDOW), time_index=1)
    ours: Any = Ours(of_query, struct(k=LONG, w=WINDOW, sum=LONG))
    made = entries.of_aggregate(ours)
    columns = made.rows.columns
    assert (len(columns), made.keys, made.hashed) == (5, 2, 1)
    text = str(made.rows)
    assert text.startswith("entries.select(rebuilt(k0).alias(s0), ")
    assert ".getField(start).alias(s1), rebuilt(k0).alias(s2), " in text
    assert text.endswith("given(v1).cast(LongType()).alias(s4))")


@pytest.mark.parametrize(
    ("kind", "value"), [("DeduplicateWithinWatermark", "t"), ("Deduplicate", "None")]
)
def test_a_key_that_was_seen_has_its_end_where_spark_keeps_it(kind: str, value: str) -> None:
    of_query = SimpleNamespace(node=Made(kind, keys=[K, attribute("j", TEXT)]))
    ours: Any = Ours(of_query, V)
    made = entries.of_keys(ours)
    assert str(made.rows) == (
        f"entries.select(rebuilt(k0).alias(s0), rebuilt(k1).alias(s1), {value}.alias(s2))"
    )
    assert (made.keys, made.hashed, ours.parts) == (2, 2, [(["t"], 0)])


def test_rows_that_wait_are_numbered_and_counted_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_kept", lambda plan, part, keys, name: Said(f"kept {name}"))
    part = SimpleNamespace(keys=[K])
    node = Made("Join", left=source(K), right=source(K))
    of_query = SimpleNamespace(node=node, join=(part, part), keys=[SimpleNamespace(name="k0")])
    ours: Any = Ours(of_query, struct(k=LONG, v=LONG, matched=T.BooleanType()))
    spec: Any = SimpleNamespace(sides=((INTEGER,), (INTEGER, INTEGER)))
    made = waiting.of_rows(ours, spec)
    assert list(made) == [
        "left-keyWithIndexToValue", "left-keyToNumValues", "right-keyWithIndexToValue",
        "right-keyToNumValues",
    ]  # fmt: skip
    assert ours.parts == [(["number", "met", "v0"], 0), (["number", "met", "v0", "v1"], 1)]
    rows = made["left-keyWithIndexToValue"]
    number = "(row_number().over(Window.partitionBy(k0).orderBy(number)) - 1).cast(bigint)"
    assert str(rows.rows) == (
        f"entries.select(rebuilt(k0).alias(s0), {number}.alias(s1), kept k.alias(s2), kept v.alias(s3), "
        "met.alias(s4))"
    )
    assert (rows.keys, rows.hashed) == (2, 1)
    counts = made["left-keyToNumValues"]
    assert str(counts.rows) == (
        "entries.groupBy(k0).agg(count(*).alias(count)).select(rebuilt(k0).alias(s0), count.alias(s1))"
    )
    assert (counts.keys, counts.hashed) == (1, 1)
