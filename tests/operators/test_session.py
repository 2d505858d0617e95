"""Session windows against a list of intervals that are merged one by one."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from headgate.operators.build import operator_of
from headgate.operators.serve import serve
from headgate.operators.session import SessionOperator
from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode, TimeKey
from headgate.operators.step import GROUP, RECORDS, TIME, GroupState, Request
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

GAP, STEPS, PER_STEP = 10, 8, 25
INTEGER = Leaf(Kind.INTEGER)
SPEC = AggregateSpec(
    keys=(Leaf(Kind.BYTES),),
    time=TimeKey(GAP, GAP, session=True),
    aggregates=(Aggregate(Op.MAX, (INTEGER,)), Aggregate(Op.COUNT, (INTEGER,))),
    mode=OutputMode.APPEND,
)


def made_records(seed):
    rng = random.Random(seed)
    return [
        [(rng.choice([b"a", b"b", None]), s * 50 + rng.randint(1, 70)) for _ in range(PER_STEP)]
        for s in range(STEPS)
    ]


def sessions(records, until):
    """Return (key, start, end, count) of all sessions that have ended."""
    found = []
    for key, time in sorted(records, key=lambda r: (r[0] or b"", r[0] is None, r[1])):
        last = found[-1] if found else None
        if last and last[0] == key and time <= last[2]:
            last[2], last[3] = max(last[2], time + GAP), last[3] + 1
        else:
            found.append([key, time, time + GAP, 1])
    return Counter(tuple(s) for s in found if s[2] <= until)


def arriving(records):
    ends = [time + GAP for _, time in records]
    return pa.table({
        GROUP: pa.array([0] * len(records), pa.int32()),
        RECORDS: pa.array([1] * len(records)),
        TIME: pa.array([time for _, time in records], pa.int64()),
        "k0": pa.array([key for key, _ in records], pa.binary()),
        "v0": pa.array(ends, pa.int64()),
        "v1": pa.array([1] * len(records), pa.int64()),
    })  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_sessions_are_merged_whatever_order_their_records_come_in(seed):
    operator = operator_of(SPEC)
    assert isinstance(operator, SessionOperator)
    store = HeapStore(operator.layout.table)
    state, got, sections, watermark = GroupState(EMPTY_TOKEN, 0, 0), Counter(), [], 0
    steps = made_records(seed)
    for number, records in enumerate([*steps, []]):
        token = f"{number + 1:032x}"
        if number == 4:  # all of it must be in the changelog
            store = HeapStore(operator.layout.table)
        request = Request(token, watermark, {0: state}, lambda _: lambda _: sections)
        served = serve(operator, store, request, arriving(records))
        assert served.late_records == 0
        for row in served.output.to_pylist():
            got[row["k0"], row["v0"], row["t"], row["v1"]] += 1
        if served.groups:
            done = served.groups[0]
            state = GroupState(token, done.emitted_us, done.due_us)
            sections.append(served.sections[0])
        watermark = (number + 1) * 50 - 30
    everything = [record for records in steps for record in records]
    assert got == sessions(everything, STEPS * 50 - 30)
    assert got.total() > 10


def test_a_record_with_a_gap_of_its_own_is_late_by_its_end():
    spec = AggregateSpec(SPEC.keys, TimeKey(1, 1, session=True), SPEC.aggregates, SPEC.mode)
    operator = operator_of(spec)
    store = HeapStore(operator.layout.table)
    state = GroupState(EMPTY_TOKEN, 50, 0)  # put out up to 50
    request = Request(f"{1:032x}", 60, {0: state}, lambda _: lambda _: [])
    records = arriving([(b"short", 40), (b"long", 40), (b"open", 45)])
    records = records.set_column(4, "v0", pa.array([48, 55, 70], pa.int64()))
    served = serve(operator, store, request, records)
    assert served.late.column("k0").to_pylist() == [b"short"]
    assert [(row["k0"], row["v0"], row["t"]) for row in served.output.to_pylist()] == [
        (b"long", 40, 55)
    ]
