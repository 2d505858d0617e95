"""Plays the measured arrivals on virtual slots, in plain functions on arrays.

A rule r has ``slots[r]`` virtual slots, and ``waiting_s[r, i]`` seconds of work wait at the i-th slot.
Row n of `packing` has the slot of each key group for n slots, the same for all rules. The functions
play one cycle's arrivals on all rules; no rule affects another rule or the job.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_ROUNDING = 1e-6

_SLOWEST = 0.02
"""Smallest quota of a slot, as a share of its usual quota."""

_BATCHES_MOST = 1000
"""Most virtual batches in a cycle, to bound the time; they may be shorter than the real batches."""

_TO_SPARE = 0.25
"""Least spare capacity after a scale-in, in slots; a larger value keeps more slots. Chosen."""


@jit
def pack(order: I64, load: F64, slots: int, row: I64, total: F64) -> None:
    """Deal key groups to `slots` slots, the heaviest group first, each group to the least loaded slot.

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
    """Return the next number of slots of rule `r`, which has `before` now; other parameters as `play`.

    Sets ``calm_s[r]`` to 0 where slots are added.
    """
    after = before
    enough = max(wanted, leap)
    if wanted > before + _ROUNDING:
        after = int(np.ceil(enough - _ROUNDING))
        calm_s[r] = 0.0
    elif calm_s[r] >= rest_s and before - enough >= 1.0 - _ROUNDING:
        after = int(np.ceil(enough - _ROUNDING))
        # With a spare part of a slot the same load does not need the removed slot again at once.
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
    """Play the arrivals of one cycle on the virtual slots of every rule.

    Parameters
    ----------
    elapsed_s : float
        Length of the cycle.
    stop_s : float
        Time for which a change stops the slots.
    within_s : float
        Latency that records may have.
    active : int64[n]
        Key groups with arrivals.
    work_s, record_s, weight : float64[n]
        Of each active group: seconds of work that arrived, mean seconds of a record, and its weight.
    wanted : float64[R]
        Number of slots that each rule wants, not rounded.
    leap : float64[R]
        Number of slots that a rule takes, at least, when it wants more than it has.
    rest_s : float
        Time for which a rule keeps slots that it has added.
    calm_s : float64[R]
        Time since a rule last added slots; changed in place.
    most : int
        Most slots of a rule.
    packing : int64[most + 1, G]
        Row n: the slot of each key group for n slots.
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
    """Play the arrivals of one cycle on every rule, in batches; other parameters as `play`.

    A batch takes the records that have come when it begins, on each slot up to its quota. It ends when
    the slowest slot has served them; later records wait for the next batch. Records come evenly within
    the cycle, except costly ones. A change stops no slot: it comes into force between two cycles.

    Parameters
    ----------
    before_s, after_s : float
        Fixed times of a batch, before and after its slots serve.
    budget_s : float
        Time that a slot may serve in a batch; may be infinite.
    cores : int
        Number of slots that serve at once.
    dear, dear_s, dear_at_s : int64[m], float64[m], float64[m]
        Costly records: the key group of each, the seconds that it takes besides `work_s`, and its
        arrival time within the cycle, ascending.
    waiting_s, dear_waiting_s : float64[R, most]
        Work that waits for a batch, and such work of costly records; changed in place.
    pace : float64[R, most]
        Quota of a slot as a share of its usual quota: small after a costly record; changed in place.
    ends_s : float64[R]
        Time until the running batch ends; changed in place.
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
                # Records came during the batch before: on average they have waited for half of it.
                spent_s = 0.5 * (begin_s - at_s) + before_s + 0.5 * took_s
                if left_s > 0.0:
                    spent_s += batch_s * left_s / quota_s
                latency_s[i] += share * spent_s
                waiting_s[r, i] = left_s
                # A slot's next quota follows its pace in this batch, as `OperatorState` learns rates.
                if took_s > 0.0:
                    did = max(usual_s / took_s, _SLOWEST)
                    near = 0.5 * pace[r, i] <= did <= 2.0 * pace[r, i]
                    pace[r, i] = 0.5 * (pace[r, i] + did) if near else did
            at_s = begin_s
            ends_s[r] = batch_s
        # The other records wait for a batch that begins after this cycle.
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
        # The arrivals of a cycle are known at its end: a change of slots holds from the next cycle on.
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
