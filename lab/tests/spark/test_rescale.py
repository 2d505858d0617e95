"""What `bench rescale` reads off a journal, and what it compares."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate.migration.registry import strategy
from headgate_lab.bench import rescale
from headgate_lab.bench.rescale import RescaleParameters, change_of

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


def test_what_a_change_adds_is_the_time_above_the_usual_batch():
    after = [batch(10_300, 300.0), change(10_400), batch(10_600, 150.0), batch(10_800)]
    found = change_of(BEFORE + after, 0.0, ASKED_MS)
    assert (found.added_ms, found.added_total_ms, found.batch_ms) == (200.0, 250.0, 100.0)
    assert (found.bytes_moved, found.groups_moved, found.operation_s) == (640, 7, 0.4)


def test_latency_counts_until_it_is_as_before_again():
    after = [
        batch(10_300, latency=(60.0, 80.0)),
        change(10_400),
        batch(10_600, latency=(400.0, 700.0), served=30),
        batch(10_800, latency=(50.0, 87.0)),
        batch(11_000, latency=(50.0, 80.0)),
    ]
    found = change_of(BEFORE + after, 0.0, ASKED_MS)
    assert (found.peak_ms, found.stable_s, found.before_ms) == (700.0, 0.6, 50.0)
    assert found.mean_ms == 315.0


def test_batches_without_records_have_no_latency():
    after = [batch(10_300, served=0), change(10_400), batch(10_600)]
    found = change_of(BEFORE + after, 0.0, ASKED_MS)
    assert found.peak_ms is None
    assert found.stable_s == 0.4


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
