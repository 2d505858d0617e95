"""Runs ScaleJoin in processes of this machine on one tuple buffer and one mapped state.

The benchmark of STRETCH 8.3: two inputs, x and y (a and b) uniform in [1, 10000], a match within 10 of
both. One process feeds both inputs in turn; event times are when records are due.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headgate.core.assignment import spread
from headgate_lab.oplus.join_state import COLUMNS, JoinShape, JoinState, JoinWork
from headgate_lab.oplus.processes import DUE_NS, Setup, SlotProcesses
from headgate_lab.tuple_buffer.backoff import Backoff
from headgate_lab.tuple_buffer.shared import Columns, SharedTupleBuffer

KEYS = 125
"""Virtual keys [I]: odd, so that each key gets records of both inputs, which take turns. With the
paper's 1,000 a key would have too few records for vector instructions at our sizes."""

_FED_AT_ONCE = 64
_STEP_S = 0.001
_SECOND_US = 1_000_000


@dataclass(frozen=True)
class LiveJoin:
    """Describes a join whose window is full at the start.

    Attributes
    ----------
    slots : int
        Number of processes.
    working : int
        Number of those that work at the start.
    rate_per_s : float
        Of both inputs; spaces the event times and so determines the records in a window.
    window_s : float
        WS.
    paced : bool
        Whether records come when they are due; otherwise as fast as there is room.
    keys : int
        K.
    fed_per_s : float or None
        Actual records per second if paced; None: `rate_per_s`.
    """

    slots: int
    working: int
    rate_per_s: float
    window_s: float
    paced: bool = True
    keys: int = KEYS
    fed_per_s: float | None = None

    @property
    def period_us(self) -> float:
        """Event time between two records."""
        return _SECOND_US / self.rate_per_s

    @property
    def filled(self) -> int:
        """Number of records in the window before the first one comes."""
        return round(self.rate_per_s * self.window_s)

    @property
    def shape(self) -> JoinShape:
        """Shape of the state, with 1.5 times the room that a window needs."""
        each = self.filled / (2 * self.keys)
        return JoinShape(self.keys, int(1.5 * each) + 64, round(self.window_s * _SECOND_US))

    def records(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], Columns]:
        """Return event times and attributes of records `start` to `stop`; input c % 2 has record c."""
        generator = np.random.default_rng([start])
        count = stop - start
        return (np.arange(start, stop) * self.period_us).astype(np.int64), {
            "first": generator.integers(1, 10_001, count).astype(np.int32),
            "second": generator.uniform(1.0, 10_000.0, count).astype(np.float32),
        }

    def filled_state(self, directory: Path) -> JoinState:
        """Make the state, its window full."""
        state = JoinState.create(directory, self.shape)
        times, columns = self.records(0, self.filled)
        state.fill(times, np.arange(self.filled) % 2, columns["first"], columns["second"])
        return state

    @contextmanager
    def running(self) -> Iterator[tuple[SlotProcesses, JoinState]]:
        """Fill the window, start slots and feed, and end them all afterwards."""
        with tempfile.TemporaryDirectory(dir=memory(), prefix="headgate-join-") as name:
            directory = Path(name)
            state = self.filled_state(directory)
            setup = Setup(
                self.slots,
                spread(self.working, self.keys),
                COLUMNS,
                partial(JoinWork, shape=self.shape),
            )
            with SlotProcesses(setup, directory) as slots:
                feed = multiprocessing.get_context("forkserver").Process(
                    target=_feed, args=(self, slots.path), daemon=True
                )
                feed.start()
                try:
                    slots.wait_served(1)
                    yield slots, state
                finally:
                    feed.kill()
                    feed.join()


def memory() -> str | None:
    """Return the directory of the file system in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _feed(join: LiveJoin, path: Path) -> None:
    """Feed both inputs until killed."""
    buffer = SharedTupleBuffer.open(path)
    backoff, done, begin_ns = Backoff(), 0, time.monotonic_ns()
    rate_per_s = join.fed_per_s or join.rate_per_s
    while True:
        stop = done + _FED_AT_ONCE
        if join.paced:
            elapsed_s = (time.monotonic_ns() - begin_ns) / 1e9
            stop = min(int(elapsed_s * rate_per_s), stop)
        if stop <= done:
            time.sleep(_STEP_S)
            continue
        number = np.arange(join.filled + done, join.filled + stop)
        times, columns = join.records(join.filled + done, join.filled + stop)
        due_ns = np.zeros(stop - done, dtype=np.int64)
        if join.paced:
            due_ns = begin_ns + (np.arange(done, stop) * 1e9 / rate_per_s).astype(np.int64)
        for side in (0, 1):
            mine = number % 2 == side
            add_all(buffer, backoff, times[mine], {
                DUE_NS: due_ns[mine], **{name: column[mine] for name, column in columns.items()}
            }, side)  # fmt: skip
        done = stop


def add_all(
    buffer: SharedTupleBuffer,
    backoff: Backoff,
    times: npt.NDArray[np.int64],
    columns: Columns,
    source: int,
) -> None:
    """Add all records of a block, waiting for room as long as it takes."""
    at = 0
    while at < times.size:
        rest = {name: column[at:] for name, column in columns.items()}
        at += backoff.until(lambda: buffer.add_block(times[at:], rest, source), 3600.0)  # noqa: B023
