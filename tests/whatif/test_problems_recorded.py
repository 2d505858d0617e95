"""Drawn problems as recorded: what policies would have done, what limits them, which costs a run has."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from sim_jobs import NAME

from headgate.control.decision import Change, ChangeKind
from headgate.control.registry import policy
from headgate.core.assignment import Assignment
from headgate.core.errors import HeadgateError
from headgate.core.slo import parse_slo
from headgate.journal import histogram
from headgate.journal.parts import GroupRecords, Latency, SloState, SlotStats
from headgate.journal.schema import Batch, Start
from headgate.loop.settings import OperatorSettings
from headgate.whatif.calibration import Task, _computing, _factors, _laid_out, _task, calibrated
from headgate.whatif.measures import AppliedChange, Measures, moved_groups, quantiles_s
from headgate.whatif.model import (
    Distribution,
    MicroBatch,
    OperatorModel,
    ServiceTime,
    SlotPool,
    TreatmentCost,
)
from headgate.whatif.recording import Recorded as RecordedRun
from headgate.whatif.replay import replayed
from headgate.whatif.simulate import Mode, WhatIf, engine, simulate
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import RecordedArrivals, TraceArrivals
from headgate.workloads.traces import Trace

pytestmark = pytest.mark.usefixtures("one_process")

Recorded = Callable[[str, Iterable[str]], None]


def shown(value: Any) -> str:
    """Return a value as text, numbers to five digits: the last ones are the machine's."""
    if isinstance(value, float):
        return f"{round(value, 7) + 0.0:.5g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple | np.ndarray):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def drawn_trace(dice: random.Random) -> Trace:
    """Return some seconds of a few key groups, one of which may be hot; a pause, or a burst."""
    numbers = np.random.default_rng(dice.randrange(10**6))
    slice_s, groups = dice.choice([0.5, 1.0, 2.0]), dice.choice([1, 3, 8])
    counts = numbers.poisson(dice.choice([0.2, 4.0, 9.0]), (dice.choice([6, 12, 24]), groups))
    begin = dice.randrange(len(counts))
    counts[begin : begin + 3] = counts[begin : begin + 3] * dice.choice([0, 1, 4])
    counts[dice.randrange(len(counts)) :, 0] *= dice.choice([1, 1, 5])
    return Trace(counts.astype(np.int32), slice_s)


def drawn_problem(dice: random.Random) -> WhatIf:
    trace = drawn_trace(dice)
    slo = parse_slo(dice.choice(SLOS))
    batches = dice.random() < 0.4
    records = None
    if dice.random() < 0.3:
        numbers = np.random.default_rng(3)
        row, group = np.nonzero(trace.counts)
        at_s = np.repeat((row + 0.5) * trace.slice_s, trace.counts[row, group])
        of = np.repeat(group, trace.counts[row, group])
        records = RecordedArrivals(
            at_s, of, numbers.gamma(0.5, 2.0, len(at_s)), trace.counts.shape[1]
        )
    served = dice.choice([("auto",), ("none",), ("200 ms",), ("auto", 30.0)])
    return WhatIf(
        trace, slo, dice.choice([5.0, 20.0, 60.0]), slots_max=dice.choice([1, 2, 5, 64]),
        seed=dice.randint(1, 9), mode=Mode.MICRO_BATCH if batches else Mode.CONTINUOUS,
        engine=engine(slo, dice.choice([1, 3]), *served), treatment=dice.choice(TREATMENTS),
        records=records, oracle=dice.random() < 0.4 and not batches,
    )  # fmt: skip


SLOS = (
    "mean < 1 s over 1 s", "mean < 300 ms over 2 s in 90 % of windows", "p90 < 1 s over 2 s",
    "p99 < 3 s over 1 s",
)  # fmt: skip
TREATMENTS = (TreatmentCost(), TreatmentCost(0.0, 0.0), TreatmentCost(1.0, 0.1, 1e6, 10.0))
LAWS = ("static(1)", "static(3)", "threshold", "streamswitch(0.2)", "unified(0.2)", "ds2")


def test_what_would_have_been_in_drawn_problems(recorded: Recorded) -> None:
    lines, dice = [], random.Random(81)
    for number in range(24):
        problem = drawn_problem(dice)
        found = simulate(problem, dice.sample(LAWS, 2), timelines=number % 4 == 0)
        lines.append(f"== {number} {problem.slo}, {problem.mode}")
        rows, series = found.pop("rows"), found.pop("timelines", [])
        lines += [f"  {name}: {shown(value)}" for name, value in found.items() if name != "slo"]
        lines += [f"  {shown(row)}" for row in rows]
        lines += [
            f"  {name} {shown(values[::9])}" for line in series for name, values in line.items()
        ]
    recorded("drawn-problems", lines)


def test_the_hottest_key_group_is_that_of_the_busiest_stretch() -> None:
    """Ten windows or the whole trace, slice by slice."""
    dice, many = random.Random(82), 0
    for _ in range(120):
        trace = drawn_trace(dice)
        window_s = dice.choice([0.1, 0.3, 0.5, 1.0])
        asked = WhatIf(trace, parse_slo(f"mean < 1 s over {round(window_s * 1000)} ms"), 9.0)
        span = min(max(1, round(10 * window_s / trace.slice_s)), len(trace.counts))
        begins = range(len(trace.counts) - span + 1)
        most = max(int(trace.counts[b : b + span].sum(axis=0).max()) for b in begins)
        many += len(begins) > 1
        assert asked._hottest_per_s() == pytest.approx(most / (span * trace.slice_s))
    assert many > 30


def test_remedies_of_drawn_rows(recorded: Recorded) -> None:
    lines, dice = [], random.Random(83)
    for number in range(80):
        problem = drawn_problem(dice)
        took = dice.choice([1, 2, 3, 5, 8, 64])
        lines.append(f"{number} {problem.remedy({'slots_most': took})}")
        law = dice.choice(["static(2)", " static( n=7 ) ", "unified", "static"])
        lines.append(f"  begins with {problem.slots_at_start(law)} of {problem.slots_max}")
    recorded("remedies", lines)


def batch_of(step: int, **changed: Any) -> Batch:
    """A batch like all others: 30 records in 2 slots, 500 ms, 100 ms behind the one before."""
    given: dict[str, Any] = {
        "step": step, "spark_batch": step, "epoch": 0, "slots": 2, "duration_ms": 500.0, "emitted": 0,
        "phases_ms": {"slots": 300.0}, "arrived": 30, "served": 30, "late": 0, "backlog": 0,
        "backlog_bytes": 0, "latency_ms": Latency(700.0, 700.0, 900.0, 900.0, 900.0),
        "arrivals": [GroupRecords("counts", [0, 3], [10, 20])], "at_ms": 1_000_000 + 600 * step,
        "slot_stats": (SlotStats(0, 2, 10, 0, 120.0), SlotStats(1, 2, 20, 0, 220.0)),
    }  # fmt: skip
    return Batch(**{**given, **changed})


def run_of(batches: Iterable[Batch], **parameters: Any) -> RecordedRun:
    given = {"slo": ["mean < 1 s over 1 s"], "policy": "static", "slots_max": 4, "cores": 2}
    start = Start("j", "q", 4, 2, parameters={**given, **parameters})
    return RecordedRun(start, tuple(batches), {})


def stats(slots: int, useful_ms: float = 120.0) -> tuple[SlotStats, ...]:
    return tuple(SlotStats(s, 2, 10, 0, useful_ms) for s in range(slots))


def waited(slots: int, waited_ms: float) -> tuple[SlotStats, ...]:
    return tuple(
        SlotStats(s, 2, 10, 0, 120.0, computing_ms=60.0, waited_ms=waited_ms) for s in range(slots)
    )


ALIKE: dict[str, tuple[Callable[[int], dict[str, Any]], dict[str, Any]]] = {
    "all alike": (lambda step: {}, {}),
    "all alike, rate": (lambda step: {}, {"slot_rate": 50.0}),
    "no slots": (lambda step: {"slot_stats": ()}, {"budget_s": 0.25}),
    "some without slots": (lambda step: {"slot_stats": ()} if step == 3 else {}, {}),
    "nothing served now and then": (
        lambda step: {"served": 0, "latency_ms": None} if step % 3 == 0 else {}, {},
    ),
    "records that wait": (lambda step: {"backlog": 5 * (step % 2), "latency_ms": Latency(
        *[700.0 + 900.0 * (step % 2)] * 5)}, {}),
    "only few slots": (lambda step: {"slots": 1, "slot_stats": stats(1)}, {"machine_cores": 1}),
    "as many slots as cores": (
        lambda step: {"slots": 1 + step % 3, "slot_stats": waited(1 + step % 3, 60.0 * (step % 3 == 2))},
        {"machine_cores": 2, "cores": 4},
    ),
    "more slots than cores": (
        lambda step: {"slots": 3, "slot_stats": waited(3, 30.0)}, {"machine_cores": 2, "cores": 4},
    ),
    "never a core": (
        lambda step: {"slots": 3, "slot_stats": waited(3, 0.0)}, {"machine_cores": 1, "cores": 4},
    ),
    "slower later": (
        lambda step: {"slot_stats": stats(2, 120.0 if step < 55 else 240.0)}, {"cores": 1},
    ),
    "a minute of warming": (lambda step: {"duration_ms": 1500.0 if step < 20 else 500.0,
                                          "at_ms": 1_000_000 + 3000 * step}, {}),
    "one long pause": (lambda step: {"at_ms": 1_000_000 + 600 * step + 900_000 * (step > 2)}, {}),
    "epochs": (lambda step: {"epochs": 1 + step % 3}, {"machine_cores": 2}),
    "a clock set back": (lambda step: {"at_ms": 1_000_000 + 600 * step - 5_000 * (step > 30)}, {}),
}  # fmt: skip


def test_costs_of_batches_that_are_alike(recorded: Recorded) -> None:
    """Each run has one thing in it that is not alike."""
    lines = []
    for name, (changed, parameters) in ALIKE.items():
        run = run_of((batch_of(step, **changed(step)) for step in range(60)), **parameters)
        costs = calibrated(run)
        told = asdict(costs.engine)
        series = {part: told.pop(part) for part in ("warm_up_s", "jitter_s")}
        lines += [
            name,
            f"  {shown(told)}",
            f"  record {shown(costs.record_s)}, of use {costs.useful}",
        ]
        for part, values in series.items():
            counts = Counter(shown(value) for value in values)
            lines.append(f"  {part}: {dict(sorted(counts.items()))}")
        factors = None if costs.factors is None else dict(Counter(map(shown, costs.factors)))
        lines.append(f"  factors {factors}; {len(run.trace().counts)} slices")
    recorded("costs-alike", lines)


def test_tasks_are_laid_on_the_core_that_is_free_first() -> None:
    dice = random.Random(84)
    for _ in range(100):
        cores, task_s = dice.randint(1, 3), dice.choice([0.0, 0.1, 0.4])
        tasks = [
            Task(dice.choice([0.0, 0.3, 0.7]), dice.choice([0, 5, 9]))
            for _ in range(dice.randint(0, 6))
        ]
        ends, served, middle_s = [0.0] * cores, 0, 0.0
        for task in tasks:
            begin = min(ends)
            end = begin + task.useful_s
            ends[ends.index(begin)] = end
            served += task.served
            middle_s += task.served * (end - max(0.0, task.useful_s - task_s) / 2)
        found = _laid_out(tasks, task_s, cores)
        assert found == pytest.approx((max(ends), middle_s / served if served else 0.0))
        spent_s = sum(task.useful_s - task_s for task in tasks if task.served)
        factor = max(0.0, spent_s) / (served * 0.02) if served else 1.0
        assert _factors([tasks], task_s, 0.02).tolist() == pytest.approx([factor])


def test_a_task_takes_as_long_as_with_a_core_of_its_own() -> None:
    def task(waited_ms: float | None, computing_ms: float | None, share: float | None) -> float:
        done = SlotStats(0, 1, 9, 0, 200.0, computing_ms=computing_ms, waited_ms=waited_ms)
        return _task(done, share).useful_s

    assert task(50.0, 80.0, 0.5) == pytest.approx(0.15), "less what it waited"
    assert task(300.0, 80.0, 0.5) == 0.0
    assert task(0.0, 80.0, 0.5) == task(None, 80.0, 0.5) == pytest.approx(0.16)
    assert task(None, None, 0.5) == task(50.0, 80.0, None) == 0.2
    assert _computing([batch_of(0)]) is None
    known = batch_of(0, slot_stats=(*waited(1, 30.0), SlotStats(1, 2, 0, 0, 900.0)))
    assert _computing([known]) == pytest.approx(90.0 / 120.0), "an idle slot says nothing"
    assert _computing([batch_of(0, slot_stats=waited(1, 900.0))]) == 1.0


def test_quantiles_lie_evenly_within_a_bucket() -> None:
    numbers = np.random.default_rng(5)
    edges_s = [0.0, *(histogram.EDGES_MS / 1e3)]
    for total in (1, 2, 3, 40, 1000):
        counts = histogram.counts_of(numbers.lognormal(5.0, 2.0, total))
        found = quantiles_s(counts)
        for share, value in zip((0.0, 0.5, 0.99), found, strict=True):
            rank, seen = max(share * total, 0.5 if share == 0.0 else 0.0), 0
            for bucket, count in enumerate(counts):
                if seen + count >= rank:
                    inside = (rank - seen) / max(count, 1)
                    low, high = edges_s[bucket], edges_s[bucket + 1]
                    assert value == pytest.approx(low + inside * (high - low))
                    break
                seen += count
    assert np.isnan(quantiles_s(np.zeros(histogram.BUCKETS, dtype=np.int64))).all()


@pytest.mark.parametrize(("step_s", "steps", "ticks"), [(1.0, 3, 10), (0.25, 9, 3), (0.05, 25, 1)])
def test_measures_of_drawn_ticks(step_s: float, steps: int, ticks: int) -> None:
    held = Assignment((0, 1, 1), 2)
    measures = Measures(25, 0.1, held.key_groups, step_s=step_s)
    assert (measures.step_ticks, measures.quantiles_s.shape) == (ticks, (steps, 3))
    assert math.isnan(measures.latency_mean_s)
    numbers = np.random.default_rng(6)
    measures.arrived[:] = numbers.integers(0, 4, (25, 3))
    measures.slots[:] = numbers.integers(1, 4, 25)
    for tick in range(1, 28):
        row = measures.row(tick)
        row[:, 0] += 1.0
        row[:, 1] += 0.25 * tick
    assert measures.completed.sum() == 75, "what is completed after the end goes nowhere"
    assert measures.latency_sum_s.sum() == pytest.approx(3 * 0.25 * sum(range(1, 26)))
    assert measures.latency_mean_s == pytest.approx(0.25 * 13)
    assert (measures.origin_sum_s == measures.latency_sum_s).all()
    expected = (measures.arrived[:, 1:3] - 1).cumsum(axis=0)
    assert (measures.waiting(1, 3) == expected).all()
    change = Change(ChangeKind.RESCALE, Assignment((1, 1, 0), 2, 1), (0, None))
    measures.applied += [
        AppliedChange(1.0, 1.5, change, held, 0.3, 2),
        AppliedChange(2.0, 2.25, change, held, 0.1, 3),
    ]
    slot_s = measures.slots.sum() * 0.1
    assert measures.slots_mean == pytest.approx(measures.slots.mean())
    assert measures.stopped_share == pytest.approx(0.4 / slot_s)
    assert measures.switching_share == pytest.approx((0.5 * 2 + 0.25 * 3) / slot_s)
    assert measures.applied[0].moved == moved_groups(held, change) == (0, 1, 2)
    counts = np.zeros(histogram.BUCKETS, dtype=np.int64)
    for step in range(steps + 2):
        counts[step] = 5
        measures.close_step(step, counts)
        assert not counts.any()
    assert measures.histogram[: steps + 2].tolist() == [5] * (steps + 2)
    assert not np.isnan(measures.quantiles_s).any()
    assert (measures.total_quantiles_s == quantiles_s(measures.histogram)).all()


def test_what_is_drawn_of_a_model() -> None:
    numbers = np.random.default_rng(7)
    fixed = ServiceTime(0.02, cap_per_s=25.0)
    assert fixed.draw(numbers, 3).tolist() == [0.02] * 3
    assert fixed.least_s == 0.04
    wide = ServiceTime(0.02, Distribution.NORMAL, 0.05).draw(np.random.default_rng(8), 4000)
    plain = np.random.default_rng(8).normal(0.02, 0.05, 4000)
    assert (wide == np.where(plain < 0.0, 0.015, plain)).all()
    assert (plain < 0.0).any()
    drawn = ServiceTime(0.02, Distribution.EXPONENTIAL).draw(numbers, 20_000)
    assert drawn.mean() == pytest.approx(0.02, rel=0.05)
    speeds = SlotPool(0.5, 0.25).speeds(numbers, 4000)
    assert Counter(speeds.tolist()).keys() == {0.5, 1.0}
    assert (speeds == 0.5).mean() == pytest.approx(0.25, abs=0.03)
    batches = MicroBatch(plan_s=0.2, warm_up_s=(1.0, 0.5), jitter_s=(0.1, -0.5, 0.0))
    planned = [batches.planning_s(number) for number in range(9)]
    assert planned == pytest.approx([1.2, 0.7, 0.3, 0.0, 0.2, 0.3, 0.0, 0.2, 0.3])
    assert MicroBatch(plan_s=0.2).planning_s(5) == 0.2


def drawn_settings(dice: random.Random) -> dict[str, Any]:
    """Return settings of a recorded run; what may be missing is now and then."""
    given: dict[str, Any] = {
        "policy": dice.choice(["static", "unified(0.2)", "streamswitch(0.2)", "threshold"]),
        "slo": [dice.choice(["mean < 1 s over 1 s", "mean < 2 s over 5 s in 90 % of windows"])],
        "slots_max": dice.choice([1, 2, 4]), "slots_min": dice.choice([1, 2]),
        "cores": dice.choice([1, 2, 4]), "machine_cores": dice.choice([1, 4]),
        "floor_s": dice.choice([0.0, 0.3, 1.2]), "advise": dice.random() < 0.3,
        "budget_s": 0.2, "unsplittable": {"counts": dice.choice(["", "order"])},
    }  # fmt: skip
    needed = ("policy", "slo", "slots_max")
    return {name: value for name, value in given.items() if name in needed or dice.random() < 0.4}


def test_replays_under_drawn_settings(recorded: Recorded) -> None:
    lines, dice = [], random.Random(85)
    for number in range(14):
        slots = dice.choice([1, 2, 3])
        state = None if dice.random() < 0.3 else judged(dice.choice([None, 0.75, 1.0]))
        changed = {
            "slots": slots, "backlog": dice.choice([0, 40]), "slo": state,
            "slot_stats": waited(slots, 10.0) if dice.random() < 0.5 else stats(slots, 180.0),
        }  # fmt: skip
        run = run_of((batch_of(step, **changed) for step in range(45)), **drawn_settings(dice))
        asked: dict[str, Any] = {
            "slots_max": dice.choice([None, 1, 3]), "policy_text": dice.choice([None, None, "static(2)"]),
            "slo_text": dice.choice([None, None, "mean < 700 ms over 2 s"]), "whole": dice.random() < 0.7,
            "seed": dice.randint(1, 3), "oracle": dice.random() < 0.2,
        }  # fmt: skip
        lines.append(f"== {number} {run.parameters} {asked}")
        try:
            found = replayed(run, calibrated(run), **asked)
        except HeadgateError as error:
            lines.append(f"  {error}")
            continue
        found.pop("engine")
        lines += [f"  {part}: {shown(value)}" for part, value in found.items()]
    recorded("drawn-replays", lines)


def judged(success: float | None) -> SloState:
    return SloState("steady", False, success, success, 0, "counts", 9, 0, 0.99, 1e3, 150.0, 0.5, 1)


def test_a_window_as_long_as_the_run_can_be_judged() -> None:
    latency = Latency(*[500.0] * 5)
    batches = [batch_of(n, at_ms=10**6 + 500 * n, latency_ms=latency) for n in range(41)]
    run = run_of(batches)
    costs = calibrated(run)
    assert float(run.began_s[-1]) - run.first_s == 20.5
    assert replayed(run, costs, slo_text="mean < 1 s over 20500 ms")["what_if"]
    with pytest.raises(HeadgateError, match="less than the window of"):
        replayed(run, costs, slo_text="mean < 1 s over 20501 ms")
    for slots in (0, 32_768):
        with pytest.raises(HeadgateError, match=f"slots_max={slots} is out of range; use 1 to 327"):
            replayed(run, costs, slots_max=slots)
    assert replayed(run, costs, slots_max=32_767)["what_if"]["slots_max"] == 32_767


def test_windows_that_begin_in_a_warm_up_are_left_out() -> None:
    model = OperatorModel(ServiceTime(0.01), key_groups=4, slots=2, within_s=0.02)
    arrivals = TraceArrivals(Trace(np.full((10, 4), 5), 1.0))
    settings = {NAME: OperatorSettings(1.0, 1.0, 4)}
    job = SimulatedJob({NAME: model}, {NAME: arrivals})
    result = Simulation(job, policy("static(2)"), settings, seed=1).run(10.0)
    for of in (
        partial(result.success, NAME),
        partial(result.percentile_success, NAME, 0.9, window_s=1.0),
        partial(result.end_to_end_success, NAME, bound_s=1.0, window_s=1.0),
    ):
        assert [of(from_s=from_s).windows for from_s in (0.0, 0.3, 4.0)] == [91, 88, 51]
