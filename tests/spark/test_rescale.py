"""What `bench rescale` reads off a journal, and what it compares."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate.engines.spark.bench import rescale
from headgate.engines.spark.bench.rescale import RescaleParameters, change_of
from headgate.migration.registry import strategy

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
