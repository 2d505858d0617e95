"""From reports to samples, costs, floors and success; no session is needed."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.estimators.examiner import Examiner
from headgate.control.sample import Sample
from headgate.control.success import success_rates
from headgate.core.assignment import Assignment, spread
from headgate.core.errors import ConfigError
from headgate.core.slo import parse_slo
from headgate.loop import steering
from headgate.loop.batch_floor import STEPS_MIN, BatchFloor
from headgate.operators.counts import Binned, Counts
from headgate.spark.job.reports import Report
from headgate.spark.steer.metrics import OperatorCounters, SparkMetrics
from headgate.spark.steer.success import SuccessRate
from headgate.spark.steer.useful_time import UsefulTime

GROUPS = 4


def binned(entries):
    """Entries (tick, group, records, latency in ms) as a slot counts them."""
    columns = np.array(entries, dtype=np.float64).reshape(-1, 4)
    tick, group = columns[:, 0].astype(np.int64), columns[:, 1].astype(np.int64)
    return Binned(tick, group, columns[:, 2], columns[:, 3], np.zeros(len(columns)))


def report(slot, arrivals, completions, served=0, useful_ms=0.0):
    return Report(
        step=0, attempt=1, operator="o", slot=slot, token="t", consumed=(), groups={}, sections={},
        changelog=None, output=None, waiting=None, late=None, output_rows=0, late_rows=0,
        segments={}, taken={}, arrived=0, served=served, late_records=0, waiting_records=0,
        served_rows=served, touched_rows=0, served_by_group={}, histogram=(), latency_sum_ms=0.0,
        latency_max_ms=0.0, watermark_us=0, holds_us=0, useful_ms=useful_ms,
        counts=Counts(binned(arrivals), binned(completions)),
    )  # fmt: skip


def counters(slots=2, waiting=(0, 0, 0, 0), first_tick=101):
    return OperatorCounters(spread(slots, GROUPS), np.array(waiting, dtype=float), first_tick)


# --- counters ------------------------------------------------------------------------------------


def test_counters_are_cumulative_and_ticks_count_from_the_first():
    c = counters()
    c.add(report(0, [(101, 0, 3, 0), (102, 1, 2, 0)], [(102, 0, 3, 9)]), 0.3)
    (first, _), (second, cell) = c.until(102)
    assert (first.tick, second.tick) == (2, 3)
    assert first.arrived.tolist() == [3, 0, 0, 0]
    assert second.arrived.tolist() == [3, 2, 0, 0]
    assert second.completed.tolist() == [3, 0, 0, 0]
    assert cell.latency_ms.tolist() == [9, 0, 0, 0]


def test_what_had_come_before_a_job_went_on_is_no_arrival_rate():
    """An earlier run left 500 records, the source held 9,000 more; since then 10 come in a time slot."""
    c, examiner = counters(waiting=(500, 0, 0, 0)), Examiner(GROUPS, 0.1, 0.5)
    c.add(report(0, [(40, 0, 9_000, 0)], []), 0.0)
    for tick in range(101, 106):
        c.add(report(0, [(tick, 0, 10, 0)], [(tick, 0, 5, 0)], served=5), 0.01)
        for sample, _ in c.read(tick):
            examiner.add(sample)
    view = examiner.view(bound_s=1.0, alert_s=0.1)
    assert view.group_rate[0] == pytest.approx(100.0, rel=0.25)
    assert view.backlog[0] == 9_500 + 5 * 5


def test_what_nobody_has_read_waits_but_is_no_arrival_rate():
    """A source is read up to a limit: 10 records in a time slot, and has 9,000 more."""
    metrics, examiner = SparkMetrics(0.1, started_ms=10_050.0), Examiner(GROUPS, 0.1, 0.5)
    useful = UsefulTime(100.0, lambda: None, lambda: 2)
    metrics.add_operator("o", spread(1, GROUPS), np.zeros(GROUPS), useful, None)

    def seen_at(tick, unread):
        rows = [(tick, 0, 9, 0), (tick, 3, 1, 0)]
        mine = dataclasses.replace(report(0, rows, rows, served=10), arrived=10)
        metrics.wait_at_sources(["o", "p"], [mine], unread)
        metrics.committed([mine], tick * 100.0, tick * 100.0, tick * 100.0)
        for sample in metrics.collect()["o"]:
            examiner.add(sample)

    for tick in range(101, 110):
        seen_at(tick, 9_000.0)
    view = examiner.view(bound_s=1.0, alert_s=0.1)
    assert view.backlog.tolist() == [8_100.0, 0.0, 0.0, 900.0]
    assert view.group_rate.sum() == pytest.approx(100.0)
    seen_at(110, 0.0)
    assert examiner.view(bound_s=1.0, alert_s=0.1).backlog.sum() == 0.0


def test_each_entrance_has_its_share_of_what_nobody_has_read():
    metrics = SparkMetrics(0.1, started_ms=10_050.0)
    useful = UsefulTime(100.0, lambda: None, lambda: 2)
    for name in "ab":
        metrics.add_operator(name, spread(1, GROUPS), np.zeros(GROUPS), useful, None)
    one = dataclasses.replace(report(0, [], []), operator="a", arrived=30)
    metrics.wait_at_sources(
        ["a", "b"], [one, dataclasses.replace(one, operator="b", arrived=10)], 80
    )
    metrics.known_until(10_200.0)
    waiting = {n: s[-1].unread.sum() for n, s in metrics.collect().items()}
    assert waiting == {"a": 60.0, "b": 20.0}
    # a source that does not tell takes nothing away
    silent = SparkMetrics(0.1, started_ms=10_050.0)
    silent.add_operator("a", spread(1, GROUPS), np.zeros(GROUPS), useful, None)
    silent.wait_at_sources(["a"], [one], 0.0)
    silent.known_until(10_200.0)
    assert silent.collect()["a"][-1].unread is None


def test_rates_are_those_of_time_slots_that_the_source_has_delivered():
    """Files of five time slots, of ten records each, are seen when they are whole; batches take three."""
    c, examiner, seen = counters(first_tick=1), Examiner(GROUPS, 0.1, 2.0), []
    for horizon in range(3, 200, 3):
        rows = [(t, 0, 10, 0) for t in range(1, horizon + 1) if (t - 1) // 5 * 5 + 5 <= horizon]
        new = [row for row in rows if row not in seen]
        seen += new
        done = [(horizon, 0, 10 * len(new), 0)] if new else []
        c.add(report(0, new, done, served=10 * len(new)), 0.1)
        for sample, _ in c.read(horizon):
            examiner.add(sample)
        if horizon > 60:
            rate = examiner.view(bound_s=1.0, alert_s=0.1).group_rate[0]
            assert rate == pytest.approx(100.0, rel=0.06)


def test_a_few_stragglers_hold_no_time_slot_back():
    c = counters(first_tick=1)
    for tick in range(1, 100):
        late = [(max(tick - 15, 1), 0, 1, 0)]
        c.add(report(0, [(tick, 0, 200, 0), *late], []), 0.0)
        told = c.read(tick)
    assert [sample.tick for sample, _ in told] == [100]


def test_what_a_slot_did_lies_where_its_useful_time_lies():
    c = counters()
    one = report(1, [(101, 3, 4, 0)], [(101, 3, 1, 0), (103, 3, 3, 0)], served=4)
    c.add(dataclasses.replace(one, merged_rows=4), 0.8)
    share = dataclasses.replace(
        report(0, [], [], served=7), counts=Counts(binned([]), binned([]), 102)
    )
    c.add(share, 0.1)
    samples = [sample for sample, _ in c.until(103)]
    assert [s.worked.tolist() for s in samples] == [[0.0, 2.0], [7.0, 0.0], [0.0, 6.0]]
    assert samples[1].useful_s.tolist() == [0.1, 0.0]


def test_useful_time_lies_where_the_completions_are():
    c = counters()
    c.add(report(1, [(101, 3, 4, 0)], [(101, 3, 1, 0), (103, 3, 3, 0)]), 0.8)
    useful = [sample.useful_s.tolist() for sample, _ in c.until(103)]
    assert useful == [[0.0, pytest.approx(0.2)], [0.0, 0.0], [0.0, pytest.approx(0.6)]]


def test_a_time_slot_is_told_once_and_what_comes_later_counts_in_the_next():
    c = counters()
    assert len(c.until(105)) == 5
    assert c.until(105) == []
    c.add(report(0, [(102, 0, 7, 0)], []), 0.0)
    ((sample, _),) = c.until(106)
    assert sample.arrived.tolist() == [7, 0, 0, 0]


def test_nothing_is_told_of_time_that_is_not_known_completely():
    metrics = SparkMetrics(0.1, started_ms=10_000.0)
    useful = UsefulTime(None, lambda: None, lambda: 2)
    metrics.add_operator("o", spread(1, GROUPS), np.zeros(GROUPS), useful, None)
    # the batch began at 10.35 s and took until 12 s: time slots up to 10.3 s are known
    metrics.committed([report(0, [(103, 0, 1, 0)], [(119, 0, 1, 0)])], 10_350.0, 10_350.0, 12_000.0)
    assert [s.tick for s in metrics.collect()["o"]] == [2, 3, 4]
    metrics.known_until(12_050.0)
    samples = metrics.collect()["o"]
    assert [s.tick for s in samples] == list(range(5, 22))
    assert samples[-1].completed.tolist() == [1, 0, 0, 0]
    assert metrics.collect()["o"] == []


def test_a_long_pause_leaves_a_gap_and_loses_no_record():
    c = counters()
    c.add(report(0, [(101, 2, 5, 0)], []), 0.0)
    told = c.until(5_000)
    assert len(told) == 1_201
    assert told[0][0].arrived.tolist() == [0, 0, 5, 0]


def test_what_an_earlier_run_left_waiting_has_arrived_before():
    c = counters(waiting=(2, 0, 0, 0))
    c.add(report(0, [], [(101, 0, 5, 0)]), 0.1)  # its rows stood for more records
    ((sample, _),) = c.until(101)
    assert sample.arrived.tolist() == [5, 0, 0, 0]
    assert sample.completed.tolist() == [5, 0, 0, 0]
    ((sample, _),) = counters(waiting=(2, 0, 0, 0)).until(101)
    assert sample.arrived.tolist() == [2, 0, 0, 0]


def test_a_slot_keeps_its_identity_while_numbers_change():
    c = counters(slots=3)
    merged = Assignment((0, 0, 1, 1), 2, 1)
    c.assign(merged, (0, 2), from_tick=103)
    c.assign(spread(3, GROUPS), (0, 1, None), from_tick=105)
    ids = [sample.slot_ids for sample, _ in c.until(106)]
    assert ids == [(0, 1, 2)] * 2 + [(0, 2)] * 2 + [(0, 2, 3)] * 2


def test_a_slot_that_comes_later_is_not_taken_for_one_that_came_before():
    c = counters(slots=1)
    c.assign(spread(2, GROUPS), (0, None), from_tick=102)
    c.assign(spread(3, GROUPS), (0, 1, None), from_tick=103)
    assert [sample.slot_ids for sample, _ in c.until(103)] == [(0,), (0, 1), (0, 1, 2)]


def test_what_is_reported_of_a_key_group_twice_in_one_time_slot_adds_up():
    c = counters()
    twice = [(101, 1, 2, 10.0), (101, 1, 3, 20.0)]
    c.add(report(0, [*twice, (101, 1, 4, 0.0)], twice), 0.0)
    ((sample, cell),) = c.until(101)
    assert (sample.arrived[1], sample.completed[1], cell.latency_ms[1]) == (9.0, 5.0, 30.0)


def test_records_within_the_bound_are_counted_by_themselves():
    c, entries = counters(), binned([(101, 0, 5, 0.0)])
    within = Binned(entries.tick, entries.group, entries.records, entries.latency_ms, np.ones(1))
    c.add(dataclasses.replace(report(0, [], []), counts=Counts(entries, within)), 0.0)
    ((_, cell),) = c.until(101)
    assert (cell.completed[0], cell.within[0]) == (5.0, 1.0)


def test_a_long_pause_loses_no_completion_either():
    c = counters()
    c.add(report(0, [(101, 2, 5, 0)], [(102, 2, 5, 400.0)]), 0.0)
    told = c.until(5_000)
    assert told[0][0].completed.tolist() == [0, 0, 5, 0]
    assert told[0][1].latency_ms.tolist() == [0, 0, 400.0, 0]


def test_an_assignment_holds_from_the_time_slot_that_begins_after_its_step():
    renumbered = []
    metrics = SparkMetrics(0.1, started_ms=0.0)
    useful = SimpleNamespace(renumber=renumbered.append)
    metrics.add_operator("o", spread(1, GROUPS), np.zeros(GROUPS), useful, None)
    metrics.assigned("o", spread(2, GROUPS), (0, None), at_ms=250.0)
    metrics.known_until(500.0)
    slots = {s.tick: s.assignment.slots for s in metrics.collect()["o"]}
    assert slots == {2: 1, 3: 1, 4: 2, 5: 2, 6: 2}
    assert renumbered == [(0, None)]


def test_each_operator_counts_its_own_reports():
    metrics = SparkMetrics(0.1, started_ms=0.0)
    for name in ("o", "other"):
        useful = UsefulTime(100.0, lambda: None, lambda: 2)
        metrics.add_operator(name, spread(1, GROUPS), np.zeros(GROUPS), useful, None)
    metrics.committed([report(0, [(1, 0, 4, 0)], [])], 100.0, 100.0, 110.0)
    told = metrics.collect()
    assert [told[name][-1].arrived[0] for name in ("o", "other")] == [4.0, 0.0]


# --- success -------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 8))
def test_success_is_that_of_the_definition_over_a_whole_run(seed, window):
    random = np.random.default_rng(seed)
    completed = random.integers(0, 3, (45, GROUPS)).astype(float)
    latency_ms = completed * random.choice([500.0, 1_500.0], (45, GROUPS))
    waiting = random.integers(0, 2, (45, GROUPS)).astype(float)
    completed[30:], waiting[30:] = 0.0, 1.0  # until everything that is left is late
    slo = parse_slo(f"mean < 1 s over {window * 100} ms")
    rate = SuccessRate(slo, GROUPS, 0.1)
    for row in range(45):
        rate.add(completed[row], latency_ms[row], np.zeros(GROUPS), waiting[row])
    expected = success_rates(completed, latency_ms / 1e3, waiting, window_ticks=window, bound_s=1.0)
    known = ~np.isnan(expected.rate)
    assert rate.shares() == pytest.approx(expected.rate[known])
    assert rate.empty == expected.empty.sum()
    assert rate.stalled == expected.stalled.sum()


def test_a_window_that_would_not_fit_into_memory_is_refused():
    with pytest.raises(
        ConfigError, match=r"of 3\.6e\+06 s is too long .* 128 key groups; use 39062.5 s"
    ):
        SuccessRate(parse_slo("mean < 1 s over 1000 h"), 128, 0.1)
    rate = SuccessRate(parse_slo("mean < 1 s over 100 ms"), 128, 0.1)
    with pytest.raises(ConfigError, match="too long"):
        rate.judge_by(parse_slo("mean < 1 s over 1000 h"))
    assert rate.bound_ms == 1e3


def test_a_stall_misses_its_windows():
    """What waits for half a second with a bound of 200 ms is late for as long as it waits."""
    metrics = SparkMetrics(0.1, started_ms=0.0)
    success = SuccessRate(parse_slo("mean < 200 ms over 100 ms"), GROUPS, 0.1)
    useful = UsefulTime(100.0, lambda: None, lambda: 2)
    metrics.add_operator("o", spread(1, GROUPS), np.zeros(GROUPS), useful, success)
    metrics.committed([report(0, [(1, 0, 4, 0)], [(6, 0, 4, 2_000)])], 0.0, 600.0, 600.0)
    assert success.windows.tolist() == [6.0, *[0.0] * (GROUPS - 1)]
    assert success.met.sum() == 0.0
    assert success.stalled == 5


@pytest.mark.parametrize(
    ("slo", "waiting", "late_from"),
    [
        ("mean < 300 ms over 100 ms", [4, 4, 4, 4, 4], 3),  # all of them for 400 ms
        ("mean < 300 ms over 100 ms", [1, 2, 3, 4, 5, 6, 7, 8], 5),  # 2.1 s of waiting, 6 records
        ("p90 < 300 ms over 100 ms", [1, 2, 3, 4, 5], 3),  # the first of them
    ],
)
def test_a_window_without_completions_is_open_until_what_waits_is_late(slo, waiting, late_from):
    rate, none = SuccessRate(parse_slo(slo), 1, 0.1), np.zeros(1)
    judged = []
    for records in waiting:
        rate.add(none, none, none, np.array([records], dtype=float))
        judged.append((rate.windows.item(), rate.stalled))
    expected = [n + 1 if n >= late_from else 0 for n in range(len(waiting))]
    assert judged == [(n, n) for n in expected]
    assert rate.met.item() == 0.0


def test_an_open_window_is_judged_by_the_next_completions():
    """A job in time is never seen to miss its SLO, however its batches lie to its windows."""
    rate = SuccessRate(parse_slo("mean < 1 s over 100 ms"), 1, 0.1)
    one, none = np.ones(1), np.zeros(1)
    for _ in range(10):
        for _ in range(4):
            rate.add(none, none, none, one)
            assert rate.met.item() == rate.windows.item()
        rate.add(one * 8, one * 2_000.0, none, none)
    assert (rate.windows.item(), rate.met.item(), rate.stalled) == (50.0, 50.0, 40)


def test_windows_that_are_open_when_the_slo_changes_are_not_judged():
    rate = SuccessRate(parse_slo("mean < 1 s over 100 ms"), 1, 0.1)
    one, none = np.ones(1), np.zeros(1)
    rate.add(none, none, none, one)
    rate.judge_by(parse_slo("mean < 10 ms over 100 ms"))
    rate.add(one, one * 5.0, none, none)
    assert (rate.windows.item(), rate.met.item()) == (1.0, 1.0)


def test_a_percentile_is_judged_for_the_operator_as_a_whole():
    rate = SuccessRate(parse_slo("p90 < 1 s over 100 ms"), GROUPS, 0.1)
    rate.add(
        np.array([10.0, 0, 0, 0]), np.zeros(GROUPS), np.array([9.0, 0, 0, 0]), np.zeros(GROUPS)
    )
    rate.add(
        np.array([5.0, 5.0, 0, 0]), np.zeros(GROUPS), np.array([5.0, 3.0, 0, 0]), np.zeros(GROUPS)
    )
    assert rate.shares().tolist() == [0.5]


def test_the_worst_key_group_is_the_one_with_the_least_share():
    rate = SuccessRate(parse_slo("mean < 1 s over 100 ms"), 3, 0.1)
    for good in (True, True, False):
        latency_ms = np.array([0.0, 500.0, 500.0 if good else 1_500.0])
        rate.add(np.array([0.0, 1.0, 1.0]), latency_ms, np.zeros(3), np.zeros(3))
    assert rate.worst() == (pytest.approx(2 / 3), 2)


def test_another_slo_begins_a_new_window():
    rate = SuccessRate(parse_slo("mean < 1 s over 200 ms"), 1, 0.1)
    one = np.ones(1)
    rate.add(one, one, one, one)
    rate.judge_by(parse_slo("mean < 2 s over 300 ms"))
    for _ in range(3):
        rate.add(one, one * 1_500.0, one, one)
    assert (rate.windows.tolist(), rate.met.tolist()) == ([1.0], [1.0])


# --- floor ---------------------------------------------------------------------------------------


def steps(floor, count, latency_s, busy_s=0.01, *, waiting=False, period_s=0.4, start=0):
    for step in range(start, start + count):
        floor.add(step * period_s * 1e3, latency_s, busy_s, waiting)


def test_the_floor_is_the_latency_of_steps_with_nothing_to_do():
    floor = BatchFloor()
    steps(floor, STEPS_MIN, 0.5)
    assert floor.value_s == 0.5


def test_steps_in_which_records_waited_tell_nothing_of_the_floor():
    floor = BatchFloor()
    steps(floor, STEPS_MIN, 0.5)
    steps(floor, 20, 0.1, waiting=True, start=STEPS_MIN)
    assert floor.value_s == 0.5


def test_too_few_steps_give_no_floor():
    floor = BatchFloor()
    steps(floor, STEPS_MIN - 1, 0.5)
    assert floor.value_s == 0.0


def test_a_job_that_is_never_idle_has_a_floor_from_its_batches():
    floor = BatchFloor()
    steps(floor, 40, 9.0, busy_s=0.3, waiting=True)
    assert floor.value_s == pytest.approx(1.5 * 0.1)


# --- targets -------------------------------------------------------------------------------------


def test_the_tightest_slo_holds_at_each_operator():
    slos = [parse_slo("mean < 2 s over 5 s"), parse_slo("operator b: mean < 1 s over 1 s")]
    targets = steering.targets_of(slos, ["a", "b"])
    assert [targets[n].slo.bound for n in ("a", "b")] == [2.0, 1.0]
    assert steering.budget_s(slos) == pytest.approx(0.8)
    assert steering.budget_s([]) is None


def test_a_percentile_is_steered_by_the_mean_of_an_exponential_above_the_floor():
    (target,) = steering.targets_of([parse_slo("p90 < 1 s over 1 s")], ["a"]).values()
    assert target.mean_bound_s(0.0) == pytest.approx(1 / np.log(10))
    assert target.mean_bound_s(0.3) == pytest.approx(0.3 + 0.7 / np.log(10))


def test_the_alert_threshold_rises_with_the_floor_unless_the_user_set_it():
    (target,) = steering.targets_of([parse_slo("mean < 2 s over 2 s")], ["a"]).values()
    assert target.alert_s(0.0) == 0.1
    assert target.alert_s(0.6) == 0.3
    assert target.alert_s(60.0) == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("juice >= 0.9", "bounds no latency"),
        ("operator agg: mean < 1 s over 1 s", 'unknown operator "agg"'),
    ],
)
def test_an_slo_that_cannot_be_steered_by_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        steering.targets_of([parse_slo(text)], ["aggregate-0"])


def test_the_last_sample_of_a_job_with_one_operator_tells_how_its_batches_spend_their_time():
    batch = object()
    useful = SimpleNamespace(batch=lambda: batch)
    metrics = SparkMetrics(0.25, 0.0)
    metrics.add_operator("o", spread(2, GROUPS), np.zeros(GROUPS), useful, None, alone=True)
    nothing, slots = np.zeros(GROUPS), np.zeros(2)
    told = [Sample(n, spread(2, GROUPS), (0, 1), nothing, nothing, slots) for n in range(4)]
    metrics._operators["o"].samples.extend(told)
    collected = metrics.collect()["o"]
    assert [sample.tick for sample in collected] == [0, 1, 2, 3]
    assert [sample.batch for sample in collected] == [None, None, None, batch]
