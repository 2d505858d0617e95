"""Whole answers of a slot, as they were: every field of `Served`, for each kind of operator.

Two slots of one operator go through twelve steps of made-up records: some wait, some are late, a key
group is held for a while, another is split, and snapshots and a rebuilt store come between.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.operators.build import operator_of, row_bytes
from headgate.operators.deduplicate import DeduplicateSpec
from headgate.operators.join.spec import Comparison, JoinKind, JoinSpec
from headgate.operators.processor import Keyed, ProcessorSpec, State, TimeMode, Timers
from headgate.operators.serve import serve, stamped
from headgate.operators.spec import (
    NO_TIME_US,
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
from headgate_lab.testing.addresses import serve_together

Recorded = Callable[[str, Iterable[str]], None]

INTEGER, FLOAT, TEXT, MONEY = (
    Leaf(Kind.INTEGER), Leaf(Kind.FLOAT), Leaf(Kind.BYTES), Leaf(Kind.DECIMAL, 2),
)  # fmt: skip
COUNT = Aggregate(Op.COUNT, (INTEGER,))
MANY = (
    COUNT,
    Aggregate(Op.SUM_INTEGER, (INTEGER,), checked=False),
    Aggregate(Op.SUM_FLOAT, (FLOAT,)),
    Aggregate(Op.SUM_DECIMAL, (MONEY, INTEGER)),
    Aggregate(Op.MIN, (FLOAT,)),
    Aggregate(Op.MAX, (TEXT,)),
    Aggregate(Op.FIRST, (INTEGER, TEXT)),
    Aggregate(Op.LAST, (INTEGER, FLOAT)),
    Aggregate(Op.MIN_BY, (INTEGER,), (TEXT,)),
    Aggregate(Op.MAX_BY, (FLOAT,), (MONEY,)),
)
MERGING = (COUNT, Aggregate(Op.SUM_INTEGER, (INTEGER,)), Aggregate(Op.MAX, (TEXT,)))
KEPT = (Kept((INTEGER,), Keep.LIST), Kept((TEXT, FLOAT), Keep.BAG), Kept((TEXT,), Keep.SET))
SKETCH = Aggregate(Op.REGISTERS, (Leaf(Kind.REGISTERS, 2),))
NEWEST = Aggregate(
    Op.MERGED, (FLOAT, INTEGER), program=Program(
        (("coalesce", ("right", 0), ("left", 0)), ("add", ("left", 1), ("right", 1))), (None, 0), False,
    ),
)  # fmt: skip
SESSION = TimeKey(7, 7, session=True)
END = Aggregate(Op.MAX, (INTEGER,))
VALUES = pa.schema([("a", pa.int32()), ("b", pa.string())])
OUT = OutputMode

SPECS: dict[str, Any] = {
    "tumbling": AggregateSpec((INTEGER, TEXT), TimeKey(10, 10, 3), MERGING, OUT.APPEND),
    "tumbling, update": AggregateSpec((TEXT, MONEY), TimeKey(10, 10), MANY, OUT.UPDATE),
    "sliding": AggregateSpec((FLOAT,), TimeKey(12, 4, 1), MANY, OUT.APPEND),
    "sliding, update": AggregateSpec((INTEGER,), TimeKey(12, 8), MERGING, OUT.UPDATE),
    "plain time": AggregateSpec((TEXT,), TimeKey(0, 1), MERGING, OUT.APPEND),
    "for ever": AggregateSpec((), TimeKey(10, 5, expires=False), MERGING, OUT.COMPLETE),
    "no time": AggregateSpec((MONEY,), None, MANY, OUT.UPDATE),
    "complete": AggregateSpec((), None, MERGING, OUT.COMPLETE),
    "sessions": AggregateSpec((TEXT,), SESSION, (END, *MERGING), OUT.APPEND),
    "sessions, update": AggregateSpec((INTEGER,), SESSION, (END, COUNT), OUT.UPDATE),
    "programs": AggregateSpec((TEXT,), TimeKey(10, 10), (COUNT, NEWEST), OUT.UPDATE),
    "programs, sliding": AggregateSpec((INTEGER,), TimeKey(12, 4), (NEWEST, COUNT), OUT.APPEND),
    "sketches": AggregateSpec((TEXT,), TimeKey(10, 10), (COUNT, SKETCH), OUT.APPEND),
    "sketches, update": AggregateSpec((INTEGER,), None, (SKETCH, NEWEST), OUT.UPDATE),
    "kept": AggregateSpec((TEXT,), TimeKey(10, 10), (COUNT,), OUT.APPEND, KEPT),
    "kept, sliding": AggregateSpec((INTEGER,), TimeKey(12, 4), (COUNT,), OUT.UPDATE, KEPT),
    "kept sessions": AggregateSpec((TEXT,), SESSION, (END, COUNT), OUT.APPEND, KEPT),
    "first ones": DeduplicateSpec((TEXT, FLOAT), VALUES, TimeKey(0, 1), 15),
    "first ones, for ever": DeduplicateSpec((INTEGER,), VALUES, None, None),
    **{
        f"join, {kind.name.lower()}": JoinSpec(
            (TEXT,), ((INTEGER, FLOAT), (INTEGER, TEXT)), (2, 2), kind,
            (Comparison(0, 0, op),), TimeKey(0, 1), 5,
        )
        for kind, op in zip(JoinKind, ("<", "<=", ">", ">=", "<"), strict=True)
    },
    "join of all": JoinSpec(
        (), ((INTEGER, FLOAT), (INTEGER, FLOAT)), (2, 1), JoinKind.INNER,
        (Comparison(0, 0, "<="), Comparison(1, 1, ">")), TimeKey(0, 1), 5,
    ),
}  # fmt: skip


class Noting:
    """Keeps a value, a list and a map of each key, and has a timer for each record."""

    keys = pa.schema([("a", pa.string()), ("n", pa.int64())])
    inputs = pa.schema([("x", pa.int64()), ("text", pa.string())])
    initial = pa.schema([("x", pa.int64())])

    def __init__(self, ttl_ms: int | None) -> None:
        nothing, number = pa.schema([]), pa.schema([("x", pa.int64())])
        self.states: Mapping[str, tuple[Any, ...]] = {
            "last": (nothing, self.inputs, ttl_ms),
            "all": (nothing, number, ttl_ms, True),
            "by": (pa.schema([("text", pa.string())]), number),
        }
        self.closed = 0

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        state.put("all", initial.of, initial.rows)

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        lasts = np.flatnonzero(np.diff(batch.of, append=-1))
        of, rows = batch.of[lasts], batch.rows.take(pa.array(lasts))
        before = [len(state[name].of) for name in self.states]
        state.put("last", of, rows)
        state.put("all", batch.of, batch.rows.select(["x"]))
        gone = batch.rows.column("x").fill_null(0).to_numpy() < 0
        state.remove("by", batch.of[gone], batch.rows.filter(pa.array(gone)))
        state.put("by", batch.of[~gone], batch.rows.filter(pa.array(~gone)))
        fives = np.unique(batch.of[batch.rows.column("x").fill_null(0).to_numpy() == 5])
        state.clear("all", fives)
        if timers.mode is not TimeMode.NONE:
            at = (
                timers.timestamp_ms
                if timers.mode is TimeMode.PROCESSING
                else timers.watermark_ms[of]
            )
            timers.register(of, np.zeros(len(of), np.int64) + at + 3 * of)
            timers.delete(of[:1], (np.zeros(len(of), np.int64) + at)[:1])
        texts = keys.column(0).to_pylist()
        said = [f"{t} {timers.timestamp_ms} {before}" for t in texts]
        return pa.RecordBatch.from_arrays([pa.array(said)], names=["said"])

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        names = keys.column(0).to_pylist()
        at = expired.rows.column(0).to_pylist()
        kept = [len(state[name].of) for name in self.states]
        state.clear("by", np.unique(expired.of))
        said = [f"{names[o]} at {t}: {kept}" for o, t in zip(expired.of.tolist(), at, strict=True)]
        return pa.RecordBatch.from_arrays([pa.array(said)], names=["said"])

    def close(self) -> None:
        self.closed += 1


SAID = pa.schema([("said", pa.string())])
SPECS |= {
    "processor, by clock": ProcessorSpec(
        (TEXT, INTEGER), SAID, Noting(150), time_mode=TimeMode.PROCESSING, order=(0, 1)
    ),
    "processor, by events": ProcessorSpec(
        (TEXT, INTEGER), SAID, Noting(None), "mine", OUT.UPDATE, TimeMode.EVENT, True
    ),
    "processor without time": ProcessorSpec((TEXT, INTEGER), SAID, Noting(None)),
}
SLOTS = ((0, 1), (2, 3))
STEPS = 12


def values(kind: pa.DataType, name: str, dice: random.Random) -> Any:
    """Return a value of a column: few, so that they meet, with nulls and what is hard to compare."""
    if pa.types.is_integer(kind):
        return dice.choice([None, 0, 1, 2, -1, 5])
    if pa.types.is_floating(kind):
        return dice.choice([None, 0.0, -0.0, 1.5, float("nan"), float("-inf")])
    if pa.types.is_decimal(kind):
        return dice.choice([None, Decimal("0.00"), Decimal("-1.25"), Decimal(10) ** 20])
    if pa.types.is_boolean(kind):
        return dice.choice([True, False])
    return dice.choice([None, "", "a", "bb", "a\0"])


def records(operator: Any, step: int, dice: random.Random, groups: tuple[int, ...]) -> pa.Table:
    """Return made-up records, some of which come late, and some of which stand for several."""
    count = 0 if step == 7 else dice.choice([4, 8, 12])
    spec, of = operator.spec, [dice.choice(groups) for _ in range(count)]
    at = [max(0, step * 8 + dice.randint(-40, 8)) for _ in range(count)]
    kept = dict(enumerate(getattr(spec, "kept", ())))
    aggregates = [one for one in getattr(spec, "aggregates", ()) for _ in one.all_leaves]
    firsts = {f"v{i}": one.op for i, one in enumerate(aggregates) if one.op in (Op.COUNT,)}
    columns: dict[str, pa.Array] = {GROUP: pa.array(of, pa.int32())}
    for field in operator.input_schema():
        made: list[Any]
        if field.name == TIME:
            time = spec.time
            made = [t - (t - time.offset_us) % time.slice_us if time.size_us and not time.session
                    else t for t in at]  # fmt: skip
            if isinstance(spec, DeduplicateSpec):
                made = [dice.choice([t, t, t, NO_TIME_US]) for t in made]
        elif field.name in firsts or field.name in {f"h{i}" for i in kept}:
            made = [dice.choice([1, 1, 2, 0 if field.name in firsts else None]) for _ in of]
        else:
            made = [values(field.type, field.name, dice) for _ in of]
        if field.name == "v0" and isinstance(spec, JoinSpec):
            made = [dice.choice([0, 1]) for _ in of]
        elif field.name == "v1" and isinstance(spec, JoinSpec):
            made = [dice.choice([1, 1, 1, 0]) for _ in of]
        elif field.name == "v2" and isinstance(spec, JoinSpec):
            made = [t + dice.choice([0, 9, 20]) for t in at]
        elif field.name == "v0" and getattr(spec, "time", None) is SESSION:
            made = [t + 7 for t in at]
        columns[field.name] = pa.array(made, field.type)
    if operator.time is not None and TIME not in columns:
        columns[TIME] = pa.array(at, pa.int64())
    columns[RECORDS] = pa.array([dice.choice([1, 1, 2, 5]) for _ in of], pa.int64())
    if step % 3:
        first = [dice.choice([None, 100.0 * step - dice.randint(0, 90)]) for _ in of]
        columns[ARRIVED_FIRST] = pa.array(first, pa.float64())
        columns[ARRIVED_LAST] = pa.array(
            [None if x is None else x + 5.0 for x in first], pa.float64()
        )
    return pa.table(columns)


class Job:
    """Runs an operator's steps on two slots, as a driver does."""

    def __init__(self, spec: Any) -> None:
        self.operator = operator_of(spec)
        self.stores = [HeapStore(self.operator.layout.table) for _ in SLOTS]
        self.states = {g: GroupState(EMPTY_TOKEN, 0, 0) for slot in SLOTS for g in slot}
        self.sections: dict[int, list[Any]] = {group: [] for group in self.states}
        self.backlog: dict[int, pa.Table | None] = dict.fromkeys(self.states)
        self.now_ms = 0.0

    def clock(self) -> float:
        self.now_ms += 30.0
        return self.now_ms

    def chain(self, group: int) -> Callable[[str], list[Any]]:
        def sections(token: str) -> list[Any]:
            found: list[Any] = []
            for section in reversed(self.sections[group]):
                if section.token == token:
                    break
                found.insert(0, section)
                if section.full:
                    break
            return found

        return sections

    def steps(self, dice: random.Random) -> Iterator[str]:
        spec = self.operator.spec
        shared, splits = spec.shared, not spec.unsplittable
        for step in range(STEPS):
            self.now_ms = 100.0 * step
            watermark_us = max(0, step * 6 - 10)
            split = splits and 4 <= step < 9
            if step == 6:
                self.stores[0] = HeapStore(self.operator.layout.table)
            new = records(self.operator, step, dice, (0, 1, 2, 3))
            for slot, own in enumerate(SLOTS):
                mine = self._arriving(new, slot, own, shared=shared, split=split)
                served = self._serve(
                    step, slot, own, mine, watermark_us, split=split, shared=shared
                )
                yield f"step {step}, slot {slot}: {mine.num_rows} rows"
                assert served.output.schema == self.operator.schema()
                yield from shown(served)
                self._take(served, split=split)
        yield from self._entries()

    def _arriving(
        self, new: pa.Table, slot: int, own: tuple[int, ...], *, shared: bool, split: bool
    ) -> pa.Table:
        groups = new.column(GROUP).to_numpy()
        wanted = np.isin(groups, own)
        if split:  # each second record of group 0 comes to the other slot
            place = np.arange(len(groups)) % 2 == slot
            wanted = np.where(groups == 0, place, wanted)
        return new if shared else new.filter(pa.array(wanted))

    def _serve(
        self, step: int, slot: int, own: tuple[int, ...], mine: pa.Table, watermark_us: int,
        *, split: bool, shared: bool,
    ) -> Served:  # fmt: skip
        stands_us = self.states[0].emitted_us
        groups = {g: dataclasses.replace(self.states[g], snapshot=step % 5 == g) for g in own}
        if split and 0 in groups:
            groups[0] = dataclasses.replace(groups[0], stands_us=stands_us, split=True)
        held = frozenset({3}) if step in (3, 4) and slot == 1 else frozenset()
        waiting = [t for g in own if (t := self.backlog[g]) is not None and t.num_rows]
        backlog = pa.concat_tables(waiting, promote_options="default") if waiting else None
        request = Request(
            f"{step * 2 + slot + 1:032x}", watermark_us, groups, self.chain,
            quota_records=None if shared else (None, 5, 1000)[step % 3], turn=step,
            delta_ms=50.0 if step % 2 else 0.0, bound_ms=200.0 if step % 4 == 1 else 0.0,
            origins=step % 2 == 1, timestamp_ms=step * 100, held=held,
            shares={0: stands_us} if split and slot == 1 else {},
        )  # fmt: skip
        if step % 3 == 2:
            mine = stamped(mine, 100.0 * step)
        schema, initial = self.operator.initial_schema(), None
        if schema is not None and step == 0:
            columns = [pa.array([0, 0, 1], field.type) if pa.types.is_integer(field.type)
                       else pa.array([b"a", b"bb", None], field.type) for field in schema]  # fmt: skip
            initial = pa.table([pa.array([own[1], own[0], own[0]], pa.int32()), *columns],
                               names=[GROUP, *schema.names])  # fmt: skip
        return serve(
            self.operator, self.stores[slot], request, mine, backlog,
            initial=initial, now_ms=self.clock,
        )  # fmt: skip

    def _take(self, served: Served, *, split: bool) -> None:
        for group, done in served.groups.items():
            section = served.sections[group]
            self.sections[group].append(section)
            self.states[group] = GroupState(section.token, done.emitted_us, done.due_us)
        for group, count in served.taken.items():
            kept = self.backlog[group]
            assert kept is not None
            self.backlog[group] = kept.slice(count)
        for more in (served.waiting, served.apart):
            if more is None:
                continue
            groups = more.column(GROUP).to_numpy()
            for group in np.unique(groups).tolist():
                added = more.filter(pa.array(groups == group))
                if more is served.waiting and split and group == 0 and 0 not in served.groups:
                    continue
                kept = self.backlog[group]
                both = [added] if kept is None else [kept, added]
                self.backlog[group] = pa.concat_tables(both, promote_options="default")

    def _entries(self) -> Iterator[str]:
        for slot, own in enumerate(SLOTS):
            for group in own:
                state = self.states[group]
                table = self.stores[slot].acquire(group, state.token, self.chain(group))
                variables = getattr(self.operator.spec, "variables", ())
                for part in range(max(self.operator.inputs, len(variables))):
                    found = self.operator.entries(table, state.emitted_us, part)
                    yield f"entries of {group}, {part}: {found.schema.names}"
                    yield from rows(found)
                self.stores[slot].release(group)


def text(value: Any) -> str:
    """Return a value with six digits at the most."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text, value)) + "]"
    return str(value) if isinstance(value, Decimal) else repr(value)


def rows(table: pa.Table | pa.RecordBatch) -> list[str]:
    return [f"    {text(list(row.values()))}" for row in table.to_pylist()]


def shown(served: Served) -> Iterator[str]:
    """Yield every field of an answer that says something."""
    for field in dataclasses.fields(Served):
        value = getattr(served, field.name)
        if isinstance(value, pa.Table | pa.RecordBatch):
            if value.num_rows:
                yield f"  {field.name}: {value.schema.names}"
                yield from rows(value)
        elif field.name == "sections":
            for group, section in value.items():
                made = (len(section.rows), len(section.string_bytes), section.full)
                yield f"  section of {group}: {made}, {int(section.rows[:, 1:].sum())}"
        elif field.name == "latency":
            if len(value[0]):
                yield f"  latency: {text([each.tolist() for each in value])}"
        elif field.name == "counts" and value is not None:
            for name in ("arrivals", "completions"):
                parts = dataclasses.astuple(getattr(value, name))
                yield f"  {name}: {text([each.tolist() for each in parts])}"
            yield f"  end tick: {value.end_tick}"
        elif value not in ({}, (), None, 0):
            yield f"  {field.name}: {text(value)}"


def described(spec: Any) -> Iterator[str]:
    """Yield what is known of an operator before any record."""
    operator = operator_of(spec)
    for name in ("shared", "holds_us", "by_clock", "unsplittable", "results_after_us"):
        yield f"spec {name}: {text(getattr(spec, name, 'none'))}"
    yield f"spec merges: {spec.merges is not None}; as JSON {text(spec.to_json())}"
    for name in (
        "time", "expires", "shared", "inputs", "input_column", "waits_for_time", "shows_all",
    ):  # fmt: skip
        yield f"{name}: {text(getattr(operator, name))}"
    for name, schema in (("in", operator.input_schema()), ("out", operator.schema())):
        yield f"{name}: {', '.join(f'{field.name} {field.type}' for field in schema)}"
    initial = operator.initial_schema()
    yield f"initial: {initial.names if initial else None}; a row has {row_bytes(spec)} bytes"
    yield f"holds at 100: {operator.holds_us(100)}; rehearsed: {operator.rehearse()}"
    times = np.arange(-20, 30, dtype=np.int64)
    met = np.full(len(times), 5, dtype=np.int64)
    if operator.expires:
        yield f"late at 5: {times[operator.late(times, met)].tolist()}"
        yield f"partly: {times[operator.partly_late(times, met)].tolist()}"


@pytest.mark.parametrize("name", SPECS)
def test_a_slot_answers_as_recorded(
    name: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_together(
        monkeypatch
    )  # the order of results is another where groups are served one by one
    job = Job(SPECS[name])
    lines = [*described(SPECS[name]), *job.steps(random.Random(name))]
    recorded(name.replace(", ", "-").replace(" ", "-"), lines)


def test_the_specs_have_every_way_of_an_aggregate() -> None:
    aggregates = [one for spec in SPECS.values() for one in getattr(spec, "aggregates", ())]
    assert {one.op for one in aggregates} == set(Op)
