"""PSPS: equations 1 to 4, the plan, the pool, its rival and the measures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from headgate.control.estimators.forecast import HoltWinters, Naive
from headgate.control.estimators.service_time import ServiceTimeEstimate
from headgate.control.pools.psps import (
    INPUT,
    Psps,
    check_interval,
    edge_shares,
    plan,
    predict,
    replicas_needed,
)
from headgate.control.pools.replicas import Interval, OperatorInterval, ReplicaPolicy, ReplicaPool
from headgate.core.errors import ConfigError, UnsupportedQuery
from headgate_lab.replica_metrics import (
    mean_latency_s,
    processed_share,
    saved_resources,
    throughput_degradation,
)
from headgate_lab.rivals.dabs import Dabs


def operator(event_s: float = 0.01, **changes: object) -> OperatorInterval:
    base = OperatorInterval(active=1, pool=32, event_s=event_s, processed=0.0)
    return replace(base, **changes)  # type: ignore[arg-type]


#  input ─ 100 ─► O1 ─ 117 of 140 ─► O2 ─ 90 of 120 ─► O3
TABLE_2 = Interval(
    duration_s=1.0,
    input_events=100.0,
    operators={
        "O1": operator(0.0166, processed=140.0, from_source=100.0, queued=0.0),
        "O2": operator(0.025, processed=120.0, received={"O1": 117.0}, queued=7.0),
        "O3": operator(0.100, processed=90.0, received={"O2": 90.0}, queued=20.0),
    },
)


def test_table_2_predicts_the_papers_events() -> None:
    found = predict(TABLE_2, edge_shares(TABLE_2, {}), 100.0)
    assert [p.received for p in found.values()] == [100, 84, 63]
    assert [p.queued for p in found.values()] == [0, 7, 20]
    assert [p.total for p in found.values()] == [100, 91, 83]


def test_only_operators_that_read_the_source_have_a_share_of_the_input() -> None:
    edges = {(INPUT, "O1"), ("O1", "O2"), ("O2", "O3")}
    assert set(edge_shares(TABLE_2, {})) == edges
    nothing = {
        name: replace(
            one, processed=0.0, from_source=0.0, received=dict.fromkeys(one.received, 0.0)
        )
        for name, one in TABLE_2.operators.items()
    }
    assert edge_shares(Interval(1.0, 0.0, nothing), {}) == dict.fromkeys(edges, 1.0)


def test_table_2_needs_the_papers_replicas() -> None:
    assert Psps().decide(TABLE_2).active == {"O1": 2, "O2": 3, "O3": 9}


@pytest.mark.parametrize(
    ("events", "event_s", "replicas"), [(30, 0.1, 3), (31, 0.1, 4), (0, 0.1, 0), (1, 0.1, 1)]
)
def test_replicas_are_rounded_up(events: float, event_s: float, replicas: int) -> None:
    assert replicas_needed(events, event_s, 1.0) == replicas


def diamond(replicated: float = 1.0) -> Interval:
    #          ┌─ 70 ─► O2 ─ 28 of 70 ─┐
    #  100 ─► O1                       ├─► O4
    #          └─ 30 ─► O3 ─ 30 of 30 ─┘
    operators = {
        "O4": operator(processed=58.0, received={"O2": 28.0, "O3": 30.0}),
        "O2": operator(processed=70.0, received={"O1": 70.0 * replicated}),
        "O3": operator(processed=30.0, received={"O1": 30.0 * replicated}),
        "O1": operator(processed=100.0, from_source=100.0),
    }
    return Interval(1.0, 100.0, operators)


def test_figure_5_gives_the_papers_shares_whatever_the_order_of_operators() -> None:
    found = predict(diamond(), edge_shares(diamond(), {}), 100.0)
    theta = {name: round(prediction.theta, 9) for name, prediction in found.items()}
    assert theta == {"O1": 1.0, "O2": 0.7, "O3": 0.3, "O4": 0.58}


def test_theta_exceeds_one_behind_an_operator_that_replicates() -> None:
    found = predict(diamond(2.0), edge_shares(diamond(2.0), {}), 100.0)
    assert found["O2"].theta == pytest.approx(1.4)


def test_of_several_initial_operators_each_has_its_share_of_the_input() -> None:
    operators = {"a": operator(from_source=30.0), "b": operator(from_source=100.0)}
    shares = edge_shares(Interval(1.0, 100.0, operators), {})
    assert shares == {(INPUT, "a"): 0.3, (INPUT, "b"): 1.0}
    quiet = edge_shares(Interval(1.0, 0.0, {n: operator() for n in "ab"}), shares)
    assert quiet == shares


def chain(first: int, others: int = 1) -> Interval:
    """100 events/s of 50 ms each reach three operators; the first can do 20 per replica."""
    done = min(100.0, 20.0 * first)
    o1 = operator(0.05, active=first, processed=done, from_source=100.0, queued=100.0 - done)
    o2 = operator(0.05, active=others, processed=done, received={"O1": done})
    o3 = operator(0.05, active=others, processed=done, received={"O2": done})
    return Interval(1.0, 100.0, {"O1": o1, "O2": o2, "O3": o3})


def test_a_slow_first_operator_causes_no_domino_effect() -> None:
    #  With 20 of 100 let through, the whole chain is right after one interval: 5 each, and 4 more
    #  for the queue of the first. Another interval without the queue changes only the first.
    policy = Psps()
    assert policy.decide(chain(first=1)).active == {"O1": 9, "O2": 5, "O3": 5}
    assert policy.decide(chain(first=9, others=5)).active == {"O1": 5}


def test_shares_are_kept_while_a_predecessor_processes_nothing() -> None:
    shares = edge_shares(TABLE_2, {})
    stuck = dict(TABLE_2.operators)
    stuck["O1"] = replace(stuck["O1"], processed=0.0)
    stuck["O2"] = replace(stuck["O2"], received={"O1": 0.0})
    kept = edge_shares(replace(TABLE_2, operators=stuck), shares)
    assert kept["O1", "O2"] == shares["O1", "O2"] == pytest.approx(117 / 140)


def test_a_predecessor_that_never_processed_passes_everything_on() -> None:
    interval = Interval(1.0, 9.0, {"a": operator(), "b": operator(received={"a": 0.0})})
    assert edge_shares(interval, {})["a", "b"] == 1.0


def test_without_input_one_replica_stays_active() -> None:
    interval = Interval(1.0, 0.0, {"a": operator(active=7)})
    assert Psps().decide(interval).active == {"a": 1}


def test_a_queue_alone_keeps_replicas_active() -> None:
    interval = Interval(1.0, 0.0, {"a": operator(active=7, queued=250.0)})
    assert Psps().decide(interval).active == {"a": 3}


def test_no_more_replicas_than_the_pool_has_are_wanted() -> None:
    interval = Interval(1.0, 1e6, {"a": operator(pool=32)})
    assert Psps().decide(interval).active == {"a": 32}


def test_no_fewer_replicas_than_must_stay_active_are_wanted() -> None:
    least = operator(active=4, least=4, processed=10.0, from_source=10.0)
    assert not Psps().decide(Interval(1.0, 10.0, {"a": least}))
    assert not Dabs().decide(Interval(1.0, 10.0, {"a": least}))


def test_replicas_may_exceed_what_the_peak_needs_to_drain_a_queue() -> None:
    peak = Interval(1.0, 800.0, {"a": operator(queued=400.0)})
    assert replicas_needed(800.0, 0.01, 1.0) == 8
    assert Psps().decide(peak).active == {"a": 12}


@pytest.mark.parametrize("absurd", [math.nan, -1.0, math.inf])
def test_an_absurd_sample_changes_nothing(absurd: float) -> None:
    policy = Psps()
    decision = policy.decide(replace(TABLE_2, input_events=absurd))
    assert not decision
    assert "missing or absurd" in decision.reason
    operators = TABLE_2.operators | {"O2": replace(TABLE_2.operators["O2"], queued=absurd)}
    assert not policy.decide(replace(TABLE_2, operators=operators))
    assert policy.decide(TABLE_2).active == {"O1": 2, "O2": 3, "O3": 9}


def test_an_interval_shorter_than_an_events_way_is_refused() -> None:
    #  The longest path takes 16.6 + 25 + 100 ms.
    assert TABLE_2.event_through_s == pytest.approx(0.1416)
    assert diamond().event_through_s == pytest.approx(0.03)
    with pytest.raises(ConfigError, match=r"interval=0.14 s is not longer than the 0.1416 s"):
        Psps().decide(replace(TABLE_2, duration_s=0.14))
    check_interval(replace(TABLE_2, duration_s=0.15))


def test_an_event_time_that_grows_later_does_not_stop_the_job() -> None:
    policy = Psps()
    policy.decide(TABLE_2)
    slow = TABLE_2.operators | {"O3": replace(TABLE_2.operators["O3"], event_s=2.0)}
    assert policy.decide(replace(TABLE_2, operators=slow)).active["O3"] == 32


def test_a_stateful_operator_is_refused() -> None:
    interval = Interval(1.0, 9.0, {"count": operator(stateful=True)})
    for policy in (Psps(), Dabs()):
        with pytest.raises(
            UnsupportedQuery, match='cannot run operator "count", which keeps state'
        ):
            policy.decide(interval)


def test_a_cycle_of_operators_is_refused() -> None:
    interval = Interval(
        9.0, 9.0, {"a": operator(received={"b": 1.0}), "b": operator(received={"a": 1.0})}
    )
    with pytest.raises(ConfigError, match="form a cycle"):
        Psps().decide(interval)


def test_the_plan_names_only_what_changes() -> None:
    predictions = predict(TABLE_2, edge_shares(TABLE_2, {}), 100.0)
    operators = TABLE_2.operators | {"O2": replace(TABLE_2.operators["O2"], active=3)}
    assert plan(replace(TABLE_2, operators=operators), predictions) == {"O1": 2, "O3": 9}


def test_a_decision_explains_itself() -> None:
    decision = Psps().decide(TABLE_2)
    assert "100 events expected: O1 1 -> 2 for 100, O2 1 -> 3 for 91" in decision.reason
    assert decision.numbers["O3.events"] == 83
    assert not decision.restart


def test_what_waits_upstream_may_count_as_received() -> None:
    plain = predict(chain(1), edge_shares(chain(1), {}), 100.0)
    ahead = predict(chain(1), edge_shares(chain(1), {}), 100.0, predecessor_queues=True)
    assert [p.received for p in plain.values()] == [100, 100, 100]
    assert [p.received for p in ahead.values()] == [100, 180, 180]
    assert Psps(predecessor_queues=True).decide(chain(1)).active == {"O1": 9, "O2": 9, "O3": 9}


def test_a_forecast_of_the_input_replaces_the_last_value() -> None:
    naive, seasonal = Psps(Naive()), Psps(HoltWinters(period=2))
    for events in [100.0, 900.0, 100.0, 900.0]:
        interval = Interval(1.0, events, {"a": operator()})
        last, ahead = naive.decide(interval), seasonal.decide(interval)
    assert last.active == {"a": 9}
    assert not ahead.active  # 100 come next: the one active replica is enough
    assert seasonal.name == "psps(holt-winters(2))"


def play(inputs: list[int], policy: ReplicaPolicy | None, active: int) -> dict[str, float]:
    """Play a chain of three operators; everything let through reaches the next one at once."""
    event_s = {"O1": 0.010, "O2": 0.020, "O3": 0.040}
    replicas, queued = dict.fromkeys(event_s, active), dict.fromkeys(event_s, 0)
    total, left = [], []
    for arrived in inputs:
        operators, arriving, parent = {}, arrived, ""
        for name, each_s in event_s.items():
            done = min(queued[name] + arriving, round(replicas[name] / each_s))
            queued[name] += arriving - done
            operators[name] = operator(
                each_s,
                active=replicas[name],
                processed=done,
                received={parent: arriving} if parent else {},
                from_source=0.0 if parent else arriving,
                queued=queued[name],
            )
            arriving, parent = done, name
        left.append(arriving)
        total.append(float(sum(replicas.values())))
        if policy is not None:
            replicas |= policy.decide(Interval(1.0, arrived, operators)).active
    return {
        "saved": saved_resources(np.array(total), 24.0),
        "degradation": throughput_degradation(np.array(inputs, float), np.array(left, float)),
        "processed": processed_share(sum(inputs), sum(left)),
        "waiting": sum(queued.values()),
    }


def test_replicas_follow_the_input_with_less_than_the_peak_needs() -> None:
    #  Shape of Table VIII. The peak of 200/s needs 2 + 4 + 8; eight each are 24.
    inputs = [round(100.0 + 100.0 * math.sin(n / 5.0)) for n in range(212)]  # to a trough
    single, eight = play(inputs, None, active=1), play(inputs, None, active=8)
    found = play(inputs, Psps(), active=1)
    assert (eight["saved"], eight["degradation"], eight["processed"]) == (0.0, 0.0, 1.0)
    assert (single["saved"], single["processed"] < 0.3) == (0.875, True)
    assert found["saved"] > 0.5
    assert found["processed"] > 0.99
    assert found["degradation"] < single["degradation"]


def test_nothing_is_lost_although_replicas_change_in_every_interval() -> None:
    inputs = [20, 300] * 50 + [0] * 5
    found = play(inputs, Psps(), active=1)
    assert found["waiting"] == pytest.approx(0.0)
    assert found["processed"] == pytest.approx(1.0)


def test_a_pool_activates_the_fullest_and_deactivates_the_emptiest_replicas() -> None:
    pool = ReplicaPool((True, True, False, False))
    queued = [5.0, 0.0, 0.0, 3.0]
    assert pool.resized(3, queued).active == (True, True, False, True)
    assert pool.resized(1, queued).active == (True, False, False, False)
    assert pool.resized(2, queued) == pool
    assert pool.resized(99, queued).active == (True,) * 4
    assert pool.resized(0, queued).active.count(True) == 1


def test_a_pool_without_an_active_replica_is_refused() -> None:
    with pytest.raises(ConfigError, match="none active"):
        ReplicaPool((False, False))


def test_dabs_follows_each_operators_own_input_down_the_chain() -> None:
    #  The domino effect: behind a slow first operator, DABS sees 20 events and stays at 2 replicas.
    decision = Dabs().decide(chain(1))
    assert decision.active == {"O1": 12, "O2": 2, "O3": 2}
    assert decision.restart


def test_dabs_leaves_activity_within_its_band_alone() -> None:
    interval = Interval(1.0, 50.0, {"a": operator(from_source=50.0)})
    assert Dabs().decide(interval).numbers == {"a.activity": 0.5}
    assert not Dabs().decide(interval)


def test_dabs_gives_replicas_back_when_idle_and_ignores_absurd_samples() -> None:
    interval = Interval(1.0, 50.0, {"a": operator(from_source=50.0, active=8)})
    assert Dabs().decide(interval).active == {"a": 1}
    assert not Dabs().decide(replace(interval, input_events=math.nan))


@pytest.mark.parametrize("change", [{"high": 0.0}, {"low": 0.9}, {"low": -1.0}, {"window": 1}])
def test_dabs_refuses_a_band_that_is_none(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Dabs(**change)  # type: ignore[arg-type]


def test_the_time_of_an_event_follows_the_measurements() -> None:
    estimate = ServiceTimeEstimate(0.025)
    estimate.observe(processed=40.0, useful_s=2.0)
    assert estimate.event_s == pytest.approx(0.025 + 0.025 / 8)  # StreamSwitch's weight of a sample
    for _ in range(100):
        estimate.observe(processed=40.0, useful_s=2.0)
    assert estimate.event_s == pytest.approx(0.05, rel=1e-4)


def test_an_idle_or_absurd_interval_leaves_the_event_time_alone() -> None:
    estimate = ServiceTimeEstimate(0.02)
    samples = [(0.0, 0.0), (5.0, 0.0), (5.0, math.nan), (math.inf, 1.0), (-1.0, 1.0)]
    for processed, useful_s in samples:
        estimate.observe(processed, useful_s)
    assert estimate.event_s == 0.02


def test_a_weight_of_zero_keeps_the_benchmarks_value() -> None:
    estimate = ServiceTimeEstimate(0.02, weight=0.0)
    estimate.observe(10.0, 5.0)
    assert estimate.event_s == 0.02


def test_a_time_of_an_event_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="event_s=0"):
        ServiceTimeEstimate(0.0)


def test_saved_resources_of_one_replica_of_32_per_operator() -> None:
    #  Table VIII: four operators with one replica each against 32.
    assert saved_resources(np.full(10, 4.0), 32.0) == 0.875
    assert saved_resources(np.array([32.0]), 32.0) == 0.0
    assert saved_resources(np.array([16.0, 0.0]), 32.0) == 0.75
    with pytest.raises(ConfigError):
        saved_resources(np.array([1.0]), 0.0)


def test_degradation_is_the_mean_distance_of_output_from_input() -> None:
    arrived, processed = np.array([100.0, 100.0, 0.0]), np.array([80.0, 120.0, 50.0])
    assert throughput_degradation(arrived, processed) == pytest.approx(0.2)
    assert throughput_degradation(np.zeros(2), np.ones(2)) == 0.0


def test_processed_share_and_latency() -> None:
    assert processed_share(200.0, 150.0) == 0.75
    assert processed_share(0.0, 0.0) == 1.0
    assert mean_latency_s(np.array([0.0, 1.0]), np.array([0.5, 2.5])) == 1.0
    assert math.isnan(mean_latency_s(np.array([]), np.array([])))
