"""Laws decide on made-up loads as they were recorded: whatever moves a decision or its figures shows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from control_views import shown, view
from drawn_laws import FLEETS, POOLS, SERIES, nice_view
from worlds import World

from headgate.control.batch_times import BatchTimes
from headgate.control.estimators import forecast
from headgate.control.estimators.task_cost import TaskCost
from headgate.control.fleet.henge import Henge
from headgate.control.fleet.view import FleetJob, FleetOperator, FleetView
from headgate.control.observation import Observation
from headgate.control.pools.replicas import Interval, OperatorInterval
from headgate.control.slots.following import FollowsRules
from headgate.control.slots.hindsight.cost import RecordCost
from headgate.control.slots.hindsight.kernels import play, play_batches
from headgate.control.slots.hindsight.rules import Rules
from headgate.control.slots.repacking import repacked
from headgate.control.slots.rescaling import mean_service_rate
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.threshold import Threshold
from headgate.control.slots.unified import Unified
from headgate.core.utility import Intent, Metric, Utility
from headgate_lab.rivals.averages import mean_latency_s, processing_rate
from headgate_lab.rivals.regression import Regression

Recorded = Callable[[str, Iterable[str]], None]


# --- The rules of hindsight ---------------------------------------------------------------------------


def test_what_each_kind_of_rule_wants(recorded: Recorded) -> None:
    """Every tenth cycle: the sums over the constants, and over the rules of each signal."""
    numbers, rules, lines = np.random.default_rng(3), Rules(4, 2.0, 50.0, 0.15), []
    kinds = [str(rule).partition(", in steps")[0] for rule in rules.all]
    lines += sorted({str(rule) for rule in rules.all})
    places = [
        [
            i
            for i, rule in enumerate(rules.all)
            if (bool(rule.constant), rule.signal, rule.lean) == k
        ]
        for k in sorted({(bool(rule.constant), rule.signal, rule.lean) for rule in rules.all})
    ]
    assert len(kinds) == sum(map(len, places))
    time_s = 0.0
    for cycle in range(300):
        elapsed_s = (0.5, 1.5, 1.0)[cycle % 3]
        time_s += elapsed_s
        load = 2.0 + math.sin(time_s / 20.0) + 6.0 * (cycle % 70 in (10, 11, 12))
        records = float(numbers.poisson(8.0 * load * elapsed_s))
        if cycle % 60 == 20:
            rules.expect(0.05 + cycle * 1e-3, 0.5, 1.5)
        if cycle % 60 == 50:
            rules.expect_batches(0.1 + cycle * 1e-3, 0.05, 2.0)
        wanted, leap = rules.wanted(time_s, elapsed_s, records / 8.0, records)
        if cycle % 10 == 9:
            sums = [(float(wanted[at].sum()), float(leap[at].sum())) for at in places]
            lines.append(f"{time_s:g} {shown([rules.spare, rules.now, rules.lately, sums])}")
    recorded("rules", lines)


def test_virtual_slots_of_a_few_rules(recorded: Recorded) -> None:
    """Three rules with other wishes, over cycles of other lengths, in continuous mode."""
    numbers, lines = np.random.default_rng(4), []
    rules, most, groups = 3, 4, 5
    packing = np.array([np.arange(groups) * max(n, 1) // groups for n in range(most + 1)])
    slots, calm_s = np.array([1, 2, 4]), np.zeros(rules)
    waiting_s, come_s = np.zeros((rules, most)), np.zeros(most)
    late, changed = np.zeros(rules), np.zeros(rules)
    for cycle in range(60):
        elapsed_s = (0.5, 1.0)[cycle % 2]
        active = np.flatnonzero(numbers.random(groups) < 0.8)
        work_s = numbers.exponential(0.3 + 0.5 * (cycle % 20 < 5), len(active)) * elapsed_s
        wanted = numbers.uniform(0.5, 5.0, rules) if cycle % 7 == 0 else np.array([0.4, 1.9, 3.0])
        play(
            elapsed_s, 0.2, 0.6, active, work_s, work_s / 4.0, 1.0 + active, wanted, wanted + 0.3,
            2.0, calm_s, most, packing, slots, waiting_s, come_s, late, changed,
        )  # fmt: skip
        lines.append(shown([slots, late, changed, calm_s, waiting_s]))
    recorded("play", lines)


@pytest.mark.parametrize("budget_s", [math.inf, 0.4])
def test_virtual_batches_of_a_few_rules(budget_s: float, recorded: Recorded) -> None:
    numbers, lines = np.random.default_rng(5), []
    rules, most, groups = 3, 4, 5
    packing = np.array([np.arange(groups) * max(n, 1) // groups for n in range(most + 1)])
    slots, calm_s = np.array([1, 2, 4]), np.zeros(rules)
    waiting_s, dear_s = np.zeros((rules, most)), np.zeros((rules, most))
    pace, ends_s, scratch = np.ones((rules, most)), np.zeros(rules), np.zeros((2, most))
    late, changed = np.zeros(rules), np.zeros(rules)
    for cycle in range(60):
        elapsed_s = (0.8, 2.0)[cycle % 2]
        active = np.flatnonzero(numbers.random(groups) < 0.8)
        work_s = numbers.exponential(0.2 + 0.3 * (cycle % 20 < 5), len(active)) * elapsed_s
        dear = active[: cycle % 3]
        wanted = numbers.uniform(0.5, 5.0, rules) if cycle % 7 == 0 else np.array([0.4, 1.9, 3.0])
        play_batches(
            elapsed_s, 1.5, 0.15, 0.1, budget_s, 2, active, work_s, 1.0 + active, dear,
            numbers.exponential(0.4, len(dear)), np.sort(numbers.uniform(0.0, elapsed_s, len(dear))),
            wanted, wanted + 0.3, 4.0, calm_s, most, packing, slots, waiting_s, dear_s, pace, ends_s,
            scratch[0], scratch[1], late, changed,
        )  # fmt: skip
        lines.append(shown([slots, late, changed, calm_s, waiting_s, dear_s, pace, ends_s]))
    recorded(f"play-batches-{budget_s:g}", lines)


@pytest.mark.parametrize("of_tasks", [False, True])
def test_what_a_record_costs(of_tasks: bool, recorded: Recorded) -> None:
    numbers, cost, lines = np.random.default_rng(6), RecordCost(), []
    costs, seen = np.zeros((0, 2)), 0
    for cycle in range(80):
        new = np.stack([numbers.integers(1, 30, 6), numbers.gamma(2.0, 0.005, 6)], axis=1)
        if cycle > 40:
            new[:, 1] *= 3.0
        new = new[: 0 if cycle in (0, 1, 30) else 6 - cycle % 3]
        costs, seen = np.concatenate([costs, new])[-20:], seen + len(new)
        operator = view([1.0] * 4, 80.0 if cycle else 0.0)
        if of_tasks:
            times = BatchTimes(0.1, 0.0, 0.02, 0.1, 0.5, 4, costs, seen)
            operator = replace(operator, batch=times)
        else:
            operator = replace(operator, costs=costs if cycle % 9 else None, costs_seen=seen)
        cost.add(0.7, operator, 1.2)
        counts = numbers.integers(0, 20, 4).astype(float)
        usual_s, more_s = cost.dealt(counts)
        found = [cost.mean_s, cost.variability, cost.dear_s, cost.drawn(counts), usual_s, more_s]
        lines.append(shown(found))
    recorded(f"record-cost-{'tasks' if of_tasks else 'records'}", lines)


def scored(law: FollowsRules) -> str:
    """Return sums of the scores of all rules, and what a law has learned of its load."""
    seen = law._hindsight
    score = seen.score
    sums = [float((of * np.arange(1, len(of) + 1)).sum()) for of in vars(score).values()]
    return shown([sums, seen.off, seen.slower, seen.memory_s, seen.load, seen.cost.mean_s])


def wave(groups: int) -> Callable[[float], np.ndarray]:
    """Return a load of waves and bursts, most of it of few key groups."""
    share = np.arange(1.0, groups + 1.0) / (groups * (groups + 1) / 2)
    return lambda s: share * (250.0 + 150.0 * math.sin(s / 8.0) + 500.0 * (s % 25.0 < 2.0))


def pauses(groups: int) -> Callable[[float], np.ndarray]:
    """Return an even load that stops for a while, and comes back threefold."""
    return lambda s: np.full(groups, (40.0 if s < 12.0 else 0.0 if s < 25.0 else 120.0) / groups)


def one_hot(groups: int) -> Callable[[float], np.ndarray]:
    """Return a load of which one key group has more and more, another one than before."""
    return lambda s: np.where(
        np.arange(groups) == (1 if s < 20.0 else 3), 60.0 + 8.0 * (s % 20.0), 12.0
    )


WORLDS: dict[str, tuple[Unified, dict[str, Any], float]] = {
    "unified": (Unified(), {}, 60.0),
    "unified-goal": (Unified(0.2, goal=0.9), {"slots_max": 9, "limit": "the cores"}, 40.0),
    "unified-even": (Unified(0.1, even=1, clear=3.0), {}, 30.0),
    "unified-split": (Unified(), {"unsplittable": "", "entry_rate": np.full(4, 2.0)}, 45.0),
    "unified-pauses": (Unified(0.05), {"slots_min": 2, "slots_max": 5, "floor_s": 0.05}, 45.0),
    "unified-hot": (Unified(0.1, clear=1.0), {"entry_rate": np.full(6, 1.0), "bound_s": 0.6}, 45.0),
    "unified-hot-split": (
        Unified(even=1),
        {"unsplittable": "", "entry_rate": np.full(6, 5.0), "slots_max": 7},
        45.0,
    ),
}
LOADS: dict[str, tuple[Callable[[int], Callable[[float], np.ndarray]], int, float]] = {
    "unified-pauses": (pauses, 5, 0.02),
    "unified-hot": (one_hot, 6, 0.01),
    "unified-hot-split": (one_hot, 6, 0.02),
}
"""Load, key groups and seconds per record of the worlds that have another than the waves."""


@pytest.mark.jit
@pytest.mark.parametrize("name", WORLDS)
def test_unified_on_waves_and_bursts(name: str, recorded: Recorded) -> None:
    law, options, until_s = WORLDS[name]
    load, groups, record_s = LOADS.get(name, (wave, 4 if "split" in name else 12, 0.01))
    world = World(law, load(groups), record_s, options=options, took_s=0.4).run(until_s)
    lines = [
        f"{at_s:.1f} {found.rule}: {found.reason} {shown(found.numbers)} "
        f"{shown({n: (c.kind, c.assignment.slot_of, c.survivors) for n, c in found.changes.items()})}"
        for at_s, found in world.decisions
    ]
    lines += [scored(found) for found in law._laws.values()]
    recorded(name, lines)


BATCHES: dict[str, dict[str, Any]] = {
    "": {},
    "-tight": {"bound_s": 1.2, "floor_s": 0.0, "slots_max": 12, "slots_min": 2},
    "-split": {"unsplittable": "", "entry_rate": np.full(6, 3.0), "bound_s": 2.0},
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_law_that_is_shown_batches(name: str, recorded: Recorded) -> None:
    """Batches of seconds, with dear records, a backlog and a floor; slots are as the law wants them."""
    numbers, lines = np.random.default_rng(8 + len(name)), []
    groups, slots, arrived, law, time_s = 6, 2, np.zeros(6), None, 0.0
    seen = 0
    for batch in range(70):
        elapsed_s = 0.8 + 0.4 * (batch % 3)
        time_s += elapsed_s
        rate = 40.0 + 30.0 * math.sin(time_s / 15.0) + 80.0 * (batch % 25 == 20)
        new = numbers.poisson(rate / groups * elapsed_s, groups)
        arrived = arrived + new
        costs = np.stack([numbers.integers(5, 30, slots), numbers.gamma(4.0, 0.005, slots)], axis=1)
        seen += slots
        times = BatchTimes(0.15, 2e-3, 0.02, 0.08, 0.6, 4, costs, seen)
        options: dict[str, Any] = {"bound_s": 3.0, "floor_s": 0.3, "slots_max": 6, **BATCHES[name]}
        operator = view(
            (new / elapsed_s).tolist(), 50.0, slots=slots, batch=times, arrived=arrived,
            backlog=5.0 * (batch % 25 == 21), latency_s=0.6 + 0.1 * (batch % 4),
            group_latency_s=np.full(groups, 0.5 + 3.0 * (batch % 25 == 21)), **options,
        )  # fmt: skip
        law = law or FollowsRules(operator, 0.1)
        wanted = law.decide(time_s, operator)
        if batch % 10 == 9:
            lines.append(scored(law))
        if wanted is not None:
            slots = wanted.change.assignment.slots
            law.applied(0.7)
            lines.append(f"{time_s:.1f} {wanted.rule}: {wanted.reason} {shown(wanted.numbers)}")
    recorded(f"following-batches{name}", lines)


# --- What is decided of one view ----------------------------------------------------------------------


def test_decisions_about_round_numbers(recorded: Recorded) -> None:
    dice, lines = random.Random(14), []
    for number in range(150):
        operator = nice_view(dice)
        laws = [
            StreamSwitch(0.0, alert_s=0.0), StreamSwitch(0.2, steps=3), StreamSwitch(0.0, split=0),
            Threshold(0.9, 0.7, 0.45), Threshold(0.5, 0.25, 0.125), Unified(0.0, 0.0, even=1),
            Unified(0.25, 0.0, even=1, clear=2.0),
        ]  # fmt: skip
        lines.append(f"{number} {operator.assignment} {shown(operator.group_rate)}")
        lines.append(
            f"  slots {shown(operator.slot_rate)}, {mean_service_rate(operator):g} records/s each, "
            f"{mean_latency_s(operator):.6g} s late, {shown(processing_rate(operator))} completed"
        )
        for law in laws:
            decision = law.decide(Observation(1.0, {"it": operator}))
            change = decision.changes.get("it")
            said = "" if change is None else f"{change.assignment} {change.survivors}"
            lines.append(f"  {law.name} {decision.rule}: {decision.reason} {said}")
        packed = repacked(operator, dice.randint(1, len(operator.group_rate)), operator.group_rate)
        lines.append(f"  {None if packed is None else (packed.assignment, packed.survivors)}")
    recorded("round-numbers", lines)


# --- Fleets -------------------------------------------------------------------------------------------


def fleet_view(round_: int, slots: dict[str, dict[str, int]], budget: int) -> FleetView:
    """Return a fleet of three jobs with waves of load; latency and capacity follow from the slots."""
    time_s, jobs = 10.0 * round_, {}
    for index, name in enumerate(("low", "high", "own")):
        rate = 60.0 + 50.0 * math.sin(time_s / 200.0 + 2.0 * index) + 80.0 * (round_ % 90 > 80)
        mine = slots.setdefault(name, {"source": 1, "parse": 2, "count": 3})
        capacity = {
            op: min(1.0, rate / (12.0 * n * (1 + i))) for i, (op, n) in enumerate(mine.items())
        }
        over_s = sum(max(0.0, share - 0.7) for share in capacity.values())
        operators = {
            op: FleetOperator(
                n, capacity[op], 30.0 * max(0.0, capacity[op] - 0.95), source=op == "source",
                slots_max=12, request=n + 2 if name == "own" and op == "count" else None,
            )
            for op, n in mine.items()
        }  # fmt: skip
        intents = (Intent(Metric.LATENCY, 1.0), Intent(Metric.LATENCY, 0.8))[: 1 + (name == "high")]
        utility = Utility(10.0 + 20.0 * index, intents)
        silent = round_ % 50 == 7 and name == "low"
        values = (
            None if silent else tuple(0.3 + 4.0 * over_s + 0.1 * n for n, _ in enumerate(intents))
        )
        jobs[name] = FleetJob(utility, values, operators, rate)
    return FleetView(time_s, jobs, budget, hosts=3, hosts_congested=2 * (round_ % 60 > 50))


@pytest.mark.parametrize("budget", [12, 24, 36, 60])
@pytest.mark.parametrize("name", FLEETS)
def test_fleets_of_three_jobs(name: str, budget: int, recorded: Recorded) -> None:
    law, lines = FLEETS[name](), []
    slots: dict[str, dict[str, int]] = {}
    last = ""
    for round_ in range(250):
        decision = law.decide(fleet_view(round_, slots, budget))
        for job, operators in decision.slots.items():
            slots[job] |= operators
        if decision or decision.rule != last:
            said = f"{decision.action} {decision.rule}: {decision.reason}"
            lines.append(f"{10 * round_} {said} {shown(decision.slots)} {shown(decision.numbers)}")
            last = decision.rule
    if isinstance(law, Henge):
        lines.append(shown(vars(law.indicators)) if hasattr(law, "indicators") else "")
    recorded(f"{name}-{budget}", lines)


# --- Pools of replicas, and forecasts -----------------------------------------------------------------


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_three_operators(name: str, recorded: Recorded) -> None:
    law, lines = POOLS[name](), []
    active = {"a": 2, "b": 1, "c": 1}
    queued = dict.fromkeys(active, 0.0)
    for number, events in enumerate(SERIES):
        able = {"a": 40.0, "b": 25.0, "c": 60.0}
        came = {"a": events, "b": 0.5 * events, "c": 0.25 * events}
        operators = {}
        for op, replicas in active.items():
            done = min(came[op] + queued[op], able[op] * replicas)
            queued[op] += came[op] - done
            operators[op] = OperatorInterval(
                replicas, 12, 1.0 / able[op], done, {} if op == "a" else {"a": came[op]},
                came[op] if op == "a" else 0.0, queued[op], least=1 + (op == "c"),
            )  # fmt: skip
        count = math.nan if number == 40 else events
        decision = law.decide(Interval(1.0, count, operators))
        active |= decision.active
        lines.append(f"{decision.reason} {shown(decision.active)} {shown(decision.numbers)}")
    recorded(name, lines)


def test_forecasts_of_one_series(recorded: Recorded) -> None:
    laws = [
        forecast.Naive(), Regression(4), forecast.LastChange(), forecast.Smoothed(0.3),
        forecast.HoltWinters(5), forecast.daily_blend(None), forecast.daily_blend(5),
    ]  # fmt: skip
    lines = [", ".join(law.name for law in laws)]
    for number, value in enumerate(SERIES):
        for law in laws:
            law.observe(math.nan if number % 13 == 5 else value)
        lines.append(shown([[law.forecast(ahead) for ahead in (1, 3)] for law in laws]))
    recorded("forecasts", lines)


def test_what_tasks_cost(recorded: Recorded) -> None:
    numbers, cost, lines = np.random.default_rng(9), TaskCost(), []
    for batch in range(60):
        each_ms = 1.0 + 2.0 * (batch > 35)
        tasks = [
            (
                slot,
                int(n),
                15.0 + each_ms * n * (1.0 + 0.5 * (slot == 2)) + numbers.exponential(3.0),
            )
            for slot, n in enumerate(numbers.poisson(40.0 * (batch % 4), 3 + batch // 20))
        ]
        cost.add(tasks)
        lines.append(shown([cost.fixed_ms, cost.record_ms]))
    recorded("task-cost", lines)
