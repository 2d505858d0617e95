"""Pools of replicas on the simulated engine."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import Interval, ReplicaDecision
from headgate.core.errors import ConfigError
from headgate.whatif.model import Distribution, ServiceTime, SlotPool
from headgate_lab.rivals.dabs import Dabs
from headgate_lab.sim.replicas.model import (
    Edge,
    GroupingKind,
    PoolJob,
    PoolSettings,
    StatelessOperator,
)
from headgate_lab.sim.replicas.simulation import PoolRun, simulate

F64 = npt.NDArray[np.float64]
SECOND = PoolSettings(interval_s=1.0)


def chain(event_s: float = 0.01, length: int = 3, pool: int = 16, **changes: object) -> PoolJob:
    operators: dict[str, StatelessOperator] = {}
    parents: tuple[Edge, ...] = ()
    for name in "abcdefgh"[:length]:
        operators[name] = StatelessOperator(ServiceTime(event_s), parents, pool, **changes)  # type: ignore[arg-type]
        parents = (Edge(name),)
    return PoolJob(operators)


def every(gap_s: float, until_s: float) -> F64:
    return np.arange(0.0, until_s, gap_s)


def burst(calm: int, high: int, seed: int = 1) -> F64:
    """Ten seconds of `calm` events each, ten of `high`, and twenty of none."""
    random = np.random.default_rng(seed)
    counts = [calm] * 10 + [high] * 10
    return np.sort(np.concatenate([n + random.random(c) for n, c in enumerate(counts)]))


class Flapping:
    """Changes all replicas in every interval."""

    name = "flapping"

    def decide(self, interval: Interval) -> ReplicaDecision:
        return ReplicaDecision(
            {name: 17 - operator.active for name, operator in interval.operators.items()}
        )


def accounted(run: PoolRun) -> float:
    return run.left.sum() + run.dropped + run.waiting


def test_an_event_that_waits_for_nobody_takes_its_service_times() -> None:
    run = simulate(chain(0.1), None, every(1.0, 5.0), 6.0, SECOND)
    assert (run.leave_s - run.enter_s).tolist() == pytest.approx([0.3] * 5)


def test_a_replica_serves_one_event_after_another() -> None:
    #  four at once, 0.1 s each
    run = simulate(chain(0.1, length=1), None, np.zeros(4), 1.0, SECOND)
    assert run.leave_s.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_slow_replicas_take_longer() -> None:
    job = chain(0.1, length=1, replicas=SlotPool(0.5, 1.0))
    run = simulate(job, None, np.zeros(1), 1.0, SECOND)
    assert run.leave_s.tolist() == pytest.approx([0.2])


def test_a_burst_is_followed_and_nothing_is_lost() -> None:
    run = simulate(chain(), Psps(), burst(20, 600), 40.0, SECOND)
    assert (run.left.sum(), run.dropped, run.waiting) == (6200.0, 0, 0)
    assert run.active[5].tolist() == [1, 1, 1]
    assert run.active[14].min() >= 6
    assert run.active[-1].tolist() == [1, 1, 1]


def test_a_deactivated_replica_serves_what_it_holds() -> None:
    #  Eight replicas are given 8 events of 0.5 s each in the first second, then seven are switched off.
    start = replace(SECOND, active=8, grouping=GroupingKind.ROUND_ROBIN)

    class One:
        name = "one"

        def decide(self, interval: Interval) -> ReplicaDecision:
            return ReplicaDecision({"a": 1})

    run = simulate(chain(0.5, length=1), One(), every(1 / 64, 1.0), 5.0, start)
    assert run.active[:, 0].tolist() == [8, 1, 1, 1, 1]
    assert run.left.sum() == 64


@given(
    seed=st.integers(0, 99),
    kind=st.sampled_from(GroupingKind),
    policy=st.sampled_from([Psps, Dabs, Flapping]),
    timeout_s=st.sampled_from([math.inf, 0.5, 3.0]),
    queue_events=st.sampled_from([None, 5, 500]),
)
@settings(deadline=None, max_examples=30)
def test_every_event_leaves_waits_or_is_counted_as_dropped(
    seed: int, kind: GroupingKind, policy: type, timeout_s: float, queue_events: int | None
) -> None:
    given_ = replace(SECOND, grouping=kind, timeout_s=timeout_s, queue_events=queue_events)
    job = PoolJob(
        {
            "a": StatelessOperator(ServiceTime(0.01, Distribution.EXPONENTIAL)),
            "b": StatelessOperator(ServiceTime(0.02), (Edge("a", 0.0, 0.3),)),
            "c": StatelessOperator(ServiceTime(0.02), (Edge("a", 0.3, 1.0),)),
            "d": StatelessOperator(ServiceTime(0.01), (Edge("b"), Edge("c"))),
        }
    )
    arrivals_s = burst(30, 300, seed)
    run = simulate(job, policy(), arrivals_s, 25.0, given_, seed=seed)
    assert accounted(run) == len(arrivals_s)
    assert (run.leave_s >= run.enter_s).all()
    if policy is not Dabs and queue_events is None and timeout_s == math.inf:
        assert run.dropped == 0


def test_an_event_older_than_the_timeout_is_dropped_and_counted() -> None:
    #  0.1 s each: the 6th would begin at 0.5 s, the 7th at 0.6 s
    given_ = replace(SECOND, timeout_s=0.55)
    run = simulate(chain(0.1, length=1), None, np.zeros(10), 2.0, given_)
    assert (run.left.sum(), run.timed_out) == (6.0, 4)


def test_the_age_counts_from_the_entry_into_the_job() -> None:
    run = simulate(chain(0.1, length=3), None, np.zeros(1), 1.0, replace(SECOND, timeout_s=0.15))
    assert (run.left.sum(), run.timed_out) == (0.0, 1)


def test_an_event_that_finds_a_full_queue_is_dropped_and_counted() -> None:
    #  one in service, three wait, six are refused
    run = simulate(chain(0.1, length=1), None, np.zeros(10), 2.0, replace(SECOND, queue_events=3))
    assert (run.left.sum(), run.refused) == (4.0, 6)


def test_a_restart_loses_what_is_queued_and_serves_nothing_meanwhile() -> None:
    given_ = replace(SECOND, restart_s=2.0, grouping=GroupingKind.SHUFFLE)
    run = simulate(chain(length=1), Dabs(), burst(20, 600), 40.0, given_)
    assert run.restarts > 0
    assert run.lost > 0
    assert accounted(run) == 6200
    assert 0.0 in run.left[10:20]


def test_a_split_sends_each_event_one_way_and_a_copy_goes_both() -> None:
    def left(first: Edge, second: Edge) -> float:
        operators = {
            "a": StatelessOperator(ServiceTime(0.001)),
            "b": StatelessOperator(ServiceTime(0.001), (first,)),
            "c": StatelessOperator(ServiceTime(0.001), (second,)),
        }
        return float(simulate(PoolJob(operators), None, every(0.01, 5.0), 6.0, SECOND).left.sum())

    assert left(Edge("a", 0.0, 0.7), Edge("a", 0.7, 1.0)) == 500
    assert left(Edge("a"), Edge("a")) == 1000


def test_shares_of_a_split_are_what_the_policy_sees() -> None:
    seen: list[Interval] = []

    class Watching:
        name = "watching"

        def decide(self, interval: Interval) -> ReplicaDecision:
            seen.append(interval)
            return ReplicaDecision()

    operators = {
        "a": StatelessOperator(ServiceTime(0.001)),
        "b": StatelessOperator(ServiceTime(0.001), (Edge("a", 0.0, 0.25),)),
    }
    simulate(
        PoolJob(operators), Watching(), every(0.001, 4.0), 4.0, replace(SECOND, interval_s=4.0)
    )
    assert seen[0].input_events == seen[0].operators["a"].from_source == 4000
    assert seen[0].operators["b"].received["a"] == pytest.approx(1000, abs=100)


@pytest.mark.parametrize(
    ("other", "share"), [(GroupingKind.SHUFFLE, 0.5), (GroupingKind.LOAD_AWARE, 1.0)]
)
def test_least_work_waits_less(other: GroupingKind, share: float) -> None:
    random = np.random.default_rng(5)
    arrivals_s = np.sort(random.random(25_000) * 100.0)
    job = PoolJob({"a": StatelessOperator(ServiceTime(0.01, Distribution.EXPONENTIAL))})
    start = PoolSettings(interval_s=10.0, active=3)
    waits = {}
    for kind in (GroupingKind.LEAST_WORK, other):
        run = simulate(job, None, arrivals_s, 100.0, replace(start, grouping=kind))
        waits[kind] = run.measures(8.0)["latency_ms"]
    assert waits[GroupingKind.LEAST_WORK] < share * waits[other]


def test_degradation_may_be_counted_over_several_intervals() -> None:
    #  what comes in one second leaves in the next
    run = simulate(chain(0.1, length=1), None, np.full(20, 0.0), 2.0, SECOND)
    assert run.left.tolist() == pytest.approx([10.0, 10.0], abs=1.0)
    assert run.measures(1.0)["degradation"] == pytest.approx(0.5, abs=0.06)
    assert run.measures(1.0, window_s=2.0)["degradation"] < 0.06


def test_load_aware_grouping_spares_a_replica_that_waits() -> None:
    #  Replica 0 holds 50 events of 0.1 s when a second one is activated; 20 more come per second.
    class Two:
        name = "two"

        def decide(self, interval: Interval) -> ReplicaDecision:
            return ReplicaDecision({"a": 2})

    arrivals_s = np.concatenate([np.full(60, 0.0), 1.0 + every(0.05, 1.0)])
    job = chain(0.1, length=1)
    latency = {}
    for kind in (GroupingKind.LOAD_AWARE, GroupingKind.ROUND_ROBIN):
        run = simulate(job, Two(), arrivals_s, 8.0, replace(SECOND, grouping=kind))
        late = run.enter_s >= 1.0
        latency[kind] = float((run.leave_s - run.enter_s)[late].mean())
    assert latency[GroupingKind.LOAD_AWARE] < 0.6 * latency[GroupingKind.ROUND_ROBIN]


def test_events_that_grow_dearer_are_followed_by_the_corrected_time_only() -> None:
    #  50/s of 10 ms at first and 40 ms in the end: half a replica, then two
    job = chain(length=1, drift=4.0)
    arrivals_s = every(0.02, 200.0)
    waiting = {}
    for weight in (0.0, 0.125):
        given_ = PoolSettings(interval_s=5.0, event_time_weight=weight)
        run = simulate(job, Psps(), arrivals_s, 200.0, given_)
        waiting[weight] = run.measures(4.0)["latency_ms"]
    assert waiting[0.125] < 0.7 * waiting[0.0]


def test_a_seed_gives_the_same_run_again() -> None:
    job = PoolJob({"a": StatelessOperator(ServiceTime(0.01, Distribution.EXPONENTIAL))})
    runs = [
        simulate(job, Psps(), burst(20, 300), 20.0, SECOND, seed=seed).leave_s.tolist()
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_an_edge_without_a_parent_before_it_is_refused() -> None:
    with pytest.raises(ConfigError, match='"b" comes before its parent "a"'):
        PoolJob({"b": StatelessOperator(ServiceTime(0.1), (Edge("a"),))})


def test_an_edge_with_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 <= low < high <= 1"):
        Edge("a", 0.5, 0.5)


def test_arrivals_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="not ascending"):
        simulate(chain(), None, np.array([1.0, 0.5]), 2.0)
