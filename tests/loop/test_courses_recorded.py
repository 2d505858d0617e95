"""Drawn courses of a loop and of floors: states, notes and decisions as recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engine import DELTA_S, FakeEngine

from headgate.control.decision import Decision
from headgate.control.registry import policy
from headgate.loop.batch_floor import BatchFloor
from headgate.loop.floor import Floor
from headgate.loop.loop import ControlLoop
from headgate.loop.settings import OperatorSettings

Recorded = Callable[[str, Iterable[str]], None]

ACTS = ("hold", "freeze", "thaw", "thaw", "advise", "missing", "configure", "slot")


def said(decision: Decision) -> str:
    changes = {n: (c.assignment.slot_of, c.survivors) for n, c in decision.changes.items()}
    return f"{decision.rule}: {decision.reason} {changes or ''}".strip()


@pytest.mark.parametrize("law", ["streamswitch(0.1)", "unified(0.1)", "threshold(0.9, 0.7, 0.45)"])
def test_a_loop_that_much_happens_to(law: str, recorded: Recorded) -> None:
    """Load in waves; counters go missing, people hold, freeze and take advice, changes are given up."""
    dice, lines = random.Random(41), []
    settings = OperatorSettings(1.0, 1.0, 6)
    engine = FakeEngine(groups=8, slots=2, mu=100.0)
    loop = ControlLoop(policy(law), engine, engine, engine, {"op": settings}, delta_s=DELTA_S)
    began = 0
    for cycle in range(400):
        time_s = (cycle + 1) * DELTA_S
        engine.rate = 20.0 + 18.0 * math.sin(time_s / 5.0) + 25.0 * (cycle % 150 > 130)
        act = dice.choice(ACTS) if dice.random() < 0.2 else ""
        if act == "hold":
            loop.hold(dice.choice([{}, {"op": time_s + 3.0}, {"op": time_s}]))
        elif act == "freeze":
            loop.freeze(time_s + dice.choice([1.0, 2.5]))
        elif act == "thaw":
            loop.thaw()
        elif act == "advise":
            loop.advise(dice.random() < 0.4)
        elif act == "configure":
            limit = dice.choice(["", "", "the cores"])
            settings = replace(
                settings, bound_s=dice.choice([1.0, 0.5, 0.15]), slots_max=dice.choice([3, 6]),
                limit=limit, window_s=dice.choice([1.0, 0.5]), floor_s=dice.choice([None, 0.1]),
            )  # fmt: skip
            loop.configure("op", settings)
        elif act == "slot":
            loop.slot_failed("op", engine.ids[-1])
        engine.missing = act == "missing" or (engine.missing and dice.random() < 0.5)
        engine.log.clear()
        decision = loop.cycle(time_s)
        if engine.applying is None:
            began = cycle
        elif cycle - began > 4:
            if dice.random() < 0.15:
                engine.applying = None
                loop.note_abandoned("op")
                engine.log.append("given up")
            else:
                engine.finish(loop.applied, time_s)
        noted = "; ".join(engine.log)
        if noted or act or cycle % 25 == 24:
            state = f"{loop.state('op')}, floor {loop.floor_s('op'):.4g}, {engine.now.slots} slots"
            lines.append(f"{time_s:.1f} {act or '-'}: {state}; {noted} {said(decision)}")
    recorded(f"loop-{law.partition('(')[0]}", lines)


def test_floors_of_drawn_steps(recorded: Recorded) -> None:
    """Batches and cycles of which some are behind, idle, or much longer than the others."""
    lines = []
    for seed in range(4):
        dice, batches, cycles, at_ms = random.Random(seed), BatchFloor(), Floor(), 0.0
        for step in range(180):
            idle = step % 60 > 35
            busy_s = dice.choice([0.0, 0.02, 0.05, 0.1]) if idle else dice.uniform(0.2, 0.6)
            period_s = 0.5 + busy_s * (seed < 3) + 2.0 * (dice.random() < 0.05)
            at_ms += 1e3 * period_s * (step % 47 != 46)
            latency_s = None if dice.random() < 0.1 else 0.4 + busy_s + dice.uniform(0.0, 0.2)
            waiting = (not idle and dice.random() < 0.7) or seed == 2
            batches.add(
                at_ms, latency_s, busy_s, waiting, behind=dice.random() < (0.9, 0.1)[seed > 0]
            )
            found: Any = [batches.value_s]
            if latency_s is not None:
                share = math.nan if step % 31 == 5 else busy_s / period_s
                cycles.add(latency_s, share, dice.choice([-1.0, 0.0, 0.5]) * waiting, period_s)
            found.append(cycles.value_s)
            if step % 5 == 4:
                lines.append(f"{seed} {step} {[float(f'{value:.6g}') for value in found]}")
    recorded("floors", lines)


def test_a_policy_sees_the_rows_that_shares_would_send() -> None:
    engine = FakeEngine(groups=8, slots=2)
    settings = {"op": OperatorSettings(1.0, 1.0, 6)}
    loop = ControlLoop(policy("streamswitch"), engine, engine, engine, settings, delta_s=DELTA_S)
    loop.note_entry_rate("op", np.full(8, 2.5))
    for cycle in range(12):
        loop.cycle((cycle + 1) * DELTA_S)
    observation, _, _ = engine.decisions[0]
    assert observation.operators["op"].entry_rate.tolist() == [2.5] * 8
