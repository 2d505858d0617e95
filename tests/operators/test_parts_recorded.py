"""Parts of operators on drawn input: beside a plain model, or as recorded."""

from __future__ import annotations

import dataclasses
import math
import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators import codec, counts
from headgate.operators.build import operator_of
from headgate.operators.kernels import distinct
from headgate.operators.kernels.merge_each import merge_each
from headgate.operators.kernels.sessions import number_sessions
from headgate.operators.layout import row_layout
from headgate.operators.program import Leaves, _value
from headgate.operators.spec import (
    Aggregate,
    AggregateSpec,
    Keep,
    Kept,
    Kind,
    Leaf,
    Op,
    OutputMode,
    Program,
    TimeKey,
)
from headgate.operators.step import ARRIVED_FIRST, ARRIVED_LAST, GROUP, RECORDS
from headgate.operators.time_limit import TimeLimit, TookTooLong
from headgate.tables import together
from headgate.tables.heap import HeapMemory
from headgate.tables.kernels import hash_words
from headgate.tables.table import BufferTable, initial_bytes
from headgate_lab.testing.addresses import serve_together

Recorded = Callable[[str, Iterable[str]], None]
INTEGER, FLOAT, TEXT, MONEY = (
    Leaf(Kind.INTEGER), Leaf(Kind.FLOAT), Leaf(Kind.BYTES), Leaf(Kind.DECIMAL, 2),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _without_a_compiler_too(monkeypatch: pytest.MonkeyPatch) -> None:
    serve_together(monkeypatch)


# --- Counts of records ---


def binned(found: counts.Binned) -> dict[tuple[int, int], tuple[float, ...]]:
    parts = zip(found.tick, found.group, found.records, found.latency_ms, found.within, strict=True)
    told = {(int(t), int(g)): (float(n), round(float(ms), 6), float(w)) for t, g, n, ms, w in parts}
    assert len(told) == len(found.tick), "each pair once"
    return told


@pytest.mark.parametrize("dense", [True, False])
def test_records_are_counted_as_one_after_the_other(
    dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of no, one and several records, whose times may not be known; by a bound, or by none."""
    if not dense:
        monkeypatch.setattr(counts, "_DENSE_CELLS", 1)
    dice, numbers = random.Random(101), np.random.default_rng(101)
    for _ in range(60):
        rows = dice.choice([0, 1, 2, 30])
        group = numbers.integers(0, 5, rows)
        records = numbers.choice(dice.choice([[1], [1, 2, 5], [0, 1], [0]]), rows).astype(np.int64)
        first = numbers.choice([0.0, 50.0, 99.5, 100.0, 100.5, 730.0], rows)
        known = dice.random() < 0.8
        came = counts.arrived(group, records, first if known else None, first + 5.0)
        delta_ms, bound_ms, now_ms = (
            dice.choice([1.0, 50.0, 100.0]),
            dice.choice([0.0, 40.0]),
            600.0,
        )
        want: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        entries = []
        for row in range(rows):
            parts = [(first[row] if known else math.nan, float(records[row]))]
            if known and records.max(initial=0) > 1:
                late = (records[row] + 1) // 2
                parts = [(first[row], float(records[row] - late)), (first[row] + 5.0, float(late))]
            entries += [(row, at, count) for at, count in parts]
        told = zip(came.row, came.at_ms, came.records, came.group, strict=True)
        assert sorted((int(r), float(n), int(g)) for r, _, n, g in told) == sorted(
            (r, n, int(group[r])) for r, _, n in entries
        )
        for row, at, count in entries:
            if count > 0:
                seen = now_ms if math.isnan(at) else min(at, now_ms)
                want[math.ceil(seen / delta_ms), int(group[row])][0] += count
        arrivals = binned(counts.count_arrivals(came, delta_ms, now_ms))
        assert arrivals == {key: tuple(value) for key, value in want.items()}
        done = counts.completed_ms(records, 600.0, 900.0)
        total = max(int(records.sum()), 1) if rows else 1
        if records.sum():
            assert done.tolist() == pytest.approx(
                (600.0 + 300.0 * np.cumsum(records) / total).tolist()
            )
            check_completions(came, done, delta_ms, bound_ms)


def check_completions(came: counts.Arrived, done: Any, delta_ms: float, bound_ms: float) -> None:
    want: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    parts = zip(came.row, came.group, came.at_ms, came.records, strict=True)
    for row, group, at, count in parts:
        if count > 0:
            cell = want[math.ceil(done[row] / delta_ms), int(group)]
            latency = 0.0 if math.isnan(at) else max(0.0, done[row] - at)
            cell[0] += count
            cell[1] += count * latency
            cell[2] += count * (bound_ms > 0 and latency <= bound_ms)
    found = binned(counts.count_completions(came, done[came.row], delta_ms, bound_ms))
    assert {k: (n, pytest.approx(ms), w) for k, (n, ms, w) in want.items()} == found


def test_a_time_belongs_to_the_time_slot_that_ends_with_it() -> None:
    assert [counts.tick_of(at, 50.0) for at in (0.0, 0.1, 50.0, 50.1, 100.0)] == [0, 1, 1, 2, 2]


# --- Words ---

VALUES: dict[Kind, tuple[Any, ...]] = {
    Kind.INTEGER: (None, 0, 1, -1, 2**63 - 1, -(2**63)),
    Kind.FLOAT: (None, 0.0, -0.0, 1.5, float("inf")),
    Kind.BYTES: (None, b"", b"a", b"a\0", "é".encode() * 9),
    Kind.DECIMAL: (None, Decimal("0.00"), Decimal("-1.25"), Decimal("9" * 36 + ".25")),
}


def said(strings: codec.Strings, which: Iterable[int]) -> list[bytes]:
    return [strings.data[strings.offsets[i] : strings.offsets[i + 1]].tobytes() for i in which]


@pytest.mark.parametrize("seed", range(3))
def test_columns_come_back_from_their_words(seed: int) -> None:
    """Whole columns and slices; strings by the ids that a table gives them."""
    dice = random.Random(seed)
    for _ in range(30):
        leaves = [
            dice.choice((INTEGER, FLOAT, TEXT, MONEY)) for _ in range(dice.choice([1, 3, 70]))
        ]
        rows, start = dice.choice([0, 1, 5]), dice.choice([0, 2])
        lists = [[dice.choice(VALUES[leaf.kind]) for _ in range(rows + start)] for leaf in leaves]
        columns = [
            pa.array(values, codec.arrow_type(leaf)).slice(start)
            for values, leaf in zip(lists, leaves, strict=True)
        ]
        if dice.random() < 0.3:
            columns = [
                c.cast(pa.large_binary()) if pa.types.is_binary(c.type) else c for c in columns
            ]
        at, width = codec.positions(leaves)
        assert width == max(1, math.ceil(len(leaves) / 63)) + sum(leaf.words for leaf in leaves)
        words = codec.encode(columns, leaves, at, width)
        assert words.matrix.shape == (rows, width)
        matrix, pools, strings = words.matrix.copy(), [], 0
        for word, column, null in words.strings:
            matrix[:, word] = np.arange(rows) + strings + 1
            if null is not None:
                matrix[null, word] = 0
            raw = column.data[column.offsets[0] : column.offsets[-1]]
            pools.append(codec.Strings(column.offsets - column.offsets[0], raw))
            strings += rows
        both = codec.Strings(np.zeros(1, np.int64), np.zeros(0, np.uint8))
        if pools:
            both = codec.joined(pools)
        back = codec.decode(matrix, leaves, at, both)
        for values, column in zip(lists, back, strict=True):
            assert [repr(v) for v in column.to_pylist()] == [repr(v) for v in values[start:]]
        for number, values in enumerate(lists):
            word, bit = codec.null_at(number)
            assert ((matrix[:, word] >> bit) & 1).tolist() == [v is None for v in values[start:]]
        chosen = np.array([dice.randrange(rows) for _ in range(4 * (rows > 0))], dtype=np.int64)
        picked = codec.picked(words.strings, chosen)
        for (_, old, was), (_, few, null) in zip(words.strings, picked, strict=True):
            assert said(few, range(len(chosen))) == said(old, chosen.tolist())
            assert (null is None) is (was is None)
            assert was is None or np.array_equal(null, was[chosen])


# --- Layouts ---

ADDED = ("add", ("left", 0), ("right", 0))
SUM = Program((ADDED, ("coalesce", ("right", 1), ("left", 1))), (0.5, None), True)
MANY = (
    Aggregate(Op.COUNT, (INTEGER,)), Aggregate(Op.SUM_INTEGER, (INTEGER,), checked=False),
    Aggregate(Op.SUM_DECIMAL, (MONEY, INTEGER)), Aggregate(Op.FIRST, (INTEGER, TEXT, FLOAT)),
    Aggregate(Op.LAST, (INTEGER, MONEY)), Aggregate(Op.MIN_BY, (INTEGER,), (TEXT, MONEY)),
    Aggregate(Op.MERGED, (FLOAT, INTEGER), program=SUM), Aggregate(Op.MAX, (TEXT, FLOAT)),
    Aggregate(Op.REGISTERS, (Leaf(Kind.REGISTERS, 5),)),
)  # fmt: skip
WHOLE = Aggregate(Op.MERGED, (INTEGER,), program=Program((ADDED,), (3,), True))
BOTH = (Kept((TEXT, MONEY), Keep.LIST), Kept((FLOAT, TEXT), Keep.SET))
LAYOUTS = {
    "nothing": AggregateSpec((), None, (), OutputMode.UPDATE),
    "keys": AggregateSpec((TEXT, MONEY, FLOAT), TimeKey(10, 5), MANY[:2], OutputMode.APPEND),
    "all": AggregateSpec((TEXT,), None, MANY, OutputMode.UPDATE),
    "whole numbers": AggregateSpec((), None, (WHOLE,), OutputMode.UPDATE),
    "many": AggregateSpec((INTEGER,), None, MANY[3:6] * 12, OutputMode.UPDATE),
    "kept": AggregateSpec((TEXT,), TimeKey(10, 10), MANY[:1], OutputMode.APPEND, BOTH),
}  # fmt: skip


def test_leaves_lie_as_recorded(recorded: Recorded) -> None:
    lines = []
    for name, spec in LAYOUTS.items():
        made = row_layout(spec)
        lines.append(f"{name}: a row of {made.table.width}, values from {made.value_start}")
        for field in dataclasses.fields(made):
            value = getattr(made, field.name)
            lines.append(
                f"  {field.name} {value.tolist() if isinstance(value, np.ndarray) else value}"
            )
    recorded("layouts", lines)


# --- Programs ---

NUMBERS = ("add", "subtract", "multiply", "divide", "coalesce", "if")
TRUTHS = ("less", "less_or_equal", "greater", "greater_or_equal", "equal", "is_null", "is_not_null",
          "and", "or", "not")  # fmt: skip


def drawn(dice: random.Random, depth: int, *, truth: bool = False) -> Any:
    """Return an expression of numbers, or one that is true or false."""
    if truth:
        name = dice.choice(TRUTHS if depth else TRUTHS[:7])
        if name in ("and", "or", "not"):
            return (name, *(drawn(dice, depth - 1, truth=True) for _ in range(1 + (name != "not"))))
        return (name, *(drawn(dice, max(0, depth - 1)) for _ in range(2 - ("null" in name))))
    if depth == 0:
        constant = ("value", dice.choice([0.0, 2.0, None]))
        return dice.choice([("left", 0), ("right", 0), ("left", 1), ("right", 1), constant])
    name = dice.choice(NUMBERS)
    if name == "if":
        return (
            name,
            drawn(dice, depth - 1, truth=True),
            *(drawn(dice, depth - 1) for _ in range(2)),
        )
    count = dice.randint(1, 3) if name == "coalesce" else 2
    return (name, *(drawn(dice, depth - 1) for _ in range(count)))


def evaluated(expression: Any, left: list[Any], right: list[Any]) -> Any:  # noqa: PLR0911
    """Return an expression's value as SQL has it; None for null."""
    name, parts = expression[0], expression[1:]
    if name in ("left", "right"):
        return (left if name == "left" else right)[parts[0]]
    if name == "value":
        return parts[0]
    values = [evaluated(part, left, right) for part in parts]
    if name == "is_null":
        return values[0] is None
    if name == "is_not_null":
        return values[0] is not None
    if name == "coalesce":
        return next((v for v in values if v is not None), None)
    if name == "if":
        return values[1] if values[0] else values[2]
    if name == "and":
        return False if False in values else None if None in values else True
    if name == "or":
        return True if True in values else None if None in values else False
    if None in values or (name == "divide" and values[1] == 0):
        return None
    if name == "not":
        return not values[0]
    with np.errstate(all="ignore"):
        x, y = (np.float64(v) for v in values)
        return {
            "add": x + y, "subtract": x - y, "multiply": x * y, "divide": x / y, "less": bool(x < y),
            "less_or_equal": bool(x <= y), "greater": bool(x > y), "greater_or_equal": bool(x >= y),
            "equal": bool(x == y) or (bool(np.isnan(x)) and bool(np.isnan(y))),
        }[name]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one == other) or bool(np.isnan(one) and np.isnan(other))


def test_drawn_expressions_have_the_values_of_sql() -> None:
    dice, numbers = random.Random(102), [None, 0.0, 1.0, -2.0, float("nan"), float("inf")]
    seen: set[str] = set()
    for _ in range(400):
        expression = drawn(dice, dice.choice([1, 1, 2, 3]), truth=dice.random() < 0.5)
        seen.add(expression[0])
        lefts, rights = ([[dice.choice(numbers) for _ in range(2)] for _ in range(6)] for _ in "lr")
        sides = [
            [
                (np.array([0.0 if row[i] is None else row[i] for row in rows]),
                 np.array([row[i] is None for row in rows]))
                for i in range(2)
            ]
            for rows in (lefts, rights)
        ]  # fmt: skip
        with np.errstate(all="ignore"):
            values, nulls = _value(expression, sides[0], sides[1], 6)
        values, nulls = np.broadcast_to(values, 6), np.broadcast_to(nulls, 6)
        for row in range(6):
            want = evaluated(expression, lefts[row], rights[row])
            found = None if nulls[row] else values[row]
            assert same(found, want), (expression, lefts[row], rights[row])
    assert seen == {*NUMBERS, *TRUTHS}


@pytest.mark.parametrize("seed", range(3))
def test_buffers_are_merged_in_the_order_of_their_keys(seed: int) -> None:
    """Texts put one behind the other, as numbers: what comes in another order is another number."""
    behind = ("add", ("multiply", ("left", 0), ("right", 1)), ("right", 0))
    program = Program((behind, ("multiply", ("left", 1), ("right", 1))), (0.0, 1.0), False)
    merged = Aggregate(Op.MERGED, (FLOAT, FLOAT), program=program)
    spec = AggregateSpec((), None, (MANY[0], merged), OutputMode.UPDATE)
    layout, dice = row_layout(spec), random.Random(seed)
    merging = Leaves(program, layout.leaves[1:])
    rows = np.tile(np.array(layout.table.fresh), (4, 1))
    rows[:, layout.value_at[0]] = 77
    want = [0] * 4
    for count in (0, 1, 2, 3, 7):
        of = [dice.randrange(4) for _ in range(count)]
        incoming = np.zeros((count, len(layout.table.fresh)), dtype=np.int64)
        floats = incoming.view(np.float64)
        for row, key in enumerate(of):
            digit = dice.randint(1, 3)
            floats[row, layout.value_at[1]], floats[row, layout.value_at[2]] = digit, 4.0
            want[key] = 4 * want[key] + digit
        merging.merge(rows, np.array(of, dtype=np.int64), incoming)
        assert rows.view(np.float64)[:, layout.value_at[1]].tolist() == want
        assert set(rows[:, layout.value_at[0]].tolist()) == {77}, "of another aggregate"
        assert not rows[:, 0].any()


# --- Merges on the way to a slot ---


@pytest.mark.parametrize("size_us", [None, 10, 12])
def test_records_are_merged_on_their_way_as_a_dictionary_would(size_us: int | None) -> None:
    times = {None: None, 10: TimeKey(10, 10), 12: TimeKey(12, 4)}
    spec = AggregateSpec(
        (TEXT,), times[size_us],
        (MANY[0], Aggregate(Op.SUM_INTEGER, (INTEGER,)), Aggregate(Op.MAX, (TEXT,))), OutputMode.UPDATE,
    )  # fmt: skip
    operator, dice = operator_of(spec), random.Random(103)
    for with_times in (True, False):
        for count in (1, 2, 40):
            rows = [
                {
                    GROUP: i % 3, "k0": dice.choice([None, b"", b"a", b"bb"]), "t": 4 * dice.randrange(3),
                    "v0": 1, "v1": dice.choice([None, 1, 5]),
                    "v2": dice.choice([None, b"x", b"y", b"xy"]),
                    RECORDS: dice.choice([1, 3]), ARRIVED_FIRST: float(dice.randrange(9)),
                    ARRIVED_LAST: float(dice.randrange(9, 20)),
                }
                for i in range(count)
            ]  # fmt: skip
            for row in rows:
                row[GROUP] = len(row["k0"] or b"xyz")  # a key has one group
            out = () if with_times else (ARRIVED_FIRST, ARRIVED_LAST)
            names = [n for n in rows[0] if (n != "t" or size_us) and n not in out]
            types = {GROUP: pa.int32(), "k0": pa.binary(), "v2": pa.binary()}
            types |= dict.fromkeys((ARRIVED_FIRST, ARRIVED_LAST), pa.float64())
            table = pa.table(
                {n: pa.array([r[n] for r in rows], types.get(n, pa.int64())) for n in names}
            )
            want: dict[Any, dict[str, Any]] = {}
            for row in rows:
                key = row["k0"], row["t"] if size_us else None
                fresh = {"v0": 0, "v1": None, "v2": None, RECORDS: 0}
                into = want.setdefault(key, fresh | {ARRIVED_FIRST: 99.0, ARRIVED_LAST: -1.0})
                into["v0"] += 1
                into[RECORDS] += row[RECORDS]
                into[ARRIVED_FIRST] = min(into[ARRIVED_FIRST], row[ARRIVED_FIRST])
                into[ARRIVED_LAST] = max(into[ARRIVED_LAST], row[ARRIVED_LAST])
                if row["v1"] is not None:
                    into["v1"] = row["v1"] + (into["v1"] or 0)
                if row["v2"] is not None:
                    into["v2"] = max(row["v2"], into["v2"] or b"")
                into[GROUP] = row[GROUP]
            merged = operator.merged(table)  # type: ignore[attr-defined]
            assert merged.schema == table.schema
            found = {(r["k0"], r.get("t")): r for r in merged.to_pylist()}
            assert len(found) == merged.num_rows == len(want)
            for key, row in found.items():
                told = [n for n in names if n not in ("k0", "t")]
                assert {n: want[key][n] for n in told} == {n: row[n] for n in told}


@pytest.mark.parametrize("overflows", [False, True])
def test_many_tables_are_merged_into_in_one_call(overflows: bool) -> None:
    sums = Aggregate(Op.SUM_INTEGER, (INTEGER,)), Aggregate(Op.SUM_FLOAT, (FLOAT,))
    spec = AggregateSpec((INTEGER,), None, (MANY[0], *sums), OutputMode.UPDATE)
    layout, dice = row_layout(spec), random.Random(104)
    tables = [
        BufferTable.create(HeapMemory(initial_bytes(layout.table)), layout.table) for _ in range(3)
    ]
    counted = [3, 0, 5]
    ends = np.cumsum([0, *counted])
    spans = np.column_stack([ends[:-1], ends[1:]])
    keys = np.column_stack([np.zeros(8, np.int64), np.array([dice.randrange(2) for _ in range(8)])])
    incoming = np.zeros((8, len(layout.table.fresh)), dtype=np.int64)
    incoming[:, layout.value_at[0]] = 1
    incoming[:, layout.value_at[1]] = 2**62 if overflows else 5
    incoming.view(np.float64)[:, layout.value_at[2]] = 0.5
    index = np.zeros(8, dtype=np.int64)
    for table, (start, stop) in zip(tables, spans.tolist(), strict=True):
        table.begin()
        index[start:stop] = table.upsert(keys[start:stop])
    done = merge_each(
        together.places(tables), spans, index, incoming, incoming.view(np.float64),
        layout.value_start, layout.ops, layout.leaves,
    )  # fmt: skip
    if overflows:
        assert done == 0 or keys[:3, 1].tolist().count(keys[0, 1]) < 2
        return
    assert done == 3
    for table, (start, stop) in zip(tables, spans.tolist(), strict=True):
        rows = table.rows[table.live()]
        said = {int(r[2]): r[layout.value_start :] for r in rows}
        of = keys[start:stop, 1].tolist()
        assert set(said) == set(of)
        for key, buffer in said.items():
            times = of.count(key)
            assert buffer[layout.value_at[0]] == times
            assert buffer[layout.value_at[1]] == 5 * times
            assert buffer.view(np.float64)[layout.value_at[2]] == 0.5 * times


# --- Numbers ---


def test_distinct_rows_are_numbered_as_they_come_and_found_again() -> None:
    dice = random.Random(105)
    for _ in range(40):
        width = dice.randint(1, 3)
        rows = np.array([[dice.randrange(3) for _ in range(width)] for _ in range(dice.randint(0, 30))],
                        dtype=np.int64).reshape(-1, width)  # fmt: skip
        hashes = hash_words(rows) if dice.random() < 0.5 else np.zeros(len(rows), dtype=np.int64)
        index = np.zeros(64, dtype=np.int64)
        first, of = np.full(len(rows), -9), np.full(len(rows), -9)
        count = distinct.number(rows, hashes, index, first, of)
        order = list(dict.fromkeys(map(tuple, rows.tolist())))
        assert count == len(order)
        assert of.tolist() == [order.index(tuple(row)) for row in rows.tolist()]
        assert first[:count].tolist() == [rows.tolist().index(list(row)) for row in order]
        asked = np.array(
            [[dice.randrange(4) for _ in range(width)] for _ in range(9)], dtype=np.int64
        )
        known = np.array(order, dtype=np.int64).reshape(-1, width)
        found = np.full(9, -9)
        of_asked = hash_words(asked) if hashes.any() else np.zeros(9, dtype=np.int64)
        if len(rows):
            distinct.look_up(asked, of_asked, known, index, found)
            want = [
                order.index(tuple(row)) if tuple(row) in order else -1 for row in asked.tolist()
            ]
            assert found.tolist() == want


def test_intervals_that_touch_are_one_session() -> None:
    dice = random.Random(106)
    for _ in range(60):
        count = dice.randint(0, 12)
        of = np.array([dice.randrange(2) for _ in range(count)], dtype=np.int64)
        starts = np.array([dice.randrange(30) for _ in range(count)], dtype=np.int64)
        ends = starts + np.array([dice.choice([1, 3, 9]) for _ in range(count)], dtype=np.int64)
        order = np.lexsort((starts, of))
        session = np.full(count, -9)
        begins = number_sessions(of, starts, ends, order, session)
        for i in range(count):
            for j in range(count):
                linked, reach = {i}, True
                while reach:
                    more = {b for a in linked for b in range(count) if of[a] == of[b]
                            and starts[a] <= ends[b] and starts[b] <= ends[a]}  # fmt: skip
                    reach, linked = bool(more - linked), linked | more
                assert (session[i] == session[j]) == (j in linked)
            assert begins[session[i]] == min(
                starts[j] for j in range(count) if session[j] == session[i]
            )
        assert len(begins) == len(set(session.tolist()))


# --- Time limits ---


def test_code_that_hangs_is_interrupted_and_nothing_is_left_of_the_limit() -> None:
    before = signal.getsignal(signal.SIGALRM)
    limit = TimeLimit(0.02)

    def hang() -> None:
        with limit:
            while True:
                time.sleep(0.001)

    with pytest.raises(TookTooLong, match=r"^it took more than the 0\.02 s of headgate\.processor"):
        hang()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    with TimeLimit(50.0):
        assert 40.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 50.0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    for seconds in (0.0, -1.0):
        with TimeLimit(seconds):
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
            assert signal.getsignal(signal.SIGALRM) is before
    found: list[Any] = []

    def elsewhere() -> None:
        with TimeLimit(50.0):
            found.append(signal.getitimer(signal.ITIMER_REAL))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [(0.0, 0.0)]
