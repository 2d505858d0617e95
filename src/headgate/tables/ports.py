"""Defines the ports of the state layer, and the data that it exchanges.

A key group's state is a table of fixed-width rows of int64 words, and of strings to which words refer
by id. An operator defines the meaning of a word; here a row is

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
"""Token of a key group without any write."""


@dataclass(frozen=True)
class TableLayout:
    """Holds the shape of a row."""

    key_words: int
    """Words that identify a row; they follow `meta`."""
    fresh: tuple[int, ...]
    """Value words of a new row; a row is ``1 + key_words + len(fresh)`` words wide."""

    @property
    def width(self) -> int:
        """Words per row, `meta` included."""
        return 1 + self.key_words + len(self.fresh)


@dataclass(frozen=True)
class Section:
    """Holds the changes of one step in one key group, or (``full``) its whole state."""

    token: str
    """Name of the state after this section: 32 hexadecimal digits."""
    previous: str
    """Token of the state to which this section applies; ignored when `full`."""
    full: bool
    """True for a snapshot, which applies to an empty table."""
    rows: I64
    """int64[n, width]: rows after the step; ``meta`` is 1 for a live row, 0 for a deleted row."""
    string_offsets: I64
    """int64[m + 1]: offsets into `string_bytes`; string i gets the id ``first_string + i``."""
    string_bytes: U8
    """uint8[]: bytes of the section's strings."""
    first_string: int
    """Id of the section's first string; 0 when `full`."""


Chain = Callable[[str], Sequence[Section]]
"""``chain(token)`` returns, oldest first, the sections that lead from `token` to the requested state.
If none lead from `token`, it begins with a full section, or has all sections since the empty state."""


class Table(Protocol):
    """Holds one key group's rows and strings, exclusively between `acquire` and `release`.

    Row indices are valid until the next `upsert`, which may enlarge the table.
    """

    layout: TableLayout

    @property
    def rows(self) -> I64:
        """All rows, shape [capacity, width]; read it again after `upsert`."""

    @property
    def live_count(self) -> int:
        """Return the number of live rows."""

    def begin(self) -> None:
        """Start a step: discard the last step's undo log, save pre-images from now on."""

    def intern(self, offsets: I64, data: U8) -> I64:
        """Return the ids of n strings (``data[offsets[i]:offsets[i+1]]``), adding unknown ones."""

    def upsert(self, keys: I64) -> I64:
        """Return the row index of each key, creating rows; `keys` has shape [n, key_words].

        All returned rows count as changed in this step; their pre-images are saved.
        """

    def find(self, keys: I64) -> I64:
        """Return the row index of each key, -1 for a missing key; changes nothing."""

    def delete(self, index: I64) -> None:
        """Remove rows by index; they count as changed, and their pre-images are saved."""

    def live(self) -> I64:
        """Return the indices of all live rows."""

    def least(self, word: int) -> int:
        """Return the least value of a word among the live rows; at least one row must be live."""

    def changed(self) -> I64:
        """Return distinct indices of rows that `upsert` returned or `delete` removed since `begin`."""

    def strings(self) -> tuple[I64, U8]:
        """Return offsets (int64[m + 1]) and bytes of all interned strings, by id."""

    def section(self, token: str, *, full: bool = False, rows: I64 | None = None) -> Section:
        """Return the changes of this step (if `full`, the whole state) as the section of `token`.

        `rows`: the changed rows as in `Section.rows`, if the caller has a copy.
        """

    def compact(self, string_words: Sequence[int]) -> None:
        """Drop strings to which no row refers; `string_words` are row positions that hold ids + 1.

        This changes ids, so the section of this step must be full.
        """


class Store(Protocol):
    """Supplies the tables of one operator on one host."""

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        """Return the group's table at `token`, for this caller alone.

        Tries the cheapest way first: the table as it is; undo of one step; applying sections; a rebuild
        from a full section. Raises StateError if the chain does not lead to `token`.
        """

    def commit(self, group: int, token: str) -> None:
        """Give the state since `begin` its token; the table is clean again."""

    def release(self, group: int) -> None:
        """Release the group; without a `commit` since `begin` its table stays dirty."""

    def close(self) -> None:
        """Release all groups and unmap their tables."""
