"""Columns of every type, inputs, shares, orders and failures: beside plain models, or as recorded."""

from __future__ import annotations

import datetime
import math
import random
import types
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import ConfigError
from headgate.operators import inputs
from headgate.operators.failure import explained, withheld
from headgate.operators.leaves import from_leaf, from_leaves, leaf_of, one_batch, to_leaf
from headgate.operators.numbering import Distinct
from headgate.operators.passing import PLACE, Limiting, Passing
from headgate.operators.quota import fair_shares, timed_quota
from headgate.operators.row_order import in_order
from headgate.operators.step import ARRIVED_LAST, GROUP, RECORDS, TIME
from headgate.operators.time_limit import TookTooLong

Recorded = Callable[[str, Iterable[str]], None]
DAY = datetime.date(2024, 2, 29)
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string())])
COLUMNS: tuple[tuple[pa.DataType, list[Any]], ...] = (
    (pa.int8(), [None, -128, 127]), (pa.int16(), [5, None]), (pa.int32(), [2**31 - 1, None]),
    (pa.int64(), [-(2**63), None]), (pa.uint8(), [255]), (pa.bool_(), [True, None, False]),
    (pa.date32(), [None, DAY]), (pa.timestamp("us"), [datetime.datetime(1969, 12, 31, 23), None]),
    (pa.timestamp("us", tz="UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None]),
    (pa.duration("us"), [datetime.timedelta(days=-1, microseconds=5), None]),
    (pa.float32(), [1.5, None, math.inf]), (pa.float64(), [0.1, None]),
    (pa.decimal128(5, 2), [Decimal("-1.25"), None]), (pa.decimal128(38, 0), [Decimal(10) ** 37]),
    (pa.string(), ["", None, "é\0"]), (pa.large_string(), ["a", None]), (pa.binary(), [b"\xff", None]),
    (pa.large_binary(), [b"", None]), (pa.list_(pa.int32()), [[1, None], None, []]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None]), (STRUCT, [{"a": 1, "b": None}, None]),
    (pa.list_(STRUCT), [[{"a": None, "b": "x"}]]),
)  # fmt: skip
OTHERS = (pa.timestamp("ms"), pa.timestamp("ns"), pa.duration("s"), pa.date64(), pa.time64("us"),
          pa.decimal256(50, 2), pa.null(), pa.list_(pa.time64("us")), pa.float16())  # fmt: skip


def test_columns_come_back_from_their_leaves_as_recorded(recorded: Recorded) -> None:
    lines = []
    for kind, values in COLUMNS:
        leaf, column = leaf_of(kind), pa.array(values, kind)
        assert leaf is not None
        carried = to_leaf(column, leaf)
        back = from_leaf(carried, kind)
        assert back.type == kind
        assert back.equals(column)
        lines.append(f"{kind}: {leaf} as {carried.type}, {carried.null_count} null")
        if pa.types.is_integer(carried.type) or pa.types.is_binary(carried.type):
            lines.append(f"  {carried.to_pylist()}")
    lines += [f"{kind}: {leaf_of(kind)}" for kind in OTHERS]
    recorded("leaves", lines)


def test_keys_of_structs_come_back_from_a_leaf_for_each_part() -> None:
    inner = pa.struct([("x", pa.int64()), ("y", pa.string())])
    outer = pa.struct([("a", inner), ("b", pa.date32())])
    schema = pa.schema([("k", pa.int32()), ("s", outer), ("t", pa.string())])
    there = pa.array([1, None, 1])
    columns = [
        pa.array([7, None, 9], pa.int64()), there, pa.array([1, None, None]),
        pa.array([5, None, None], pa.int64()), pa.array([b"y", None, None]),
        pa.array([1, None, 2], pa.int64()), pa.array([b"a", b"", None]),
    ]  # fmt: skip
    made = from_leaves(columns, schema)
    assert [column.type for column in made] == [field.type for field in schema]
    assert made[0].to_pylist() == [7, None, 9]
    day = datetime.date(1970, 1, 2), datetime.date(1970, 1, 3)
    assert made[1].to_pylist() == [
        {"a": {"x": 5, "y": "y"}, "b": day[0]}, None, {"a": None, "b": day[1]},
    ]  # fmt: skip
    assert made[2].to_pylist() == ["a", "", None]
    assert len(columns) == 7, "the caller's list is the caller's"


def test_batches_of_one_schema_become_one() -> None:
    batches = [pa.RecordBatch.from_pydict({"a": [n], "b": [str(n)]}) for n in range(3)]
    assert one_batch(batches[:1]) is batches[0]
    assert one_batch(batches).to_pydict() == {"a": [0, 1, 2], "b": ["0", "1", "2"]}
    assert one_batch(batches).schema == batches[0].schema


# --- Numbers and orders ---


def test_rows_are_distinct_by_all_their_words() -> None:
    dice = random.Random(111)
    for count in (0, 1, 5, 40):
        rows = np.array(
            [[dice.randrange(4), dice.randrange(4)] for _ in range(count)], dtype=np.int64
        )
        rows = rows.reshape(-1, 2)[:, ::-1]
        made = Distinct(rows)
        order = list(dict.fromkeys(map(tuple, rows.tolist())))
        assert made.rows.tolist() == [list(row) for row in order]
        assert made.of.tolist() == [order.index(tuple(row)) for row in rows.tolist()]
        assert made.first.tolist() == [rows.tolist().index(list(row)) for row in order]
        asked = np.array([[a, b] for a in range(5) for b in range(5)], dtype=np.int64)
        found = made.find(asked[:, ::-1])
        assert found.tolist() == [
            order.index((b, a)) if (b, a) in order else -1 for a, b in asked.tolist()
        ]


def test_rows_are_in_the_order_of_their_columns() -> None:
    dice = random.Random(112)
    for _ in range(60):
        count = dice.randint(0, 12)
        of = np.array([dice.randrange(3) for _ in range(count)], dtype=np.int64)
        lists = [[dice.choice([None, 0, 1, 2]) for _ in range(count)] for _ in range(3)]
        columns = [pa.array(values, pa.int64()) for values in lists]
        columns.append(pa.array([[n] for n in range(count)], pa.list_(pa.int64())))
        order = tuple(dice.sample(range(3), dice.randint(0, 3)))
        by = [*order, *(i for i in range(3) if i not in order)]

        def key(row: int, lists: Any = lists, by: Any = by, of: Any = of) -> Any:
            return of[row], [(lists[i][row] is not None, lists[i][row] or 0) for i in by]

        found = in_order(columns, order, of).tolist()
        assert sorted(found) == list(range(count))
        assert [key(row) for row in found] == sorted(key(row) for row in range(count))


def test_shares_are_the_most_equal_ones_and_odd_records_move_on() -> None:
    dice = random.Random(113)
    for _ in range(200):
        waiting = np.array([dice.choice([0, 1, 2, 5, 30]) for _ in range(dice.randint(1, 6))])
        total = int(waiting.sum())
        if total < 2:
            continue
        quota = dice.randrange(1, total)
        level, want = 0, np.zeros(len(waiting), dtype=int)
        while int(np.minimum(waiting, level + 1).sum()) <= quota:
            level += 1
        want = np.minimum(waiting, level)
        spare = quota - int(want.sum())
        longer = [i for i in range(len(waiting)) if waiting[i] > level]
        for turn in range(4):
            shares = fair_shares(waiting, quota, turn)
            got = [longer[(turn * spare + i) % len(longer)] for i in range(spare)]
            assert shares.tolist() == [int(want[i]) + (i in got) for i in range(len(waiting))]
    rates = [(0.5, 1.0), (3.9, 1.0), (100.0, 0.001), (100.0, 9.99), (100.0, 10.0), (100.0, 11.0)]
    assert [timed_quota(*rate) for rate in rates] == [1, 3, 1, 999, 1000, 1000]


# --- Inputs ---


def operator(count: int, *, waits: bool = True) -> Any:
    return types.SimpleNamespace(inputs=count, input_column="v0", waits_for_time=waits)


def arriving(dice: random.Random, rows: int, count: int, *, known: bool) -> pa.Table:
    groups = sorted(dice.randrange(3) for _ in range(rows))
    columns = {
        GROUP: pa.array(groups, pa.int32()),
        "v0": pa.array([dice.randrange(count) for _ in groups], pa.int64()),
        TIME: pa.array([10 * dice.randrange(4) for _ in groups], pa.int64()),
        RECORDS: pa.array([dice.choice([1, 4]) for _ in groups], pa.int64()),
    }  # fmt: skip
    if known:
        times = [dice.choice([None, 5.0, 7.0, 90.0]) for _ in groups]
        columns[ARRIVED_LAST] = pa.array(times, pa.float64()).fill_null(math.nan)
    return pa.table(columns)


@pytest.mark.parametrize("few", [64, 1, 0])
def test_inputs_and_slices_are_counted_row_by_row(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "_FEW", few)
    dice = random.Random(114)
    for _ in range(60):
        count, known = dice.choice([1, 2]), dice.random() < 0.8
        parts = [arriving(dice, dice.choice([0, 1, 9]), count, known=known) for _ in range(3)]
        came, late, chosen = parts
        found = inputs.input_counts(operator(count), came, late, chosen)
        assert len(found) == count
        for place, told in enumerate(found):
            mine = [[r for r in p.to_pylist() if count == 1 or r["v0"] == place] for p in parts]
            sums = [sum(r[RECORDS] for r in rows) for rows in mine]
            assert (told.arrived, told.executed) == (sums[0], sums[1] + sums[2])
            at_ms = [r[ARRIVED_LAST] for r in mine[0] if known and not math.isnan(r[ARRIVED_LAST])]
            assert told.newest_ms == max(at_ms) if at_ms else math.isnan(told.newest_ms)
        want: dict[int, dict[int, float]] = {}
        for row in chosen.to_pylist() if known else ():
            if not math.isnan(row[ARRIVED_LAST]):
                of = want.setdefault(row[GROUP], {})
                of[row[TIME]] = max(of.get(row[TIME], 0.0), row[ARRIVED_LAST])
        assert inputs.newest_by_slice(operator(1), chosen) == want
        assert inputs.newest_by_slice(operator(1, waits=False), chosen) == {}


# --- Branches without state, and failures ---


def test_a_limit_lets_as_many_rows_pass_and_then_none() -> None:
    schema = pa.schema([("a", pa.int64())])
    limiting, put = Limiting(schema, most=5), []

    class State(dict[str, Any]):
        def put(self, name: str, of: Any, rows: pa.RecordBatch) -> None:
            put.append((name, of.tolist(), rows.to_pydict()))
            self[name] = types.SimpleNamespace(rows=rows)

    state: Any = State(passed=types.SimpleNamespace(rows=pa.RecordBatch.from_pydict({"n": []})))
    passed = []
    for count in (2, 0, 2, 4, 1):
        rows = pa.RecordBatch.from_pydict({"a": list(range(count))}, schema=schema)
        keyed: Any = types.SimpleNamespace(rows=rows)
        passed.append(limiting.handleBatch(rows, keyed, state, None).column(0).to_pylist())  # type: ignore[arg-type]
        assert Passing(schema).handleBatch(rows, keyed, state, None) is rows  # type: ignore[arg-type]
    assert passed == [[0, 1], [], [0, 1], [0], []]
    assert [one[2] for one in put] == [{"n": [2]}, {"n": [4]}, {"n": [5]}]
    assert {(name, *of) for name, of, _ in put} == {("passed", 0)}
    assert (Passing(schema).keys, Passing(schema).states, list(limiting.states)) == (
        PLACE,
        {},
        ["passed"],
    )
    assert len(Passing(schema).initial) == 0


def test_failures_of_a_users_code_are_told_as_recorded(recorded: Recorded) -> None:
    lines = []
    space: dict[str, Any] = {}
    exec(compile("def fails(error):\n    raise error", "/srv/me/jobs.py", "exec"), space)
    failures = (
        ValueError("a ‹b› c"), ValueError(""), KeyError("k"), SystemExit(3), ConfigError("it is odd."),
        TookTooLong("it took 5 s."), ValueError("x" * 400), ValueError("a\nb\x1b"), BaseException("b"),
    )  # fmt: skip
    for error in failures:
        for called in (None, space["fails"]):
            try:
                space["fails"](error)
            except BaseException as raised:
                told = explained(raised, "Alarm.handleRows", called)
            lines += [f"{type(told).__name__} {told}", f"  {withheld(str(told))}"]
        bare = explained(type(error)("x"), "f", space["fails"])
        lines.append(f"  never ran: {bare}")
    recorded("failures", lines)
    with pytest.raises(KeyboardInterrupt):
        explained(KeyboardInterrupt(), "f")
