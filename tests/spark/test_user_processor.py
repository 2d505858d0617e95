"""PySpark's own processors over a slot's tables, compared with PySpark's ``TwsTester``; no JVM."""

from __future__ import annotations

import random
import secrets
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

from headgate.engines.spark.declaration import declared
from headgate.engines.spark.user_processor import RowProcessor
from headgate.operators.process import ProcessorOperator
from headgate.operators.processor import ProcessorSpec, TimeMode
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

    def __init__(self, make, mode=TimeMode.NONE, initial=None):
        processor = make()
        self.spec = ProcessorSpec(
            keys=(Leaf(Kind.BYTES),),
            outputs=to_arrow_schema(OUTPUT, timezone="UTC"),
            processor=RowProcessor(
                processor,
                keys=pa.schema([("k", pa.string())]),
                inputs=to_arrow_schema(INPUT, timezone="UTC"),
                initial=pa.schema([("k", pa.string()), ("v", pa.int64())]),
                outputs=to_arrow_schema(OUTPUT, timezone="UTC"),
                states=declared(processor, mode),
                mode=mode,
            ),
            name=type(processor).__name__,
            time_mode=mode,
        )
        self.make = make
        self.store = HeapStore(ProcessorOperator(self.spec).layout.table)
        self.sections = defaultdict(list)
        self.tokens = dict.fromkeys(range(GROUPS), EMPTY_TOKEN)
        self.due_us = dict.fromkeys(range(GROUPS), 2**63 - 1)
        self.step = 0

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
            secrets.token_hex(16), watermark_ms * 1000, groups, chain, timestamp_ms=now_ms
        )

    def serve(self, rows, now_ms=0, watermark_ms=0, initial=()):
        # a task gets an object of its own, as PySpark's workers do
        self.spec.processor.processor = self.make()
        operator = ProcessorOperator(self.spec)
        columns = {
            GROUP: pa.array([group_of(r[0]) for r in rows], pa.int32()),
            "k0": pa.array([r[0].encode() for r in rows], pa.binary()),
            "v0": pa.array([r[0] for r in rows], pa.string()),
            "v1": pa.array([r[1] for r in rows], pa.int64()),
            "v2": pa.array([r[2] for r in rows], pa.string()),
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
        return Counter(tuple(row.values()) for row in served.output.to_pylist())

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
