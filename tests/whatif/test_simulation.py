"""A whole run: loop, policy, engine, result."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sim_jobs import NAME, SETTINGS, Given, Scripted, change_to, fixed, summary

from headgate.control.slots.static import Static
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.core.assignment import spread
from headgate.core.errors import ConfigError
from headgate.loop.settings import OperatorSettings
from headgate.whatif.model import (
    Distribution,
    MicroBatch,
    OperatorModel,
    ServiceTime,
    SlotPool,
    TreatmentCost,
)
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.rates import ConstantRate, SineRate
from headgate_lab.workloads.arrivals import RateArrivals

EVEN = np.full(8, 1 / 8)


def run(
    seed: int = 1, *, micro_batch: MicroBatch | None = None, until_s: float = 60.0
) -> RunResult:
    service = ServiceTime(0.004, Distribution.NORMAL, 0.0005)
    model = OperatorModel(service, key_groups=8, slots=2, pool=SlotPool(0.75, 0.3))
    arrivals = RateArrivals(SineRate(100.0, 300.0, 40.0), np.arange(1, 9) / 36, poisson=True)
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    simulation = Simulation(job, StreamSwitch(0.2), SETTINGS, seed=seed, micro_batch=micro_batch)
    return simulation.run(until_s)


@pytest.mark.parametrize("micro_batch", [None, MicroBatch(budget_s=0.3)])
def test_a_seed_gives_the_same_run_every_time(micro_batch: MicroBatch | None) -> None:
    first, second = (run(7, micro_batch=micro_batch) for _ in range(2))
    assert first.decisions == second.decisions
    assert repr(summary(first, NAME)) == repr(summary(second, NAME))
    assert repr(first.timeline(NAME)) == repr(second.timeline(NAME))


def test_another_seed_gives_another_run() -> None:
    assert summary(run(1), NAME) != summary(run(2), NAME)


def test_policies_under_one_seed_see_the_same_records() -> None:
    arrived = run(3).operators[NAME].arrived
    service = ServiceTime(0.004, Distribution.NORMAL, 0.0005)
    model = OperatorModel(service, key_groups=8, slots=2)
    arrivals = RateArrivals(SineRate(100.0, 300.0, 40.0), np.arange(1, 9) / 36, poisson=True)
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    static = Simulation(job, Static(), SETTINGS, seed=3).run(60.0)
    assert (static.operators[NAME].arrived == arrived).all()


def test_streamswitch_follows_the_load_out_and_in() -> None:
    result = run(until_s=120.0)
    slots = result.operators[NAME].slots
    assert {"scale-in", "scale-out"} <= set(result.kinds(NAME))
    assert slots.max() > slots.min()
    assert result.success(NAME).mean > 0.8


def test_nothing_is_decided_between_decided_and_applied() -> None:
    log = [e for e in run(until_s=120.0).decisions if e["event"] in ("decided", "applied")]
    changing = False
    for entry in log:
        if entry["event"] == "applied":
            assert changing
            changing = False
        elif entry["acts"]:
            assert not changing
            changing = True
    assert sum(entry["event"] == "applied" for entry in log) > 5


def test_a_decision_says_what_it_saw_and_what_it_moves() -> None:
    before = spread(2, 8)
    change = change_to(before, [1, *before.slot_of[1:]], [0, 1])
    model = OperatorModel(fixed(), key_groups=8, slots=2)
    arrivals = RateArrivals(ConstantRate(100.0), EVEN)
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    result = Simulation(job, Scripted([(2.0, change)]), SETTINGS, seed=1).run(5.0)
    decided, applied = (e for e in result.decisions if e["event"] in ("decided", "applied"))
    assert decided["at_s"] == pytest.approx(2.0)
    assert decided["reason"] == "it was in the script"
    assert decided["changes"][NAME]["groups"] == [0]
    assert decided["seen"][NAME]["rate"] == pytest.approx([50.0, 50.0], abs=20.0)
    assert applied["took_s"] == pytest.approx(result.operators[NAME].applied[0].took_s)


def test_the_cost_counts_the_slot_that_is_being_fetched() -> None:
    before = spread(2, 8)
    change = change_to(before, [2, *before.slot_of[1:]], [0, 1, None])
    cost = TreatmentCost(sync_s=1.0, per_group_s=0.0)
    model = OperatorModel(fixed(), key_groups=8, slots=2, treatment=cost)
    job = SimulatedJob({NAME: model}, {NAME: RateArrivals(ConstantRate(100.0), EVEN)})
    result = Simulation(job, Scripted([(2.0, change)]), SETTINGS, seed=1).run(4.0)
    measures = result.operators[NAME]
    assert measures.slots.tolist() == [2.0] * 20 + [3.0] * 20
    assert measures.slots_mean == pytest.approx(2.5)
    # Two slot seconds were not counted: the new slot does not exist while it waits.
    assert measures.stopped_share == pytest.approx(1.0 / 10.0, rel=0.02)


def word_count(seed: int = 5) -> RunResult:
    chance = Distribution.EXPONENTIAL
    shares = tuple((np.arange(1, 9) / 36).tolist())
    operators = {
        "split": OperatorModel(ServiceTime(0.002, chance), key_groups=8, slots=2),
        "count": OperatorModel(
            ServiceTime(0.001, chance),
            key_groups=8,
            slots=2,
            parents=("split",),
            selectivity=2.5,
            shares=shares,
        ),
    }
    arrivals = RateArrivals(ConstantRate(300.0), EVEN, poisson=True)
    settings = dict.fromkeys(operators, OperatorSettings(1.0, 1.0, 8))
    job = SimulatedJob(operators, {"split": arrivals})
    return Simulation(job, Static(), settings, seed=seed, end_to_end_s=2.0).run(60.0)


def test_words_follow_from_sentences() -> None:
    result = word_count()
    split, count = result.operators["split"], result.operators["count"]
    assert count.arrived.sum() == int(split.completed.sum() * 2.5)
    by_group = count.arrived.sum(axis=0) / count.arrived.sum()
    assert by_group == pytest.approx(np.arange(1, 9) / 36, rel=0.1)


def test_a_word_has_waited_for_its_sentence_too() -> None:
    result = word_count()
    split, count = result.operators["split"], result.operators["count"]
    end_to_end_s = count.origin_sum_s.sum() / count.completed.sum()
    assert end_to_end_s == pytest.approx(split.latency_mean_s + count.latency_mean_s, rel=0.02)
    assert (split.origin_sum_s == split.latency_sum_s).all()


def test_end_to_end_success_is_not_above_that_of_the_last_operator() -> None:
    result = word_count()
    own = result.success("count", bound_s=0.01, window_s=0.5).rate
    whole = result.end_to_end_success("count", bound_s=0.01, window_s=0.5).rate
    assert (whole <= own).all()
    assert (whole < own).any()


def test_a_warm_up_is_left_out() -> None:
    late = Given([0.05, 30.05], [0, 0])
    job = SimulatedJob({NAME: OperatorModel(fixed(5.0), key_groups=8)}, {NAME: late})
    result = Simulation(job, Static(), SETTINGS, seed=1).run(40.0)
    assert result.success(NAME).windows == 391
    assert result.success(NAME, from_s=20.0).windows == 191
    # A window without completions counts while the record waits: 41 at the start, and 50.
    assert result.success(NAME).empty[0] == 391 - 20 - 41 - 50
    assert result.success(NAME, from_s=20.0).empty[0] == 191 - 10 - 50


def test_the_timeline_adds_up_to_the_totals() -> None:
    result = run()
    measures, timeline = result.operators[NAME], result.timeline(NAME)
    assert len(timeline["time_s"]) == 60
    assert timeline["arrivals_per_s"].sum() == measures.arrived.sum()
    assert timeline["completions_per_s"].sum() == measures.completed.sum()
    assert timeline["slots"].mean() == pytest.approx(measures.slots_mean)
    assert timeline["backlog"][-1] == measures.arrived.sum() - measures.completed.sum()
    known = ~np.isnan(timeline["latency_mean_s"])
    assert (timeline["latency_min_s"] <= timeline["latency_mean_s"] * 1.05)[known].all()
    assert (timeline["latency_p50_s"] <= timeline["latency_p99_s"])[known].all()


def test_quantiles_are_those_of_the_records() -> None:
    # One record per second; the k-th, of 100, takes k ms.
    model = OperatorModel(ServiceTime(0.001), key_groups=8)
    burst = Given(np.full(100, 0.5), np.zeros(100))
    job = SimulatedJob({NAME: model}, {NAME: burst})
    measures = Simulation(job, Static(), SETTINGS, seed=1).run(1.0).operators[NAME]
    assert measures.quantiles_s[0] == pytest.approx([0.001, 0.05, 0.099], rel=0.05)


def test_decisions_of_slots_that_completed_nothing_are_json_too() -> None:
    slow = OperatorModel(ServiceTime(3.0), key_groups=8, slots=2)
    job = SimulatedJob({NAME: slow}, {NAME: Given(np.linspace(0.0, 9.0, 100), np.zeros(100))})
    settings = {NAME: OperatorSettings(1.0, 1.0, 8, initial_service_rate=10.0)}
    result = Simulation(job, StreamSwitch(0.2), settings, seed=1).run(12.0)
    seen = [e["seen"][NAME]["latency_s"] for e in result.decisions if e["event"] == "decided"]
    assert any(None in latencies for latencies in seen)
    json.dumps(result.decisions, allow_nan=False)


def test_a_job_must_be_whole() -> None:
    model = OperatorModel(fixed(), key_groups=8)
    with pytest.raises(ConfigError, match="needs either parents or a source"):
        SimulatedJob({NAME: model}, {})
    child = OperatorModel(fixed(), key_groups=8, parents=("split",))
    with pytest.raises(ConfigError, match='unknown parent "split"'):
        SimulatedJob({NAME: child}, {})
    with pytest.raises(ConfigError, match="4 key groups"):
        SimulatedJob({NAME: model}, {NAME: Given([], [], of=4)})


def test_settings_must_name_the_operators() -> None:
    job = SimulatedJob({NAME: OperatorModel(fixed(), key_groups=8)}, {NAME: Given([], [])})
    with pytest.raises(ConfigError, match=r"give them for \['count'\]"):
        Simulation(job, Static(), {}, seed=1)
    with pytest.raises(ConfigError, match="delta_s"):
        Simulation(job, Static(), SETTINGS, seed=1, delta_s=0.0)


def test_shares_must_fit_the_key_groups() -> None:
    with pytest.raises(ConfigError, match=r"3 shares add up to 0\.9"):
        OperatorModel(fixed(), key_groups=8, parents=("a",), shares=(0.3, 0.3, 0.3))
