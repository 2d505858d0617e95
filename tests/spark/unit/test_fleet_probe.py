"""What a fleet measures of a query, with its number: from committed steps alone, on a clock of our own.

Each expectation is worked out by hand from the steps, so that a sensor that reads a constant fails.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from headgate.core.utility import Intent, Metric
from headgate.journal import histogram
from headgate.spark.fleet import probe as probing
from headgate.spark.fleet.flows import Entrance, Graph
from headgate.spark.fleet.hosts import ANYWHERE
from headgate.spark.fleet.probe import Probe
from headgate.spark.job.job import OperatorState
from headgate.spark.job.reports import Ran, Report

MEAN = Intent(Metric.LATENCY, 1.0)
P90 = Intent(Metric.LATENCY, 1.0, percentile=90.0)
JUICE = Intent(Metric.JUICE, 1.0)
THROUGHPUT = Intent(Metric.THROUGHPUT, 100.0)


def report(slot, arrived, served, useful_ms=0.0, latency_ms=(), operator="op"):
    """Return a report; `latency_ms` has (latency, records) of what was served."""
    values, counts = zip(*latency_ms, strict=True) if latency_ms else ((0.0,), (served,))
    return Report(
        step=0, attempt=1, operator=operator, slot=slot, token="t", consumed=(), groups={},
        sections={}, changelog=None, output=None, waiting=None, late=None, output_rows=0,
        late_rows=0, segments={}, taken={}, arrived=arrived, served=served, late_records=0,
        waiting_records=0, served_rows=served, touched_rows=0, served_by_group={},
        histogram=histogram.sparse_of(histogram.counts_of(values, counts)),
        latency_sum_ms=float(np.dot(values, counts)), latency_max_ms=max(values), watermark_us=0,
        holds_us=0, useful_ms=useful_ms,
    )  # fmt: skip


class Watched:
    """A query of one operator, or a chain, with a probe beside it; its steps are told, not run."""

    def __init__(
        self,
        monkeypatch,
        *,
        slots=2,
        slot_rate=None,
        chain=("op",),
        window_s=60.0,
        lossless=False,
        given=None,
    ):
        self.now_s = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s, time=lambda: self.now_s)
        monkeypatch.setattr(probing, "time", clock)
        operators, above = [], None
        for name in chain:
            parents = () if above is None else (above,)
            above = SimpleNamespace(id=name, upstream=above, parents=parents)
            operators.append(above)
        below = dict(zip(chain[1:], chain, strict=False))
        entrance = Entrance(chain[0], 0, "source", sources=(0,))
        graph = Graph((entrance,), below, chain[1:] if lossless else ())
        graph = given or graph
        monkeypatch.setattr(probing.Graph, "of", lambda operators: graph)
        self.states = {name: OperatorState.fresh(slots, 8) for name in chain}
        self.batch = SimpleNamespace(phases_ms={}, spark_batch=-1)
        self.probe = Probe(window_s, slots_min=1).around(
            None,
            SimpleNamespace(
                query=SimpleNamespace(operators=operators),
                states=self.states,
                recorder=SimpleNamespace(last=self.batch),
                config=SimpleNamespace(slot_rate=slot_rate, slots_max=16),
            ),
        )
        self.began_s = self.now_s

    def step(self, *reports, took_s=1.0, slots_s=0.0, sink_s=0.0, waiting=0, operator="op"):
        """Commit a step that begins now and ends after `took_s`."""
        began_ms = self.now_s * 1e3
        self.now_s += took_s
        self.batch.spark_batch += 1
        self.batch.phases_ms = {"slots": slots_s * 1e3, "sink": sink_s * 1e3}
        self.states[operator].backlog = {0: [["file", 0, waiting, 0]]} if waiting else {}
        self.probe.committed(list(reports), began_ms, began_ms)

    def value(self, intent):
        (found,) = self.probe.values((intent,))
        return found


@pytest.fixture
def watched(monkeypatch):
    return lambda **named: Watched(monkeypatch, **named)


def test_capacity_is_the_share_of_the_window_that_the_busiest_slot_worked(watched):
    job = watched()
    for _ in range(10):
        job.step(report(0, 10, 10, useful_ms=800.0), report(1, 5, 5, useful_ms=100.0))
    assert job.probe.operators()["op"].capacity == pytest.approx(0.8)


def test_capacity_of_slots_at_a_fixed_rate_is_the_share_of_the_rate_that_they_served(watched):
    job = watched(slot_rate=100.0)
    for _ in range(10):
        job.step(report(0, 90, 60, useful_ms=1.0), report(1, 10, 10, useful_ms=1.0), waiting=30)
    found = job.probe.operators()["op"]
    assert found.capacity == pytest.approx(0.6)
    assert found.backlog_s == pytest.approx(30 / 200)


def test_capacity_is_of_the_slots_there_are_now(watched):
    job = watched()
    for _ in range(10):
        job.step(report(0, 10, 10, useful_ms=1000.0))
    job.probe.assigned("op", None)
    for _ in range(4):
        job.step(report(0, 5, 5, useful_ms=250.0), report(1, 5, 5, useful_ms=250.0))
    assert job.probe.operators()["op"].capacity == pytest.approx(0.25)


def test_juice_is_the_share_of_what_arrived_that_was_served(watched):
    job = watched()
    job.step(report(0, 100, 60), waiting=40)
    job.step(report(0, 100, 60), waiting=80)
    assert job.value(JUICE) == pytest.approx(120 / 200)


def test_juice_of_a_chain_is_the_product_of_its_operators_shares(watched):
    job = watched(chain=("first", "second"))
    served = (report(0, 100, 50, operator="first"), report(0, 50, 10, operator="second"))
    job.step(*served, operator="second", waiting=40)
    assert job.value(JUICE) == pytest.approx(0.5 * 0.2)


def test_latency_is_the_mean_of_the_records_and_their_way_to_the_sink(watched):
    job = watched()
    job.step(report(0, 4, 4, latency_ms=((100.0, 3), (500.0, 1))), sink_s=0.2)
    assert job.value(MEAN) == pytest.approx(0.2 + 0.2)


def test_a_step_of_many_records_has_as_much_say_in_the_way_to_the_sink(watched):
    job = watched()
    job.step(report(0, 9, 9, latency_ms=((100.0, 9),)), sink_s=1.0)
    job.step(report(0, 1, 1, latency_ms=((100.0, 1),)), sink_s=3.0)
    assert job.value(MEAN) == pytest.approx(0.1 + (9 * 1.0 + 3.0) / 10)


def test_a_percentile_is_of_the_slowest_records(watched):
    job = watched()
    job.step(report(0, 10, 10, latency_ms=((100.0, 8), (2000.0, 2))))
    assert job.value(P90) == pytest.approx(2.0, rel=0.06)  # within the bucket
    assert job.value(MEAN) == pytest.approx(0.48)


def test_latency_of_a_chain_is_from_the_source_to_what_the_last_operator_puts_out(watched):
    job = watched(chain=("first", "second"))
    job.step(
        report(0, 1, 1, latency_ms=((300.0, 1),), operator="first"),
        report(0, 1, 1, latency_ms=((9000.0, 1),), operator="second"),
        operator="first",
    )
    assert job.value(MEAN) == pytest.approx(9.3)


def test_a_windows_result_is_charged_its_wait_for_the_watermark(watched):
    graph = Graph((Entrance("op", 0, "source"),), {}, (), {"op": 10_000_000})
    job = watched(given=graph)
    ran = [Ran("host", 0.0, at_s * 1e3, None) for at_s in (8.0, 21.0)]
    # records of the window up to 10 s come at 7 s and at 8 s; it is put out at 21 s
    came = {"newest_ms": {0: {0: 7000.0, 5_000_000: 8000.0}}, "ran": ran[0]}
    job.step(replace(report(0, 2, 2, latency_ms=((100.0, 2),)), **came))
    assert job.value(MEAN) == pytest.approx(0.1)  # nothing was due yet
    out = {"newest_ms": {0: {20_000_000: 20_500.0}}, "results": {0: {10_000_000: 3}}, "ran": ran[1]}
    job.step(replace(report(0, 1, 1, latency_ms=((50.0, 1),)), **out), sink_s=0.5)
    assert job.value(MEAN) == pytest.approx(21.0 - 8.0 + 0.5)
    assert job.value(P90) == pytest.approx(13.5, rel=0.06)


def test_between_two_windows_the_last_results_stay_what_is_known(watched):
    graph = Graph((Entrance("op", 0, "source"),), {}, (), {"op": 10_000_000})
    job = watched(given=graph)
    due = {"newest_ms": {0: {0: 7000.0}}, "results": {0: {10_000_000: 1}}}
    ran = {"ran": Ran("host", 0.0, 21_000.0, None)}
    job.step(replace(report(0, 1, 1, latency_ms=((50.0, 1),)), **due, **ran))
    for _ in range(40):  # longer than the window that intents are measured over
        job.step(replace(report(0, 1, 1, latency_ms=((50.0, 1),)), **ran), took_s=2.0)
    assert job.value(MEAN) == pytest.approx(14.0)
    # a job that falls behind puts nothing out: what it serves is later than that
    for _ in range(40):
        job.step(replace(report(0, 1, 1, latency_ms=((30_000.0, 1),)), **ran), took_s=2.0)
    assert job.value(MEAN) == pytest.approx(30.0)


def test_where_records_go_out_at_once_they_count_also_while_windows_are_due(watched):
    """A join beside a windowed aggregate: what the join puts out is 50 s old."""
    entrances = (Entrance("windowed", 0, "source"), Entrance("join", 0, "another"))
    graph = Graph(entrances, {}, (), {"windowed": 10_000_000})
    assert graph.at_once() == {"join"}
    job = watched(given=graph, chain=("windowed", "join"))
    out = {"newest_ms": {0: {0: 7000.0}}, "ran": Ran("host", 0.0, 8000.0, None)}
    job.step(replace(report(0, 1, 1, operator="windowed"), **out), operator="windowed")
    due = {"results": {0: {10_000_000: 1}}, "ran": Ran("host", 0.0, 11_000.0, None)}
    job.step(
        replace(report(0, 1, 1, latency_ms=((50.0, 1),), operator="windowed"), **due),
        report(0, 1, 1, latency_ms=((50_000.0, 1),), operator="join"),
        operator="windowed",
    )
    # of the first step's records nothing was due: they do not count
    assert job.value(MEAN) == pytest.approx((4.0 + 50.0) / 2)


def test_throughput_and_input_rate_are_records_per_second(watched):
    job = watched()
    job.step(report(0, 500, 100), took_s=2.0)  # arrived before the window's first step
    for _ in range(4):
        job.step(report(0, 80, 60), report(1, 20, 15), took_s=2.0)
    assert job.probe.input_rate() == pytest.approx(100 / 2.0)
    assert job.value(THROUGHPUT) == pytest.approx((100 + 4 * 75) / 10.0)


def test_only_what_the_source_sent_counts_as_input(watched):
    job = watched(chain=("first", "second"))
    both = (report(0, 30, 30, operator="first"), report(0, 700, 700, operator="second"))
    for _ in range(3):
        job.step(*both, operator="first")
    assert job.probe.input_rate() == pytest.approx(30.0)


def test_what_is_older_than_the_window_is_forgotten(watched):
    job = watched(window_s=10.0)
    job.step(report(0, 1, 1, latency_ms=((9000.0, 1),)))
    job.now_s += 10.0
    job.step(report(0, 1, 1, latency_ms=((100.0, 1),)))
    assert job.value(MEAN) == pytest.approx(0.1)


def test_what_is_older_than_the_window_is_forgotten_though_no_step_has_come_since(watched):
    job = watched(window_s=10.0)
    job.step(report(0, 1, 1, latency_ms=((9000.0, 1),)))
    job.now_s += 10.0
    assert job.probe.values((MEAN,)) is None


def test_nothing_is_known_before_the_first_step_and_a_quiet_query_is_worth_all(watched):
    job = watched()
    assert job.probe.values((MEAN, JUICE)) is None
    job.probe.quiet(job.now_s * 1e3)
    assert job.probe.values((MEAN, JUICE)) == (0.0, 1.0)
    job.now_s += 100.0
    assert job.probe.values((MEAN,)) is None


def test_tasks_are_runnable_from_the_start_of_their_phase_also_while_they_wait_for_a_core(watched):
    # 1.5 s of slots' phase, of which the slowest worked 1 s: all of them waited half a second.
    job = watched()
    job.step(report(0, 1, 1, useful_ms=1000.0), report(1, 1, 1, useful_ms=200.0), slots_s=1.5)
    assert job.probe.hosts(10.0)[ANYWHERE].runnable_s == pytest.approx(1.5 + 0.7)
    job.step(report(0, 1, 1, useful_ms=1000.0), slots_s=1.0)
    assert job.probe.hosts(10.0)[ANYWHERE].runnable_s == pytest.approx(1.5 + 0.7 + 1.0)
    job.now_s += 20.0
    assert job.probe.hosts(10.0) == {}


def test_a_query_that_watches_itself_goes_on_to_do_so_in_a_fleet(watched):
    told = []
    inner = SimpleNamespace(
        assigned=lambda *given: told.append(("assigned", *given)),
        committed=lambda *given: told.append("committed"),
        quiet=lambda horizon_ms: told.append(("quiet", horizon_ms)),
        lost=lambda *given: told.append(("lost", *given)),
        bound_ms=lambda operator: 250.0,
        state=lambda: "steady",
    )
    job = watched()
    assert (job.probe.bound_ms("op"), job.probe.state()) == (0.0, None)
    job.probe.lost("op", 0)
    job.probe.around(inner, job.probe._job)
    job.probe.assigned("op", "a request")
    job.step(report(0, 1, 1))
    job.probe.quiet(7.0)
    job.probe.lost("op", 1)
    assert told == [
        ("assigned", "op", "a request"), "committed", ("quiet", 7.0), ("lost", "op", 1),
    ]  # fmt: skip
    assert (job.probe.bound_ms("op"), job.probe.state()) == (250.0, "steady")
    assert job.probe.asks_origins()
