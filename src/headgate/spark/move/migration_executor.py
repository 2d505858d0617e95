"""Carries out the instructions of the migration protocol, for one operator on Spark.

*Hold* and *route* come into force at a batch boundary (docs/design/0101). The copy thread does *prefetch*
and *install*. *Forward* needs no work, since the backlog is in the checkpoint by key group, and every
slot can read it. *Release* deletes copies that no slot uses. An answer never decides which state is
read: every slot task brings its groups to the token that the manifest names, so a late or lost copy
costs only time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.migration import events
from headgate.migration.events import Event, Requested
from headgate.migration.instructions import (
    Forward,
    Hold,
    Install,
    Instruction,
    Prefetch,
    Release,
    Route,
)
from headgate.migration.progress import Phase, SubscaleProgress
from headgate.migration.protocol import Migration
from headgate.migration.strategy import UNBOUNDED
from headgate.spark.job.job import OperatorState
from headgate.spark.move.copy_thread import CopyThread, Urgency


@dataclass(frozen=True)
class PhaseLeft:
    """Says for the journal that a subscale has left a phase."""

    what: str
    """``started``, ``held``, ``caught up``, ``routed``, ``installed`` or ``released``."""
    subscale: int
    groups: tuple[int, ...]
    source: int
    destination: int
    moved_bytes: int
    """Bytes copied for these groups since the migration began."""


_LEFT = {
    Phase.PENDING: "started",
    Phase.HOLD: "held",
    Phase.PREFETCH: "caught up",
    Phase.ROUTE: "routed",
    Phase.INSTALL: "installed",
    Phase.RELEASE: "released",
}
"""The journal's word for a phase that a subscale has left; other phases are not recorded."""


_DEFERRALS_MAX = 8
"""Most boundaries that a route waits for a copy that cannot keep up. Chosen, not tuned."""


_Phases = dict[int, tuple[Phase, SubscaleProgress]]
"""By number of a subscale: the phase at that time, and the subscale's progress."""


@dataclass
class _Durable:
    """Holds the part of a migration that the manifest keeps beside the protocol's state."""

    held: set[int] = field(default_factory=set)
    inactive: set[int] = field(default_factory=set)
    """Key groups whose state is not on their slot's host yet."""
    fence: dict[int, int] = field(default_factory=dict)
    """Key group -> highest order seen."""
    pending: dict[int, Hold | Route] = field(default_factory=dict)
    """Key group -> hold or route that comes into force at the next boundary."""
    in_force: dict[int, int] = field(default_factory=dict)
    """Key group -> order of the newest hold or route in force."""
    deferred_max: dict[int, int] = field(default_factory=dict)
    """Slot -> most deferred records, from the slot's last route."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "held": sorted(self.held),
            "inactive": sorted(self.inactive),
            "fence": sorted(self.fence.items()),
            "pending": [[g, *_plain(one)] for g, one in sorted(self.pending.items())],
            "in_force": sorted(self.in_force.items()),
            "deferred_max": sorted(self.deferred_max.items()),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> _Durable:
        pending = {g: _instruction(g, *rest) for g, *rest in data["pending"]}
        maps = (dict(data[name]) for name in ("fence", "in_force", "deferred_max"))
        fence, in_force, deferred_max = maps
        held, inactive = set(data["held"]), set(data["inactive"])
        return cls(held, inactive, fence, pending, in_force, deferred_max)


def _plain(one: Hold | Route) -> list[int]:
    return [one.order, one.slot, one.deferred_max] if isinstance(one, Route) else [one.order]


def _instruction(group: int, order: int, *route: int) -> Hold | Route:
    return Route(order, (group,), *route) if route else Hold(order, (group,))


class MigrationExecutor:
    """Runs the migration of one operator, from its request to its end.

    The batches' thread calls all methods, between two batches.

    Parameters
    ----------
    state : OperatorState
        This class reads tokens and backlog from it; the caller puts assignments into it.
    protocol : Migration    New, or read from a manifest.
    note : callable    Takes each `PhaseLeft`.

    Attributes
    ----------
    suspended_s : float
        Time for which slots had a backlog and could serve no record of it, summed over slots, under this
        driver (DRRS IV-A and V-B). Differs: a slot is suspended for a whole batch or not at all.
    """

    def __init__(
        self,
        operator: str,
        state: OperatorState,
        copy_thread: CopyThread,
        protocol: Migration,
        note: Callable[[PhaseLeft], None],
    ) -> None:
        self.operator = operator
        self.protocol = protocol
        self.suspended_s = 0.0
        self._state = state
        self._copy_thread = copy_thread
        self._note = note
        self._durable = _Durable()
        self._hosts: tuple[str, ...] = ()
        self._transfers: dict[tuple[str, int], Prefetch | Install] = {}
        self._drops: dict[tuple[str, int], int] = {}
        self._copies: dict[int, set[str]] = {}
        self._bytes: dict[int, int] = {}
        self._answered: dict[int, set[int]] = {}
        self._told: deque[Event] = deque()
        self._first: list[tuple[_Phases, tuple[Instruction, ...]]] = []
        self._owners = list(state.assignment.slot_of)
        self._resuming = False
        self._deferrals: Counter[int] = Counter()

    @classmethod
    def resumed(
        cls,
        operator: str,
        state: OperatorState,
        copy_thread: CopyThread,
        data: Mapping[str, Any],
        note: Callable[[PhaseLeft], None],
    ) -> MigrationExecutor:
        """Return a migration from the data of `to_dict`; it goes on at the first boundary."""
        found = cls(operator, state, copy_thread, Migration.from_dict(data["protocol"]), note)
        found._durable = _Durable.from_dict(data["engine"])
        found._resuming = True
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the migration in the form of the manifest."""
        return {"protocol": self.protocol.to_dict(), "engine": self._durable.to_dict()}

    @property
    def moved_bytes(self) -> int:
        """Return the bytes that this driver has copied to hosts so far."""
        return sum(self._bytes.values())

    @property
    def running(self) -> bool:
        """Return whether there is anything left to do."""
        return self.protocol.running

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the arena of each slot, as last reported."""
        return self._hosts

    def unserved(self) -> frozenset[int]:
        """Return the key groups that no slot serves in the batch that begins.

        A slot serves its other groups until it has deferred `deferred_max` records of groups that are not
        ready; then it serves no group. Deferred records are in the checkpoint already, so the bound
        only stops the slot, and the batch that reaches the bound may exceed it.
        """
        durable, owner = self._durable, self._owners
        unready = durable.held | durable.inactive
        deferred = Counter({owner[group]: 0 for group in unready})
        for group in unready:
            deferred[owner[group]] += self._state.waiting_rows_of(group)
        room = durable.deferred_max
        stopped = {s for s, rows in deferred.items() if rows >= room.get(s, UNBOUNDED)}
        return frozenset(unready | {g for g, slot in enumerate(owner) if slot in stopped})

    # -- between two batches ----------------------------------------------------------------------

    def request(self, request: Requested) -> None:
        """Take a request; its instructions are carried out at the next boundary.

        Raises `ConfigError`: the request's strategy cannot carry it out.
        """
        if request.hosts != self._hosts:
            self._moved_to(request.hosts)
        before = self._phases()
        self._first.append((before, self.protocol.handle(request)))

    def announce(self, step: int) -> dict[int, int]:
        """Return the new slots of key groups whose route can come into force at the next boundary.

        `step`: the last committed step.
        """
        pending = self._durable.pending
        return {
            group: one.slot
            for group, one in pending.items()
            if self._hosts and isinstance(one, Route) and not self._deferred(group, step)
        }

    def pass_boundary(
        self, step: int, hosts: tuple[str, ...], routed: Iterable[int] | None = None
    ) -> Sequence[int] | None:
        """Pass the boundary before `step`; return the new owners of key groups, None if they stay.

        `hosts`: arena of each slot, of the old and of the new assignment. `routed`: key groups
        whose records already go to the slots that `announce` returned; no other route comes into
        force. None if no record is on its way to a slot.
        """
        if hosts != self._hosts:
            self._moved_to(hosts)
        before = list(self._owners)
        for group in routed or ():
            self._come_into_force(group)
        if self._resuming:
            self._resuming = False
            self._carry_out_all(self.protocol.resume())
        for phases, given in self._first:
            self._write_down(phases)
            self._carry_out_all(given)
        self._first.clear()
        self._absorb(step - 1)
        for group, one in list(self._durable.pending.items()):
            may = routed is None or isinstance(one, Hold)
            if may and not self._deferred(group, step - 1):
                self._come_into_force(group)
        self._tell(events.Boundary(step, self._orders_in_force(), hosts))
        self._absorb(step - 1)
        return self._owners if self._owners != before else None

    def committed(self, step: int, batch_s: float) -> None:
        """After a batch, demand inactive key groups with a backlog, and count suspended slots.

        `batch_s`: duration of the batch, in seconds.
        """
        waiting, steps = self._state.backlog.keys(), self._state.steps
        for group in sorted(self._durable.inactive & waiting):
            self._told.append(events.Demanded(group))
        # a slot without a backlog is idle; a slot that served a record was not suspended
        waited = {self._owners[group] for group in waiting}
        served = {self._owners[group] for group, at in enumerate(steps) if at == step}
        self.suspended_s += batch_s * len(waited - served)

    def end(self) -> None:
        """Withdraw all requests to the copy thread."""
        for host, group in (*self._transfers, *self._drops):
            self._copy_thread.forget((self.operator, group, host))

    def _moved_to(self, hosts: tuple[str, ...]) -> None:
        """Record the present arenas of slots; end transfers and deletions on hosts that are gone."""
        self._hosts = hosts
        for host, group in [place for place in self._transfers if place[0] not in hosts]:
            self._end_transfer(host, group)
        for (host, group), order in list(self._drops.items()):
            if host not in hosts:
                self._dropped(host, group, order)

    def _deferred(self, group: int, step: int) -> bool:
        """Return whether a group's pending hold or route has to wait for the next boundary.

        It waits if a host task may have the group's file open. A route also waits if the copy has fallen
        behind again while the rest of the subscale caught up: after the route, no slot could serve.
        """
        if self._copy_thread.busy(self.operator, group):
            return True
        route, strategy = self._durable.pending[group], self.protocol.strategy
        if not isinstance(route, Route) or strategy is None or not strategy.awaits_prefetch:
            return False
        host = self._hosts[route.slot]
        if not isinstance(self._transfers.get((host, group)), Prefetch):
            return False
        work = self._copy_thread.result_of((self.operator, group, host))
        lag = work.lag_steps(self._state.tokens[group], step) if work else None
        stale = lag is not None and lag > self._copy_thread.lags.served
        waited = self._deferrals[group]
        self._deferrals[group] = waited + 1 if stale else 0
        return stale and waited < _DEFERRALS_MAX

    def _orders_in_force(self) -> frozenset[int]:
        """Return the orders that are in force for all their groups."""
        pending = {one.order for one in self._durable.pending.values()}
        return frozenset(self._durable.in_force.values()) - pending

    def _come_into_force(self, group: int) -> None:
        durable, owners = self._durable, self._owners
        one = durable.pending.pop(group)
        durable.in_force[group] = one.order
        if isinstance(one, Hold):
            durable.held.add(group)
            return
        before, owners[group] = self._hosts[owners[group]], one.slot
        durable.deferred_max[one.slot] = one.deferred_max
        self._copies.setdefault(group, set()).add(before)
        self._stop_install(group)
        if self._hosts[one.slot] != before:  # within a host, an inactive group stays inactive
            durable.inactive.add(group)

    def _stop_install(self, group: int) -> None:
        for place, one in list(self._transfers.items()):
            if place[1] == group and isinstance(one, Install):
                self._end_transfer(*place)

    # -- the six instructions ---------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        self._settle()

    def _settle(self) -> None:
        """Pass all events to the protocol, and carry out its instructions, until no event is left."""
        while self._told:
            event = self._told.popleft()
            before = self._phases()
            given = self.protocol.handle(event)
            self._write_down(before)
            self._carry_out_all(given)

    def _phases(self) -> _Phases:
        return {p.number: (p.phase, p) for p in self.protocol.subscales}

    def _write_down(self, before: _Phases) -> None:
        now = {p.number: p for p in self.protocol.subscales}
        for number in sorted(before.keys() | now.keys()):
            was, progress = before.get(number) or (Phase.PENDING, now[number])
            what = _LEFT.get(was)
            given_up = was is Phase.PENDING and number not in now
            if what is None or progress.phase is was or given_up:
                continue
            groups, moved = progress.groups, self._bytes
            self._note(
                PhaseLeft(
                    what,
                    number,
                    groups,
                    progress.source,
                    progress.destination,
                    sum(moved.get(group, 0) for group in groups),
                )
            )

    def _carry_out_all(self, given: Iterable[Instruction]) -> None:
        for instruction in given:
            fence = self._durable.fence
            for group in instruction.groups:
                if fence.get(group, -1) <= instruction.order:
                    fence[group] = instruction.order
                    self._carry_out(instruction, group)

    def _carry_out(self, instruction: Instruction, group: int) -> None:
        match instruction:
            case Hold() | Route():
                if self._durable.in_force.get(group) != instruction.order:
                    self._durable.pending[group] = instruction
            case Prefetch():
                self._bring(instruction, group, Urgency.PREFETCH)
            case Forward():
                self._told.append(events.Forwarded(instruction.order, group))
            case Install():
                self._bring(instruction, group, Urgency.INSTALL)
            case Release():
                self._release(instruction, group)

    def _bring(self, one: Prefetch | Install, group: int, urgency: Urgency) -> None:
        if one.host not in self._hosts:
            return
        before = self._transfers.get((one.host, group))
        if isinstance(before, Install) and isinstance(one, Prefetch):
            return
        self._transfers[one.host, group] = one
        self._copies.setdefault(group, set()).add(one.host)
        self._drops.pop((one.host, group), None)
        if not self._active(one.host, group):
            self._copy_thread.want((self.operator, group, one.host), urgency)

    def _release(self, release: Release, group: int) -> None:
        durable = self._durable
        durable.held.discard(group)
        durable.pending.pop(group, None)
        for host in [host for host, g in self._transfers if g == group]:
            self._end_transfer(host, group)
        unused = self._copies.pop(group, set()) - {self._host_of(group)}
        for host in unused & set(self._hosts):
            self._drops[host, group] = release.order
            self._copy_thread.want((self.operator, group, host), Urgency.DROP)
        if all(g != group for _, g in self._drops):
            self._told.append(events.Released(release.order, group))

    # -- what the copy thread has done -----------------------------------------------------------------

    def _absorb(self, step: int) -> None:
        """Turn the copy thread's results into events; `step` is the last committed step."""
        for (host, group), one in list(self._transfers.items()):
            self._absorb_transfer(host, group, one, step)
        for (host, group), order in list(self._drops.items()):
            work = self._copy_thread.result_of((self.operator, group, host))
            if work is None or work.dropped or work.problem:
                self._dropped(host, group, order)
        self._settle()

    def _absorb_transfer(self, host: str, group: int, one: Prefetch | Install, step: int) -> None:
        lag: int | None = 0
        if not self._active(host, group):
            work = self._copy_thread.result_of((self.operator, group, host))
            if work is None:
                return
            self._bytes[group] = work.moved_bytes
            if work.problem:
                self._end_transfer(host, group)
                self._told.append(events.Failed(one.order, work.problem))
                return
            lag = work.lag_steps(self._state.tokens[group], step)
        if lag is None:
            return
        if isinstance(one, Install):
            if lag <= self._copy_thread.lags.served:  # the slot itself applies the missing sections
                self._activate(host, group, one)
        elif lag <= self._copy_thread.lags.caught_up and one.order not in self._answered.setdefault(
            group, set()
        ):
            self._answered[group].add(one.order)
            self._told.append(events.CaughtUp(one.order, group, host))

    def _activate(self, host: str, group: int, install: Install) -> None:
        self._end_transfer(host, group)
        if self._host_of(group) != host:
            return
        self._durable.inactive.discard(group)
        if install.resume:
            self._durable.held.discard(group)
        self._told.append(events.Installed(install.order, group, host))

    def _end_transfer(self, host: str, group: int) -> None:
        del self._transfers[host, group]
        self._copy_thread.forget((self.operator, group, host))

    def _dropped(self, host: str, group: int, order: int) -> None:
        del self._drops[host, group]
        self._copy_thread.forget((self.operator, group, host))
        if all(g != group for _, g in self._drops):
            self._told.append(events.Released(order, group))

    def _active(self, host: str, group: int) -> bool:
        """Return whether the group's slot is on `host`, and the group's state is there, too."""
        return self._host_of(group) == host and group not in self._durable.inactive

    def _host_of(self, group: int) -> str:
        return self._hosts[self._owners[group]]
