"""Implements rivals of a policy that knows utilities: unmanaged, equal shares, first come first."""

from __future__ import annotations

from headgate.control.fleet.arithmetic import difference, extra_slots, fitted
from headgate.control.fleet.henge import HengeParameters
from headgate.control.fleet.registry import in_rounds
from headgate.control.fleet.view import Action, FleetDecision, FleetJob, FleetView
from headgate.control.limits import check_range


class Unmanaged:
    """Leaves jobs the slots of their start, as Storm's default scheduler does."""

    @property
    def name(self) -> str:
        """``unmanaged``."""
        return "unmanaged"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return no changes."""
        return FleetDecision(rule="unmanaged")


class EqualShares:
    """Gives every job the same share of the budget.

    Within a job, each operator has at least its minimum, and the rest is divided in proportion to busy
    slots; those of a saturated operator count twice.

    Parameters
    ----------
    every_s : float
        Time between two divisions, in seconds; > 0. Chosen long enough for a division to take effect.
    """

    def __init__(self, every_s: float = 120.0) -> None:
        check_range("equal-shares", "every_s", every_s, 0.0, above=True)
        self._every_s = every_s
        self._next_s = 0.0

    @property
    def name(self) -> str:
        """``equal-shares``."""
        return "equal-shares"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return each job's share, divided over its operators, at the end of every period."""
        if view.time_s < self._next_s or not view.jobs:
            return FleetDecision(rule="between divisions")
        self._next_s = view.time_s + self._every_s
        share = view.slots_max // len(view.jobs)
        wanted = {name: _divided(job, share) for name, job in view.jobs.items()}
        changes = difference(view.slots, wanted)
        reason = f"{share} slots for each of {len(view.jobs)} jobs."
        return FleetDecision(Action.RECONFIGURATION, changes, reason, "equal shares")


class FirstCome:
    """Gives jobs the slots they want, in the order of submission, until the budget is used up.

    A job wants the slots that Henge would give it. No job returns slots.

    Parameters
    ----------
    parameters : HengeParameters
        Round, threshold, slots per unit and time to settle are used.
    """

    def __init__(self, parameters: HengeParameters | None = None) -> None:
        self._p = parameters or HengeParameters()
        self._wait_until_s = 0.0

    @property
    def name(self) -> str:
        """``first-come``."""
        return "first-come"

    def decide(self, view: FleetView) -> FleetDecision:
        """Return more slots for the first job that misses its SLO, if there are any."""
        if view.time_s < self._wait_until_s:
            return FleetDecision(rule="settling")
        for name, job in view.jobs.items():
            given = {} if job.met else fitted(self._wanted(job), view.slots_free)
            if given:
                self._wait_until_s = view.time_s + self._p.settle_s
                slots = {op: job.operators[op].slots + n for op, n in given.items()}
                reason = f"{name} was submitted first of those that want slots."
                return FleetDecision(Action.RECONFIGURATION, {name: slots}, reason, "first come")
        return FleetDecision(rule="nothing to give")

    def _wanted(self, job: FleetJob) -> dict[str, int]:
        wanted = {}
        for name, operator in job.operators.items():
            extra = extra_slots(
                operator.capacity, self._p.congestion_threshold, self._p.slots_per_unit
            )
            wanted[name] = min(max(extra, operator.requested), operator.room)
        return wanted


_SATURATED = 0.95


def _divided(job: FleetJob, share: int) -> dict[str, int]:
    """Return `share` slots divided over a job's operators: the minimum for each, the rest by work."""
    operators = job.operators
    busy = {
        name: op.slots * op.capacity * (2.0 if op.capacity > _SATURATED else 1.0)
        for name, op in operators.items()
    }
    if not any(busy.values()):
        busy = dict.fromkeys(operators, 1.0)  # no work has been measured yet
    total = sum(busy.values())
    least = {name: op.slots_min for name, op in operators.items()}
    rest = max(0, share - sum(least.values()))
    exact = {name: rest * work / total for name, work in busy.items()}
    given = {name: int(exact[name]) for name in operators}
    by_remainder = sorted(operators, key=lambda name: (given[name] - exact[name], name))
    for name in by_remainder[: rest - sum(given.values())]:
        given[name] += 1
    return {name: min(least[name] + given[name], operators[name].slots_max) for name in operators}


_DIVIDED_ROUNDS = 12
"""Rounds between two divisions by `EqualShares`: its 120 s in rounds of 10 s."""


def equal_shares(round_s: float) -> EqualShares:
    """Return equal shares, divided anew every twelve rounds."""
    return EqualShares(_DIVIDED_ROUNDS * round_s)


def first_come(round_s: float) -> FirstCome:
    """Return first come, first served, with Henge's times in proportion to a round."""
    return FirstCome(in_rounds(round_s))


def unmanaged(round_s: float) -> Unmanaged:
    """Return the policy that never changes anything, whatever the length of a round."""
    del round_s
    return Unmanaged()
