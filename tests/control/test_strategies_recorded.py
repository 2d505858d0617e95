"""Each move that laws choose among, on drawn operators with splits: what is best, as recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
from control_views import shown, view

from headgate.control.observation import OperatorView
from headgate.control.slots.repacking import repacked
from headgate.control.slots.splitting import best_split, best_whole, hottest_at, share_rate
from headgate.control.slots.strategies import (
    UnitStrategy,
    best_balance,
    best_scale_in,
    best_scale_out,
    change_of,
    view_after,
)
from headgate.core.assignment import Assignment

Recorded = Callable[[str, Iterable[str]], None]


def drawn(dice: random.Random, *, is_round: bool) -> OperatorView:
    """Return an operator of up to five slots, one or two of whose key groups are split."""
    slots = dice.randint(1, 5)
    groups = slots + dice.randint(0, 5)
    owners = [*range(slots), *(dice.randrange(slots) for _ in range(groups - slots))]
    split = {}
    for group in dice.sample(range(groups), min(dice.choice([0, 1, 1, 2]), groups)):
        others = [slot for slot in range(slots) if slot != owners[group]]
        if others:
            split[group] = (owners[group], *dice.sample(others, dice.randint(1, len(others))))
    rates = [
        float(dice.choice([0, 8, 16, 40, 100])) if is_round else round(dice.expovariate(0.03), 2)
        for _ in range(groups)
    ]
    mu = [dice.choice([100.0, 100.0, 50.0, 120.0]) for _ in range(slots)]
    return view(
        rates, mu, assignment=Assignment(tuple(owners), slots, 3, split),
        latency_s=[dice.choice([0.05, 0.2, 3.0]) for _ in range(slots)],
        backlog=dice.choice([0.0, 0.0, 20.0]), bound_s=dice.choice([1.0, 0.1, 0.02]),
        floor_s=dice.choice([0.0, 0.0, 0.05]), slots_min=1, slots_max=dice.choice([2, 4, 6]),
        unsplittable="", entry_rate=np.full(groups, dice.choice([0.0, 2.0, 15.0])),
    )  # fmt: skip


def said(of: OperatorView, name: str, found: UnitStrategy | None) -> str:
    if found is None:
        return f"  {name}: none"
    change, after = change_of(of, found), view_after(of, found)
    parts = [found.groups, found.source, found.destination, found.survivors, found.latency_s]
    now = change.assignment
    return (
        f"  {name}: {shown(parts)} -> {now.slot_of} {now.split} {change.kind} {change.survivors}"
        f" {shown([after.slot_ids, after.latency_s])}"
    )


def test_the_best_moves_of_drawn_operators(recorded: Recorded) -> None:
    dice, lines = random.Random(51), []
    for number in range(60):
        of = drawn(dice, is_round=number % 3 == 0)
        epsilon = (0.0, 0.2)[number % 2]
        slot, group = dice.randrange(of.slots), dice.randrange(len(of.group_rate))
        hot = hottest_at(of, slot, of.group_rate > 10.0)
        lines.append(
            f"{number} {of.assignment.slot_of} {of.assignment.split} {shown(of.group_rate)} at "
            f"{shown(of.service_rate)}: shares {shown(share_rate(of))}, hottest {hot}"
        )
        lines += [
            said(of, "in", best_scale_in(of, epsilon)),
            said(of, "out", best_scale_out(of, epsilon, slot)),
            said(of, "balance", best_balance(of, epsilon, slot)),
            said(of, "split", best_split(of, epsilon, group)),
            said(of, "whole", best_whole(of, epsilon)),
        ]
        packed = repacked(of, dice.randint(1, len(of.group_rate)), of.group_rate)
        if packed is not None:
            lines.append(f"  packed: {packed.assignment} {packed.survivors}")
    recorded("moves-of-drawn-operators", lines)
