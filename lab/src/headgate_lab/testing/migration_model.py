"""Carries out the six instructions in a small engine in memory, and detects wrong answers.

The engine obeys: it moves state and records as the instructions say, and serves all records that it may.
So a protocol with a wrong or early instruction loses, duplicates or reorders a record. Each record has
its number within its key, and the number of watermarks before it; a slot that serves the record compares
both with the key group's state. The engine is deterministic: all chance comes from its random number
generator.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headgate.core.assignment import Assignment
from headgate.migration import events, instructions
from headgate.migration.events import Event
from headgate.migration.instructions import Instruction
from headgate.migration.strategy import UNBOUNDED
from headgate_lab.testing.deferral import Deferral, Entry

Record = tuple[int, int, int]
"""Key, number within the key, watermarks before the record; a watermark is (-1, its number, 0)."""

KEYS_PER_GROUP = 3
_QUOTA = 6
_FIXED_BYTES = 1
_BYTES_PER_BATCH = 20


class WrongAnswer(AssertionError):
    """Reports a record that was lost, duplicated, reordered or served by the wrong slot."""


Place = TypeVar("Place", tuple[str, int], tuple[int, int])
Held = TypeVar("Held")


def _drop(owned: dict[Place, Held], unwanted: Callable[[Place], bool]) -> None:
    for place in [place for place in owned if unwanted(place)]:
        del owned[place]


@dataclass
class Copy:
    """Holds the state of a key group on one host.

    Attributes
    ----------
    version : int
        Number of changelog sections that the copy contains.
    last : dict of int to int
        Key -> number of the last record served.
    watermark : int
        Number of watermarks passed.
    """

    version: int = 0
    last: dict[int, int] = field(default_factory=dict)
    watermark: int = 0


@dataclass
class Transfer:
    """Describes a prefetch or an install under way.

    Attributes
    ----------
    resume : bool
        `Install.resume`; False for a prefetch.
    """

    order: int
    left_bytes: int
    resume: bool = False


@dataclass
class Durable:
    """Holds the state that survives the driver, in each commit.

    Attributes
    ----------
    owner : list of int
        Slot by key group.
    hosts : list of str
        Host by slot.
    active : list of (str or None)
        By key group, the host on which its state is active.
    fence : dict of int to int
        Key group -> highest order seen.
    pending : dict of int to Hold or Route
        Key group -> instruction that comes into force at the next boundary.
    in_force : dict of int to int
        Key group -> order of the newest hold or route in force.
    queues : list of deque of Entry
        Input by slot.
    deferrals : list of Deferral
        Deferred records by slot.
    set_aside : dict of (int, int) to list of Entry
        (Slot, key group) -> records that wait at a slot that no longer owns the group.
    since : list of int
        By key group, the first watermark that comes to it by its owner's input.
    log : list of list of (dict of int to int, int)
        By key group: per section the changed keys and the watermark after the section.
    sent : dict of int to int
        Key -> number of records sent.
    """

    owner: list[int]
    hosts: list[str]
    active: list[str | None]
    queues: list[deque[Entry[Record]]]
    deferrals: list[Deferral[Record]]
    since: list[int]
    log: list[list[tuple[dict[int, int], int]]]
    held: set[int] = field(default_factory=set)
    fence: dict[int, int] = field(default_factory=dict)
    pending: dict[int, instructions.Hold | instructions.Route] = field(default_factory=dict)
    in_force: dict[int, int] = field(default_factory=dict)
    set_aside: dict[tuple[int, int], list[Entry[Record]]] = field(default_factory=dict)
    boundary: int = 0
    watermarks: int = 0
    sent: dict[int, int] = field(default_factory=dict)

    def copied(self) -> Durable:
        """Return a copy that shares no mutable data."""
        return replace(
            self,
            owner=list(self.owner),
            hosts=list(self.hosts),
            active=list(self.active),
            queues=[deque(queue) for queue in self.queues],
            deferrals=[Deferral(d.capacity, deque(d.entries)) for d in self.deferrals],
            since=list(self.since),
            log=[list(sections) for sections in self.log],
            held=set(self.held),
            fence=dict(self.fence),
            pending=dict(self.pending),
            in_force=dict(self.in_force),
            set_aside={place: list(entries) for place, entries in self.set_aside.items()},
            sent=dict(self.sent),
        )


class ModelEngine:
    """Serves keyed records batch by batch, by slots on hosts.

    Parameters
    ----------
    hosts : sequence of str
        Host by slot, also for slots that later assignments add.
    chance : random.Random
    sizes : sequence of int
        By key group, bytes of its state in addition to its keys; 0 is allowed.
    failing : float
        Probability that a transfer fails in a batch.
    full : set of str
        Hosts on which every transfer fails.

    Attributes
    ----------
    durable : Durable
        Survives the driver; `restore` replaces it.
    copies : dict of (str, int) to Copy
        By host and key group; lost with the host.
    prefetches, installs : dict of (str, int) to Transfer
        By host and key group; lost with the host or the driver.
    told : list of Event
        Events that have not been taken yet.
    served : int
        Number of records served.
    """

    def __init__(
        self,
        assignment: Assignment,
        hosts: Sequence[str],
        chance: random.Random,
        *,
        sizes: Sequence[int] = (),
        failing: float = 0.0,
        full: Set[str] = frozenset(),
    ) -> None:
        groups, slots = assignment.key_groups, len(hosts)
        self.durable = Durable(
            owner=list(assignment.slot_of),
            hosts=list(hosts),
            active=[hosts[slot] for slot in assignment.slot_of],
            queues=[deque() for _ in range(slots)],
            deferrals=[Deferral(UNBOUNDED) for _ in range(slots)],
            since=[0] * groups,
            log=[[] for _ in range(groups)],
        )
        self.copies = {(hosts[slot], g): Copy() for g, slot in enumerate(assignment.slot_of)}
        self.prefetches: dict[tuple[str, int], Transfer] = {}
        self.installs: dict[tuple[str, int], Transfer] = {}
        self.told: list[Event] = []
        self.served = 0
        self._chance = chance
        self._sizes = list(sizes) or [_FIXED_BYTES] * groups
        self.failing = failing
        self._full = full
        self._names = 0

    # The six instructions.

    def carry_out(self, instruction: Instruction) -> None:
        """Carry out an instruction, for the key groups that have not seen a later one."""
        fence = self.durable.fence
        groups = [g for g in instruction.groups if fence.get(g, -1) <= instruction.order]
        for group in groups:
            fence[group] = instruction.order
            match instruction:
                case instructions.Hold() | instructions.Route():
                    if self.durable.in_force.get(group) != instruction.order:
                        self.durable.pending[group] = instruction
                case instructions.Prefetch():
                    self._prefetch(instruction, group)
                case instructions.Forward():
                    self._forward(instruction, group)
                case instructions.Install():
                    self._install(instruction, group)
                case instructions.Release():
                    self._release(instruction, group)

    def _prefetch(self, instruction: instructions.Prefetch, group: int) -> None:
        place = instruction.host, group
        if place[0] in self.durable.hosts and place not in self.installs:
            left = self._left_bytes(self.prefetches, place)
            self.prefetches[place] = Transfer(instruction.order, left)

    def _forward(self, instruction: instructions.Forward, group: int) -> None:
        self._hand_over(group, instruction.source, instruction.destination)
        self.told.append(events.Forwarded(instruction.order, group))

    def _install(self, instruction: instructions.Install, group: int) -> None:
        place = instruction.host, group
        if place[0] in self.durable.hosts:
            # An install continues a prefetch under way.
            started = self.prefetches.pop(place, None)
            if started is not None:
                self.installs[place] = started
            left = self._left_bytes(self.installs, place)
            self.installs[place] = Transfer(instruction.order, left, instruction.resume)

    def _release(self, instruction: instructions.Release, group: int) -> None:
        state = self.durable
        state.held.discard(group)
        state.pending.pop(group, None)
        _drop(self.copies, lambda place: place[1] == group and place[0] != self._host(group))
        _drop(self.prefetches, lambda place: place[1] == group)
        _drop(self.installs, lambda place: place[1] == group)
        _drop(state.set_aside, lambda place: place[1] == group)
        self.told.append(events.Released(instruction.order, group))

    # A batch.

    def batch(self, records: int, *, watermark: bool) -> None:
        """Pass a boundary, receive `records` and perhaps a watermark, serve, and transfer state."""
        self._pass_boundary()
        self._receive(records, watermark=watermark)
        self._serve()
        self._transfer()

    def _pass_boundary(self) -> None:
        state = self.durable
        for group, instruction in state.pending.items():
            if isinstance(instruction, instructions.Hold):
                state.held.add(group)
            else:
                self._switch(group, instruction)
            state.in_force[group] = instruction.order
        state.pending.clear()
        state.boundary += 1
        in_force = frozenset(state.in_force.values())
        self.told.append(events.Boundary(state.boundary, in_force, tuple(state.hosts)))

    def _switch(self, group: int, route: instructions.Route) -> None:
        state = self.durable
        old, new = state.owner[group], route.slot
        state.owner[group] = new
        state.deferrals[new].capacity = route.deferred_max
        _drop(self.installs, lambda place: place[1] == group)
        self._take_aside(group, old)
        if state.active[group] == state.hosts[new]:
            self._hand_over(group, old, new)
        else:
            state.active[group] = None

    def _take_aside(self, group: int, slot: int) -> None:
        """Move the waiting records of a group, and its watermarks, from a slot's input to `set_aside`."""
        state = self.durable
        waiting = state.deferrals[slot].withdraw(group)
        kept: deque[Entry[Record]] = deque()
        for entry in state.queues[slot]:
            if entry.group == group:
                waiting.append(entry)
                continue
            kept.append(entry)
            if entry.group is None and entry.record[1] >= state.since[group]:
                waiting.append(Entry(group, entry.record))
        state.queues[slot] = kept
        state.since[group] = state.watermarks
        state.set_aside.setdefault((slot, group), []).extend(waiting)

    def _hand_over(self, group: int, source: int, destination: int) -> None:
        state = self.durable
        waiting = state.set_aside.pop((source, group), [])
        waiting += state.deferrals[destination].withdraw(group)
        state.queues[destination].extendleft(reversed(waiting))

    def _receive(self, records: int, *, watermark: bool) -> None:
        state = self.durable
        groups = len(state.owner)
        for _ in range(records):
            group = self._chance.randrange(groups)
            key = group * KEYS_PER_GROUP + self._chance.randrange(KEYS_PER_GROUP)
            self.send(key)
        if watermark:
            entry: Entry[Record] = Entry(None, (-1, state.watermarks, 0))
            for queue in state.queues:
                queue.append(entry)
            state.watermarks += 1

    def send(self, key: int) -> None:
        """Send the next record of `key` to the slot that owns its group."""
        state = self.durable
        number = state.sent.get(key, 0)
        state.sent[key] = number + 1
        group = key // KEYS_PER_GROUP
        entry = Entry[Record](group, (key, number, state.watermarks))
        state.queues[state.owner[group]].append(entry)

    def _serve(self) -> None:
        state = self.durable
        owned: list[list[int]] = [[] for _ in state.hosts]
        for group, slot in enumerate(state.owner):
            owned[slot].append(group)
        changed: dict[int, dict[int, int]] = {}
        for slot, groups in enumerate(owned):
            unready = {g for g in groups if not self._ready(g, slot)}
            for _ in range(_QUOTA):
                entry = state.deferrals[slot].take(state.queues[slot], unready)
                if entry is None:
                    break
                self._serve_one(entry, slot, groups, changed)
            self._demand(slot, unready)
        for group, keys in changed.items():
            state_of = self._state(group)
            state.log[group].append((keys, state_of.watermark))
            state_of.version += 1

    def _demand(self, slot: int, unready: Set[int]) -> None:
        """Report the key groups without active state for which a record waits."""
        state = self.durable
        waiting = {e.group for e in (*state.queues[slot], *state.deferrals[slot].entries)}
        for group in sorted(unready):
            if group in waiting and state.active[group] is None:
                self.told.append(events.Demanded(group))

    def _ready(self, group: int, slot: int) -> bool:
        state = self.durable
        return group not in state.held and state.active[group] == state.hosts[slot]

    def _host(self, group: int) -> str:
        return self.durable.hosts[self.durable.owner[group]]

    def _state(self, group: int) -> Copy:
        """Return the copy from which the owner of a key group serves."""
        place = self._host(group), group
        if place not in self.copies:
            raise WrongAnswer(f"key group {group} is served on host {place[0]} without its state")
        return self.copies[place]

    def _serve_one(
        self,
        entry: Entry[Record],
        slot: int,
        groups: Iterable[int],
        changed: dict[int, dict[int, int]],
    ) -> None:
        state = self.durable
        key, number, watermarks = entry.record
        if key < 0:
            concerned = groups if entry.group is None else [entry.group]
            for group in concerned:
                if entry.group is not None or number >= state.since[group]:
                    self._pass_watermark(group, number, changed)
            return
        group = key // KEYS_PER_GROUP
        if state.owner[group] != slot:
            raise WrongAnswer(f"slot {slot} serves key group {group}, which it does not own")
        state_of = self._state(group)
        expected = state_of.last.get(key, -1) + 1
        if number != expected:
            raise WrongAnswer(f"key {key}: record {number} was served where {expected} is due")
        if watermarks != state_of.watermark:
            raise WrongAnswer(
                f"key {key}: record {number}, of watermark {watermarks}, was served "
                f"after {state_of.watermark}"
            )
        state_of.last[key] = number
        changed.setdefault(group, {})[key] = number
        self.served += 1

    def _pass_watermark(self, group: int, number: int, changed: dict[int, dict[int, int]]) -> None:
        state_of = self._state(group)
        if number != state_of.watermark:
            raise WrongAnswer(
                f"key group {group}: watermark {number} came where {state_of.watermark} is due"
            )
        state_of.watermark += 1
        changed.setdefault(group, {})

    # State between hosts.

    def _left_bytes(
        self, transfers: dict[tuple[str, int], Transfer], place: tuple[str, int]
    ) -> int:
        """Return the remaining bytes of a transfer under way, or of one that starts now."""
        if place in transfers:
            return transfers[place].left_bytes
        host, group = place
        have = self.copies.get((host, group))
        log = self.durable.log[group]
        if have is None:
            return self._sizes[group] + sum(len(keys) for keys, _ in log)
        return sum(len(keys) for keys, _ in log[have.version :])

    def _transfer(self) -> None:
        for place, transfer in list(self.prefetches.items()):
            if self._moved(self.prefetches, place, transfer):
                self.told.append(events.CaughtUp(transfer.order, place[1], place[0]))
        for place, transfer in list(self.installs.items()):
            if self._moved(self.installs, place, transfer):
                self._activate(place, transfer)

    def _moved(
        self,
        transfers: dict[tuple[str, int], Transfer],
        place: tuple[str, int],
        transfer: Transfer,
    ) -> bool:
        """Move some bytes; return whether the transfer has ended."""
        if place[0] in self._full or self._chance.random() < self.failing:
            del transfers[place]
            self.told.append(events.Failed(transfer.order, f"no room on host {place[0]}"))
            return False
        transfer.left_bytes -= _BYTES_PER_BATCH
        if transfer.left_bytes > 0:
            return False
        del transfers[place]
        self._catch_up(*place)
        return True

    def _catch_up(self, host: str, group: int) -> None:
        """Apply the sections that the copy on `host` does not have yet."""
        have = self.copies.setdefault((host, group), Copy())
        log = self.durable.log[group]
        for keys, watermark in log[have.version :]:
            have.last.update(keys)
            have.watermark = watermark
        have.version = len(log)

    def _activate(self, place: tuple[str, int], transfer: Transfer) -> None:
        host, group = place
        if host != self._host(group):
            return
        self.durable.active[group] = host
        if transfer.resume:
            self.durable.held.discard(group)
        self.told.append(events.Installed(transfer.order, group, host))

    # Faults.

    def lose_host(self, host: str, others: Sequence[str]) -> None:
        """Remove a host with its memory; each of its slots moves to a new host or to one of `others`."""
        state = self.durable
        for slot, where in enumerate(state.hosts):
            if where == host:
                self._names += 1
                state.hosts[slot] = self._chance.choice([f"new{self._names}", *others])
        _drop(self.copies, lambda place: place[0] == host)
        _drop(self.prefetches, lambda place: place[0] == host)
        _drop(self.installs, lambda place: place[0] == host)
        for group, serving in enumerate(state.active):
            if serving == host:
                state.active[group] = self._host(group)
                self._catch_up(self._host(group), group)
        self.told.append(events.HostLost(state.boundary, host, tuple(state.hosts)))

    def commit(self) -> Durable:
        """Return the state that a restart finds."""
        return self.durable.copied()

    def restore(self, durable: Durable) -> None:
        """Go back to a commit, as a new driver; transfers under way and events are lost.

        Copies that no owner uses are deleted, so that an install starts from the beginning.
        """
        self.durable = durable.copied()
        self.prefetches.clear()
        self.installs.clear()
        self.told.clear()
        log, active = self.durable.log, self.durable.active
        _drop(self.copies, lambda place: active[place[1]] != place[0])
        _drop(self.copies, lambda place: self.copies[place].version > len(log[place[1]]))
        for group, serving in enumerate(active):
            if serving is not None:
                self._catch_up(serving, group)

    # What must hold.

    def check_rest(self, wanted: Sequence[int]) -> None:
        """Raise WrongAnswer unless all records are served, by `wanted`, and no migration is left.

        Parameters
        ----------
        wanted : sequence of int
            Expected slot of each key group.
        """
        state = self.durable
        if state.owner != list(wanted):
            raise WrongAnswer(f"records go to {state.owner}, wanted {list(wanted)}")
        left: dict[str, Any] = {
            "held": state.held,
            "pending": state.pending,
            "prefetches": self.prefetches,
            "installs": self.installs,
            "set aside": state.set_aside,
            "deferred": [d.entries for d in state.deferrals if d.entries],
            "queued": [q for q in state.queues if q],
            "copies": [p for p in self.copies if p[0] != self._host(p[1])],
        }
        for what, found in left.items():
            if found:
                raise WrongAnswer(f"left over: {what}: {found}")
        for key, sent in state.sent.items():
            group = key // KEYS_PER_GROUP
            last = self._state(group).last.get(key, -1)
            if last + 1 != sent:
                raise WrongAnswer(f"key {key}: {sent} records sent, {last + 1} in its state")
