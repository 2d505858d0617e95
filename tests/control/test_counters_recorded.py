"""Counters of made-up slots, some lost, late, wrong or begun again: each view as it was recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from control_views import shown

from headgate.control.estimators.examiner import Examiner
from headgate.control.estimators.task_cost import TaskCost, makespan_ms
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment
from headgate.core.errors import NotReady

Recorded = Callable[[str, Iterable[str]], None]

GROUPS, TICK_S = 4, 0.5


class Source:
    """Serves records of four key groups with slots that come, go and share a group."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.numbers = dice, np.random.default_rng(dice.randrange(99))
        self.arrived, self.completed = np.zeros(GROUPS), np.zeros(GROUPS)
        self.assignment, self.ids, self.fresh = Assignment((0, 0, 1, 1), 2), (0, 1), 2

    def change(self) -> None:
        """Give the key groups to another number of slots; a slot that stays keeps its identity."""
        slots = self.dice.randint(1, 3)
        owners = tuple(
            sorted([*range(slots), *(self.dice.randrange(slots) for _ in range(GROUPS - slots))])
        )
        split = {0: (0, slots - 1)} if slots > 1 and self.dice.random() < 0.5 else {}
        self.assignment = Assignment(owners, slots, self.assignment.epoch + 1, split)
        kept = self.dice.sample(self.ids, min(len(self.ids), slots))
        self.ids = (*kept, *range(self.fresh, self.fresh + slots - len(kept)))
        self.fresh += slots

    def sample(self, tick: int) -> Sample:
        self.arrived = self.arrived + self.numbers.poisson(5.0 * (tick % 11 < 8), GROUPS)
        behind = self.arrived - self.completed
        self.completed = self.completed + np.minimum(behind, self.numbers.poisson(4.6, GROUPS))
        busy = self.numbers.uniform(0.0, TICK_S, self.assignment.slots)
        return Sample(
            tick, self.assignment, self.ids, self.arrived.copy(), self.completed.copy(), busy
        )  # fmt: skip


def spoiled(sample: Sample, dice: random.Random) -> Sample:
    """Return a sample as a bad connection or a wrong program would give it."""
    at, arrived, completed = dice.randrange(GROUPS), sample.arrived.copy(), sample.completed.copy()
    what = dice.choice(["nan", "fallen", "negative", "both", "shape", "useful", "ids", "more done"])
    if what in ("nan", "both"):
        arrived[at] = np.nan
    if what in ("fallen", "both"):
        completed[at] = max(0.0, completed[at] - 9.0)
    if what == "negative":
        arrived[at] = -1.0
    if what == "more done":
        completed[at] = arrived[at] + 3.0
    if what == "shape":
        return replace(sample, arrived=arrived[1:])
    if what == "useful":
        return replace(sample, useful_s=np.where(sample.useful_s > 0.2, np.nan, -0.1))
    if what == "ids":
        return replace(sample, slot_ids=(7,) * len(sample.slot_ids))
    return replace(sample, arrived=arrived, completed=completed)


def seen(examiner: Examiner) -> str:
    try:
        view = examiner.view(bound_s=1.0, alert_s=0.1, slots_max=4)
    except NotReady as why:
        return str(why)
    parts = [
        view.slot_ids, view.latency_s, view.group_latency_s, view.group_rate, view.service_rate,
        view.utilisation, view.backlog, view.costs_seen, view.window_s,
        [] if view.costs is None else view.costs[-2:],
    ]  # fmt: skip
    return shown(parts)


@pytest.mark.parametrize("seed", range(4))
def test_counters_of_changing_slots(seed: int, recorded: Recorded) -> None:
    dice, lines = random.Random(seed), []
    source = Source(dice)
    examiner = Examiner(
        GROUPS, TICK_S, (1.0, 2.0)[seed % 2], eta=(1.0, 0.3)[seed % 2],
        initial_service_rate=(None, 8.0)[seed // 2],
    )  # fmt: skip
    late: list[Sample] = []
    first = (1, 1, 5, 9)[seed]
    for tick in range(first, first + 70):
        if dice.random() < 0.08:
            source.change()
        sample = source.sample(tick)
        if seed % 2:
            sample = replace(sample, unread=np.array([0.0, 3.0 * (tick % 9 == 4), 0.0, -1.0]))
        if seed == 3:
            sample = replace(sample, worked=np.full(len(sample.slot_ids), 6.0))
        chance = dice.random()
        said = "taken"
        if chance < 0.06:
            said = "lost"
        elif chance < 0.12:
            late.append(sample)
            said = "late"
        else:
            if chance < 0.22:
                said, sample = "spoiled", spoiled(sample, dice)
            examiner.add(sample)
        if late and dice.random() < 0.4:
            examiner.add(late.pop())
        if tick == first + 30:
            examiner.window_s = 1.5
        if tick == first + 45:
            source.arrived, source.completed, said = np.zeros(GROUPS), np.zeros(GROUPS), "again"
        lines.append(f"{tick} {said} {source.assignment.slot_of} {seen(examiner)}")
    recorded(f"counters-{seed}", lines)


def test_what_tasks_cost_while_slots_come_and_go(recorded: Recorded) -> None:
    """Few dear records, tasks without any, and changes of slots; each slot has a cost of its own."""
    dice, lines = random.Random(81), []
    numbers, cost, slots = np.random.default_rng(82), TaskCost(), 2
    for batch in range(90):
        if dice.random() < 0.1:
            survivors = [dice.choice([None, *range(slots + 1)]) for _ in range(dice.randint(1, 4))]
            cost.renumber(survivors)
            slots = len(survivors)
        elif dice.random() < 0.05:
            slots += 1
            cost.widen(slots)
        tasks = []
        for slot in range(slots):
            count = int(numbers.poisson((3.0, 40.0)[batch % 9 > 2])) * (dice.random() < 0.9)
            each_ms = (1.0 + slot) * (1.0 + (batch > 60)) * (1.0 + 9.0 * (dice.random() < 0.05))
            tasks.append((slot, count, 12.0 + each_ms * count + float(numbers.exponential(2.0))))
        cost.add(tasks)
        ends_ms = [makespan_ms([ms for *_, ms in tasks], at_once) for at_once in (1, 2, 9)]
        if batch % 2:
            lines.append(f"{batch} {slots}: {shown([cost.fixed_ms, cost.record_ms, ends_ms])}")
    recorded("task-cost-of-slots", lines)
