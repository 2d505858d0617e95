"""A job with a hot key, its counters and control loop, on a virtual clock: one split, for good."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hot_job import HOT, NAME, HotJob

BOUND_S = 3.0


def batches(seed):
    draw = random.Random(seed)
    return lambda: draw.uniform(0.4, 1.0)


def shares(job):
    return [len(assignment.shares_of(HOT)) for _, assignment in job.assignments]


def views(job, monkeypatch):
    """Return the list of what the policy will have seen."""
    seen, policy = [], job.controller._granted._policy
    decide = policy.decide

    def kept(observation):
        seen.append((job.now, observation.operators[NAME]))
        return decide(observation)

    monkeypatch.setattr(policy, "decide", kept)
    return seen


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.thorough) for s in (2, 3))]
)
def test_a_hot_group_is_split_at_once_over_as_many_slots_as_hold(monkeypatch, tmp_path, seed):
    """2,100 of 3,500 records/s have the key, a slot serves 1,000, of which 800 are to be used."""
    job = HotJob(monkeypatch, tmp_path)
    seen = views(job, monkeypatch)
    job.run(60.0, batches(seed))
    assert max(shares(job)) <= 4
    assert sum(a != b for a, b in zip([1, *shares(job)], shares(job), strict=False)) <= 2
    assert max(at for at, _ in job.assignments) < 20.0
    settled = [view for at, view in seen if at > 15.0]
    for view in settled:
        assert view.service_rate == pytest.approx(np.full(view.slots, 1_000.0), rel=0.02)
        assert view.group_rate.sum() == pytest.approx(3_500.0, rel=0.15)
        assert view.group_rate[HOT] == pytest.approx(2_100.0, rel=0.2)
    assert max(job.seconds(15.0, 60.0).values()) < BOUND_S
    # merged rows that wait for their owner in every step are no backlog that would hide the floor
    assert len(job.controller._floor._measured._latencies_s) > 20


def test_a_split_outlives_a_driver_and_the_slo_is_met_again(monkeypatch, tmp_path):
    job = HotJob(monkeypatch, tmp_path)
    job.run(20.0, batches(1))
    before = job.state.assignment
    job.kill(down_s=8.0)
    seen = views(job, monkeypatch)
    for batch_s in (4.0, 2.0, 1.5):  # workers and JVM are cold
        job.batch(batch_s)
    job.run(90.0, batches(2))
    assert len(job.state.assignment.shares_of(HOT)) >= len(before.shares_of(HOT))
    assert all(len(a.shares_of(HOT)) > 2 for a in (view.assignment for _, view in seen))
    # what came meanwhile, and what an earlier run left, is no rate
    assert max(view.group_rate.sum() for _, view in seen) < 4_500.0
    assert max(job.seconds(60.0, 90.0).values()) < BOUND_S


def test_a_split_outlives_a_lull_and_ends_when_the_load_has_gone(monkeypatch, tmp_path):
    job = HotJob(monkeypatch, tmp_path)
    job.run(20.0, batches(1))
    split = job.state.assignment.split
    job.rate = 300
    job.run(25.0, batches(2))
    job.rate = 3_500
    job.run(35.0, batches(3))
    assert len(job.state.assignment.shares_of(HOT)) >= len(split[HOT])
    job.rate = 300
    job.run(75.0, batches(4))
    assert not job.state.assignment.split
    assert job.state.assignment.slots == 1
