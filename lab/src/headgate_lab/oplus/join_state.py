"""Holds ScaleJoin's state in a mapped file and does the work of one of its slots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headgate.tables.ports import I64
from headgate_lab.oplus.kernels import scale_join
from headgate_lab.tuple_buffer.shared import Block

COLUMNS = (("first", "i4"), ("second", "f4"))
"""x and y of one input, a and b of the other (STRETCH 8.3)."""

_NAME = "join-state"


@dataclass(frozen=True)
class JoinShape:
    """Defines the size of the state, and the records that match.

    Parameters
    ----------
    keys : int         K, virtual keys; they are the operator's key groups.
    capacity : int     Records per input and key.
    reach : int        WS, in the unit of event times; inclusive, as operator 3 has it.
    width : int        Of both bands: +- 10 in STRETCH 8.3.
    """

    keys: int
    capacity: int
    reach: int
    width: int = 10

    @property
    def layout(self) -> np.dtype[np.void]:
        """The types and shapes of the file's arrays."""
        square = (2, self.keys, self.capacity)
        return np.dtype(
            [
                ("bounds", "i8", (2, self.keys, 2)),
                ("times", "i8", square),
                ("first", "i4", square),
                ("second", "f4", square),
            ]
        )


class JoinState:
    """Holds the file as arrays; each key's part is written by its owner only."""

    def __init__(self, directory: Path, shape: JoinShape, mode: str = "r+") -> None:
        self.shape = shape
        mapped = np.memmap(directory / _NAME, shape.layout, mode, shape=(1,))  # type: ignore[call-overload]
        whole: npt.NDArray[np.void] = np.asarray(mapped)
        self.raw: npt.NDArray[np.uint8] = whole.view(np.uint8)
        self.bounds: I64 = whole["bounds"][0]
        self.columns = whole["times"][0], whole["first"][0], whole["second"][0]

    @classmethod
    def create(cls, directory: Path, shape: JoinShape) -> JoinState:
        """Create the file, without records."""
        return cls(directory, shape, "w+")

    def fill(self, times: I64, inputs: I64, first: I64, second: npt.NDArray[np.float32]) -> None:
        """Store records that came before the operator started; the state must be empty."""
        keys = self.shape.keys
        given: tuple[npt.NDArray[Any], ...] = (times, first, second)
        for key in range(keys):
            dealt = np.arange(key, times.size, keys)
            for side in (0, 1):
                mine = dealt[inputs[dealt] == side]
                end = mine.size
                for column, values in zip(self.columns, given, strict=True):
                    column[side, key, :end] = values[mine]
                self.bounds[side, key] = 0, end

    @property
    def held(self) -> int:
        """The number of records stored."""
        return int((self.bounds[..., 1] - self.bounds[..., 0]).sum())


class JoinWork:
    """Does the work of one slot of ScaleJoin.

    References
    ----------
    [STRETCH] operator 3, with the corrections of `library.scale_join`.
    """

    def __init__(self, directory: Path, shape: JoinShape) -> None:
        self._state = JoinState(directory, shape)
        empty = np.empty(0, np.int64)
        # Compiled, or loaded, before the first record comes.
        self._meet(
            empty,
            empty,
            empty,
            empty.astype(np.int32),
            empty.astype(np.float32),
            0,
            np.zeros(3, "i8"),
        )

    def serve(self, block: Block, owned: I64, count: int, totals: I64) -> None:
        """Compare the records with those stored under `owned`; count comparisons, matches, stored."""
        first, second = block.columns["first"], block.columns["second"]
        self._meet(owned, block.times, block.sources, first, second, count, totals)

    def _meet(
        self,
        owned: I64,
        times: I64,
        inputs: I64,
        first: npt.NDArray[np.int32],
        second: npt.NDArray[np.float32],
        count: int,
        totals: I64,
    ) -> None:
        shape = self._state.shape
        scale_join(
            owned, times, inputs, first, second, count, shape.reach, shape.width,
            self._state.bounds, *self._state.columns, totals,
        )  # fmt: skip
