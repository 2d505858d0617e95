"""Exchanges facts, besides records, between processes of a shared operator, in a small mapped file.

Every slot writes only its own row, so that no lock is needed; the two places for epochs may be written
by several slots, but always with the same values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.journal.histogram import BUCKETS

WORK = 3
"""How many counters the work of a slot has, such as comparisons, matches and records stored."""


@dataclass(frozen=True)
class Epoch:
    """Describes an epoch: slots at work, owners of key groups, and the number of records before.

    Parameters
    ----------
    slot_of : int64[G]
    """

    number: int
    instances: frozenset[int]
    slot_of: npt.NDArray[np.int64]
    count: int

    def owned(self, slot: int) -> npt.NDArray[np.int64]:
        """Return the key groups of a slot, ascending."""
        return np.flatnonzero(self.slot_of == slot)


class Board:
    """The file, as arrays.

    Parameters
    ----------
    path : path        Made with `create` before.

    Attributes
    ----------
    rows : void[slots]    ``ready`` (1 once a slot looks for records), ``arrived`` (the epoch it waits to
                          switch to), ``epoch``, ``switched_ns`` (monotonic clock), ``served`` (records),
                          ``busy_ns`` (processor time spent on them), ``work`` (int64[`WORK`]),
                          ``latency`` (int64[BUCKETS], from a record's due time).
    """

    def __init__(self, path: Path, slots: int, key_groups: int) -> None:
        self._whole = np.asarray(np.memmap(path, _layout(slots, key_groups), "r+", shape=(1,)))
        self.rows: npt.NDArray[np.void] = self._whole["rows"][0]

    @classmethod
    def create(cls, path: Path, slots: int, key_groups: int) -> Board:
        """Make the file, all zero, and return it."""
        np.memmap(path, _layout(slots, key_groups), "w+", shape=(1,)).flush()
        return cls(path, slots, key_groups)

    @property
    def stopped(self) -> bool:
        """Return whether all processes should end."""
        return bool(self._whole["stop"][0])

    def stop(self) -> None:
        """Tell all processes to end."""
        self._whole["stop"][0] = 1

    def write_epoch(self, epoch: Epoch) -> None:
        """Publish an epoch for the slots that join in it."""
        place = self._whole["epochs"][0][epoch.number % 2]
        place["instances"] = 0
        place["instances"][list(epoch.instances)] = 1
        place["slot_of"] = epoch.slot_of
        place["count"] = epoch.count
        place["number"] = epoch.number

    def newest_epoch(self) -> Epoch:
        """Return the epoch with the highest number."""
        places = self._whole["epochs"][0]
        newest = places[int(places["number"].argmax())]
        return Epoch(
            int(newest["number"]),
            frozenset(np.flatnonzero(newest["instances"]).tolist()),
            newest["slot_of"].astype(np.int64),
            int(newest["count"]),
        )

    def all_arrived(self, number: int, instances: Collection[int]) -> bool:
        """Return whether all of `instances` wait for epoch `number`, or have switched to it."""
        return bool((self.rows["arrived"][list(instances)] >= number).all())

    def all_switched(self, number: int, instances: Collection[int]) -> bool:
        """Return whether all of `instances` are in epoch `number`."""
        return bool((self.rows["epoch"][list(instances)] >= number).all())


def _layout(slots: int, key_groups: int) -> np.dtype[Any]:
    row = [
        (name, "i8") for name in ("ready", "arrived", "epoch", "switched_ns", "served", "busy_ns")
    ]
    epoch = np.dtype(
        [
            ("number", "i8"),
            ("count", "i8"),
            ("slot_of", "i8", key_groups),
            ("instances", "u1", slots),
        ],
        align=True,
    )
    rows = np.dtype([*row, ("work", "i8", WORK), ("latency", "i8", BUCKETS)])
    return np.dtype([("stop", "i8"), ("epochs", epoch, 2), ("rows", rows, slots)], align=True)
