"""Implements virtual shared-nothing: several instances of O+ between two tuple buffers, on one state.

This is a step-by-step reference: the caller chooses at every moment which instance takes its next step,
so that a test can try any interleaving. An instance is at one of these points:

::

    outbox not empty ──► send
    next is control  ──► remember the highest epoch, and gamma = its time
    next lifts W above gamma ──► wait at the barrier until all of O are there
                                 ──► one of them connects and disconnects, all switch
    otherwise        ──► get, process, send
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Sequence

from headgate.operators.operator_plus import (
    NO_WATERMARK,
    Key,
    OperatorPlus,
    Record,
    Watermark,
    WindowType,
)
from headgate_lab.oplus.reference import Epoch, Instance, WindowState
from headgate_lab.tuple_buffer.heap import HeapTupleBuffer
from headgate_lab.tuple_buffer.port import Entry, Reconfiguration, TupleBuffer

Held = tuple[int, int, Record]
"""(time, count, record): a record that is kept until no other can come before it."""

NEVER = 2**63
"""gamma while no reconfiguration is pending: above every watermark."""


def as_epoch(announced: Reconfiguration) -> Epoch:
    """Return the epoch that a control record announces; a key's group is its hash modulo their number."""
    slot_of = announced.slot_of

    def owner(key: Key) -> int:
        return slot_of[hash(key) % len(slot_of)]

    return Epoch(announced.number, announced.instances, owner)


class VirtualInstance:
    """Implements one o_j+ between two tuple buffers.

    Parameters
    ----------
    group : SharedOperator    The operator, with the other instances.
    number : int              j.

    Attributes
    ----------
    gamma : int          The pending switch happens at the first watermark above it.
    switches : list of int    Epochs this instance has switched to, as they came.
    _pending : Reconfiguration or None    The highest epoch announced and not yet switched to.
    _held : heap of Held    Emitted records that later ones may still precede. They are handed over when
                         this instance leaves, since it may come back, and could then add nothing
                         earlier than the last of them.
    _outbox : deque      Entries, and times to advance to, that the output buffer has not taken yet.

    References
    ----------
    [STRETCH] algorithms 4 and 6. Differs: gamma is reset after a switch (printed: never set or reset, so
    that the barrier is entered again at every advance); an instance looks at the record that triggers
    the switch before it gets it, so that new readers start with that record (table 2 alone would start
    them behind it, against theorem 3); slots that join and slots that leave are found as set
    differences (lines 19 and 20 compare sizes and miss a swap).
    """

    def __init__(self, group: SharedOperator, number: int) -> None:
        self.number = number
        self.gamma = NEVER
        self.switches: list[int] = []
        self.instance = Instance(group.operator, group.state, number, group.epoch)
        self._group = group
        self._pending: Reconfiguration | None = None
        self._held: list[Held] = []
        self._held_count = 0
        self._outbox: deque[Entry | int] = deque()

    def join(self, epoch: Epoch, watermark: int) -> None:
        """Leave the pool: start in `epoch` at the watermark of the instances at work (lemma 3)."""
        self.instance = Instance(
            self._group.operator, self._group.state, self.number, epoch, watermark
        )
        self.gamma, self._pending = NEVER, None

    def take_over(self, epoch: Epoch) -> None:
        """Take over what instances that left held, if this is the lowest instance at work."""
        if self.number == min(epoch.instances):
            for entry in self._group.handed_over(epoch.number):
                self._hold(entry[-1])

    def step(self) -> bool:
        """Do the next thing; return whether anything was done."""
        if not self._send():
            return False
        entry = self._group.buffer_in.peek(self.number)
        if entry is None:
            return False
        if entry.control is not None:
            self._group.buffer_in.get(self.number)
            self._prepare(entry.control, entry.time)
            return True
        if entry.time > self.instance.watermark and entry.time > self.gamma:
            if not self._switch():
                return False
            if self.number not in self.instance.epoch.instances:
                return True
        self._group.buffer_in.get(self.number)
        self._serve(entry.values)
        return True

    def _prepare(self, announced: Reconfiguration, time: int) -> None:
        """Note an announced epoch (algorithm 6), unless another source's copy has announced it."""
        known = self.instance.epoch.number if self._pending is None else self._pending.number
        if announced.number > known:
            self._pending, self.gamma = announced, time

    def _serve(self, item: Record | Watermark) -> None:
        for record in self.instance.process(item):
            self._hold(record)
        # All that is emitted from now on is later than the watermark (observation 1).
        bound = self.instance.watermark + 1
        if self._group.operator.window_type is WindowType.SINGLE:
            self._release(NEVER)
        else:
            # Lemma 2 is false for what f_U emits here: windows 90 and 120, then 90 and 120 again.
            self._release(bound)
        self._outbox.append(
            Entry(bound, Watermark(bound)) if isinstance(item, Watermark) else bound
        )
        self._send()

    def _hold(self, record: Record) -> None:
        heapq.heappush(self._held, (record.time, self._held_count, record))
        self._held_count += 1

    def _release(self, time: int) -> None:
        while self._held and self._held[0][0] <= time:
            record = heapq.heappop(self._held)[-1]
            self._outbox.append(Entry(record.time, record))

    def _send(self) -> bool:
        out = self._group.buffer_out
        while self._outbox:
            first = self._outbox[0]
            if isinstance(first, Entry):
                sent = out.add_stretch(first, self.number)
            else:
                sent = out.advance(first, self.number)
            if not sent:
                return False
            self._outbox.popleft()
        return True

    def _switch(self) -> bool:
        """Wait for all of O, connect and disconnect, take the new epoch; False while waiting."""
        pending = self._pending
        assert pending is not None, "gamma is finite only while a reconfiguration is pending"
        group, epoch = self._group, self.instance.epoch
        if self.number not in pending.instances:
            group.hand_over(pending.number, self._held)
            self._held = []
        if not group.arrived(pending.number, self.number, epoch.instances):
            return False
        new = as_epoch(pending)
        joining, leaving = new.instances - epoch.instances, epoch.instances - new.instances
        if joining and group.buffer_out.add_sources(joining, by=self.number):
            for number in joining:
                group.instances[number].join(new, self.instance.watermark)
                group.instances[number].take_over(new)
            group.buffer_in.add_readers(joining, by=self.number)
            group.connected.append((new.number, joining))
        if leaving and group.buffer_in.remove_readers(leaving, by=self.number):
            group.buffer_out.remove_sources(leaving, by=self.number)
            group.disconnected.append((new.number, leaving))
        self.take_over(new)
        self.instance.epoch = new
        self.gamma, self._pending = NEVER, None
        self.switches.append(new.number)
        return True


class SharedOperator:
    """Runs an O+ with some instances at work and the others in a pool: STRETCH's `setup`.

    Parameters
    ----------
    connected : int          m: number of instances at work at the start.
    instances : int          n: number of all instances.
    slot_of : sequence of int       f_mu of epoch 0: key group -> instance.
    sources : collection of int     Of the input buffer.
    readers : collection of int     Of the output buffer.
    capacity : (int, int)    Of the input and of the output buffer. The latter must exceed what an
                             instance emits for one watermark: its records wait there for the others'
                             watermarks while the others may wait for it at the barrier.
    buffer_in : TupleBuffer, optional    The output buffer of the preceding operator; its readers are
                             this operator's instances.

    References
    ----------
    [STRETCH] sections 5 and 7, figure 5.
    """

    def __init__(
        self,
        operator: OperatorPlus,
        connected: int,
        instances: int,
        slot_of: Sequence[int],
        *,
        sources: Collection[int] = (0,),
        readers: Collection[int] = (0,),
        capacity: tuple[int, int] = (1024, 65_536),
        buffer_in: TupleBuffer | None = None,
    ) -> None:
        self.operator = operator
        self.state = WindowState()
        first = range(connected)
        self.epoch = as_epoch(Reconfiguration(0, frozenset(first), tuple(slot_of)))
        self.buffer_in = buffer_in or HeapTupleBuffer(sources, first, capacity[0])
        self.buffer_out: TupleBuffer = HeapTupleBuffer(first, readers, capacity[1])
        self.instances = [VirtualInstance(self, number) for number in range(instances)]
        self.connected: list[tuple[int, frozenset[int]]] = []
        self.disconnected: list[tuple[int, frozenset[int]]] = []
        self._last = 0, self.epoch.instances
        self._requests: deque[tuple[frozenset[int], tuple[int, ...]]] = deque()
        self._barriers: dict[int, set[int]] = {}
        self._handed_over: dict[int, list[Held]] = {}

    def reconfigure(self, instances: Collection[int], slot_of: Sequence[int]) -> None:
        """Request other instances or another mapping; a request waits for the one before it."""
        self._requests.append((frozenset(instances), tuple(slot_of)))
        self.announce()

    def announce(self) -> None:
        """Put the next waiting request into the control queues once the last one is carried out."""
        epoch, working = self._last
        done = all(self.instances[j].instance.epoch.number == epoch for j in working)
        if not self._requests or not done:
            return
        number = self.buffer_in.reconfigure(*self._requests[0])
        if number is not None:
            self._last = number, self._requests.popleft()[0]

    def hand_over(self, epoch: int, held: list[Held]) -> None:
        """Leave emitted records to the instances at work in `epoch`."""
        self._handed_over.setdefault(epoch, []).extend(held)

    def handed_over(self, epoch: int) -> list[Held]:
        """Return, once, the records that were left to the instances at work in `epoch`."""
        return self._handed_over.pop(epoch, [])

    def arrived(self, epoch: int, instance: int, expected: frozenset[int]) -> bool:
        """Note that an instance is at the barrier before `epoch`; return whether all are."""
        barrier = self._barriers.setdefault(epoch, set())
        barrier.add(instance)
        return expected <= barrier

    @property
    def watermark(self) -> int:
        """The least watermark of the instances at work."""
        working = [v.instance for v in self.instances if v.number in v.instance.epoch.instances]
        return min((i.watermark for i in working), default=NO_WATERMARK)
