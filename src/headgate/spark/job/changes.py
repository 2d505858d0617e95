"""Keeps requested changes of assignments, which come into force at the next batch boundary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headgate.control.fleet.grant import UNLIMITED, Grant
from headgate.core.assignment import Assignment, rescale
from headgate.core.errors import ConfigError, nearest
from headgate.migration.plan import uniform
from headgate.spark.job.job import OperatorState

_PLANNERS = {"minimal": rescale, "uniform": uniform}

_EPOCHS_KEPT = 32
"""Epochs that a rollback finds at once. Chosen: the journal, which is looked into for older ones, has
them all."""


@dataclass(frozen=True)
class Wanted:
    """Holds a requested assignment, with its source and reason.

    Attributes
    ----------
    by, reason : str
        Source and reason of the request, for the journal.
    survivors : tuple of (int or None)
        As `Change.survivors`.
    decided : bool
        True if the control loop decided the change; the loop is notified when it is in force.
    forced : bool
        True if slots above the grant are given up; a policy's own choice of slots replaces the change.
    """

    assignment: Assignment
    by: str
    reason: str
    survivors: tuple[int | None, ...]
    decided: bool = False
    forced: bool = False


class Changes:
    """Keeps the changes of assignments that users and policies request; safe for several threads.

    Parameters
    ----------
    states : mapping of str to OperatorState
        By operator; changed by `put_in_force` only.
    slots_max : int
        The most slots that may be asked for.
    ready : callable
        Given the slots that a change needs, returns whether it may come into force; it waits
        otherwise. By default it always may.
    """

    def __init__(
        self,
        states: Mapping[str, OperatorState],
        slots_max: int,
        ready: Callable[[int], bool] = lambda slots: True,
    ) -> None:
        self._states = states
        self._slots_max = slots_max
        self._lock = threading.RLock()
        self._wanted: dict[str, Wanted] = {}
        self._frozen_until_s: float | None = None
        self._held_until_s: dict[str, float] = {}
        self._held: dict[int, dict[str, Assignment]] = {}
        self._ready = ready
        self._heading: dict[str, Assignment] = {}
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
        """Forbid changes before `until_s`, seconds since 1970; what is asked for already is given up.

        Returns
        -------
        list of str
            Operators of which something was given up. A control loop that waits for it has to be told.
        """
        with self._lock:
            self._frozen_until_s = until_s
            given_up = [name for name in self._wanted if name not in self._heading]
            self._wanted.clear()
            return given_up

    def thaw(self) -> None:
        """Allow changes again."""
        self._frozen_until_s = None

    def hold(self, until_s: Mapping[str, float]) -> None:
        """Keep the number of slots of operators, from policies and fleets, in place of earlier holds.

        Parameters
        ----------
        until_s : mapping of str to float
            By operator, seconds since 1970; operators that are absent are not held.
        """
        with self._lock:
            self._held_until_s = dict(until_s)

    def holds(self) -> dict[str, float]:
        """Return the end of the hold on each operator's slots, seconds since 1970."""
        now_s = time.time()
        with self._lock:
            return {name: until for name, until in self._held_until_s.items() if until > now_s}

    def limit(self, grant: Grant) -> None:
        """Hold no more slots than `grant` allows: what is above goes at the next boundary.

        Key groups of slots that go are spread over those that stay, unless a policy says better in time.
        While assignments are frozen they stay as they are, until the thaw, and slots that a user holds
        until the hold ends.
        """
        with self._lock:
            self._grant = grant
            self._give_up()

    def most(self, operator: str) -> int:
        """Return the most slots that an operator may hold."""
        return self._grant.most(operator, self._slots_max)

    def _give_up(self) -> None:
        """Request changes that give up the slots above the grant."""
        if self._grant is UNLIMITED or self.frozen:
            return
        held_until = self.holds()
        for name in self._states.keys() - held_until.keys():
            state = self._states[name]
            newest, most = self.newest(name), self.most(name)
            if newest.slots > most:
                new = rescale(newest, most)
                before = state.assignment.slots
                survivors = tuple(slot if slot < before else None for slot in range(most))
                why = self._grant.reason
                self._wanted[name] = Wanted(new, self._grant.by, why, survivors, forced=True)

    def assignment(self) -> dict[str, Assignment]:
        """Return the assignment in force of each operator."""
        with self._lock:
            return {name: state.assignment for name, state in self._states.items()}

    def newest(self, operator: str) -> Assignment:
        """Return the assignments that come into force at the next boundary, or after a migration."""
        with self._lock:
            wanted = self._wanted.get(operator)
            if wanted:
                return wanted.assignment
            return self._heading.get(operator, self._states[operator].assignment)

    def scaled(
        self, slots: int, operator: str | None = None, partitioning: str = "minimal"
    ) -> dict[str, Assignment]:
        """Return assignments with `slots` slots for one operator or for all.

        Parameters
        ----------
        partitioning : str
            ``minimal`` moves the fewest key groups, ``uniform`` gives contiguous ranges.

        Raises
        ------
        ConfigError
            `slots` is out of range, or there is no such partitioning.
        """
        if partitioning not in _PLANNERS:
            msg = f'unknown partitioning "{partitioning}"{nearest(partitioning, _PLANNERS)}.'
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
        """Raise ConfigError where a fleet grants an operator fewer slots than these."""
        if slots > self._grant.slots.get(operator, slots):
            msg = (
                f"slots={slots} exceeds the {self.most(operator)} that the fleet grants {operator}; "
                "raise the job's priority or the fleet's budget."
            )
            raise ConfigError(msg)

    def check_operator(self, operator: str | None) -> None:
        """Raise ConfigError if there is nothing to change, or not that operator."""
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

        Parameters
        ----------
        past : iterable of (int, mapping)
            What came into force with epochs that are not remembered any more, from wherever it was
            written down; only looked at.

        Raises
        ------
        ConfigError
            The epoch is unknown.
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
        """Keep what came into force with an epoch, for `at`; the oldest go, whole as they are kept."""
        with self._lock:
            self._held[epoch] = self._held.get(epoch, {}) | dict(held)
            while len(self._held) > _EPOCHS_KEPT:
                oldest, second = sorted(self._held)[:2]
                # operators that did not change in the second oldest epoch keep the oldest assignment
                self._held[second] = self._held.pop(oldest) | self._held[second]

    def ask(self, changes: Mapping[str, Assignment], by: str, reason: str = "") -> None:
        """Ask for new assignments in which slots keep their numbers.

        Requests of a policy are dropped.

        Raises
        ------
        ConfigError
            Assignments are frozen, or a fleet grants fewer slots.
        """
        with self._lock:
            if self.frozen:
                msg = "the assignment is frozen; call thaw(), or headgate thaw, first."
                raise ConfigError(msg)
            for name, new in changes.items():
                self._check_granted(name, new.slots)
            for name, new in changes.items():
                before = self._states[name].assignment.slots
                survivors = tuple(slot if slot < before else None for slot in range(new.slots))
                self._wanted[name] = Wanted(new, by, reason, survivors)

    def propose(self, operator: str, wanted: Wanted) -> bool:
        """Request the change that a policy decided.

        False if it is out of date or not granted, a user has asked, or the slots are held.
        """
        with self._lock:
            held = self._states[operator].assignment
            granted = wanted.assignment.slots <= self._grant.slots.get(
                operator, wanted.assignment.slots
            )
            fits = wanted.assignment.epoch == held.epoch + 1 and granted
            asked = self._wanted.get(operator)
            busy = (asked is not None and not asked.forced) or operator in self._heading
            held_size = wanted.assignment.slots != held.slots and operator in self.holds()
            if self.frozen or not fits or busy or held_size:
                return False
            self._wanted[operator] = wanted
            return True

    @property
    def pending(self) -> bool:
        """Return whether something will change at the next boundary."""
        with self._lock:
            return self._may_change()

    def _may_change(self) -> bool:
        """Return whether a change is requested and need not wait for executors."""
        self._give_up()
        if not self._wanted:
            return False
        return self._ready(max(self.newest(name).slots for name in self._states))

    def wanted(self, operator: str) -> Wanted | None:
        """Return the requested change of an operator that is not in force, under way or waiting yet."""
        with self._lock:
            return self._wanted.get(operator) if self._may_change() else None

    def claim(self, operator: str, target: Assignment) -> None:
        """Hand an operator's requested change over to a migration towards `target`."""
        with self._lock:
            del self._wanted[operator]
            self._heading[operator] = target

    def heads_for(self, operator: str, target: Assignment) -> None:
        """Note the target of a migration that an earlier run began."""
        with self._lock:
            self._heading[operator] = target

    def ended(self, operator: str) -> None:
        """Note that an operator's migration has ended."""
        with self._lock:
            self._heading.pop(operator, None)

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

    def put_in_force(self, kept: Collection[str] = ()) -> dict[str, tuple[Assignment, Wanted]]:
        """Put requested changes in force; return old assignment and change by operator.

        Parameters
        ----------
        kept : collection of str
            Operators that are left alone: their changes are carried out by a migration.
        """
        with self._lock:
            if not self._may_change():
                return {}
            epoch, in_force = self.epoch + 1, {}
            for name in [name for name in self._wanted if name not in kept]:
                wanted, state = self._wanted.pop(name), self._states[name]
                new = replace(wanted, assignment=replace(wanted.assignment, epoch=epoch))
                in_force[name] = (state.assignment, new)
                state.assign(new.assignment, new.survivors)
                self.remember(epoch, {name: new.assignment})
            return in_force
