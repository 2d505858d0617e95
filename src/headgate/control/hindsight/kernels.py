"""Runs the loops of virtual slots, as plain functions on arrays.

A rule r has ``slots[r]`` virtual slots, and ``waiting[r, i]`` seconds of work wait at the i-th. Which of
them a key group goes to depends on the number of slots alone: row n of `packing`. So one cycle's
arrivals are played on all rules at once, and no rule disturbs another or the job.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_ROUNDING = 1e-6

_TO_SPARE = 0.25
"""Of a slot, where slots are taken away. Chosen."""


@jit
def pack(order: I64, load: F64, slots: int, row: I64, total: F64) -> None:
    """Deal key groups to `slots` slots, the heaviest first, each to the least loaded.

    Parameters
    ----------
    order : int64[G]
        Key groups, the heaviest first.
    load : float64[G]
    slots : int
    row : int64[G]
        Receives the slot of each group.
    total : float64[>= slots]
        Scratch.

    References
    ----------
    LPT, Graham (1969).
    """
    total[:slots] = 0.0
    for i in range(len(order)):
        group = order[i]
        best = 0
        for slot in range(1, slots):
            if total[slot] < total[best]:
                best = slot
        row[group] = best
        total[best] += load[group]


@jit
def play(
    elapsed_s: float,
    stop_s: float,
    within_s: float,
    active: I64,
    work_s: F64,
    record_s: F64,
    weight: F64,
    wanted: F64,
    leap: F64,
    rest_s: float,
    calm_s: F64,
    most: int,
    packing: I64,
    slots: I64,
    waiting_s: F64,
    come_s: F64,
    late: F64,
    changed: F64,
) -> None:
    """Live through a cycle with every rule.

    Parameters
    ----------
    elapsed_s : float
        How long it was.
    stop_s : float
        How long slots stand still for a change.
    within_s : float
        The latency that records may have.
    active : int64[n]
        Key groups with arrivals.
    work_s, record_s, weight : float64[n]
        Of each: seconds of work that came, mean seconds of a record, and what it counts.
    wanted : float64[R]
        How many slots each rule wants, not rounded.
    leap : float64[R]
        How many it takes when it wants more than there are.
    rest_s : float
        How long a rule keeps slots that it has added.
    calm_s : float64[R]
        How long it has not added any; changed in place.
    most : int
        More than so many slots no rule gets.
    packing : int64[most + 1, G]
    slots : int64[R]
        Changed in place.
    waiting_s : float64[R, most]
        Changed in place.
    come_s : float64[most]
        Scratch.
    late : float64[R]
        Receives the weight of the groups whose records would be late.
    changed : float64[R]
        Receives 1 where the number of slots has changed.
    """
    for r in range(len(wanted)):
        before = slots[r]
        after = before
        calm_s[r] += elapsed_s
        enough = max(wanted[r], leap[r])
        if wanted[r] > before + _ROUNDING:
            after = int(np.ceil(enough - _ROUNDING))
            calm_s[r] = 0.0
        elif calm_s[r] >= rest_s and before - enough >= 1.0 - _ROUNDING:
            after = int(np.ceil(enough - _ROUNDING))
            # A quarter of a slot to spare: the same load must not ask for the slot again at once.
            if _ROUNDING < after - enough < _TO_SPARE:
                after = min(after + 1, before)
        after = min(max(after, 1), most)
        changed[r] = 0.0
        if after != before:
            total = 0.0
            for i in range(before):
                total += waiting_s[r, i]
            waiting_s[r, :] = 0.0
            for i in range(after):
                waiting_s[r, i] = total / after + stop_s
            slots[r] = after
            changed[r] = 1.0
        come_s[:after] = 0.0
        row = packing[after]
        for k in range(len(active)):
            come_s[row[active[k]]] += work_s[k]
        missed = 0.0
        for k in range(len(active)):
            i = row[active[k]]
            before_s = waiting_s[r, i] - 0.5 * elapsed_s
            latency_s = max(before_s, 0.0) + 0.5 * (come_s[i] + record_s[k])
            if latency_s > within_s:
                missed += weight[k]
        late[r] = missed
        for i in range(after):
            waiting_s[r, i] = max(0.0, waiting_s[r, i] + come_s[i] - elapsed_s)
