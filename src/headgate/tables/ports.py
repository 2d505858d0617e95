"""Defines the ports of the state layer, and the data that it exchanges.

A key group's state is a table of fixed-width rows of int64 words, plus the strings that those words
name. An operator defines the meaning of a word; here a row is

``[meta, key words ..., value words ...]``

where `meta` is 0 in a free row and owned by the table in a used row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

EMPTY_TOKEN = "0" * 32
"""The token of a key group that nothing has ever been written to."""


@dataclass(frozen=True)
class TableLayout:
    """Holds the shape of a row."""

    key_words: int
    """Words that identify a row; they follow `meta`."""
    fresh: tuple[int, ...]
    """The value words of a row just created; a row is ``1 + key_words + len(fresh)`` words wide."""

    @property
    def width(self) -> int:
        """Words per row, `meta` included."""
        return 1 + self.key_words + len(self.fresh)


@dataclass(frozen=True)
class Section:
    """Holds the changes of one step in one key group, or (``full``) its whole state."""

    token: str
    """Names the state after this section: 32 hexadecimal digits."""
    previous: str
    """The token this section applies to; ignored when `full`."""
    full: bool
    """True for a snapshot: start from an empty table."""
    rows: I64
    """int64[n, width]: rows after the step; ``meta`` is 1 for a row that is there, 0 for one that
    was deleted."""
    string_offsets: I64
    """int64[m + 1]: offsets into `string_bytes`; string i gets the id ``first_string + i``."""
    string_bytes: U8
    """uint8[]."""
    first_string: int
    """Id of the first string here; 0 when `full`."""


Chain = Callable[[str], Sequence[Section]]
"""``chain(token)`` returns, oldest first, the sections that lead from `token` to the wanted state;
if `token` is not on the way, it starts with a full section (or is the whole history from empty)."""


class Table(Protocol):
    """Holds one key group's rows and strings, exclusively between `acquire` and `release`.

    Row indices are valid until the next `upsert`, which may enlarge the table.
    """

    layout: TableLayout

    @property
    def rows(self) -> I64:
        """All rows, shape [capacity, width]; fetch it again after `upsert`."""

    @property
    def live_count(self) -> int:
        """Return the number of live rows."""

    def begin(self) -> None:
        """Start a step: forget the last step's undo, remember pre-images from here on."""

    def intern(self, offsets: I64, data: U8) -> I64:
        """Return the ids of n strings (``data[offsets[i]:offsets[i+1]]``), adding unknown ones."""

    def upsert(self, keys: I64) -> I64:
        """Return the row index of each key, creating rows; `keys` has shape [n, key_words].

        Every row returned counts as changed in this step, its pre-image is kept.
        """

    def find(self, keys: I64) -> I64:
        """Return the row index of each key, -1 where there is none; creates and touches nothing."""

    def delete(self, index: I64) -> None:
        """Remove rows by index; they count as changed, their pre-image is kept."""

    def live(self) -> I64:
        """Return the indices of all rows that are there."""

    def least(self, word: int) -> int:
        """Return the least value of a word among all rows that are there; at least one is."""

    def changed(self) -> I64:
        """Return the indices of the rows created, asked for or removed since `begin`, each once."""

    def strings(self) -> tuple[I64, U8]:
        """Return offsets (int64[m + 1]) and bytes of all interned strings, by id."""

    def section(self, token: str, *, full: bool = False, rows: I64 | None = None) -> Section:
        """Return the changes of this step (or everything), to be applied under `token`.

        `rows` are the changed ones as the section has them, where the caller has a copy.
        """

    def compact(self, string_words: Sequence[int]) -> None:
        """Drop strings that no row names; `string_words` are the row positions that hold ids + 1.

        Changes ids, so the section of this step must be full.
        """


class Store(Protocol):
    """Supplies the tables of one operator on one host."""

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        """Return the group's table at `token`, held by this caller alone.

        Cheapest first: as it is; one step undone; sections applied; rebuilt from a full section.
        Raises StateError when the chain does not lead to `token`.
        """

    def commit(self, group: int, token: str) -> None:
        """Name the state reached since `begin`; the table is clean again."""

    def release(self, group: int) -> None:
        """Give the group up; without a `commit` since `begin` its table is left dirty."""

    def close(self) -> None:
        """Release everything and unmap."""
