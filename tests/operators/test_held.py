"""A key group that a migration holds: its records wait, its windows too, and the others go on."""

from __future__ import annotations

import secrets

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.build import operator_of
from headgate.operators.codec import arrow_type
from headgate.operators.deduplicate import DeduplicateSpec
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
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

INTEGER = Leaf(Kind.INTEGER)
HELD, OTHER = 0, 1


class OnlyOthers(HeapStore):
    """Fails a test that asks for the state of the group that is held."""

    def acquire(self, group, token, chain):
        assert group != HELD, "the state of a held group may be on another host"
        return super().acquire(group, token, chain)


class Slot:
    """One slot with two key groups that counts records per key and window of 10."""

    def __init__(self, mode=OutputMode.APPEND):
        counted = (Aggregate(Op.COUNT, (INTEGER,)),)
        self.operator = AggregateOperator(AggregateSpec((INTEGER,), TimeKey(10, 10), counted, mode))
        self.store = HeapStore(self.operator.layout.table)
        self.sections = {HELD: [], OTHER: []}
        self.states = {g: GroupState(EMPTY_TOKEN, 0, int(NEVER_US)) for g in (HELD, OTHER)}

    def step(self, records, watermark_us, *, held=(), quota=None, backlog=None, store=None):
        groups = pa.array([g for g, _ in records], pa.int32())
        times = pa.array([t - t % 10 for _, t in records], pa.int64())
        ones = pa.array(np.ones(len(records), np.int64))
        keys = pa.array([g for g, _ in records], arrow_type(INTEGER))
        table = pa.table({GROUP: groups, TIME: times, "k0": keys, "v0": ones, RECORDS: ones})
        token = secrets.token_hex(16)
        request = Request(
            token,
            watermark_us,
            self.states,
            lambda group: lambda _: self.sections[group],
            quota,
            held=frozenset(held),
        )
        served = serve(self.operator, store or self.store, request, table, backlog)
        for group, done in served.groups.items():
            self.sections[group].append(served.sections[group])
            self.states[group] = GroupState(token, done.emitted_us, done.due_us)
        return served

    def out(self, served):
        return dict(zip(*(served.output.column(i).to_pylist() for i in (0, 2)), strict=True))


def test_its_records_wait_and_its_state_is_not_asked_for():
    slot = Slot()
    only = OnlyOthers(slot.operator.layout.table)
    served = slot.step([(HELD, 3), (OTHER, 3), (HELD, 4)], 20, held=[HELD], store=only)
    assert served.waiting.column(GROUP).to_pylist() == [HELD, HELD]
    assert slot.out(served) == {OTHER: 1}
    assert served.served_records == 1


def test_it_takes_nothing_of_the_quota():
    slot = Slot()
    records = [(HELD, 3)] * 5 + [(OTHER, 3)] * 5
    served = slot.step(records, 0, held=[HELD], quota=4)
    assert served.served_by_group == {OTHER: 4}


def test_its_windows_come_out_once_it_is_served_again():
    slot = Slot()
    slot.step([(HELD, 3), (OTHER, 3)], 0)
    served = slot.step([], 20, held=[HELD])
    assert slot.out(served) == {OTHER: 1}
    assert served.holds_us == 0
    assert slot.out(slot.step([], 20)) == {HELD: 1}


def test_what_comes_meanwhile_is_late_only_for_what_the_group_itself_has_put_out():
    slot = Slot()
    slot.step([(HELD, 3), (OTHER, 3)], 0)
    served = slot.step([(HELD, 5), (OTHER, 15)], 20, held=[HELD])
    assert served.late_records == 0
    assert slot.out(slot.step([], 20, backlog=served.waiting)) == {HELD: 2}


@pytest.mark.parametrize("held", [(), (HELD,)])
def test_complete_mode_shows_it_all_the_same(held):
    slot = Slot(OutputMode.COMPLETE)
    slot.step([(HELD, 3), (OTHER, 3)], 0)
    assert slot.out(slot.step([], 0, held=held)) == {HELD: 1, OTHER: 1}


def test_an_operator_that_serves_group_by_group_leaves_it_alone_too():
    schema = pa.schema([("v", pa.int64())])
    operator = operator_of(DeduplicateSpec((INTEGER,), schema, TimeKey(0, 1), 5))
    groups = [HELD, OTHER, HELD]
    columns = {GROUP: pa.array(groups, pa.int32()), RECORDS: pa.array([1, 1, 1])}
    columns |= {TIME: pa.array([3, 3, 3]), "k0": pa.array(groups), "v0": pa.array(groups)}
    states = {g: GroupState(EMPTY_TOKEN, 0, 0) for g in (HELD, OTHER)}
    request = Request("1" * 32, 0, states, lambda _: lambda _: [], held=frozenset([HELD]))
    served = serve(operator, OnlyOthers(operator.layout.table), request, pa.table(columns))
    assert served.output.column(0).to_pylist() == [OTHER]
    assert served.waiting.column(GROUP).to_pylist() == [HELD, HELD]
