"""Measures the costs of the batches of a recorded run: the parameters of a simulated engine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headgate.journal.parts import SlotStats
from headgate.journal.schema import Batch
from headgate.whatif.model import MicroBatch
from headgate.whatif.recording import AT_ONCE, F64, I64, Recorded

_WARM_UP_S = 60.0
"""Time after a start in which the JVM still compiles, in s; at most half of the run. Not in the fit."""

_TYPICAL = 0.95
"""Quantile of the slots' phase above which a batch counts as a pause, and is not in the fit."""

_RECORD_MIN_S = 1e-7
"""Least time of a record, in s, whatever the fit returns."""

_ENOUGH = 20
"""Fewest batches with a core per slot; with fewer, the fit uses all batches. Chosen, not tuned."""

_BEFORE_MIN = 0.8
"""Share of a record's time before the slots above which more slots are of no use, as in the control
loop."""

_ROUNDING = 1e-9

_IDLE, _IDLE_S = 3.0, 0.05
"""Time between two batches above so many medians plus so many seconds counts as idle. Chosen."""


class Task(NamedTuple):
    """Holds the work of one slot in one batch."""

    useful_s: float
    served: int


@dataclass(frozen=True)
class Costs:
    """Holds the costs of batches."""

    engine: MicroBatch
    record_s: float
    """Mean time of a record in a slot, in s."""
    factors: F64 | None
    """float64[n] or None: by batch, the time of its records as a multiple of `record_s`; None where
    unknown."""
    useful: int | None
    """Number of slots above which more slots are of no use; None without such a number."""


def calibrated(run: Recorded) -> Costs:
    """Return the costs of the batches of a run.

    A slot's task takes a fixed time and a time per record, from the slots' measurements; the machine's
    cores run the tasks. The rest of the slots' phase is a fixed time, a time per slot, and a time per
    record, for work before the slots. The fit is least squares over the batches after a warm-up. The
    latency of records that waited only for their batch divides the fixed time into time before and after
    the slots. The deviation of each batch from this model is stored, in order: a policy reacts to it.

    In real time, where a line sums the epochs of a second, each epoch counts as their mean.
    """
    parameters = run.parameters
    cores = int(parameters.get("cores") or os.cpu_count() or 1)
    limited = parameters.get("slot_rate")
    served = [number for number, batch in enumerate(run.batches[:-1]) if batch.served]
    batches = [_of_one_epoch(run.batches[number]) for number in served]
    began_s = run.began_s[served]
    period_s = _periods(run)[served]
    ran_s = began_s - began_s[0]
    warm = int(np.searchsorted(ran_s, min(_WARM_UP_S, float(ran_s[-1]) / 2)))
    warm = min(warm, len(batches) // 2)  # also where a long pause is most of the run
    steady = slice(warm, None)
    tasks, useful = None, None
    task_s = record_s = 0.0
    if limited is None and all(batch.slot_stats for batch in batches):
        machine = parameters.get("machine_cores")
        tasks, cores, useful = _tasks(batches[steady], batches, cores, machine)
        task_s, record_s = _line(tasks[steady])
    laid = [_laid_out(batch, task_s, cores) for batch in tasks or [[] for _ in batches]]
    in_slots_s, ended_s = np.array(laid).T
    phase_s = np.array([b.phases_ms.get("slots", 0.0) / 1e3 for b in batches]) - in_slots_s
    work = np.array([(b.slots, b.served) for b in batches], dtype=np.float64)
    stage_s, slot_s, each_s = _fit(work[steady], phase_s[steady])
    variable_s = in_slots_s + work @ np.array([slot_s, each_s])
    read_s = 0.0
    if tasks is None:
        # time before the slots and in the slots is not known apart, nor how many slots ran at once
        record_s, ended_s = each_s * cores, variable_s / 2
    else:
        read_s, ended_s = each_s, ended_s + variable_s - in_slots_s
    fixed_s = max(float(np.median((period_s - variable_s)[steady])), 0.0)
    before_s = _before_slots(batches[steady], period_s[steady], ended_s[steady])
    before_s = min(max(before_s, stage_s), fixed_s)
    extra_s = period_s - fixed_s - variable_s
    epochs = [max(batch.epochs, 1) for batch in batches]
    if useful is not None and read_s > _BEFORE_MIN * (read_s + record_s / useful):
        useful = run.batches[0].slots
    budget_s = parameters.get("budget_s")
    engine = MicroBatch(
        plan_s=before_s,
        read_s=read_s,
        commit_s=fixed_s - before_s,
        task_s=task_s + slot_s * cores,
        budget_s=math.inf if budget_s is None or limited else float(budget_s),
        cores=cores,
        slot_rate_per_s=None if limited is None else float(limited),
        warm_up_s=tuple(np.repeat(np.maximum(extra_s[:warm], 0.0), epochs[:warm]).tolist()),
        jitter_s=tuple(np.repeat(extra_s[steady], epochs[steady]).tolist()),
    )
    record_s = max(record_s, _RECORD_MIN_S)
    factors = None
    if tasks is not None:
        factors = np.ones(len(run.batches))
        factors[served] = _factors(tasks, task_s, record_s)
    return Costs(engine, record_s, factors, useful)


def records_of(run: Recorded, factors: F64) -> tuple[F64, I64, F64] | None:
    """Return the records of a run one by one: their arrivals, key groups and costs.

    None if there are too many. All records of a batch cost the same.
    """
    if sum(sum(arrived.records) for batch in run.batches for arrived in batch.arrivals) > AT_ONCE:
        return None
    at_s, groups, batch_of = (np.concatenate(part) for part in zip(*run.records(), strict=True))
    order = np.argsort(at_s, kind="stable")
    return at_s[order], groups[order], factors[batch_of[order]]


def _periods(run: Recorded) -> F64:
    """Return the time from the beginning of each batch to the next one, without idle time.

    The engine's time between two batches varies little; much longer times are idle time.
    """
    lasted_s = np.array([batch.duration_ms / 1e3 for batch in run.batches[:-1]])
    between_s = np.maximum(np.diff(run.began_s) - lasted_s, 0.0)
    most_s = _IDLE * float(np.median(between_s)) + _IDLE_S
    epochs = np.array([max(batch.epochs, 1) for batch in run.batches[:-1]])
    periods_s: F64 = (lasted_s + np.minimum(between_s, most_s)) / epochs
    return periods_s


def _of_one_epoch(batch: Batch) -> Batch:
    """Return the mean epoch of a line that sums several epochs; any other batch unchanged."""
    count = batch.epochs
    if count <= 1:
        return batch
    stats = [
        replace(
            slot,
            served=_share(slot.served, count),
            useful_ms=slot.useful_ms / count,
            computing_ms=(slot.computing_ms or 0.0) / count,
            waited_ms=(slot.waited_ms or 0.0) / count,
        )
        for slot in batch.slot_stats
    ]
    phases_ms = {name: spent_ms / count for name, spent_ms in batch.phases_ms.items()}
    served = _share(batch.served, count)
    return replace(batch, served=served, phases_ms=phases_ms, slot_stats=tuple(stats))


def _share(records: int, count: int) -> int:
    """Return the records of one of `count` epochs, at least one where there were any."""
    return max(round(records / count), min(records, 1))


def _tasks(
    steady: Sequence[Batch], batches: Sequence[Batch], cores: int, machine: int | None
) -> tuple[list[list[Task]], int, int | None]:
    """Return the work of each slot, the cores for tasks, and the number of slots that are of use.

    Tasks share the machine's cores, even if Spark's setting has more cores: their wait for a core does
    not count as time of their records.
    """
    computing, at_once = None, cores
    if machine is not None:
        alone = [batch for batch in steady if batch.slots <= machine]
        computing = _computing(alone if len(alone) >= _ENOUGH else steady)
    if machine is not None and computing is not None:
        at_once = min(cores, max(1, int(machine / computing + _ROUNDING)))
    tasks = [
        [_task(s, computing if batch.slots > at_once else None) for s in batch.slot_stats]
        for batch in batches
    ]
    return tasks, at_once, None if machine is None else at_once


def _task(done: SlotStats, computing: float | None) -> Task:
    """Return a slot's task; without the wait for a core, if `computing` is given."""
    useful_ms = done.useful_ms
    if computing is not None and done.waited_ms:
        useful_ms = max(useful_ms - done.waited_ms, 0.0)
    elif computing is not None and done.computing_ms:
        useful_ms = done.computing_ms / computing
    return Task(useful_ms / 1e3, done.served)


def _computing(batches: Sequence[Batch]) -> float | None:
    """Return the share of slots' useful time in which they needed a core; None where not measured."""
    known = [s for b in batches for s in b.slot_stats if s.served and s.computing_ms]
    useful_ms = sum(s.useful_ms for s in known)
    if not useful_ms:
        return None
    wanted_ms = sum((s.computing_ms or 0.0) + (s.waited_ms or 0.0) for s in known)
    return min(wanted_ms / useful_ms, 1.0)


def _line(tasks: Sequence[Sequence[Task]]) -> tuple[float, float]:
    """Return the time of a task, and the time that each record adds; neither is negative.

    Least squares; the variance of the time of n records is proportional to n.
    """
    useful_s, served = np.array([task for batch in tasks for task in batch], dtype=np.float64).T
    weight = 1.0 / np.sqrt(np.maximum(served, 1.0))
    columns = np.column_stack([weight, served * weight])
    (task_s, record_s), *_ = np.linalg.lstsq(columns, useful_s * weight)
    if task_s < 0.0:
        return 0.0, float(useful_s.sum() / max(served.sum(), 1.0))
    if record_s < 0.0:
        return float(useful_s.mean()), 0.0
    return float(task_s), float(record_s)


def _factors(tasks: Sequence[Sequence[Task]], task_s: float, record_s: float) -> F64:
    """Return the cost of the records of each batch, as a multiple of the usual cost."""
    factors = np.ones(len(tasks))
    for number, batch in enumerate(tasks):
        served = sum(task.served for task in batch)
        if served:
            spent_s = sum(task.useful_s - task_s for task in batch if task.served)
            factors[number] = max(spent_s, 0.0) / (served * record_s)
    return factors


def _laid_out(tasks: Sequence[Task], task_s: float, cores: int) -> tuple[float, float]:
    """Return the end of the last task on `cores` cores, and the mean end of a record.

    A task serves its records one after the other, once its fixed time is over.
    """
    free_s, weighted_s = [0.0] * cores, 0.0
    for task in tasks:
        core = free_s.index(min(free_s))
        free_s[core] += task.useful_s
        serving_s = max(task.useful_s - task_s, 0.0)
        weighted_s += task.served * (free_s[core] - serving_s / 2)
    served = sum(task.served for task in tasks)
    return max(free_s), weighted_s / served if served else 0.0


def _fit(work: F64, slots_s: F64) -> tuple[float, float, float]:
    """Return the least squares of ``a + b x slots + c x records``, none of them negative.

    Where all batches have the same number of slots, b is 0: it cannot be separated from a.
    """
    typical = slots_s <= np.quantile(slots_s, _TYPICAL)
    columns = np.column_stack([np.ones(int(typical.sum())), work[typical]])
    used = [0, 1, 2] if np.ptp(work[typical, 0]) > 0.0 else [0, 2]
    while used:
        solution, *_ = np.linalg.lstsq(columns[:, used], slots_s[typical])
        if (solution >= 0.0).all():
            break
        used.pop(int(np.argmin(solution)))
    fit = np.zeros(3)
    if used:
        fit[used] = solution
    batch_s, slot_s, record_s = fit.tolist()
    return batch_s, slot_s, record_s


def _before_slots(steady: Sequence[Batch], period_s: F64, ended_s: F64) -> float:
    """Return the time from reading the source to the first slot task.

    A record waits half a period on average for its batch, then this long, then for its slot's turn.
    """
    waited_s = [
        batch.latency_ms.mean / 1e3 - span_s / 2 - slots_s
        for batch, span_s, slots_s in zip(steady, period_s, ended_s, strict=True)
        if batch.latency_ms is not None and batch.backlog == 0
    ]
    return float(np.median(waited_s)) if waited_s else 0.0
