"""A slot as an event simulation: records with times, and the counters an engine would report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headgate.control.sample import Sample
from headgate.core.assignment import spread

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Served:
    """Records of one operator, by slot in the order of service; times in seconds."""

    slot: I64
    group: I64
    arrival_s: F64
    start_s: F64
    end_s: F64


def serve(
    rng: np.random.Generator, rates: F64, service_s: F64, length_s: float, slots: int
) -> Served:
    """Serve Poisson arrivals first come, first served; service times are exponential.

    `rates` is per key group, `service_s` the mean service time of each slot.
    """
    slot_of = np.array(spread(slots, len(rates)).slot_of)
    counts = rng.poisson(rates * length_s)
    group = np.repeat(np.arange(len(rates)), counts)
    arrival = rng.uniform(0.0, length_s, len(group))
    slot = slot_of[group]
    order = np.lexsort((arrival, slot))
    slot, group, arrival = slot[order], group[order], arrival[order]
    service = rng.exponential(service_s[slot])
    start = np.empty(len(arrival))
    free = np.zeros(slots)
    for record, owner in enumerate(slot):
        start[record] = max(free[owner], arrival[record])
        free[owner] = start[record] + service[record]
    return Served(slot, group, arrival, start, start + service)


def samples(served: Served, groups: int, slots: int, delta_s: float, ticks: int) -> list[Sample]:
    """Return the counters of each tick."""
    edges = np.arange(1, ticks + 1) * delta_s
    arrived, completed = np.empty((ticks, groups)), np.empty((ticks, groups))
    useful = np.zeros((ticks, slots))
    for group in range(groups):
        mine = served.group == group
        arrived[:, group] = np.searchsorted(np.sort(served.arrival_s[mine]), edges, side="right")
        completed[:, group] = np.searchsorted(np.sort(served.end_s[mine]), edges, side="right")
    for slot in range(slots):
        mine = served.slot == slot
        for tick, edge in enumerate(edges):
            first = np.maximum(served.start_s[mine], edge - delta_s)
            useful[tick, slot] = np.maximum(np.minimum(served.end_s[mine], edge) - first, 0.0).sum()
    assignment, slot_ids = spread(slots, groups), tuple(range(slots))
    return [
        Sample(m + 1, assignment, slot_ids, arrived[m], completed[m], useful[m])
        for m in range(ticks)
    ]
