"""What `bench rescale` reads off a journal, and what it compares."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from headgate.core.errors import ConfigError
from headgate.migration.registry import strategy
from headgate_lab.bench import rescale
from headgate_lab.bench.rescale import RescaleParameters
from headgate_lab.bench.rescale_cost import Markers, RescaleRun, change_of, longest_s
from headgate_lab.scaling_period import Latencies

ASKED_MS = 10_000.0


def batch(at_ms, duration_ms=100.0, latency=(50.0, 80.0), served=10):
    mean, most = latency
    return {
        "event": "batch",
        "at_ms": at_ms,
        "duration_ms": duration_ms,
        "served": served,
        "latency_ms": {"mean": mean, "max": most} if served else None,
    }


def change(at_ms):
    return {"event": "assignment", "at_ms": at_ms, "bytes_moved": 640, "groups_moved": 7}


BEFORE = [batch(9_000 + 200 * i) for i in range(5)]
ASKED_S = ASKED_MS / 1e3


def markers(*seconds):
    """Return ten markers in each second from four before the request on, with the given latencies."""
    due_s = ASKED_S - 4 + np.arange(10 * len(seconds)) / 10
    return Latencies(due_s, np.repeat(np.array(seconds), 10))


CALM = markers(*[0.05] * 10)


def measured(after, found=CALM, stable_s=2.0):
    return RescaleRun(BEFORE + after, 6_000.0, ASKED_MS, found, stable_s)


def test_what_a_change_adds_is_the_time_above_the_usual_batch():
    after = [batch(10_300, 300.0), change(10_400), batch(10_600, 150.0), batch(10_800)]
    found = change_of(measured(after), 1.0)
    assert (found.added_ms, found.added_total_ms, found.batch_ms) == (200.0, 250.0, 100.0)
    assert (found.bytes_moved, found.groups_moved, found.operation_s) == (640, 7, 0.4)


def test_latency_is_that_of_markers_in_the_sink_from_the_request_on():
    after = [batch(10_300), change(10_400), batch(10_600), batch(10_800)]
    #                 before the request         from it on
    found = markers(0.05, 0.05, 0.05, 0.06, 0.1, 0.7, 0.1, 0.05, 0.05, 0.05)
    cost = change_of(measured(after, found), 3.0)
    assert (cost.peak_ms, cost.mean_ms, cost.before_ms) == (700.0, 300.0, 52.5)
    assert cost.slot_peak_ms == 80.0
    # an interval that ends before the peak does not know of it
    assert change_of(measured(after, found), 1.0).peak_ms == 100.0


class Rows:
    """What a sink is given: takes its time to be read."""

    def __init__(self, due_us, takes_s):
        self.due_us, self.takes_s = due_us, takes_s

    def where(self, _):
        return self

    def select(self, _):
        return self

    def toArrow(self):
        time.sleep(self.takes_s)
        return pa.table({"due_us": self.due_us})


def test_a_marker_counts_what_the_sink_takes():
    markers, now_s = Markers(), time.time()
    markers.keep(Rows([int((now_s - 2) * 1e6), int((now_s - 5) * 1e6)], takes_s=0.1), 0)
    found = markers.since(now_s - 3)
    assert len(found.latency_s) == 1
    assert 2.05 <= found.latency_s[0] < 60.0
    assert len(markers.since(now_s - 6).created_s) == 2
    assert len(Markers().since(0.0).created_s) == 0


def test_a_scaling_period_ends_when_the_mean_of_each_second_keeps_within_a_tenth_long_enough():
    after = [batch(10_300), change(10_400), batch(10_600)]
    #                 before the request         10 s  11 s  12 s  13 s  14 s  15 s  16 s
    found = markers(0.05, 0.05, 0.05, 0.05, 0.05, 0.5, 0.05, 0.06, 0.055, 0.05, 0.05)
    # the mean of second 11 stands for its end, at 12; that of second 13 is above, too: 14
    assert measured(after, found, stable_s=3.0).scaling_s() == pytest.approx(4.0)
    assert measured(after, found, stable_s=1.8).scaling_s() == pytest.approx(2.0)
    assert measured(after, found, stable_s=4.0).scaling_s() is None


def test_a_calm_second_does_not_end_with_one_slow_record():
    found = markers(*[0.05] * 10)
    found.latency_s[72] = 0.08  # the mean of its ten is 0.053
    run = measured([change(10_400), batch(10_600)], found, stable_s=4.0)
    assert run.scaling_s() == pytest.approx(0.4)


def test_the_longest_period_of_the_methods_is_that_of_all_and_stopping_is_none_of_them():
    calm = measured([change(10_400), batch(10_600)])
    found = markers(0.05, 0.05, 0.05, 0.05, 0.05, 0.5, 0.05, 0.05, 0.05, 0.05)
    late = measured([change(10_400), batch(10_600)], found)
    runs = {"subscale": [calm], "fluid": [late], "stop-restart": [replace(late, stable_s=99.0)]}
    assert longest_s(runs, ("subscale", "fluid")) == pytest.approx(2.0)
    assert longest_s(runs, ("subscale",)) == pytest.approx(0.4)
    # one that was not stable counts to its end
    assert longest_s({"fluid": [replace(late, stable_s=99.0)]}, ("fluid",)) == pytest.approx(5.9)


def test_suspended_slots_are_read_off_the_end_of_the_migration():
    end = {"event": "migration", "what": "finished", "suspended_s": 1.25, "at_ms": 10_400}
    assert change_of(measured([end, change(10_400), batch(10_600)]), 1.0).suspended_s == 1.25


def test_batches_without_records_have_no_latency():
    after = [batch(10_300, served=0), change(10_400), batch(10_600)]
    found = change_of(measured(after, markers(*[0.05] * 4)), 0.4)
    assert found.peak_ms is None
    assert found.slot_peak_ms is None
    assert found.stable_s is None


def test_each_mechanism_alone_is_a_strategy():
    chosen = RescaleParameters(only="decoupling, scheduling,subscale|all|none")
    switches = {
        name: (made.decoupling, made.scheduling, made.division)
        for name, made in ((n, strategy(text)) for n, text in chosen.rows().items())
    }
    assert switches == {
        "decoupling": (True, False, False),
        "scheduling": (False, True, False),
        "subscale": (False, False, True),
        "all": (True, True, True),
        "none": (False, False, False),
    }


@pytest.mark.parametrize(
    "given",
    [{"state": "100"}, {"only": "half"}, {"strategies": "fluidity"}, {"hosts": 1}, {"rate": 0}],
)
def test_what_makes_no_sense_is_refused(given):
    with pytest.raises(ConfigError):
        rescale.run(**given)


def cost(peak_ms, mean_ms, operation_s, added_ms=5.0):
    return {
        "peak_ms": peak_ms,
        "mean_ms": mean_ms,
        "operation_s": operation_s,
        "added_ms": added_ms,
    }


def test_subscale_is_judged_by_the_best_rival_in_each_figure_and_stopping_is_none():
    across = {
        "subscale": cost(100.0, 20.0, 2.0),
        "fluid": cost(400.0, 300.0, 9.0),
        "on-demand": cost(900.0, 100.0, 3.0),
        "stop-restart": cost(1.0, 1.0, 0.1),
    }
    less = rescale.judged({"across_hosts": across, "in_host": {}})["subscale_less"]
    assert {name: (one["value"], one["met"]) for name, one in less.items()} == {
        "peak_ms": (0.75, False),
        "mean_ms": (0.8, False),
        "operation_s": (0.333, False),
    }


def test_a_change_within_a_host_is_judged_beside_sparks_own_way():
    found = {
        "across_hosts": {},
        "in_host": {"shared": cost(1.0, 1.0, 0.1, added_ms=20.0)},
        "spark": {"total_ms": 3_000.0},
    }
    judged = rescale.judged(found)
    assert judged["in_host_added_ms"]["met"]
    assert judged["spark_times"] == {"value": 150.0, "aim": 100.0, "met": True}
