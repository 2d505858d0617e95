"""Grants of a fleet by a drawn course of events: each account, request and decision as recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from control_views import shown
from drawn_laws import FLEETS, POOLS, SERIES, nice_view

from headgate.control.fleet.grant import UNLIMITED, Grant
from headgate.control.fleet.granted import Granted, GrantedPools
from headgate.control.fleet.juice import Flow, operator_juice
from headgate.control.fleet.ledger import Ledger
from headgate.control.fleet.view import FleetJob, FleetOperator, FleetView
from headgate.control.observation import Observation
from headgate.control.pools.replicas import Interval, OperatorInterval
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.threshold import Threshold
from headgate.control.slots.unified import Unified
from headgate.core.utility import Intent, Metric, Utility
from headgate_lab.sim.fleet.juice_window import JuiceWindow

Recorded = Callable[[str, Iterable[str]], None]


@pytest.mark.parametrize("budget", [6, 10, 14])
def test_accounts_of_a_fleet(budget: int, recorded: Recorded) -> None:
    """Jobs hold what was granted one step before, as if each change took a step."""
    dice, ledger, lines = random.Random(budget), Ledger(budget), []
    held: dict[str, dict[str, int]] = {}
    for step in range(120):
        job = dice.choice("abc")
        act = dice.choice(
            ["want"] * 4 + ["enter", "leave", "keep", "give up", "cut", "budget", "budget"]
        )
        if step < 3:
            job, act = "abc"[step], "enter"
        said: Any = ""
        if act == "enter" and job not in ledger:
            slots = {op: dice.randint(1, 5) for op in "xy"[: dice.randint(1, 2)]}
            held[job] = ledger.enter(job, slots, ledger.taken(held) + dice.randint(0, 1))
            said = slots
        elif act == "leave" and dice.random() < 0.15:
            ledger.leave(job)
            held.pop(job, None)
        elif act == "want":
            said = {j: {op: dice.randint(0, 7) for op in "xyz"} for j in dice.sample("abcd", 2)}
            ledger.want(said)
        elif act == "keep":
            ledger.keep(job, {"x": dice.randint(0, 4), "q": 1})
        elif act == "give up":
            said = ledger.give_up()
        elif act == "cut":
            ledger.cut(dice.sample(sorted(held), len(held)))
        elif act == "budget":
            ledger.budget = max(2, budget + dice.randint(-3, 3))
        before, reserved = ledger.granted, dice.choice([0, 0, 2])
        changed = ledger.settle(held, reserved)
        found = [said, changed, ledger.granted, ledger.waiting, ledger.of(job)]
        taken = [ledger.taken(held), ledger.taken(held, [job]), job in ledger]
        lines.append(f"{step} {act} {job} of {ledger.budget}: {shown(found)} {taken}")
        held = {j: before.get(j, operators) for j, operators in ledger.granted.items()}
    recorded(f"accounts-{budget}", lines)


def test_requests_of_laws_within_a_grant(recorded: Recorded) -> None:
    """Three laws on views of round numbers, whose grant changes every other cycle."""
    dice, lines = random.Random(15), []
    laws = [Granted(law) for law in (StreamSwitch(0.0), Threshold(0.5, 0.25, 0.125), Unified(0.0))]
    for cycle in range(60):
        found = [nice_view(dice) for _ in range(1 + (cycle % 3 > 0))]
        views = {f"of {len(one.group_rate)}": one for one in found}  # as many key groups for ever
        slots = {f"of {groups}": dice.randint(1, 4) for groups in (2, 4, 6)}
        grant = UNLIMITED if cycle % 20 == 19 else Grant(slots)
        lines.append(f"{cycle} {shown(grant.slots)}, of {[views[op].slots for op in views]}")
        for law in laws:
            if cycle % 2 == 0:
                law.grant = grant
            made = law.decide(Observation(1.5 * cycle, views))
            slots = {op: (c.assignment.slot_of, c.survivors) for op, c in made.changes.items()}
            lines.append(f"  {law.name} {made.rule}: {made.reason} {shown(slots)} {law.requests}")
    recorded("granted", lines)


@pytest.mark.parametrize("name", POOLS)
def test_requests_of_pools_within_a_grant(name: str, recorded: Recorded) -> None:
    law, lines = GrantedPools(POOLS[name]()), []
    active = {"a": 1, "b": 1}
    for number, events in enumerate(SERIES):
        law.grant = Grant({"a": 1 + number // 15, "b": 2}) if number % 20 < 15 else UNLIMITED
        operators = {
            op: OperatorInterval(active[op], 6, 0.02, events, {}, events, 0.2 * events, least=2)
            for op in active
        }
        count = math.nan if number == 40 else events
        decision = law.decide(Interval(1.0, count, operators))
        active |= decision.active
        lines.append(f"{law.name} {decision.reason} {shown(decision.active)} {shown(law.requests)}")
    recorded(f"granted-{name}", lines)


def test_the_juice_of_drawn_graphs(recorded: Recorded) -> None:
    dice, lines = random.Random(16), []
    for number in range(30):
        window, names = JuiceWindow(2), "abcdef"[: dice.randint(2, 6)]
        edges = [(p, c) for i, p in enumerate(names) for c in names[i + 1 :] if dice.random() < 0.5]
        for _ in range(3):
            window.add(
                Flow(
                    p,
                    c,
                    sent,
                    dice.choice([0.0, sent, sent / 2, sent + 5]),
                    dice.choice([0.0, 3.0]),
                )
                for p, c in edges
                for sent in [dice.choice([0.0, 10.0, 40.0])]
            )
        flows = window.flows()
        sinks = sorted({c for _, c in edges} - {p for p, _ in edges})
        weights = dict.fromkeys(sinks[:1], 3.0)
        found = [operator_juice(flows), window.juice(), window.juice(weights)]
        lines.append(f"{number} {[(f.parent, f.child, f.waiting) for f in flows]} {shown(found)}")
    recorded("juice", lines)


@pytest.mark.parametrize("name", FLEETS)
def test_fleets_whose_jobs_come_and_go(name: str, recorded: Recorded) -> None:
    """Loads walk and jump; jobs are silent for a while, one wants juice, requests come and go."""
    dice, law, lines, last = random.Random(17), FLEETS[name](), [], ""
    jobs: dict[str, dict[str, Any]] = {}
    for round_ in range(240):
        if not jobs or (round_ % 60 == 30 and len(jobs) < 4):
            jobs[f"job{round_}"] = {
                "rate": dice.uniform(20.0, 90.0), "slots": {"source": 1, "count": 2}, "silent": 0,
                "kind": dice.choice([Metric.LATENCY, Metric.LATENCY, Metric.JUICE]),
                "worth": dice.choice([5.0, 10.0, 40.0]),
            }  # fmt: skip
        elif round_ % 80 == 70 and len(jobs) > 1:
            jobs.pop(dice.choice(sorted(jobs)))
        views = {}
        for job, facts in jobs.items():
            facts["rate"] *= dice.choice([1.0, 1.0, 0.97, 1.04]) if dice.random() < 0.99 else 2.0
            facts["silent"] = 3 if dice.random() < 0.002 else max(0, facts["silent"] - 1)
            busy = {op: min(1.0, facts["rate"] / (20.0 * n)) for op, n in facts["slots"].items()}
            behind = max(0.0, max(busy.values()) - 0.8)
            value = 0.4 + 9.0 * behind if facts["kind"] is Metric.LATENCY else 1.0 - behind
            views[job] = FleetJob(
                Utility(facts["worth"], (Intent(facts["kind"], 0.9),)),
                None if facts["silent"] else (dice.choice([value] * 500 + [math.nan]),),
                {
                    op: FleetOperator(
                        n, busy[op], 20.0 * behind, source=op == "source", slots_max=8,
                        request=dice.choice([None] * 9 + [n + 1]),
                    )
                    for op, n in facts["slots"].items()
                },
                facts["rate"],
            )  # fmt: skip
        congested = 2 if round_ % 90 > 84 else 0
        decision = law.decide(
            FleetView(10.0 * round_, views, 18 - 4 * (round_ > 180), 3, congested)
        )
        for job, operators in decision.slots.items():
            jobs[job]["slots"] |= operators
        if decision or decision.rule != last:
            said = f"{decision.action} {decision.rule}: {decision.reason}"
            lines.append(f"{10 * round_} {said} {shown(decision.slots)} {shown(decision.numbers)}")
            last = decision.rule
    recorded(f"comes-and-goes-{name}", lines)
