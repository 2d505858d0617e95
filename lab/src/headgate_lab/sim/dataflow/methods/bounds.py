"""Implements the two bounds for all methods: no synchronisation at all, and a full stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from headgate.migration import plan
from headgate.migration.plan import Subscale
from headgate_lab.sim.dataflow.behaviours import Held
from headgate_lab.sim.dataflow.coordinator import Moves, Scaling, Step
from headgate_lab.sim.dataflow.elements import Record
from headgate_lab.sim.dataflow.handler import Handler, Verdict
from headgate_lab.sim.dataflow.methods.coupled import Aligning, Relay
from headgate_lab.sim.dataflow.slot import Channel, Slot


class _Whole:
    """Moves all key groups in one step."""

    parts: ClassVar[int] = 1
    in_rounds: ClassVar[bool] = False

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
        """Return the next step once none runs."""
        return [] if running else [0]


@dataclass(frozen=True)
class Unbound(_Whole):
    """Uses no synchronisation: any slot serves any record with the state it has; answers are wrong.

    References
    ----------
    DRRS II-B and figure 2: an upper bound of speed.
    """

    name: ClassVar[str] = "unbound"

    def handler(self, slot: Slot, scaling: Scaling) -> UnboundHandler:
        """Return the handler of a scaling slot."""
        return UnboundHandler(slot)

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Make the predecessors route and the old slots send, at once."""
        flow = scaling.flow
        for slot in flow.parents_of(scaling.operator):
            flow.command(slot, _route, slot, step)
        for slot in flow.slots[scaling.operator]:
            flow.command(slot, self.start, slot, step, scaling)

    def start(self, slot: Slot, step: Step, scaling: Scaling) -> None:
        """Send the units that leave a slot, one by one."""
        for unit, source in step.source_of.items():
            if source == slot.index:
                receiver = scaling.slot(step.destination_of[unit])
                leave = partial(self._leave, slot, receiver, unit, step, scaling)
                scaling.links.ask(slot, receiver, leave)

    def _leave(self, slot: Slot, receiver: Slot, unit: int, step: Step, scaling: Scaling) -> None:
        held = slot.store.pop(unit)
        scaling.left(unit, held, step)
        arrive = partial(receiver.post, self._install, receiver, unit, held, step, scaling)
        scaling.links.carry(slot, receiver, held.state_bytes, arrive)

    def _install(self, slot: Slot, unit: int, held: Held, step: Step, scaling: Scaling) -> None:
        here = slot.store.setdefault(unit, Held())
        here.state_bytes += held.state_bytes
        here.values.update(held.values)
        slot.log.add(slot.clock.now_s, "installed", slot.name, unit=unit, step=step.number)
        scaling.served(step, unit)
        scaling.settled(step, unit)


class UnboundHandler(Handler):
    """Serves every record."""

    def verdict(self, channel: Channel, record: Record) -> Verdict:
        """Return SERVE; a unit without state starts with an empty one."""
        self.slot.store.setdefault(record.unit, Held())
        return Verdict.SERVE


@dataclass(frozen=True)
class StopRestart(_Whole):
    """Stops the sources, drains the slots, writes a checkpoint, and restarts from it.

    Parameters
    ----------
    restart_s : float
        Time to stop and start the job, without reading and writing; chosen, not from the paper.
    store_bytes_per_s : float
        Bandwidth of the checkpoint store, for all slots together.

    References
    ----------
    DRRS I and II-A: the method of mainstream engines.
    """

    name: ClassVar[str] = "stop-restart"

    restart_s: float = 10.0
    store_bytes_per_s: float = 500e6

    def handler(self, slot: Slot, scaling: Scaling) -> StoppingHandler:
        """Return the handler of a scaling slot."""
        return StoppingHandler(slot, scaling, self)

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Stop the sources after a last signal."""
        scaling.relay(lambda slot: Relay(slot, scaling))
        slots = set(scaling.flow.slots[scaling.operator])
        for slot in slots:
            handler = scaling.handlers[slot]
            assert isinstance(handler, StoppingHandler)
            handler.undrained = slots
        for source in scaling.flow.sources():
            relay = scaling.handlers[source]
            assert isinstance(relay, Relay)
            scaling.flow.command(source, self._stop, source, relay, step)

    def _stop(self, source: Slot, relay: Relay, step: Step) -> None:
        source.paused = True
        relay.inject(step)

    def stopped(self, step: Step, scaling: Scaling) -> None:
        """Write and read all state, after every slot has drained."""
        slots = scaling.flow.slots[scaling.operator]
        total = sum(held.state_bytes for slot in slots for held in slot.store.values())
        down_s = self.restart_s + 2 * total / self.store_bytes_per_s
        scaling.flow.clock.after(down_s, self._restart, step, scaling)

    def _restart(self, step: Step, scaling: Scaling) -> None:
        for unit, destination in step.destination_of.items():
            source, receiver = scaling.slot(step.source_of[unit]), scaling.slot(destination)
            held = source.store.pop(unit)
            scaling.left(unit, held, step)
            receiver.store[unit] = held
        for unit in step.units:
            scaling.served(step, unit)
            scaling.settled(step, unit)
        for source in scaling.flow.sources():
            source.paused = False
            source.wake()


class StoppingHandler(Aligning):
    """Detects that its slot has drained."""

    def __init__(self, slot: Slot, scaling: Scaling, method: StopRestart) -> None:
        super().__init__(slot, scaling, 0)
        self.method = method
        self.undrained: set[Slot] = set()
        """Slots for which a stop still waits, shared by all handlers; slots deployed later do not
        count."""

    def takes_part(self, step: Step) -> bool:
        """Return whether this slot existed when the stop was launched."""
        return self.slot in self.undrained

    def aligned(self, step: Step) -> None:
        """Report that the slot has drained; after the last slot, write the checkpoint."""
        self.undrained.discard(self.slot)
        if not self.undrained:
            self.method.stopped(step, self.scaling)


def _route(slot: Slot, step: Step) -> None:
    assert slot.edge is not None
    for unit, destination in step.destination_of.items():
        slot.edge.table[unit] = destination
    slot.log.add(slot.clock.now_s, "routed", slot.name, step=step.number)
