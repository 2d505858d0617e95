"""Runs the inner loop of the simulated fleet, as plain functions on arrays.

The operators of all jobs are in one sequence, parents before children. Each has a FIFO queue of chunks,
which have a number of records and the time at which they arrived at their source (`births`). Service
times are subtracted from that time, so that the age of records that leave a sink is their latency.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headgate.core.jit import jit

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

# Columns of `ops` (float64[operators, 10]): parameters of an operator, then its counters and state.
SERVICE, CPU, VARIATION, SELECTIVITY, RETENTION = range(5)
EXECUTED, BUSY, QUEUE, RETAINED, PAUSED_UNTIL = range(5, 10)
COLUMNS = 10
# Columns of `places` (int64[operators, 3]): the job, and the ring of the queue's chunks.
JOB, HEAD, SIZE = range(3)
# Columns of `done` (float64[jobs, 2]): records that left a sink, and the sum of their latencies.
COUNT, LATENCY = range(2)
# Columns of `hosts` (float64[hosts, 3]): slowdown of a slot's work, relative to a free core;
# cores that other processes take; and the time that slots were runnable.
STRETCH, BACKGROUND, RUNNABLE = range(3)

CHUNKS = 256
HOP_S = 0.001
"""Time from one operator to the next, in seconds [I]."""

_RHO_MOST = 0.97
"""Utilisation above which the waiting time is that of the fluid queue."""
_STRETCH_MOST = 1e4
_NOTHING = 1e-9
"""A smaller number of records is a rounding error."""


@jit
def push(counts: F64, births: F64, place: I64, queued: float, count: float, birth: float) -> None:
    """Append records to a queue, to its newest chunk if that is small relative to the queue."""
    size = place[SIZE]
    if size > 0:
        tail = (place[HEAD] + size - 1) % CHUNKS
        if size == CHUNKS or counts[tail] < queued * 2.0 / CHUNKS:
            whole = counts[tail] + count
            births[tail] = (births[tail] * counts[tail] + birth * count) / whole
            counts[tail] = whole
            return
    new = (place[HEAD] + size) % CHUNKS
    counts[new], births[new] = count, birth
    place[SIZE] = size + 1


@jit
def pull(counts: F64, births: F64, place: I64, count: float) -> float:
    """Take the `count` oldest records, which must exist, and return the mean of their births."""
    left, total = count, 0.0
    while left > 0.0 and place[SIZE] > 0:
        head = place[HEAD]
        taken = min(left, counts[head])
        total += taken * births[head]
        left -= taken
        counts[head] -= taken
        if counts[head] <= _NOTHING:
            place[HEAD] = (head + 1) % CHUNKS
            place[SIZE] -= 1
    served = count - left
    return total / served if served > 0.0 else 0.0


@jit
def advance(
    time_s: float,
    step_s: float,
    cores: float,
    overhead: float,
    rates: F64,
    ops: F64,
    slots: I64,
    places: I64,
    first: I64,
    children: I64,
    sent: F64,
    counts: F64,
    births: F64,
    done: F64,
    hosts: F64,
) -> None:
    """Simulate ``len(rates)`` steps.

    Parameters
    ----------
    time_s, step_s : float
        Begin of the first step, and length of each, in seconds.
    cores, overhead : float
        Cores of a host, and the share of a core that a slot always takes.
    rates : float64[steps, operators]
        Records per second that arrive at each source; 0 for other operators.
    ops : float64[operators, COLUMNS]
    slots : int64[operators, hosts]
    places : int64[operators, 3]
    first : int64[operators + 1]
        The edges of operator o are ``first[o]`` to ``first[o + 1] - 1``.
    children : int64[edges]
    sent : float64[edges]
        Records sent so far.
    counts, births : float64[operators, CHUNKS]
    done : float64[jobs, 2]
    hosts : float64[hosts, 3]
    """
    hosts_count = slots.shape[1]
    used = np.zeros(hosts_count)
    wanted = np.zeros(hosts_count)
    for step in range(rates.shape[0]):
        now = time_s + (step + 0.5) * step_s
        for h in range(hosts_count):
            used[h] = wanted[h] = hosts[h, BACKGROUND]
        for o in range(ops.shape[0]):
            count = rates[step, o] * step_s
            source = ops[o, SERVICE] == 0.0
            if count > 0.0:
                push(counts[o], births[o], places[o], ops[o, QUEUE], count, now)
                ops[o, QUEUE] += count
            rate = 0.0
            held = 0
            for h in range(hosts_count):
                stretched = ops[o, SERVICE] + ops[o, CPU] * (hosts[h, STRETCH] - 1.0)
                rate += 0.0 if source else slots[o, h] / stretched
                held += slots[o, h]
                used[h] += overhead * slots[o, h]
                wanted[h] += overhead * slots[o, h]
            paused = now < ops[o, PAUSED_UNTIL]
            most = ops[o, QUEUE] if source else rate * step_s
            served = 0.0 if paused else min(ops[o, QUEUE], most)
            if ops[o, RETENTION] > 0.0:
                forgotten = min(1.0, step_s / ops[o, RETENTION])
                ops[o, RETAINED] += served - ops[o, RETAINED] * forgotten
            if served <= 0.0:
                continue
            birth = pull(counts[o], births[o], places[o], served)
            ops[o, QUEUE] = max(0.0, ops[o, QUEUE] - served)
            if places[o, SIZE] == 0:
                ops[o, QUEUE] = 0.0
            ops[o, EXECUTED] += served
            if not source:
                each_s = held / rate
                ops[o, BUSY] += served * each_s
                rho = min(served / most, _RHO_MOST)
                spread = (1.0 / held + ops[o, VARIATION]) / 2.0
                chance_s = 0.0
                if ops[o, QUEUE] == 0.0:
                    chance_s = spread * rho / (1.0 - rho) * each_s
                birth -= each_s + chance_s + HOP_S
                for h in range(hosts_count):
                    stretched = ops[o, SERVICE] + ops[o, CPU] * (hosts[h, STRETCH] - 1.0)
                    core_s = served * (slots[o, h] / stretched / rate) * ops[o, CPU] / step_s
                    used[h] += core_s
                    wanted[h] += core_s * hosts[h, STRETCH]
            job = places[o, JOB]
            if first[o] == first[o + 1]:
                done[job, COUNT] += served
                done[job, LATENCY] += served * (now - birth)
            made = served * ops[o, SELECTIVITY]
            for e in range(first[o], first[o + 1]):
                child = children[e]
                push(counts[child], births[child], places[child], ops[child, QUEUE], made, birth)
                ops[child, QUEUE] += made
                sent[e] += made
        for h in range(hosts_count):
            hosts[h, RUNNABLE] += wanted[h] * step_s
            # Go half the way in each step, since slots that are slowed down offer more work.
            change = math.sqrt(min(max(used[h] / cores, 0.5), 2.0))
            hosts[h, STRETCH] = min(max(1.0, hosts[h, STRETCH] * change), _STRETCH_MOST)
