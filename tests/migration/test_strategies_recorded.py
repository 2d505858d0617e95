"""What strategies say of drawn plans and situations, and whole migrations of an engine, as recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import pytest

from headgate.core.assignment import Assignment, rescale
from headgate.core.errors import ConfigError, HeadgateError, ProtocolError
from headgate.migration import events, plan, registry
from headgate.migration.events import Cause, Requested
from headgate.migration.instructions import Forward, Hold, Install, Prefetch, Release, Route
from headgate.migration.plan import Plan, Subscale
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.protocol import Migration
from headgate.migration.strategy import Situation

Recorded = Callable[[str, Iterable[str]], None]
STRATEGIES = (
    "all-at-once", "fluid", "on-demand", "shared", "stop-restart", "subscale",
    "subscale(decoupling=false)", "subscale(scheduling=false)", "subscale(division=false)",
    "subscale(early_route=true)", "subscale(share=false)", "subscale(deferred=1)",
    "subscale(per_host=1)", "subscale(per_host=3, groups_min=1)", "subscale(groups_min=2)",
)  # fmt: skip
ANSWERS: dict[type[Any], Callable[[Any, int], Any]] = {
    Prefetch: lambda given, group: events.CaughtUp(given.order, group, given.host),
    Forward: lambda given, group: events.Forwarded(given.order, group),
    Install: lambda given, group: events.Installed(given.order, group, given.host),
    Release: lambda given, group: events.Released(given.order, group),
}


def told(do: Callable[[], Any]) -> str:
    try:
        return str(do())
    except HeadgateError as error:
        return f"{type(error).__name__}: {error}"


def assignment(dice: random.Random, groups: int, epoch: int = 0) -> Assignment:
    slots = dice.randint(1, 4)
    owners = [*range(slots), *(dice.randrange(slots) for _ in range(groups - slots))]
    dice.shuffle(owners)
    return Assignment(tuple(owners[:groups]), slots, epoch)


def brief(subscales: Iterable[Any]) -> list[str]:
    return [f"{list(s.groups)} {s.source}->{s.destination}" for s in subscales]


def test_what_strategies_say_is_as_recorded(recorded: Recorded) -> None:
    recorded("strategies", [line for text in STRATEGIES for line in said(text)])


def said(text: str) -> list[str]:
    dice, made, lines = random.Random(61), registry.strategy(text), []
    kept = [made.deferred_max, made.resume, made.awaits_prefetch, made.supersedable]
    lines.append(f"{made} {kept}, {[(f.name, f.default) for f in fields(type(made))]}")
    for across in (True, False):
        lines.append(f"across {across}: {[phase.name for phase in made.path(across=across)]}")
    for _ in range(12):
        old = assignment(dice, dice.choice([4, 12, 40]))
        new = assignment(dice, old.key_groups, 1)
        if dice.random() < 0.5:
            new = rescale(old, dice.randint(1, 4))
        change = Plan(old, new, tuple(dice.choice(["aaaa", "aabb", "abcd"])))
        lines.append(f"{len(change.moved)} of {old.key_groups}: refused {made.refusal(change)}")
        moves = {g: pair for pair, groups in change.pairs.items() for g in groups}
        stay = {g: old.slot_of[g] for g in range(old.key_groups) if g not in moves}
        lines.append(f"  {brief(made.divide(moves, stay))}")
    for number in range(30):
        hosts = tuple(dice.choice(["aaaa", "aabb", "abcd"]))
        progress = [
            SubscaleProgress(
                i, (2 * i, 2 * i + 1)[: dice.randint(1, 2)], dice.randrange(4), dice.randrange(4),
                dice.choice([Phase.PENDING, *Phase][:-1]),
                answered=set([2 * i] * (dice.random() < 0.7)),
            )
            for i in range(dice.randint(1, 6))
        ]  # fmt: skip
        asked = dice.choice([p for p in Phase if p is not Phase.PENDING])
        waiting = [p for p in progress if p.phase < asked and dice.random() < 0.8]
        reached = {p.number: asked if p in waiting else p.phase for p in progress}
        demanded = frozenset(dice.sample(range(12), 3))
        held = tuple(dice.randint(0, 5) for _ in hosts)
        situation = Situation(tuple(progress), reached, held, hosts, demanded)
        admitted = [p.number for p in made.admit(asked, waiting, situation)]
        phases = [f"{p.number}:{p.phase.name} {p.source}->{p.destination}" for p in progress]
        lines.append(f"{number} {asked.name} of {phases}: {admitted}")
    return lines


def test_drawn_subscales_are_scheduled_as_recorded(recorded: Recorded) -> None:
    dice, lines = random.Random(62), []
    for number in range(60):
        hosts = dice.choice(["aaaa", "aabb", "abcd", "aabc"])
        drawn = [
            Subscale(tuple(range(9 * i, 9 * i + dice.randint(1, 5))), *dice.choices(range(4), k=2))
            for i in range(dice.randint(0, 8))
        ]
        cut = dice.randint(0, 2)
        limit: Any = dice.choice([1, 2, [1, 2, 3, 1], [3, 1, 2, 2]])
        held = [dice.randint(0, 9) for _ in hosts]
        started = plan.schedule(drawn[cut:], drawn[:cut], held, hosts, limit)
        usual = plan.schedule(drawn[cut:], drawn[:cut], held, hosts)
        lines.append(f"{number} {hosts} {held} {limit} {brief(drawn[:cut])}: {started} {usual}")
    for groups in (0, 1, 6, 7, 13, 14, 15, 29, 60):
        moves = {g: (0, 1 + g % 2) for g in range(groups)}
        sizes = [[len(s.groups) for s in plan.divide(moves, least)] for least in (1, 2, 7)]
        lines.append(f"{groups}: {sizes} {[len(s.groups) for s in plan.divide(moves)]}")
    for slots, groups in ((1, 1), (3, 8), (4, 8), (5, 12)):
        lines.append(f"{plan.uniform(Assignment((0,) * groups, 1, 3), slots)}")
    lines += [
        told(lambda: Plan(Assignment((0,), 1, 0), Assignment((0, 0), 1, 1), ("a",))),
        told(lambda: Plan(Assignment((0,), 1, 0), Assignment((1,), 2, 1), ("a",))),
        told(lambda: Plan(Assignment((0,), 1, 0), Assignment((1,), 2, 1), ("a", "b"))),
        told(lambda: Requested(Assignment((0,), 1, 0), ("a",), Cause.SEVERE)),
        told(lambda: Requested(Assignment((0,), 1, 0), ("a",))),
    ]
    recorded("schedules", lines)


class Engine:
    """Carries instructions out, each answer a while later; some fail, and a host is lost now and then."""

    def __init__(self, seed: int, *, fails: float) -> None:
        self.dice, self.fails = random.Random(seed), fails
        self.hosts, self.number = ("a", "a", "b", "c"), 0
        self.in_force: set[int] = set()
        self.waiting: list[Any] = []

    def take(self, given: Iterable[Any]) -> None:
        for one in given:
            if isinstance(one, Hold | Route):
                self.in_force.add(one.order)
            elif self.dice.random() < self.fails:
                self.waiting.append(events.Failed(one.order, "the disk is full"))
            else:
                self.waiting += [ANSWERS[type(one)](one, group) for group in one.groups]

    def events(self) -> list[Any]:
        """Return what happens next: a boundary, or some of the answers that are due."""
        if self.dice.random() < 0.3 or not self.waiting:
            self.number += 1
            if self.dice.random() < 0.04:
                self.hosts = tuple(h + "'" if h == self.hosts[2] else h for h in self.hosts)
            return [events.Boundary(self.number, frozenset(self.in_force), self.hosts)]
        self.dice.shuffle(self.waiting)
        count = self.dice.randint(1, 3)
        some, self.waiting = self.waiting[:count], self.waiting[count:]
        return [one for one in some if self.dice.random() < 0.95]


def test_migrations_end_as_recorded(recorded: Recorded) -> None:
    others = [text for text in STRATEGIES if text != "shared"]
    recorded("ends", [line for text in others for line in ended(text)])


def ended(text: str) -> list[str]:
    """Five in a row, on an engine that fails now and then; then on one where each other thing fails."""
    lines, current = [f"{text}:"], Assignment((0, 1) * 5, 2, 0)
    for fails in (0.03, 0.5):
        migration, engine, epoch = Migration(current), Engine(63, fails=fails), 0
        for _ in range(5):
            epoch += 1
            target = assignment(engine.dice, 10, epoch)
            engine.take(migration.handle(Requested(target, engine.hosts, strategy=text)))
            turns = 0
            while migration.running and turns < 400:
                turns += 1
                for event in engine.events():
                    given = migration.handle(event)
                    engine.take(given)
                    lines += [f"  {type(one).__name__} {vars(one)}" for one in given if epoch == 2]
            where = [migration.current.slot_of, migration.current.epoch, migration.failed]
            gone = [one.slot_of for one in migration.superseded]
            lines.append(f"after {turns} turns, {migration.running}: {where} {gone}")
            assert not migration.running
            assert migration._advance() is False, "nothing is left to do"
            assert migration.current == target or migration.failed
    return lines


def test_an_error_tells_the_events_before_it_and_no_more_than_twenty() -> None:
    migration = Migration(Assignment((0, 1), 2, 0))
    with pytest.raises(ProtocolError, match=r"Before it: nothing$"):
        migration.handle(events.Demanded(2))
    for number in range(1, 40):
        migration.handle(events.Boundary(number, frozenset(), ("a", "a")))
    with pytest.raises(ProtocolError) as raised:
        migration.handle(events.Boundary(40, frozenset({0}), ("a", "a")))
    text = str(raised.value)
    assert text.count("Boundary(number=") == 20
    assert "Boundary(number=21," in text
    assert "Boundary(number=20," not in text
    with pytest.raises(ConfigError, match="has no host"):
        migration.handle(Requested(Assignment((1, 0), 2, 1), ("a",)))
