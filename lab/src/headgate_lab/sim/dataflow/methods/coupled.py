"""Coupled signals: one barrier that confirms routes and triggers migration, aligned with blocking.

The generalised on-the-fly scaling of DRRS II-B, from which Megaphone and the ablation differ by where
the signal is injected, what it is about, and how many are under way.
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
    """A rival with coupled signals.

    Parameters
    ----------
    at_sources : bool
        Inject at the sources and align at every operator, or inject at the predecessors.
    divide : str
        *whole* (one signal for all moves), *subscales* (one each, two per slot at once: the naive
        division of DRRS III-C) or *groups* (one each, strictly serial).
    at_once : bool
        Send all that leaves a slot as one batch, and serve none of it before all of it is there.
        Else group by group, each served as it arrives (fluid).
    records_max : int
        Room of the buffer of record scheduling; 0: none.

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
        """Everything that has several steps is launched as subscales are."""
        return self.divide != "whole"

    def steps(self, moves: Moves) -> Sequence[tuple[Subscale, ...]]:
        """Return what each signal is about."""
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
        """Return the next, or with the naive division as many as DRRS's scheduler lets go."""
        if self.divide != "subscales":
            return [] if running else [0]
        return greedy(waiting, running, held, one_direction(waiting, running), PER_HOST_MAX)

    def handler(self, slot: Slot, scaling: Scaling) -> CoupledHandler:
        """Return the handler of a scaling slot."""
        return CoupledHandler(slot, scaling, self)

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Send the signal to where it is injected."""
        flow = scaling.flow
        scaling.relay(lambda slot: Relay(slot, scaling))
        injected = flow.sources() if self.at_sources else flow.parents_of(scaling.operator)
        for slot in injected:
            assert isinstance(slot.handler, Relay), f"{slot.name} is scaling, too"
            flow.command(slot, slot.handler.inject, step)


class Aligning(Handler):
    """Blocks each channel that brought a signal until all channels brought it."""

    def __init__(self, slot: Slot, scaling: Scaling, records_max: int) -> None:
        super().__init__(slot, records_max)
        self.scaling = scaling
        # In the order of coming: a set's would be another one in each process.
        self.seen: dict[Step, list[Channel]] = {}

    def signal(self, channel: Channel, signal: Signal) -> None:
        """Block the channel; with the last one the signal is aligned."""
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
    """An operator before the scaling one: aligns and passes the signal on.

    A predecessor updates its routing table first. A slot that is not one only forwards.
    """

    def __init__(self, slot: Slot, scaling: Scaling) -> None:
        super().__init__(slot, scaling, 0)

    def step(self) -> bool:
        """Take an element as a slot without a handler does."""
        found = self.slot.next_channel()
        if found is not None:
            self.slot.process(found, found.take())
        return found is not None

    def waits(self) -> bool:
        """Return False: no record waits for state here."""
        return False

    def inject(self, step: Step) -> None:
        """Begin with a step here."""
        self.slot.log.add(self.slot.clock.now_s, "injected", self.slot.name, step=step.number)
        self.aligned(step)

    def aligned(self, step: Step) -> None:
        """Update the routing table if it is this slot's to update, and pass the signal on."""
        edge = self.slot.edge
        assert edge is not None
        if self.slot in self.scaling.flow.parents_of(self.scaling.operator):
            for unit, destination in step.destination_of.items():
                edge.table[unit] = destination
            self.slot.log.add(self.slot.clock.now_s, "routed", self.slot.name, step=step.number)
        for channel in edge.channels:
            channel.push(Signal("coupled", step, self.slot))


class CoupledHandler(Aligning):
    """A scaling slot: aligned, its groups leave; records wait where their state is not."""

    def __init__(self, slot: Slot, scaling: Scaling, method: Coupled) -> None:
        super().__init__(slot, scaling, method.records_max)
        self.method = method
        self.here: dict[Step, dict[int, Held]] = {}
        self.leaving_s: dict[int, float] = {}
        """Unit -> watermark at its alignment: what follows here says nothing about it any more."""

    def watermark_of(self, unit: int) -> float:
        """Return up to where a unit may be fired; one that is about to leave stands still."""
        return self.leaving_s.get(unit, self.slot.watermark_s)

    def output_watermark_s(self) -> float:
        """Return the least of what any unit, here or leaving, may still put out."""
        return min([self.slot.watermark_s, *self.leaving_s.values()])

    def takes_part(self, step: Step) -> bool:
        """Return whether groups leave this slot: the others have nothing to align for."""
        return self.slot.index in step.source_of.values()

    def aligned(self, step: Step) -> None:
        """Let the groups of a step leave: every predecessor has routed them elsewhere by now."""
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
        """Put state in place; all at once means nothing before everything is here."""
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
    """Return OTFS with fluid migration (DRRS figure 1c): the ablation's variant with nothing on."""
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
