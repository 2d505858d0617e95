"""Keeps requested changes of assignments, which come into force at the next batch boundary."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from headgate.control.fleet.grant import UNLIMITED, Grant
from headgate.core.assignment import Assignment, rescale
from headgate.core.errors import ConfigError, nearest
from headgate.migration.plan import uniform
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.job import OperatorState
from headgate.spark.job.ports import Executors, SameExecutors

_PLANNERS = {"minimal": rescale, "uniform": uniform}

_EPOCHS_KEPT = 32
"""Newest epochs that stay in memory for a rollback; the journal has the older ones. Chosen, not
tuned."""


class Changes:
    """Keeps the changes of assignments that users and policies request; safe for several threads.

    Parameters
    ----------
    states : mapping of str to OperatorState    By operator; only this class changes assignments in it.
    slots_max : int    The most slots that a user may request.
    executors : Executors    Says whether the slots of a change have executors; if not, the change waits.
    """

    def __init__(
        self,
        states: Mapping[str, OperatorState],
        slots_max: int,
        executors: Executors | None = None,
    ) -> None:
        self._states = states
        self._slots_max = slots_max
        self._lock = threading.RLock()
        self._asked: dict[str, AssignmentRequest] = {}
        self._moving: dict[str, AssignmentRequest] = {}
        self._announced: dict[str, tuple[AssignmentRequest | None, AssignmentRequest]] = {}
        """By operator: its request in `_asked`, or None, and the request that comes into force."""
        self._frozen_until_s: float | None = None
        self._held_until_s: dict[str, float] = {}
        self._held: dict[int, dict[str, Assignment]] = {}
        self._executors = executors or SameExecutors()
        self._grant = UNLIMITED
        self.remember(self.epoch, {name: s.assignment for name, s in states.items()})

    @property
    def epoch(self) -> int:
        """Number of the newest assignment in force."""
        return max((s.assignment.epoch for s in self._states.values()), default=0)

    @property
    def frozen(self) -> bool:
        """Return whether assignments may not change."""
        until_s = self._frozen_until_s
        return until_s is not None and time.time() < until_s

    def freeze(self, until_s: float = float("inf")) -> list[str]:
        """Forbid changes before `until_s`, seconds since 1970, and drop the requests.

        Announced requests still come into force: feeders route records by them already. Returns the
        operators that lose their only change; a control loop that waits for it must be notified.
        """
        with self._lock:
            self._frozen_until_s = until_s
            announced = {name: request for name, (_, request) in self._announced.items()}
            decided = self._moving.keys() | announced.keys()
            given_up = [name for name in self._asked if name not in decided]
            self._asked = announced
            self._announced = {name: (request, request) for name, request in announced.items()}
            return given_up

    def thaw(self) -> None:
        """Allow changes again."""
        self._frozen_until_s = None

    def hold(self, until_s: Mapping[str, float]) -> None:
        """Forbid policies and fleets to change operators' number of slots; replace earlier holds.

        `until_s`: end of the hold by operator, seconds since 1970; absent operators are not held.
        """
        with self._lock:
            self._held_until_s = dict(until_s)

    def holds(self) -> dict[str, float]:
        """Return the end of the hold on each operator's slots, seconds since 1970."""
        now_s = time.time()
        with self._lock:
            return {name: until for name, until in self._held_until_s.items() if until > now_s}

    def limit(self, grant: Grant) -> None:
        """Limit operators to the slots of `grant`; slots above it end at the next boundary.

        The remaining slots take their key groups, unless a policy requests a fitting assignment before.
        Frozen assignments keep their slots until the thaw, and operators with a hold until the hold
        ends.
        """
        with self._lock:
            self._grant = grant

    def most(self, operator: str) -> int:
        """Return the most slots that an operator may hold."""
        return self._grant.most(operator, self._slots_max)

    def _requests(self) -> dict[str, AssignmentRequest]:
        """Return the requests, each cut to the grant; an operator above the grant has one as well."""
        requests = dict(self._asked)
        if self._grant is UNLIMITED or self.frozen:
            return requests
        for name in self._states.keys() - self.holds().keys():
            newest, most = self._newest(name, requests), self.most(name)
            if newest.slots > most:
                fewer = rescale(newest, most)
                survivors = self._survivors(name, fewer)
                requests[name] = AssignmentRequest(
                    fewer, self._grant.by, self._grant.reason, survivors
                )
        return requests

    def assignment(self) -> dict[str, Assignment]:
        """Return the assignment in force of each operator."""
        with self._lock:
            return {name: state.assignment for name, state in self._states.items()}

    def newest(self, operator: str) -> Assignment:
        """Return the assignment that comes into force at the next boundary, or after a migration."""
        with self._lock:
            return self._newest(operator, self._requests())

    def _newest(self, operator: str, requests: Mapping[str, AssignmentRequest]) -> Assignment:
        if operator in requests:
            return requests[operator].assignment
        moving = self._moving.get(operator)
        return moving.target if moving else self._states[operator].assignment

    def scaled(
        self, slots: int, operator: str | None = None, partitioning: str = "minimal"
    ) -> dict[str, Assignment]:
        """Return assignments with `slots` slots for one operator or for all.

        `partitioning`: ``minimal`` moves the fewest key groups, ``uniform`` gives contiguous
        ranges. Raises `ConfigError`: `slots` is out of range, or there is no such partitioning.
        """
        if partitioning not in _PLANNERS:
            msg = f'unknown partitioning "{partitioning}"{nearest(partitioning, _PLANNERS) or "."}'
            raise ConfigError(msg)
        if slots > self._slots_max:
            msg = (
                f"slots={slots} exceeds slots max={self._slots_max}; raise it with "
                ".slots(max=...), at most the number of key groups."
            )
            raise ConfigError(msg)
        names = [operator] if operator else list(self._states)
        for name in names:
            self._check_granted(name, slots)
        planned = _PLANNERS[partitioning]
        return {name: planned(self.newest(name), slots) for name in names}

    def _check_granted(self, operator: str, slots: int) -> None:
        """Raise ConfigError if the fleet grants the operator fewer than `slots` slots."""
        if slots > self._grant.slots.get(operator, slots):
            msg = (
                f"slots={slots} exceeds the {self.most(operator)} that the fleet grants {operator}; "
                "raise the job's priority or the fleet's budget."
            )
            raise ConfigError(msg)

    def check_operator(self, operator: str | None) -> None:
        """Raise ConfigError if the query has no stateful operator, or none of this name."""
        if not self._states:
            msg = "this query has no stateful operator, so there are no slots to change."
            raise ConfigError(msg)
        if operator is not None and operator not in self._states:
            known = ", ".join(self._states)
            msg = f'unknown operator "{operator}"; this query has {known}.'
            raise ConfigError(msg)

    def knows(self, epoch: int) -> bool:
        """Return whether all changes since `epoch` are remembered."""
        return min(self._held, default=0) <= epoch

    def at(
        self, epoch: int, past: Iterable[tuple[int, Mapping[str, Assignment]]] = ()
    ) -> dict[str, Assignment]:
        """Return the assignments of an earlier epoch, for a rollback.

        `past`: older epochs, each with the assignments that came into force with it, as the journal
        has them. Raises `ConfigError`: the epoch is unknown.
        """
        held: dict[int, dict[str, Assignment]] = {}
        with self._lock:
            for e, assignments in (*past, *self._held.items()):
                held[e] = held.get(e, {}) | dict(assignments)
        known = [e for e in held if e <= epoch]
        if epoch > self.epoch or not known:
            oldest = min(held, default=0)
            msg = f"epoch {epoch} is not known; use {oldest} to {self.epoch}."
            raise ConfigError(msg)
        in_force: dict[str, Assignment] = {}
        for e in sorted(known):
            in_force |= held[e]
        return {name: replace(a, epoch=self.newest(name).epoch + 1) for name, a in in_force.items()}

    def remember(self, epoch: int, held: Mapping[str, Assignment]) -> None:
        """Keep the assignments that an epoch brought into force, for `at`; merge the oldest epochs."""
        with self._lock:
            self._held[epoch] = self._held.get(epoch, {}) | dict(held)
            while len(self._held) > _EPOCHS_KEPT:
                oldest, second = sorted(self._held)[:2]
                # an operator without a change in the second oldest epoch keeps its oldest assignment
                self._held[second] = self._held.pop(oldest) | self._held[second]

    def ask(self, changes: Mapping[str, Assignment], by: str, reason: str = "") -> None:
        """Request new assignments in which slots keep their numbers.

        They replace the operators' earlier requests. Raises `ConfigError`: assignments are frozen, or
        a fleet grants fewer slots.
        """
        with self._lock:
            if self.frozen:
                msg = "the assignment is frozen; call thaw(), or headgate thaw, first."
                raise ConfigError(msg)
            for name, new in changes.items():
                self._check_granted(name, new.slots)
            for name, new in changes.items():
                self._asked[name] = AssignmentRequest(new, by, reason, self._survivors(name, new))

    def _survivors(self, operator: str, new: Assignment) -> tuple[int | None, ...]:
        """Return the survivors of an assignment in which slots keep their numbers."""
        before = self._states[operator].assignment.slots
        return tuple(slot if slot < before else None for slot in range(new.slots))

    def propose(self, operator: str, request: AssignmentRequest) -> bool:
        """Request the change that a policy decided.

        Returns False if a freeze, a hold, the grant or another change forbids it, or it is out of date.
        """
        with self._lock:
            held, new = self._states[operator].assignment, request.assignment
            granted = new.slots <= self._grant.slots.get(operator, new.slots)
            fits = new.epoch == held.epoch + 1 and granted
            busy = any(operator in of for of in (self._asked, self._moving, self._announced))
            held_size = new.slots != held.slots and operator in self.holds()
            if self.frozen or not fits or busy or held_size:
                return False
            self._asked[operator] = request
            return True

    def arrange(self) -> None:
        """Request the executors that requested changes need; called in the batches' thread."""
        with self._lock:
            requests = self._requests()
            slots = self._most_slots(requests)
        if requests:
            self._executors.need(slots)

    @property
    def pending(self) -> bool:
        """Return whether an assignment changes at the next boundary."""
        with self._lock:
            return bool(self._ready())

    def _ready(self) -> dict[str, AssignmentRequest]:
        """Return all requests if their slots have executors, otherwise none."""
        requests = self._requests()
        if requests and self._executors.ready(self._most_slots(requests)):
            return requests
        return {}

    def _most_slots(self, requests: Mapping[str, AssignmentRequest]) -> int:
        return max((self._newest(name, requests).slots for name in self._states), default=0)

    def requested(self, operator: str) -> AssignmentRequest | None:
        """Return an operator's request that comes into force next; None while it waits or moves."""
        with self._lock:
            return self._ready().get(operator)

    def request(self, operator: str) -> AssignmentRequest | None:
        """Return an operator's newest request that is not in force yet, in any state."""
        with self._lock:
            request = self._requests().get(operator)
            if request is None:
                return self._moving.get(operator)
            return request if self._ready() else replace(request, state=RequestState.WAITING)

    def moves(self, operator: str, request: AssignmentRequest) -> None:
        """Note that a migration, perhaps of an earlier run, carries out an operator's change."""
        with self._lock:
            self._asked.pop(operator, None)
            self._moving[operator] = replace(request, state=RequestState.MOVING)

    def moved(self, operator: str) -> None:
        """Note that an operator's migration has ended."""
        with self._lock:
            self._moving.pop(operator, None)

    def put(
        self,
        operator: str,
        slot_of: Sequence[int],
        slots: int,
        survivors: Sequence[int | None] = (),
        split: Mapping[int, tuple[int, ...]] | None = None,
    ) -> Assignment:
        """Put an assignment in force under the next epoch; return it."""
        with self._lock:
            new = Assignment(tuple(slot_of), slots, self.epoch + 1, split or {})
            self._states[operator].assign(new, survivors)
            self.remember(new.epoch, {operator: new})
            return new

    def announce(self, kept: Collection[str] = ()) -> dict[str, Assignment]:
        """Fix the requests that `put_announced` will put in force; return their assignments.

        `kept`: operators to leave out, because a migration carries out their changes.
        """
        with self._lock:
            self._announced = {
                name: (self._asked.get(name), request)
                for name, request in self._ready().items()
                if name not in kept
            }
            return {name: request.assignment for name, (_, request) in self._announced.items()}

    def withdraw(self) -> None:
        """Forget the announcement; its requests remain requested."""
        with self._lock:
            self._announced = {}

    def put_announced(self) -> dict[str, AssignmentRequest]:
        """Put the announced requests in force; return them by operator."""
        with self._lock:
            announced, self._announced = self._announced, {}
            epoch, in_force = self.epoch + 1, {}
            for name, (asked, request) in announced.items():
                if self._asked.get(name) is asked:
                    self._asked.pop(name, None)
                state = self._states[name]
                in_force[name] = replace(
                    request,
                    state=RequestState.IN_FORCE,
                    before=state.assignment,
                    assignment=replace(request.assignment, epoch=epoch),
                )
                new = in_force[name].assignment
                state.assign(new, request.survivors)
                self.remember(epoch, {name: new})
                if name in self._asked:  # a user's later request, made for the previous assignment
                    since = self._asked[name]
                    survivors = self._survivors(name, since.assignment)
                    self._asked[name] = replace(since, survivors=survivors)
            return in_force

    def put_in_force(self, kept: Collection[str] = ()) -> dict[str, AssignmentRequest]:
        """Put requested changes in force; return them by operator. `kept`: see `announce`."""
        with self._lock:
            self.announce(kept)
            return self.put_announced()
