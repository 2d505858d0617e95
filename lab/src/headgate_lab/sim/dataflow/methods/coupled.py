"""Implements coupled signals: one barrier, aligned with blocking, confirms routes and starts migration.

This is the generalised on-the-fly scaling of DRRS II-B. Megaphone and the ablation differ in the place of
injection, the moves of a signal, and the number of signals under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from headgate.migration import plan
from headgate.migration.plan import PER_HOST_MAX, SUBSCALE_GROUPS_MIN, Subscale
from headgate_lab.sim.dataflow.behaviours import Held
from headgate_lab.sim.dataflow.coordinator import Moves, Scaling, Step
from headgate_lab.sim.dataflow.elements import Signal
from headgate_lab.sim.dataflow.handler import RECORDS_MAX, Handler
from headgate_lab.sim.dataflow.methods.admission import greedy, one_direction
from headgate_lab.sim.dataflow.slot import Channel, Slot


@dataclass(frozen=True)
class Coupled:
    """Moves state with coupled signals.

    Parameters
    ----------
    at_sources : bool
        Inject at the sources and align at every operator; otherwise inject at the predecessors.
    divide : str
        *whole* (one signal for all moves), *subscales* (a signal each, two per slot at once: the naive
        division of DRRS III-C) or *groups* (a signal each, strictly serial).
    at_once : bool
        Send all units from one slot to another as one batch, and serve none at a slot before all have
        arrived. Otherwise send group by group, and serve each when it arrives (fluid).
    records_max : int
        Capacity of the buffer of record scheduling; 0: none.

    References
    ----------
    DRRS II-B and figure 1 (OTFS), V-A (Megaphone), V-C (variants).
    """

    parts: ClassVar[int] = 1

    name: str
    at_sources: bool = True
    divide: str = "whole"
    at_once: bool = False
    records_max: int = 0

    @property
    def in_rounds(self) -> bool:
        """Return True for a method with several steps."""
        return self.divide != "whole"

    def steps(self, moves: Moves) -> Sequence[tuple[Subscale, ...]]:
        """Return the subscales of each signal."""
        if not moves:
            return []
        if self.divide == "groups":
            return [(Subscale((group,), *moves[group]),) for group in sorted(moves)]
        if self.divide == "subscales":
            return [(s,) for s in plan.divide(moves, SUBSCALE_GROUPS_MIN)]
        return [tuple(Subscale(groups, *pair) for pair, groups in plan.pairs(moves).items())]

    def admit(
        self,
        waiting: Sequence[Step],
        running: Sequence[Step],
        held: Sequence[int],
        busy: Sequence[float],
    ) -> Sequence[int]:
        """Return the next step, or with the naive division those that DRRS's scheduler starts."""
        if self.divide != "subscales":
            return [] if running else [0]
        return greedy(waiting, running, held, one_direction(waiting, running), PER_HOST_MAX)

    def handler(self, slot: Slot, scaling: Scaling) -> CoupledHandler:
        """Return the handler of a scaling slot."""
        return CoupledHandler(slot, scaling, self)

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Inject the signal at the sources or predecessors."""
        flow = scaling.flow
        scaling.relay(lambda slot: Relay(slot, scaling))
        injected = flow.sources() if self.at_sources else flow.parents_of(scaling.operator)
        for slot in injected:
            assert isinstance(slot.handler, Relay), f"{slot.name} is scaling, too"
            flow.command(slot, slot.handler.inject, step)


class Aligning(Handler):
    """Blocks each channel that has brought a signal until all channels have."""

    def __init__(self, slot: Slot, scaling: Scaling, records_max: int) -> None:
        super().__init__(slot, records_max)
        self.scaling = scaling
        # Lists keep the order of arrival; the order of a set would differ between processes.
        self.seen: dict[Step, list[Channel]] = {}

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Block the channel; with the last channel the signal is aligned."""
        step: Step = signal.step
        if not self.takes_part(step):
            return
        seen = self.seen.setdefault(step, [])
        seen.append(channel)
        channel.blocked = True
        if len(seen) == len(self.slot.inputs):
            del self.seen[step]
            for blocked in seen:
                blocked.blocked = False
                self.slot.offer(blocked)
            self.slot.log.add(self.slot.clock.now_s, "aligned", self.slot.name, step=step.number)
            self.aligned(step)

    def takes_part(self, step: Step) -> bool:
        """Return whether this slot has to align for a step."""
        return True

    def aligned(self, step: Step) -> None:
        """Go on with an aligned signal."""
        raise NotImplementedError


class Relay(Aligning):
    """Aligns a signal at a slot upstream of the scaling operator, and passes it on.

    A predecessor of the scaling operator first updates its routing table.
    """

    def __init__(self, slot: Slot, scaling: Scaling) -> None:
        super().__init__(slot, scaling, 0)

    def step(self) -> bool:
        """Take an element, as a slot without a handler does."""
        found = self.slot.next_channel()
        if found is not None:
            self.slot.process(found, found.take())
        return found is not None

    def waits(self) -> bool:
        """Return False: no record waits for state here."""
        return False

    def inject(self, step: Step) -> None:
        """Inject the signal of a step at this slot."""
        self.slot.log.add(self.slot.clock.now_s, "injected", self.slot.name, step=step.number)
        self.aligned(step)

    def aligned(self, step: Step) -> None:
        """Update the routing table if this slot is a predecessor, and pass the signal on."""
        edge = self.slot.edge
        assert edge is not None
        if self.slot in self.scaling.flow.parents_of(self.scaling.operator):
            for unit, destination in step.destination_of.items():
                edge.table[unit] = destination
            self.slot.log.add(self.slot.clock.now_s, "routed", self.slot.name, step=step.number)
        for channel in edge.channels:
            channel.push(Signal("coupled", step, self.slot))


class CoupledHandler(Aligning):
    """Sends the groups of a scaling slot after the alignment; records without state wait."""

    def __init__(self, slot: Slot, scaling: Scaling, method: Coupled) -> None:
        super().__init__(slot, scaling, method.records_max)
        self.method = method
        self.here: dict[Step, dict[int, Held]] = {}
        self.leaving_s: dict[int, float] = {}
        """Unit -> watermark at its alignment; later watermarks of this slot do not apply to it."""

    def watermark_of(self, unit: int) -> float:
        """Return the watermark of a unit, which stands still while the unit is about to leave."""
        return self.leaving_s.get(unit, self.slot.watermark_s)

    def output_watermark_s(self) -> float:
        """Return the least watermark of the units here or leaving."""
        return min([self.slot.watermark_s, *self.leaving_s.values()])

    def takes_part(self, step: Step) -> bool:
        """Return whether groups leave this slot; other slots need not align."""
        return self.slot.index in step.source_of.values()

    def aligned(self, step: Step) -> None:
        """Send the groups of a step, which every predecessor has routed elsewhere by now."""
        by_destination: dict[int, list[int]] = {}
        for unit, source in step.source_of.items():
            if source == self.slot.index:
                by_destination.setdefault(step.destination_of[unit], []).append(unit)
                self.leaving_s[unit] = self.slot.watermark_s
        self.slot.log.add(self.slot.clock.now_s, "started", self.slot.name, step=step.number)
        if self.method.at_once:
            for destination, units in by_destination.items():
                self._send(step, destination, [tuple(units)])
        else:
            for destination, units in by_destination.items():
                self._send(step, destination, [(unit,) for unit in units])

    def _send(self, step: Step, destination: int, batches: Sequence[tuple[int, ...]]) -> None:
        receiver = self.scaling.slot(destination)
        for units in batches:
            leave = partial(self._leave, step, receiver, units)
            self.scaling.links.ask(self.slot, receiver, leave)

    def _leave(self, step: Step, receiver: Slot, units: tuple[int, ...]) -> None:
        batch = {unit: self.slot.store.pop(unit) for unit in units}
        for unit, held in batch.items():
            self.scaling.left(unit, held, step)
        handler = self.scaling.handlers[receiver]
        assert isinstance(handler, CoupledHandler)
        state_bytes = sum(held.state_bytes for held in batch.values())
        arrive = partial(receiver.post, handler.install, step, batch)
        self.scaling.links.carry(self.slot, receiver, state_bytes, arrive)

    def install(self, step: Step, batch: dict[int, Held]) -> None:
        """Install state; with `at_once` only when all units have arrived."""
        here = self.here.setdefault(step, {})
        here.update(batch)
        expected = [u for u, slot in step.destination_of.items() if slot == self.slot.index]
        if self.method.at_once and len(here) < len(expected):
            return
        installed = dict(here)
        here.clear()
        slot = self.slot
        for unit, held in installed.items():
            slot.store[unit] = held
            slot.log.add(slot.clock.now_s, "installed", slot.name, unit=unit, step=step.number)
            slot.fire(unit, slot.watermark_s)
        self.release()
        for unit in installed:
            source = self.scaling.slot(step.source_of[unit])
            handler = self.scaling.handlers[source]
            assert isinstance(handler, CoupledHandler)
            del handler.leaving_s[unit]
            source.advance()
            self.scaling.served(step, unit)
            self.scaling.settled(step, unit)


def all_at_once() -> Coupled:
    """Return OTFS with all-at-once migration (DRRS figure 1b)."""
    return Coupled("otfs at once", at_once=True)


def fluid() -> Coupled:
    """Return OTFS with fluid migration (DRRS figure 1c): the ablation's variant without mechanisms."""
    return Coupled("otfs fluid")


def megaphone() -> Coupled:
    """Return Megaphone as DRRS implements it: predecessors, one group per step, with the buffer."""
    return Coupled("megaphone", at_sources=False, divide="groups", records_max=RECORDS_MAX)


def only_scheduling() -> Coupled:
    """Return the ablation's variant with record scheduling alone."""
    return Coupled("only scheduling", records_max=RECORDS_MAX)


def only_subscale() -> Coupled:
    """Return the ablation's variant with division alone: signals that interfere."""
    return Coupled("only subscale", divide="subscales")
