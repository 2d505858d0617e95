"""Handles the input of a scaling slot (DRRS's Scale Input Handler, B1)."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Any

from headgate_lab.sim.dataflow.elements import Record, Signal, Watermark
from headgate_lab.sim.dataflow.slot import Channel, Slot

RECORDS_MAX = 200
"""Most records that record scheduling may defer (DRRS IV-A)."""


class Verdict(Enum):
    """Names the possible actions for a record."""

    SERVE = auto()
    WAIT = auto()
    REROUTE = auto()


class Handler:
    """Serves the records that may be served; subclasses decide which.

    With record scheduling (DRRS III-B), if the first record of a channel must wait, a slot takes from
    another channel. If all first records must wait, it defers records, at most `records_max`, never past
    a watermark, and keeps the order within a unit. Without record scheduling, it waits for the first
    record of the channel whose turn it is, but still takes signals.

    Parameters
    ----------
    records_max : int
        Capacity of the buffer, in records; 0 switches record scheduling off.

    Attributes
    ----------
    deferred : dict of Channel to deque of Record
        Deferred records, in order.
    ready : deque of (Channel, Record)
        Deferred records that may be served, before all elements of channels.
    """

    def __init__(self, slot: Slot, records_max: int = 0) -> None:
        self.slot, self.records_max = slot, records_max
        self.deferred: dict[Channel, deque[Record]] = {}
        self.ready: deque[tuple[Channel, Record]] = deque()
        self.deferred_records = 0

    # What a method says

    def verdict(self, channel: Channel, record: Record) -> Verdict:
        """Return the action for a record: serve it if its state is here, otherwise wait."""
        return Verdict.SERVE if record.unit in self.slot.store else Verdict.WAIT

    def reroute(self, channel: Channel, record: Record) -> None:
        """Re-route a record whose state has left."""
        raise NotImplementedError

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Handle a signal in its turn."""

    def first(self, channel: Channel, signal: Signal) -> None:
        """Handle a priority signal."""

    def ridden(self, channel: Channel, signal: Signal) -> None:
        """Handle a signal that was merged into a checkpoint barrier."""
        self.signal(channel, signal)

    def watermark(self, channel: Channel, time_s: float) -> None:
        """Handle a watermark, before the slot does."""

    def watermark_of(self, unit: int) -> float:
        """Return the watermark up to which a unit of this slot may emit windows."""
        return self.slot.watermark_s

    def output_watermark_s(self) -> float:
        """Return the watermark for the next operator."""
        return self.slot.watermark_s

    def in_transit(self) -> dict[int, list[Record]]:
        """Return the records in the handler, by rank."""
        held = [record for _, record in self.ready]
        held += [record for records in self.deferred.values() for record in records]
        return {4: held}

    def old_units(self) -> frozenset[int]:
        """Return the units whose records still come here although they are routed elsewhere."""
        return frozenset()

    def progress(self) -> list[dict[str, Any]]:
        """Return the progress of the subscales that leave this slot."""
        return []

    # Choosing

    def step(self) -> bool:
        """Take one element; return False if none can be taken."""
        if self.ready:
            channel, record = self.ready.popleft()
            self.deferred_records -= record.count
            if self.verdict(channel, record) is Verdict.REROUTE:
                self.reroute(channel, record)
            else:
                self.slot.serve(record)
            if not self.ready:
                self._relist()
            return True
        return self._step_front() or (self.records_max > 0 and self._set_aside())

    def waits(self) -> bool:
        """Return whether a record at this slot waits for state."""
        if self.deferred_records:
            return True
        return any(isinstance(c.arrived[0], Record) for c in self._channels())

    def release(self) -> None:
        """Check the deferred records again, since more of them may be served now."""
        for channel in list(self.deferred):
            kept: deque[Record] = deque()
            for record in self.deferred[channel]:
                if self.verdict(channel, record) is Verdict.WAIT:
                    kept.append(record)
                else:
                    self.ready.append((channel, record))
            if kept:
                self.deferred[channel] = kept
            else:
                del self.deferred[channel]
        self._relist()
        self.slot.wake()

    def close(self) -> None:
        """Hand the ready records to the slot; no record may still be deferred."""
        assert not self.deferred, f"{self.slot.name} still holds records back"
        self.slot.special.extend(record for _, record in self.ready)
        self.ready.clear()

    def _channels(self) -> list[Channel]:
        return [c for c in self.slot.available if c.arrived and not c.blocked]

    def _relist(self) -> None:
        for channel in self.slot.inputs:
            self.slot.offer(channel)

    def _step_front(self) -> bool:
        """Take the first element of the first channel, or with scheduling of any channel, if possible."""
        for channel in tuple(self.slot.available):
            if not channel.arrived or channel.blocked:
                continue
            takes = self._takes(channel)
            if takes is not Verdict.WAIT:
                return self._take(channel, takes)
            if self.records_max == 0:
                return self._step_signals()
        return False

    def _step_signals(self) -> bool:
        """Take a signal that is the first element of any channel."""
        for channel in self._channels():
            if isinstance(channel.arrived[0], Signal):
                return self._take(channel, Verdict.SERVE)
        return False

    def _takes(self, channel: Channel) -> Verdict:
        front = channel.arrived[0]
        if isinstance(front, Record):
            return self.verdict(channel, front)
        if isinstance(front, Watermark) and self._holds_of(channel):
            return Verdict.WAIT
        return Verdict.SERVE

    def _holds_of(self, channel: Channel) -> bool:
        return channel in self.deferred or any(c is channel for c, _ in self.ready)

    def _take(self, channel: Channel, verdict: Verdict) -> bool:
        available = self.slot.available
        element = channel.take()
        # The channel has had its turn, so it goes to the end of the list.
        available.remove(channel)
        channel.listed = False
        self.slot.offer(channel)
        if verdict is Verdict.REROUTE and isinstance(element, Record):
            self.reroute(channel, element)
        else:
            self.slot.process(channel, element)
        return True

    def _set_aside(self) -> bool:
        """Defer first elements, within the buffer's capacity, until one can be taken."""
        for channel in self._channels():
            while channel.arrived:
                front = channel.arrived[0]
                takes = self._takes(channel)
                if takes is not Verdict.WAIT:
                    return self._take(channel, takes)
                if not isinstance(front, Record) or self.deferred_records >= self.records_max:
                    break
                channel.take()
                self.deferred.setdefault(channel, deque()).append(front)
                self.deferred_records += front.count
        return False
