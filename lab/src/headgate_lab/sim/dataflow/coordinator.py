"""Coordinates scaling: makes steps of a request, launches them, and ends the operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headgate.core.assignment import Assignment
from headgate.migration.plan import Subscale
from headgate_lab.sim.dataflow.behaviours import Held
from headgate_lab.sim.dataflow.dataflow import Dataflow
from headgate_lab.sim.dataflow.handler import Handler
from headgate_lab.sim.dataflow.slot import Slot

Moves = Mapping[int, tuple[int, int]]
"""Key group -> source and destination slot."""


@dataclass(eq=False)
class Step:
    """Holds the subscales of one signal, which are launched together.

    Attributes
    ----------
    subscales : tuple of Subscale
        Subscales, in key groups.
    source_of, destination_of : dict of int to int
        Unit -> slot.
    missing : set of int
        Units that are not served at their new slot yet.
    unsettled : set of int
        Units whose move the method still tracks.
    """

    number: int
    subscales: tuple[Subscale, ...]
    source_of: dict[int, int] = field(default_factory=dict)
    destination_of: dict[int, int] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    unsettled: set[int] = field(default_factory=set)

    @property
    def units(self) -> tuple[int, ...]:
        """Return the units that move, in order."""
        return tuple(self.source_of)


@dataclass(frozen=True)
class Timing:
    """Holds the times that all methods share.

    Attributes
    ----------
    deploy_s : float
        Time from the request until new slots run.
    round_s : float
        Time between two launches of a method that launches in rounds; 1 s in DRRS's code.
    """

    deploy_s: float = 0.0
    round_s: float = 0.0


class Method(Protocol):
    """Defines a method that moves state while records flow."""

    @property
    def name(self) -> str:
        """Return the method's name in tables."""

    @property
    def parts(self) -> int:
        """Units per key group."""

    @property
    def in_rounds(self) -> bool:
        """Return whether the method launches one step per round, as DRRS's scheduler does."""

    def steps(self, moves: Moves) -> Sequence[tuple[Subscale, ...]]:
        """Return the subscales of each step, in order."""

    def admit(
        self,
        waiting: Sequence[Step],
        running: Sequence[Step],
        held: Sequence[int],
        busy: Sequence[float],
    ) -> Sequence[int]:
        """Return the indices of the waiting steps that may start.

        `held` has the number of key groups of each slot, `busy` its recent share of time with records.
        """

    def handler(self, slot: Slot, scaling: Scaling) -> Handler:
        """Return the handler of a slot of the scaling operator."""

    def launch(self, step: Step, scaling: Scaling) -> None:
        """Send the signals of a step."""


class Scaling:
    """Scales one operator, with at most one operation at a time, which a later request supersedes.

    Attributes
    ----------
    owner : list of int
        Key group -> slot, as of the last launch.
    running : list of Step
        Launched steps with units that are not served at their new slot yet.
    settling : list of Step
        Launched steps that are not settled; a superset of `running`.
    """

    def __init__(
        self, flow: Dataflow, operator: str, method: Method, timing: Timing | None = None
    ) -> None:
        self.flow, self.operator, self.method = flow, operator, method
        self.timing = timing or Timing()
        self.owner = list(flow.assignments[operator].slot_of)
        self.waiting: list[Step] = []
        self.running: list[Step] = []
        self.settling: list[Step] = []
        self.handlers: dict[Slot, Handler] = {}
        self.links = Links(flow)
        self._target = flow.assignments[operator]
        self._deployed = False
        self._active = False
        self._in_round = False
        self._steps = 0
        self._looked_s = 0.0
        self._busy_s: dict[Slot, float] = {}
        self._shares: dict[Slot, float] = {}

    def request(self, target: Assignment) -> None:
        """Scale to an assignment; steps of an earlier request that are not launched yet are dropped.

        References
        ----------
        DRRS IV-B1. Differs: launched subscales are completed, not divided; then their groups move to the
        slots of the new request.
        """
        self._log("requested", slots=target.slots)
        if self._active:
            self._log("superseded", dropped=len(self.waiting))
        self._active, self._target = True, target
        self._deployed = False
        self.waiting.clear()
        self.flow.clock.after(self.timing.deploy_s, self._deploy, target)

    @property
    def active(self) -> bool:
        """Return whether an operation is under way."""
        return self._active

    def slot(self, index: int) -> Slot:
        """Return a slot of the scaling operator."""
        return self.flow.slots[self.operator][index]

    def relay(self, handler: Callable[[Slot], Handler]) -> None:
        """Give every slot upstream of the scaling operator a handler, unless it has one."""
        for slot in self.flow.upstream_of(self.operator):
            if slot not in self.handlers:
                slot.handler = self.handlers[slot] = handler(slot)

    def served(self, step: Step, unit: int) -> None:
        """Record that a unit is served at its new slot."""
        step.missing.discard(unit)
        if not step.missing and step in self.running:
            self.running.remove(step)
            self._log("acknowledged", step=step.number)
            self._go_on()

    def settled(self, step: Step, unit: int) -> None:
        """Record that the move of a unit is complete."""
        step.unsettled.discard(unit)
        if not step.unsettled and step in self.settling:
            self.settling.remove(step)
            self._log("settled", step=step.number)
            self._plan()
            self._go_on()

    def left(self, unit: int, held: Held, step: Step) -> None:
        """Log that a unit left its slot."""
        self._log(
            "left",
            self.slot(step.source_of[unit]).name,
            unit=unit,
            step=step.number,
            state_bytes=held.state_bytes,
        )

    def _log(self, kind: str, slot: str = "", **detail: object) -> None:
        flow = self.flow
        flow.log.add(flow.clock.now_s, kind, slot, operator=self.operator, **detail)

    def _deploy(self, target: Assignment) -> None:
        if target is not self._target:
            return  # superseded before it was deployed
        missing = target.slots - len(self.flow.slots[self.operator])
        if missing > 0:
            self.flow.add_slots(self.operator, missing)
        fresh = [s for s in self.flow.slots[self.operator] if s not in self.handlers]
        for slot in fresh:
            slot.handler = self.handlers[slot] = self.method.handler(slot, self)
        self._log("set up", slots=[slot.name for slot in fresh])
        self._deployed = True
        self._plan()
        self._go_on()

    def _plan(self) -> None:
        """Make steps for the groups that are not at their target slot and not under way."""
        if not self._deployed:
            return
        busy = {
            g for step in (*self.waiting, *self.settling) for s in step.subscales for g in s.groups
        }
        moves = {
            group: (source, destination)
            for group, (source, destination) in enumerate(
                zip(self.owner, self._target.slot_of, strict=True)
            )
            if source != destination and group not in busy
        }
        for subscales in self.method.steps(moves):
            self._steps += 1
            self.waiting.append(self._step(self._steps, subscales))

    def _step(self, number: int, subscales: tuple[Subscale, ...]) -> Step:
        step = Step(number, subscales)
        for subscale in subscales:
            for unit in self.flow.units(self.operator, subscale.groups):
                step.source_of[unit] = subscale.source
                step.destination_of[unit] = subscale.destination
        step.missing, step.unsettled = set(step.units), set(step.units)
        return step

    def _go_on(self) -> None:
        if not self.waiting and not self.settling and self._deployed:
            self._finish()
        elif self.waiting and not self._in_round:  # otherwise the next round launches
            self._launch()

    def _launch(self) -> None:
        self._in_round = False
        slots = max(len(self.flow.slots[self.operator]), self._target.slots)
        held = [0] * slots
        for step in self.running:
            for subscale in step.subscales:
                held[subscale.destination] -= len(subscale.groups)  # `schedule` adds them
        for slot in self.owner:
            held[slot] += 1
        chosen = list(self.method.admit(self.waiting, self.running, held, self._busy(slots)))
        in_rounds = self.method.in_rounds and self.timing.round_s > 0
        for step in [self.waiting[index] for index in (chosen[:1] if in_rounds else chosen)]:
            self.waiting.remove(step)
            self._start(step)
        if in_rounds and self.waiting:
            self._in_round = True
            self.flow.clock.after(self.timing.round_s, self._launch)

    def _busy(self, slots: int) -> list[float]:
        """Return the share of time that each slot served since the last call."""
        now_s, there = self.flow.clock.now_s, self.flow.slots[self.operator]
        if now_s > self._looked_s:
            passed_s, self._looked_s = now_s - self._looked_s, now_s
            self._shares = {s: (s.busy_s - self._busy_s.get(s, 0.0)) / passed_s for s in there}
            self._busy_s = {slot: slot.busy_s for slot in there}
        shares = [self._shares.get(slot, 0.0) for slot in there]
        return shares + [0.0] * (slots - len(shares))

    def _start(self, step: Step) -> None:
        self.running.append(step)
        self.settling.append(step)
        for subscale in step.subscales:
            for group in subscale.groups:
                self.owner[group] = subscale.destination
        assignment = self.flow.assignments[self.operator]
        slots = max(assignment.slots, self._target.slots)
        self.flow.assignments[self.operator] = Assignment(
            tuple(self.owner), slots, assignment.epoch + 1
        )
        self._log("launched", step=step.number, units=list(step.units))
        self.method.launch(step, self)

    def _finish(self) -> None:
        """End the operation: remove all handlers (DRRS IV-A)."""
        if not self._active:
            return
        self._active = False
        for slot, handler in self.handlers.items():
            handler.close()
            slot.handler = None
        self.handlers.clear()
        self._log("released")
        for slot in self.flow.slots[self.operator]:
            for channel in slot.inputs:
                slot.offer(channel)
            slot.wake()


class Links:
    """Transfers state: a slot takes part in one transfer at a time."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._busy: set[Slot] = set()
        self._waiting: list[tuple[Slot, Slot, Callable[[], None]]] = []

    def ask(
        self,
        source: Slot,
        destination: Slot,
        send: Callable[[], None],
        *,
        urgent: bool = False,
    ) -> None:
        """Call ``send()``, which must end in `carry`, when both slots are free.

        An urgent transfer comes before all waiting ones.
        """
        self._waiting.insert(0 if urgent else len(self._waiting), (source, destination, send))
        self._next()

    def carry(
        self, source: Slot, destination: Slot, state_bytes: float, arrive: Callable[[], None]
    ) -> None:
        """Call ``arrive()`` when the bytes have arrived; both slots are free a latency earlier."""
        network = self._flow.job.network
        delay_s = network.state_unit_s + state_bytes / network.state_bytes_per_s
        self._flow.clock.after(delay_s, self._free, source, destination)
        self._flow.clock.after(delay_s + network.latency_s, arrive)

    def _free(self, source: Slot, destination: Slot) -> None:
        self._busy -= {source, destination}
        self._next()

    def _next(self) -> None:
        for entry in list(self._waiting):
            source, destination, send = entry
            if source not in self._busy and destination not in self._busy:
                self._waiting.remove(entry)
                self._busy |= {source, destination}
                source.post(send)
