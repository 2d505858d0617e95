"""Distributes the load of an operator's key groups evenly over slots, and moves few key groups."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.control.decision import Change, ChangeKind
from headgate.control.observation import OperatorView
from headgate.core.assignment import Assignment

F64 = npt.NDArray[np.float64]

_SILENT, _LEAST_LOAD = 0.1, 1e-9
"""Weight of all key groups together besides their load, as a share of it; and the least total load."""

_OVER = 0.05
"""Excess above which a slot sheds groups, as a fraction of the even share; more moves fewer. Chosen."""


def repacked(view: OperatorView, wanted: int, load: F64) -> Change | None:
    """Return the change to `wanted` slots that moves few key groups and spreads the load evenly.

    Removes the slots with the least load. A slot with more than the even share plus `_OVER` sheds
    groups, the heaviest that fit first. A group that alone exceeds the even share stays, and its slot
    sheds the other groups. The shed groups go to the least loaded slots, the heaviest first (LPT).
    None where nothing would change.

    `wanted`: from 1 to the number of key groups. `load` (float64[G]): load of each key group, in any
    unit.

    References
    ----------
    LPT: Graham (1969). StreamSwitch 3.4 moves the groups of one slot to one other.
    """
    before = view.slots
    # Every group gets some weight, so that groups without load are spread as well.
    weight = load + max(float(load.sum()), _LEAST_LOAD) * _SILENT / len(load)
    split = view.assignment.split
    for group, shares in split.items():
        weight[group] /= len(shares)
    total = np.bincount(view.assignment.slot_of, weights=weight, minlength=before)
    shared = np.zeros(before)
    for group, shares in split.items():
        shared[list(shares[1:])] += weight[group]
    keep = sorted(np.argsort(-(total + shared), kind="stable")[: min(wanted, before)].tolist())
    number: dict[int, int] = {old: new for new, old in enumerate(keep)}
    held: list[list[int]] = [[] for _ in range(wanted)]
    shed: list[int] = []
    for group, owner in enumerate(view.assignment.slot_of):
        (held[number[owner]] if owner in number else shed).append(group)
    sums = np.zeros(wanted)
    sums[: len(keep)] = shared[keep]
    share = _even_share(weight, float(weight.sum() + shared.sum()), wanted)
    for slot, groups in enumerate(held):
        groups.sort(key=lambda g: (-weight[g], g))
        sums[slot] += float(weight[groups].sum())
        sums[slot] = _shed(groups, shed, weight, sums[slot], share, share * (1.0 + _OVER))
    shed.sort(key=lambda g: (-weight[g], g))
    for group in shed:
        slot = int(np.argmin(sums))
        held[slot].append(group)
        sums[slot] += weight[group]
    slot_of = [0] * len(load)
    for slot, groups in enumerate(held):
        for group in groups:
            slot_of[group] = slot
    if wanted == before and tuple(slot_of) == view.assignment.slot_of:
        return None
    kind = ChangeKind.BALANCE if wanted == before else ChangeKind.RESCALE
    left = {}
    for group, shares in split.items():
        others = [number[s] for s in shares if s in number and number[s] != slot_of[group]]
        if others:
            left[group] = (slot_of[group], *others)
    assignment = Assignment(tuple(slot_of), wanted, view.assignment.epoch + 1, left)
    survivors: list[int | None] = [*keep, *[None] * (wanted - len(keep))]
    return Change(kind, assignment, tuple(survivors))


def _even_share(weight: F64, total: float, slots: int) -> float:
    """Return the even share of a slot whose groups all weigh less than that share."""
    left, free = total, slots
    for heavy in np.sort(weight)[::-1].tolist():
        if free == 1 or heavy <= left / free:
            break
        left, free = left - heavy, free - 1
    return left / free


def _shed(
    groups: list[int], shed: list[int], weight: F64, total: float, share: float, most: float
) -> float:
    """Move groups, the heaviest first, from `groups` to `shed` until a slot has no more than `most`."""
    place = 1 if groups and weight[groups[0]] > share else 0  # the group that is too heavy stays
    while total > most and len(groups) > max(place, 1):
        over = total - share
        while place < len(groups) - 1 and weight[groups[place]] > over:
            place += 1
        group = groups.pop(place)
        shed.append(group)
        total -= float(weight[group])
        if place >= len(groups):
            break
    return total
