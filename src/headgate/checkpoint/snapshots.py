"""Schedules the full sections of key groups: their interval, and the groups of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.checkpoint.manifest import NO_STEP

LEAST, MOST = 32, 128
"""Least and largest steps between two full sections of a key group, unless set. Chosen, not tuned."""

_LISTED = 128 * 128
"""Largest product of key groups and steps for more than the least steps. A larger value makes restarts
slow that have no cache for all the manifests they read (docs/design/0147)."""


_FEW_ROWS = 1 << 14
"""Changed entries that a restart may read even if the state is small: it applies them in milliseconds.
With a smaller value, a small state that changes often mostly writes full sections. Chosen, not tuned."""


def steps_between(rows: int, changed_rows: float, key_groups: int) -> int:
    """Return the number of steps between two full sections of a key group.

    A restart then reads at most half as many changed entries as entries of full sections, or
    `_FEW_ROWS`. The number is `LEAST` times a power of two.

    `rows`: entries of all key groups. `changed_rows`: entries that a step changes.
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
    """Return the key groups that write a full section in a step, even if the step does not change them.

    A group is due if it has changed since its last full section, `every` steps ago or more. With fixed
    steps instead, a group might never change in one of its steps. Each turn takes about as many groups,
    the oldest full section first, so that the written amount stays even when `every` becomes less.

    `steps`, `full_steps`: by key group, the step of its newest section, and of its newest full section;
    `NO_STEP` without one. `turn`: only every `turn`-th step writes full sections, so that the other
    steps stay small.
    """
    if step % turn:
        return []
    since = [
        # the first full sections are spread over `every` steps
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
