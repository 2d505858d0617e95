"""Handles the input of a scaling slot (DRRS's Scale Input Handler, B1)."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Any

from headgate_lab.sim.dataflow.elements import Record, Signal, Watermark
from headgate_lab.sim.dataflow.slot import Channel, Slot

RECORDS_MAX = 200
"""Records that record scheduling may set aside (DRRS IV-A)."""


class Verdict(Enum):
    """Names what may be done with a record now."""

    SERVE = auto()
    WAIT = auto()
    REROUTE = auto()


class Handler:
    """Serves what may be served; subclasses know when.

    With record scheduling (DRRS III-B) a slot takes from another channel when the front of one must
    wait, and when all must, sets records aside, `records_max` at most, never past a watermark and
    never one of a unit before an earlier one of it. Without, it waits for the front of the channel
    whose turn it is; signals are taken all the same.

    Parameters
    ----------
    records_max : int
        Room of the buffer, in records; 0 switches record scheduling off.

    Attributes
    ----------
    deferred : dict of Channel to deque of Record
        Set aside, in order.
    ready : deque of Record
        Were set aside and may be served; before anything from a channel.
    """

    def __init__(self, slot: Slot, records_max: int = 0) -> None:
        self.slot, self.records_max = slot, records_max
        self.deferred: dict[Channel, deque[Record]] = {}
        self.ready: deque[tuple[Channel, Record]] = deque()
        self.deferred_records = 0

    # What a method says

    def verdict(self, channel: Channel, record: Record) -> Verdict:
        """Return whether the record can be served: its state is here."""
        return Verdict.SERVE if record.unit in self.slot.store else Verdict.WAIT

    def reroute(self, channel: Channel, record: Record) -> None:
        """Send on a record whose state has left."""
        raise NotImplementedError

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Take a signal in its turn."""

    def first(self, channel: Channel, signal: Signal) -> None:
        """Take a signal with priority."""

    def ridden(self, channel: Channel, signal: Signal) -> None:
        """Take a signal that rode on a checkpoint barrier."""
        self.signal(channel, signal)

    def watermark(self, channel: Channel, time_s: float) -> None:
        """Take note of a watermark, before the slot does."""

    def watermark_of(self, unit: int) -> float:
        """Return up to where a unit that is here may be fired."""
        return self.slot.watermark_s

    def output_watermark_s(self) -> float:
        """Return what the next operator may be told."""
        return self.slot.watermark_s

    def in_transit(self) -> dict[int, list[Record]]:
        """Return what the handler holds, by rank."""
        held = [record for _, record in self.ready]
        held += [record for records in self.deferred.values() for record in records]
        return {4: held}

    def old_units(self) -> frozenset[int]:
        """Return the units whose records still come here although they are routed elsewhere."""
        return frozenset()

    def progress(self) -> list[dict[str, Any]]:
        """Return how far the subscales of this slot have come."""
        return []

    # Choosing

    def step(self) -> bool:
        """Take one element; return whether there was one that could be taken."""
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
        """Return whether something is here that waits for state."""
        if self.deferred_records:
            return True
        return any(isinstance(c.arrived[0], Record) for c in self._channels())

    def release(self) -> None:
        """Look again at what was set aside, since more may be served than before."""
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
        """Leave what may be served to the slot; nothing may be waiting any more."""
        assert not self.deferred, f"{self.slot.name} still holds records back"
        self.slot.special.extend(record for _, record in self.ready)
        self.ready.clear()

    def _channels(self) -> list[Channel]:
        return [c for c in self.slot.available if c.arrived and not c.blocked]

    def _relist(self) -> None:
        for channel in self.slot.inputs:
            self.slot.offer(channel)

    def _step_front(self) -> bool:
        """Take the first front that can be taken: of the first channel, or with scheduling of any."""
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
        """Take a signal from the front of any channel: they come from the network on their own."""
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
        # Where the channel stands in the list, it is next: it goes to the end.
        available.remove(channel)
        channel.listed = False
        self.slot.offer(channel)
        if verdict is Verdict.REROUTE and isinstance(element, Record):
            self.reroute(channel, element)
        else:
            self.slot.process(channel, element)
        return True

    def _set_aside(self) -> bool:
        """Set fronts aside until one is found that can be taken, within the buffer."""
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
