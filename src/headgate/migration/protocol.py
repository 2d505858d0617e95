"""Migrates one operator: events in, instructions out; no clock, no I/O.

A migration takes each subscale through its phases, one instruction at a time. It gives the next
instruction when every key group has answered the last one. So it needs no answer twice and cannot confuse
two answers. It repeats an instruction without an answer. Strategies choose the sets that move, their
phases, and the sets that may go on; strategies change no state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError, ProtocolError
from headgate.migration import events, registry
from headgate.migration.events import Answer, Cause, Event, Requested
from headgate.migration.instructions import (
    Forward,
    Hold,
    Install,
    Instruction,
    Prefetch,
    Release,
    Route,
)
from headgate.migration.plan import Plan
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.strategy import Situation, Strategy

PATIENCE_BOUNDARIES = 4
"""Boundaries without all answers after which an instruction is repeated; more wait longer. Chosen."""

RETRIES = 2
"""Failures that a subscale may have; with one more, the whole migration goes back. Chosen."""

_STORY_EVENTS = 20
_STAYER_PATH = (Phase.HOLD, Phase.RELEASE)
_ANSWERED_BY: Mapping[type[Answer], Phase] = {
    events.CaughtUp: Phase.PREFETCH,
    events.Forwarded: Phase.FORWARD,
    events.Installed: Phase.INSTALL,
    events.Released: Phase.RELEASE,
}


class Migration:
    """Brings an operator from one assignment to another; rests between two requests.

    Ends in the assignment of the last request. If a subscale fails too often, the migration goes back to
    the old assignment, and does not give up on the way back. Only `handle` and `resume` change a
    migration. The manifest contains `to_dict`; `from_dict` and then `resume` continue from a manifest.

    `current`: the assignment in force.

    Attributes
    ----------
    current : Assignment    The last assignment that the migration reached in full.
    target : Assignment    The assignment that the migration leads to; `current` at rest.
    superseded : list of Assignment
        Targets of this migration that a later request replaced or a failure gave up, oldest first.
    failed : str    Why the last migration went back; empty if it did not.
    strategy : Strategy or None    None before the first request.
    owners : list of int
        Entry g is the slot that owns key group g, once all given routes are in force; every key group
        has exactly one owner at all times.
    hosts : tuple of str    Host of each slot, as last reported.
    subscales : list of SubscaleProgress
        Subscales of this migration, done or not; empty at rest. A key group is in at most one subscale
        that is not done.
    demanded : set of int    Key groups that a record waits for.
    story : deque of Event    The last events, for error messages; not in `to_dict`.

    References
    ----------
    DRRS III and IV. A superseded or failing migration never undoes a route: it drops subscales without
    a route, sends on routed groups that are not installed, and lets all other groups arrive first.
    """

    def __init__(self, current: Assignment) -> None:
        self.current = current
        self.target = current
        self.superseded: list[Assignment] = []
        self.failed = ""
        self.strategy: Strategy | None = None
        self.owners = list(current.slot_of)
        self.hosts: tuple[str, ...] = ()
        self.subscales: list[SubscaleProgress] = []
        self.demanded: set[int] = set()
        self.story: deque[Event] = deque(maxlen=_STORY_EVENTS)
        self._orders = 0
        self._numbers = 0
        self._boundary = 0
        self._given: list[Instruction] = []

    @property
    def running(self) -> bool:
        """Return whether a migration is under way."""
        return bool(self.subscales)

    def refusal(self, request: Requested) -> str | None:
        """Return why `request` may not replace the migration under way, or None.

        A policy may not supersede its own migration. A request by hand may, and so may a request for a
        severe slot that takes no part in the migration, if the strategy can be superseded.
        """
        if not self.running:
            return None
        if not self._strategy.supersedable:
            return f"{self._strategy} cannot be superseded; wait for its end, or use subscale."
        if request.cause is Cause.POLICY:
            return "a policy may not supersede its own migration; wait for its end."
        involved = {s for p in self._unfinished() for s in (p.source, p.destination)}
        if request.cause is Cause.SEVERE and request.slot in involved:
            return f"slot {request.slot} takes part in the migration under way; wait for its end."
        return None

    def handle(self, event: Event) -> tuple[Instruction, ...]:
        """Handle an event, and return the engine's next instructions, in sequence.

        Raises `ConfigError`: the strategy cannot carry out a request, or a request names too few hosts;
        `ProtocolError`: a request may not supersede, an event names an unknown order or key group, or
        an answer belongs to another phase.
        """
        self.story.append(event)
        match event:
            case Requested():
                self._on_request(event)
            case events.Boundary():
                self._on_boundary(event)
            case events.HostLost():
                if event.after >= self._boundary:
                    self._set_hosts(event.hosts)
            case events.Demanded():
                self._check_group(event.group)
                self.demanded.add(event.group)
            case events.Failed():
                self._fail(event)
            case _:
                self._on_answer(event)
        return self._go_on()

    def resume(self) -> tuple[Instruction, ...]:
        """Return the instructions without all answers, to repeat them after a restart.

        Answers to a dead driver must not reach the driver that resumes: reports of the engine name the
        run that they belong to.
        """
        for progress in self._unfinished():
            if progress.order is not None and not progress.complete:
                self._repeat(progress)
        return self._go_on()

    # Events.

    def _on_request(self, request: Requested) -> None:
        plan = Plan(self._owned(), request.target, request.hosts)
        why = self.refusal(request)
        if why is not None:
            raise ProtocolError(self._with_story(why))
        if self.running:
            self.superseded.append(self.target)
        else:
            chosen = registry.strategy(request.strategy) if request.strategy else None
            strategy = chosen or registry.default(plan)
            why = strategy.refusal(plan)
            if why is not None:
                raise ConfigError(why)
            self.strategy = strategy
            self.superseded.clear()
            self.demanded.clear()
        self.failed = ""
        self._set_hosts(request.hosts)
        self._aim(request.target)

    def _on_boundary(self, boundary: events.Boundary) -> None:
        if boundary.number <= self._boundary:
            return
        if max(boundary.in_force, default=-1) >= self._orders:
            raise ProtocolError(self._with_story(f"{boundary} names an order never given."))
        self._boundary = boundary.number
        self._set_hosts(boundary.hosts)
        for progress in self._unfinished():
            if progress.phase in (Phase.HOLD, Phase.ROUTE) and progress.order in boundary.in_force:
                progress.answered.update(progress.groups)
            if progress.complete:
                continue
            if progress.order is None:
                self._give(progress)
            elif self._boundary - progress.sent >= PATIENCE_BOUNDARIES:
                self._repeat(progress)

    def _on_answer(self, answer: Answer) -> None:
        self._check_group(answer.group)
        progress = self._by_order(answer.order)
        if progress is None:
            return
        if progress.phase is not _ANSWERED_BY[type(answer)]:
            msg = f"{answer} answers an order to {progress.phase.name.lower()}."
            raise ProtocolError(self._with_story(msg))
        if isinstance(answer, events.CaughtUp | events.Installed):
            if answer.host != self.hosts[progress.destination]:
                return
        if answer.group in progress.groups:
            progress.answered.add(answer.group)

    def _fail(self, event: events.Failed) -> None:
        progress = self._by_order(event.order)
        if progress is None or progress.complete:
            return
        # The next boundary repeats the instruction under a new order: a doubled event counts once.
        progress.order = None
        progress.failures += 1
        if progress.failures > RETRIES and not self.failed:
            self.failed = event.why
            self.superseded.append(self.target)
            back = Assignment(self.current.slot_of, self.current.slots, self.target.epoch + 1)
            self._aim(back)

    def _set_hosts(self, hosts: tuple[str, ...]) -> None:
        old, self.hosts = self.hosts, hosts + self.hosts[len(hosts) :]
        changed = {s for s, host in enumerate(old) if host != self.hosts[s]}
        for progress in self._unfinished():
            if progress.phase is Phase.PENDING or progress.source == progress.destination:
                continue
            if not changed.isdisjoint((progress.source, progress.destination)):
                progress.across = True
            if progress.destination in changed:
                self._start_over(progress)

    def _start_over(self, progress: SubscaleProgress) -> None:
        """Ask the new host for the work that the lost host had done."""
        if progress.phase in (Phase.PREFETCH, Phase.INSTALL):
            progress.answered.clear()
            self._give(progress)

    # Targets.

    def _aim(self, target: Assignment) -> None:
        """Set a new target, and adapt the subscales that are under way."""
        self.target = target
        self.subscales = [p for p in self.subscales if p.phase is not Phase.PENDING]
        for progress in self._unfinished():
            if progress.phase < Phase.ROUTE:
                progress.destination = progress.source
                self._enter(progress, Phase.RELEASE)
            elif progress.phase is Phase.INSTALL:
                self._redirect(progress)
        self._plan_what_is_missing()

    def _redirect(self, progress: SubscaleProgress) -> None:
        """Send on the groups that are not installed yet and that the target gives to another slot."""
        wanted = self.target.slot_of
        stray = [
            g
            for g in progress.groups
            if g not in progress.answered and wanted[g] != progress.destination
        ]
        if not stray:
            return
        progress.groups = tuple(g for g in progress.groups if g not in stray)
        if not progress.groups:
            self.subscales.remove(progress)
        for slot in sorted({wanted[g] for g in stray}):
            groups = tuple(g for g in stray if wanted[g] == slot)
            onward = self._add(groups, progress.destination, slot)
            onward.across = True
            self._enter(onward, Phase.ROUTE)

    def _plan_what_is_missing(self) -> None:
        """Plan the moves of groups that no subscale has and that the target gives to another slot."""
        busy = {g for p in self._unfinished() for g in p.groups}
        wanted = self.target.slot_of
        free = {g: slot for g, slot in enumerate(self.owners) if g not in busy}
        moves = {g: (slot, wanted[g]) for g, slot in free.items() if slot != wanted[g]}
        if moves:
            stay = {g: slot for g, slot in free.items() if g not in moves}
            for subscale in self._strategy.divide(moves, stay):
                self._add(subscale.groups, subscale.source, subscale.destination)

    def _add(self, groups: tuple[int, ...], source: int, destination: int) -> SubscaleProgress:
        progress = SubscaleProgress(self._numbers, groups, source, destination)
        self._numbers += 1
        self.subscales.append(progress)
        return progress

    # Progress.

    def _go_on(self) -> tuple[Instruction, ...]:
        """Advance every subscale that may advance, and return all new instructions."""
        while self._advance():
            pass
        if not self._unfinished():
            self.current = self.target
            self.subscales.clear()
            self.demanded.clear()
        self.validate()
        instructions, self._given = tuple(self._given), []
        return instructions

    def _advance(self) -> bool:
        """Move subscales one phase on; return whether any moved."""
        waiting: dict[Phase, list[SubscaleProgress]] = {}
        for progress in self._unfinished():
            if progress.complete:
                waiting.setdefault(self._next(progress), []).append(progress)
        for progress in waiting.pop(Phase.DONE, []):
            progress.phase, progress.order = Phase.DONE, None
            self.demanded.difference_update(progress.groups)
            self._plan_what_is_missing()
            return True
        for phase, ready in sorted(waiting.items()):
            admitted = self._strategy.admit(phase, ready, self._situation())
            for progress in admitted:
                self._enter(progress, phase)
            if admitted:
                return True
        return False

    def _next(self, progress: SubscaleProgress) -> Phase:
        return next((p for p in self._path(progress) if p > progress.phase), Phase.DONE)

    def _path(self, progress: SubscaleProgress) -> Iterable[Phase]:
        if progress.source == progress.destination and not progress.across:
            return _STAYER_PATH
        return self._strategy.path(across=self._across(progress))

    def _across(self, progress: SubscaleProgress) -> bool:
        return progress.across or (self.hosts[progress.source] != self.hosts[progress.destination])

    def _enter(self, progress: SubscaleProgress, phase: Phase) -> None:
        progress.across = self._across(progress)
        progress.phase, progress.answered = phase, set()
        if phase is Phase.ROUTE:
            for group in progress.groups:
                self.owners[group] = progress.destination
        if phase is Phase.INSTALL:
            self._redirect(progress)
            if not progress.groups:
                return
        self._give(progress)
        if phase is Phase.PREFETCH and not self._strategy.awaits_prefetch:
            progress.answered.update(progress.groups)

    def _give(self, progress: SubscaleProgress) -> None:
        """Give the instruction of the phase under a new order."""
        progress.order = self._orders
        self._orders += 1
        self._repeat(progress)

    def _repeat(self, progress: SubscaleProgress) -> None:
        """Give the instruction of the phase to the groups that have not answered."""
        assert progress.order is not None
        progress.sent = self._boundary
        order = progress.order
        groups = tuple(g for g in progress.groups if g not in progress.answered)
        host = self.hosts[progress.destination]
        slot = progress.destination
        make: dict[Phase, Callable[[], Instruction]] = {
            Phase.HOLD: lambda: Hold(order, groups),
            Phase.PREFETCH: lambda: Prefetch(order, groups, host),
            Phase.ROUTE: lambda: Route(order, groups, slot, self._strategy.deferred_max),
            Phase.FORWARD: lambda: Forward(order, groups, progress.source, slot),
            Phase.INSTALL: lambda: Install(order, groups, host, self._strategy.resume),
            Phase.RELEASE: lambda: Release(order, groups),
        }
        self._given.append(make[progress.phase]())

    # The state, as other methods need it.

    @property
    def _strategy(self) -> Strategy:
        assert self.strategy is not None
        return self.strategy

    def _unfinished(self) -> list[SubscaleProgress]:
        return [p for p in self.subscales if p.phase is not Phase.DONE]

    def _by_order(self, order: int) -> SubscaleProgress | None:
        if order >= self._orders:
            raise ProtocolError(self._with_story(f"order {order} was never given."))
        return next((p for p in self._unfinished() if p.order == order), None)

    def _check_group(self, group: int) -> None:
        if not 0 <= group < len(self.owners):
            msg = f"key group {group} does not exist; use 0 to {len(self.owners) - 1}."
            raise ProtocolError(self._with_story(msg))

    def _owned(self) -> Assignment:
        """Return the assignment once all given routes are in force, with every slot still in use."""
        known = (self.current, self.target, *self.superseded)
        return Assignment(tuple(self.owners), max(a.slots for a in known), self.target.epoch)

    def _situation(self) -> Situation:
        unfinished = self._unfinished()
        held = [0] * len(self.hosts)
        for slot in self.owners:
            held[slot] += 1
        for progress in unfinished:
            if progress.phase is not Phase.PENDING:
                for group in progress.groups:
                    held[self.owners[group]] -= 1
        reached = {p.number: self._next(p) if p.complete else p.phase for p in unfinished}
        return Situation(
            tuple(unfinished), reached, tuple(held), self.hosts, frozenset(self.demanded)
        )

    def _with_story(self, message: str) -> str:
        before = "; ".join(repr(event) for event in list(self.story)[:-1])
        return f"{message} Before it: {before or 'nothing'}"

    def validate(self) -> None:
        """Assert the invariants that hold between two events."""
        slots = self._owned().slots
        assert len(self.owners) == self.current.key_groups, "a key group has no owner"
        assert all(0 <= slot < slots for slot in self.owners), "an owner does not exist"
        unfinished = self._unfinished()
        groups = [g for p in unfinished for g in p.groups]
        assert len(groups) == len(set(groups)), "a key group is in two subscales"
        orders = [p.order for p in unfinished if p.order is not None]
        assert len(orders) == len(set(orders)), "an order is given twice"
        for progress in unfinished:
            assert progress.groups, "a subscale is empty"
            owner = progress.source if progress.phase < Phase.ROUTE else progress.destination
            assert all(self.owners[g] == owner for g in progress.groups), "two slots own a group"
        if not self.running:
            assert self.target == self.current, "at rest on the way"
            assert tuple(self.owners) == self.current.slot_of, "ended between two assignments"

    # Plain data for the manifest.

    def to_dict(self) -> dict[str, Any]:
        """Return the whole state as plain data."""
        return {
            "strategy": str(self.strategy) if self.strategy else "",
            "current": plain(self.current),
            "target": plain(self.target),
            "superseded": [plain(assignment) for assignment in self.superseded],
            "failed": self.failed,
            "owners": list(self.owners),
            "hosts": list(self.hosts),
            "subscales": [progress.to_dict() for progress in self.subscales],
            "demanded": sorted(self.demanded),
            "orders": self._orders,
            "numbers": self._numbers,
            "boundary": self._boundary,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Migration:
        """Return the migration that `to_dict` wrote; `resume` continues it."""
        migration = cls(assignment_of(data["current"]))
        migration.strategy = registry.strategy(data["strategy"]) if data["strategy"] else None
        migration.target = assignment_of(data["target"])
        migration.superseded = [assignment_of(assignment) for assignment in data["superseded"]]
        migration.failed = data["failed"]
        migration.owners = list(data["owners"])
        migration.hosts = tuple(data["hosts"])
        migration.subscales = [
            SubscaleProgress.from_dict(progress) for progress in data["subscales"]
        ]
        migration.demanded = set(data["demanded"])
        migration._orders = data["orders"]
        migration._numbers = data["numbers"]
        migration._boundary = data["boundary"]
        migration.validate()
        return migration


def plain(assignment: Assignment) -> dict[str, Any]:
    """Return an assignment as plain data; see `assignment_of`."""
    data: dict[str, Any] = {
        "slot_of": list(assignment.slot_of),
        "slots": assignment.slots,
        "epoch": assignment.epoch,
    }
    if assignment.split:
        data["split"] = [[group, *shares] for group, shares in assignment.split.items()]
    return data


def assignment_of(data: Mapping[str, Any]) -> Assignment:
    """Return the assignment that `plain` wrote."""
    split = {group: tuple(shares) for group, *shares in data.get("split", ())}
    return Assignment(tuple(data["slot_of"]), data["slots"], data["epoch"], split)
