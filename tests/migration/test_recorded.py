"""Migrations under made-up events, right and wrong: instructions, refusals and state as recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError, ProtocolError
from headgate.migration import events
from headgate.migration.events import Cause, Requested
from headgate.migration.instructions import Forward, Hold, Install, Prefetch, Release, Route
from headgate.migration.protocol import Migration, assignment_of, plain

Recorded = Callable[[str, Iterable[str]], None]

GROUPS, SLOTS = 12, 4
HOSTS = ("a", "a", "b", "c")
STRATEGIES = (
    "all-at-once", "fluid", "on-demand", "shared", "stop-restart", "subscale",
    "subscale(groups_min=2, per_host=1)", "subscale(early_route=true, deferred=5)",
    "subscale(decoupling=false, scheduling=false, groups_min=1)",
    "subscale(division=false, share=false)", "",
)  # fmt: skip


class Play:
    """Answers a migration's instructions sooner or later, and now and then does something else."""

    def __init__(self, seed: int, strategy: str) -> None:
        self.dice, self.strategy = random.Random(seed), strategy
        self.migration = Migration(self.assignment(2, 0))
        self.hosts = HOSTS
        self.number, self.epoch = 0, 0
        self.due: list[Any] = []
        self.in_force: set[int] = set()

    def assignment(self, slots: int, epoch: int) -> Assignment:
        return Assignment(tuple(self.dice.randrange(slots) for _ in range(GROUPS)), slots, epoch)

    def request(self) -> Requested:
        self.epoch += 1
        cause = self.dice.choice([Cause.POLICY, Cause.HAND, Cause.SEVERE])
        slots = self.dice.choice([2, 3, 4])
        slot = self.dice.randrange(slots) if cause is Cause.SEVERE else None
        hosts = self.hosts if self.dice.random() < 0.9 else self.hosts[:1]
        target = self.assignment(slots, self.epoch)
        return Requested(target, hosts, cause, slot, self.strategy)

    def boundary(self) -> events.Boundary:
        self.number += self.dice.choice([0, 1, 1, 1, 5])
        self.in_force |= {o for o, _ in self.due if o is not None and self.dice.random() < 0.8}
        told = set(self.in_force)
        return events.Boundary(self.number, frozenset(told), self.hosts)

    def lost(self) -> events.HostLost:
        host = self.dice.choice(self.hosts)
        other = self.dice.choice("abcd")
        self.hosts = tuple(other if h == host else h for h in self.hosts)
        after = self.number - self.dice.choice([0, 0, 1])
        return events.HostLost(after, host, self.hosts)

    def strange(self) -> Any:
        order, group = self.dice.choice([0, 3, 999]), self.dice.choice([0, 5, GROUPS, -1])
        return self.dice.choice(
            [
                events.Demanded(group),
                events.CaughtUp(order, group, "a"),
                events.Installed(order, group, "b"),
                events.Forwarded(order, group),
                events.Released(order, group),
                events.Failed(order, "disk full"),
                events.Boundary(self.number + 1, frozenset({999}), self.hosts),
            ]
        )

    def answers(self) -> list[Any]:
        """Return answers to some of the instructions, in any order, a few of them twice."""
        ready, self.due = self.due, []
        found: list[Any] = []
        for order, answer in ready:
            if answer is not None and self.dice.random() < 0.7:
                found += [answer] * self.dice.choice([1, 1, 1, 2])
            elif answer is not None:
                self.due.append((order, answer))
        self.dice.shuffle(found)
        return found

    def note(self, given: Iterable[Any]) -> None:
        for one in given:
            for group in one.groups:
                match one:
                    case Hold() | Route():
                        self.due.append((one.order, None))
                    case Prefetch():
                        self.due.append((one.order, events.CaughtUp(one.order, group, one.host)))
                    case Forward():
                        self.due.append((one.order, events.Forwarded(one.order, group)))
                    case Install():
                        self.due.append((one.order, events.Installed(one.order, group, one.host)))
                    case Release():
                        self.due.append((one.order, events.Released(one.order, group)))

    def lines(self) -> Iterator[str]:
        for turn in range(60):
            kind = self.dice.random()
            if turn == 0 or kind < (0.25 if not self.migration.running else 0.04):
                now = [self.request()]
            elif kind < 0.5:
                now = [self.boundary()]
            elif kind < 0.53:
                now = [self.lost()]
            elif kind < 0.63:
                now = [self.strange()]
            elif kind < 0.68 and self.due and self.due[-1][0] is not None:
                now = [events.Failed(self.due[-1][0], "no room")]
            else:
                now = self.answers()
            for event in now:
                yield f"{event}"
                try:
                    given = self.migration.handle(event)
                except (ConfigError, ProtocolError) as error:
                    yield f"    refused: {str(error)[:150]}"
                    continue
                self.note(given)
                yield from (f"    {one}" for one in given)
            if turn % 15 == 14:
                kept = self.migration.to_dict()
                yield f"  {kept}"
                self.migration = Migration.from_dict(kept)
                assert self.migration.to_dict() == kept
                again = self.migration.resume()
                self.note(again)
                yield from (f"    again: {one}" for one in again)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_instructions_are_as_recorded(strategy: str, recorded: Recorded) -> None:
    name = "".join(c if c.isalnum() else "-" for c in strategy).strip("-") or "default"
    recorded(name, [line for seed in (1, 2) for line in Play(seed, strategy).lines()])


def test_an_assignment_comes_back_from_plain_data() -> None:
    for made in (Assignment((0, 1), 2, 5), Assignment((0, 1, 2), 3, 5, {0: (0, 2)})):
        assert assignment_of(plain(made)) == made
        assert ("split" in plain(made)) is bool(made.split)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("owners", [0, 9], "key group 1 is assigned to slot 9"),
        ("owners", [1, 1], "ended between two assignments"),
        ("target", plain(Assignment((1, 1), 2, 0)), "at rest on the way"),
    ],
)
def test_data_that_contradicts_itself_is_not_taken(key: str, value: Any, says: str) -> None:
    kept = Migration(Assignment((0, 1), 2, 0)).to_dict()
    assert Migration.from_dict(kept).to_dict() == kept
    with pytest.raises((AssertionError, ConfigError), match=says):
        Migration.from_dict({**kept, key: value})
