"""Values that slots keep, against lists made in Python; and buffers that programs merge."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators.build import operator_of
from headgate.operators.kept import KeptOperator, KeptSessionOperator, _in_order
from headgate.operators.program import Leaves
from headgate.operators.serve import serve
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
from headgate.operators.step import GROUP, RECORDS, TIME, GroupState, Request
from headgate.operators.warm import warm
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

INTEGER, BYTES, FLOAT = Leaf(Kind.INTEGER), Leaf(Kind.BYTES), Leaf(Kind.FLOAT)
STEPS, PER_STEP, GAP = 6, 30, 9
COLLECTIONS = (
    Kept((INTEGER,), Keep.LIST),
    Kept((BYTES, INTEGER), Keep.BAG),
    Kept((BYTES,), Keep.SET),
)
TIMES = {
    "no window": None,
    "tumbling": TimeKey(10, 10, 3),
    "sliding": TimeKey(12, 4),
    "session": TimeKey(GAP, GAP, session=True),
}


def spec_of(time, mode):
    count = Aggregate(Op.COUNT, (INTEGER,))
    end = (Aggregate(Op.MAX, (INTEGER,)),) if time is not None and time.session else ()
    return AggregateSpec((BYTES, INTEGER), time, (*end, count), mode, COLLECTIONS)


def made_records(seed):
    """Return (key, time, whether the second collection takes it, number, text) of each step."""
    rng = random.Random(seed)
    texts = [b"", b"a", b"bb", None]
    return [
        [
            (
                (rng.choice([b"x", b"y", None]), rng.choice([1, None])),
                step * 40 + rng.randint(1, 50),
                rng.random() < 0.7,
                rng.choice([step * 100 + n, None]),
                rng.choice(texts),
            )
            for n in range(PER_STEP)
        ]
        for step in range(STEPS)
    ]


def arriving(spec, records):
    keys, times, taken, numbers, texts = zip(*records, strict=True) if records else ([],) * 5
    time = spec.time
    columns = {
        GROUP: pa.array([0] * len(records), pa.int32()),
        RECORDS: pa.array([1] * len(records), pa.int64()),
        "k0": pa.array([a for a, _ in keys], pa.binary()),
        "k1": pa.array([b for _, b in keys], pa.int64()),
    }
    ones = pa.array([1] * len(records), pa.int64())
    if time is not None:
        starts = [t if time.session else slice_of(time, t) for t in times]
        columns[TIME] = pa.array(starts, pa.int64())
    if time is not None and time.session:
        columns |= {"v0": pa.array([t + GAP for t in times], pa.int64()), "v1": ones}
    else:
        columns["v0"] = ones
    columns |= {"h0": ones, "h0_0": pa.array(numbers, pa.int64())}
    columns["h1"] = pa.array([1 if t else None for t in taken], pa.int64())
    columns |= {"h1_0": pa.array(texts, pa.binary()), "h1_1": pa.array(numbers, pa.int64())}
    columns |= {"h2": ones, "h2_0": pa.array(texts, pa.binary())}
    return pa.table(columns)


def slice_of(time, at):
    return at - (at - time.offset_us) % time.slice_us


def windows_of(time, at):
    """Return the ends of all windows that hold a time."""
    if time is None:
        return [None]
    first = at - (at - time.offset_us) % time.advance_us
    starts = range(first, at - time.size_us, -time.advance_us)
    return [start + time.size_us for start in starts]


def answer(records):
    numbers = tuple(r[3] for r in records)
    bag = tuple(sorted(((r[4], r[3]) for r in records if r[2]), key=str))
    return len(records), numbers, bag, tuple(sorted({r[4] for r in records}, key=str))


def expected(time, records):
    groups = defaultdict(list)
    if time is not None and time.session:
        by_key = defaultdict(list)
        for record in records:
            by_key[record[0]].append(record)
        for key, mine in by_key.items():
            open_until, members = None, []
            for record in [*sorted(mine, key=lambda r: r[1]), None]:
                if members and (record is None or record[1] > open_until):
                    there = [r for r in records if r in members]
                    groups[key, open_until] = there
                    members = []
                if record is not None:
                    open_until = (
                        max(open_until or 0, record[1] + GAP) if members else record[1] + GAP
                    )
                    members.append(record)
        return {key: answer(group) for key, group in groups.items()}
    for record in records:
        for end in windows_of(time, record[1]):
            groups[record[0], end].append(record)
    return {key: answer(group) for key, group in groups.items()}


def shown(time, row):
    key = (row["k0"], row["k1"])
    count = row["v1"] if time is not None and time.session else row["v0"]
    bag = tuple(sorted(((x["x0"], x["x1"]) for x in row["l1"]), key=str))
    texts = Counter(x["x0"] for x in row["l2"])
    assert set(texts.values()) <= {1}
    numbers = tuple(x["x0"] for x in row["l0"])
    return (key, row.get(TIME)), (count, numbers, bag, tuple(sorted(texts, key=str)))


def run(spec, steps, watermarks_us):
    """Return what each step puts out; in the middle the state is built anew from its changes."""
    operator = operator_of(spec)
    store = HeapStore(operator.layout.table)
    state, sections, outputs = GroupState(EMPTY_TOKEN, 0, 0), [], []
    for number, (records, watermark_us) in enumerate(zip(steps, watermarks_us, strict=True)):
        if number == STEPS // 2:
            store = HeapStore(operator.layout.table)
        token = f"{number + 1:032x}"
        request = Request(
            token, watermark_us, {0: state}, lambda _: lambda _: sections, turn=number + 1
        )
        served = serve(operator, store, request, arriving(spec, records))
        assert served.late_records == 0
        outputs.append([shown(spec.time, row) for row in served.output.to_pylist()])
        if served.groups:
            done = served.groups[0]
            state = GroupState(token, done.emitted_us, done.due_us)
            sections.append(served.sections[0])
    return operator, outputs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["tumbling", "sliding", "session"])
def test_windows_that_are_over_go_out_with_all_that_was_kept_of_them(name, seed):
    time, steps = TIMES[name], [*made_records(seed), []]
    watermarks_us = [max(0, n * 40 - 20) for n in range(STEPS)] + [10_000]
    operator, outputs = run(spec_of(time, OutputMode.APPEND), steps, watermarks_us)
    assert isinstance(operator, KeptSessionOperator if name == "session" else KeptOperator)
    got = [pair for rows in outputs for pair in rows]
    assert len(got) == len(dict(got))
    want = expected(time, [r for records in steps for r in records])
    if name == "session":  # the order within a session is that of arrival, whatever its time
        assert {k: (n, Counter(x), b, s) for k, (n, x, b, s) in got} == {
            k: (n, Counter(x), b, s) for k, (n, x, b, s) in want.items()
        }
    else:
        assert dict(got) == want


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["no window", "tumbling", "sliding"])
@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.COMPLETE])
def test_all_that_is_kept_of_a_key_goes_out_where_one_value_is_new(mode, name, seed):
    steps = made_records(seed)
    _, outputs = run(spec_of(TIMES[name], mode), steps, [0] * STEPS)
    before = []
    for records, rows in zip(steps, outputs, strict=True):
        before += records
        want = expected(TIMES[name], before)
        if mode is OutputMode.UPDATE:
            touched = {(r[0], end) for r in records for end in windows_of(TIMES[name], r[1])}
            want = {key: value for key, value in want.items() if key in touched}
        assert len(rows) == len(want)
        assert dict(rows) == want


def test_nothing_is_left_of_windows_that_are_out():
    for name in ("tumbling", "sliding", "session"):
        spec = spec_of(TIMES[name], OutputMode.APPEND)
        operator = operator_of(spec)
        store = HeapStore(operator.layout.table)
        records = [record for step in made_records(0) for record in step]
        state = GroupState(EMPTY_TOKEN, 0, 0)
        for token, watermark_us, rows in (("1" * 32, 0, records), ("2" * 32, 10_000, [])):
            request = Request(token, watermark_us, {0: state}, lambda _: lambda _: [])
            served = serve(operator, store, request, arriving(spec, rows))
            state = GroupState(token, served.groups[0].emitted_us, served.groups[0].due_us)
            assert (served.groups[0].rows > 0) == bool(rows)


# -- programs ---------------------------------------------------------------------------------------


def of(name, *parts):
    return (name, *parts)


def left(i):
    return ("left", i)


def right(i):
    return ("right", i)


_N = of("add", left(0), right(0))
_DELTA = of("subtract", right(1), left(1))
_STEP = of("if", of("equal", _N, ("value", 0.0)), ("value", 0.0), of("divide", _DELTA, _N))
MOMENTS = Program(
    (
        _N,
        of("add", left(1), of("multiply", _STEP, right(0))),
        of(
            "add",
            of("add", left(2), right(2)),
            of("multiply", of("multiply", of("multiply", _DELTA, _STEP), left(0)), right(0)),
        ),
    ),
    (0.0, 0.0, 0.0),
    any_order=True,
)
"""Spark's central moments of the second order: number, mean, sum of squares from the mean."""

NEWEST = Program((of("coalesce", right(0), left(0)),), (None,), any_order=False)


def merging(program, leaves):
    spec = AggregateSpec(
        (INTEGER,), None, (Aggregate(Op.MERGED, leaves, program=program),), OutputMode.UPDATE
    )
    layout = operator_of(spec).layout
    return spec, layout, Leaves(program, layout.leaves)


@pytest.mark.parametrize("apart", [3, 2**40, 2**62])
def test_values_lie_by_key_and_then_by_place(apart):
    of = np.array([1, 0, 1, 2, 0, 1])
    places = np.array([apart, 7, 0, apart // 2, 5, 1])
    assert _in_order(of, places).tolist() == [4, 1, 2, 5, 0, 3]
    assert _in_order(of[:0], places[:0]).tolist() == []


def test_moments_are_merged_two_by_two():
    spec, layout, one = merging(MOMENTS, (FLOAT,) * 3)
    rng = np.random.default_rng(0)
    values, keys = rng.normal(1e6, 3.0, 3000), rng.integers(0, 7, 3000)
    rows = np.tile(np.array(layout.table.fresh), (8, 1))
    incoming = np.zeros((3000, len(layout.table.fresh)), dtype=np.int64)
    incoming[:, 1] = np.ones(3000).view(np.int64)
    incoming[:, 2] = values.view(np.int64)
    for at in range(0, 3000, 700):
        one.merge(rows, keys[at : at + 700], incoming[at : at + 700])
    merged = rows.view(np.float64)
    variances = [values[keys == key].var() for key in range(7)]
    np.testing.assert_allclose(merged[:7, 3] / merged[:7, 1], variances, rtol=1e-9)
    assert merged[7].tolist() == [0.0, 0.0, 0.0, 0.0]
    assert spec.unsplittable == ""
    assert spec.merges == spec.aggregates


def test_of_three_values_the_first_that_is_not_null_is_taken():
    program = Program(
        (of("coalesce", right(0), left(0), ("value", 7.0)),), (None,), any_order=False
    )
    _, layout, one = merging(program, (FLOAT,))
    rows = np.tile(np.array(layout.table.fresh), (1, 1))
    one.merge(rows, np.array([0]), np.array([[1, 0]], dtype=np.int64))
    assert rows.view(np.float64)[0, 1] == 7.0
    one.merge(rows, np.array([0]), np.array([[1, 0]], dtype=np.int64))
    assert rows.view(np.float64)[0, 1] == 7.0


def test_buffers_are_merged_in_their_order_and_nulls_are_sqls():
    spec, layout, one = merging(NEWEST, (INTEGER,))
    rng = random.Random(1)
    keys = [rng.randrange(5) for _ in range(200)]
    values = [rng.choice([None, n]) for n in range(200)]
    rows = np.tile(np.array(layout.table.fresh), (6, 1))
    incoming = np.array([[v is None, v or 0] for v in values], dtype=np.int64)
    for at in range(0, 200, 60):
        one.merge(rows, np.array(keys[at : at + 60]), incoming[at : at + 60])
    for key in range(6):
        newest = [v for k, v in zip(keys, values, strict=True) if k == key and v is not None]
        assert rows[key].tolist() == ([0, newest[-1]] if newest else [1, 0])
    assert "order" in spec.unsplittable


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (of("and", ("value", None), ("value", False)), False),
        (of("and", ("value", None), ("value", True)), None),
        (of("or", ("value", None), ("value", True)), True),
        (of("or", ("value", None), ("value", False)), None),
        (of("not", ("value", None)), None),
        (of("if", ("value", None), ("value", 1), ("value", 2)), 2),
        (of("divide", ("value", 1.0), ("value", 0.0)), None),
        (of("equal", ("value", float("nan")), ("value", float("nan"))), True),
        (of("is_null", of("add", ("value", None), ("value", 1))), True),
        (of("bit_xor", ("value", 6), ("value", 3)), 5),
        (of("greater_or_equal", ("value", 2.0), ("value", 2.0)), True),
    ],
)
def test_expressions_are_sqls(expression, found):
    _, layout, one = merging(Program((expression,), (None,), any_order=True), (INTEGER,))
    rows = np.array([layout.table.fresh], dtype=np.int64)
    one.merge(rows, np.array([0]), rows.copy())
    assert rows[0].tolist() == ([1, 0] if found is None else [0, int(found)])


# -- sketches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_bits", [4, 9, 12])
def test_a_sketch_holds_the_longest_run_of_zeros_of_each_register(index_bits):
    words = (1 << index_bits) // 10 + 1
    leaf = Leaf(Kind.REGISTERS, words)
    sketch = Aggregate(Op.REGISTERS, (leaf,))
    spec = AggregateSpec((INTEGER,), None, (sketch,), OutputMode.UPDATE)
    operator = operator_of(spec)
    rng = random.Random(index_bits)
    hashes = [rng.getrandbits(64) - 2**63 for _ in range(3000)]
    # the last register is that of -1 alone, whose bits are no double
    hashes = [one for one in hashes if one % 2**64 >> (64 - index_bits) < (1 << index_bits) - 1]
    hashes += [0, -1, 1, 2**53 - 1, -(2**63), 2**32, 2**32 - 1, None]
    registers = [0] * (words * 10)
    for one in hashes:
        if one is not None:
            bits = one % 2**64
            rest = (bits << index_bits) % 2**64 | 1 << (index_bits - 1)
            place = bits >> (64 - index_bits)
            registers[place] = max(registers[place], 65 - rest.bit_length())
    store, output = HeapStore(operator.layout.table), None
    state, sections = GroupState(EMPTY_TOKEN, 0, 0), []
    for token, part in (("1" * 32, hashes[::2]), ("2" * 32, hashes[1::2])):
        rows = pa.table(
            {
                GROUP: pa.array([0] * len(part), pa.int32()),
                RECORDS: pa.array([1] * len(part), pa.int64()),
                "k0": pa.array([5] * len(part), pa.int64()),
                "v0": pa.array(part, pa.int64()),
            }
        )
        request = Request(token, 0, {0: state}, lambda _: lambda _: sections)
        served = serve(operator, store, request, rows)
        state, output = GroupState(token, 0, 0), served.output
    (got,) = output.column("v0").to_pylist()
    assert [got[i // 10] >> 6 * (i % 10) & 63 for i in range(words * 10)] == registers
    assert "sketch" in spec.unsplittable


@pytest.mark.parametrize("name", TIMES)
def test_a_worker_warms_up_on_made_up_rows(name):
    mode = OutputMode.APPEND if TIMES[name] is not None else OutputMode.UPDATE
    warm(spec_of(TIMES[name], mode))
    sketch = Aggregate(Op.REGISTERS, (Leaf(Kind.REGISTERS, 52),))
    moments = Aggregate(Op.MERGED, (FLOAT,) * 3, program=MOMENTS)
    warm(AggregateSpec((), None, (sketch, moments), OutputMode.UPDATE))
