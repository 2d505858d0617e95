"""Two operators under a policy that draws its changes, faulty ones too; settings of drawn SLOs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from fake_engine import DELTA_S, FakeEngine

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.control.policy import Policy
from headgate.control.sample import Sample
from headgate.core.assignment import Assignment, spread
from headgate.core.errors import ConfigError, HeadgateError, ProtocolError
from headgate.core.slo import ALERT_S, END_TO_END, Slo
from headgate.loop.loop import ControlLoop
from headgate.loop.settings import OperatorSettings
from headgate.loop.steering import LatencyTarget, end_to_end_s, settings_of, targets_of

Recorded = Callable[[str, Iterable[str]], None]
NAMES = ("count-0", "join-1")


class Pair:
    """Two engines that write one log."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.of = {"count-0": FakeEngine(groups=6), "join-1": FakeEngine(groups=4, slots=1)}

    def collect(self) -> Mapping[str, Sequence[Sample]]:
        return {name: engine.collect()["op"] for name, engine in self.of.items()}

    def assignment(self, operator: str) -> Assignment:
        return self.of[operator].now

    def apply(self, operator: str, change: Change) -> None:
        self.of[operator].apply(operator, change)

    def decided(self, observation: Observation, decision: Decision, *, acts: bool) -> None:
        self.log.append(f"{'decided' if acts else 'noted'} {decision.rule}: {decision.reason}")

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        self.log.append(f"{operator} applied after {took_s:.1f} s")

    def not_ready(self, operator: str, why: str) -> None:
        self.log.append(f"{operator} not ready: {why}")


class Wayward(Policy):
    """Draws changes, and notes all that it is told."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.told: list[str] = []
        self.seen: dict[str, str] = {}

    def decide(self, observation: Observation) -> Decision:
        dice = self.dice
        for name, view in observation.operators.items():
            shown = sight(view)
            if shown != self.seen.get(name):
                self.told.append(f"{name} sees {shown}")
            self.seen[name] = shown
        changes = {
            name: drawn_change(dice, view)
            for name, view in observation.operators.items()
            if dice.random() < 0.3
        }
        if changes and dice.random() < 0.05:
            changes = {"count-0": next(iter(changes.values()))}
        rule = dice.choice(["", "calm", "calm", "busy"])
        return Decision(changes, f"{observation.end_to_end_s} {dict(observation.parents)}", rule)

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        self.told.append(f"{operator} has {change.assignment.slots} slots after {took_s:.1f} s")

    def slot_failed(self, operator: str, slot_id: int) -> None:
        self.told.append(f"{operator} lost {slot_id}")


def sight(view: OperatorView) -> str:
    """Return what a view says of settings, and not of load."""
    names = ("bound_s", "window_s", "alert_s", "floor_s", "slots_min", "slots_max", "limit", "success",
             "unsplittable", "held")  # fmt: skip
    values = {name: getattr(view, name) for name in names}
    rows = None if view.entry_rate is None else float(view.entry_rate.sum())
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in {**values, "rows": rows}.items()
        if value
    )


def drawn_change(dice: random.Random, view: OperatorView) -> Change:
    """Return a change; some have a fault, each kind of which comes up."""
    old, most = view.assignment, view.slots_max
    slots = min(dice.randint(1, most + (dice.random() < 0.4)), old.key_groups)
    if view.held and dice.random() < 0.7:
        slots = view.slots
    new = replace(spread(slots, old.key_groups), epoch=old.epoch + 1)
    survivors: list[int | None] = [slot if slot < view.slots else None for slot in range(slots)]
    fault = dice.random()
    if fault < 0.05:
        new = replace(spread(slots, old.key_groups + 1), epoch=old.epoch + 1)
    elif fault < 0.1:
        new = replace(new, epoch=old.epoch + dice.choice([0, 2]))
    elif fault < 0.15:
        survivors.append(None)
    elif fault < 0.2:
        survivors[0] = dice.choice([view.slots, -1])
    elif fault < 0.25 and slots > 1:
        survivors[:2] = [0, 0]
    return Change(ChangeKind.RESCALE, new, tuple(survivors))


def drawn_settings(dice: random.Random, slots_min: int) -> OperatorSettings:
    return OperatorSettings(
        dice.choice([0.5, 1.0, 3.0]), dice.choice([0.3, 0.5, 1.0]), dice.choice([3, 4]), slots_min,
        dice.choice([0.9, 0.99]), dice.choice(["", "", "the cores"]), dice.choice([0.1, 0.2]),
        dice.choice([None, 0.0, 0.25, 0.26, 0.5]), dice.choice(["", "order"]),
    )  # fmt: skip


ACTS = ("hold", "freeze", "thaw", "advise", "configure", "configure", "end to end", "slot", "missing",
        "rate", "rows", *["-"] * 9)  # fmt: skip


def happens(
    act: str, name: str, time_s: float, dice: random.Random, loop: ControlLoop, engine: Pair
) -> None:
    """Have one thing happen to an operator, or to both."""
    one = engine.of[name]
    if act == "hold":
        loop.hold(dice.choice([{}, {name: time_s + 1.0}, {n: time_s for n in NAMES}]))
    elif act == "freeze":
        loop.freeze(time_s + dice.choice([0.0, 0.1, 0.5]))
    elif act == "thaw":
        loop.thaw()
    elif act == "advise":
        loop.advise(dice.random() < 0.3)
    elif act == "configure":
        settings = drawn_settings(dice, dice.choice([1, 2]))
        loop.configure(name, settings)
        assert loop.settings(name) is settings
    elif act == "end to end":
        loop.bound_end_to_end(dice.choice([None, 1.5, 2.0]))
    elif act == "slot":
        loop.slot_failed(name, dice.choice(one.ids))
    elif act == "missing":
        one.missing = True
    elif act == "rate":
        one.rate = dice.choice([1.0, 10.0, 22.6, 60.0, 120.0])
    elif act == "rows":
        loop.note_entry_rate(name, np.full(4, dice.random()))


def test_two_operators_and_a_wayward_policy(recorded: Recorded) -> None:
    dice, lines, engine = random.Random(77), [], Pair()
    law = Wayward(random.Random(78))
    settings = {name: OperatorSettings(1.0, 0.5, 3, floor_s=0.0) for name in NAMES}
    loop = ControlLoop(
        law, engine, engine, engine, settings, delta_s=DELTA_S, parents={"join-1": ("count-0",)}
    )  # fmt: skip
    for cycle in range(300):
        time_s, act = (cycle + 1) * DELTA_S, dice.choice(ACTS)
        happens(act, dice.choice(NAMES), time_s, dice, loop, engine)
        said = loop.cycle(time_s)
        engine.of["count-0"].missing = engine.of["join-1"].missing = False
        for of, other in engine.of.items():
            chance = dice.random()
            if other.applying is None or chance < 0.6:
                continue
            if chance < 0.7:
                other.applying = None
                loop.note_abandoned(of)
                engine.log.append(f"{of} given up")
            else:
                other.finish(lambda _, at_s, of=of: loop.applied(of, at_s), time_s)  # type: ignore[misc]
        noted = [*engine.log, *law.told]
        engine.log.clear()
        law.told.clear()
        if noted or act != "-":
            states = "; ".join(
                f"{loop.state(n)}, bound {loop.bound_s(n):.3g}, floor {loop.floor_s(n):.3g}"
                for n in NAMES
            )
            changed = {n: c.assignment.slots for n, c in said.changes.items()}
            lines += [f"{time_s:.1f} {act}: {states} {changed or ''}".rstrip()]
            lines += [f"    {line}" for line in noted]
    recorded("pairs", lines)


def test_what_is_not_under_way_cannot_end() -> None:
    engine = Pair()
    given = {name: OperatorSettings(1.0, 0.5, 5) for name in NAMES}
    loop = ControlLoop(Wayward(random.Random(1)), engine, engine, engine, given, delta_s=DELTA_S)
    with pytest.raises(ProtocolError, match='no change of operator "join-1" is under way'):
        loop.applied("join-1", 1.0)
    with pytest.raises(ConfigError, match='unknown operator "zzz"; known: count-0, join-1'):
        loop.state("zzz")
    assert loop.cycle(0.1) is NOTHING


def drawn_slo(dice: random.Random) -> Slo:
    statistic = dice.choice(["mean", "p50", "p90", "p95", "p99", "p99.9", "max"])
    return Slo(
        statistic, dice.choice([0.15, 0.5, 1.0, 3.0]), dice.choice([1.0, 5.0]),
        dice.choice(["", "", END_TO_END, "operator count-0", "operator join-1"]),
        dice.choice([0.9, 0.99]), dice.choice([ALERT_S, 0.0, 0.01, 0.14]),
    )  # fmt: skip


def test_targets_are_those_of_the_words_of_an_slo() -> None:
    """Of drawn SLOs, a plain reading: the quantile of an exponential tail above the floor."""
    dice, chosen = random.Random(3), 0
    for _ in range(400):
        slo, floor_s = drawn_slo(dice), dice.choice([0.0, 0.05, 0.2, 0.21, 0.5, 9.0])
        target = LatencyTarget(slo)
        mean_s = slo.bound
        if slo.statistic != "mean":
            share = {"max": 0.999}.get(slo.statistic)
            share = float(slo.statistic[1:]) / 100 if share is None else share
            least_s = min(floor_s, slo.bound / 2)
            mean_s = least_s + (slo.bound - least_s) / max(1.0, -math.log(1.0 - min(share, 0.999)))
        assert target.mean_bound_s(floor_s) == pytest.approx(mean_s)
        alert_s = max(0.1, floor_s / 2) if slo.alert_s == ALERT_S else slo.alert_s
        chosen += slo.alert_s != ALERT_S and floor_s / 2 > slo.alert_s < mean_s / 2
        assert target.alert_s(floor_s) == pytest.approx(min(alert_s, mean_s / 2))
    assert chosen > 20, "an alert that somebody chose does not follow the floor"


def test_settings_of_drawn_slos(recorded: Recorded) -> None:
    dice, lines = random.Random(4), []
    for number in range(60):
        slos = [drawn_slo(dice) for _ in range(dice.randint(0, 3))]
        of = NAMES[: dice.randint(1, 2)]
        said = "; ".join(map(str, slos))
        try:
            made = settings_of(
                targets_of(slos, of), slots_min=dice.randint(1, 2), slots_max=dice.randint(2, 9),
                unsplittable=dice.choice([{}, {"count-0": ""}, {"join-1": "order counts"}]),
            )  # fmt: skip
            both_s = end_to_end_s(slos, of)
        except HeadgateError as error:
            lines.append(f"{number} {of} {said} -> {error}")
            continue
        lines.append(f"{number} {of} {said} -> end to end {both_s and round(both_s, 6)}")
        for name, each in made.items():
            values = {f.name: getattr(each, f.name) for f in fields(each)}
            told = {k: round(v, 6) if isinstance(v, float) else v for k, v in values.items() if v}
            lines.append(f"    {name}: {told}")
    recorded("settings", lines)
