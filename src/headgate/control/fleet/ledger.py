"""Keeps the budget of a fleet: the grant of each job, and the grants that wait for free slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.control.fleet.arithmetic import fitted
from headgate.control.fleet.view import Slots


@dataclass
class _Account:
    """Holds the granted and the wanted slots of one job, by operator."""

    granted: dict[str, int]
    wanted: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Grants slots of one budget to jobs, so that their slots never exceed it.

    A grant falls at once, and the job gives up slots at its next boundary; until then these slots count
    as taken. A grant grows only if enough slots are free. So a decision that moves slots from one job to
    another has two parts, and both jobs never have the slots at the same time. A job that enters with
    more slots than are free gets the free slots, but at least one per operator, whatever the budget.

    `budget`: slots of all jobs together; >= 1.

    References
    ----------
    Ours. Henge 5 decides which jobs get slots, and restarts jobs for it.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._accounts: dict[str, _Account] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._accounts

    @property
    def granted(self) -> dict[str, dict[str, int]]:
        """Slots granted, by job and operator."""
        return {job: dict(account.granted) for job, account in self._accounts.items()}

    @property
    def waiting(self) -> dict[str, dict[str, int]]:
        """Grants that wait for room, by job and operator."""
        return {
            job: dict(account.wanted) for job, account in self._accounts.items() if account.wanted
        }

    def of(self, job: str) -> dict[str, int]:
        """Return the grant of a job, by operator; empty for an unknown job."""
        account = self._accounts.get(job)
        return {} if account is None else dict(account.granted)

    def enter(self, job: str, held: Mapping[str, int], taken: int) -> dict[str, int]:
        """Enter a job with the slots that it holds, up to the free slots; return its grant.

        `held`: slots that the job comes with, by operator. `taken`: slots of the budget that other
        jobs have.
        """
        extra = {operator: slots - 1 for operator, slots in held.items()}
        room = self.budget - taken - len(held)
        added = fitted(extra, room)
        granted = {operator: 1 + added.get(operator, 0) for operator in held}
        self._accounts[job] = _Account(granted)
        return dict(granted)

    def leave(self, job: str) -> None:
        """Remove a job that has ended; its slots are free."""
        self._accounts.pop(job, None)

    def want(self, slots: Slots) -> None:
        """Take note of the grants that a policy wants; `settle` brings them into force."""
        for job, operators in slots.items():
            account = self._accounts.get(job)
            if account is not None:
                known = {op: max(1, n) for op, n in operators.items() if op in account.granted}
                account.wanted |= known
        self.cut(self._accounts)  # a decision may be older than a cut of the budget

    def keep(self, job: str, operators: Mapping[str, int]) -> None:
        """Lower the grant of a job that refused slots to the slots that the job holds."""
        account = self._accounts.get(job)
        if account is not None:
            for operator, slots in operators.items():
                if operator in account.granted:
                    account.granted[operator] = max(1, min(slots, account.granted[operator]))

    def settle(self, held: Slots, reserved: int = 0) -> dict[str, dict[str, int]]:
        """Return the grants that change now, by job and operator.

        `held`: slots in force, by job and operator. `reserved`: slots of the budget that are kept
        for jobs that start.
        """
        changed: dict[str, dict[str, int]] = {}
        for job, account in self._accounts.items():
            for operator, slots in list(account.wanted.items()):
                if slots <= account.granted[operator]:
                    del account.wanted[operator]
                    if slots < account.granted[operator]:
                        account.granted[operator] = slots
                        changed.setdefault(job, {})[operator] = slots
        room = self.budget - reserved - self.taken(held)
        for job, account in self._accounts.items():
            for operator, slots in list(account.wanted.items()):
                had = max(account.granted[operator], held.get(job, {}).get(operator, 0))
                more = max(0, slots - had)
                if more <= room:
                    room -= more
                    del account.wanted[operator]
                    account.granted[operator] = slots
                    changed.setdefault(job, {})[operator] = slots
        return changed

    def give_up(self) -> dict[str, dict[str, int]]:
        """Forget the grants that wait for free slots, and return them; they never come into force."""
        forgotten = self.waiting
        for account in self._accounts.values():
            account.wanted.clear()
        return forgotten

    def cut(self, order: Iterable[str]) -> None:
        """Lower the wanted grants, those of the first job in `order` first, until the budget suffices.

        Each operator keeps at least one slot.
        """
        over = -self.budget
        for account in self._accounts.values():
            over += sum(min(n, account.wanted.get(op, n)) for op, n in account.granted.items())
        for job in order:
            account = self._accounts[job]
            for operator, slots in account.granted.items():
                now = min(slots, account.wanted.get(operator, slots))
                less = min(now - 1, max(over, 0))
                if less:
                    account.wanted[operator] = now - less
                    over -= less

    def taken(self, held: Slots, but: Iterable[str] = ()) -> int:
        """Return the slots that jobs take: granted, or still held if more; without the jobs in `but`."""
        left_out = set(but)
        return sum(
            max(slots, held.get(job, {}).get(operator, 0))
            for job, account in self._accounts.items()
            if job not in left_out
            for operator, slots in account.granted.items()
        )
