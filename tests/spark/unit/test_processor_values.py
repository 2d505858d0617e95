"""Values in the state of PySpark's processors, of every type; and of `ArrowProcessor`; no JVM."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections import Counter
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from processor_slots import OUTPUT, Slots, of_tester, struct, tws_tester
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import TimerValues

from headgate.core.errors import ProcessorError, UnsupportedQuery
from headgate.operators.processor import TIMERS, Keyed, State, TimeMode, Timers
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.read.declaration import declared
from headgate.spark.worker.arrow_processor import ArrowProcessor
from headgate.spark.worker.pandas_processor import _SETTINGS, PandasProcessor
from headgate.spark.worker.state_handle import column_of
from headgate.spark.worker.state_values import written
from headgate.spark.worker.user_processor import RowProcessor


def test_a_map_or_a_struct_is_written_as_a_dictionary_or_as_its_pairs_or_fields():
    kind = pa.map_(pa.string(), pa.struct([("n", pa.int64()), ("m", pa.int64())]))
    fields = {"n": 1, "m": 2}
    expected = [("x", fields), ("y", None)]
    for value in (
        {"x": fields, "y": None},
        [("x", fields), ("y", None)],
        {"x": Row(n=1, m=2), "y": None},
        [("x", (1, 2)), ("y", None)],
    ):
        assert written(value, kind) == expected
    assert written({"x": {"m": 2}}, kind) == [("x", {"n": None, "m": 2})]
    for value in (3, {"x": (1,)}, [("x", (1, 2), 3)]):
        with pytest.raises((TypeError, ValueError)):
            written(value, kind)


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


class Told(StatefulProcessor):
    """Notes the keys that it is called with."""

    def __init__(self):
        self.keys = []

    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        self.keys.append(key[0])
        return iter(())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self.keys.append(key.at)
        return iter(())


@pytest.fixture
def in_new_york(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("kind", "settings", "hour"),
    [(RowProcessor, {}, 19), (PandasProcessor, {"settings": {"timezone": "Asia/Tokyo"}}, 9)],
)
def test_a_key_that_is_a_time_has_no_zone_when_a_timer_fires(in_new_york, kind, settings, hour):
    """As on plain Spark, where rows show it in the session's zone, timers of rows in the process's."""
    user, mode = Told(), TimeMode.EVENT
    processor = kind(
        user,
        keys=pa.schema([("at", pa.timestamp("us", tz="Asia/Tokyo"))]),
        inputs=pa.schema([]),
        initial=pa.schema([]),
        outputs=to_arrow_schema(OUTPUT, timezone="UTC"),
        states={},
        mode=mode,
        **settings,
    )
    midnight = pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], processor.keys.types[0])
    keys = pa.RecordBatch.from_arrays([midnight], schema=processor.keys)
    fired = Keyed(np.zeros(1, dtype=np.int64), pa.RecordBatch.from_pydict({"at_ms": [5]}))
    state = State((TIMERS,), {TIMERS.name: fired}, 1)
    processor.handleExpired(keys, fired, state, Timers(state, mode, 0, np.full(1, 7)))
    (key,) = user.keys
    assert (type(key), key.tzinfo, key.hour) == (dt.datetime, None, hour)


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
    tester = tws_tester(Clock(), timeMode="ProcessingTime")
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


def put_out(frames):
    """Return what a processor's frames become, or the message of the one that does not fit."""
    kinds = {"k": T.StringType(), "n": T.LongType(), "x": T.DoubleType()}
    returns = T.StructType([T.StructField(name, kind) for name, kind in kinds.items()])
    given = {name: False for name in _SETTINGS} | {"timezone": "UTC", "assign_cols_by_name": True}
    made = PandasProcessor(
        processor=Nested(),
        keys=pa.schema([]),
        inputs=pa.schema([]),
        initial=pa.schema([]),
        outputs=to_arrow_schema(returns),
        states={},
        mode=TimeMode.NONE,
        returns=returns,
        settings=given,
    )
    try:
        return made._output(frames).to_pylist()
    except ProcessorError as error:
        return str(error)


def test_frames_of_one_kind_are_converted_together_and_answer_as_one_by_one():
    frame = pytest.importorskip("pandas").DataFrame
    frames = [frame({"k": [f"a{i}"], "n": [2**60 + i], "x": [i / 2]}) for i in range(40)]
    # other types, other orders of columns, nulls, and none
    frames += [
        frame({"k": ["b"], "n": [None], "x": [1]}),
        frame({"k": [None], "n": [3], "x": [None]}),
    ]
    frames += [frame({"x": [0.5], "n": [4], "k": ["c"]}), frames[0][:0]]
    frames += [frame({"k": ["d", "e"], "n": [2**60 + 1, 6], "x": [float("inf"), 2.5]})]
    together = put_out(frames)
    assert together == [row for one in frames for row in put_out([one])]
    assert together[39]["n"] == 2**60 + 39
    assert "frame 46 of 46" in put_out(
        [*frames, frame({"k": ["f"], "n": ["no number"], "x": [1.0]})]
    )
    assert "frame 41 of 41" in put_out([*frames[:40], "no frame"])
