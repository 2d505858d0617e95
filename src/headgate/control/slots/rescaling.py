"""Gives policies that choose only a number of slots their shared functions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.core.assignment import rescale


def rescaled(view: OperatorView, slots: float) -> Change | None:
    """Return the change to about `slots` evenly loaded slots, moving few key groups.

    Parameters
    ----------
    slots : float
        How many slots are wanted, a whole number or infinite; brought within what the operator may
        have and its number of key groups.

    Returns
    -------
    Change or None
        None where the operator has that number already. Slots keep their numbers; those above the
        new number vanish.
    """
    most = min(view.slots_max, view.assignment.key_groups)
    wanted = int(max(1, min(max(slots, view.slots_min), most)))
    if wanted == view.slots:
        return None
    survivors = tuple(slot if slot < view.slots else None for slot in range(wanted))
    return Change(ChangeKind.RESCALE, rescale(view.assignment, wanted), survivors)


def scaled(
    observation: Observation,
    slots: Mapping[str, float],
    reason: str,
    rule: str = "scale",
    numbers: Mapping[str, float] | None = None,
) -> Decision:
    """Return the decision that gives operators about `slots` evenly loaded slots each.

    Parameters
    ----------
    slots : mapping of str to float
        Wanted numbers, by operator of the observation; as `rescaled` takes them.
    reason, rule, numbers
        See `Decision`.

    Returns
    -------
    Decision
        Empty where every operator has its number already.
    """
    operators = observation.operators
    changes = {
        name: change
        for name, wanted in slots.items()
        if (change := rescaled(operators[name], wanted)) is not None
    }
    return Decision(changes, reason, rule, numbers or {}) if changes else NOTHING


def mean_service_rate(view: OperatorView) -> float:
    """Return the mean of mu_i over the slots where it is known, records per second; 0 if none."""
    known = [rate for rate in view.service_rate.tolist() if rate > 0.0]
    return sum(known) / len(known) if known else 0.0


def arrival_rate(view: OperatorView) -> float:
    """Return lambda: arrivals per second at the operator."""
    return float(sum(view.group_rate.tolist()))


def mean_latency_s(view: OperatorView) -> float:
    """Return the mean of l_i above the floor, weighted by arrivals; 0 where nothing completed."""
    pairs = zip(view.slot_rate.tolist(), view.latency_s.tolist(), strict=True)
    # A slot without arrivals can still complete its backlog: it counts, however little.
    known = [(rate or 1e-9, latency) for rate, latency in pairs if not math.isnan(latency)]
    weight = sum(rate for rate, _ in known)
    if not known:
        return 0.0
    total = float(sum(rate * latency for rate, latency in known))
    return max(total / weight - view.floor_s, 0.0)


def processing_rate(view: OperatorView) -> list[float]:
    """Return the records per second that each slot completes: mu_i times its utilisation."""
    pairs = zip(view.service_rate.tolist(), view.utilisation.tolist(), strict=True)
    return [0.0 if math.isnan(share) else rate * share for rate, share in pairs]


def is_whole(observation: Observation) -> bool:
    """Return whether every operator that `parents` names can be seen.

    An operator whose counters are not valid, or whose assignment is changing, is left out of an
    observation. A policy with a model of the whole job waits until it is back.
    """
    seen = observation.operators
    return all(
        name in seen and all(parent in seen for parent in parents)
        for name, parents in observation.parents.items()
    )


class Averages:
    """Computes the means of an operator's figures over the cycles of a longer interval.

    Attributes
    ----------
    cycles : int    How many cycles were added.
    """

    def __init__(self) -> None:
        self.cycles = 0
        self._rate = self._service = self._latency_s = self._processed = 0.0

    def add(self, view: OperatorView) -> None:
        """Take one cycle into account."""
        self.cycles += 1
        self._rate += arrival_rate(view)
        self._service += mean_service_rate(view)
        self._latency_s += mean_latency_s(view)
        self._processed += sum(processing_rate(view))

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return self._rate / self.cycles

    @property
    def service_rate(self) -> float:
        """Records per second of useful time, mean of the slots."""
        return self._service / self.cycles

    @property
    def latency_s(self) -> float:
        """Mean latency above the floor, in seconds."""
        return self._latency_s / self.cycles

    @property
    def processing_rate(self) -> float:
        """Records per second that the operator completed."""
        return self._processed / self.cycles
