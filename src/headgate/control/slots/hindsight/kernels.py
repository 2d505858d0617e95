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

_SLOWEST = 0.02
"""Share of its usual quota that a slot has at the least."""

_BATCHES_MOST = 1000
"""Of a cycle: its virtual batches may be shorter than the real one."""

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
def following(
    before: int, wanted: float, leap: float, calm_s: F64, r: int, rest_s: float, most: int
) -> int:
    """Return the slots that rule `r` has after `before`; parameters as of `play`, of one rule.

    ``calm_s[r]`` starts at 0 again where slots are added.
    """
    after = before
    enough = max(wanted, leap)
    if wanted > before + _ROUNDING:
        after = int(np.ceil(enough - _ROUNDING))
        calm_s[r] = 0.0
    elif calm_s[r] >= rest_s and before - enough >= 1.0 - _ROUNDING:
        after = int(np.ceil(enough - _ROUNDING))
        # A quarter of a slot to spare: the same load must not ask for the slot again at once.
        if _ROUNDING < after - enough < _TO_SPARE:
            after = min(after + 1, before)
    return min(max(after, 1), most)


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
        calm_s[r] += elapsed_s
        after = following(before, wanted[r], leap[r], calm_s, r, rest_s, most)
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


@jit
def play_batches(
    elapsed_s: float,
    within_s: float,
    before_s: float,
    after_s: float,
    budget_s: float,
    cores: int,
    active: I64,
    work_s: F64,
    weight: F64,
    dear: I64,
    dear_s: F64,
    dear_at_s: F64,
    wanted: F64,
    leap: F64,
    rest_s: float,
    calm_s: F64,
    most: int,
    packing: I64,
    slots: I64,
    waiting_s: F64,
    dear_waiting_s: F64,
    pace: F64,
    ends_s: F64,
    come_s: F64,
    latency_s: F64,
    late: F64,
    changed: F64,
) -> None:
    """Live through a cycle with every rule, in batches; the rest as of `play`.

    A batch takes what has come when it begins, on each slot up to its quota, and ends when its slowest
    slot has served that: what comes meanwhile waits for the next one. What comes within the cycle comes
    evenly, but for dear records. A change stops nobody: it waits for the next batch, which begins with
    the next cycle.

    Parameters
    ----------
    before_s, after_s : float
        Fixed times of a batch, before and after its slots serve.
    budget_s : float
        Time that a slot may serve in a batch; may be infinite.
    cores : int
        Slots that serve at once.
    dear, dear_s, dear_at_s : int64[m], float64[m], float64[m]
        Records that cost much: the key group of each, the seconds that it takes besides `work_s`, and
        when it comes within the cycle, ascending.
    waiting_s, dear_waiting_s : float64[R, most]
        Work that waits for a batch, and that of dear records; changed in place.
    pace : float64[R, most]
        Share of its usual quota that a slot has, since its last task had a dear record; changed in place.
    ends_s : float64[R]
        In how many seconds the running batch ends; changed in place.
    latency_s : float64[most]
        Scratch.
    """
    for r in range(len(wanted)):
        after = slots[r]
        come_s[:after] = 0.0
        latency_s[:after] = 0.0
        row = packing[after]
        for k in range(len(active)):
            come_s[row[active[k]]] += work_s[k]
        at_s = 0.0
        next_dear = 0
        batch_s = before_s + after_s
        for _ in range(_BATCHES_MOST):
            begin_s = at_s + ends_s[r]
            if begin_s >= elapsed_s:
                break
            share = (begin_s - at_s) / elapsed_s
            longest, total = 0.0, 0.0
            while next_dear < len(dear) and dear_at_s[next_dear] < begin_s:
                dear_waiting_s[r, row[dear[next_dear]]] += dear_s[next_dear]
                next_dear += 1
            for i in range(after):
                waiting_s[r, i] += share * come_s[i]
                quota_s = budget_s * pace[r, i]
                usual_s = min(waiting_s[r, i], quota_s)
                took_s = usual_s + dear_waiting_s[r, i] * (usual_s > 0.5 * waiting_s[r, i])
                longest = max(longest, took_s)
                total += took_s
            batch_s = before_s + max(longest, total / cores) + after_s
            for i in range(after):
                quota_s = budget_s * pace[r, i]
                usual_s = min(waiting_s[r, i], quota_s)
                took_s = usual_s
                if usual_s > 0.5 * waiting_s[r, i]:
                    took_s += dear_waiting_s[r, i]
                    dear_waiting_s[r, i] = 0.0
                left_s = waiting_s[r, i] - usual_s
                # Those that came while the batch before was running, and wait for this one.
                spent_s = 0.5 * (begin_s - at_s) + before_s + 0.5 * took_s
                if left_s > 0.0:
                    spent_s += batch_s * left_s / quota_s
                latency_s[i] += share * spent_s
                waiting_s[r, i] = left_s
                # A slot's next quota follows what it has just done, as `OperatorState` learns it.
                if took_s > 0.0:
                    did = max(usual_s / took_s, _SLOWEST)
                    near = 0.5 * pace[r, i] <= did <= 2.0 * pace[r, i]
                    pace[r, i] = 0.5 * (pace[r, i] + did) if near else did
            at_s = begin_s
            ends_s[r] = batch_s
        # The rest waits for a batch that begins after this cycle.
        share = (elapsed_s - at_s) / elapsed_s
        ends_s[r] = max(ends_s[r] - (elapsed_s - at_s), 0.0)
        missed = 0.0
        while next_dear < len(dear):
            dear_waiting_s[r, row[dear[next_dear]]] += dear_s[next_dear]
            next_dear += 1
        for i in range(after):
            waiting_s[r, i] += share * come_s[i]
            quota_s = budget_s * pace[r, i]
            spent_s = ends_s[r] + 0.5 * (elapsed_s - at_s) + before_s
            spent_s += 0.5 * (min(waiting_s[r, i], quota_s) + dear_waiting_s[r, i])
            if waiting_s[r, i] > quota_s:
                spent_s += batch_s * (waiting_s[r, i] - quota_s) / quota_s
            latency_s[i] += share * spent_s
        for k in range(len(active)):
            if latency_s[row[active[k]]] > within_s:
                missed += weight[k]
        late[r] = missed
        # What came within the cycle is known at its end: the next batch has other slots, if any.
        before = slots[r]
        calm_s[r] += elapsed_s
        after = following(before, wanted[r], leap[r], calm_s, r, rest_s, most)
        changed[r] = 0.0
        if after != before:
            total, total_dear_s = 0.0, 0.0
            for i in range(before):
                total += waiting_s[r, i]
                total_dear_s += dear_waiting_s[r, i]
            waiting_s[r, :] = 0.0
            dear_waiting_s[r, :] = 0.0
            pace[r, :] = 1.0
            for i in range(after):
                waiting_s[r, i] = total / after
            dear_waiting_s[r, 0] = total_dear_s
            slots[r] = after
            changed[r] = 1.0
