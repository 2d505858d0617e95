"""Maps each key group to the slot that owns it: an immutable assignment, numbered by its epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from headgate.core.errors import ConfigError


@dataclass(frozen=True)
class Assignment:
    """Maps every key group to one slot.

    Raises `ConfigError`: a group names a slot that does not exist, there is no slot, there are more
    slots than key groups, or the slots of a split group are not as `split` describes.
    """

    slot_of: tuple[int, ...]
    """Entry g is the slot that owns key group g; shape [G]."""
    slots: int
    """Number of slots; every entry of `slot_of` is in ``range(slots)``. A slot may own no key group
    (it then only waits)."""
    epoch: int = 0
    """Number of the assignment; grows by one with each change."""
    split: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """Split key groups, whose records go to several slots -> the slots that have a share, all
    different, the owner of the group and its state first. Usually empty."""

    def __post_init__(self) -> None:
        check_slots(self.slots, len(self.slot_of))
        for group, slot in enumerate(self.slot_of):
            if not 0 <= slot < self.slots:
                msg = (
                    f"key group {group} is assigned to slot {slot}, which does not exist; "
                    f"use 0 to {self.slots - 1}, or scale({slot + 1}) first."
                )
                raise ConfigError(msg)
        for group, shares in self.split.items():
            self._check_split(group, shares)

    def _check_split(self, group: int, shares: tuple[int, ...]) -> None:
        known = 0 <= group < len(self.slot_of) and set(shares) <= set(range(self.slots))
        if known and 1 < len(shares) == len(set(shares)) and shares[0] == self.slot_of[group]:
            return
        msg = (
            f"key group {group} cannot be split over slots {list(shares)}; name two or more "
            f"different slots of {self.slots}, first the one that owns the group."
        )
        raise ConfigError(msg)

    @property
    def key_groups(self) -> int:
        """The number of key groups G."""
        return len(self.slot_of)

    def groups_of(self, slot: int) -> tuple[int, ...]:
        """Return the key groups that `slot` owns, ascending; none if the slot does not exist."""
        return self._groups_by_slot[slot] if 0 <= slot < self.slots else ()

    @cached_property
    def _groups_by_slot(self) -> tuple[tuple[int, ...], ...]:
        """The key groups of each slot; cached, since every step needs those of every slot."""
        groups: list[list[int]] = [[] for _ in range(self.slots)]
        for group, slot in enumerate(self.slot_of):
            groups[slot].append(group)
        return tuple(map(tuple, groups))

    def shares_of(self, group: int) -> tuple[int, ...]:
        """Return the slots that get records of `group`, its owner first."""
        return self.split.get(group, (self.slot_of[group],))

    def shares_at(self, slot: int) -> dict[int, int]:
        """Return the split groups of other owners at `slot` -> the number of its share: 1, 2 ..."""
        return {
            group: shares.index(slot) for group, shares in self.split.items() if slot in shares[1:]
        }

    def waiting_at(self, slot: int) -> tuple[int, ...]:
        """Return the keys (see `share_key`) of the backlog at `slot`."""
        others = self.shares_at(slot).items()
        return (*self.groups_of(slot), *(self.share_key(group, n) for group, n in others))

    def share_key(self, group: int, share: int) -> int:
        """Return the key of the backlog of a key group's share; the group's number for share 0."""
        return share * self.key_groups + group

    def moved(self, other: Assignment) -> tuple[int, ...]:
        """Return the key groups whose slot differs in `other`, ascending."""
        pairs = zip(self.slot_of, other.slot_of, strict=True)
        return tuple(g for g, (a, b) in enumerate(pairs) if a != b)

    def remap(self, changes: Mapping[int, int]) -> Assignment:
        """Return the assignment of the next epoch, with some key groups moved.

        `changes`: key group -> slot, for the groups that move.
        """
        slot_of = list(self.slot_of)
        for group, slot in changes.items():
            if not 0 <= group < len(slot_of):
                msg = f"key group {group} does not exist; use 0 to {len(slot_of) - 1}."
                raise ConfigError(msg)
            slot_of[group] = slot
        split = kept_split(self.split, slot_of, self.slots)
        return Assignment(tuple(slot_of), self.slots, self.epoch + 1, split)


def check_slots(slots: int, key_groups: int, name: str = "slots") -> None:
    """Raise ConfigError, which names the setting `name`, unless ``1 <= slots <= key_groups``."""
    if not 1 <= slots <= key_groups:
        msg = f"{name}={slots} is out of range; use 1 to {key_groups}, the number of key groups."
        raise ConfigError(msg)


def kept_split(
    split: Mapping[int, tuple[int, ...]], slot_of: Sequence[int], slots: int
) -> dict[int, tuple[int, ...]]:
    """Return the splits that remain under another assignment with `slots` slots.

    A share ends if its slot has vanished or is the owner of the group now.
    """
    shares_of = {}
    for group, shares in split.items():
        owner = slot_of[group]
        left = (owner, *(slot for slot in shares[1:] if slot < slots and slot != owner))
        if len(left) > 1:
            shares_of[group] = left
    return shares_of


def spread(slots: int, key_groups: int) -> Assignment:
    """Return an assignment of epoch 0: contiguous ranges of key groups, sizes differ by at most 1."""
    check_slots(slots, key_groups)
    return Assignment(tuple(g * slots // key_groups for g in range(key_groups)), slots)


def rescale(current: Assignment, slots: int) -> Assignment:
    """Return the next epoch's assignment with `slots` slots, with the fewest moves for equal numbers.

    Every slot ends with floor(G/slots) or ceil(G/slots) groups. The groups of removed slots move, and
    the groups that a slot has above its share. The larger share goes to the slots with the most groups
    now, lower numbers first.

    References
    ----------
    The number of moves is minimal: a group moves only if its slot vanishes or is above its share. DRRS's
    contiguous ranges move 111 of 128 groups for 8 -> 12 slots, this function moves 40.
    """
    total = current.key_groups
    check_slots(slots, total)
    held: list[list[int]] = [[] for _ in range(slots)]
    homeless: list[int] = []
    for group, slot in enumerate(current.slot_of):
        (held[slot] if slot < slots else homeless).append(group)
    base, larger = divmod(total, slots)
    by_size = sorted(range(slots), key=lambda s: (-len(held[s]), s))
    share = {s: base + (1 if rank < larger else 0) for rank, s in enumerate(by_size)}
    for slot in range(slots):
        while len(held[slot]) > share[slot]:
            homeless.append(held[slot].pop())
    homeless.sort()
    slot_of = list(current.slot_of)
    for slot in range(slots):
        while len(held[slot]) < share[slot]:
            group = homeless.pop()
            held[slot].append(group)
    for slot, groups in enumerate(held):
        for group in groups:
            slot_of[group] = slot
    split = kept_split(current.split, slot_of, slots)
    return Assignment(tuple(slot_of), slots, current.epoch + 1, split)
