"""Simulates a slot, a thread that takes elements from its channels and serves one record at a time."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from headgate_lab.sim.dataflow.behaviours import Behaviour, Held
from headgate_lab.sim.dataflow.channel import ChannelBetween
from headgate_lab.sim.dataflow.clock import Clock
from headgate_lab.sim.dataflow.elements import Barrier, Element, Record, Signal, Watermark
from headgate_lab.sim.dataflow.eventlog import EventLog

OLD_RANK, LAST_RANK = 3, 5
"""Data in transit are replayed by rank, so that no record overtakes an older one of its key. Ranks:
re-routed records that were received (0), under way (1) and in the buffer (2); records in the input caches
of the old slot (3); records that the new slot deferred (4), and in its input caches (5). `OLD_RANK` and
`LAST_RANK` are ranks 3 and 5."""


class Handling(Protocol):
    """Defines the calls of a scaling slot to its handler; see `handler.Handler`."""

    def waits(self) -> bool:
        """Return whether a record at this slot waits for state."""

    def step(self) -> bool:
        """Take one element; return False if none can be taken."""

    def first(self, channel: Channel, signal: Signal) -> None:
        """Handle a priority signal."""

    def ridden(self, channel: Channel, signal: Signal) -> None:
        """Handle a signal that was merged into a checkpoint barrier."""

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Handle a signal in its turn."""

    def watermark(self, channel: Channel, time_s: float) -> None:
        """Handle a watermark, before the slot does."""

    def watermark_of(self, unit: int) -> float:
        """Return the watermark up to which a unit of this slot may emit windows."""

    def output_watermark_s(self) -> float:
        """Return the watermark for the next operator."""

    def in_transit(self) -> dict[int, list[Record]]:
        """Return the records in the handler, by rank."""

    def old_units(self) -> frozenset[int]:
        """Return the units whose records still come here although they are routed elsewhere."""

    def progress(self) -> list[dict[str, Any]]:
        """Return the progress of the subscales that leave this slot."""


class Edge:
    """Sends a slot's output to the slots of one operator.

    Attributes
    ----------
    channels : list of Channel
        Channels by the number of the receiving slot.
    table : list of int
        Unit -> receiving slot; empty if records are distributed round-robin.
    parts : int
        Units per key group.
    """

    def __init__(self, channels: list[Channel], table: list[int], parts: int) -> None:
        self.channels, self.table, self.parts = channels, table, parts
        self._key_groups = len(table) // parts
        self._turn = 0

    def send(self, record: Record) -> None:
        """Push a record to the channel of its key, or to the next channel in turn."""
        if self.table:
            groups = self._key_groups
            record.unit = record.key % groups
            if self.parts > 1:
                record.unit = record.unit * self.parts + record.key // groups % self.parts
            self.channels[self.table[record.unit]].push(record)
        else:
            self._turn = (self._turn + 1) % len(self.channels)
            self.channels[self._turn].push(record)

    def watermark(self, time_s: float) -> None:
        """Send a watermark to every receiver."""
        for channel in self.channels:
            channel.push(Watermark(time_s))

    def barrier(self, number: int) -> None:
        """Send a checkpoint barrier to every receiver, each a new object for merged signals."""
        for channel in self.channels:
            channel.push(Barrier(number))


def _no_records() -> dict[int, list[Record]]:
    return {rank: [] for rank in range(LAST_RANK + 1)}


@dataclass
class Snapshot:
    """Holds a checkpoint of one slot.

    Attributes
    ----------
    values : dict of int to Held
        State by unit.
    in_transit : dict of int to list of Record
        Records received and not served, by rank.
    place : int
        Next arrival of a source; number of outputs of a sink.
    progress : list of dict
        Progress of each subscale (DRRS IV-C).
    leaving : frozenset of int
        Units whose old stream came to this slot.
    """

    values: dict[int, Held] = field(default_factory=dict)
    in_transit: dict[int, list[Record]] = field(default_factory=_no_records)
    place: int = 0
    progress: list[dict[str, Any]] = field(default_factory=list)
    leaving: frozenset[int] = frozenset()

    def join(self, records: Sequence[Record], store: Mapping[int, Held]) -> None:
        """Add records and state that were under way between two slots at the checkpoint."""
        self.in_transit[1].extend(records)
        self.values.update(copy.deepcopy(dict(store)))


class Slot:
    """Simulates one slot of one operator.

    Attributes
    ----------
    name : str
        Operator and number, such as ``count/3``.
    store : dict of int to Held
        The units at this slot.
    edge : Edge or None
        None for a sink, whose output is in `collected`.
    handler : Handling or None
        Handler of a method of scaling; None outside of scaling.
    special : deque of Record or callable
        Re-routed events, taken before the elements of channels.
    full : int
        Number of full output caches; the slot serves no record while it is above 0.
    busy_s : float
        Total service time so far.
    paused : bool
    barrier : int
        Number of the last checkpoint taken.
    suspended_s : list of [float, float]
        Begin and end of each period in which all reachable records waited for state.
    """

    def __init__(
        self,
        name: str,
        index: int,
        behaviour: Behaviour,
        cost_s: float,
        clock: Clock,
        log: EventLog,
    ) -> None:
        self.name, self.index = name, index
        self.behaviour, self.cost_s = behaviour, cost_s
        self.clock, self.log = clock, log
        self.store: dict[int, Held] = {}
        self.inputs: list[Channel] = []
        self.edge: Edge | None = None
        self.handler: Handling | None = None
        self.special: deque[Record | Callable[[], None]] = deque()
        self.available: deque[Channel] = deque()
        self.collected: list[tuple[float, Record]] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.suspended_s: list[list[float]] = []
        self.full = 0
        self.busy_s = 0.0
        self.paused = False
        self.barrier = 0
        self.watermark_s = self.sent_watermark_s = float("-inf")
        self.serving: Record | None = None
        self._mail: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._awake = False
        self._suspended = False
        self._aligning: list[tuple[Channel, Barrier]] = []
        self._recording: dict[Channel, Snapshot] = {}
        self._stateless = Held()

    def wake(self) -> None:
        """Go on until a record is in service, or no element can be taken."""
        if self._awake:
            return
        self._awake = True
        while self.serving is None:
            if self._mail:
                action, arguments = self._mail.popleft()
                action(*arguments)
            elif self.full or self.paused or not self.step():
                break
        self._awake = False
        if self.handler is not None and self.serving is None:
            self._note_suspension(not self.full and not self.paused and self.handler.waits())

    def post(self, action: Callable[..., None], *arguments: object) -> None:
        """Call ``action(*arguments)`` between two records, at once if none is in service."""
        self._mail.append((action, arguments))
        self.wake()

    def step(self) -> bool:
        """Take one element; return whether there was one."""
        if self.special:
            event = self.special.popleft()
            if isinstance(event, Record):
                self.serve(event)
            else:
                event()
            return True
        if self.handler is not None:
            return self.handler.step()
        found = self.next_channel()
        if found is None:
            return False
        self.process(found, found.take())
        return True

    def next_channel(self) -> Channel | None:
        """Return the next channel with an element, in turn; it stays listed if it has more elements."""
        available = self.available
        while available:
            channel = available.popleft()
            if channel.arrived and not channel.blocked:
                if len(channel.arrived) > 1:
                    available.append(channel)
                else:
                    channel.listed = False
                return channel
            channel.listed = False
        return None

    def reached(self, channel: Channel, packet: Sequence[Element]) -> None:
        """Handle the arrival of a packet in a channel's input cache."""
        if channel in self._recording:
            self._record(channel, packet)
        self.offer(channel)
        self.wake()

    def offer(self, channel: Channel) -> None:
        """Add a channel to `available`, if it has an element that may be taken."""
        if channel.arrived and not channel.listed and not channel.blocked:
            channel.listed = True
            self.available.append(channel)

    def receive_first(self, channel: Channel, signal: Signal) -> None:
        """Handle a priority signal, before all waiting elements."""
        if self.handler is not None:
            self.post(self.handler.first, channel, signal)

    def process(self, channel: Channel, element: Element) -> None:
        """Process an element that was taken from a channel."""
        if isinstance(element, Record):
            self.serve(element)
        elif isinstance(element, Watermark):
            # A re-routed copy of a watermark may be older than the channel's own.
            channel.watermark_s = max(channel.watermark_s, element.time_s)
            if self.handler is not None:
                self.handler.watermark(channel, element.time_s)
            self.advance()
        elif isinstance(element, Barrier):
            self._take_barrier(channel, element)
        elif self.handler is not None:
            self.handler.signal(channel, element)

    def serve(self, record: Record) -> None:
        """Begin to serve a record."""
        self._note_suspension(suspended=False)
        self.serving = record
        duration_s = self.cost_s * record.count
        self.busy_s += duration_s
        self.clock.after(duration_s, self._complete, record)

    def _complete(self, record: Record) -> None:
        self.serving = None
        if self.log.every_record and self.store:
            self.log.add(
                self.clock.now_s,
                "served",
                self.name,
                unit=record.unit,
                key=record.key,
                origin=record.origin,
                number=record.number,
            )
        for out in self.behaviour.record(self.store.get(record.unit, self._stateless), record):
            self.emit(out)
        self.wake()

    def emit(self, record: Record) -> None:
        """Send a record on, or collect it at a sink."""
        if self.edge is None:
            self.collected.append((self.clock.now_s, record))
        else:
            self.edge.send(record)

    def advance(self) -> None:
        """Emit the windows that the watermarks of all channels close, and pass the watermark on."""
        now_s = min(channel.watermark_s for channel in self.inputs)
        self.watermark_s = max(self.watermark_s, now_s)
        handler = self.handler
        for unit in list(self.store):
            limit_s = self.watermark_s if handler is None else handler.watermark_of(unit)
            self.fire(unit, limit_s)
        limit_s = self.watermark_s if handler is None else handler.output_watermark_s()
        if limit_s > self.sent_watermark_s:
            self.sent_watermark_s = limit_s
            if self.edge is not None:
                self.edge.watermark(limit_s)

    def fire(self, unit: int, watermark_s: float) -> None:
        """Emit the due windows of one unit."""
        for record in self.behaviour.fire(self.store[unit], watermark_s):
            record.unit = unit
            self.emit(record)

    def _note_suspension(self, suspended: bool) -> None:
        if suspended == self._suspended:
            return
        self._suspended = suspended
        if suspended:
            self.suspended_s.append([self.clock.now_s, float("inf")])
        else:
            self.suspended_s[-1][1] = self.clock.now_s

    # Checkpoints

    def _take_barrier(self, channel: Channel, barrier: Barrier) -> None:
        channel.barrier = barrier.number
        self._recording.pop(channel, None)
        if self.barrier >= barrier.number:
            self._answer(channel, barrier)
            return
        channel.blocked = True
        self._aligning.append((channel, barrier))
        if all(c.barrier >= barrier.number for c in self.inputs):
            self.checkpoint(barrier.number)

    def attach(self, channel: Channel) -> None:
        """Add an input channel, blocked if its sender has passed a checkpoint that this slot has not."""
        self.inputs.append(channel)
        if channel.barrier > self.barrier:
            channel.blocked = True
            self._aligning.append((channel, Barrier(channel.barrier)))

    def merge(self, channel: Channel, signal: Signal) -> bool:
        """Merge a signal into an unanswered barrier of `channel`; return False if there is none."""
        barrier = channel.barrier_ahead()
        for blocked, taken in self._aligning:
            barrier = taken if blocked is channel else barrier
        if barrier is None:
            return False
        barrier.riders.append(signal)
        return True

    def checkpoint(self, number: int) -> None:
        """Take a checkpoint, and handle the signals merged into its barriers.

        If the barrier has not come through every channel yet, the elements before it in these channels
        are data in transit of the checkpoint.
        """
        self.barrier = number
        self.snapshots[number] = self._snapshot()
        self.log.add(self.clock.now_s, "checkpoint", self.name, number=number)
        for channel in self.inputs:
            if channel.barrier < number:
                self._recording[channel] = self.snapshots[number]
                self._record(channel, channel.arrived)
        if self.edge is not None:
            self.edge.barrier(number)
        aligned, self._aligning = self._aligning, []
        for channel, _ in aligned:
            channel.blocked = False
            self.offer(channel)
        for channel, barrier in aligned:
            self._answer(channel, barrier)

    def _answer(self, channel: Channel, barrier: Barrier) -> None:
        for signal in barrier.riders:
            if self.handler is not None:
                self.handler.ridden(channel, signal)

    def _snapshot(self) -> Snapshot:
        place = len(self.collected)
        found = Snapshot(copy.deepcopy(self.store), place=place)
        for event in self.special:
            if isinstance(event, Record):
                found.in_transit[0].append(event)
        if self.handler is not None:
            for rank, records in self.handler.in_transit().items():
                found.in_transit[rank].extend(records)
            found.progress = self.handler.progress()
            found.leaving = self.handler.old_units()
        return found

    def _record(self, channel: Channel, elements: Sequence[Element]) -> None:
        for element in elements:
            if isinstance(element, Barrier):
                self._recording.pop(channel, None)
                return
            if isinstance(element, Record):
                snapshot = self._recording[channel]
                rank = OLD_RANK if element.unit in snapshot.leaving else LAST_RANK
                snapshot.in_transit[rank].append(element)


Channel: TypeAlias = ChannelBetween[Slot]
"""From slot to slot."""
