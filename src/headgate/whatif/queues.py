"""Queues the records that wait at one operator, and serves them with its slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headgate.core.assignment import Assignment
from headgate.journal.histogram import BUCKETS
from headgate.whatif import kernels
from headgate.whatif.kernels import (
    ALLOWANCE,
    ARRIVAL,
    BLOCKED,
    DONE,
    HEAD,
    LEAST,
    NONE,
    SERVING,
    SPEED,
    UNLIMITED,
    USEFUL,
)
from headgate.whatif.streams import Records

F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_NODES = 1024
"""Records that the pool of nodes holds at the start; the pool doubles. Chosen, not tuned."""

NO_OUTPUT: F64 = np.zeros((0, 2))


class Queues:
    """Keeps one FIFO list per slot, over all its key groups, and the clock of each slot.

    `speeds`: float64[slots]. `least_s`: the shortest service time that a rate limit allows a slot
    of normal speed.

    Attributes
    ----------
    arrived, completed : float64[G]
        Records since the start, as `Sample` has them. What is enqueued counts as arrived.
    places : int64[slots, 4]
    clocks : float64[slots, 5]    See `kernels`.
    other_slots : int    Slots in force whose speed is not the normal one.
    histogram : int64[BUCKETS]    True latencies of completed records since it was last set to zero.
    within_s : float    Bound of the latencies that a measure's fourth column counts, in s.
    """

    within_s = math.inf

    def __init__(self, assignment: Assignment, speeds: F64, least_s: float) -> None:
        groups = assignment.key_groups
        self.assignment = assignment
        self.arrived = np.zeros(groups)
        self.completed = np.zeros(groups)
        self.histogram = np.zeros(BUCKETS, dtype=np.int64)
        self.places, self.clocks = _new_slots(speeds, least_s)
        self._least_s = least_s
        self.other_slots = int((speeds != 1.0).sum())
        self._shares = _shares(assignment, range(assignment.slots))
        self._dealt = np.zeros(groups, dtype=np.int64)
        self._stamps: F64 = np.zeros((_NODES, 3))
        self._links = np.full((_NODES, 2), NONE, dtype=np.int64)
        self._free = kernels.link_free(self._links, 0, NONE)
        self._held = 0

    @property
    def held(self) -> int:
        """Records that wait or are in service."""
        return self._held

    @property
    def slots(self) -> int:
        """Slots in force."""
        return len(self.places)

    @property
    def backlog(self) -> I64:
        """Records arrived and not completed, shape [G]."""
        return (self.arrived - self.completed).astype(np.int64)

    def enqueue(self, records: Records, in_tick: I32) -> None:
        """Append records, none of which arrived before an earlier record.

        `in_tick` (int32[G]): receives the counts of these records.
        """
        arrival_s, origin_s, demand_s, groups = records
        self._make_room(len(groups))
        self._free = kernels.enqueue(
            self._stamps,
            self._links,
            self._free,
            self.places,
            self._shares,
            self._dealt,
            self.arrived,
            in_tick,
            arrival_s,
            origin_s,
            demand_s,
            groups,
        )
        self._held += len(groups)

    def serve(self, until_s: float, measure: F64, out: F64 = NO_OUTPUT) -> int:
        """Let every slot serve up to `until_s`; return how many records were completed.

        `measure` (float64[G, 2 to 4]): receives sums: records, latencies, times since the origin, and
        records within `within_s`. `out` (float64[n, 2]): receives (completion, origin) of each
        record, unless n is 0.
        """
        self._free, count = kernels.serve(
            until_s,
            self._stamps,
            self._links,
            self._free,
            self.places,
            self.clocks,
            self.completed,
            measure,
            self.within_s,
            self.histogram,
            out,
        )
        self._held -= count
        return count

    def take(self, slot: int, share: I64) -> tuple[I64, float]:
        """Take waiting records from a slot, up to `share` of each key group, int64[G].

        Returns
        -------
        taken : int64[n]
            Argument of `complete`, which must come before the next `enqueue`.
        demand_s : float
            Their service time together, at normal speed.
        """
        taken = np.empty(int(share.sum()), dtype=np.int64)
        count, demand_s = kernels.take(
            self._stamps,
            self._links,
            self.places,
            slot,
            share.copy(),
            self._least_s,
            taken,
        )
        return taken[:count], demand_s

    def complete(self, taken: I64, done_s: F64, measure: F64, out: F64, start: int) -> None:
        """Complete taken records, each at its `done_s`; `out` receives them from row `start` on."""
        self._free = kernels.complete(
            done_s,
            self._stamps,
            self._links,
            self._free,
            taken,
            len(taken),
            self.completed,
            measure,
            self.within_s,
            self.histogram,
            out,
            start,
        )
        self._held -= len(taken)

    def groups(self, taken: I64) -> I64:
        """Return the key group of each taken record."""
        groups: I64 = self._links[taken, kernels.GROUP]
        return groups

    def speed(self, slot: int) -> float:
        """Return a slot's speed; the normal one is 1."""
        return float(self.clocks[slot, SPEED])

    def oldest_s(self, slot: int) -> float:
        """Return when the record that has waited longest in a slot arrived; infinite for none."""
        head = int(self.places[slot, HEAD])
        return float(self._stamps[head, ARRIVAL]) if head != NONE else math.inf

    def collect_useful_s(self) -> F64:
        """Return each slot's useful time since the last call, and start counting from 0."""
        useful_s = self.clocks[:, USEFUL].copy()
        self.clocks[:, USEFUL] = 0.0
        return useful_s

    def stop(self, slots: Sequence[int], barrier_records: int) -> None:
        """Let some slots stand still after the records in front of a barrier that is sent now."""
        for slot in slots:
            ahead = kernels.waiting(self._links, self.places, slot, barrier_records)
            self.places[slot, ALLOWANCE] = ahead

    def stopped_s(self, slots: Sequence[int], since_s: float) -> F64 | None:
        """Return the time at which each of some slots stopped, or None while one of them still works."""
        still = (self.places[slots, ALLOWANCE] == 0) & (self.places[slots, SERVING] == NONE)
        if not still.all():
            return None
        stopped: F64 = np.maximum(self.clocks[slots, DONE], since_s)
        return stopped

    def reassign(
        self,
        assignment: Assignment,
        survivors: Sequence[int | None],
        speeds: F64,
        *,
        resume_s: float,
    ) -> None:
        """Bring an assignment into force; slots that stood still go on at `resume_s`.

        Records move with their key groups, in the order of arrival. Where the slots of a split group
        change, its records in the slots concerned are shared out again.

        `survivors`: as `Change.survivors`. `speeds` (float64[new slots]): speeds of the new slots,
        in their order.
        """
        before = len(self.places)
        new = [number for number, old in enumerate(survivors) if old is None]
        added = dict(zip(new, range(before, before + len(new)), strict=True))
        order = [added[n] if old is None else old for n, old in enumerate(survivors)]
        places, clocks = _new_slots(speeds, self._least_s)
        self.places = np.concatenate([self.places, places])
        self.clocks = np.concatenate([self.clocks, clocks])
        # Slots have their old numbers here; new slots have the numbers after these.
        shares = _shares(assignment, order)
        moved = np.empty(len(self.places), dtype=np.int64)
        for slot in self._losing(shares):
            kernels.rehome(self._stamps, self._links, self.places, slot, shares, self._dealt, moved)
        stood = self.places[:, ALLOWANCE] != UNLIMITED
        stood[before:] = True
        self.clocks[stood, BLOCKED] = resume_s
        self.places[stood, ALLOWANCE] = UNLIMITED
        gone = np.setdiff1d(np.arange(len(self.places)), order)
        assert (self.places[gone, HEAD] == NONE).all(), gone
        assert (self.places[gone, SERVING] == NONE).all(), gone
        self.places = self.places[order]
        self.clocks = self.clocks[order]
        self.other_slots = int((self.clocks[:, SPEED] != 1.0).sum())
        self._shares = _shares(assignment, range(assignment.slots))
        self.assignment = assignment

    def _losing(self, shares: I64) -> list[int]:
        """Return the slots that have a share of a key group whose shares change."""
        width = max(shares.shape[1], self._shares.shape[1])
        old, new = (
            np.pad(of, ((0, 0), (0, width - of.shape[1])), constant_values=NONE)
            for of in (self._shares, shares)
        )
        slots = np.unique(old[(old != new).any(axis=1)])
        return [slot for slot in slots.tolist() if slot != NONE]

    def waiting(self, slot: int) -> I64:
        """Return the records of each key group that wait at a slot, int64[G]."""
        counts = np.zeros(self.assignment.key_groups, dtype=np.int64)
        kernels.waiting_of(self._links, self.places, slot, counts)
        return counts

    def _make_room(self, count: int) -> None:
        """Grow the pool until `count` nodes are free."""
        nodes = len(self._links)
        if self._held + count <= nodes:
            return
        # The free list may be empty now, but held and free nodes together are always all nodes.
        wanted = nodes
        while wanted < self._held + count:
            wanted *= 2
        self._stamps = np.concatenate([self._stamps, np.zeros((wanted - nodes, 3))])
        links = np.full((wanted - nodes, 2), NONE, dtype=np.int64)
        self._links = np.concatenate([self._links, links])
        self._free = kernels.link_free(self._links, nodes, self._free)


def _shares(assignment: Assignment, numbers: Sequence[int]) -> I64:
    """Return the slots of each key group as `kernels.share` has them, by `numbers` of slots."""
    if not assignment.split:
        return np.array(numbers, dtype=np.int64)[list(assignment.slot_of)][:, None]
    width = max([1, *(len(slots) for slots in assignment.split.values())])
    shares = np.full((assignment.key_groups, width), NONE, dtype=np.int64)
    for group in range(assignment.key_groups):
        slots = assignment.shares_of(group)
        shares[group, : len(slots)] = [numbers[slot] for slot in slots]
    return shares


def _new_slots(speeds: F64, least_s: float) -> tuple[I64, F64]:
    """Return the places and clocks of idle slots."""
    count = len(speeds)
    places = np.full((count, 4), NONE, dtype=np.int64)
    places[:, ALLOWANCE] = UNLIMITED
    clocks = np.zeros((count, 5))
    clocks[:, SPEED] = speeds
    clocks[:, LEAST] = least_s
    return places, clocks
