"""Builds the slots and channels of a job, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headgate.core.assignment import Assignment, spread
from headgate.core.errors import ConfigError
from headgate_lab.sim.dataflow.behaviours import Behaviour, Held, Pass
from headgate_lab.sim.dataflow.channel import ChannelBetween, Network
from headgate_lab.sim.dataflow.clock import Clock
from headgate_lab.sim.dataflow.elements import Record
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.slot import Edge, Slot, Snapshot

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Arrivals:
    """Holds the records of one source slot, and the times at which they are due.

    Attributes
    ----------
    times_s : float64[n]
        Ascending.
    keys : int64[n]
    """

    times_s: F64
    keys: I64


@dataclass(frozen=True)
class OperatorModel:
    """Describes one operator of a job.

    Attributes
    ----------
    cost_s : float
        Service time of a record at a slot; for a source, the least time between two records.
    parents : tuple of str
        Empty for a source.
    key_groups : int
        0 if records are distributed round-robin.
    state_bytes : tuple of float
        Initial state by key group; empty: no state.
    arrivals : tuple of Arrivals
        Arrivals of a source, by slot.
    speeds : tuple of float
        Relative speeds of the slots, repeated in turn: a record takes ``cost_s / speed``.
    """

    name: str
    slots: int
    cost_s: float = 0.0
    behaviour: Behaviour = field(default_factory=Pass)
    parents: tuple[str, ...] = ()
    key_groups: int = 0
    state_bytes: tuple[float, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    speeds: tuple[float, ...] = (1.0,)


@dataclass(frozen=True)
class Job:
    """Describes a job: operators, parents first, each with at most one child.

    Attributes
    ----------
    count : int
        Records per element.
    marker_every : int
        One in `marker_every` elements of a source slot is a marker; 0: none.
    watermark_s : float
        Time between two watermarks of a source; 0: only the last watermark.
    command_s : tuple of float
        Delay of the coordinator's commands to a slot beyond the network's latency, repeated in turn.
    """

    operators: tuple[OperatorModel, ...]
    network: Network = field(default_factory=Network)
    count: int = 1
    marker_every: int = 0
    watermark_s: float = 0.0
    command_s: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for operator in self.operators:
            if not seen.issuperset(operator.parents):
                msg = f"operator {operator.name} comes before its parents; put them first."
                raise ConfigError(msg)
            seen.add(operator.name)


class Source(Slot):
    """Reads arrivals when they are due, or later, as soon as possible (they wait in a log).

    Attributes
    ----------
    place : int
        Number of the next arrival.
    arrivals : Arrivals
    put_out : dict of int to int
        Second -> records emitted: the throughput (DRRS V-A).
    """

    def set_up(self, job: Job, arrivals: Arrivals, place: int = 0) -> None:
        """Prepare to read from arrival number `place` on."""
        # Python numbers: an array would create a new object at every access.
        self._times_s: list[float] = arrivals.times_s.tolist()
        self._keys: list[int] = arrivals.keys.tolist()
        self.place, self.arrivals, self._job = place, arrivals, job
        self.put_out: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        for key in self._keys[:place]:
            self._numbers[key] = self._numbers.get(key, 0) + 1
        self._ended = False
        self._alarm_s = -1.0
        self._marked_s = float("-inf")

    def step(self) -> bool:
        """Read the next arrival if it is due."""
        if self.place >= len(self._times_s):
            if not self._ended and self.edge is not None:
                self.edge.watermark(float("inf"))
            self._ended = True
            return False
        now_s, time_s = self.clock.now_s, self._times_s[self.place]
        if time_s > now_s:
            if self._alarm_s != time_s:
                self._alarm_s = time_s
                self.clock.after(time_s - now_s, self.wake)
            return False
        job = self._job
        if job.watermark_s and time_s - self._marked_s >= job.watermark_s and self.edge:
            self._marked_s = time_s
            self.edge.watermark(time_s)
        key = self._keys[self.place]
        number = self._numbers.get(key, 0)
        self._numbers[key] = number + 1
        self.place += 1
        marker = bool(job.marker_every) and self.place % job.marker_every == 0
        second = int(now_s)
        self.put_out[second] = self.put_out.get(second, 0) + job.count
        self.serve(Record(key, time_s, job.count, 0, marker, self.index, number))
        return True

    def _snapshot(self) -> Snapshot:
        return Snapshot(place=self.place)


class Dataflow:
    """Runs a job's slots and channels on a clock.

    Parameters
    ----------
    parts : mapping of str to int
        Operator -> units per key group: 1, unless its method moves parts of key groups.
    assignments : mapping of str to Assignment, optional
        Initial assignments of keyed operators; the default is equal ranges.
    """

    def __init__(
        self,
        job: Job,
        parts: Mapping[str, int] | None = None,
        log: EventLog | None = None,
        assignments: Mapping[str, Assignment] | None = None,
    ) -> None:
        self.job, self.parts = job, dict(parts or {})
        self.clock, self.log = Clock(), log if log is not None else EventLog()
        self.slots: dict[str, list[Slot]] = {}
        self.models = {operator.name: operator for operator in job.operators}
        self.children = {p: o.name for o in job.operators for p in o.parents}
        self.assignments: dict[str, Assignment] = {}
        for model in job.operators:
            self.slots[model.name] = []
            slots = model.slots
            if model.key_groups:
                given = (assignments or {}).get(model.name) or spread(slots, model.key_groups)
                self.assignments[model.name], slots = given, given.slots
            self.add_slots(model.name, slots)
            for slot, held in zip(self.slots[model.name], self._held(model, slots), strict=True):
                slot.store.update(held)

    def add_slots(self, operator: str, count: int) -> list[Slot]:
        """Start more slots of an operator, with the channels and the routing table of the others."""
        model, slots = self.models[operator], self.slots[operator]
        kind = Slot if model.parents else Source
        added = []
        for index in range(len(slots), len(slots) + count):
            cost_s = model.cost_s / model.speeds[index % len(model.speeds)]
            slot = kind(f"{operator}/{index}", index, model.behaviour, cost_s, self.clock, self.log)
            slots.append(slot)
            added.append(slot)
            self._connect(slot, model)
            if isinstance(slot, Source):
                slot.set_up(self.job, model.arrivals[index])
        return added

    def parents_of(self, operator: str) -> list[Slot]:
        """Return the slots that feed an operator."""
        return [slot for name in self.models[operator].parents for slot in self.slots[name]]

    def upstream_of(self, operator: str) -> list[Slot]:
        """Return the slots of all operators before one, sources first."""
        before: set[str] = set()
        for model in reversed(self.job.operators):
            if model.name == operator or model.name in before:
                before.update(model.parents)
        return [s for m in self.job.operators if m.name in before for s in self.slots[m.name]]

    def sources(self) -> list[Source]:
        """Return the source slots."""
        return [s for slots in self.slots.values() for s in slots if isinstance(s, Source)]

    def sinks(self) -> list[Slot]:
        """Return the slots without a child operator."""
        return [s for slots in self.slots.values() for s in slots if s.edge is None]

    def units(self, operator: str, groups: Sequence[int]) -> tuple[int, ...]:
        """Return the units of some key groups."""
        parts = self.parts.get(operator, 1)
        return tuple(group * parts + part for group in groups for part in range(parts))

    def command(self, slot: Slot, action: Callable[..., None], *arguments: object) -> None:
        """Call an action at a slot, between two records, after the delay of a command.

        Commands to one slot arrive in the order in which they were given.
        """
        offsets = self.job.command_s
        delay_s = self.job.network.latency_s + offsets[slot.index % len(offsets)]
        self.clock.after(delay_s, slot.post, action, *arguments)

    def checkpoint(self, number: int) -> None:
        """Make the sources send checkpoint barrier `number`; numbers ascend from 1."""
        for source in self.sources():
            source.post(source.checkpoint, number)

    def run(self, until_s: float = float("inf")) -> None:
        """Run up to a time, or until no call is scheduled."""
        if self.clock.now_s == 0.0:
            for source in self.sources():
                self.clock.after(0.0, source.wake)
        self.clock.run(until_s)

    def outputs(self) -> list[tuple[float, Record]]:
        """Return the outputs of the sinks, by time."""
        found = [item for slot in self.sinks() for item in slot.collected]
        return sorted(found, key=lambda item: item[0])

    def _connect(self, slot: Slot, model: OperatorModel) -> None:
        network = self.job.network
        parts = self.parts.get(model.name, 1)
        feeding = self.parents_of(model.name)
        slot.barrier = min((parent.barrier for parent in feeding), default=0)
        if slot.barrier:
            slot.snapshots[slot.barrier] = Snapshot()  # the new slot had no state then
        for parent in feeding:
            channel = ChannelBetween(parent, slot, network)
            slot.attach(channel)
            if parent.edge is None:
                parent.edge = Edge([], self._table(model.name), parts)
            parent.edge.channels.append(channel)
        child = self.children.get(model.name)
        if child in self.slots:
            # The child operator exists already: this slot is added by a scale-out.
            slot.edge = Edge([], self._table(child), self.parts.get(child, 1))
            for receiver in self.slots[child]:
                channel = ChannelBetween(slot, receiver, network)
                receiver.attach(channel)
                slot.edge.channels.append(channel)

    def _table(self, operator: str) -> list[int]:
        if operator not in self.assignments:
            return []
        parts = self.parts.get(operator, 1)
        return [slot for slot in self.assignments[operator].slot_of for _ in range(parts)]

    def _held(self, model: OperatorModel, slots: int) -> list[dict[int, Held]]:
        held: list[dict[int, Held]] = [{} for _ in range(slots)]
        if not model.key_groups:
            return held
        parts = self.parts.get(model.name, 1)
        sizes = model.state_bytes or (0.0,) * model.key_groups
        for group, slot in enumerate(self.assignments[model.name].slot_of):
            for unit in self.units(model.name, (group,)):
                held[slot][unit] = Held(sizes[group] / parts)
        return held
