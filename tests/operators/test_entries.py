"""What a key group holds, as rows for another engine, and rows of another engine as state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators.build import operator_of
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.entries import entry_layout
from headgate.operators.join.operator import MET
from headgate.operators.join.spec import LEFT, RIGHT, Comparison, JoinKind, JoinSpec
from headgate.operators.processor import ProcessorSpec, TimeMode, Variable
from headgate.operators.serve import serve
from headgate.operators.spec import (
    NEVER_US,
    Aggregate,
    AggregateSpec,
    Kind,
    Leaf,
    Op,
    OutputMode,
    TimeKey,
)
from headgate.operators.step import GROUP, RECORDS, TIME, GroupState, Request
from headgate.spark.plain.processors import Placing
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

NUMBER, TEXT = Leaf(Kind.INTEGER), Leaf(Kind.BYTES)
SUMS = (
    Aggregate(Op.COUNT, (NUMBER,)),
    Aggregate(Op.MAX, (TEXT,)),
)


class Group:
    """Key group 0 of one operator, step after step."""

    def __init__(self, spec):
        self.operator = operator_of(spec)
        self.store = HeapStore(self.operator.layout.table)
        self.state, self.sections, self.step = GroupState(EMPTY_TOKEN, 0, 0), [], 0

    def serve(self, columns, watermark=0):
        """Serve records; return what goes out."""
        count = len(next(iter(columns.values())))
        own = {GROUP: pa.array([0] * count, pa.int32()), RECORDS: pa.array([1] * count)}
        self.step += 1
        token = f"{self.step:032x}"
        request = Request(
            token, watermark, {0: self.state}, lambda _: lambda _: self.sections, turn=self.step
        )
        served = serve(self.operator, self.store, request, pa.table(own | columns))
        self.state = GroupState(token, served.groups[0].emitted_us, served.groups[0].due_us)
        self.sections.append(served.sections[0])
        return served.output.to_pylist()

    def entries(self, part=0):
        """Return what there is."""
        table = self.store.acquire(0, self.state.token, lambda _: self.sections)
        found = self.operator.entries(table, self.state.emitted_us, part)
        self.store.release(0)
        return found


def texts(values):
    return pa.array(values, pa.binary())


def buffers(rows):
    """Return records of (time, key, text)."""
    return {
        TIME: pa.array([row[0] for row in rows], pa.int64()),
        "k0": texts([row[1] for row in rows]),
        "v0": pa.array([1] * len(rows)),
        "v1": texts([row[2] for row in rows]),
    }


def windows(size, advance, mode=OutputMode.UPDATE):
    return AggregateSpec((TEXT,), TimeKey(size, advance), SUMS, mode)


def tuples(batch):
    return sorted(tuple(row.values()) for row in batch.to_pylist())


def test_entries_are_windows_that_are_open():
    group = Group(windows(10, 10))
    group.serve(buffers([(0, b"a", b"x"), (10, b"a", b"y"), (10, b"a", b"z"), (20, b"b", None)]))
    group.serve(buffers([(20, b"b", b"w")]), watermark=10)
    assert tuples(group.entries()) == [(b"a", 20, 2, b"z"), (b"b", 30, 2, b"w")]


def test_slices_come_as_the_windows_that_they_are_part_of():
    group = Group(windows(10, 5))
    group.serve(buffers([(5, b"a", b"x"), (10, b"a", b"y")]))
    assert tuples(group.entries()) == [
        (b"a", 10, 1, b"x"),
        (b"a", 15, 2, b"y"),
        (b"a", 20, 1, b"y"),
    ]


def test_a_window_of_slices_that_is_out_is_no_entry():
    group = Group(windows(10, 5))
    group.serve(buffers([(5, b"a", b"x"), (10, b"a", b"y")]), watermark=10)
    assert [row[1] for row in tuples(group.entries())] == [15, 20]


def test_entries_served_as_records_are_the_same_state():
    group, again = Group(windows(10, 10)), Group(windows(10, 10))
    group.serve(buffers([(0, b"a", b"x"), (10, b"a", b"y"), (10, None, b"z"), (10, b"a", None)]))
    found = group.entries()
    given = {
        TIME: pa.array(np.array(found.column("t")) - 10),
        **{name: found.column(name) for name in ("k0", "v0", "v1")},
    }
    again.serve(given)
    assert again.entries().to_pylist() == found.to_pylist()


def test_a_session_is_an_entry_with_its_start():
    spec = AggregateSpec(
        (TEXT,),
        TimeKey(5, 5, session=True),
        (Aggregate(Op.MAX, (NUMBER,)), *SUMS),
        OutputMode.APPEND,
    )
    group = Group(spec)
    rows = [(1, b"a", b"x"), (4, b"a", b"y"), (20, b"a", b"z")]
    given = buffers(rows)
    ends = {"v0": pa.array([row[0] + 5 for row in rows])}
    group.serve(
        {TIME: given[TIME], "k0": given["k0"], **ends, "v1": given["v0"], "v2": given["v1"]}
    )
    assert tuples(group.entries()) == [(b"a", 9, 1, 2, b"y"), (b"a", 25, 20, 1, b"z")]


def test_keys_that_were_seen_come_with_when_they_are_forgotten():
    group = Group(DeduplicateSpec((TEXT,), pa.schema([("x", pa.int64())]), TimeKey(0, 1), 10))
    given = {"k0": texts([b"a", None, b"a"]), TIME: pa.array([5, 7, 9]), "v0": pa.array([1, 2, 3])}
    assert [row["v0"] for row in group.serve(given)] == [1, 2]
    assert group.entries().to_pylist() == [{"k0": b"a", "t": 15}, {"k0": None, "t": 17}]
    group.serve({"k0": texts([b"c"]), TIME: pa.array([20]), "v0": pa.array([4])}, watermark=15)
    assert {row["k0"] for row in group.entries().to_pylist()} == {None, b"c"}


def sides(rows, met=None):
    """Return records of (side, key, number, expiry)."""
    found = {
        TIME: pa.array([1] * len(rows)),
        "k0": texts([row[1] for row in rows]),
        "v0": pa.array([row[0] for row in rows]),
        "v1": pa.array([1] * len(rows)),
        "v2": pa.array([row[3] for row in rows]),
        "v3": pa.array([row[2] if row[0] == LEFT else None for row in rows], pa.int64()),
        "v4": pa.array([row[2] if row[0] == RIGHT else None for row in rows], pa.int64()),
    }
    return found if met is None else found | {MET: pa.array(met)}


OUTER = JoinSpec(
    (TEXT,),
    ((NUMBER,), (NUMBER,)),
    (1, 1),
    JoinKind.LEFT_OUTER,
    (Comparison(0, 0, "<"),),
    TimeKey(0, 1),
    holds_us=0,
)


@pytest.mark.parametrize("met", [False, True])
def test_a_row_that_has_met_one_before_never_comes_out_alone(met):
    group = Group(OUTER)
    assert group.serve(sides([(LEFT, b"a", 1, 10)], met=[met])) == []
    alone = group.serve(sides([(LEFT, b"b", 1, 50)]), watermark=10)
    assert alone == ([] if met else [{"v0": 1, "v1": None}])


def test_the_rows_of_a_side_come_with_what_became_of_them():
    group = Group(OUTER)
    never = int(NEVER_US)
    group.serve(sides([(LEFT, b"a", 1, never), (LEFT, None, 7, never), (RIGHT, b"a", 3, never)]))
    group.serve(sides([(LEFT, b"a", 5, never)]))
    left, right = group.entries(LEFT).to_pylist(), group.entries(RIGHT).to_pylist()
    found = sorted(((row["k0"], row[MET], row["v0"]) for row in left), key=str)
    assert found == [(None, False, 7), (b"a", False, 5), (b"a", True, 1)]
    assert [(row["k0"], row[MET], row["v0"]) for row in right] == [(b"a", True, 3)]
    numbers = [row["number"] for row in left if row["k0"] == b"a"]
    assert len(set(numbers)) == 2


def test_variables_that_are_placed_are_those_that_come_out():
    states = {
        "list": (pa.schema([]), pa.schema([("id", pa.int64())]), None, True),
        "map": (pa.schema([("at", pa.int64())]), pa.schema([("text", pa.string())])),
        "one": (pa.schema([]), pa.schema([("n", pa.int64()), ("text", pa.string())])),
    }
    columns = [("which", pa.int64()), ("0:at_ms", pa.int64()), ("1:id", pa.int64())]
    columns += [("2:at", pa.int64()), ("2:text", pa.string())]
    columns += [("3:n", pa.int64()), ("3:text", pa.string())]
    names = ("", "list", "map", "one")
    key, inputs = pa.schema([("k", pa.string())]), pa.schema(columns)
    placing = Placing(key, inputs, pa.schema([]), states, names)
    group = Group(ProcessorSpec((TEXT,), pa.schema([]), placing, time_mode=TimeMode.EVENT))
    rows = [
        (b"a", 0, 99, None, None, None, None, None),
        (b"a", 1, None, 4, None, None, None, None),
        (b"a", 1, None, 2, None, None, None, None),
        (b"a", 2, None, None, 8, "x", None, None),
        (b"b", 2, None, None, 8, None, None, None),
        (b"b", 3, None, None, None, None, 5, "text"),
    ]
    given = {"k0": texts([row[0] for row in rows])}
    for place, (_, kind) in enumerate(columns):
        given[f"v{place}"] = pa.array([row[place + 1] for row in rows], kind)
    assert group.serve(given) == []
    assert tuples(group.entries(0)) == [(b"a", 99)]
    assert [row["v0"] for row in group.entries(1).to_pylist()] == [4, 2]
    assert sorted(tuples(group.entries(2)), key=str) == [(b"a", 8, "x"), (b"b", 8, None)]
    assert tuples(group.entries(3)) == [(b"b", 5, "text")]


def test_keys_without_any_state_have_a_row_of_one_word_beside_the_key() -> None:
    """What stands there are the flags of all rows; numbers and texts come behind them."""
    number = Variable("v", pa.schema([]), pa.schema([("n", pa.int64())]))
    without, one = (entry_layout((TEXT,), kept).table for kept in ((), (number,)))
    assert len(without.fresh) == 1
    assert len(one.fresh) == 2
