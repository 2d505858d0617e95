"""Carries requested assignments out by migrations, batch by batch, until they are in force.

If all slots share one host's memory, and the user names no strategy, a change is a new assignment at the
next boundary, without a migration (STRETCH; see `Changes.put_in_force`).

While key groups move, none is split: the backlog of shares goes to the owners, and is divided again when
the migration has ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.core.assignment import Assignment
from headgate.core.errors import ConfigError
from headgate.journal.hosts import MigrationStep
from headgate.journal.schema import Event
from headgate.migration.events import Cause, Requested
from headgate.migration.protocol import Migration
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.changes import Changes
from headgate.spark.job.faults import crash_point
from headgate.spark.job.job import OperatorState
from headgate.spark.move.copy_thread import CopyThread, StepHeads
from headgate.spark.move.migration_executor import MigrationExecutor, PhaseLeft
from headgate.spark.move.placement import Placement

_HERE = "here"
"""The one host of a job whose slots Spark does not place."""


def _numbers(request: AssignmentRequest, slots_before: int) -> tuple[int, ...]:
    """Return the number of each slot while state moves: a slot that stays keeps its number.

    A policy that gives up slot 1 of three renumbers slot 2, but that slot stays in its place.
    """
    kept = [old for old in request.survivors if old is not None]
    free = iter(n for n in range(slots_before + len(request.survivors)) if n not in kept)
    return tuple(next(free) if old is None else old for old in request.survivors)


class Migrations:
    """Carries out all migrations of a job.

    The batches' thread calls it, between batches.

    `states`: operators whose key groups can be held; changes of other operators are in force at once.
    `strategy`: as `headgate.migration.registry.strategy` reads it; empty for the default.
    """

    def __init__(
        self,
        states: Mapping[str, OperatorState],
        changes: Changes,
        placements: Mapping[str, Placement],
        copy_thread: CopyThread,
        strategy: str,
        write: Callable[[Event], None],
    ) -> None:
        self._states = states
        self._changes = changes
        self._placements = placements
        self._copy_thread = copy_thread
        self._strategy = strategy
        self._write = write
        self._migrations: dict[str, MigrationExecutor] = {}
        self._requests: dict[str, AssignmentRequest] = {}
        self._asked_for_hosts = False
        self._announced: dict[str, dict[int, int]] = {}
        self._step = 0
        self._began_s = time.monotonic()

    @property
    def running(self) -> bool:
        """Return whether a migration is under way."""
        return bool(self._migrations)

    def governs(self, operator: str) -> bool:
        """Return whether changes of an operator are carried out here."""
        if operator not in self._states:
            return False
        if operator in self._migrations or self._placements[operator].active:
            return True
        return self._strategy not in ("", "shared")

    def to_dict(self, operator: str) -> dict[str, Any] | None:
        """Return an operator's migration in the form of the manifest; None without a migration."""
        migration = self._migrations.get(operator)
        if migration is None:
            return None
        return migration.to_dict() | {"asked": self._requests[operator].to_dict()}

    def restore(self, operator: str, data: Mapping[str, Any]) -> None:
        """Go on with a migration from a manifest."""
        migration = MigrationExecutor.resumed(
            operator, self._states[operator], self._copy_thread, data, self._noting(operator)
        )
        self._requests[operator] = AssignmentRequest.from_dict(data["asked"])
        self._migrations[operator] = migration
        self._changes.moves(operator, self._requests[operator])

    # -- the boundary before a batch --------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Return whether a migration has ended and its final assignment is not in force yet."""
        return any(not m.running and self._renumbers(name) for name, m in self._migrations.items())

    def _renumbers(self, operator: str) -> bool:
        migration, held = self._migrations[operator], self._states[operator].assignment
        reached = migration.protocol.current
        if not migration.protocol.failed:
            reached = self._requests[operator].assignment
        return (reached.slot_of, reached.slots) != (held.slot_of, held.slots)

    def announce(self, step: int) -> dict[str, Assignment]:
        """Return the assignments that come into force at the boundary after the running step.

        For an engine that sends records to slots before the boundary.

        `step`: the last committed step.
        """
        found = {name: one.announce(step) for name, one in self._migrations.items()}
        self._announced = {name: routes for name, routes in found.items() if routes}
        assignments = {}
        for name, routes in self._announced.items():
            held = self._states[name].assignment
            owners = tuple(routes.get(group, slot) for group, slot in enumerate(held.slot_of))
            assignments[name] = Assignment(owners, self._slots_of(name, owners), held.epoch + 1)
        return assignments

    def begin(self, step: int, *, still: bool = True) -> dict[str, AssignmentRequest]:
        """Pass the boundary before `step`; return the requests whose assignments change with it.

        `still`: whether no record of this step is on its way to a slot; else owners change only as
        `announce` returned, and slots keep their numbers.
        """
        self._step, self._began_s = step, time.monotonic()
        announced, self._announced = self._announced, {}
        changed: dict[str, AssignmentRequest] = {}
        self._ask_for_hosts()
        for name in self._states:
            if (found := self._moves_nothing(name)) is not None:
                changed[name] = found
                continue
            self._take_request(name)
            routed = None if still else announced.get(name, {})
            if name in self._migrations and (found := self._pass(name, step, routed)) is not None:
                changed[name] = found
        return changed

    def committed(self, step: int) -> None:
        """Record a committed batch."""
        if not self._migrations:
            return
        self._copy_thread.committed(self._heads(step))
        # the next step begins; in real time `begin` is not called if no change is possible
        before_s, self._began_s = self._began_s, time.monotonic()
        for migration in self._migrations.values():
            migration.committed(step, self._began_s - before_s)

    def stop(self) -> None:
        """Stop the copy thread; the manifest has the progress of migrations."""
        self._copy_thread.stop()

    def _moves_nothing(self, operator: str) -> AssignmentRequest | None:
        """Put a change in force at once if no key group changes its owner: a split, or its end."""
        request, state = self._changes.requested(operator), self._states[operator]
        if request is None or operator in self._migrations or not self.governs(operator):
            return None
        before, new = state.assignment, request.assignment
        if new.slot_of != before.slot_of or new.split == before.split or new.slots < before.slots:
            return None
        if self._hosts(operator, new) is None:
            return None  # new slots wait for their executors
        self._changes.moves(operator, request)
        now = self._changes.put(operator, new.slot_of, new.slots, request.survivors, new.split)
        self._changes.moved(operator)
        return replace(request, state=RequestState.IN_FORCE, before=before, assignment=now)

    def _ask_for_hosts(self) -> None:
        """Ask the hosts for their arenas at the first boundary, so that no request waits for them."""
        if self._asked_for_hosts:
            return
        self._asked_for_hosts = True
        for name in self._states:
            self._hosts(name)

    def _take_request(self, operator: str) -> None:
        request = self._changes.requested(operator)
        if request is None or not self.governs(operator):
            return
        state, migration = self._states[operator], self._migrations.get(operator)
        request = replace(
            request,
            state=RequestState.MOVING,
            before=state.assignment if migration is None else self._requests[operator].before,
            numbers=_numbers(request, state.assignment.slots),
        )
        hosts = self._hosts(operator, request.target)
        if hosts is None:
            return  # some arenas are not known yet
        cause = Cause.POLICY if request.decided else Cause.HAND
        event = Requested(request.target, hosts, cause, strategy=self._strategy)
        if migration is not None and migration.protocol.refusal(event) is not None:
            return  # the request waits for the end of the running migration
        what = "requested" if migration is None else "superseded"
        if migration is None:
            protocol = Migration(state.assignment)
            migration = MigrationExecutor(
                operator, state, self._copy_thread, protocol, self._noting(operator)
            )
            self._copy_thread.committed(self._heads(self._step - 1))
        self._changes.moves(operator, request)
        try:
            migration.request(event)
        except ConfigError as error:
            self._changes.moved(operator)
            self._note(operator, "refused", why=str(error))
            return
        self._migrations[operator] = migration
        self._requests[operator] = request
        moved = state.assignment.moved(request.target)
        self._note(operator, what, groups=moved, strategy=str(migration.protocol.strategy))

    def _hosts(self, operator: str, *wanted: Assignment) -> tuple[str, ...] | None:
        """Return the arena of each present and future slot; None while an arena is not known."""
        known = [self._states[operator].assignment, *wanted]
        if operator in self._migrations:
            protocol = self._migrations[operator].protocol
            known += [protocol.current, protocol.target, *protocol.superseded]
        slots = max(assignment.slots for assignment in known)
        placement = self._placements[operator]
        names = placement.hosts_of(slots) if placement.active else []
        if not names:
            return (_HERE,) * slots
        return self._copy_thread.arenas(names) if self._copy_thread.knows(names) else None

    def _slots_of(self, operator: str, owners: Sequence[int]) -> int:
        """Return the number of an operator's slots while its key groups move."""
        protocol = self._migrations[operator].protocol
        return max(min(protocol.current.slots, protocol.target.slots), max(owners) + 1)

    def _pass(
        self, operator: str, step: int, routed: Mapping[int, int] | None
    ) -> AssignmentRequest | None:
        migration, state = self._migrations[operator], self._states[operator]
        hosts = self._hosts(operator)
        if hosts is None and not routed:
            return None
        hosts = hosts or migration.hosts
        before = state.assignment
        owners = migration.pass_boundary(step, hosts, routed)
        state.held = migration.unserved()
        if migration.running or (routed is not None and (owners or self._renumbers(operator))):
            if owners is None:
                return None
            self._changes.put(operator, owners, self._slots_of(operator, owners))
            request = replace(self._requests[operator], before=before)
            slots = range(state.assignment.slots)
            return self._with_assignment(operator, request, slots, before.slots)
        return self._end(operator, migration, before)

    def _end(
        self, operator: str, migration: MigrationExecutor, held: Assignment
    ) -> AssignmentRequest:
        """Put the final assignment in force: the requested one, or after a failure the current one."""
        request, failed = self._requests[operator], migration.protocol.failed
        reached, numbers = (
            migration.protocol.current,
            tuple(range(migration.protocol.current.slots)),
        )
        if not failed:
            reached, numbers = request.assignment, request.numbers
            self._placements[operator].renumber(numbers)
        ended = (reached.slot_of, reached.slots, reached.split)
        if (held.slot_of, held.slots, held.split) != ended:
            self._changes.put(operator, reached.slot_of, reached.slots, numbers, reached.split)
        migration.end()
        del self._migrations[operator]
        self._changes.moved(operator)
        what, waited_s = "failed" if failed else "finished", round(migration.suspended_s, 3)
        self._note(operator, what, why=failed, suspended_s=waited_s)
        state = RequestState.DROPPED if failed else RequestState.IN_FORCE
        request = replace(request, state=state, moved_bytes=migration.moved_bytes)
        return self._with_assignment(operator, request, numbers, held.slots)

    def _with_assignment(
        self,
        operator: str,
        request: AssignmentRequest,
        numbers: Sequence[int],
        slots_before: int,
    ) -> AssignmentRequest:
        """Return a request with the assignment that holds now; `numbers` says which slots survive."""
        survivors = tuple(number if number < slots_before else None for number in numbers)
        now = self._states[operator].assignment
        return replace(request, assignment=now, survivors=survivors)

    def _heads(self, step: int) -> StepHeads:
        return StepHeads(
            step, {n: (tuple(s.tokens), tuple(s.steps)) for n, s in self._states.items()}
        )

    # -- the journal ------------------------------------------------------------------------------

    def _noting(self, operator: str) -> Callable[[PhaseLeft], None]:
        seen: Counter[str] = Counter()

        def note(passed: PhaseLeft) -> None:
            crash_point(f"migration-{passed.what.replace(' ', '-')}", seen[passed.what])
            seen[passed.what] += 1
            self._write(
                MigrationStep(
                    step=self._step,
                    operator=operator,
                    what=passed.what,
                    subscale=passed.subscale,
                    groups=passed.groups,
                    source=passed.source,
                    destination=passed.destination,
                    bytes_moved=passed.moved_bytes,
                )
            )

        return note

    def _note(
        self,
        operator: str,
        what: str,
        *,
        groups: tuple[int, ...] = (),
        strategy: str = "",
        why: str = "",
        suspended_s: float = 0.0,
    ) -> None:
        self._write(
            MigrationStep(
                step=self._step,
                operator=operator,
                what=what,
                groups=groups,
                strategy=strategy,
                why=why,
                suspended_s=suspended_s,
            )
        )
