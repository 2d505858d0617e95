"""Implements Meces: one synchronisation, then a slot fetches the state for its next record."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from headgate.migration import plan
from headgate.migration.plan import Subscale
from headgate_lab.sim.dataflow.behaviours import Held
from headgate_lab.sim.dataflow.coordinator import Moves, Scaling, Step
from headgate_lab.sim.dataflow.elements import Record, Signal
from headgate_lab.sim.dataflow.handler import Handler, Verdict
from headgate_lab.sim.dataflow.slot import Channel, Slot

SUB_GROUPS = 32
"""Independently fetched parts of a key group (DRRS's port of Meces)."""


@dataclass(frozen=True)
class Meces:
    """Moves state as DRRS's port of Meces does: fetch on demand by both slots, sub-groups, no buffer.

    Parameters
    ----------
    parts : int
        Sub-groups per key group.

    References
    ----------
    DRRS V-A and V-B. Differs: a unit emits windows only when it stays at its new slot, so that the counts
    are right although the order of a key's records is not kept.
    """

    name: ClassVar[str] = "meces"
    in_rounds: ClassVar[bool] = False

    parts: int = SUB_GROUPS

    def steps(self, moves: Moves) -> Sequence[tuple[Subscale, ...]]:
        """Return one step with all moves."""
        if not moves:
            return []
        return [tuple(Subscale(groups, *pair) for pair, groups in plan.pairs(moves).items())]

    def admit(
        self,
        waiting: Sequence[Step],
        running: Sequence[Step],
        held: Sequence[int],
        busy: Sequence[float],
    ) -> Sequence[int]:
        """Return the next step when none runs."""
        return [] if running else [0]

    def handler(self, slot: Slot, scaling: Scaling) -> MecesHandler:
        """Return the handler of a scaling slot."""
        return MecesHandler(slot, scaling)

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Make every predecessor update its routes and send one signal."""
        for handler in scaling.handlers.values():
            assert isinstance(handler, MecesHandler)
            handler.begin(step)
        for slot in scaling.flow.parents_of(scaling.operator):
            scaling.flow.command(slot, self.inject, slot, step)

    def inject(self, slot: Slot, step: Step) -> None:
        """Update the routing table, and send the signal to every slot, in order with the records."""
        assert slot.edge is not None
        slot.log.add(slot.clock.now_s, "injected", slot.name, step=step.number)
        for unit, destination in step.destination_of.items():
            slot.edge.table[unit] = destination
        slot.log.add(slot.clock.now_s, "routed", slot.name, step=step.number)
        for channel in slot.edge.channels:
            channel.push(Signal("coupled", step, slot))


class MecesHandler(Handler):
    """Fetches the unit that the next record needs, and pushes the others in the background.

    Attributes
    ----------
    homing : deque of int
        Units to push to their new slot.
    wanted : int or None
        Unit for which the next record waits; the record is served before the unit can leave again.
    unsettled : int
        Number of units that leave this slot and may still come back.
    owed : list of (int, Slot, Step)
        Requested units that are not at this slot, or may not leave yet.
    """

    def __init__(self, slot: Slot, scaling: Scaling) -> None:
        super().__init__(slot, 0)
        self.scaling = scaling
        self.step_now: Step | None = None
        self.confirmed: set[Slot] = set()
        self.senders: frozenset[Slot] = frozenset()
        self.homing: deque[int] = deque()
        self.wanted: int | None = None
        self.owed: list[tuple[int, Slot, Step]] = []
        self.pushing = False
        self.frozen_s = float("inf")
        self.unsettled = 0

    def begin(self, step: Step) -> None:
        """Get ready for a step."""
        self.step_now = step
        self.confirmed.clear()
        self.senders = frozenset(self.scaling.flow.parents_of(self.scaling.operator))
        self.homing = deque(u for u, s in step.source_of.items() if s == self.slot.index)
        self.unsettled = len(self.homing)
        self.frozen_s = self.slot.watermark_s if self.homing else float("inf")

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Start to push with the first signal; after the last one no unit is fetched back."""
        if signal.step.source_of and self.slot.index in signal.step.source_of.values():
            if not self.confirmed:
                slot = self.slot
                slot.log.add(slot.clock.now_s, "started", slot.name, step=signal.step.number)
            self.confirmed.add(channel.sender)
            if self.confirmed >= self.senders:
                self._finish_routes(signal.step)
            self.push()

    def verdict(self, channel: Channel, record: Record) -> Verdict:
        """Return SERVE if the state is at this slot; otherwise fetch it, and return WAIT."""
        if record.unit in self.slot.store:
            if record.unit == self.wanted:
                self._got_it()
            return Verdict.SERVE
        if self.wanted != record.unit:
            self.wanted = record.unit
            self._ask(record.unit)
        return Verdict.WAIT

    def give(self, unit: int, receiver: Slot, step: Step) -> None:
        """Send a unit to a slot that requested it, as soon as it is at this slot and may leave."""
        if step is not self.step_now or unit not in step.unsettled:
            return  # the unit has already settled
        if unit in self.slot.store and unit != self.wanted:
            self._send(unit, receiver, urgent=True)
        else:
            self.owed.append((unit, receiver, step))

    def push(self) -> None:
        """Send the next unit to its new slot."""
        while self.homing and not self.pushing:
            unit = self.homing.popleft()
            if unit in self.slot.store and unit != self.wanted and self.step_now is not None:
                self.pushing = True
                self._send(unit, self.scaling.slot(self.step_now.destination_of[unit]))

    def install(self, unit: int, held: Held) -> None:
        """Install a unit, for good if its old slot no longer needs it."""
        step = self.step_now
        assert step is not None
        self.slot.store[unit] = held
        slot = self.slot
        slot.log.add(slot.clock.now_s, "installed", slot.name, unit=unit, step=step.number)
        if step.destination_of[unit] != slot.index:
            self.homing.append(unit)
            self.push()
        elif unit in step.unsettled and self._at(self.scaling.slot(step.source_of[unit])).done:
            self._stay(unit, step)
        self._pay()
        slot.wake()

    @property
    def done(self) -> bool:
        """Return whether the old stream has ended in every channel."""
        return self.confirmed >= self.senders

    def watermark_of(self, unit: int) -> float:
        """Return the slot's watermark, or -inf while a unit may still go back."""
        step = self.step_now
        if step is not None and unit in step.unsettled:
            return float("-inf")
        return self.slot.watermark_s

    def output_watermark_s(self) -> float:
        """Return the least watermark at which windows may still be emitted."""
        return min(self.slot.watermark_s, self.frozen_s)

    def _got_it(self) -> None:
        self.wanted = None
        if self.owed:
            self.slot.clock.after(0.0, self.slot.post, self._pay)

    def _pay(self) -> None:
        owed, self.owed = self.owed, []
        for unit, receiver, step in owed:
            self.give(unit, receiver, step)

    def _ask(self, unit: int) -> None:
        """Request a unit from the other slot: a unit is there, or on its way here."""
        step = self.step_now
        assert step is not None, f"unit {unit} is nowhere"
        source, destination = step.source_of[unit], step.destination_of[unit]
        other = self.scaling.slot(destination if source == self.slot.index else source)
        latency_s = self.scaling.flow.job.network.latency_s
        self.slot.clock.after(latency_s, other.post, self._at(other).give, unit, self.slot, step)

    def _send(self, unit: int, receiver: Slot, *, urgent: bool = False) -> None:
        self.scaling.links.ask(
            self.slot, receiver, partial(self._leave, unit, receiver, urgent), urgent=urgent
        )

    def _leave(self, unit: int, receiver: Slot, urgent: bool) -> None:
        links = self.scaling.links
        if not urgent:
            self.pushing = False
        held = None if unit == self.wanted else self.slot.store.pop(unit, None)
        if held is None:
            links.carry(self.slot, receiver, 0.0, lambda: None)  # it has left, or is wanted here
            if urgent and self.step_now is not None:
                self.owed.append((unit, receiver, self.step_now))
        else:
            assert self.step_now is not None
            self.scaling.left(unit, held, self.step_now)
            arrive = partial(receiver.post, self._at(receiver).install, unit, held)
            links.carry(self.slot, receiver, held.state_bytes, arrive)
        self.push()

    def _finish_routes(self, step: Step) -> None:
        """Settle the units at their new slots, after the old stream has ended here; push the others."""
        for unit, source in step.source_of.items():
            if source == self.slot.index and unit in step.unsettled:
                there = self.scaling.slot(step.destination_of[unit])
                if unit in there.store:
                    self._at(there)._stay(unit, step)
                elif unit in self.slot.store:
                    self.homing.append(unit)

    def _stay(self, unit: int, step: Step) -> None:
        self.scaling.served(step, unit)
        source = self._at(self.scaling.slot(step.source_of[unit]))
        source.unsettled -= 1
        if not source.unsettled:
            source.frozen_s = float("inf")
        self.scaling.settled(step, unit)
        self.slot.fire(unit, self.slot.watermark_s)
        source.slot.advance()
        self.slot.advance()

    def _at(self, slot: Slot) -> MecesHandler:
        handler = self.scaling.handlers[slot]
        assert isinstance(handler, MecesHandler)
        return handler
