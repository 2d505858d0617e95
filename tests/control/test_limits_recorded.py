"""What wraps a law lets through of drawn wishes, and replicas that events are sent to: as recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from control_views import shown, view

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.decorators import (
    ActionLimit,
    AdviseOnly,
    Cooldown,
    Freezable,
    Hysteresis,
    involved,
)
from headgate.control.estimators import grouping
from headgate.control.observation import Observation, OperatorView
from headgate.control.policy import Policy
from headgate.core.assignment import Assignment

Recorded = Callable[[str, Iterable[str]], None]


class Wishes:
    """Wants a change of some operators, mostly the kind of the cycle before."""

    name = "wishes"

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.before, self.heard = dice, "more", []

    def decide(self, observation: Observation) -> Decision:
        changes = {}
        self.before = (
            self.before if self.dice.random() < 0.6 else self.dice.choice(["more", "move", "fewer"])
        )
        for name, of in observation.operators.items():
            if self.dice.random() < 0.7 and (change := self.change(of)):
                changes[name] = change
        return Decision(changes, "A wish.", "wish") if changes else NOTHING

    def change(self, of: OperatorView) -> Change | None:
        """Return a change that a slot or two have a part in, one of which may get another number."""
        now, slots = of.assignment, of.slots
        at, group = self.dice.randrange(slots), self.dice.randrange(now.key_groups)
        owners = list(now.slot_of)
        if self.before == "more" and slots < 5:
            owners[group] = slots
            made = Assignment(tuple(owners), slots + 1, now.epoch + 1)
            return Change(ChangeKind.SCALE_OUT, made, (*range(slots), None))
        if self.before == "fewer" and slots > 1:
            survivors = [n for n in range(slots) if n != at]
            number = {old: new for new, old in enumerate(survivors)}
            owners = [number.get(slot, 0) for slot in owners]
            return Change(
                ChangeKind.SCALE_IN,
                Assignment(tuple(owners), slots - 1, now.epoch + 1),
                tuple(survivors),
            )
        if self.before == "move" and slots > 1:
            owners[group] = (owners[group] + 1) % slots
            return Change(
                ChangeKind.BALANCE,
                Assignment(tuple(owners), slots, now.epoch + 1),
                tuple(range(slots)),
            )
        return None

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        self.heard.append(f"applied {took_s:g} s")

    def slot_failed(self, operator: str, slot_id: int) -> None:
        self.heard.append(f"failed {slot_id}")


WRAPPED: dict[str, Callable[[Policy], Policy]] = {
    "hysteresis": lambda law: Hysteresis(law, 3),
    "cool-down": lambda law: Cooldown(law, 4.0),
    "action-limit": lambda law: ActionLimit(law, 3),
    "all": lambda law: ActionLimit(Cooldown(Hysteresis(law, 2), 2.0), 6),
    "advice": lambda law: AdviseOnly(Freezable(law)),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_let_through_of_drawn_wishes(name: str, recorded: Recorded) -> None:
    """Two operators; what is let through is in force two seconds later."""
    dice, lines = random.Random(61), []
    wishes = Wishes(dice)
    law = WRAPPED[name](wishes)
    views = {
        op: view([1.0] * 5, assignment=Assignment((0, 0, 1, 1, 1), 2)) for op in ("up", "down")
    }
    ids, fresh, under_way = {op: (0, 1) for op in views}, 2, {}
    for cycle in range(100):
        time_s = 2.0 * cycle
        for op, change in under_way.items():
            ids[op] = tuple(
                fresh + n if old is None else ids[op][old] for n, old in enumerate(change.survivors)
            )
            fresh += 9
            views[op] = view([1.0] * 5, assignment=change.assignment)
            law.applied(op, change, 2.0)
        if cycle % 30 == 29:
            law.slot_failed("up", ids["up"][0])
        if isinstance(law, AdviseOnly) and cycle % 20 in (5, 12):
            inner = law._policy
            assert isinstance(inner, Freezable)
            inner.freeze(time_s + 40.0) if cycle % 20 == 5 else inner.thaw()
            law.on = cycle % 40 < 20
        seen = {
            op: replace(of, slot_ids=ids[op])
            for op, of in views.items()
            if cycle % 17 != 16 or op == "up"
        }
        found = law.decide(Observation(time_s, seen))
        under_way = dict(found.changes) if found else {}
        if found.rule:
            lines.append(f"{time_s:g} {found.rule}: {found.reason} {bool(found)}")
        for op, change in found.changes.items():
            stopped = involved(seen[op], change)
            lines.append(
                f"    {op}: {change.kind} {change.assignment.slot_of} {change.survivors} stops {stopped}"
            )
    recorded(f"let-through-{name}", [law.name, *lines, *wishes.heard[-4:]])


def test_events_of_drawn_batches_are_sent_to_replicas(recorded: Recorded) -> None:
    """Against the plain way, which sends one event after the other to the least loaded replica."""
    dice, lines = random.Random(62), []
    for number in range(60):
        replicas, events = dice.randint(1, 5), dice.choice([0, 1, 2, 7, 30])
        load = np.array(
            [dice.choice([0.0, 0.25, 0.5, 1.0, 1.25, dice.random()]) for _ in range(replicas)]
        )
        step = dice.choice([0.25, 0.0625, 0.03])
        sent = grouping.load_aware(events, load, step, dice.randrange(replicas))
        each_s = np.array([dice.choice([0.5, 1.0, 0.75]) for _ in range(replicas)])
        work_s = 4.0 * load
        fewest = grouping.least_work(events, work_s, each_s)
        slow, plain = work_s.copy(), []
        for _ in range(events):
            plain.append(int(np.argmin(slow)))
            slow[plain[-1]] += each_s[plain[-1]]
        assert fewest.replica.tolist() == plain
        turn = grouping.round_robin(events, replicas, dice.randrange(replicas))
        lines.append(
            f"{number} {events} at {step:g}: {shown([sent.replica, sent.load, sent.cursor])} "
            f"{shown([turn.replica[:3], turn.cursor])} {shown([fewest.replica[:9], fewest.load])} "
            f"{shown(grouping.utilisation(load * 9.0, 0.1, 0.5))}"
        )
    recorded("events-to-replicas", lines)
