"""What slots can sustain, against what they do in an engine that is computed; no session is needed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from headgate.operators.counts import Binned, Counts
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Report
from headgate.spark.steer.controller import busy_s
from headgate.spark.steer.useful_time import BesideSlots, UsefulTime
from headgate.spark.worker.whereabouts import waited_for_core_ms

NOTHING = Counts(*[Binned(*[[]] * 5)] * 2)


def report(slot, served, useful_ms, *, arrived=None, cpu_ms=0.0, waited_ms=0.0, operator="o"):
    return Report(
        step=0, attempt=1, operator=operator, slot=slot, token="t", consumed=(), groups={}, sections={},
        changelog=None, output=None, waiting=None, late=None, output_rows=0, late_rows=0,
        segments={}, taken={}, arrived=served if arrived is None else arrived, served=served,
        late_records=0, waiting_records=0, served_rows=served, touched_rows=0, served_by_group={},
        histogram=(), latency_sum_ms=0.0, latency_max_ms=0.0, watermark_us=0, holds_us=0,
        useful_ms=useful_ms, counts=NOTHING, cpu_ms=cpu_ms, waited_ms=waited_ms,
    )  # fmt: skip


@dataclass
class Engine:
    """Slots on cores whose batches take what is said here, with the quotas that a job gives them."""

    slots: int = 1
    cores: int = 4
    budget_s: float = 0.8
    fixed_ms: float = 20.0
    record_ms: float = 1.0
    beside_ms: float = 200.0
    before_ms: float = 0.0
    """Of each record, before it reaches a slot."""

    def __post_init__(self):
        self.state = OperatorState.fresh(self.slots, 16)
        self.config = JobConfig("job", key_groups=16, budget_s=self.budget_s)
        self.useful = UsefulTime(None, lambda: self.budget_s, lambda: self.cores)
        self.now_ms, self.served = 0.0, 0
        self.spent_s = [0.0] * self.slots

    def run(self, batches, load=None):
        """Run so many batches, each slot with `load(batch)` records; None: as many as it may serve."""
        self.served, began_ms, spent_s = 0, self.now_ms, 0.0
        for batch in range(batches):
            quotas = self.state.quotas(self.config, self.cores, int(self.now_ms))
            loads = [min(load(batch), quota) for quota in quotas] if load else quotas
            if not load:
                loads = [min(quota, 5_000) for quota in loads]
            tasks = [report(s, n, self.fixed_ms + self.record_ms * n) for s, n in enumerate(loads)]
            slots_ms = -(-self.slots // self.cores) * max(one.useful_ms for one in tasks)
            started_ms = self.now_ms
            self.now_ms += self.beside_ms + self.before_ms * sum(loads) + slots_ms
            for one in tasks:
                self.state._learn_rate(one)
            found = self.useful.add(tasks, started_ms, self.now_ms - 20.0, self.slots)
            self.served += sum(loads)
            spent_s += sum(found)
        self.wall_s = (self.now_ms - began_ms) / 1e3
        self.believed_per_s = self.served / spent_s * self.slots if spent_s else 0.0


def off(engine, **calm):
    """Return by how much the slots' capacity is misjudged at little load, and at all they can do."""
    engine.run(60, lambda batch: (30, 40, 60, 50)[batch % 4])
    engine.run(12, lambda batch: (30, 40, 60, 50)[batch % 4])
    at_little_load = engine.believed_per_s
    engine.run(30)
    truth_per_s = engine.served / engine.wall_s
    engine.run(10)
    return at_little_load / truth_per_s - 1.0, engine.believed_per_s / truth_per_s - 1.0


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"slots": 4},
        {"slots": 4, "cores": 2},  # two waves
        {"slots": 6, "cores": 2, "fixed_ms": 30.0},  # three
        {"slots": 3, "cores": 2},  # two, the second with one slot
        {"fixed_ms": 60.0},
        {"slots": 4, "cores": 2, "fixed_ms": 5.0},
        {"beside_ms": 800.0},
        {"record_ms": 4.0},
        {"slots": 6, "cores": 1, "budget_s": 0.4},  # six waves, 20 ms more in each
    ],
)
def test_what_slots_can_sustain_is_known_before_they_must(given):
    at_little_load, at_full_load = off(Engine(**given))
    assert at_little_load == pytest.approx(0.0, abs=0.1)
    assert at_full_load == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_what_comes_before_the_slots_is_not_shortened_by_more_of_them(slots):
    # a UDF of half a millisecond a record: 1,580 records/s at most, however many slots
    engine = Engine(slots=slots, before_ms=0.5, record_ms=0.1)
    engine.run(60, lambda batch: (100, 300, 500, 200)[batch % 4] // slots)
    believed_per_s = engine.believed_per_s
    engine.run(30)
    assert believed_per_s == pytest.approx(engine.served / engine.wall_s, rel=0.15)
    assert believed_per_s < 2_200.0


def test_a_cost_before_the_slots_is_believed_on_evidence_only():
    beside = BesideSlots()
    for records, within_ms in ((100, 118.0), (120, 122.0), (90, 112.0), (110, 100.0)) * 8:
        beside.add(records, within_ms, 10.0)
    assert beside.line()[1] == 0.0
    for records in (100, 200, 300, 400) * 8:
        beside.add(records, 50.0 + 0.5 * records, 10.0)
    batch_ms, record_ms = beside.line()
    assert (batch_ms, record_ms) == (pytest.approx(60.0, rel=0.2), pytest.approx(0.5, rel=0.1))


def test_cores_that_come_later_count():
    engine = Engine(slots=4, cores=1)
    engine.run(20, lambda batch: 50)
    before_per_s = engine.believed_per_s
    engine.cores = 4
    engine.run(40, lambda batch: 50)
    assert engine.believed_per_s > 3.0 * before_per_s


def test_slots_that_are_not_alike_do_not_wait_for_one_another():
    # cores   100 10    the batch takes 110 and not twice 100
    #          10 10
    took_ms = (100.0, 10.0, 10.0, 10.0)
    tasks = [report(slot, 100, took, operator="o") for slot, took in enumerate(took_ms)]
    assert busy_s(tasks, 2) == pytest.approx(0.1)
    after = [dataclasses.replace(one, operator="p") for one in tasks]
    assert busy_s(tasks + after, 2) == pytest.approx(0.2)  # one operator after the other


def test_a_slot_that_gets_another_number_keeps_what_its_records_cost():
    useful = UsefulTime(None, lambda: None, lambda: 4)
    for records in (100, 200, 300, 200, 100):
        tasks = [report(s, records, 20.0 + records * (1 + 3 * s)) for s in (0, 1)]
        useful.add(tasks, 0.0, 0.0, 2)
    useful.renumber((1,))
    assert useful.record_s == pytest.approx(4e-3, rel=0.05)


def test_at_a_fixed_rate_useful_time_is_served_over_rate():
    useful = UsefulTime(2_000.0, lambda: 1.0, lambda: 2)
    assert useful.add([report(0, 500, 3.0)], 0.0, 0.0, 1) == [0.25]
    assert useful.limit(1, 2) is None


def test_turns_on_few_cores_count_without_a_budget_too():
    def sustained(cores):
        useful = UsefulTime(None, lambda: None, lambda: cores)
        for _ in range(10):
            spent = useful.add([report(s, 100, 100.0) for s in range(4)], 0.0, 0.0, 4)
        return 100 / spent[0]

    assert sustained(2) == pytest.approx(sustained(4) / 2)


def test_the_pauses_of_a_quiet_source_are_no_time_beside_the_slots():
    def spent_s(pauses_ms):
        useful, now_ms = UsefulTime(None, lambda: 0.8, lambda: 4), 0.0
        for pause_ms in pauses_ms:
            spent = useful.add([report(0, 100, 100.0)], now_ms, now_ms + 120.0, 1)
            now_ms += 120.0 + pause_ms
        return spent[0]

    busy = spent_s([50.0] * 12)
    assert spent_s([50.0, 50.0, 5_000.0] * 4) == pytest.approx(busy)


# --- what limits more slots ----------------------------------------------------------------------


def limit(slots, machine, *, computing, at_once=8, before_ms=0.0):
    useful = UsefulTime(None, lambda: 0.8, lambda: at_once)
    for batch in range(40):
        records = (100, 200, 300, 150)[batch % 4]
        took_ms = 20.0 + 2.0 * records
        tasks = [report(s, records, took_ms, cpu_ms=computing * took_ms) for s in range(slots)]
        began_ms = batch * 1e4
        beside_ms = 100.0 + before_ms * records * slots
        useful.add(tasks, began_ms, began_ms + took_ms + beside_ms, slots)
    return useful.limit(slots, machine)


def test_slots_that_compute_are_limited_by_the_cores_of_the_machine():
    most, why = limit(1, 2, computing=0.97)
    assert (most, why) == (
        2, "the cores are the limit: slots compute for 97% of their time, and the machine has 2",
    )  # fmt: skip


def test_slots_that_wait_for_a_store_are_limited_by_what_spark_runs_at_a_time():
    assert limit(2, 2, computing=0.05) == (
        8, "the cores are the limit: Spark runs 8 slots at a time",
    )  # fmt: skip


def test_slots_that_wait_need_more_of_them_than_there_are_cores():
    assert limit(2, 2, computing=0.4)[0] == 5


def test_slots_that_wait_for_a_core_do_not_seem_to_compute_less():
    useful = UsefulTime(None, lambda: 0.8, lambda: 6, 2)
    for batch in range(60):
        slots = 1 if batch < 20 else 6
        records = (100, 200, 300, 150)[batch % 4]
        computed_ms = 20.0 + 2.0 * records
        took_ms = computed_ms * max(1, slots / 2)
        tasks = [report(s, records, took_ms, cpu_ms=computed_ms) for s in range(slots)]
        useful.add(tasks, batch * 1e4, batch * 1e4 + took_ms + 100.0, slots)
        if batch > 10:
            found = useful.limit(slots, 2)
            assert found is not None
            assert found[0] == 2, batch


def test_what_waits_for_a_core_would_compute():
    """Two slots on two cores, one of which something else has for half of the time."""
    useful = UsefulTime(None, lambda: 0.8, lambda: 6, 2)
    for batch in range(40):
        records = (100, 200, 300, 150)[batch % 4]
        took_ms = 3.0 * records
        shares = {"cpu_ms": 0.6 * took_ms, "waited_ms": 0.38 * took_ms}
        tasks = [report(slot, records, took_ms, **shares) for slot in range(2)]
        useful.add(tasks, batch * 1e4, batch * 1e4 + took_ms + 100.0, 2)
    found = useful.limit(2, 2)
    assert found is not None
    assert found[0] == 2
    assert "98%" in found[1]


def test_the_wait_for_a_core_only_grows():
    before = waited_for_core_ms()
    assert 0.0 <= before <= waited_for_core_ms()


def test_what_began_with_more_slots_than_cores_is_known_better_once_there_are_fewer():
    useful = UsefulTime(None, lambda: 0.8, lambda: 6, 2)
    most = []
    for batch in range(40):
        slots = 6 if batch < 20 else 2
        records = (100, 200, 300, 150)[batch % 4]
        tasks = [
            report(s, records, 2.0 * records * slots / 2, cpu_ms=2.0 * records)
            for s in range(slots)
        ]
        useful.add(tasks, batch * 1e4, batch * 1e4 + 2e3, slots)
        most.append(useful.limit(slots, 2))
    assert most[19] is not None
    assert most[19][0] == 6
    assert most[-1] is not None
    assert most[-1][0] == 2


def test_where_it_is_not_known_how_much_slots_compute_spark_is_the_limit():
    assert limit(2, 2, computing=0.0)[0] == 8


def test_slots_are_of_no_use_against_what_comes_before_them():
    most, why = limit(2, 8, computing=0.9, before_ms=5.0)
    assert most == 2
    assert why.startswith(
        "what comes before the slots is the limit: a record takes 5 ms there, and 1"
    )


def test_it_tells_how_batches_spend_their_time():
    engine = Engine(slots=2, cores=2, budget_s=10.0)
    assert engine.useful.batch() is None
    engine.run(30, load=lambda batch: 100 + batch)
    batch = engine.useful.batch()
    assert batch.before_s + batch.after_s == pytest.approx(engine.beside_ms / 1e3, rel=0.1)
    assert (batch.budget_s, batch.cores) == (10.0, 2)
    assert batch.tasks_seen == len(batch.tasks) == 60
    records, each_s = batch.tasks.T
    assert records[-1] == 129.0
    assert each_s[-10:] == pytest.approx(engine.record_ms / 1e3, rel=0.2)
    assert UsefulTime(100.0, lambda: None, lambda: 2).batch() is None


# --- to the number -------------------------------------------------------------------------------


def test_what_slots_compute_of_their_time_is_smoothed_and_at_most_all_of_it():
    useful = UsefulTime(None, lambda: None, lambda: 4, 2)
    assert useful.computing is None
    useful.add([report(0, 0, 100.0, cpu_ms=90.0)], 0.0, 0.0, 1)
    assert useful.computing is None, "it has served nothing"
    useful.add([report(0, 10, 100.0, cpu_ms=40.0, waited_ms=10.0)], 0.0, 0.0, 1)
    assert useful.computing == pytest.approx(0.5)
    useful.add([report(0, 10, 100.0, cpu_ms=100.0)], 0.0, 0.0, 1)
    assert useful.computing == pytest.approx(145.0 / 190.0)  # of before, nine tenths count
    useful.add([report(s, 10, 100.0) for s in range(3)], 0.0, 0.0, 3)
    assert useful.computing == pytest.approx(145.0 / 190.0), "three slots wait for two cores"
    useful.add([report(s, 10, 100.0, cpu_ms=900.0) for s in range(2)], 0.0, 0.0, 2)
    assert useful.computing == 1.0
    assert UsefulTime(5.0, lambda: None, lambda: 4).computing is None


def test_batches_spend_their_time_before_within_and_after_slots():
    useful = UsefulTime(None, lambda: 0.8, lambda: 2)
    assert useful.batch() is None
    useful.add([report(0, 100, 120.0)], 1_000.0, 1_500.0, 1)
    assert useful.batch() is None, "nothing is known of what was before"
    useful.add([report(0, 100, 120.0), report(1, 50, 70.0)], 1_560.0, 1_980.0, 2)
    times = useful.batch()
    assert (times.before_s, times.after_s) == (pytest.approx(0.3), pytest.approx(0.06))
    assert (times.record_s, times.budget_s, times.cores) == (0.0, 0.8, 2)
    assert times.tasks_seen == 3
    useful.add([report(0, 100, 900.0)], 1_900.0, 2_000.0, 1)  # clocks of several hosts
    assert useful.batch().before_s == useful.batch().after_s == 0.0
    assert UsefulTime(5.0, lambda: 0.8, lambda: 2).batch() is None


def test_without_a_budget_none_ends_a_batch_and_there_is_always_a_core():
    useful = UsefulTime(None, lambda: None, lambda: 0)
    for n in range(2):
        useful.add([report(0, 100, 120.0)], 1e3 * n, 1e3 * n + 200.0, 1)
    assert (useful.batch().budget_s, useful.batch().cores) == (float("inf"), 1)
    assert useful.limit(1, 4) == (1, "the cores are the limit: Spark runs one slot at a time")
