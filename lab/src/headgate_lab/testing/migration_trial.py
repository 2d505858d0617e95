"""Runs migrations under faults: each seed is one run of the protocol against the model engine.

The seed determines assignments, hosts, strategy, arrivals, sizes of state, and the faults: messages lost,
duplicated, late and out of order, in both directions; lost hosts; failed transfers; a driver that dies
and resumes from the last commit; second requests. Then the faults stop, and the migration must end with
the right answer.

``python -m headgate_lab.testing.migration_trial SEED`` replays a seed.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headgate.core.assignment import Assignment, rescale, spread
from headgate.core.errors import ProtocolError
from headgate.migration.events import Cause, Event, Failed, Requested
from headgate.migration.instructions import Instruction
from headgate.migration.plan import uniform
from headgate.migration.protocol import Migration
from headgate_lab.testing.migration_model import Durable, ModelEngine, WrongAnswer

STRATEGIES = (
    "all-at-once",
    "fluid",
    "on-demand",
    "shared",
    "stop-restart",
    "subscale",
    "subscale(early_route=true)",
    "subscale(decoupling=false)",
    "subscale(scheduling=false)",
    "subscale(division=false)",
    "subscale(share=false, groups_min=1, per_host=1)",
    "subscale(groups_min=1, deferred=2)",
)

_STEPS_MAX = 600
_REQUEST_STEP = 5

M = TypeVar("M")


@dataclass(frozen=True)
class Faults:
    """Describes the faults of a trial.

    Parameters
    ----------
    lost, doubled, late : float
        Probabilities for each message, in either direction; a late message comes up to five batches
        later, in any place of the sequence.
    failing : float
        Probability that a transfer fails in a batch.
    full : frozenset of str
        Hosts on which every transfer fails, to the end.
    host_losses : dict of int to int
        Step -> slot whose host is lost then.
    crashes : frozenset of int
        Numbers of the driver's actions at which it dies (a batch, an event, an instruction).
    """

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    failing: float = 0.0
    full: frozenset[str] = frozenset()
    host_losses: dict[int, int] = field(default_factory=dict)
    crashes: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Case:
    """Describes one run.

    Parameters
    ----------
    seed : int
        Seed of arrivals and faults.
    hosts : tuple of str
        Hosts by slot, for the slots of all requests.
    requests : dict of int to Assignment
        Step -> assignment requested by hand then; the first request starts the migration.
    sizes : tuple of int
        Bytes of state by key group.
    records_max : int
        Most records per batch.
    steps : int
        Batches in which records arrive, and messages and transfers may fail.
    """

    seed: int
    strategy: str
    old: Assignment
    hosts: tuple[str, ...]
    requests: dict[int, Assignment]
    sizes: tuple[int, ...] = ()
    faults: Faults = Faults()
    records_max: int = 12
    steps: int = 40


class _Crash(Exception):
    """Signals that the driver dies."""


class _Channel(Generic[M]):
    """Delivers messages in one direction, with faults."""

    def __init__(self, chance: random.Random, case: Case, fired: Counter[str]) -> None:
        self._chance = chance
        self._case = case
        self._fired = fired
        self._waiting: list[tuple[int, int, M]] = []
        self._sent = 0

    def send(self, message: M, step: int) -> None:
        """Send a message, which is delivered never, once or twice."""
        faults = self._case.faults if step < self._case.steps else Faults()
        count = 1
        if self._chance.random() < faults.lost:
            self._fired["lost"] += 1
            count = 0
        elif self._chance.random() < faults.doubled:
            self._fired["doubled"] += 1
            count = 2
        for _ in range(count):
            late = self._chance.random() < faults.late
            self._fired["late"] += late
            due = step + (self._chance.randint(0, 5) if late else 0)
            place = self._chance.randrange(self._sent + 1) if late else self._sent
            self._sent += 1
            self._waiting.append((due, place, message))

    def due(self, step: int) -> list[M]:
        """Return the messages that are delivered now, in sequence."""
        now = [entry for entry in self._waiting if entry[0] <= step]
        self._waiting = [entry for entry in self._waiting if entry[0] > step]
        return [message for _, _, message in sorted(now, key=lambda entry: entry[:2])]

    def clear(self) -> None:
        """Lose all messages."""
        self._waiting.clear()


class Trial:
    """Runs a case.

    Attributes
    ----------
    engine : ModelEngine
    migration : Migration
    actions : int
        Batches, events handled and instructions carried out so far.
    step : int
    fired : Counter of str
        Number of faults of each kind.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self._chance = random.Random(case.seed)
        self.engine = ModelEngine(
            case.old,
            case.hosts,
            self._chance,
            sizes=case.sizes,
            failing=case.faults.failing,
            full=case.faults.full,
        )
        self.migration = Migration(case.old)
        self.actions = 0
        self.step = 0
        self.fired: Counter[str] = Counter()
        self._events = _Channel[Event](self._chance, case, self.fired)
        self._instructions = _Channel[Instruction](self._chance, case, self.fired)
        self._crashes = set(case.faults.crashes)
        self._story = hashlib.sha256()
        self._requests = dict(case.requests)
        self._commit = self._committed()

    def run(self) -> str:
        """Run until the migration has ended, and return a digest of all events and instructions.

        Raises
        ------
        WrongAnswer
            An answer is wrong, or the migration does not end.
        """
        while not self._at_rest():
            if self.step > _STEPS_MAX:
                raise WrongAnswer(f"no rest after {_STEPS_MAX} batches: {self.migration.to_dict()}")
            try:
                self._batch()
                self._exchange()
            except _Crash:
                self._recover()
            self.step += 1
        self._check()
        return self._story.hexdigest()

    def _at_rest(self) -> bool:
        done = self.step > max(self.case.steps, *self.case.requests) and not self._requests
        state = self.engine.durable
        waiting = any(state.queues) or any(d.entries for d in state.deferrals)
        return done and not self.migration.running and not waiting and not state.pending

    def _batch(self) -> None:
        if self.step == self.case.steps:
            self.engine.failing = 0.0
        if self.step in self.case.faults.host_losses:
            slot = self.case.faults.host_losses[self.step]
            hosts = self.engine.durable.hosts
            others = set(hosts) - {hosts[slot]} - self.case.faults.full
            self.engine.lose_host(hosts[slot], sorted(others))
            self.fired["host lost"] += 1
        more = self._chance.randint(0, self.case.records_max) if self.step < self.case.steps else 0
        self.engine.batch(more, watermark=self.step % 3 == 0)
        self._act()
        self._commit = self._committed()
        self._act()

    def _exchange(self) -> None:
        for event in self.engine.told:
            self.fired["transfer failed"] += isinstance(event, Failed)
            self._events.send(event, self.step)
        self.engine.told.clear()
        for event in self._events.due(self.step):
            self._handle(event)
        for step in sorted(s for s in self._requests if s <= self.step):
            self._ask(step)
        for instruction in self._instructions.due(self.step):
            self._story.update(repr(instruction).encode())
            self.engine.carry_out(instruction)
            self._act()

    def _handle(self, event: Event) -> None:
        self._story.update(repr(event).encode())
        self._send(self.migration.handle(event))
        self._act()

    def _ask(self, step: int) -> None:
        """Request a change by hand; a refused request is repeated in the next batch."""
        target, hosts = self._requests[step], tuple(self.engine.durable.hosts)
        # After the loss of a host, slots that shared it may be on different hosts.
        apart = self.case.strategy == "shared" and len(set(hosts)) > 1
        strategy = "" if apart else self.case.strategy
        request = Requested(target, hosts, Cause.HAND, strategy=strategy)
        if self.migration.refusal(request) is not None:
            return
        self.fired["superseded"] += self.migration.running
        self._handle(request)
        del self._requests[step]

    def _send(self, given: Sequence[Instruction]) -> None:
        for instruction in given:
            self._instructions.send(instruction, self.step)

    def _act(self) -> None:
        self.actions += 1
        if self.actions in self._crashes:
            self.fired["driver died while migrating"] += self.migration.running
            raise _Crash

    def _committed(self) -> tuple[Durable, str, dict[int, Assignment]] | None:
        if not self.case.faults.crashes:
            return None
        return self.engine.commit(), json.dumps(self.migration.to_dict()), dict(self._requests)

    def _recover(self) -> None:
        assert self._commit is not None
        durable, manifest, self._requests = self._commit
        self._requests = dict(self._requests)
        self._events.clear()
        self._instructions.clear()
        self.engine.restore(durable)
        self.migration = Migration.from_dict(json.loads(manifest))
        self._send(self.migration.resume())

    def _check(self) -> None:
        migration = self.migration
        targets = [target for _, target in sorted(self.case.requests.items())]
        allowed = {targets[-1].slot_of}
        self.fired["went back"] += bool(migration.failed)
        if migration.failed:
            if not (self.case.faults.failing or self.case.faults.full):
                raise WrongAnswer(f"went back without a failure: {migration.failed}")
            # The assignment is that from which the last migration started.
            allowed = {self.case.old.slot_of, *(target.slot_of for target in targets[:-1])}
        if migration.current.slot_of not in allowed:
            raise WrongAnswer(f"ended in {migration.current.slot_of}, wanted {sorted(allowed)}")
        self.engine.check_rest(migration.current.slot_of)


def case(seed: int) -> Case:
    """Return the case of a seed."""
    chance = random.Random(seed)
    groups = chance.choice((1, 2, 3, 5, 8, 12, 16))
    strategy = chance.choice(STRATEGIES)
    host_count = 1 if strategy == "shared" else chance.randint(1, 4)
    old = _assignment(chance, spread(chance.randint(1, min(6, groups)), groups))
    requests = {_REQUEST_STEP: _next(chance, old)}
    if chance.choice((True, False)):
        after = requests[_REQUEST_STEP]
        requests[chance.randint(_REQUEST_STEP + 1, 25)] = _next(chance, after)
    slots = max(old.slots, *(target.slots for target in requests.values()))
    hosts = tuple(f"h{chance.randrange(host_count)}" for _ in range(slots))
    return Case(
        seed=seed,
        strategy=strategy,
        old=old,
        hosts=hosts,
        requests=requests,
        sizes=tuple(chance.choice((0, 1, 10, 90, 400)) for _ in range(groups)),
        faults=_faults(chance, old, hosts),
        records_max=chance.choice((4, 12, 30)),
    )


def _assignment(chance: random.Random, even: Assignment) -> Assignment:
    if chance.choice((True, True, False)):
        return even
    slot_of = tuple(chance.randrange(even.slots) for _ in even.slot_of)
    return Assignment(slot_of, even.slots)


def _next(chance: random.Random, current: Assignment) -> Assignment:
    slots = chance.choice((1, current.key_groups, chance.randint(1, min(6, current.key_groups))))
    kind = chance.choice((rescale, uniform, None))
    if kind is not None:
        return kind(current, slots)
    slot_of = tuple(chance.randrange(slots) for _ in current.slot_of)
    return Assignment(slot_of, slots, current.epoch + 1)


def _faults(chance: random.Random, old: Assignment, hosts: Sequence[str]) -> Faults:
    losses = chance.choice((0, 0, 1, 2))
    only_new = sorted(set(hosts) - {hosts[slot] for slot in range(old.slots)})
    full = chance.choice((only_new[:1], [], []))
    crashes = chance.choice((0, 0, 0, 1, 3))
    return Faults(
        lost=chance.choice((0.0, 0.1, 0.4)),
        doubled=chance.choice((0.0, 0.2, 0.5)),
        late=chance.choice((0.0, 0.2, 0.5)),
        failing=chance.choice((0.0, 0.0, 0.1, 0.4)),
        full=frozenset(full),
        host_losses={
            chance.randrange(_REQUEST_STEP, 30): chance.randrange(len(hosts)) for _ in range(losses)
        },
        crashes=frozenset(chance.randrange(1, 400) for _ in range(crashes)),
    )


def run(case: Case) -> str:
    """Run a case and return its digest.

    Raises
    ------
    WrongAnswer
        An answer is wrong, an invariant is broken, or the migration does not end.
    """
    try:
        return Trial(case).run()
    except (AssertionError, ProtocolError) as error:
        raise WrongAnswer(f"{type(error).__name__}: {error}") from error


def run_seed(seed: int) -> str:
    """Run the case of a seed.

    Raises
    ------
    WrongAnswer
        As `run`; the message has the command that replays the seed.
    """
    try:
        return run(case(seed))
    except WrongAnswer as error:
        replay = f"python -m headgate_lab.testing.migration_trial {seed}"
        raise WrongAnswer(f"{error}\nreplay: {replay}") from error


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(text, run_seed(int(text)))
