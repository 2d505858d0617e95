"""PySpark's own processors over a slot's tables, compared with PySpark's ``TwsTester``; no JVM."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import secrets
import sys
import time
from collections import Counter, defaultdict
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.streaming.tws_tester import TwsTester

from headgate.core.errors import ProcessorError, UnsupportedQuery
from headgate.engines.spark.arrow_processor import ArrowProcessor
from headgate.engines.spark.declaration import declared
from headgate.engines.spark.pandas_processor import _SETTINGS, PandasProcessor
from headgate.engines.spark.state_handle import column_of
from headgate.engines.spark.user_processor import RowProcessor
from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import Keyed, ProcessorSpec, State, TimeMode, Timers
from headgate.operators.serve import GROUP, RECORDS, GroupState, Request, serve
from headgate.operators.spec import Kind, Leaf
from headgate.state.heap import HeapStore
from headgate.state.ports import EMPTY_TOKEN

GROUPS = 4
_KINDS = {"string": T.StringType(), "bigint": T.LongType()}


def struct(text):
    """Return a schema from DDL's plainest form; Spark's own parser needs a JVM."""
    fields = [column.split() for column in text.split(", ")]
    return T.StructType([T.StructField(name, _KINDS[kind]) for name, kind in fields])


INPUT = struct("k string, v bigint, t string")
OUTPUT = struct("k string, what string, n bigint")


class Slots:
    """One slot that serves steps of a PySpark processor, with the changelog at hand."""

    def __init__(self, make, mode=TimeMode.NONE, limit_s=0.0, output=OUTPUT):
        self.limit_s = limit_s
        self.outputs = to_arrow_schema(output, timezone="UTC")
        self.make = lambda: self._made(make(), mode)
        processor = self.make()
        self.spec = ProcessorSpec(
            keys=(Leaf(Kind.BYTES),),
            outputs=self.outputs,
            processor=processor,
            name=make.__name__,
            time_mode=mode,
        )
        self.store = HeapStore(ProcessorOperator(self.spec).layout.table)
        self.sections = defaultdict(list)
        self.tokens = dict.fromkeys(range(GROUPS), EMPTY_TOKEN)
        self.due_us = dict.fromkeys(range(GROUPS), 2**63 - 1)
        self.step = 0

    def _made(self, processor, mode):
        if isinstance(processor, ArrowProcessor):
            return processor
        return RowProcessor(
            processor,
            keys=pa.schema([("k", pa.string())]),
            inputs=to_arrow_schema(INPUT, timezone="UTC"),
            initial=pa.schema([("k", pa.string()), ("v", pa.int64())]),
            outputs=self.outputs,
            states=declared(processor, mode),
            mode=mode,
        )

    def request(self, now_ms, watermark_ms):
        def chain(group):
            def since(token):
                known = self.sections[group]
                tokens = [section.token for section in known]
                if token in tokens:
                    return known[tokens.index(token) + 1 :]
                full = [i for i, section in enumerate(known) if section.full]
                return known[full[-1] if full else 0 :]

            return since

        groups = {
            g: GroupState(
                self.tokens[g],
                0,
                self.due_us[g],
                snapshot=bool(self.sections[g]) and (self.step + g) % 3 == 0,
            )
            for g in range(GROUPS)
        }
        return Request(
            secrets.token_hex(16),
            watermark_ms * 1000,
            groups,
            chain,
            timestamp_ms=now_ms,
            time_limit_s=self.limit_s,
        )

    def serve(self, rows, now_ms=0, watermark_ms=0, initial=()):
        output = self.table(rows, now_ms, watermark_ms, initial)
        return Counter(tuple(row.values()) for row in output.to_pylist())

    def table(self, rows, now_ms=0, watermark_ms=0, initial=()):
        # a task gets an object of its own, as PySpark's workers do
        operator = ProcessorOperator(dataclasses.replace(self.spec, processor=self.make()))
        there = dict(zip("kvt", zip(*rows, strict=True) if rows else ([], [], []), strict=True))
        inputs = enumerate(self.spec.processor.inputs)
        columns = {
            GROUP: pa.array([group_of(r[0]) for r in rows], pa.int32()),
            "k0": pa.array([r[0].encode() for r in rows], pa.binary()),
            **{f"v{i}": pa.array(there[column.name], column.type) for i, column in inputs},
            RECORDS: pa.array([1] * len(rows), pa.int64()),
        }
        before = None
        if initial:
            before = pa.table(
                {
                    GROUP: pa.array([group_of(r[0]) for r in initial], pa.int32()),
                    "k0": pa.array([r[0].encode() for r in initial], pa.binary()),
                    "i0": pa.array([r[0] for r in initial], pa.string()),
                    "i1": pa.array([r[1] for r in initial], pa.int64()),
                }
            )
        request = self.request(now_ms, watermark_ms)
        served = serve(operator, self.store, request, pa.table(columns), initial=before)
        for group, section in served.sections.items():
            self.sections[group].append(section)
            self.tokens[group] = request.token
            self.due_us[group] = served.groups[group].due_us
        self.step += 1
        return served.output

    def forget(self):
        """Lose the tables: the next step builds them from the changelog."""
        self.store = HeapStore(ProcessorOperator(self.spec).layout.table)


def group_of(key):
    return sum(map(ord, key)) % GROUPS


class Everything(StatefulProcessor):
    """Uses all three kinds of state in all ways, as its records say."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", struct("n bigint, last string"))
        self.texts = handle.getListState("texts", struct("text string"))
        self.seen = handle.getMapState("seen", struct("text string"), struct("n bigint"))

    def handleInitialState(self, key, initialState, timerValues):
        self.count.update((initialState.v, None))
        self.seen.updateValue(("initial",), (initialState.v,))

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.one(row)
        count = self.count.get() or (0, None)
        yield Row(k=key[0], what=f"count {count[1]}", n=count[0])
        items = [item for (item,) in self.texts.get()]
        yield Row(k=key[0], what="list " + ",".join(map(str, items)), n=len(items))
        pairs = sorted((entry, n) for (entry,), (n,) in self.seen.iterator())
        yield Row(k=key[0], what=f"map {pairs}", n=len(list(self.seen.keys())))
        found = self.seen.getValue(("a",))
        yield Row(n=None if found is None else found[0], k=key[0], what="a")
        # not of a map that has lost all entries: there the tester says yes, and Spark no
        states = (self.count, self.texts)
        yield Row(k=key[0], what=str([state.exists() for state in states]), n=0)

    def one(self, row):
        n, _ = self.count.get() or (0, None)
        self.count.update((n + 1, row.t))
        what = row.v % 13
        entry = (row.t,)
        if what == 0:
            self.seen.clear()
        elif what == 1:
            self.texts.clear()
        elif what == 2:
            self.count.clear()
        elif what == 3:
            self.texts.put([(row.t,), (str(row.v),)])
        elif what == 4:
            self.texts.appendList([(row.t,), ("x",)])
        elif what in {5, 6, 7} and self.seen.containsKey(entry):
            self.seen.removeKey(entry)
        elif what == 8:
            self.texts.appendValue((None,))
        else:
            n = self.seen.getValue(entry)
            self.seen.updateValue(entry, ((0 if n is None else n[0]) + row.v,))
            self.texts.appendValue(entry)


class Alarms(StatefulProcessor):
    """Registers and deletes timers, and lists them when one fires."""

    def init(self, handle):
        self.handle = handle
        self.fired = handle.getValueState("fired", struct("n bigint"))

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.t == "delete":
                self.handle.deleteTimer(row.v)
            else:
                self.handle.registerTimer(row.v)
        timers = list(self.handle.listTimers())
        yield Row(k=key[0], what=str(timers), n=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        (n,) = self.fired.get() or (0,)
        self.fired.update((n + 1,))
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 3 == 0:
            self.handle.registerTimer(at + 1000)  # the tester wants it after the watermark
        yield Row(k=key[0], what=f"{at} of {list(self.handle.listTimers())}", n=n)


def of_tester(tester, rows):
    """Return what ``TwsTester`` makes of rows, grouped by key as a batch is."""
    by_key = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(Row(k=row[0], v=row[1], t=row[2]))
    return Counter(
        (row.k, row.what, row.n) for key, mine in by_key.items() for row in tester.test(key, mine)
    )


@pytest.mark.parametrize("seed", range(8))
def test_state_is_what_pysparks_own_tester_keeps(seed):
    rng = random.Random(seed)
    initial = [(key, rng.randrange(9)) for key in "ab"] if seed % 2 else []
    rows_of = [(key, Row(k=key, v=v)) for key, v in initial]
    tester = TwsTester(Everything(), initialStateRow=rows_of or None)
    slots = Slots(Everything)
    for step in range(14):
        count = rng.choice([0, 1, 5, 60])
        rows = [
            (rng.choice("abcdef"), rng.randrange(400), rng.choice("abxyzé")) for _ in range(count)
        ]
        if rng.random() < 0.3:
            slots.forget()
        assert slots.serve(rows, initial=initial if step == 0 else ()) == of_tester(tester, rows)


@pytest.mark.parametrize("mode", [TimeMode.EVENT, TimeMode.PROCESSING])
@pytest.mark.parametrize("seed", range(4))
def test_timers_fire_after_the_rows_of_their_batch(seed, mode):
    rng = random.Random(seed)
    event = mode is TimeMode.EVENT
    tester = TwsTester(
        Alarms(),
        timeMode="EventTime" if event else "ProcessingTime",
        eventTimeExtractor=(lambda _: 2**60) if event else None,
    )
    slots, now_ms = Slots(Alarms, mode), 0
    for _ in range(14):
        now_ms += rng.randrange(1, 60)
        rows = [
            (rng.choice("abcdef"), now_ms + rng.randrange(1, 90), rng.choice(["delete", "set"]))
            for _ in range(rng.choice([0, 1, 20]))
        ]
        if event:
            tester.handle.setWatermark(now_ms)
            tester._currentWatermarkMs = now_ms
        else:
            tester._currentProcessingTimeMs = now_ms
        expected = of_tester(tester, rows)
        expected += Counter((row.k, row.what, row.n) for row in tester._handleExpiredTimers())
        if rng.random() < 0.3:
            slots.forget()
        got = slots.serve(rows, now_ms, now_ms if event else -1)
        if not event:
            # without a watermark Spark says 0 there and the tester -1
            got = Counter(
                {(k, what, -1 if what[0] == "[" else n): c for (k, what, n), c in got.items()}
            )
        assert got == expected


class At(StatefulProcessor):
    """Registers a timer at the time that a record says."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.handle.registerTimer(row.v)
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(k=key[0], what="timer", n=expiredTimerInfo.getExpiryTimeInMs())


@pytest.mark.parametrize("mode", [TimeMode.PROCESSING, TimeMode.EVENT])
def test_timers_of_any_time_fire_when_it_has_come(mode):
    slots = Slots(At, mode)
    past = [-(2**63), -12_000_000_000_000_000, -1, 0, 1000]
    for at_ms in past:
        assert slots.serve([("a", at_ms, "")], 1000, 1000) == Counter([("a", "timer", at_ms)])
    assert not slots.serve([("a", at_ms, "") for at_ms in (1001, 2**63 - 1)], 1000, 1000)
    assert slots.serve([], 1001, 1001) == Counter([("a", "timer", 1001)])
    assert not slots.serve([], 10**13, 10**13)


class Brief(StatefulProcessor):
    """Says what is there before it writes it again, each with a time to live of 100 ms."""

    def init(self, handle):
        self.value = handle.getValueState("value", struct("n bigint"), 100)
        self.items = handle.getListState("items", struct("n bigint"), 100)
        self.pairs = handle.getMapState("pairs", struct("text string"), struct("n bigint"), 100)

    def handleInputRows(self, key, rows, timerValues):
        items = [n for (n,) in self.items.get()]
        pairs = sorted(text for (text,) in self.pairs.keys())
        yield Row(k=key[0], what=f"{self.value.get()} {items} {pairs}", n=0)
        for row in rows:
            if row.t == "value":
                self.value.update((row.v,))
            self.items.appendValue((row.v,))
            self.pairs.updateValue((row.t,), (row.v,))


def test_state_is_unseen_once_its_time_to_live_is_over():
    slots = Slots(Brief, TimeMode.PROCESSING)
    said = []
    for now_ms, word, number in [
        (0, "value", 1),
        (50, "b", 2),
        (99, "c", 3),
        (120, "d", 4),
        (400, "e", 5),
    ]:
        ((_, what, _),) = slots.serve([("a", number, word)], now_ms)
        said.append(what)
    assert said == [
        "None [] []",
        "(1,) [1] ['value']",
        "(1,) [1, 2] ['b', 'value']",
        # what was written at 0 ended at 100
        "None [2, 3] ['b', 'c']",
        "None [] []",
    ]


def test_state_that_has_ended_is_removed_without_a_record():
    slots = Slots(Brief, TimeMode.PROCESSING)
    slots.serve([(key, 1, "value") for key in "abc"], 0)
    due = [at_us for at_us in slots.due_us.values() if at_us < 2**62]
    assert due == [100_000] * 3
    assert 0 < sum(section.rows[:, 0].sum() for s in slots.sections.values() for section in s)
    slots.serve([], 99)
    slots.serve([], 5000)
    for sections in slots.sections.values():
        live = {}
        for section in sections:
            live = {} if section.full else live
            for row in section.rows.tolist():
                live[tuple(row[1:5])] = row[0]
        assert not any(live.values())


def stop(row):
    """Fail, exit or hang, if the record says so."""
    if row.t == "raise":
        raise ValueError(f"secret {row}")
    if row.t == "exit":
        sys.exit(f"secret {row}")
    if row.t == "hang":
        while True:
            pass
    while row.t == "hang and go on":
        try:
            time.sleep(1)
        except Exception:
            continue


class Wrong(StatefulProcessor):
    """Fails in the way that its first record names."""

    def init(self, handle):
        self.count = handle.getValueState("count", struct("n bigint"))
        self.seen = handle.getMapState("seen", struct("text string"), struct("n bigint"))
        self.last = None

    def handleInputRows(self, key, rows, timerValues):
        self.count.update((1,))
        for row in rows:
            self.last = row.t
            stop(row)
            if row.t == "state":
                self.count.update(("secret",))
            if row.t == "width":
                self.count.update((1, 2))
            if row.t == "key":
                self.seen.updateValue((b"\xff secret",), (1,))
            if row.t == "column":
                yield Row(k=key[0], what="x", n="secret")
            if row.t == "kind":
                yield {"k": "secret"}
            if row.t == "name":
                yield Row(k="a", what="fine")

    def close(self):
        if self.last == "close":
            raise ValueError("secret")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "raise",
            "Wrong with 1 keys: handleInputRows, at record 2 of 2 of key 1 of 1: ValueError in",
        ),
        ("exit", "record 2 of 2 of key 1 of 1: SystemExit in"),
        ("close", "Wrong.close: ValueError in"),
        ("hang", "more than the 0.2 s of headgate.processorTimeLimit"),
        ("hang and go on", "record 2 of 2 of key 1 of 1: it took more than the 0.2 s"),
        ("state", 'column "n" of state "count" is int64, and value 1 of 1 is of type str'),
        ("width", 'a value of state "count" must be a tuple of 1 .n., got 2 values'),
        ("key", 'column "text" of state "seen" is string, and value 1 of 1 is of type bytes'),
        ("column", 'column "n" of the output of Wrong is int64, and value 1 of 1 is of type str'),
        ("kind", "Wrong put out a dict; it must put out Row.k, what, n."),
    ],
)
def test_a_failure_names_its_place_and_never_the_record(how, message):
    slots = Slots(Wrong, limit_s=0.2)
    slots.serve([("a", 1, "fine")])
    tokens = dict(slots.tokens)
    with pytest.raises(ProcessorError, match=message) as caught:
        slots.serve([("a", 1, "fine"), ("a", 2, how)])
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    # nothing of the step is committed, and the next one finds the state before it
    assert slots.tokens == tokens
    slots.serve([("a", 1, "name")])


def test_an_output_column_that_a_row_lacks_is_null():
    slots = Slots(Wrong)
    assert slots.serve([("a", 1, "name")]) == Counter([("a", "fine", None)])


class Nested(StatefulProcessor):
    """Keeps a value of every kind of type."""

    def init(self, handle):
        fields = [T.StructField(f"c{i}", kind) for i, kind in enumerate(NESTED)]
        self.value = handle.getValueState("value", T.StructType(fields))

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=key[0], what=repr(self.value.get()), n=0)
        self.value.update(tuple(NESTED.values()))


NESTED = {
    T.ByteType(): -5,
    T.DoubleType(): 0.5,
    T.BooleanType(): True,
    T.DateType(): dt.date(1969, 12, 31),
    T.TimestampType(): dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    T.TimestampNTZType(): dt.datetime(2026, 1, 2, 3, 4, 5, 6),
    T.DecimalType(30, 4): Decimal("123456789012345678901234.5678"),
    T.BinaryType(): b"\x00\xff",
    T.ArrayType(T.ArrayType(T.StringType())): [["a", None], [], None],
    T.MapType(T.StringType(), T.DateType()): {"x": dt.date(2026, 1, 1), "y": None},
    struct("text string, n bigint"): Row(text="é", n=None),
    T.ArrayType(T.TimestampType()): [dt.datetime(2026, 1, 2, 3, 4, 5, 6), None],
    T.MapType(T.StringType(), T.ArrayType(struct("n bigint"))): {"x": [Row(n=1), None], "y": None},
    T.LongType(): None,
}


def test_state_holds_values_of_all_types():
    slots = Slots(Nested)
    slots.serve([("a", 1, "x")])
    slots.forget()
    assert slots.serve([("a", 1, "x")]) == Counter([("a", repr(tuple(NESTED.values())), 0)])


class Reused(StatefulProcessor):
    """Puts one and the same list into rows and state, and changes it all the time."""

    output = T.StructType([T.StructField("items", T.ArrayType(T.LongType()))])

    def __init__(self):
        self.items = []

    def init(self, handle):
        self.kept = handle.getValueState("kept", self.output)

    def handleInputRows(self, key, rows, timerValues):
        if self.kept.exists():
            self.kept.get()[0].append(0)
            yield Row(items=self.kept.get()[0])
        for row in rows:
            self.items.append(row.v)
            yield Row(items=self.items)
        self.kept.update((self.items,))
        self.items.clear()


def test_a_list_counts_as_it_was_when_it_was_put():
    slots = Slots(Reused, output=Reused.output)

    def put_out(rows):
        return slots.table(rows).column(0).to_pylist()

    assert put_out([("a", 1, ""), ("a", 2, ""), ("e", 3, "")]) == [[1], [1, 2], [3]]
    assert put_out([("a", 4, ""), ("e", 5, "")]) == [[1, 2], [4], [3], [5]]


class Stamp(dt.datetime):
    """A time as pandas has it, whose `astimezone` wants to be told the zone."""

    def astimezone(self, tz):
        return super().astimezone(tz)

    def to_pydatetime(self):
        return dt.datetime.combine(self.date(), self.time(), self.tzinfo)


@pytest.mark.parametrize("zone", [None, dt.UTC])
def test_a_time_of_pandas_is_kept_as_one_of_python(zone):
    kind = pa.timestamp("us", tz="UTC")
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=zone)
    kept, expected = (
        column_of([value], pa.field("at", kind), "state")
        for value in (Stamp(2026, 1, 2, 3, 4, 5, 6, tzinfo=zone), at)
    )
    assert kept.equals(expected)


class Frames(StatefulProcessor):
    """Computes with what a frame holds, which depends on the types of its columns."""

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            refused = frame[~frame["fine"]] if frame["fine"].notna().all() else frame[:0]
            n = (frame["v"] * 3_000_000).sum() + len(refused)
            yield type(frame)({"k": [key[0]], "what": ["sum"], "n": [n]})


def test_a_keys_frame_does_not_depend_on_other_keys():
    settings = dict.fromkeys(_SETTINGS, False)
    processor = PandasProcessor(
        Frames(),
        keys=pa.schema([("k", pa.string())]),
        inputs=pa.schema([("v", pa.int32()), ("fine", pa.bool_())]),
        initial=pa.schema([]),
        outputs=to_arrow_schema(OUTPUT, timezone="UTC"),
        states={},
        mode=TimeMode.NONE,
        returns=OUTPUT,
        settings=settings | {"timezone": "UTC", "assign_cols_by_name": True},
    )
    columns = [pa.array([1000, 1, 2], pa.int32()), pa.array([False, True, None])]
    rows = pa.RecordBatch.from_arrays(columns, schema=processor.inputs)
    keys = pa.RecordBatch.from_pydict({"k": ["a", "b"]}, schema=processor.keys)
    state = State((), {}, 2)
    timers = Timers(state, TimeMode.NONE, -1, np.full(2, -1))
    got = processor.handleBatch(keys, Keyed(np.array([0, 1, 1]), rows), state, timers)
    assert got.column("n").to_pylist() == [3_000_000_001, 9_000_000]


class ByPlace(StatefulProcessor):
    """Keeps a map whose keys are a list and a time."""

    def init(self, handle):
        key = [
            T.StructField("cell", T.ArrayType(T.LongType())),
            T.StructField("at", T.TimestampType()),
        ]
        self.seen = handle.getMapState("seen", T.StructType(key), struct("n bigint"))

    def handleInputRows(self, key, rows, timerValues):
        at = dt.datetime(2026, 1, 2, 3, 4, 5)
        for row in rows:
            cell = ([row.v, 1], at.astimezone() if row.t == "zoned" else at)
            (n,) = self.seen.getValue(cell) or (0,)
            self.seen.updateValue(cell, (n + 1,))
            if row.t == "remove":
                assert self.seen.containsKey(cell)
                self.seen.removeKey(cell)
        for (cell, _), (n,) in self.seen.iterator():
            yield Row(k=key[0], what=str(cell), n=n)


def test_keys_of_a_map_may_be_lists_and_times_with_a_zone_or_without():
    slots = Slots(ByPlace)
    slots.serve([("a", 1, "zoned"), ("a", 2, "")])
    slots.forget()
    got = slots.serve([("a", 1, ""), ("a", 2, "remove"), ("a", 3, "zoned")])
    assert got == Counter([("a", "[1, 1]", 2), ("a", "[3, 1]", 1)])


class Clock(ArrowProcessor):
    """Keeps the words of a key, and says them all some time after the first."""

    keys = pa.schema([("k", pa.string())])
    inputs = pa.schema([("v", pa.int64()), ("t", pa.string())])
    states = MappingProxyType(
        {"words": (pa.schema([("t", pa.string())]), pa.schema([("v", pa.int64())]), 10_000)}
    )

    def handleBatch(self, keys, batch, state, timers):
        known = set(timers.registered.of.tolist())
        fresh = [key for key in range(keys.num_rows) if key not in known]
        at_ms = np.full(len(fresh), timers.timestamp_ms + 100)
        timers.register(np.array(fresh, np.int64), at_ms)
        state.put("words", batch.of, batch.rows)
        return said(keys, state["words"], "before")

    def handleExpired(self, keys, expired, state, timers):
        state.clear("words", np.arange(keys.num_rows))
        return said(keys, state["words"], "all")


def said(keys, words, what):
    texts = [[] for _ in range(keys.num_rows)]
    for of, row in zip(words.of, words.rows.to_pylist(), strict=True):
        texts[of].append(f"{row['t']}={row['v']}")
    names = keys.column("k").to_pylist()
    rows = [
        {"k": key, "what": f"{what} {sorted(found)}", "n": 0}
        for key, found in zip(names, texts, strict=True)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(OUTPUT))


@pytest.mark.parametrize("seed", range(3))
def test_an_arrow_processor_with_timers_does_in_slots_what_it_does_in_the_tester(seed):
    rng = random.Random(seed)
    tester = TwsTester(Clock(), timeMode="ProcessingTime")
    slots, now_ms = Slots(Clock, TimeMode.PROCESSING), 0
    for _ in range(12):
        now_ms += rng.randrange(1, 80)
        # one row per key and batch: what several rows of one key put wins in the order they came
        rows = [
            (key, rng.randrange(100), rng.choice("xyz")) for key in "abcd" if rng.random() < 0.5
        ]
        tester._currentProcessingTimeMs = now_ms
        expected = of_tester(tester, rows)
        expected += Counter((row.k, row.what, row.n) for row in tester._handleExpiredTimers())
        assert slots.serve(rows, now_ms) == expected


class Kept:
    """A value state that gives and takes what Spark's does: Python values by way of Spark's own."""

    def __init__(self, schema):
        self.schema, self.value = schema, None

    def exists(self):
        return self.value is not None

    def get(self):
        return tuple(f.fromInternal(v) for f, v in zip(self.schema, self.value, strict=True))

    def update(self, value):
        # Spark makes null of a map that is no dictionary
        kept = tuple(None if isinstance(v, list) else v for v in value)
        self.value = self.schema.toInternal(kept)


class Moments(ArrowProcessor):
    """Keeps a time and a map, and puts out what it finds."""

    keys = pa.schema([("k", pa.string())])
    inputs = pa.schema([("v", pa.int64())])
    values = pa.schema([("at", pa.timestamp("us", "UTC")), ("m", pa.map_(pa.string(), pa.int64()))])
    states = MappingProxyType({"seen": (pa.schema([]), values)})

    def handleBatch(self, keys, batch, state, timers):
        seen = state["seen"].rows
        at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
        fresh = pa.RecordBatch.from_pylist([{"at": at, "m": {"x": 1}}], schema=self.values)
        state.put("seen", np.zeros(1, np.int64), seen if len(seen) else fresh)
        return seen


def test_times_and_maps_in_the_state_of_an_arrow_processor_stay_what_they_are(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        processor = Moments()
        processor.init(SimpleNamespace(getValueState=lambda name, schema, ttl: Kept(schema)))
        now = TimerValues(-1, -1)
        got = [list(processor.handleInputRows(("a",), [Row(v=1)], now)) for _ in range(3)]
    finally:
        monkeypatch.undo()
        time.tzset()
    seen = Row(at=dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), m=[("x", 1)])
    assert got == [[], [seen], [seen]]


@pytest.mark.parametrize(
    ("schema", "ttl_ms", "mode", "message"),
    [
        (struct("n bigint"), 5, TimeMode.EVENT, 'state "s" of Odd has a time to live, which needs'),
        (struct("n bigint"), -5, TimeMode.PROCESSING, "a time to live of -5 ms"),
        (T.LongType(), None, TimeMode.NONE, 'state "s" of Odd needs a struct'),
        (T.StructType([T.StructField("n", T.NullType())]), None, TimeMode.NONE, "cannot keep"),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(schema, ttl_ms, mode, message):
    class Odd(StatefulProcessor):
        def init(self, handle):
            handle.getValueState("s", schema, ttl_ms)

        def handleInputRows(self, key, rows, timerValues):
            return iter([])

    with pytest.raises(UnsupportedQuery, match=message):
        declared(Odd(), mode)
