"""Grants slots to a fleet's jobs, and applies the grants to the jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from headgate.control.fleet.ledger import Ledger
from headgate.control.fleet.view import FleetView, Slots
from headgate.spark.fleet.admission import WINDOW_ROUNDS
from headgate.spark.fleet.fleet_journal import FleetJournal
from headgate.spark.fleet.member import JobState, Member

_UNSPENT_S = 20.0
"""Shortest time after which unused slots are taken back, in seconds. Chosen: a policy that adds slots one
by one needs some seconds for each."""


class FleetGrants:
    """Grants a fleet's slots to its jobs, as its policy decides, within the budget.

    Safe to use from several threads.

    Parameters
    ----------
    budget : int    Slots of all jobs together.
    members : mapping of str to Member    The fleet's jobs; the fleet changes them under `lock`.
    promised : callable    Returns the number of slots with which jobs not started yet will begin.
    """

    def __init__(
        self,
        budget: int,
        members: Mapping[str, Member],
        lock: threading.RLock,
        journal: FleetJournal,
        promised: Callable[[], int],
    ) -> None:
        self._ledger = Ledger(budget)
        self._members = members
        self._lock = lock
        self._journal = journal
        self._promised = promised
        self._why: dict[str, tuple[str, str]] = {}
        """By job: who asked for its newest grant, and the reason."""

    @property
    def granted(self) -> dict[str, dict[str, int]]:
        """The most slots that each operator of each job may hold."""
        with self._lock:
            return self._ledger.granted

    @property
    def waits(self) -> bool:
        """Return whether a grant waits for slots that another job has not given up yet."""
        with self._lock:
            return bool(self._ledger.waiting)

    def of(self, job: str) -> dict[str, int]:
        """Return the granted slots of a job, by operator."""
        with self._lock:
            return self._ledger.of(job)

    def taken(self, but: Iterable[str] = ()) -> int:
        """Return the number of slots that are granted, still held, or promised; without jobs in `but`."""
        with self._lock:
            return self._ledger.taken(self._held(), but) + self._promised()

    def enter(self, member: Member) -> None:
        """Grant a new job its first slots, within the budget; remove a job that has ended."""
        with self._lock:
            name = member.name
            if member.state in (JobState.GONE, JobState.FAILED):
                self._ledger.leave(name)
            elif name not in self._ledger:
                held = member.slots
                granted = self._ledger.enter(name, held, self.taken())
                why = "The job's first slots, within the budget."
                self._tell(member, granted, held, "fleet", why)
                self._cut(f"{name} has come.")

    def leave(self, job: str) -> None:
        """Forget the grant of a job whose query has ended."""
        with self._lock:
            self._ledger.leave(job)

    def want(self, slots: Slots, by: str, reason: str) -> None:
        """Change the grants of jobs: fewer slots at once, more as soon as slots are free."""
        with self._lock:
            self._ledger.want(slots)
            self._why |= dict.fromkeys(slots, (by, reason))
        self.settle()

    def set_budget(self, slots: int) -> None:
        """Change the budget; if it is too small, jobs give up slots, those of least priority first."""
        with self._lock:
            self._ledger.budget = slots
            self._cut(f"The budget is {slots} slots now.")
        self.settle()

    def _cut(self, why: str) -> None:
        """Take slots back if more are granted than the budget has, from the least priority first."""
        worth = {n: m.utility.maximum for n, m in self._members.items() if n in self._ledger}
        before = self._ledger.waiting
        self._ledger.cut(sorted(worth, key=lambda name: (worth[name], name)))
        cut = [name for name, wanted in self._ledger.waiting.items() if before.get(name) != wanted]
        self._why |= dict.fromkeys(cut, ("budget", why))

    def settle(self) -> None:
        """Apply the wanted grants within the budget: fewer at once, more when slots are free."""
        with self._lock:
            held = self._held()
            for name, changed in self._ledger.settle(held, self._promised()).items():
                member, (by, reason) = self._members[name], self._why.get(name, ("fleet", ""))
                refused = self._tell(member, self._ledger.of(name), held[name], by, reason)
                if refused:
                    self._ledger.keep(
                        name, {op: held[name].get(op, n) for op, n in changed.items()}
                    )
                    member.limit(self._ledger.of(name), by, refused)
                    self._journal.job(name, str(member.state), refused)

    def take_unspent(self, view: FleetView, steady: Mapping[str, Member], round_s: float) -> bool:
        """Take back slots that jobs have not used for six rounds, if others ask for more than are free.

        Waits `_UNSPENT_S` at least, since a policy needs time to use new slots, however short rounds are.

        Called once a round; returns whether slots were taken back.
        """
        seconds = max(WINDOW_ROUNDS * round_s, _UNSPENT_S)
        unspent = {
            name: slots
            for name, member in steady.items()
            if (slots := member.unspent(self.of(name), seconds))
        }
        asked_for = sum(op.requested for job in view.jobs.values() for op in job.operators.values())
        late = any(not job.met for job in view.jobs.values())
        if not (late and unspent and asked_for > view.slots_free):
            return False
        why = f"Not spent for {seconds:g} s, and others ask for more."
        self.want(unspent, "fleet", why)
        return True

    def forget_waiting(self) -> None:
        """Drop grants that wait although no job is about to give up slots."""
        with self._lock:
            for name, slots in self._ledger.give_up().items():
                wanted = ", ".join(f"{op} {n}" for op, n in slots.items())
                why = f"not granted, since nothing is free: {wanted} slots"
                self._journal.job(name, str(self._members[name].state), why)

    def _held(self) -> dict[str, dict[str, int]]:
        """Return the slots in force of all jobs that have not ended."""
        return {n: m.slots for n, m in self._members.items() if n in self._ledger}

    def _tell(
        self, member: Member, granted: Mapping[str, int], held: Mapping[str, int], by: str, why: str
    ) -> str:
        """Apply a job's grant and write it into the journal; return why the job refused, or empty."""
        refused = member.grant(granted, by, why)
        self._journal.granted(member.name, granted, held, member.requests, by, why)
        return refused
