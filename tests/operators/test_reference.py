"""The slots' arithmetic against a dictionary of Python values, over random histories."""

from __future__ import annotations

import math
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.assignment import Assignment, rescale, spread
from headgate.core.errors import EngineError
from headgate.operators import aggregate
from headgate.operators.aggregate import AggregateOperator
from headgate.operators.codec import arrow_type
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
from headgate.operators.step import GROUP, RECORDS, TIME, GroupState, Request, Served
from headgate.tables import together
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN, Section
from headgate_lab.testing.reference import Record, Reference, Row

GROUPS = 6
EXAMPLES = settings(max_examples=int(os.environ.get("HEADGATE_EXAMPLES", "60")))
"""A history is long; `make laws` and a night run more through HYPOTHESIS_PROFILE."""

EXACT = Context(prec=60)
INTEGER, FLOAT, TEXT = Leaf(Kind.INTEGER), Leaf(Kind.FLOAT), Leaf(Kind.BYTES)
MONEY = Leaf(Kind.DECIMAL, 3)

# -- arrow, and back --------------------------------------------------------------------------------


def arrow(values: list[Any], leaf: Leaf) -> pa.Array:
    if leaf.kind is Kind.DECIMAL:
        values = [None if v is None else Decimal(v).scaleb(-leaf.scale, EXACT) for v in values]
    return pa.array(values, arrow_type(leaf), from_pandas=False)


def plain(value: Any) -> Any:
    """Return a leaf so that equal ones compare equal: one NaN, one zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def of_arrow(column: pa.Array, leaf: Leaf) -> list[Any]:
    values = column.to_pylist()
    if leaf.kind is Kind.DECIMAL:
        values = [None if v is None else int(v.scaleb(leaf.scale, EXACT)) for v in values]
    return [plain(v) for v in values]


def bag(rows: list[Row]) -> Counter[Row]:
    return Counter(
        (tuple(map(plain, key)), end, tuple(map(plain, values))) for key, end, values in rows
    )


def emitted(served: Served, operator: AggregateOperator) -> list[Row]:
    spec, columns = operator.spec, list(served.output.columns)
    keys = [of_arrow(c, leaf) for c, leaf in zip(columns, spec.keys, strict=False)]
    at = len(keys)
    ends: list[int | None] = [None] * served.output.num_rows
    if spec.time is not None:
        ends, at = columns[at].to_pylist(), at + 1
    leaves = operator.layout.value_leaves
    values = [of_arrow(c, leaf) for c, leaf in zip(columns[at:], leaves, strict=True)]
    return [
        (tuple(k[i] for k in keys), ends[i], tuple(v[i] for v in values))
        for i in range(served.output.num_rows)
    ]


# -- a driver in a few lines ------------------------------------------------------------------------


class Job:
    """Runs steps of one operator as the driver does, beside the reference, and compares them."""

    def __init__(self, spec: AggregateSpec, slots: int = 1) -> None:
        self.operator = AggregateOperator(spec)
        self.reference = Reference(spec)
        self.assignment: Assignment = spread(slots, GROUPS)
        self.store = HeapStore(self.operator.layout.table)
        self.sections: dict[int, list[Section]] = {g: [] for g in range(GROUPS)}
        self.tokens = [EMPTY_TOKEN] * GROUPS
        self.emitted_us = [0] * GROUPS
        self.due_us = [int(NEVER_US)] * GROUPS
        self.backlog: pa.Table | None = None
        self.watermark_us = 0

    def rebuild(self) -> None:
        """Lose all tables: they come back from the changelog."""
        self.store = HeapStore(self.operator.layout.table)

    def chain(self, group: int) -> Callable[[str], list[Section]]:
        def sections(token: str) -> list[Section]:
            found: list[Section] = []
            for section in reversed(self.sections[group]):
                if section.token == token:
                    break
                found.insert(0, section)
                if section.full:
                    break
            return found

        return sections

    def table(self, records: list[Record]) -> pa.Table:
        operator, spec = self.operator, self.operator.spec
        times = np.array([r.time_us for r in records], dtype=np.int64)
        if spec.time is not None and spec.time.size_us:
            times -= (times - spec.time.offset_us) % spec.time.slice_us
        columns = {GROUP: pa.array([r.group for r in records], pa.int32())}
        if spec.time is not None:
            columns[TIME] = pa.array(times)
        for i, leaf in enumerate(spec.keys):
            columns[f"k{i}"] = arrow([r.key[i] for r in records], leaf)
        for i, leaf in enumerate(operator.layout.value_leaves):
            columns[f"v{i}"] = arrow([r.values[i] for r in records], leaf)
        columns[RECORDS] = pa.array(np.ones(len(records), dtype=np.int64))
        return pa.table(columns)

    def step(
        self,
        records: list[Record],
        watermark_us: int,
        quota: int | None = None,
        snapshots: frozenset[int] = frozenset(),
    ) -> list[Row]:
        """Do one step on every slot, compare with the reference, return what came out."""
        self.watermark_us = watermark_us = max(self.watermark_us, watermark_us)
        late_before = len(self.reference.late)
        for record in records:
            self.reference.arrive(record)
        refused = Counter(map(self._as_row, self.reference.late[late_before:]))
        backlog, self.backlog = self.backlog, None
        out: list[Row] = []
        late: Counter[Row] = Counter()
        waiting = []
        for slot in range(self.assignment.slots):
            mine = self.assignment.groups_of(slot)
            served = self._slot(
                mine,
                [r for r in records if r.group in mine],
                _of_groups(backlog, mine),
                quota,
                snapshots,
            )
            out += emitted(served, self.operator)
            late += Counter(self._rows_of(served.late))
            waiting.append(self._still_waiting(_of_groups(backlog, mine), served))
            self._compare(mine, served, waiting[-1], quota)
        self.backlog = _of_groups(pa.concat_tables(waiting), range(GROUPS))
        assert late == refused
        expected: list[Row] = []
        left = Counter(self._groups_waiting())
        for group in range(GROUPS):
            queue = len(self.reference.waiting.get(group, ()))
            expected += self.reference.serve(group, queue - left[group], watermark_us)
        self.reference.emitted_us = dict(enumerate(self.emitted_us))
        assert bag(out) == bag(expected)
        return out

    def _slot(
        self,
        mine: tuple[int, ...],
        records: list[Record],
        backlog: pa.Table | None,
        quota: int | None,
        snapshots: frozenset[int],
    ) -> Served:
        groups = {
            g: GroupState(self.tokens[g], self.emitted_us[g], self.due_us[g], g in snapshots)
            for g in mine
        }
        token = secrets.token_hex(16)
        request = Request(token, self.watermark_us, groups, self.chain, quota)
        arriving = self.table(records)
        served = serve(self.operator, self.store, request, arriving, backlog)
        for group, done in served.groups.items():
            self.tokens[group] = token
            self.sections[group].append(served.sections[group])
            self.due_us[group] = done.due_us
        return served

    def _still_waiting(self, backlog: pa.Table | None, served: Served) -> pa.Table:
        """Return the backlog as the driver keeps it: what was taken leaves, what waits joins."""
        if backlog is None:
            return served.waiting
        parts = []
        for group in range(GROUPS):
            rows = _of_groups(backlog, [group])
            if rows is not None:
                parts.append(rows.slice(served.taken.get(group, 0)))
        return pa.concat_tables([*parts, served.waiting.select(backlog.schema.names)])

    def _compare(
        self, mine: tuple[int, ...], served: Served, waiting: pa.Table, quota: int | None
    ) -> None:
        left = Counter(waiting.column(GROUP).to_pylist())
        queued = sum(len(self.reference.waiting.get(g, ())) for g in mine)
        assert served.served_records == min(queued, queued if quota is None else quota)
        assert sum(left.values()) == queued - served.served_records
        for group in mine:
            before = self.emitted_us[group]
            if group in served.groups:
                self.emitted_us[group] = served.groups[group].emitted_us
            elif group not in left:
                self.emitted_us[group] = max(before, self.watermark_us)
            assert before <= self.emitted_us[group] <= max(before, self.watermark_us)
            if group not in left:
                assert self.emitted_us[group] == max(before, self.watermark_us)
        if mine:
            assert served.holds_us <= self.watermark_us or served.holds_us in self.emitted_us

    def _groups_waiting(self) -> list[int]:
        return [] if self.backlog is None else self.backlog.column(GROUP).to_pylist()

    def _as_row(self, record: Record) -> Row:
        return self._rows_of(self.table([record]))[0]

    def _rows_of(self, table: pa.Table) -> list[Row]:
        spec = self.operator.spec
        keys = [of_arrow(table.column(f"k{i}"), x) for i, x in enumerate(spec.keys)]
        leaves = self.operator.layout.value_leaves
        values = [of_arrow(table.column(f"v{i}"), x) for i, x in enumerate(leaves)]
        times = table.column(TIME).to_pylist() if spec.time is not None else [None] * len(table)
        return [
            (tuple(k[i] for k in keys), times[i], tuple(v[i] for v in values))
            for i in range(len(table))
        ]


def _of_groups(table: pa.Table | None, groups: Any) -> pa.Table | None:
    if table is None:
        return None
    found = table.filter(pa.array(np.isin(table.column(GROUP).to_numpy(), list(groups))))
    return found if found.num_rows else None


# -- random specs and histories ---------------------------------------------------------------------

VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.INTEGER: st.sampled_from([None, -3, 0, 1, 2, 2**40]),
    # quarters: their sums are exact, whatever the order
    Kind.FLOAT: st.sampled_from([None, -0.25, 0.0, 1.5, 2.25, math.nan, math.inf]),
    Kind.DECIMAL: st.sampled_from([None, 0, -1, 10**30, 5 * 10**37, -(10**38) + 1]),
    Kind.BYTES: st.sampled_from([None, b"", b"a", b"ab", b"\xff", "\u00e9".encode(), b"a\x00"]),
}
KEYS = {**VALUES, Kind.FLOAT: st.sampled_from([None, 0.0, 1.5, math.nan])}


@st.composite
def aggregates(draw: st.DrawFn, *, sliced: bool) -> Aggregate:
    leaf = st.sampled_from([INTEGER, FLOAT, MONEY, TEXT])
    # the order of a window's slices is not that of their records, nor is it in Spark
    ordered = [] if sliced else [Op.FIRST, Op.LAST, Op.MIN_BY, Op.MAX_BY]
    op = draw(st.sampled_from([op for op in Op if op.value < Op.FIRST] + ordered))
    if op is Op.COUNT:
        return Aggregate(op, (INTEGER,))
    if op is Op.SUM_INTEGER:
        return Aggregate(op, (INTEGER,), checked=draw(st.booleans()))
    if op is Op.SUM_FLOAT:
        return Aggregate(op, (FLOAT,))
    if op is Op.SUM_DECIMAL:
        return Aggregate(op, (MONEY, INTEGER))
    fields = tuple(draw(st.lists(leaf, min_size=1, max_size=3)))
    if op in (Op.FIRST, Op.LAST):
        return Aggregate(op, (INTEGER, *fields))
    struct = draw(st.booleans())
    leaves = (INTEGER, *fields) if struct else fields[:1]
    if op in (Op.MIN_BY, Op.MAX_BY):
        return Aggregate(op, leaves, tuple(draw(st.lists(leaf, min_size=1, max_size=2))))
    return Aggregate(op, leaves)


@st.composite
def times(draw: st.DrawFn, mode: OutputMode, *, sliding: bool) -> TimeKey | None:
    kinds = ["window", "sliding", "plain"] + ([] if mode is OutputMode.APPEND else ["none"])
    kind = "sliding" if sliding else draw(st.sampled_from(kinds))
    expires = mode is OutputMode.APPEND or draw(st.booleans())
    if kind == "none":
        return None
    if kind == "plain":
        return TimeKey(0, 1, 0, expires=expires)
    advance = draw(st.sampled_from([2, 3, 4, 6]))
    size = advance if kind == "window" else draw(st.integers(advance, 3 * advance))
    return TimeKey(size, advance, draw(st.integers(0, advance - 1)), expires=expires)


@st.composite
def specs(draw: st.DrawFn, *, sliding: bool = False) -> AggregateSpec:
    mode = draw(st.sampled_from(list(OutputMode)))
    time = draw(times(mode, sliding=sliding))
    sliced = time is not None and time.sliced
    keys = draw(st.lists(st.sampled_from([INTEGER, FLOAT, MONEY, TEXT]), max_size=2))
    chosen = draw(st.lists(aggregates(sliced=sliced), min_size=1, max_size=4))
    return AggregateSpec(tuple(keys), time, tuple(chosen), mode)


@st.composite
def buffers(draw: st.DrawFn, aggregate: Aggregate) -> tuple[Any, ...]:
    """Return one record's own buffers of an aggregate, as an engine would route them."""
    if aggregate.op is Op.COUNT:
        return (draw(st.sampled_from([0, 1, 1])),)
    values = [draw(VALUES[leaf.kind]) for leaf in aggregate.all_leaves]
    if aggregate.op is Op.SUM_DECIMAL:
        # of one sign: else an overflow on the way depends on the order, in Spark as well
        values[0] = None if values[0] is None else abs(values[0])
        values[1] = int(values[0] is not None)
    if aggregate.op in (Op.FIRST, Op.LAST):
        values[0] = draw(st.sampled_from([0, 1, 1]))
    return tuple(values)


@st.composite
def records(draw: st.DrawFn, spec: AggregateSpec, base_us: int) -> Record:
    key = tuple(draw(KEYS[leaf.kind]) for leaf in spec.keys)
    # a key lives in one key group; all that matters is that it always does
    group = sum(repr(key).encode()) % GROUPS
    values = [v for a in spec.aggregates for v in draw(buffers(a))]
    return Record(group, key, base_us + draw(st.integers(-8, 8)), tuple(values))


class History:
    """Random steps of a random spec, drawn as they run."""

    def __init__(self, data: st.DataObject, spec: AggregateSpec) -> None:
        self.data, self.spec = data, spec
        self.job = Job(spec, slots=data.draw(st.integers(1, 3), "slots"))
        self.base_us = 20

    def run(self, steps: int) -> None:
        draw = self.data.draw
        for _ in range(steps):
            if draw(st.booleans(), "rebuild"):
                self.job.rebuild()
            if draw(st.booleans(), "rescale"):
                slots = draw(st.integers(1, GROUPS), "slots")
                self.job.assignment = rescale(self.job.assignment, slots)
            batch = draw(st.lists(records(self.spec, self.base_us), max_size=12), "batch")
            quota = draw(st.sampled_from([None, None, 1, 2, 5]), "quota")
            full = draw(st.frozensets(st.integers(0, GROUPS - 1), max_size=2), "snapshots")
            self.job.step(batch, self.base_us - draw(st.integers(0, 10), "behind"), quota, full)
            self.base_us += draw(st.integers(0, 12), "progress")
        while self.job.backlog is not None:
            self.job.step([], self.base_us, quota=3)
        self.job.step([], self.base_us + 1000)


@given(data=st.data(), spec=specs())
@EXAMPLES
def test_whatever_happens_a_job_puts_out_what_the_reference_does(
    data: st.DataObject, spec: AggregateSpec
) -> None:
    History(data, spec).run(steps=5)


@given(data=st.data(), spec=specs(sliding=True))
@settings(max_examples=40)
def test_windows_made_of_blocks_of_slices_are_those_made_of_slices(
    data: st.DataObject, spec: AggregateSpec
) -> None:
    with mock.patch.multiple(aggregate, _BLOCKS_FROM_DUE=1, _BLOCKS_FROM_SLICES=4):
        History(data, spec).run(steps=5)


@given(data=st.data(), spec=specs().filter(lambda s: s.mode is OutputMode.APPEND))
@settings(max_examples=30)
def test_after_the_last_window_no_state_is_left(data: st.DataObject, spec: AggregateSpec) -> None:
    history = History(data, spec)
    history.run(steps=3)
    job = history.job
    assert not job.reference.windows
    for group, sections in job.sections.items():
        if sections:
            table = job.store.acquire(group, job.tokens[group], job.chain(group))
            assert table.live_count == 0
            job.store.release(group)
    assert set(job.due_us) == {int(NEVER_US)}


@pytest.mark.slow
def test_kernels_run_as_plain_python_give_the_same_answers() -> None:
    chosen = "puts_out_what_the_reference_does or timeline or overflow"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(Path(__file__).parent), "--jit=0", "-q", "-k", chosen],
        env={**os.environ, "HEADGATE_JIT": "0", "HEADGATE_EXAMPLES": "5"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


# -- a few records of many groups -------------------------------------------------------------------


def largest(mode: OutputMode, time: TimeKey | None = None) -> Job:
    """A job with strings in keys and in values."""
    return Job(AggregateSpec((TEXT, INTEGER), time, (Aggregate(Op.MAX, (TEXT,)),), mode))


@pytest.mark.skipif(not together.ENABLED, reason="there is no compiled code")
def test_a_step_is_one_call_of_a_kernel_however_many_groups_have_records() -> None:
    job = largest(OutputMode.UPDATE)
    with mock.patch.object(together, "upsert_each", wraps=together.upsert_each) as calls:
        for number in range(3):
            job.step([Record(g, (b"k%d" % g, g), 0, (b"v%d" % number,)) for g in range(GROUPS)], 0)
    assert calls.call_count == 3


@pytest.mark.parametrize("mode", [OutputMode.UPDATE, OutputMode.APPEND])
def test_tables_that_grow_by_a_few_records_a_step_lose_none(mode: OutputMode) -> None:
    # rows (44 of 64), strings (32) and their bytes (512) run out in the middle of a step
    job = largest(mode, TimeKey(1000, 1000))
    for number in range(12):
        records = [
            Record(g, (b"key %d of step %d" % (i, number), g), number, (b"v" * (i % 7) or None,))
            for g in range(GROUPS)
            for i in range(1 if number % 3 == 2 else 40)
        ]
        job.step(records, number // 2, snapshots=frozenset({number % GROUPS}))
        if number == 7:
            job.rebuild()
    job.step([Record(1, (b"last", 1), 1500, (b"w",))], 1200)
    job.rebuild()
    job.step([], 3000)


# -- overflow ---------------------------------------------------------------------------------------


def _one(op: Op, *values: Any, leaves: tuple[Leaf, ...], **told: bool) -> list[Row]:
    spec = AggregateSpec((INTEGER,), None, (Aggregate(op, leaves, **told),), OutputMode.COMPLETE)
    return Job(spec).step([Record(0, (1,), 0, v) for v in values], 0)


def test_an_overflow_of_a_checked_sum_is_an_error_that_no_retry_helps() -> None:
    with pytest.raises(EngineError, match="a sum of integers left the range") as raised:
        _one(Op.SUM_INTEGER, (2**63 - 1,), (1,), leaves=(INTEGER,))
    assert not raised.value.transient


def test_an_overflow_is_an_error_where_results_are_updated_too() -> None:
    total = Aggregate(Op.SUM_INTEGER, (INTEGER,))
    job = Job(AggregateSpec((INTEGER,), None, (total,), OutputMode.UPDATE))
    job.step([Record(g, (g,), 0, (2**63 - 1,)) for g in range(3)], 0)
    with pytest.raises(EngineError, match="a sum of integers left the range"):
        job.step([Record(g, (g,), 0, (1,)) for g in range(3)], 0)


def test_a_sum_of_negative_zeros_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    # as text, or within JSON, the two zeros are told apart, which `plain` makes one
    monkeypatch.setattr(sys.modules[__name__], "plain", lambda value: value)
    [(_, _, (total,))] = _one(Op.SUM_FLOAT, (-0.0,), (-0.0,), leaves=(FLOAT,))
    assert math.copysign(1.0, total) == 1.0


def test_an_overflow_of_an_unchecked_sum_wraps() -> None:
    rows = _one(Op.SUM_INTEGER, (2**63 - 1,), (1,), leaves=(INTEGER,), checked=False)
    assert rows == [((1,), None, (-(2**63),))]


@pytest.mark.parametrize("sign", [1, -1])
def test_an_overflow_of_a_decimal_sum_is_null_and_stays_null(sign: int) -> None:
    most = sign * (10**38 - 1)
    rows = _one(Op.SUM_DECIMAL, (most, 1), (sign, 1), (-most, 1), leaves=(MONEY, INTEGER))
    assert rows == [((1,), None, (None, 3))]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_greatest_decimal_is_no_overflow(sign: int) -> None:
    most = sign * (10**38 - 1)
    rows = _one(Op.SUM_DECIMAL, (most - sign, 1), (sign, 1), leaves=(MONEY, INTEGER))
    assert rows == [((1,), None, (most, 2))]


# -- windows, drawn ---------------------------------------------------------------------------------


def counting(time: TimeKey, mode: OutputMode = OutputMode.APPEND) -> Job:
    return Job(AggregateSpec((INTEGER,), time, (Aggregate(Op.COUNT, (INTEGER,)),), mode))


def at(*times_us: int) -> list[Record]:
    return [Record(0, (7,), t, (1,)) for t in times_us]


def counts(rows: list[Row]) -> dict[int | None, int]:
    return {end: values[0] for _, end, values in rows}


def test_timeline_of_a_tumbling_window() -> None:
    #    0         10        20        30
    #    |----A----|----B----|----C----|
    #      3  5        14
    #                   ^ watermark 10: A is out
    #         ^ 9 comes late, and is refused: A is out
    job = counting(TimeKey(10, 10))
    assert counts(job.step(at(3, 5, 14), 9)) == {}
    assert counts(job.step([], 10)) == {10: 2}
    assert counts(job.step(at(9, 15), 10)) == {}
    assert [r.time_us for r in job.reference.late] == [9]
    assert counts(job.step([], 25)) == {20: 2}


def test_timeline_of_a_sliding_window_whose_size_is_no_multiple_of_its_advance() -> None:
    #   -4   -2   0    2    4    6    8   10   12         size 6, advance 4: slices of 2
    #         |-------A-----|                             [-2, 4)
    #                  |-------B------|                   [2, 8)
    #                            |-------C------|         [6, 12)
    #              1    3         7
    #                       ^ watermark 5: A {1, 3} is out; 3 still counts in B
    job = counting(TimeKey(6, 4, 2))
    assert counts(job.step(at(1, 3, 7), 0)) == {}
    assert counts(job.step([], 5)) == {4: 2}
    assert counts(job.step([], 8)) == {8: 2}
    assert counts(job.step([], 100)) == {12: 1}


def test_timeline_of_a_record_that_is_late_for_some_of_its_windows() -> None:
    #    0    2    4    6    8                            size 4, advance 2
    #    |----A----|
    #         |----B----|
    #           3                                         in A and B
    #              ^ watermark 4: A is out
    #           3 again: A keeps its one record, B gets a second
    job = counting(TimeKey(4, 2))
    assert counts(job.step(at(3), 4)) == {4: 1}
    assert counts(job.step(at(3), 4)) == {}
    assert counts(job.step([], 6)) == {6: 2}
    assert job.reference.late == []


def test_timeline_of_a_record_that_waits_and_holds_the_watermark() -> None:
    #    0         10        20
    #    |----A----|----B----|
    #      3  5        12
    #                          ^ watermark 20, quota 1: 5 waits, so the group's watermark is 5's
    job = counting(TimeKey(10, 10))
    assert counts(job.step(at(3, 5, 12), 20, quota=1)) == {}
    assert job.emitted_us[0] == 0
    assert counts(job.step([], 20, quota=1)) == {10: 2}
    assert job.emitted_us[0] == 10
    assert counts(job.step([], 20, quota=1)) == {20: 1}


def test_timeline_of_update_mode() -> None:
    #    0         10        20
    #    |----A----|----B----|
    #      3           12      each step puts out the windows it changed, once
    #         5
    job = counting(TimeKey(10, 10), OutputMode.UPDATE)
    assert counts(job.step(at(3, 12), 0)) == {10: 1, 20: 1}
    assert counts(job.step(at(5), 10)) == {10: 2}
    assert counts(job.step(at(6), 10)) == {}
    assert len(job.reference.late) == 1


def test_complete_mode_refuses_no_record_however_late() -> None:
    job = counting(TimeKey(10, 10), OutputMode.COMPLETE)
    job.step(at(3), 50)
    assert counts(job.step(at(4), 60)) == {10: 2}


def test_a_plain_time_is_out_as_soon_as_the_watermark_reaches_it() -> None:
    job = counting(TimeKey(0, 1))
    assert counts(job.step(at(5, 6), 5)) == {5: 1}
    assert counts(job.step(at(5), 6)) == {6: 1}
    assert [r.time_us for r in job.reference.late] == [5]


def test_late_records_say_what_the_group_had_emitted() -> None:
    job = counting(TimeKey(4, 2))
    job.step(at(3), 4)
    job.step([], 6)
    mine = job._slot((0,), at(3, 5, 9), None, None, frozenset())
    assert mine.late.column("emitted").to_pylist() == [6]
    assert mine.partly_late.column(TIME).to_pylist() == [4]
    assert mine.late.schema == mine.partly_late.schema


def test_no_record_is_partly_late_for_a_tumbling_window() -> None:
    job = counting(TimeKey(10, 10))
    job.step(at(3), 5)
    assert job._slot((0,), at(4), None, None, frozenset()).partly_late.num_rows == 0


def test_a_table_without_late_records_has_the_same_columns_as_one_with() -> None:
    job = counting(TimeKey(10, 10))
    nothing = job._slot((0,), [], None, None, frozenset())
    assert "emitted" in nothing.late.schema.names
    assert nothing.late.schema == nothing.partly_late.schema


# -- quotas -----------------------------------------------------------------------------------------


def test_a_hot_group_delays_only_itself() -> None:
    spec = AggregateSpec((INTEGER,), None, (Aggregate(Op.COUNT, (INTEGER,)),), OutputMode.UPDATE)
    job = Job(spec)
    hot = [Record(0, (0,), 0, (1,))] * 100
    cold = [Record(g, (g,), 0, (1,)) for g in range(1, GROUPS)]
    job.step(hot + cold, 0, quota=10)
    assert Counter(job._groups_waiting()) == {0: 95}


def test_no_quota_serves_everything() -> None:
    job = Job(AggregateSpec((), None, (Aggregate(Op.COUNT, (INTEGER,)),), OutputMode.COMPLETE))
    assert counts(job.step([Record(0, (), 0, (1,))] * 1000, 0)) == {None: 1000}
    assert job.backlog is None
