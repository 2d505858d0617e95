"""Joins in slots against a nested loop: through backlogs, rebuilds and changes of slots."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators.join.match import SideRecords, bounds_of, ordered, pairs
from headgate.operators.join.operator import JoinOperator, join_layout
from headgate.operators.join.spec import LEFT, RIGHT, Comparison, JoinKind, JoinSpec
from headgate.operators.serve import serve
from headgate.operators.spec import Kind, Leaf, TimeKey
from headgate.operators.step import GROUP, RECORDS, TIME, GroupState, Request
from headgate.operators.warm import warm
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

GROUPS, STEPS, PER_STEP, REACH = 4, 6, 40, 30
INTEGER, FLOAT, BYTES = Leaf(Kind.INTEGER), Leaf(Kind.FLOAT), Leaf(Kind.BYTES)
DECIMAL = Leaf(Kind.DECIMAL, 2)
# |left time - right time| <= REACH, as two comparisons of one-sided values
BAND = (Comparison(1, 1, "<="), Comparison(2, 1, ">="))
SPEC = JoinSpec(
    keys=(BYTES, INTEGER),
    sides=((BYTES, INTEGER, INTEGER, FLOAT), (INTEGER, INTEGER, DECIMAL, FLOAT)),
    put_out=(2, 3),
    kind=JoinKind.INNER,
    comparisons=(*BAND, Comparison(3, 3, "<")),
    time=TimeKey(0, 1),
    holds_us=-REACH,
)


def made_records(seed, *, with_keys=True):
    """Return per step (side, group, key, time, values, may match); times are never late."""
    rng = random.Random(seed)
    steps = []
    for step in range(STEPS):
        records = []
        for _ in range(PER_STEP):
            side, time = rng.randrange(2), step * 20 + rng.randint(1, 20)
            key = (rng.choice([b"a", b"bc", b""]), rng.randrange(2)) if with_keys else ()
            group = hash(key) % GROUPS if with_keys else rng.randrange(GROUPS)
            number = rng.choice([0.5, -0.0, 0.0, 2.0, math.nan, -math.inf])
            text = rng.choice([None, b"x", b"yz"])
            own = (text, time - REACH, time + REACH, number)
            if side == RIGHT:
                own = (rng.choice([None, 7]), time, None, number)
            records.append((side, group, key, time, own, rng.random() < 0.9))
        steps.append(records)
    return steps


def table(spec, records):
    """Return records as they arrive."""
    operator = JoinOperator(spec)
    columns = {GROUP: [], RECORDS: []} | {name: [] for name in operator.input_schema().names}
    width = [len(leaves) for leaves in spec.sides]
    for side, group, key, time, values, may in records:
        columns[GROUP].append(group)
        columns[RECORDS].append(1)
        columns[TIME].append(time)
        for i, part in enumerate(key):
            columns[f"k{i}"].append(part)
        padded = [None] * width[LEFT] + list(values) if side else list(values) + [None] * width[1]
        for i, value in enumerate([side, int(may), time + REACH, *padded]):
            columns[f"v{i}"].append(value)
    kinds = {GROUP: pa.int32(), RECORDS: pa.int64()}
    kinds |= {field.name: field.type for field in operator.input_schema()}
    return pa.table({n: pa.array(c, kinds[n]) for n, c in columns.items()})


def meets(spec, left, right):
    def key(value):
        return (1, 0.0) if math.isnan(value) else (0, value)

    close = abs(left[3] - right[3]) <= REACH
    less = len(spec.comparisons) < 3 or key(left[4][3]) < key(right[4][3])
    return left[2] == right[2] and left[5] and right[5] and close and less


def nested_loop(spec, steps, watermark):
    """Return all rows that have gone out when the watermark has come to `watermark`."""
    records = [record for step in steps for record in step]
    lefts = [r for r in records if r[0] == LEFT]
    rights = [r for r in records if r[0] == RIGHT]
    found = Counter()
    met = set()
    for i, left in enumerate(lefts):
        for j, right in enumerate(rights):
            if meets(spec, left, right):
                met |= {(LEFT, i), (RIGHT, j)}
                if spec.kind is not JoinKind.LEFT_SEMI:
                    found[(*left[4][:2], *right[4][:3])] += 1
    for side, own in ((LEFT, lefts), (RIGHT, rights)):
        for i, record in enumerate(own):
            if spec.kind is JoinKind.LEFT_SEMI:
                found[record[4][:2]] += side == LEFT and (side, i) in met
            elif side in spec.kind.padded and (side, i) not in met:
                gone = record[3] + REACH <= watermark or not record[5]
                row = (
                    (*record[4][:2], *(None,) * 3) if side == LEFT else (None, None, *record[4][:3])
                )
                found[row] += gone
    return +found


class Slots:
    """All slots of an operator, sharing one store as they do on a host."""

    def __init__(self, spec, rng):
        self.operator = JoinOperator(spec)
        self.store = HeapStore(self.operator.layout.table)
        self.rng = rng
        self.chains = {g: [] for g in range(GROUPS)}
        self.states = {g: GroupState(EMPTY_TOKEN, 0, 0) for g in range(GROUPS)}
        self.backlog = {g: None for g in range(GROUPS)}
        self.rows = Counter()
        self.dealt = np.zeros((2, 2), np.int64)

    def step(self, number, arriving, watermark):
        slots = [[g for g in range(GROUPS) if g % 3 == s] for s in range(3)]
        if self.rng.random() < 0.5:  # another assignment
            slots = [[g for g in range(GROUPS) if g != 1], [1], []]
        for owned in slots:
            if self.rng.random() < 0.2:
                self.store = HeapStore(self.operator.layout.table)
            self._serve(number, owned, arriving, watermark)

    def _serve(self, number, owned, arriving, watermark):
        shared = self.operator.shared
        mine = arriving
        if not shared:
            mine = arriving.filter(pa.array(np.isin(arriving[GROUP].to_numpy(), owned)))
        token = f"{self.rng.getrandbits(127) + 1:032x}"
        states = {g: replace(self.states[g], snapshot=self.rng.random() < 0.3) for g in owned}
        held = frozenset(g for g in owned if number < STEPS and self.rng.random() < 0.2)
        request = Request(
            token, watermark, states, lambda g: lambda t: self._chain(g, t),
            quota_records=None if shared else 20, turn=number, held=held, origins=True,
        )  # fmt: skip
        waiting = [self.backlog[g] for g in owned if self.backlog[g] is not None]
        served = serve(
            self.operator, self.store, request, mine, pa.concat_tables(waiting) if waiting else None
        )
        self.dealt += [[one.arrived, one.executed] for one in served.inputs]
        for group, done in served.groups.items():
            self.states[group] = GroupState(token, done.emitted_us, done.due_us)
            self.chains[group].append(served.sections[group])
        for group in owned:
            new = served.waiting.filter(pa.array(served.waiting[GROUP].to_numpy() == group))
            old = self.backlog[group]
            left = [] if old is None else [old.slice(served.taken.get(group, 0))]
            self.backlog[group] = pa.concat_tables([*left, new])
        self.rows += Counter(tuple(row.values()) for row in served.output.to_pylist())

    def _chain(self, group, token):
        sections = self.chains[group]
        known = [i for i, section in enumerate(sections) if section.token == token]
        return sections[known[0] + 1 :] if known else sections[self._full(sections) :]

    def _full(self, sections):
        return max([i for i, section in enumerate(sections) if section.full], default=0)


def run(spec, steps, seed):
    slots = Slots(spec, random.Random(seed))
    watermark = 0
    for number, records in enumerate(steps):
        slots.step(number, table(spec, records), watermark)
        watermark = number * 20
    while any(b is not None and b.num_rows for b in slots.backlog.values()):
        number += 1
        slots.step(number, table(spec, []), watermark)
    slots.step(number + 1, table(spec, []), watermark)
    return slots.rows, watermark, slots


@pytest.mark.parametrize("kind", JoinKind)
@pytest.mark.parametrize("seed", range(3))
def test_a_join_puts_out_what_a_nested_loop_finds(kind, seed):
    put_out = (2, 0) if kind is JoinKind.LEFT_SEMI else (2, 3)
    spec = replace(SPEC, kind=kind, put_out=put_out)
    steps = made_records(seed)
    got, watermark, _ = run(spec, steps, seed)
    expected = nested_loop(spec, steps, watermark)
    assert expected.total() > 20
    assert got == expected


def test_each_side_is_counted_by_itself():
    steps = made_records(0)
    _, _, slots = run(SPEC, steps, 0)
    sides = Counter(side for records in steps for side, *_ in records)
    assert sides[LEFT] != sides[RIGHT]
    assert slots.dealt.tolist() == [[sides[side]] * 2 for side in (LEFT, RIGHT)]


@pytest.mark.parametrize("comparisons", [BAND, SPEC.comparisons])
def test_without_an_equality_each_pair_is_found_once_by_the_slot_that_stores_the_left_record(
    comparisons,
):
    spec = replace(SPEC, keys=(), comparisons=comparisons)
    steps = made_records(5, with_keys=False)
    got, watermark, slots = run(spec, steps, 5)
    assert got == nested_loop(spec, steps, watermark)
    stored = [sum(len(s.rows) for s in slots.chains[g]) for g in range(GROUPS)]
    assert min(stored) > 0


def test_without_an_equality_a_text_is_logged_by_the_key_group_that_stores_it_only():
    spec = replace(SPEC, keys=(), put_out=(4, 4))
    slots = Slots(spec, random.Random(1))
    texts = [b"%020d" % i for i in range(40)]
    lefts = [(LEFT, i % GROUPS, (), 10, (x, 0, 0, 0.0), True) for i, x in enumerate(texts)]
    slots.step(1, table(spec, lefts), 0)
    logged = [bytes(s.string_bytes) for chain in slots.chains.values() for s in chain]
    assert sum(map(len, logged)) == 20 * len(texts)


def test_what_can_meet_no_record_any_more_is_forgotten():
    steps = made_records(1)
    _, _, slots = run(SPEC, steps, 1)
    slots.step(100, table(SPEC, []), 10**6)
    for group, state in slots.states.items():
        kept = slots.store.acquire(group, state.token, lambda t, g=group: slots._chain(g, t))
        assert kept.live_count == 0


def test_a_warm_join_serves_in_every_form():
    warm(SPEC)
    warm(replace(SPEC, keys=(), kind=JoinKind.INNER))


def test_null_bits_of_many_columns_have_words_of_their_own():
    few = join_layout(replace(SPEC, sides=((INTEGER,) * 63, (INTEGER,))))
    many = join_layout(replace(SPEC, sides=((INTEGER,) * 64, (INTEGER,))))
    assert (few.expiry_at, few.matched_at, few.sides[LEFT].at[0]) == (1, 2, 3)
    assert (many.expiry_at, many.matched_at, many.sides[LEFT].at[0]) == (2, 3, 4)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
def test_comparisons_order_floats_as_spark_does(op):
    values = np.array([-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan, -math.nan])

    def key(value):
        return (1, 0.0) if math.isnan(value) else (0, value)

    comparison = (Comparison(0, 0, op),)
    words = ordered(values.view(np.int64), Kind.FLOAT)
    left, _ = bounds_of(LEFT, comparison, [words], 8)
    right, _ = bounds_of(RIGHT, comparison, [words], 8)
    holds = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b}
    holds |= {">": lambda a, b: a > b, ">=": lambda a, b: a >= b}
    got = left[0][:, None] <= right[0][None, :]
    assert got.tolist() == [[holds[op](key(a), key(b)) for b in values] for a in values]


@pytest.mark.parametrize("side", [LEFT, RIGHT])
@pytest.mark.parametrize("far", [0, 2**62])
def test_an_order_by_the_first_comparison_finds_what_comparing_all_finds(side, far):
    rng = np.random.default_rng(3)
    times = [rng.integers(0, 100, 300) + far, rng.integers(0, 100, 400) + far]
    left, _ = bounds_of(LEFT, BAND, [times[0] - 5, times[0] + 7], 300)
    right, _ = bounds_of(RIGHT, BAND, [times[1], times[1]], 400)
    both = [
        SideRecords(rng.integers(-1, 2, 300), left),
        SideRecords(rng.integers(-1, 2, 400), right),
    ]
    probe, stored = pairs(both[side], both[1 - side], 2, probe_side=side)
    found = (probe, stored) if side == LEFT else (stored, probe)
    close = (times[0][:, None] - 5 <= times[1]) & (times[1] <= times[0][:, None] + 7)
    same = (both[LEFT].of[:, None] == both[RIGHT].of) & (both[LEFT].of[:, None] >= 0)
    expected = set(zip(*(a.tolist() for a in np.nonzero(close & same)), strict=True))
    assert len(found[0]) == len(expected)
    assert set(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected


@pytest.mark.parametrize("side", [LEFT, RIGHT])
@pytest.mark.parametrize("stored_count", [1, 40, 400])
def test_comparisons_that_bound_different_columns_are_all_made(side, stored_count):
    """Of one stored record any two comparisons look like the two ends of a band."""
    rng = np.random.default_rng(5)
    counts = (300, stored_count) if side == LEFT else (stored_count, 300)
    (a, b), (x, y) = (rng.integers(0, 100, (2, count)) for count in counts)
    left, _ = bounds_of(LEFT, BAND, [a, b], counts[0])
    right, _ = bounds_of(RIGHT, BAND, [x, y], counts[1])
    both = [
        SideRecords(np.zeros(n, np.int64), of) for n, of in zip(counts, (left, right), strict=True)
    ]
    found = pairs(both[side], both[1 - side], 1, probe_side=side)
    meet = (a[:, None] <= x) & (b[:, None] >= y)
    expected = np.nonzero(meet if side == LEFT else meet.T)
    assert sorted(zip(*(of.tolist() for of in found), strict=True)) == list(
        zip(*(of.tolist() for of in expected), strict=True)
    )
