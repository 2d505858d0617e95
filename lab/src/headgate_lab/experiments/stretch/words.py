"""Counts words and pairs in processes: a slot reads every tweet, or gets a copy for each of its keys."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headgate.core.assignment import spread
from headgate.core.jit import jit
from headgate_lab.experiments.stretch.live import add_all, memory
from headgate_lab.oplus.processes import DUE_NS, Setup, SlotProcesses
from headgate_lab.tuple_buffer.backoff import Backoff
from headgate_lab.tuple_buffer.shared import Block, SharedTupleBuffer
from headgate_lab.workloads.tweets import TWEETS, WORDS_MAX, keys_of, tweets

I64 = npt.NDArray[np.int64]

KEY_GROUPS = 128
_TABLE = 1 << 18
"""Size of the hash table: about twice the keys of all different tweets, 126,504 at any distance."""

_FED_AT_ONCE = 64
_STEP_S = 0.001
_MIX = 0x9E3779B1


@dataclass(frozen=True)
class Count:
    """Describes a count: the records, the number of slots, and how records get to slots.

    Attributes
    ----------
    distance_max : int
        B: largest distance of the words of a pair; 0 counts words.
    shared : bool
        Whether a tweet is written once and read by all slots; else the source splits it and copies
        each word or pair to the slot that owns it.
    rate_per_s : float or None
        Tweets per second; None: as fast as there is room.
    """

    slots: int
    distance_max: int
    shared: bool
    rate_per_s: float | None = None

    @contextmanager
    def running(self) -> Iterator[list[SlotProcesses]]:
        """Start slots and source, end them afterwards; unless shared, each slot has its own buffer."""
        with ExitStack() as stack:
            groups = [
                stack.enter_context(SlotProcesses(setup, Path(stack.enter_context(_directory()))))
                for setup in self._setups()
            ]
            feed = multiprocessing.get_context("forkserver").Process(
                target=_feed, args=(self, [group.path for group in groups]), daemon=True
            )
            feed.start()
            try:
                for group in groups:
                    group.wait_served(1)
                yield groups
            finally:
                feed.kill()
                feed.join()

    def _setups(self) -> list[Setup]:
        if self.shared:
            work = partial(make_tweets, distance_max=self.distance_max)
            columns = (("words", f"V{4 * WORDS_MAX}"),)
            return [Setup(self.slots, spread(self.slots, KEY_GROUPS), columns, work, 1)]
        columns = (("key", "i8"),)
        each = Setup(1, spread(1, KEY_GROUPS), columns, CountKeys, 1, 65_536, 4096)
        return [each] * self.slots


@jit
def groups_of(keys: I64, groups: int) -> I64:
    """Return the key group of each key."""
    return ((keys * _MIX) >> 16) % groups


@jit
def add_counts(keys: I64, is_owned: npt.NDArray[np.bool_], table: I64) -> int:
    """Count the keys of owned groups in an open table, int64[n, 2] of key + 1 and count.

    One loop over keys, since each array in between would cost as much as splitting a tweet.

    Parameters
    ----------
    keys : int64[m]
    is_owned : bool[groups]
        Which key groups count, as `groups_of` gives them.
    table : int64[n, 2]
        n is a power of two.

    Returns
    -------
    int    Keys counted; less than are owned if the table is full.
    """
    mask, groups = table.shape[0] - 1, is_owned.size
    counted = 0
    for i in range(keys.size):
        mixed = keys[i] * _MIX
        if not is_owned[(mixed >> 16) % groups]:
            continue
        key, at = keys[i] + 1, mixed & mask
        for _ in range(table.shape[0]):
            if table[at, 0] == 0:
                table[at, 0] = key
            if table[at, 0] == key:
                table[at, 1] += 1
                counted += 1
                break
            at = (at + 1) & mask
    return counted


class CountKeys:
    """Counts keys that have been split and routed before."""

    def __init__(self, directory: Path) -> None:
        self.table: I64 = np.zeros((_TABLE, 2), np.int64)
        self._is_owned = np.ones(KEY_GROUPS, dtype=bool)
        # compiled, or loaded, before the first record comes
        add_counts(np.zeros(1, np.int64), self._is_owned, self.table)

    def serve(self, block: Block, owned: I64, count: int, totals: I64) -> None:
        """Count each record's key."""
        totals[0] += add_counts(block.columns["key"], self._is_owned, self.table)


class CountTweets(CountKeys):
    """Finds the keys of every tweet, and counts those that this slot owns."""

    def __init__(self, directory: Path, distance_max: int) -> None:
        super().__init__(directory)
        self._distance_max = distance_max
        self._keys = np.empty(256 * WORDS_MAX * WORDS_MAX, np.int64)
        keys_of(np.full((1, WORDS_MAX), -1, np.int32), distance_max, self._keys)

    def serve(self, block: Block, owned: I64, count: int, totals: I64) -> None:
        """Count the keys of `owned` groups."""
        words = block.columns["words"].view(np.int32).reshape(-1, WORDS_MAX)
        keys = self._keys[: keys_of(words, self._distance_max, self._keys)]
        self._is_owned[:] = False
        self._is_owned[owned] = True
        totals[0] += add_counts(keys, self._is_owned, self.table)


def make_tweets(directory: Path, distance_max: int) -> CountTweets:
    """Return the work of a slot that reads every tweet."""
    return CountTweets(directory, distance_max)


def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=memory(), prefix="headgate-words-")


def _feed(count: Count, paths: list[Path]) -> None:
    """Feed tweets, or their keys, until killed."""
    buffers = [SharedTupleBuffer.open(path) for path in paths]
    backoff, done, begin_ns = Backoff(), 0, time.monotonic_ns()
    words = tweets()
    out = np.empty(_FED_AT_ONCE * WORDS_MAX * WORDS_MAX, np.int64)
    while True:
        stop = done + _FED_AT_ONCE
        if count.rate_per_s is not None:
            elapsed_s = (time.monotonic_ns() - begin_ns) / 1e9
            stop = min(int(elapsed_s * count.rate_per_s), stop)
        if stop <= done:
            time.sleep(_STEP_S)
            continue
        number = np.arange(done, stop)
        due_ns = np.zeros(number.size, np.int64)
        if count.rate_per_s is not None:
            due_ns = begin_ns + (number * 1e9 / count.rate_per_s).astype(np.int64)
        some = words[number % TWEETS]
        if count.shared:
            column = {"words": some.view(f"V{4 * WORDS_MAX}").reshape(-1), DUE_NS: due_ns}
            add_all(buffers[0], backoff, number, column, 0)
        else:
            keys = out[: keys_of(some, count.distance_max, out)].copy()
            slot = groups_of(keys, KEY_GROUPS) * count.slots // KEY_GROUPS
            for at, buffer in enumerate(buffers):
                mine = keys[slot == at]
                # A copy is as old as the last tweet it was split with: at most a block's worth.
                column = {"key": mine, DUE_NS: np.full(mine.size, due_ns[-1])}
                add_all(buffer, backoff, np.full(mine.size, stop), column, 0)
        done = stop
