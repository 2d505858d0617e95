"""Computes the slots that a fleet policy adds to or takes from a job's operators: Henge's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headgate.control.fleet.view import FleetJob, Slots

_ROUNDING = 1e-9
"""Tolerance of `ceil`, in slots: (0.9 / 0.3 - 1) x 10 is 20 and 10 x (1 - 0.8) is 2, also in float64."""


def extra_slots(congestion: float, threshold: float, per_unit: float) -> int:
    """Return how many more slots an operator needs: ceil((congestion / threshold - 1) x per_unit).

    References
    ----------
    Henge 5.1, equation 4, with threshold 0.3 and 10 per unit. The paper does not say how to round;
    rounding up gives every congested operator at least one slot.
    """
    return max(0, math.ceil((congestion / threshold - 1.0) * per_unit - _ROUNDING))


def fitted(wanted: Mapping[str, int], room: int) -> dict[str, int]:
    """Return `wanted`, cut down in proportion if its sum exceeds `room`.

    The result has the slots of each operator that gets any; the largest remainders are rounded up.

    `wanted`: slots wanted, by operator; >= 0. `room`: number of free slots; no operator gets slots
    where it is negative.
    """
    total, room = sum(wanted.values()), max(room, 0)
    if total <= room:
        return {name: count for name, count in wanted.items() if count}
    exact = {name: count * room / total for name, count in wanted.items()}
    shares = {name: math.floor(share) for name, share in exact.items()}
    rest = room - sum(shares.values())
    by_remainder = sorted(exact, key=lambda name: (shares[name] - exact[name], name))
    for name in by_remainder[:rest]:
        shares[name] += 1
    return {name: count for name, count in shares.items() if count}


def reduced(job: FleetJob, congested: Mapping[str, bool], cut: float) -> dict[str, int]:
    """Return the operators of `job` that lose slots, with the slots that each keeps.

    `congested`: by operator; a congested operator keeps its slots. `cut`: the share of slots that an
    operator loses, in (0, 1).

    References
    ----------
    Henge 5.2: un-congested operators except spouts lose 80 %. The rest is rounded up and is at least
    one slot; the paper does not say this.
    """
    kept = {}
    for name, operator in job.operators.items():
        if operator.source or congested[name]:
            continue
        left = max(operator.slots_min, math.ceil(operator.slots * (1.0 - cut) - _ROUNDING), 1)
        if left < operator.slots:
            kept[name] = left
    return kept


def difference(now: Slots, wanted: Slots) -> dict[str, dict[str, int]]:
    """Return the part of `wanted` that differs from `now`, by job and operator, without empty jobs."""
    changes = {
        job: {op: n for op, n in operators.items() if now[job][op] != n}
        for job, operators in wanted.items()
    }
    return {job: operators for job, operators in changes.items() if operators}
