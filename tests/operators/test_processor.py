"""Processors in slots against a dictionary: through retries, rebuilds and changes of slots."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import EngineError, UnsupportedQuery
from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import Keyed, ProcessorSpec, State, TimeMode, Variable
from headgate.operators.serve import serve
from headgate.operators.spec import NEVER_US, Kind, Leaf
from headgate.operators.step import GROUP, RECORDS, GroupState, Request
from headgate.operators.warm import warm
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN

GROUPS = 4
OUTPUTS = pa.schema([("name", pa.string()), ("calls", pa.int32()), ("best", pa.float64())])
KEYS = (Leaf(Kind.BYTES), Leaf(Kind.INTEGER))
STATES = {
    "count": (pa.schema([]), pa.schema([("calls", pa.int32()), ("odd", pa.bool_())])),
    "tags": (pa.schema([("tag", pa.int64())]), pa.schema([("value", pa.float64())])),
}
REVERSED = dict(reversed(STATES.items()))


class Quiet:
    """A processor without initial state and timers."""

    initial = pa.schema([])

    def handleInitial(self, keys, initial, state, timers):
        raise AssertionError

    def handleExpired(self, keys, expired, state, timers):
        raise AssertionError

    def close(self):
        pass


class Latest(Quiet):
    """Counts a key's records, and keeps the newest `kept` values of each of its tags.

    A record of value None removes its tag. What goes out is the count and the highest value kept.
    """

    keys = pa.schema([("name", pa.string()), ("number", pa.int16())])
    inputs = pa.schema([("tag", pa.int64()), ("value", pa.float64())])
    states = STATES

    def handleBatch(self, keys, batch, state, timers):
        count = dict.fromkeys(range(keys.num_rows), 0)
        for of, row in zip(state["count"].of, state["count"].rows.to_pylist(), strict=True):
            count[of] = row["calls"]
            assert row["odd"] == (row["calls"] % 2 == 1)
        tags = defaultdict(dict)
        for of, row in zip(state["tags"].of, state["tags"].rows.to_pylist(), strict=True):
            tags[of][row["tag"]] = row["value"]
        gone, put = [], []
        for of, row in zip(batch.of, batch.rows.to_pylist(), strict=True):
            count[of] += 1
            if row["value"] is None:
                tags[of].pop(row["tag"], None)
                gone.append((of, row["tag"]))
            else:
                tags[of][row["tag"]] = row["value"]
            put = [p for p in put if p[:2] != (of, row["tag"])]
            if row["value"] is not None:
                put.append((of, row["tag"], row["value"]))
        state.remove("tags", np.array([g[0] for g in gone], np.int64), columns(["tag"], gone))
        state.put("tags", np.array([p[0] for p in put], np.int64), columns(["tag", "value"], put))
        calls = pa.array(list(count.values()), pa.int32())
        odd = pa.array([c % 2 == 1 for c in count.values()], pa.bool_())
        rows = pa.RecordBatch.from_arrays([calls, odd], names=["calls", "odd"])
        state.put("count", np.arange(keys.num_rows), rows)
        best = pa.array([max(tags[k].values(), default=None) for k in count], pa.float64())
        # more columns than asked for, and in another order
        return pa.RecordBatch.from_arrays(
            [best, keys.column("number"), calls.cast(pa.int64()), keys.column("name")],
            names=["best", "number", "calls", "name"],
        )


def columns(names, rows):
    values = list(zip(*[row[1:] for row in rows], strict=True)) or [[] for _ in names]
    kinds = {"tag": pa.int64(), "value": pa.float64()}
    arrays = [pa.array(v, kinds[n]) for n, v in zip(names, values, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


SPEC = ProcessorSpec(KEYS, OUTPUTS, Latest())


def group_of(key):
    return sum(map(ord, key[0] or "-")) % GROUPS


def arriving(rows):
    """Return rows ((name, number), tag, value) as a slot gets them."""
    kinds = [pa.int32(), pa.binary(), pa.int64(), pa.int64(), pa.float64(), pa.int64()]
    names = [GROUP, "k0", "k1", "v0", "v1", RECORDS]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    values = [
        (group_of(key), None if key[0] is None else key[0].encode(), key[1], tag, value, 1)
        for key, tag, value in rows
    ]
    fields = zip(*values, strict=True) if values else [[] for _ in schema]
    return pa.table([pa.array(v, f.type) for v, f in zip(fields, schema, strict=True)], schema)


class Slots:
    """Serves steps, with the changelog at hand."""

    def __init__(self, snapshot_every=3):
        self.operator = ProcessorOperator(SPEC)
        self.store = HeapStore(self.operator.layout.table)
        self.tokens = dict.fromkeys(range(GROUPS), EMPTY_TOKEN)
        self.sections = defaultdict(list)
        self.snapshot_every = snapshot_every
        self.step = 0

    def request(self, groups):
        due = {g for g in groups if (self.step + g) % self.snapshot_every == 0 and self.sections[g]}
        states = {g: GroupState(self.tokens[g], 0, 0, snapshot=g in due) for g in groups}

        def chain(group):
            def since(token):
                known = self.sections[group]
                tokens = [section.token for section in known]
                if token in tokens:
                    return known[tokens.index(token) + 1 :]
                full = [i for i, section in enumerate(known) if section.full]
                return known[full[-1] if full else 0 :]

            return since

        return Request(secrets.token_hex(16), 0, states, chain)

    def serve(self, rows, slots=1, *, fail_first=False):
        """Serve a step, after an attempt that failed half way if told so; return what comes out."""
        out = []
        for slot in range(slots):
            groups = [g for g in range(GROUPS) if g % slots == slot]
            mine = arriving([row for row in rows if group_of(row[0]) in groups])
            if fail_first and mine.num_rows:
                with pytest.raises(ZeroDivisionError):
                    serve(self.operator, self.store, self.request(groups), mine, on_group=fail)
                # an attempt that was done, and was not committed
                serve(self.operator, self.store, self.request(groups), mine)
            request = self.request(groups)
            served = serve(self.operator, self.store, request, mine)
            for group, section in served.sections.items():
                self.sections[group].append(section)
                self.tokens[group] = request.token
            out += served.output.to_pylist()
        self.step += 1
        return sorted((tuple(row.values()) for row in out), key=repr)


def fail(group):
    raise ZeroDivisionError(group)


class Expected:
    def __init__(self):
        self.calls, self.tags = defaultdict(int), defaultdict(dict)

    def serve(self, rows):
        for key, tag, value in rows:
            self.calls[key] += 1
            self.tags[key].pop(tag, None)
            if value is not None:
                self.tags[key][tag] = value
        out = {key: max(self.tags[key].values(), default=None) for key, _, _ in rows}
        return sorted(((k[0], self.calls[k], best) for k, best in out.items()), key=repr)


def rows(rng, count=60):
    return [
        (
            (rng.choice(["a", "b", "cc", "", None]), rng.choice([1, 2, None])),
            rng.randrange(6),
            None if rng.random() < 0.3 else float(rng.randrange(100)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_slots_keep_what_a_dictionary_keeps_through_failures_and_changes_of_slots(seed):
    rng = random.Random(seed)
    slots, expected = Slots(), Expected()
    for _ in range(12):
        if rng.random() < 0.2:
            # another host: nothing of the tables is there
            slots.store = HeapStore(slots.operator.layout.table)
        batch = rows(rng, rng.choice([0, 1, 60]))
        got = slots.serve(batch, rng.choice([1, 2, 4]), fail_first=rng.random() < 0.4)
        assert got == expected.serve(batch)


def test_only_what_a_call_changed_is_logged():
    slots = Slots(snapshot_every=99)
    slots.serve([(("a", 1), tag, 1.0) for tag in range(50)])
    slots.serve([(("a", 1), 7, 2.0), (("a", 1), 8, None)])
    (section,) = [s[-1] for s in slots.sections.values() if s]
    # the count, a tag put, the last tag in the place of one removed, how many tags there are
    assert len(section.rows) == 5
    assert sorted(section.rows[:, 0]) == [0, 1, 1, 1, 1]


def test_a_group_that_is_due_is_logged_whole_without_a_row():
    slots = Slots(snapshot_every=1)
    slots.serve([(("a", 1), tag, 1.0) for tag in range(5)])
    slots.serve([])
    (sections,) = [known for known in slots.sections.values() if known]
    assert [(section.full, len(section.rows)) for section in sections] == [(False, 7), (True, 7)]


def test_a_call_has_all_keys_of_the_slot_and_each_once():
    calls = []

    class Noting(Latest):
        def handleBatch(self, keys, batch, state, timers):
            calls.append((keys, batch))
            return super().handleBatch(keys, batch, state, timers)

    slots = Slots()
    slots.operator = ProcessorOperator(ProcessorSpec(KEYS, OUTPUTS, Noting()))
    batch = [((name, 1), tag, 1.0) for tag in range(3) for name in ("a", "b", "cc")]
    slots.serve(batch)
    slots.serve([])
    ((keys, given),) = calls
    assert keys.schema == Latest.keys
    assert sorted(keys.column("name").to_pylist()) == ["a", "b", "cc"]
    assert given.rows.schema == Latest.inputs
    # by key, and in the order of arrival within a key
    assert given.of.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert given.rows.column("tag").to_pylist() == [0, 1, 2] * 3
    assert given.starts(3).tolist() == [0, 3, 6, 9]


def test_an_entry_removed_and_put_in_one_call_is_there():
    state = State((Variable("tags", *Latest.states["tags"]),), {}, 1)
    state.put("tags", np.zeros(1, np.int64), columns(["tag", "value"], [(0, 5, 1.0)]))
    state.remove("tags", np.zeros(1, np.int64), columns(["tag"], [(0, 5)]))
    changes = state.changes["tags"]
    assert [len(changes.removed), len(changes.put)] == [1, 1]

    class Both(Latest):
        def handleBatch(self, keys, batch, state, timers):
            of = np.zeros(keys.num_rows, np.int64)
            entry = columns(["tag", "value"], [(0, 5, 1.0)] * keys.num_rows)
            state.put("tags", of, entry)
            state.remove("tags", of, entry)
            found = state["tags"].rows.column("value")
            best = pa.array(
                [found[0].as_py() if len(found) else None] * keys.num_rows, pa.float64()
            )
            names = keys.column("name")
            calls = pa.array([0] * keys.num_rows, pa.int32())
            return pa.RecordBatch.from_arrays([names, calls, best], schema=OUTPUTS)

    slots = Slots()
    slots.operator = ProcessorOperator(ProcessorSpec(KEYS, OUTPUTS, Both()))
    assert slots.serve([(("a", 1), 0, 0.0)]) == [("a", 0, None)]
    assert slots.serve([(("a", 1), 0, 0.0)]) == [("a", 0, 1.0)]


def test_output_that_lacks_a_column_is_refused():
    class Short(Latest):
        def handleBatch(self, keys, batch, state, timers):
            return super().handleBatch(keys, batch, state, timers).select(["name", "calls"])

    slots = Slots()
    slots.operator = ProcessorOperator(ProcessorSpec(KEYS, OUTPUTS, Short()))
    with pytest.raises(EngineError, match='Short with 1 keys: the output lacks column "best"'):
        slots.serve([(("a", 1), 0, 0.0)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s["tag"], 'no state "tag"; did you mean "tags"'),
        (lambda s: s.put("tags", ZERO, ONE.select(["tag"])), 'lacks column "value"'),
        (lambda s: s.remove("tags", ZERO, ONE.select(["value"])), 'lacks column "tag"'),
        (lambda s: s.put("tags", ZERO[:0], ONE), "1 rows of state came with 0 key positions"),
        (lambda s: s.put("tags", ZERO + 1, ONE), "for the key at 1, the call has 1 keys"),
        (lambda s: s.clear("tags", np.array([0, 1])), "for the key at 1, the call has 1 keys"),
        (lambda s: s.clear("tags", np.array([-1, 0])), "for the key at 0, the call has 1 keys"),
        (lambda s: s.remove("tags", ZERO - 1, ONE), "for the key at -1, the call has 1 keys"),
        (
            lambda s: s.remove("list", ZERO, ONE),
            'state "list" is a list, whose entries have no name',
        ),
    ],
)
def test_wrong_use_of_state_is_refused(call, message):
    entry, values = Latest.states["tags"]
    variables = (Variable("tags", entry, values), Variable("list", entry, values, ordered=True))
    state = State(variables, {"tags": Keyed(ZERO[:0], ONE)}, 1)
    with pytest.raises(EngineError, match=message):
        call(state)


ZERO = np.zeros(1, np.int64)
ONE = columns(["tag", "value"], [(0, 5, 1.0)])


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        (pa.schema([("x", pa.float64())]), pa.schema([])),
        (pa.schema([]), pa.schema([("x", pa.null())])),
        (pa.schema([]), pa.schema([("x", pa.timestamp("ns"))])),
    ],
)
def test_a_state_column_of_another_type_is_refused(entry, values):
    with pytest.raises(UnsupportedQuery, match='cannot keep column "x"'):
        Variable("v", entry, values)


@pytest.mark.parametrize("mode", [TimeMode.NONE, TimeMode.EVENT])
def test_a_time_to_live_that_no_clock_would_end_is_refused(mode):
    class Brief(Latest):
        states = STATES | {"count": (*STATES["count"], 1000)}

    with pytest.raises(UnsupportedQuery, match='state "count" of Brief has a time to live'):
        ProcessorSpec(KEYS, OUTPUTS, Brief(), time_mode=mode)
    ProcessorSpec(KEYS, OUTPUTS, Brief(), time_mode=TimeMode.PROCESSING)


def test_warming_calls_a_processor_without_keys():
    calls = []

    class Noting(Latest):
        def handleBatch(self, keys, batch, state, timers):
            calls.append(keys.num_rows)
            return super().handleBatch(keys, batch, state, timers)

    warm(ProcessorSpec(KEYS, OUTPUTS, Noting()))
    assert calls == [0]


def test_the_identity_of_a_processor_names_its_state_whatever_the_order():
    class Other(Latest):
        states = REVERSED

    other = ProcessorSpec(KEYS, OUTPUTS, Other())
    assert other.to_json() == SPEC.to_json()
    assert other.to_json()["states"]["tags"] == [
        [["tag", "int64"]],
        [["value", "double"]],
        False,
        False,
    ]
    assert ProcessorOperator(other).layout == ProcessorOperator(SPEC).layout


def test_a_group_whose_entries_end_is_due_when_the_oldest_that_is_left_ends():
    """Key a is written at 5,000 ms and key b at 5,500; both live for a second."""

    class Brief(Latest):
        states = STATES | {"count": (*STATES["count"], 1000)}

    slots = Slots()
    spec = ProcessorSpec(KEYS, OUTPUTS, Brief(), time_mode=TimeMode.PROCESSING)
    slots.operator = ProcessorOperator(spec)
    slots.store = HeapStore(slots.operator.layout.table)
    group, due_us = group_of(("a", 1)), int(NEVER_US)
    assert group_of(("e", 1)) == group

    def serve_at(now_ms, rows):
        nonlocal due_us
        state = GroupState(slots.tokens[group], 0, due_us)
        chain = slots.request([group]).chain
        request = Request(secrets.token_hex(16), 0, {group: state}, chain, timestamp_ms=now_ms)
        served = serve(slots.operator, slots.store, request, arriving(rows))
        for section in served.sections.values():
            slots.sections[group].append(section)
            slots.tokens[group] = request.token
        due_us = served.groups[group].due_us if group in served.groups else due_us
        return due_us // 1000

    assert serve_at(5000, [(("a", 1), 0, 1.0)]) == 6000
    assert serve_at(5500, [(("e", 1), 0, 1.0)]) == 6000
    assert serve_at(5900, []) == 6000
    assert serve_at(6000, []) == 6500
    assert serve_at(6500, []) == int(NEVER_US) // 1000
