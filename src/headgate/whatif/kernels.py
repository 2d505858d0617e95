"""Runs the inner loops of the simulator, as plain functions on arrays.

Waiting records live in one pool of nodes: `stamps` is float64[n, 3] (arrival, origin, demand) and
`links` is int64[n, 2] (key group, next node). Each slot has one FIFO list of nodes in the order of
arrival over all its key groups; node -1 is none, and the free nodes are a list of their own. One
record is one node, so nothing is approximated: every record has its own arrival, its own service
time and its own completion.

Belongs here: loops over records. Does not belong here: randomness (a record brings its service time
along), classes, and any decision.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit
from headgate.journal.histogram import BUCKETS, FIRST_MS, GROWTH

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

# Columns of `stamps` and `links`.
ARRIVAL, ORIGIN, DEMAND = range(3)
GROUP, NEXT = range(2)
# Columns of `places` (int64[slots, 4]): the slot's list, the record in service, and how many records
# it may still begin before it stands still for a change (`UNLIMITED` outside one).
HEAD, TAIL, SERVING, ALLOWANCE = range(4)
# Columns of `clocks` (float64[slots, 5]): when the record in service is done (or the last one was),
# the time before which nothing may begin, service speed (1 is normal), the shortest service time that
# a rate cap allows, and useful time since it was last collected.
DONE, BLOCKED, SPEED, LEAST, USEFUL = range(5)
# Columns of a group's row in a measure: records, the sum of their latencies, and, where there are that
# many columns, the sum of the times since their origin, and how many were within a bound.
COUNT, LATENCY, SINCE_ORIGIN, WITHIN = range(4)

NONE = -1
UNLIMITED = 2**62

_LOG_GROWTH = math.log(GROWTH)
_FIRST_S = FIRST_MS / 1e3
_LAST_BUCKET = BUCKETS - 1


@jit
def link_free(links: I64, start: int, free: int) -> int:
    """Chain nodes from `start` on in front of the free list; return the list's new first node."""
    for node in range(links.shape[0] - 1, start - 1, -1):
        links[node, NEXT] = free
        free = node
    return free


@jit
def share(shares: I64, dealt: I64, group: int) -> int:
    """Return the slot that the next record of a group goes to: the group's slots take turns.

    `shares` (int64[G, most]): slots of each group, its owner first; `NONE` behind the last. `dealt`
    (int64[G]): the next turn of each group; advanced.
    """
    turn = dealt[group]
    if turn >= shares.shape[1] or shares[group, turn] == NONE:
        turn = 0
    dealt[group] = turn + 1
    return int(shares[group, turn])


@jit
def enqueue(
    stamps: F64,
    links: I64,
    free: int,
    places: I64,
    shares: I64,
    dealt: I64,
    arrived: F64,
    in_tick: I32,
    arrival_s: F64,
    origin_s: F64,
    demand_s: F64,
    groups: I64,
) -> int:
    """Append records, ascending in arrival, to the lists of their slots.

    There must be enough free nodes. Counts records in `arrived` and `in_tick`, both [G]. `shares` and
    `dealt` as in `share`. Returns the free list's new first node.
    """
    for i in range(groups.shape[0]):
        group = groups[i]
        slot = share(shares, dealt, group)
        node = free
        free = links[node, NEXT]
        stamps[node, ARRIVAL] = arrival_s[i]
        stamps[node, ORIGIN] = origin_s[i]
        stamps[node, DEMAND] = demand_s[i]
        links[node, GROUP] = group
        links[node, NEXT] = NONE
        if places[slot, TAIL] == NONE:
            places[slot, HEAD] = node
        else:
            links[places[slot, TAIL], NEXT] = node
        places[slot, TAIL] = node
        arrived[group] += 1.0
        in_tick[group] += 1
    return free


@jit
def bucket_of(latency_s: float) -> int:
    """Return the bucket of `headgate.journal.histogram` for a latency in seconds."""
    if latency_s <= _FIRST_S:
        return 0
    return min(math.ceil(math.log(latency_s / _FIRST_S) / _LOG_GROWTH), _LAST_BUCKET)


@jit
def serve(
    until_s: float,
    stamps: F64,
    links: I64,
    free: int,
    places: I64,
    clocks: F64,
    completed: F64,
    measure: F64,
    within_s: float,
    histogram: I64,
    out: F64,
) -> tuple[int, int]:
    """Let every slot serve its list in order, up to `until_s`.

    A record begins at the latest of its arrival, the end of the record before it, and the end of a
    change of its slot; no record is interrupted. A record that began before `until_s` and is not done
    by then stays in service. Useful time counts when a record is done, so that records per useful
    second have no bias in a slot that is nearly idle.

    Parameters
    ----------
    within_s : float    The bound of `WITHIN`.
    out : float64[n, 2]
        Receives (completion, origin) of each completed record, slot by slot; not written if n is 0.

    Returns
    -------
    free : int
        First node of the free list.
    count : int
        Records completed.
    """
    count = 0
    for slot in range(places.shape[0]):
        speed = clocks[slot, SPEED]
        least_s = clocks[slot, LEAST]
        node = places[slot, SERVING]
        done_s = clocks[slot, DONE]
        begin_s = 0.0
        if node != NONE:
            begin_s = done_s - max(stamps[node, DEMAND], least_s) / speed
        while True:
            if node != NONE:
                if done_s > until_s:
                    break
                group = links[node, GROUP]
                latency_s = done_s - stamps[node, ARRIVAL]
                completed[group] += 1.0
                measure[group, COUNT] += 1.0
                measure[group, LATENCY] += latency_s
                if measure.shape[1] > SINCE_ORIGIN:
                    measure[group, SINCE_ORIGIN] += done_s - stamps[node, ORIGIN]
                if measure.shape[1] > WITHIN and latency_s <= within_s:
                    measure[group, WITHIN] += 1.0
                histogram[bucket_of(latency_s)] += 1
                clocks[slot, USEFUL] += done_s - begin_s
                if out.shape[0] > 0:
                    out[count, 0] = done_s
                    out[count, 1] = stamps[node, ORIGIN]
                count += 1
                links[node, NEXT] = free
                free = node
                node = NONE
            following = places[slot, HEAD]
            if following == NONE or places[slot, ALLOWANCE] == 0:
                break
            begin_s = max(done_s, stamps[following, ARRIVAL], clocks[slot, BLOCKED])
            if begin_s >= until_s:
                break
            node = following
            places[slot, HEAD] = links[node, NEXT]
            if places[slot, HEAD] == NONE:
                places[slot, TAIL] = NONE
            if places[slot, ALLOWANCE] != UNLIMITED:
                places[slot, ALLOWANCE] -= 1
            done_s = begin_s + max(stamps[node, DEMAND], least_s) / speed
        places[slot, SERVING] = node
        clocks[slot, DONE] = done_s
    return free, count


@jit
def rehome(
    stamps: F64, links: I64, places: I64, slot: int, shares: I64, dealt: I64, moved: I64
) -> None:
    """Move the records of moved groups from one slot's list to their new slots' lists.

    Both lists are in the order of arrival, and so is the merged list; at equal times the target's own
    record comes first. The order within a group does not change.

    `shares`, `dealt`: as in `share`: the new assignment, in numbers of `places`. `moved`
    (int64[slots]): scratch: receives, per slot, the last node of the merge so far.
    """
    for i in range(moved.shape[0]):
        moved[i] = NONE
    node = places[slot, HEAD]
    places[slot, HEAD] = NONE
    places[slot, TAIL] = NONE
    while node != NONE:
        following = links[node, NEXT]
        target = share(shares, dealt, links[node, GROUP])
        previous = moved[target]
        after = places[target, HEAD] if previous == NONE else links[previous, NEXT]
        while after != NONE and stamps[after, ARRIVAL] <= stamps[node, ARRIVAL]:
            previous = after
            after = links[after, NEXT]
        moved[target] = node
        links[node, NEXT] = after
        if previous == NONE:
            places[target, HEAD] = node
        else:
            links[previous, NEXT] = node
        if after == NONE:
            places[target, TAIL] = node
        node = following


@jit
def waiting(links: I64, places: I64, slot: int, limit: int) -> int:
    """Return how many records wait in a slot's list; at most `limit`."""
    count = 0
    node = places[slot, HEAD]
    while node != NONE and count < limit:
        count += 1
        node = links[node, NEXT]
    return count


@jit
def waiting_of(links: I64, places: I64, slot: int, counts: I64) -> None:
    """Count the records of each key group that wait in a slot's list, int64[G]."""
    node = places[slot, HEAD]
    while node != NONE:
        counts[links[node, GROUP]] += 1
        node = links[node, NEXT]


@jit
def take(
    stamps: F64,
    links: I64,
    places: I64,
    slot: int,
    share: I64,
    least_s: float,
    taken: I64,
) -> tuple[int, float]:
    """Take records out of a slot's list, per key group at most its share, in order.

    Parameters
    ----------
    share : int64[G]    Most records per key group; counted down.
    least_s : float    The shortest service time of a record, in seconds.
    taken : int64[n]    Receives the nodes.

    Returns
    -------
    count : int
        Records taken.
    demand_s : float
        Their service times together, at speed 1.
    """
    count = 0
    demand_s = 0.0
    node = places[slot, HEAD]
    previous = NONE
    while node != NONE:
        following = links[node, NEXT]
        group = links[node, GROUP]
        if share[group] > 0:
            share[group] -= 1
            taken[count] = node
            count += 1
            demand_s += max(stamps[node, DEMAND], least_s)
            if previous == NONE:
                places[slot, HEAD] = following
            else:
                links[previous, NEXT] = following
            if following == NONE:
                places[slot, TAIL] = previous
        else:
            previous = node
        node = following
    return count, demand_s


@jit
def complete(
    done_s: F64,
    stamps: F64,
    links: I64,
    free: int,
    taken: I64,
    count: int,
    completed: F64,
    measure: F64,
    within_s: float,
    histogram: I64,
    out: F64,
    start: int,
) -> int:
    """Complete the first `count` taken records, each at its `done_s`; return the free list's first node.

    `out` receives (completion, origin) from row `start` on, unless it has no rows.
    """
    for i in range(count):
        node = taken[i]
        group = links[node, GROUP]
        latency_s = done_s[i] - stamps[node, ARRIVAL]
        completed[group] += 1.0
        measure[group, COUNT] += 1.0
        measure[group, LATENCY] += latency_s
        if measure.shape[1] > SINCE_ORIGIN:
            measure[group, SINCE_ORIGIN] += done_s[i] - stamps[node, ORIGIN]
        if measure.shape[1] > WITHIN and latency_s <= within_s:
            measure[group, WITHIN] += 1.0
        histogram[bucket_of(latency_s)] += 1
        if out.shape[0] > 0:
            out[start + i, 0] = done_s[i]
            out[start + i, 1] = stamps[node, ORIGIN]
        links[node, NEXT] = free
        free = node
    return free
