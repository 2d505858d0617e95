"""What a fleet measures of a query of pools; steps are told to the probe, without Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headgate.control.fleet.grant import Grant
from headgate.core.utility import Intent, Metric
from headgate.spark.fleet import pool_probe
from headgate.spark.fleet.pool_probe import PoolProbe
from headgate.spark.job.pools import PoolConfig
from headgate.spark.job.reports import Ran
from headgate.spark.pools.pool_loop import PoolLoop


class Pool:
    """A stage's pool with so many active replicas and rows that wait."""

    def __init__(self, active, waiting=0):
        self.active, self.waiting = list(range(active)), waiting

    def queued(self):
        return [self.waiting]


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


def report(stage, served, arrived, useful_s=0.5, ms=100.0, lane=0):
    return SimpleNamespace(
        operator=stage,
        lane=lane,
        arrived=arrived,
        served=served,
        useful_s=useful_s,
        histogram=((ms, served),),
        latency_sum_ms=ms * served,
        origins={-1 if stage == "a" else 0: arrived},
        ran=Ran("host", 0.0, useful_s * 1e3, 0.5),
    )


@pytest.fixture
def watched(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pool_probe, "time", clock)
    states = {"a": Pool(2, waiting=50), "b": Pool(1)}
    a, b = SimpleNamespace(id="a"), SimpleNamespace(id="b")
    pipeline = SimpleNamespace(stages=[a, b], sources=[a], last=["b"])
    work = SimpleNamespace(states=states, config=PoolConfig(1, 4, 1), pipeline=pipeline)
    probe = PoolProbe(60.0).around(work)

    def step(*reports, at_s):
        clock.now = 100.0 + at_s
        lanes = {"a": [0, 1], "b": [0]}
        probe.committed(list(reports), lanes, {"manifest": 20.0, "sink": 80.0}, at_s * 1e3)

    return SimpleNamespace(probe=probe, clock=clock, step=step, states=states)


def value(found, metric, threshold=1.0, percentile=None):
    (value,) = found.probe.values([Intent(metric, threshold, percentile=percentile)])
    return value


def test_throughput_juice_and_latency_are_those_of_the_chain(watched):
    watched.step(report("a", 100, 150), report("b", 100, 100, ms=300.0), at_s=10.0)
    assert value(watched, Metric.THROUGHPUT) == pytest.approx(10.0)
    # of 150 rows 100 were served by the first stage, and all of these by the second
    assert value(watched, Metric.JUICE) == pytest.approx(100 / 150)
    assert value(watched, Metric.LATENCY) == pytest.approx(0.3 + 0.1)


def test_the_capacity_is_that_of_the_busiest_replica_since_the_pool_changed(watched):
    watched.step(report("a", 100, 100, 4.0), report("a", 100, 100, 9.0, lane=1), at_s=10.0)
    watched.step(report("a", 100, 100, 1.0), report("a", 100, 100, 5.0, lane=1), at_s=20.0)
    found = watched.probe.operators()["a"]
    # the first step is the one in which the pool was first seen
    assert (found.slots, found.slots_max) == (2, 4)
    assert found.capacity == pytest.approx(0.5)
    assert found.backlog_s == pytest.approx(50 / (400 / 19 * 2))


def test_the_input_rate_is_counted_from_the_first_step_of_the_window(watched):
    watched.step(report("a", 10, 1000), at_s=10.0)
    watched.step(report("a", 10, 300), report("b", 10, 10), at_s=20.0)
    assert watched.probe.input_rate() == pytest.approx(30.0)


def test_nothing_is_known_before_the_first_step_and_an_idle_pool_is_content(watched):
    intent = Intent(Metric.JUICE, 0.9)
    assert watched.probe.values([intent]) is None
    watched.probe.quiet()
    assert watched.probe.values([intent]) == (1.0,)
    watched.step(report("a", 10, 20), at_s=10.0)
    watched.clock.now += 60.0
    assert watched.probe.values([intent]) is None, "nor once its steps are too old"


def test_juice_falls_while_the_source_has_more_than_was_read(watched):
    """Batches are limited: 100 records of each; the source is 100 behind, then 300."""

    def progress(batch, end, latest):
        source = {"startOffset": end - 100, "endOffset": end, "latestOffset": latest}
        return {"batchId": batch, "sources": [{**source, "numInputRows": 100}]}

    watched.probe.note_progress(progress(1, 100, 200))
    watched.step(report("a", 100, 100), report("b", 100, 100), at_s=10.0)
    watched.states["a"].waiting = 0
    watched.step(report("a", 100, 100), report("b", 100, 100), at_s=20.0)
    assert value(watched, Metric.JUICE) == pytest.approx(1.0)
    watched.probe.note_progress(progress(2, 200, 500))
    # of 200 read and 200 more that were not, 200 were served
    assert value(watched, Metric.JUICE) == pytest.approx(0.5)


def test_tasks_are_counted_at_the_host_on_which_they_ran(watched):
    watched.step(report("a", 10, 10, 2.0), report("b", 10, 10, 1.0), at_s=10.0)
    assert watched.probe.hosts(5.0)["host"].runnable_s == pytest.approx(3.0)


def test_only_replicas_beyond_the_grant_are_a_request():
    policy = SimpleNamespace(name="static")
    loop = PoolLoop(
        ["a", "b"], PoolConfig(1, 4, 1), policy, None, SimpleNamespace(write=lambda event: None)
    )
    loop.limit(Grant({"a": 2, "b": 2}))
    loop._policy.requests = {"a": 2, "b": 3}
    assert loop.requests() == {"b": 3}
    loop.limit(Grant({"a": 2, "b": 4}))
    assert loop.requests() == {}
