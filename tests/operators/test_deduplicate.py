"""Duplicates in slots against a dictionary."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headgate.operators.build import operator_of
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.serve import serve
from headgate.operators.spec import NO_TIME_US, Kind, Leaf, TimeKey
from headgate.operators.step import GROUP, RECORDS, TIME, GroupState, Request
from headgate.operators.warm import warm
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

STEPS, PER_STEP = 6, 20
OUTPUTS = pa.schema([("number", pa.int64()), ("list", pa.list_(pa.int32()))])
KEYS = (Leaf(Kind.BYTES), Leaf(Kind.INTEGER))


def spec(keep_us, time=TimeKey(0, 1)):  # noqa: B008 -- frozen
    return DeduplicateSpec(KEYS, OUTPUTS, time, keep_us)


def arriving(records):
    return pa.table({
        GROUP: pa.array([0] * len(records), pa.int32()),
        RECORDS: pa.array([1] * len(records)),
        TIME: pa.array([r[1] for r in records], pa.int64()),
        "k0": pa.array([r[0][0] for r in records], pa.binary()),
        "k1": pa.array([r[0][1] for r in records], pa.int64()),
        "v0": pa.array([r[2] for r in records], pa.int64()),
        "v1": pa.array([[r[2]] for r in records], pa.list_(pa.int32())),
    })  # fmt: skip


@pytest.mark.parametrize("keep_us", [None, 0, 25])
def test_the_first_record_of_each_key_comes_out_until_the_key_is_forgotten(keep_us):
    rng = random.Random(1)
    operator = operator_of(spec(keep_us))
    store, state, sections = HeapStore(operator.layout.table), GroupState(EMPTY_TOKEN, 0, 0), []
    forget, number, got, expected = {}, 0, [], []
    for step in range(STEPS):
        records = []
        for _ in range(PER_STEP):
            time = step * 20 + rng.randint(1, 20) if rng.random() < 0.9 else NO_TIME_US
            records.append(((rng.choice([b"a", b"", None]), rng.randrange(3)), time, number))
            number += 1
        watermark = max(step - 1, 0) * 20
        for key, time, count in records:
            if key not in forget:
                never = keep_us is None or time == NO_TIME_US
                forget[key] = 2**63 if never else time + keep_us
                expected.append(count)
        forget = {key: at for key, at in forget.items() if at > watermark}
        if step == 3:
            store = HeapStore(operator.layout.table)
        token = f"{step + 1:032x}"
        request = Request(token, watermark, {0: state}, lambda _: lambda _: sections)
        served = serve(operator, store, request, arriving(records))
        state = GroupState(token, served.groups[0].emitted_us, served.groups[0].due_us)
        sections.append(served.sections[0])
        assert served.groups[0].rows == len(forget)
        rows = served.output.to_pylist()
        assert all(row["v1"] == [row["v0"]] for row in rows)
        got += [row["v0"] for row in rows]
    assert got == expected
    assert keep_us is None or len(got) > 9


def test_a_record_at_or_before_the_watermark_is_late():
    operator = operator_of(spec(0))
    records = [((b"a", 1), 10, 0), ((b"b", 1), 11, 1)]
    request = Request("1" * 32, 10, {0: GroupState(EMPTY_TOKEN, 10, 0)}, lambda _: lambda _: [])
    served = serve(operator, HeapStore(operator.layout.table), request, arriving(records))
    assert served.late_records == 1
    assert [row["v0"] for row in served.output.to_pylist()] == [1]


def test_warming_runs_whatever_the_columns_are():
    warm(spec(0))
    warm(spec(None, time=None))


def test_a_struct_whose_fields_are_never_null_may_be_null():
    """As a vector of Spark's ML is: Arrow does not cast it to its own type."""
    vector = pa.struct([pa.field("size", pa.int32(), nullable=False)])
    warm(DeduplicateSpec(KEYS, pa.schema([("v0", vector)]), TimeKey(0, 1), None))


def test_a_group_is_said_to_be_half_written_before_it_is_committed():
    operator, state = operator_of(spec(0)), GroupState(EMPTY_TOKEN, 0, 0)
    store, said = HeapStore(operator.layout.table), []

    def fail(group):
        said.append(group)
        raise RuntimeError("in the middle")

    request = Request("1" * 32, 0, {0: state}, lambda _: lambda _: [])
    with pytest.raises(RuntimeError, match="in the middle"):
        serve(operator, store, request, arriving([((b"a", 1), 10, 0)]), on_group=fail)
    assert said == [0]
