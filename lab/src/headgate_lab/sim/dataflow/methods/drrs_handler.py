"""Handles DRRS at a scaling slot: trigger, confirm, re-routing, and state that is not active yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

from headgate.core.errors import ConfigError
from headgate_lab.sim.dataflow.behaviours import Held
from headgate_lab.sim.dataflow.coordinator import Scaling, Step
from headgate_lab.sim.dataflow.elements import Record, Signal, Watermark
from headgate_lab.sim.dataflow.handler import Handler, Verdict
from headgate_lab.sim.dataflow.slot import Channel, Slot

NEVER_S = float("-inf")

Sent = tuple[Slot, Record | Watermark | Signal]
"""The predecessor that sent an element, and the element."""


@dataclass(frozen=True)
class Rerouting:
    """Names the moments at which the re-route manager sends its records on (DRRS IV-A).

    Parameters
    ----------
    records : int
        Number of held records at which they are sent; >= 1. 256 in DRRS's code.
    timeout_s : float
        Longest time that a record is held. 1 s in DRRS's code.
    cost_s : float
        Time of a record at the slot that re-routes it.
    """

    records: int = 256
    timeout_s: float = 1.0
    cost_s: float = 0.0

    def __post_init__(self) -> None:
        if self.records < 1:
            msg = f"rerouting: records={self.records} is out of range; use 1 or more."
            raise ConfigError(msg)


class Order(Enum):
    """Names the conditions, besides state, for serving records of the new stream.

    *ALL*: every predecessor has confirmed (implicit alignment, DRRS III-A). *CHANNEL*: the record's
    predecessor has confirmed ("fluid confirmation", III-B). *FREE*: no condition.
    """

    ALL = auto()
    CHANNEL = auto()
    FREE = auto()


@dataclass(eq=False)
class Leaving:
    """Holds the state of a subscale at its old slot.

    Attributes
    ----------
    started : bool
        Whether a trigger has started the migration.
    queue : deque of int
        Units that have not left, in order.
    watermarks_s : dict of Slot to float
        By predecessor, the last watermark here before its confirm.
    buffer : list of Sent
        Elements in the re-route manager.
    """

    step: Step
    destination: Slot
    queue: deque[int]
    watermarks_s: dict[Slot, float]
    started: bool = False
    confirmed: set[Slot] = field(default_factory=set)
    buffer: list[Sent] = field(default_factory=list)
    buffered_records: int = 0
    rerouted_records: int = 0
    flushes: int = 0


@dataclass(eq=False)
class Arriving:
    """Holds the state of a unit at its new slot until it has settled.

    Attributes
    ----------
    senders : frozenset of Slot
        The predecessors whose confirms the unit needs.
    queue : deque of Sent
        Re-routed elements that wait for the state.
    opened_s : dict of Slot to float
        Predecessors whose new stream has begun, with its last watermark.
    """

    step: Step
    senders: frozenset[Slot]
    installed: bool = False
    served: bool = False
    queue: deque[Sent] = field(default_factory=deque)
    confirmed: set[Slot] = field(default_factory=set)
    watermarks_s: dict[Slot, float] = field(default_factory=dict)
    opened_s: dict[Slot, float] = field(default_factory=dict)


class DrrsHandler(Handler):
    """Handles the input of a scaling slot under DRRS, as old slot, as new slot, or both."""

    def __init__(
        self,
        slot: Slot,
        scaling: Scaling,
        records_max: int,
        rerouting: Rerouting,
        order: Order,
    ) -> None:
        super().__init__(slot, records_max)
        self.scaling, self.rerouting, self.order = scaling, rerouting, order
        self.leaving: dict[int, Leaving] = {}
        self.arriving: dict[int, Arriving] = {}

    # The old slot

    def first(self, channel: Channel, signal: Signal) -> None:
        """Act on a priority signal, or merge it into a checkpoint barrier in its channel.

        References
        ----------
        DRRS III-A; IV-C and figure 9b.
        """
        if self.slot.merge(channel, signal):
            self._log("merged", signal)
        else:
            self.ridden(channel, signal)

    def ridden(self, channel: Channel, signal: Signal) -> None:
        """Act on a trigger, or on a confirm that came with a checkpoint barrier."""
        if signal.kind == "trigger":
            self.trigger(signal)
        else:
            self.signal(channel, signal)

    def trigger(self, signal: Signal) -> None:
        """Start the migration of a subscale; further triggers are ignored."""
        leaving = self._leaving(signal.step)
        if leaving.started:
            self._log("ignored", signal)
            return
        leaving.started = True
        self._log("started", signal)
        self._ask_to_leave(leaving)

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Handle a confirm or an opening in its turn."""
        if signal.kind == "confirm":
            self.confirm(signal)
        else:
            for unit in signal.step.units:
                if unit in self.arriving:
                    self.arriving[unit].opened_s[channel.sender] = NEVER_S
                    self._settle(unit)

    def confirm(self, signal: Signal) -> None:
        """Re-route a confirm, after all elements in the re-route manager."""
        leaving = self._leaving(signal.step)
        leaving.confirmed.add(signal.sender)
        self._log("confirmed", signal)
        self.hold_back(leaving, signal.sender, signal)
        self.flush(leaving)

    def reroute(self, channel: Channel, record: Record) -> None:
        """Hand a record whose state has left to the re-route manager."""
        leaving = self.leaving[record.unit]
        leaving.rerouted_records += record.count
        self.hold_back(leaving, channel.sender, record)
        if leaving.buffered_records >= self.rerouting.records:
            self.flush(leaving)
        if self.rerouting.cost_s:
            self.slot.paused = True
            self.slot.clock.after(self.rerouting.cost_s * record.count, self._unpause)

    def hold_back(
        self, leaving: Leaving, sender: Slot, element: Record | Watermark | Signal
    ) -> None:
        """Put an element into the buffer of the re-route manager."""
        if not leaving.buffer:
            self.slot.clock.after(
                self.rerouting.timeout_s, self._time_out, leaving, leaving.flushes
            )
        leaving.buffer.append((sender, element))
        leaving.buffered_records += element.count

    def flush(self, leaving: Leaving) -> None:
        """Send the elements of the re-route manager: when full, after the timeout, or with a confirm."""
        sent, leaving.buffer, leaving.buffered_records = leaving.buffer, [], 0
        leaving.flushes += 1
        if not sent:
            return
        self.slot.log.add(
            self.slot.clock.now_s,
            "rerouted",
            self.slot.name,
            step=leaving.step.number,
            records=sum(element.count for _, element in sent),
        )
        handler = self._at(leaving.destination)
        self.slot.clock.after(
            self._latency_s,
            leaving.destination.post,
            handler.receive,
            leaving.step,
            sent,
            self.slot.barrier,
        )

    def _unpause(self) -> None:
        self.slot.paused = False
        self.slot.wake()

    def _time_out(self, leaving: Leaving, flushes: int) -> None:
        if leaving.flushes == flushes:
            self.flush(leaving)

    def _ask_to_leave(self, leaving: Leaving) -> None:
        if leaving.queue:
            leave = partial(self._leave, leaving)
            self.scaling.links.ask(self.slot, leaving.destination, leave)

    def _leave(self, leaving: Leaving) -> None:
        """Send the next unit; the other units are still served."""
        unit = leaving.queue.popleft()
        held = self.slot.store.pop(unit)
        self.scaling.left(unit, held, leaving.step)
        arrive = partial(
            leaving.destination.post,
            self._at(leaving.destination).install,
            unit,
            held,
            dict(leaving.watermarks_s),
            self.slot.barrier,
        )
        self.scaling.links.carry(self.slot, leaving.destination, held.state_bytes, arrive)
        self._ask_to_leave(leaving)

    def _leaving(self, step: Step) -> Leaving:
        first = step.units[0]
        known = self.leaving.get(first)
        if known is not None and known.step is step:
            return known
        destination = self.scaling.slot(step.destination_of[first])
        watermarks_s = {channel.sender: channel.watermark_s for channel in self.slot.inputs}
        leaving = Leaving(step, destination, deque(step.units), watermarks_s)
        self.leaving.update(dict.fromkeys(step.units, leaving))
        return leaving

    def forget(self, step: Step) -> None:
        """Drop the state of a subscale that has settled at its new slot."""
        for unit in [u for u, leaving in self.leaving.items() if leaving.step is step]:
            del self.leaving[unit]
        self.slot.advance()

    # The new slot

    def expect(self, step: Step, senders: frozenset[Slot]) -> None:
        """Set up the path of a subscale, before any of its signals is sent."""
        for unit in step.units:
            self.arriving[unit] = Arriving(step, senders)

    def receive(self, step: Step, sent: list[Sent], barrier: int) -> None:
        """Receive re-routed elements, which become special events."""
        self._meet(barrier, [e for _, e in sent if isinstance(e, Record)], {})
        for sender, element in sent:
            units = (element.unit,) if isinstance(element, Record) else step.units
            for unit in units:
                self.arriving[unit].queue.append((sender, element))
        for unit in step.units:
            self.take_special(unit)

    def take_special(self, unit: int) -> None:
        """Move the re-routed elements of a unit to the special events, if its state is here."""
        arriving = self.arriving[unit]
        if not arriving.installed:
            return
        for sender, element in arriving.queue:
            if isinstance(element, Record):
                self.slot.special.append(element)
            else:
                self.slot.special.append(partial(self._take_rerouted, unit, sender, element))
        arriving.queue.clear()

    def install(self, unit: int, held: Held, watermarks_s: dict[Slot, float], barrier: int) -> None:
        """Install the state of a unit, which is active when the confirms have arrived, too."""
        self._meet(barrier, [], {unit: held})
        arriving = self.arriving[unit]
        self.slot.store[unit] = held
        arriving.installed = True
        for sender, time_s in watermarks_s.items():
            self._raise_watermark(arriving, sender, time_s)
        self.slot.log.add(
            self.slot.clock.now_s, "installed", self.slot.name, unit=unit, step=arriving.step.number
        )
        self.take_special(unit)
        self._fire(unit)
        self._look_again(unit)

    def active(self, channel: Channel, arriving: Arriving) -> bool:
        """Return whether records of a unit from its new stream may be served."""
        if not arriving.installed or self.order is Order.FREE:
            return arriving.installed
        if self.order is Order.CHANNEL:
            return channel.sender in arriving.confirmed or channel.sender not in arriving.senders
        return arriving.confirmed >= arriving.senders

    def verdict(self, channel: Channel, record: Record) -> Verdict:
        """Return whether a record is served here, waits, or is re-routed."""
        arriving = self.arriving.get(record.unit)
        if arriving is not None:
            return Verdict.SERVE if self.active(channel, arriving) else Verdict.WAIT
        if record.unit in self.slot.store:
            return Verdict.SERVE
        return Verdict.REROUTE if record.unit in self.leaving else Verdict.WAIT

    def _take_rerouted(self, unit: int, sender: Slot, element: Watermark | Signal) -> None:
        arriving = self.arriving.get(unit)
        assert arriving is not None, f"unit {unit} settled before all was re-routed"
        if isinstance(element, Watermark):
            self._raise_watermark(arriving, sender, element.time_s)
            self._fire(unit)
            return
        arriving.confirmed.add(sender)
        self.slot.log.add(
            self.slot.clock.now_s,
            "confirm taken",
            self.slot.name,
            unit=unit,
            step=arriving.step.number,
            sender=sender.name,
        )
        self._raise_watermark(arriving, sender, arriving.opened_s.get(sender, NEVER_S))
        self._fire(unit)
        self._look_again(unit)

    def _look_again(self, unit: int) -> None:
        arriving = self.arriving[unit]
        if arriving.installed and arriving.confirmed >= arriving.senders and not arriving.served:
            arriving.served = True
            self.scaling.served(arriving.step, unit)
        self.release()
        self._settle(unit)

    def _settle(self, unit: int) -> None:
        """End the tracking of a unit whose watermarks have caught up with those of the channels."""
        arriving = self.arriving[unit]
        if not arriving.served or not arriving.opened_s.keys() >= arriving.senders:
            return
        if self._lags(arriving):
            return
        del self.arriving[unit]
        step = arriving.step
        self.slot.log.add(self.slot.clock.now_s, "unit settled", self.slot.name, unit=unit)
        if not any(u in self.arriving for u in step.units):
            self._at(self.scaling.slot(step.source_of[unit])).forget(step)
        self.slot.advance()
        self.scaling.settled(step, unit)

    # Watermarks

    def _lags(self, arriving: Arriving) -> bool:
        known = arriving.watermarks_s
        return any(known.get(c.sender, c.watermark_s) < c.watermark_s for c in self.slot.inputs)

    def watermark(self, channel: Channel, time_s: float) -> None:
        """Record a watermark for units that move, and re-route a copy to their new slots."""
        sender = channel.sender
        for leaving in {id(x): x for x in self.leaving.values()}.values():
            if sender not in leaving.confirmed:
                leaving.watermarks_s[sender] = time_s
                if leaving.started:
                    self.hold_back(leaving, sender, Watermark(time_s))
        for unit, arriving in list(self.arriving.items()):
            if sender in arriving.opened_s:
                arriving.opened_s[sender] = time_s
                if sender in arriving.confirmed:
                    self._raise_watermark(arriving, sender, time_s)
                    self._settle(unit)

    def watermark_of(self, unit: int) -> float:
        """Return the watermark of a unit; a unit that moves has its own."""
        if unit in self.arriving:
            return self._arriving_s(self.arriving[unit])
        if unit in self.leaving:
            return min(self.leaving[unit].watermarks_s.values())
        return self.slot.watermark_s

    def output_watermark_s(self) -> float:
        """Return the least watermark of the units here, arriving or leaving."""
        held = [self._arriving_s(arriving) for arriving in self.arriving.values()]
        held += [min(leaving.watermarks_s.values()) for leaving in self.leaving.values()]
        return min([self.slot.watermark_s, *held])

    def _arriving_s(self, arriving: Arriving) -> float:
        known = arriving.watermarks_s
        return min(known.get(c.sender, c.watermark_s) for c in self.slot.inputs)

    def _raise_watermark(self, arriving: Arriving, sender: Slot, time_s: float) -> None:
        known = arriving.watermarks_s
        known[sender] = max(time_s, known.get(sender, NEVER_S))

    def _fire(self, unit: int) -> None:
        if unit in self.slot.store:
            self.slot.fire(unit, self.watermark_of(unit))

    # Checkpoints

    def in_transit(self) -> dict[int, list[Record]]:
        """Return the records in the handler, by rank."""
        found = super().in_transit()
        found[0] = [
            element
            for arriving in self.arriving.values()
            for _, element in arriving.queue
            if isinstance(element, Record)
        ]
        found[2] = [
            element
            for leaving in {id(x): x for x in self.leaving.values()}.values()
            for _, element in leaving.buffer
            if isinstance(element, Record)
        ]
        return found

    def old_units(self) -> frozenset[int]:
        """Return the units that leave, without those that are coming back."""
        return frozenset(self.leaving.keys() - self.arriving.keys())

    def progress(self) -> list[dict[str, Any]]:
        """Return for each subscale that leaves the waiting units and the confirmed predecessors."""
        return [
            {
                "step": leaving.step.number,
                "started": leaving.started,
                "waiting": list(leaving.queue),
                "confirmed": sorted(slot.name for slot in leaving.confirmed),
            }
            for leaving in {id(x): x for x in self.leaving.values()}.values()
        ]

    def _meet(self, barrier: int, records: list[Record], store: dict[int, Held]) -> None:
        """Handle the checkpoints that a message crosses.

        If the message was sent after a checkpoint that this slot has not taken, the slot takes it now. If
        it was sent before a checkpoint that this slot has taken, it is data in transit of that
        checkpoint.
        """
        slot = self.slot
        for number in range(slot.barrier + 1, barrier + 1):
            slot.checkpoint(number)
        for number in range(barrier + 1, slot.barrier + 1):
            slot.snapshots[number].join(records, store)

    @property
    def _latency_s(self) -> float:
        return self.scaling.flow.job.network.latency_s

    def _at(self, slot: Slot) -> DrrsHandler:
        handler = self.scaling.handlers[slot]
        assert isinstance(handler, DrrsHandler)
        return handler

    def _log(self, kind: str, signal: Signal) -> None:
        self.slot.log.add(
            self.slot.clock.now_s,
            kind,
            self.slot.name,
            step=signal.step.number,
            sender=signal.sender.name,
        )
