"""Makes the changes of policies that choose only a number of slots."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.observation import Observation, OperatorView
from headgate.core.assignment import rescale


def rescaled(view: OperatorView, slots: float) -> Change | None:
    """Return the change to about `slots` slots with equally many key groups, moving few of them.

    None where the operator has that number already. Slots keep their numbers; a scale-in removes the
    highest numbers.

    `slots`: wanted number of slots, a whole number or infinite; clipped to the operator's limits and
    its number of key groups.
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
    """Return the decision that rescales each operator in `slots` to about that number.

    Empty where every operator has its number already.

    `slots`: wanted number of slots by operator of the observation, see `rescaled`. `reason`, `rule`,
    `numbers`: see `Decision`.
    """
    operators = observation.operators
    changes = {
        name: change
        for name, wanted in slots.items()
        if (change := rescaled(operators[name], wanted)) is not None
    }
    return Decision(changes, reason, rule, numbers or {}) if changes else NOTHING


def mean_service_rate(view: OperatorView) -> float:
    """Return the mean of all mu_i above 0, in records per second; 0 if there is none."""
    known = [rate for rate in view.service_rate.tolist() if rate > 0.0]
    return sum(known) / len(known) if known else 0.0


def arrival_rate(view: OperatorView) -> float:
    """Return lambda: arrivals per second at the operator."""
    return float(sum(view.group_rate.tolist()))
