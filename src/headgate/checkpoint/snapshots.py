"""Schedules the full sections of key groups: their interval, and the groups of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.checkpoint.manifest import NO_STEP

LEAST, MOST = 32, 128
"""Steps between two full sections of a key group, where nobody says. Chosen, not tuned."""

_LISTED = 128 * 128
"""Key groups times steps up to which more than the least are taken: a restart that has no room for all
manifests it reads is slow (docs/design/0147)."""


_FEW_ROWS = 1 << 14
"""Changed entries that a restart may read however small the state is: it applies them in milliseconds.
With fewer, a small state that changes often would mostly write full sections. Chosen, not tuned."""


def steps_between(rows: int, changed_rows: float, key_groups: int) -> int:
    """Return how many steps lie between two full sections of a key group.

    As many that a restart reads at most half as much of changes as of full sections, or `_FEW_ROWS`;
    `LEAST` times a power of two.

    `rows`: entries of all key groups. `changed_rows`: of them, those that a step changes.
    """
    read_rows = max(rows / 2.0, _FEW_ROWS)
    most = min(read_rows / max(changed_rows, 1.0), MOST, _LISTED / key_groups)
    every = LEAST
    while 2 * every <= most:
        every *= 2
    return every


def due(
    step: int, steps: Sequence[int], full_steps: Sequence[int], every: int, turn: int = 1
) -> list[int]:
    """Return the key groups that write a full section in a step, whether it changes them or not.

    Those that have changed since their last one, `every` steps ago or more: a group that were due at
    fixed steps only might never be touched at one. About as many in each turn, first whose last one is
    oldest, so that what is written stays even when `every` becomes less.

    `steps`, `full_steps`: by key group, the step of its newest section, and of its newest full one;
    `NO_STEP` for none. `turn`: full sections are written in one step of so many: the others are
    then small.
    """
    if step % turn:
        return []
    since = [
        # the first ones take turns
        -1 - group % every if full == NO_STEP else full
        for group, full in enumerate(full_steps)
    ]
    groups = [
        group
        for group, newest in enumerate(steps)
        if newest > full_steps[group] and step - since[group] >= every
    ]
    groups.sort(key=lambda group: since[group])
    return groups[: math.ceil(len(steps) * turn / every) + 1]
