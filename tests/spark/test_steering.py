"""A query that keeps its SLO by itself: out under load, in when it falls, frozen when told so.

Slots serve a fixed rate, so that a small machine can have many. The test sets the load, waits for what
must come of it, with generous deadlines, and asserts no times.
"""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import headgate as hg
from headgate import scenario as scenarios
from headgate.core.errors import ConfigError
from headgate.journal import Applied, AssignmentChange, Batch, ControlAct, Decided, read
from headgate.report import summary

pytestmark = pytest.mark.timeout(400)

SLOT_RATE = 2_000
HIGH, LOW = 4_000, 400
"""Records per second: three slots at 80 %, then a tenth, for which one is enough."""

FILE_S = 0.5
SCHEMA = "key long, ts timestamp"


class Load:
    """Writes a file of records twice a second; their time-stamps say when each was due."""

    def __init__(self, folder):
        self.folder = folder
        self.rate = HIGH
        self.lasts_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()

    def _run(self):
        random, number, since = np.random.default_rng(1), 0, time.time()
        while not self._over.wait(max(0.0, since + FILE_S - time.time())):
            rows = int(self.rate * FILE_S)
            due = pa.array((np.linspace(since, since + FILE_S, rows) * 1e6).astype(np.int64))
            columns = {
                "key": random.integers(0, 500, rows),
                "ts": due.cast(pa.timestamp("us", tz="UTC")),
            }
            pq.write_table(pa.table(columns), self.folder / f".{number}")
            (self.folder / f".{number}").rename(self.folder / f"{number:06d}.parquet")
            number, since = number + 1, since + FILE_S
            self.lasts_s = number * FILE_S


def counts(spark, path):
    records = spark.readStream.schema(SCHEMA).parquet(path)
    windows = records.withWatermark("ts", "2 seconds").groupBy(F.window("ts", "5 seconds"), "key")
    return windows.count()


def wait_for(condition, deadline_s=100):
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(scope="module")
def steered(spark, tmp_path_factory):
    """A run: under load, with little load, frozen, thawed, scaled by hand."""
    folder = tmp_path_factory.mktemp("steered")
    checkpoint, out, source = str(folder / "c"), str(folder / "out"), folder / "in"
    source.mkdir()
    query = (
        hg.writeStream(counts(spark, str(source)))
        .slo("mean < 5 s over 2 s")
        .policy("streamswitch", epsilon=0.2)
        .slots(max=6, start=1)
        .keyGroups(32)
        .option("headgate.arrival", "ts")
        .option("headgate.slotRate", SLOT_RATE)
        .option("checkpointLocation", checkpoint)
        .format("parquet")
        .start(out)
    )
    seen = {}
    (operator,) = query.assignment()

    def slots():
        return query.assignment()[operator].slots

    try:
        wait_for(lambda: query.lastProgress is not None)  # a slow start is no load
        with Load(source) as load:
            seen["out"] = wait_for(lambda: slots() >= 3)
            load.rate = LOW
            seen["in"] = wait_for(lambda: slots() == 1)
            scenarios.ask(checkpoint, "freeze", reason="INC-1", wait_s=60)
            seen["frozen"] = query._work.changes.frozen
            with pytest.raises(ConfigError) as refused:
                scenarios.ask(checkpoint, "scale", arguments={"slots": 2}, wait_s=60)
            seen["refused"] = str(refused.value)
            query.thaw()
            epoch = query.assignment()[operator].epoch
            scenarios.ask(checkpoint, "scale", arguments={"slots": 2}, reason="by hand", wait_s=60)
            wait_for(lambda: query.assignment()[operator].epoch > epoch)
            # else no window may be over: 5 s, and the watermark's 2
            wait_for(lambda: load.lasts_s > 8.0)
        query.drain(timeout_s=100)
    finally:
        query.stop()
    seen["events"] = list(read(query.journal))
    seen["summary"] = summary(query.journal)
    seen["verified"] = hg.verify(
        spark,
        counts,
        checkpoint=checkpoint,
        output=spark.read.parquet(out),
        options={"path": str(source)},
    )
    return seen


def of(steered, kind):
    return [event for event in steered["events"] if isinstance(event, kind)]


def test_scales_out_under_load(steered):
    assert steered["out"]


def test_comes_down_to_one_slot_when_the_load_falls_to_a_tenth(steered):
    assert steered["in"]


def test_the_answer_is_sparks_whatever_the_policy_did(steered):
    assert steered["verified"]["verified"], steered["verified"]
    assert steered["verified"]["rows_compared"] > 0


def test_every_change_of_the_policy_stands_in_the_journal_with_its_reason(steered):
    decided = [d for d in of(steered, Decided) if d.acts]
    changes = [c for c in of(steered, AssignmentChange) if c.by == "streamswitch(0.2)"]
    assert [c.reason for c in changes] == [d.reason for d in decided[: len(changes)]]
    assert len(of(steered, Applied)) == len(changes)
    assert {d.rule for d in decided} >= {"severe -> scale-out", "good -> scale-in"}
    for change in changes:
        assert len(change.slot_of) == 32
        assert max(change.slot_of) == change.slots_after - 1


def test_nothing_changes_while_frozen(steered):
    assert steered["frozen"]
    assert "frozen" in steered["refused"]
    acts = {(act.act, act.refused is None): act for act in of(steered, ControlAct)}
    assert acts["freeze", True].reason == "INC-1"
    assert ("scale", False) in acts
    frozen_ms = acts["freeze", True].at_ms
    thawed_ms = acts["thaw", True].at_ms
    changes = of(steered, AssignmentChange)
    assert not [c for c in changes if frozen_ms < c.at_ms < thawed_ms]
    assert [c for c in changes if c.by not in ("streamswitch(0.2)", "user") and c.at_ms > thawed_ms]


def test_batches_say_how_the_slo_stands_and_what_the_loop_costs(steered):
    last = [b for b in of(steered, Batch) if b.slo is not None][-1]
    assert last.slo.windows > 0
    assert 0.0 <= last.slo.success_worst <= last.slo.success <= 1.0
    assert last.slo.floor_ms > 0.0
    found = steered["summary"]
    assert found["slo"]["texts"] == ["mean < 5 s over 2 s"]
    assert 1.0 <= found["slots_mean"] <= 6.0
    assert found["decisions"]["scale-out"] >= 1
    assert found["slo"]["cycles"] > 0


def test_the_threshold_controller_takes_the_slots_of_its_table_in_one_step(spark, tmp_path):
    """STRETCH 8.4: above 90 % out to the fewest slots that are below 70 %, below 45 % in to the most."""
    source = tmp_path / "in"
    source.mkdir()
    query = (
        hg.writeStream(counts(spark, str(source)))
        .slo("mean < 5 s over 2 s")
        .policy("threshold")
        .slots(max=8, start=1)
        .keyGroups(32)
        .option("headgate.arrival", "ts")
        .option("headgate.slotRate", SLOT_RATE)
        .option("checkpointLocation", str(tmp_path / "c"))
        .format("noop")
        .start()
    )
    (operator,) = query.assignment()

    def slots():
        return query.assignment()[operator].slots

    try:
        wait_for(lambda: query.lastProgress is not None)
        with Load(source) as load:
            load.rate = HIGH
            assert wait_for(lambda: slots() == 3)
            load.rate = LOW
            assert wait_for(lambda: slots() == 1)
    finally:
        query.stop()
    events = list(read(query.journal))
    decided = [event for event in events if isinstance(event, Decided) and event.acts]
    assert {wish.slots for one in decided for wish in one.wishes} >= {3, 1}
    for one in decided:
        (seen,), (wish,) = one.observed, one.wishes
        load_of_slots = one.numbers[f"{operator}.load"]
        demand = load_of_slots * seen.slots
        if load_of_slots > 0.9:
            # the journal rounds, and a hundredth decides where a table's step ends
            assert wish.slots in {math.ceil(demand / 0.7 + aside) for aside in (-0.01, 0.01)}
        else:
            assert load_of_slots < 0.45
            assert wish.slots == max(math.floor(demand / 0.7), math.ceil(demand / 0.9))
    # each was carried out as one change, whatever the number of slots
    changes = [
        e for e in events if isinstance(e, AssignmentChange) and e.by.startswith("threshold")
    ]
    assert [c.slots_after for c in changes] == [one.wishes[0].slots for one in decided]
