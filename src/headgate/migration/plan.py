"""Plans a change of assignment: the key groups that move together, and the sequence of these sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headgate.core.assignment import Assignment, spread
from headgate.core.errors import ConfigError

SUBSCALE_GROUPS_MIN = 7
"""Least key groups of a subscale, if its pair of slots has so many (DRRS's code)."""

PER_HOST_MAX = 2
"""Most subscales that a host takes part in at once (DRRS IV-A)."""


@dataclass(frozen=True)
class Subscale:
    """Holds key groups that move together, independently of other groups (DRRS III-C)."""

    groups: tuple[int, ...]
    """Ascending, at least one."""
    source: int
    destination: int
    """`source`, `destination`: slots; equal only for groups that stay and that a strategy holds while
    other groups move."""


@dataclass(frozen=True)
class Plan:
    """Holds the old and the new assignment of a change, and computes the moves between them.

    A number means the same slot in both assignments: a slot that gets another number counts as two slots,
    and its groups move. Raises `ConfigError`: the numbers of key groups differ, or a slot has no host.
    """

    old: Assignment
    new: Assignment
    """`old`, `new`: assignments of the same key groups."""
    hosts: tuple[str, ...]
    """Entry s is the host of slot s, for the slots of either assignment. The arena of a host gives its
    name, so a host that dies and comes back has another name."""

    def __post_init__(self) -> None:
        if self.old.key_groups != self.new.key_groups:
            msg = (
                f"an assignment of {self.new.key_groups} key groups cannot follow one of "
                f"{self.old.key_groups}; the number of key groups is fixed."
            )
            raise ConfigError(msg)
        check_hosts(self.hosts, max(self.old.slots, self.new.slots))

    @property
    def moved(self) -> tuple[int, ...]:
        """The key groups that change their slot, ascending."""
        return self.old.moved(self.new)

    @property
    def pairs(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The groups that move, ascending, by (source, destination), sorted."""
        return pairs({g: (self.old.slot_of[g], self.new.slot_of[g]) for g in self.moved})

    @property
    def across(self) -> tuple[int, ...]:
        """The key groups that change their host, ascending."""
        old, new = self.old.slot_of, self.new.slot_of
        return tuple(g for g in self.moved if self.hosts[old[g]] != self.hosts[new[g]])


def check_hosts(hosts: Sequence[str], slots: int) -> None:
    """Raise ConfigError unless each of `slots` slots has a host."""
    if len(hosts) < slots:
        msg = f"slot {len(hosts)} has no host; name one for each of the {slots} slots."
        raise ConfigError(msg)


def pairs(moves: Mapping[int, tuple[int, int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the groups of each (source, destination), both ascending.

    `moves`: key group -> source and destination.
    """
    groups_of: dict[tuple[int, int], list[int]] = {}
    for group in sorted(moves):
        groups_of.setdefault(moves[group], []).append(group)
    return {pair: tuple(groups_of[pair]) for pair in sorted(groups_of)}


def uniform(current: Assignment, slots: int) -> Assignment:
    """Return the next epoch with `slots` slots and contiguous ranges of key groups.

    The ranges are those of `spread`, whatever the current assignment: slot i owns the groups
    ``ceil(i G / n)`` to ``((i + 1) G - 1) // n``, as in Flink.

    References
    ----------
    DRRS IV-A and V-B, uniform re-partitioning: 111 of 128 groups move for 8 -> 12 slots, where
    `headgate.core.assignment.rescale` moves 40.
    """
    ranges = spread(slots, current.key_groups)
    return Assignment(ranges.slot_of, slots, current.epoch + 1)


def divide(
    moves: Mapping[int, tuple[int, int]], groups_min: int = SUBSCALE_GROUPS_MIN
) -> tuple[Subscale, ...]:
    """Divide moves into subscales: by pair of slots, and each pair into sets as equal as possible.

    The subscales are sorted by source, destination and first group.

    `moves`: key group -> source and destination. `groups_min`: a pair with less than twice this number
    of groups stays one subscale; >= 1.

    References
    ----------
    DRRS IV-A; the size, max(7, half the mean), is from its code. 8 -> 12 slots of 128 groups gives
    14 subscales, 25 -> 30 of 256 gives 45.
    """
    by_pair = pairs(moves)
    if not by_pair:
        return ()
    size = max(groups_min, len(moves) // len(by_pair) // 2)
    subscales = []
    for (source, destination), groups in by_pair.items():
        count = max(1, len(groups) // size)
        edges = [len(groups) * i // count for i in range(count + 1)]
        for start, end in pairwise(edges):
            subscales.append(Subscale(groups[start:end], source, destination))
    return tuple(subscales)


def schedule(
    waiting: Sequence[Subscale],
    running: Sequence[Subscale],
    held: Sequence[int],
    hosts: Sequence[str],
    per_host: int | Sequence[int] = PER_HOST_MAX,
) -> tuple[int, ...]:
    """Return the indices of the subscales in `waiting` that start now.

    Greedy: the subscale whose destination holds the fewest key groups starts first, so that new slots
    take part soon; of equal ones, the pair with most waiting subscales, then the first subscale.

    Parameters
    ----------
    held : sequence of int
        Number of key groups of each slot, without groups that running subscales bring to the slot.
    hosts : sequence of str    Host of each slot.
    per_host : int or sequence of int
        Most subscales that a host may take part in at once, as source or destination; >= 1. A
        sequence has a limit for each slot; the least limit of a host's slots counts.

    References
    ----------
    DRRS IV-A, `MinHoldScheduler`. Differs: the paper counts per node, its code per instance, and this
    function per host (the same in a cluster of one-slot hosts). The code starts one subscale per
    second, this function all subscales within the limit.
    """
    limits = [per_host] * len(hosts) if isinstance(per_host, int) else per_host
    limit: dict[str, int] = {}
    for host, most in zip(hosts, limits, strict=True):
        limit[host] = min(most, limit.get(host, most))
    counts = list(held)
    busy: dict[str, int] = {}
    for subscale in running:
        counts[subscale.destination] += len(subscale.groups)
        for host in _hosts(subscale, hosts):
            busy[host] = busy.get(host, 0) + 1
    pending: dict[tuple[int, int], int] = {}
    for subscale in waiting:
        pair = (subscale.source, subscale.destination)
        pending[pair] = pending.get(pair, 0) + 1
    left = dict(enumerate(waiting))
    started: list[int] = []
    while True:
        free = [
            (counts[s.destination], -pending[s.source, s.destination], index)
            for index, s in left.items()
            if all(busy.get(host, 0) < limit[host] for host in _hosts(s, hosts))
        ]
        if not free:
            return tuple(started)
        index = min(free)[-1]
        chosen = left.pop(index)
        started.append(index)
        counts[chosen.destination] += len(chosen.groups)
        pending[chosen.source, chosen.destination] -= 1
        for host in _hosts(chosen, hosts):
            busy[host] = busy.get(host, 0) + 1


def _hosts(subscale: Subscale, hosts: Sequence[str]) -> set[str]:
    return {hosts[subscale.source], hosts[subscale.destination]}
