"""Simulates a channel: an output cache, a packet under way, an input cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headgate_lab.sim.dataflow.clock import Clock
from headgate_lab.sim.dataflow.elements import Barrier, Element, Signal


@dataclass(frozen=True)
class Network:
    """Holds the delay between slots, and the room for waiting records.

    Attributes
    ----------
    latency_s : float
        Latency of a packet, a priority message or a command.
    records_per_s : float
        Throughput of one channel.
    output_records, input_records : int
        Capacities of a channel's caches. A sender stops when an output cache is full; the last element
        may exceed the capacity.
    state_bytes_per_s : float
        Bandwidth of a slot's state transfers; a slot has one transfer at a time.
    state_unit_s : float
        Additional time of each transfer, for extraction, serialisation and handover.
    """

    latency_s: float = 0.001
    records_per_s: float = 1e6
    output_records: int = 64
    input_records: int = 64
    state_bytes_per_s: float = 100e6
    state_unit_s: float = 0.0


class End(Protocol):
    """Defines the calls of a channel to the slots at its ends."""

    clock: Clock
    full: int
    barrier: int

    def wake(self) -> None:
        """Go on with the next element or call, if there is one."""

    def receive_first(self, channel: Any, signal: Signal) -> None:
        """Receive a priority signal, which has overtaken all elements."""

    def reached(self, channel: Any, packet: Sequence[Element]) -> None:
        """Handle the arrival of a packet."""


SlotEnd = TypeVar("SlotEnd", bound=End)


class ChannelBetween(Generic[SlotEnd]):
    """Carries elements from one slot to another, in order, with credit-based back-pressure.

    A packet leaves as soon as the previous one has arrived, with the elements of the output cache for
    which the input cache has room. Control elements need no room.

    Attributes
    ----------
    waiting, arrived : deque of Element
        The output cache and the input cache.
    flying : list of Element
        The packet under way.
    blocked : bool
        Whether the receiver takes no elements from this channel, since it aligns.
    listed : bool
        Whether the channel is in the receiver's list `available`.
    watermark_s : float
    barrier : int
        The last checkpoint barrier that the receiver took from this channel.
    """

    __slots__ = (
        "arrived",
        "barrier",
        "blocked",
        "flying",
        "held_records",
        "listed",
        "network",
        "receiver",
        "sender",
        "waiting",
        "waiting_records",
        "watermark_s",
    )

    def __init__(self, sender: SlotEnd, receiver: SlotEnd, network: Network) -> None:
        self.sender, self.receiver, self.network = sender, receiver, network
        self.waiting: deque[Element] = deque()
        self.flying: list[Element] = []
        self.arrived: deque[Element] = deque()
        self.waiting_records = 0
        self.held_records = 0  # in the input cache or on their way to it
        self.blocked = False
        self.listed = False
        self.watermark_s = float("-inf")
        self.barrier = sender.barrier

    def push(self, element: Element) -> None:
        """Put an element at the end of the output cache."""
        self.waiting.append(element)
        self._weigh(element.count)
        if not self.flying:
            self._depart()

    def take(self) -> Element:
        """Take the first element of the input cache, which must not be empty."""
        element = self.arrived.popleft()
        if element.count:
            self.held_records -= element.count
            if self.waiting and not self.flying:
                self._depart()
        return element

    def send_first(self, signal: Signal) -> None:
        """Send a signal that overtakes all elements, and arrives after the latency alone."""
        delay_s = self.network.latency_s
        self.sender.clock.after(delay_s, self.receiver.receive_first, self, signal)

    def rewrite(self, waiting: deque[Element]) -> None:
        """Replace the output cache, after a method of scaling has changed its elements."""
        before = self.waiting_records
        self.waiting = waiting
        self._weigh(sum(element.count for element in waiting) - before)
        if waiting and not self.flying:
            self._depart()

    def barrier_ahead(self) -> Barrier | None:
        """Return the checkpoint barrier on its way or in the input cache, if there is one."""
        found = [e for e in (*self.arrived, *self.flying) if isinstance(e, Barrier)]
        return found[-1] if found else None

    def _weigh(self, records: int) -> None:
        """Update the size of the output cache, and tell the sender whether the cache is full."""
        if not records:
            return
        limit = self.network.output_records
        was_full = self.waiting_records >= limit
        self.waiting_records += records
        is_full = self.waiting_records >= limit
        if is_full != was_full:
            self.sender.full += 1 if is_full else -1
            if was_full and not self.sender.full:
                self.sender.clock.after(0.0, self.sender.wake)

    def _depart(self) -> None:
        room = self.network.input_records - self.held_records
        waiting, packet, records = self.waiting, self.flying, 0
        while waiting and (records < room or not waiting[0].count):
            element = waiting.popleft()
            records += element.count
            packet.append(element)
        if not packet:
            return
        self.held_records += records
        self._weigh(-records)
        delay_s = self.network.latency_s + records / self.network.records_per_s
        self.sender.clock.after(delay_s, self._arrive)

    def _arrive(self) -> None:
        packet, self.flying = self.flying, []
        self.arrived.extend(packet)
        if self.waiting:
            self._depart()
        self.receiver.reached(self, packet)
