"""Implements DRRS: decoupled signals from the predecessors, re-routing, record scheduling, subscales."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from headgate.migration import plan
from headgate.migration.plan import PER_HOST_MAX, SUBSCALE_GROUPS_MIN, Subscale
from headgate_lab.sim.dataflow.coordinator import Moves, Scaling, Step
from headgate_lab.sim.dataflow.elements import (
    Barrier,
    Element,
    Record,
    Signal,
    Watermark,
)
from headgate_lab.sim.dataflow.handler import RECORDS_MAX
from headgate_lab.sim.dataflow.methods.admission import greedy, one_direction
from headgate_lab.sim.dataflow.methods.drrs_handler import DrrsHandler, Order, Rerouting
from headgate_lab.sim.dataflow.slot import Channel, Slot


@dataclass(frozen=True)
class Drrs:
    """Moves state as DRRS does; two mechanisms can be switched off. Without decoupling, see `Coupled`.

    Parameters
    ----------
    scheduling : bool
        False: no buffer, one channel at a time, and a new slot serves no record of a subscale before the
        confirms of all predecessors have arrived (implicit alignment).
    division : bool
        False: one subscale per pair of slots, all launched at once.
    records_max : int
        Capacity of the buffer of record scheduling.
    groups_min, per_slot : int
        Least key groups of a subscale, and most subscales per slot at once.
    busy_max : float
        A slot that served for a larger share of the time since the last launch takes part in one subscale
        at a time (III-C); by default there is no such limit, as in the paper's scheduler.
    relaxed : bool
        Serve a unit as soon as its state has arrived, without confirms: each record once, but not in the
        order of its key, for tasks that tolerate it (III-B).

    References
    ----------
    DRRS III and IV-A. Differs: the paper counts subscales per node, this per slot, as its code and
    its containers of one slot each have it.
    """

    name: ClassVar[str] = "drrs"
    parts: ClassVar[int] = 1

    scheduling: bool = True
    division: bool = True
    records_max: int = RECORDS_MAX
    rerouting: Rerouting = field(default_factory=Rerouting)
    groups_min: int = SUBSCALE_GROUPS_MIN
    per_slot: int = PER_HOST_MAX
    busy_max: float = math.inf
    relaxed: bool = False

    @property
    def in_rounds(self) -> bool:
        """Return True with division, where a scheduler launches subscales in rounds."""
        return self.division

    def steps(self, moves: Moves) -> Sequence[tuple[Subscale, ...]]:
        """Return one subscale per step, in lexicographic order."""
        if self.division:
            return [(subscale,) for subscale in plan.divide(moves, self.groups_min)]
        pairs = plan.pairs(moves).items()
        return [(Subscale(groups, source, destination),) for (source, destination), groups in pairs]

    def admit(
        self,
        waiting: Sequence[Step],
        running: Sequence[Step],
        held: Sequence[int],
        busy: Sequence[float],
    ) -> Sequence[int]:
        """Return the subscales that the scheduler starts; without division all."""
        everything = list(range(len(waiting)))
        allowed = everything if self.scheduling else one_direction(waiting, running)
        if not self.division:
            return allowed
        limits = [1 if share > self.busy_max else self.per_slot for share in busy]
        return greedy(waiting, running, held, allowed, limits)

    def handler(self, slot: Slot, scaling: Scaling) -> DrrsHandler:
        """Return the handler of a scaling slot."""
        records_max = self.records_max if self.scheduling else 0
        order = Order.FREE if self.relaxed else Order.CHANNEL if self.scheduling else Order.ALL
        return DrrsHandler(slot, scaling, records_max, self.rerouting, order)

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Set up the path of a subscale, and make every predecessor inject its signals."""
        predecessors = scaling.flow.parents_of(scaling.operator)
        source, destination = ends(step, scaling)
        handler = scaling.handlers[destination]
        assert isinstance(handler, DrrsHandler)
        handler.expect(step, frozenset(predecessors))
        for slot in predecessors:
            scaling.flow.command(slot, self.inject, slot, step, source, destination)

    def inject(self, slot: Slot, step: Step, source: Slot, destination: Slot) -> None:
        """Update the routing table, then send the trigger, then the confirm.

        References
        ----------
        DRRS III-A and figure 4a; IV-C and figure 9a for a checkpoint barrier in the output cache.
        """
        assert slot.edge is not None
        now_s = slot.clock.now_s
        for unit in step.units:
            slot.edge.table[unit] = destination.index
        slot.log.add(now_s, "routed", slot.name, step=step.number)
        old = slot.edge.channels[source.index]
        new = slot.edge.channels[destination.index]
        trigger, confirm = (Signal(kind, step, slot) for kind in ("trigger", "confirm"))
        barrier = last_barrier(old.waiting)
        if barrier is None:
            slot.log.add(now_s, "trigger", slot.name, step=step.number)
            old.send_first(trigger)
            slot.log.add(now_s, "confirm", slot.name, step=step.number)
            self.overtake(old, new, step, confirm)
        else:
            slot.log.add(now_s, "integrated", slot.name, step=step.number, number=barrier.number)
            barrier.riders += [trigger, confirm]
            elements = list(old.waiting)
            behind = elements.index(barrier) + 1
            self.redirect(old, new, step, elements[:behind], elements[behind:])

    def overtake(self, old: Channel, new: Channel, step: Step, confirm: Signal) -> None:
        """Put the confirm at the front of the output cache, and redirect the records that it overtook."""
        self.redirect(old, new, step, [confirm], list(old.waiting))

    def redirect(
        self,
        old: Channel,
        new: Channel,
        step: Step,
        before: Sequence[Element],
        overtaken: Sequence[Element],
    ) -> None:
        """Move overtaken records of a step's units from one output cache to another, in order.

        Watermarks go to both caches; the other elements stay in order after `before`.
        """
        stay, leave = deque(before), list[Element]()
        for element in overtaken:
            if isinstance(element, Record) and element.unit in step.destination_of:
                leave.append(element)
                continue
            stay.append(element)
            if isinstance(element, Watermark):
                leave.append(element)
        # Replace the cache at once, so that no element departs before the signal at its front.
        old.rewrite(stay)
        new.push(Signal("opening", step, new.sender))
        for element in leave:
            new.push(element)
        moved = sum(element.count for element in leave)
        new.sender.log.add(
            new.sender.clock.now_s, "redirected", new.sender.name, step=step.number, records=moved
        )


def ends(step: Step, scaling: Scaling) -> tuple[Slot, Slot]:
    """Return source and destination of a step's only subscale."""
    (subscale,) = step.subscales
    return scaling.slot(subscale.source), scaling.slot(subscale.destination)


def last_barrier(waiting: deque[Element]) -> Barrier | None:
    """Return the last checkpoint barrier in an output cache."""
    found = [element for element in waiting if isinstance(element, Barrier)]
    return found[-1] if found else None
