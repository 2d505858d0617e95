"""PySpark's own processors over a slot's tables, compared with PySpark's ``TwsTester``; no JVM."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import pytest
from processor_slots import Slots, of_tester, struct, tws_tester
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from headgate.core.errors import ProcessorError
from headgate.operators.failure import withheld
from headgate.operators.processor import TimeMode


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


@pytest.mark.parametrize("seed", range(8))
def test_state_is_what_pysparks_own_tester_keeps(seed):
    rng = random.Random(seed)
    initial = [(key, rng.randrange(9)) for key in "ab"] if seed % 2 else []
    rows_of = [(key, Row(k=key, v=v)) for key, v in initial]
    tester = tws_tester(Everything(), initialStateRow=rows_of or None)
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
    tester = tws_tester(
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
def test_a_failure_names_its_place_and_what_quotes_a_record_can_be_withheld(how, message):
    slots = Slots(Wrong, limit_s=0.2)
    slots.serve([("a", 1, "fine")])
    tokens = dict(slots.tokens)
    with pytest.raises(ProcessorError, match=message) as caught:
        slots.serve([("a", 1, "fine"), ("a", 2, how)])
    assert "secret" not in withheld(str(caught.value))
    told_by_the_user = how in ("raise", "exit", "close")
    assert ("secret" in str(caught.value)) is told_by_the_user
    assert "user_processor.py line" not in str(caught.value).replace("test_user_processor.py", "")
    assert caught.value.__suppress_context__
    # nothing of the step is committed, and the next one finds the state before it
    assert slots.tokens == tokens
    slots.serve([("a", 1, "name")])


def test_an_output_column_that_a_row_lacks_is_null():
    slots = Slots(Wrong)
    assert slots.serve([("a", 1, "name")]) == Counter([("a", "fine", None)])
