"""A slot's step as its driver sees it: what was counted, what waits, what is logged.

A row may stand for several records, as after aggregating below the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.codec import arrow_type
from headgate.operators.inputs import newest_by_slice
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
from headgate.operators.step import (
    ARRIVED_FIRST,
    ARRIVED_LAST,
    GROUP,
    RECORDS,
    TIME,
    GroupState,
    Request,
    Served,
)
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

INTEGER = Leaf(Kind.INTEGER)
SPEC = AggregateSpec(
    (INTEGER,), TimeKey(10, 10), (Aggregate(Op.COUNT, (INTEGER,)),), OutputMode.APPEND
)
TOKENS = ("1" * 32, "2" * 32)


def rows(times: Sequence[int], records: Sequence[int] | None = None) -> pa.Table:
    """Rows of key group 0, one key; each stands for so many records."""
    count = len(times)
    ones = pa.array(np.ones(count, np.int64))
    return pa.table(
        {
            GROUP: pa.array([0] * count, pa.int32()),
            TIME: pa.array([t - t % 10 for t in times], pa.int64()),
            "k0": pa.array([7] * count, arrow_type(INTEGER)),
            "v0": ones,
            RECORDS: ones if records is None else pa.array(records, pa.int64()),
        }
    )


def step(
    arriving: pa.Table,
    backlog: pa.Table | None = None,
    *,
    emitted_us: int = 0,
    quota: int | None = None,
    delta_ms: float = 0.0,
) -> Served:
    operator = AggregateOperator(SPEC)
    groups = {0: GroupState(EMPTY_TOKEN, emitted_us, int(NEVER_US))}
    request = Request(
        TOKENS[0], emitted_us, groups, lambda _: lambda _: [], quota, delta_ms=delta_ms
    )
    store = HeapStore(operator.layout.table)
    return serve(operator, store, request, arriving, backlog, now_ms=lambda: 1000.0)


def test_records_are_counted_and_not_rows() -> None:
    served = step(rows([13, 14, 3], [3, 2, 5]), emitted_us=10)
    assert (served.arrived_records, served.served_records, served.late_records) == (10, 5, 5)
    assert served.served_by_group == {0: 5}
    assert served.served_rows == 2


def test_only_what_waited_there_leaves_the_backlog() -> None:
    assert step(rows([1, 2, 3]), rows([4, 5])).taken == {0: 2}
    served = step(rows([1, 2, 3]), rows([4, 5]), quota=1)
    assert served.taken == {0: 1}
    assert served.waiting.num_rows == 3


def test_what_arrived_is_counted_as_arrived_though_it_waits() -> None:
    counts = step(rows([1, 2, 3]), quota=1, delta_ms=100.0).counts
    assert counts is not None
    assert counts.arrivals.records.sum() == 3
    assert counts.completions.records.sum() == 1


@pytest.mark.parametrize("slices", [3, 200])
def test_windows_put_out_late_tell_when_their_newest_record_arrived(slices: int) -> None:
    times = [10 * n + part for n in range(slices) for part in (1, 2)]
    came = pa.array([float(100 + (n * 7) % 50) for n in range(len(times))])
    arriving = rows(times).append_column(ARRIVED_FIRST, came).append_column(ARRIVED_LAST, came)
    operator = AggregateOperator(SPEC)
    groups = {0: GroupState(EMPTY_TOKEN, 0, 20)}
    request = Request(TOKENS[0], 20, groups, lambda _: lambda _: [], origins=True)
    store = HeapStore(operator.layout.table)
    served = serve(operator, store, request, arriving, now_ms=lambda: 1000.0)
    pairs = zip(came.to_pylist()[::2], came.to_pylist()[1::2], strict=True)
    assert served.newest_ms == {0: {10 * n: max(pair) for n, pair in enumerate(pairs)}}
    assert served.results == {0: {10: 1, 20: 1}}
    (counts,) = served.inputs
    assert (counts.arrived, counts.executed) == (len(times), len(times))
    assert counts.newest_ms == max(came.to_pylist())


def test_what_nobody_asks_is_not_worked_out() -> None:
    served = step(rows([1, 2, 3]))
    assert (served.inputs, served.newest_ms, served.results) == ((), {}, {})


@pytest.mark.parametrize("slices", [2, 90])
def test_the_newest_record_is_known_by_key_group_and_slice(slices: int) -> None:
    rng = np.random.default_rng(4)
    groups = np.sort(rng.integers(0, 5, 600)).astype(np.int32)
    starts = 10 * rng.integers(0, slices, 600)
    came = rng.uniform(0.0, 1e3, 600)
    table = pa.table({GROUP: groups, TIME: starts, ARRIVED_LAST: came})
    expected: dict[int, dict[int, float]] = {}
    for group, start, at in zip(groups.tolist(), starts.tolist(), came.tolist(), strict=True):
        known = expected.setdefault(group, {})
        known[start] = max(known.get(start, 0.0), at)
    assert newest_by_slice(AggregateOperator(SPEC), table) == expected


def test_a_group_that_is_due_is_logged_whole_though_no_row_came() -> None:
    operator = AggregateOperator(SPEC)
    store = HeapStore(operator.layout.table)
    state, sections = GroupState(EMPTY_TOKEN, 0, int(NEVER_US)), []
    for token, arriving, due in zip(TOKENS, (rows([1, 12]), rows([])), (False, True), strict=True):
        state = GroupState(state.token, state.emitted_us, state.due_us, snapshot=due)
        request = Request(token, 0, {0: state}, lambda _: lambda _: sections)
        served = serve(operator, store, request, arriving)
        sections.append(served.sections[0])
        state = GroupState(token, served.groups[0].emitted_us, served.groups[0].due_us)
    assert [(section.full, len(section.rows)) for section in sections] == [(False, 2), (True, 2)]


@pytest.mark.parametrize(
    ("op", "leaves", "time", "why"),
    [
        (Op.FIRST, 2, None, "order of the records"),
        (Op.LAST, 2, None, "order of the records"),
        (Op.MAX_BY, 1, None, "the one that came last"),
        (Op.MAX, 1, TimeKey(10, 10, session=True), "a session grows"),
        (Op.MAX, 1, TimeKey(6, 2), "overlapping windows"),
    ],
)
def test_what_depends_on_order_is_not_split(
    op: Op, leaves: int, time: TimeKey | None, why: str
) -> None:
    aggregates = (Aggregate(Op.COUNT, (INTEGER,)), Aggregate(op, (INTEGER,) * leaves))
    spec = AggregateSpec((INTEGER,), time, aggregates, OutputMode.UPDATE)
    assert why in spec.unsplittable
    assert not SPEC.unsplittable
