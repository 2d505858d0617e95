"""Runs O+ in several processes with one input tuple buffer, one mapped state, and switches of epoch.

It does what `virtual` does step by step in one process, but with blocks of records and compiled
kernels. A slot is at one of these points:

::

    in the pool          ──► a record can be seen: it has been connected; take the newest epoch
    nothing pending      ──► get a block, serve it; a control record: remember epoch and gamma
    pending              ──► get one record at a time, as long as its time is not above gamma
    next is above gamma  ──► at the barrier until all of O are there; one of them connects and
                             disconnects; all switch; the record is the first of the new epoch

Slots are processes, since threads of Python share one interpreter. The part of a key in the mapped state
is written by its owner only, so a switch copies no state. A barrier in the tuple buffer's control
structure would take its lock at every wait; the board has a row per slot and needs none.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headgate.core.assignment import Assignment
from headgate.core.errors import EngineError
from headgate.journal.histogram import counts_of
from headgate_lab.oplus.board import Board, Epoch
from headgate_lab.tuple_buffer.backoff import Backoff
from headgate_lab.tuple_buffer.kernels import warm
from headgate_lab.tuple_buffer.layout import BufferShape
from headgate_lab.tuple_buffer.port import Reconfiguration
from headgate_lab.tuple_buffer.shared import Block, SharedTupleBuffer

DUE_NS = "due_ns"
"""Column of the time, on the monotonic clock, at which a record was due; 0 if it is not measured."""

_IDLE = Backoff(longest_s=0.002)
"""Shorter than a reader's: a connected slot that sleeps keeps all others at the barrier."""


class SlotWork(Protocol):
    """Defines the work of a slot on records, with state that all slots map."""

    def serve(
        self, block: Block, owned: npt.NDArray[np.int64], count: int, totals: npt.NDArray[np.int64]
    ) -> None:
        """Serve a block's records for the key groups of `owned`.

        Parameters
        ----------
        block : Block         Data records, in the order that all slots see.
        owned : int64[m]
        count : int           Records of the operator before these.
        totals : int64[WORK]  Added to.
        """


@dataclass(frozen=True)
class Setup:
    """STRETCH's `setup(O+, m, n)`: an operator's processes, some of them at work.

    Parameters
    ----------
    slots : int            n: the number of processes.
    assignment : Assignment    f_mu at the start; its m slots work from the start.
    columns : tuple of (str, str)    Of a record; `DUE_NS` is added.
    make_work : callable   From the directory to a `SlotWork`; called once in every process, so it must be
                           importable from there.
    capacity : int         Of the tuple buffer.
    block : int            Most records that a slot takes at once.
    timeout_s : float      Longest wait for an answer.
    """

    slots: int
    assignment: Assignment
    columns: tuple[tuple[str, str], ...]
    make_work: Callable[[Path], SlotWork]
    sources: int = 2
    capacity: int = 4096
    block: int = 256
    timeout_s: float = 60.0


class Slot:
    """Runs one o_j+ in a process of its own.

    Parameters
    ----------
    number : int     j.
    block : int      As in `Setup`.

    References
    ----------
    [STRETCH] algorithms 4 and 6, sections 5 and 7. Differs as `virtual.VirtualInstance` does, and:
    there is no output buffer; what is emitted is counted.
    """

    def __init__(
        self, number: int, buffer: SharedTupleBuffer, board: Board, work: SlotWork, block: int
    ) -> None:
        self._number, self._buffer, self._board = number, buffer, board
        self._work, self._block = work, block
        self._row = board.rows[number]
        self._epoch = board.newest_epoch()
        self._owned = self._epoch.owned(number)
        self._count = self._epoch.count
        self._in_pool = number not in self._epoch.instances
        self._pending: Reconfiguration | None = None
        self._gamma = 0
        self._at_barrier = False

    def run(self) -> None:
        """Serve until the board says stop."""
        self._row["ready"] = 1
        wait_s = _IDLE.first_s
        while not self._board.stopped:
            if self.step():
                wait_s = _IDLE.first_s
            else:
                time.sleep(wait_s)
                longest_s = _IDLE.first_s if self._at_barrier else _IDLE.longest_s
                wait_s = min(2 * wait_s, longest_s)

    def step(self) -> bool:
        """Do the next thing; return whether anything was done."""
        if self._at_barrier:
            return self._switch()
        if self._in_pool and not self._join():
            return False
        if self._pending is None:
            return self._take(self._block)
        entry = self._buffer.peek(self._number)
        if entry is None:
            return False
        if entry.control is None and entry.time > self._gamma:
            self._at_barrier = True
            self._row["arrived"] = self._pending.number
            return self._switch()
        return self._take(1)

    def _take(self, records_max: int) -> bool:
        block = self._buffer.get_block(self._number, records_max)
        if block is None:
            return False
        if block.control is not None:
            self._prepare(block.control, block.watermark)
        elif block.times.size:
            self._serve(block)
        return True

    def _prepare(self, announced: Reconfiguration, at: int) -> None:
        known = self._epoch.number if self._pending is None else self._pending.number
        if announced.number > known:
            self._pending, self._gamma = announced, at

    def _serve(self, block: Block) -> None:
        begun_ns = time.process_time_ns()
        self._work.serve(block, self._owned, self._count, self._row["work"])
        self._row["busy_ns"] += time.process_time_ns() - begun_ns
        self._count += block.times.size
        self._row["served"] += block.times.size
        due_ns = block.columns[DUE_NS]
        if due_ns[0]:
            self._row["latency"] += counts_of((time.monotonic_ns() - due_ns) / 1e6)

    def _switch(self) -> bool:
        """Switch once all have arrived; False until then."""
        pending, old = self._pending, self._epoch.instances
        assert pending is not None, "nobody is at the barrier without a pending epoch"
        if not self._board.all_arrived(pending.number, old):
            return False
        new = Epoch(pending.number, pending.instances, np.array(pending.slot_of), self._count)
        self._board.write_epoch(new)
        joining, leaving = new.instances - old, old - new.instances
        if joining:
            self._buffer.add_readers(joining, by=self._number)
        if leaving:
            self._buffer.remove_readers(leaving, by=self._number)
        self._enter(new)
        return True

    def _join(self) -> bool:
        """Leave the pool if another slot has connected this one."""
        if self._buffer.peek(self._number) is None:
            return False
        self._count = self._board.newest_epoch().count
        self._enter(self._board.newest_epoch())
        return True

    def _enter(self, epoch: Epoch) -> None:
        self._epoch, self._owned = epoch, epoch.owned(self._number)
        self._in_pool = self._number not in epoch.instances
        self._pending, self._at_barrier = None, False
        self._row["arrived"] = epoch.number
        self._row["switched_ns"] = time.monotonic_ns()
        self._row["epoch"] = epoch.number


class SlotProcesses:
    """The processes of one operator, seen from outside; a context manager that ends them.

    Parameters
    ----------
    directory : path    For its files; mode 0700. `make_work` may have put state there.

    Attributes
    ----------
    assignment : Assignment    The one in force; its slots are the first of the processes.
    board : Board
    path : path                Of the tuple buffer.
    """

    def __init__(self, setup: Setup, directory: Path) -> None:
        groups = setup.assignment.key_groups
        self.setup = setup
        self.path = directory / "tuple-buffer"
        working = range(setup.assignment.slots)
        shape = BufferShape(
            (*setup.columns, (DUE_NS, "i8")),
            setup.capacity,
            sources_max=setup.sources,
            readers_max=setup.slots,
            key_groups=groups,
        )
        self._buffer = SharedTupleBuffer.create(self.path, shape, range(setup.sources), working)
        self.board = Board.create(directory / "board", setup.slots, groups)
        self.assignment = setup.assignment
        slot_of = np.array(setup.assignment.slot_of)
        self.board.write_epoch(Epoch(0, frozenset(working), slot_of, 0))
        context = multiprocessing.get_context("forkserver")
        # The fork server imports once what every slot needs; each slot is forked from it.
        context.set_forkserver_preload([__name__])
        self._processes: list[BaseProcess] = [
            context.Process(target=_run, args=(setup, directory, number), daemon=True)
            for number in range(setup.slots)
        ]

    def __enter__(self) -> SlotProcesses:
        for process in self._processes:
            process.start()
        self._wait(lambda: bool(self.board.rows["ready"].all()), "start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.board.stop()
        for process in self._processes:
            process.join(2.0)
            process.kill()
            process.join()
        self._buffer.unlink()
        self._buffer.close()

    @property
    def process_ids(self) -> list[int]:
        """The process IDs of the slots, in order."""
        return [process.pid or 0 for process in self._processes]

    def reconfigure(self, assignment: Assignment) -> float:
        """Switch to the slots and the mapping of `assignment`; return the milliseconds it took.

        The time runs from the call until the last slot, old or new, is in the new epoch. Records must
        keep coming: the switch waits for one from every source.

        Raises
        ------
        EngineError    The switch has not ended after `timeout_s`.
        """
        begun_ns = time.monotonic_ns()
        instances = frozenset(range(assignment.slots))
        number = self._buffer.reconfigure(instances, assignment.slot_of)
        if number is None:
            msg = "the sources have not announced the last reconfigurations yet; ask again later."
            raise EngineError(msg)
        involved = instances | frozenset(range(self.assignment.slots))
        self._wait(lambda: self.board.all_switched(number, involved), "switch")
        self.assignment = assignment
        ended_ns = int(self.board.rows["switched_ns"][list(involved)].max())
        return (ended_ns - begun_ns) / 1e6

    def wait_served(self, records: int) -> None:
        """Wait until every working slot has served this many records since it started."""
        served = self.board.rows["served"][: self.assignment.slots]
        self._wait(lambda: bool((served >= records).all()), "serve")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.setup.timeout_s
        while not holds():
            if time.monotonic() > deadline or not all(p.is_alive() for p in self._processes):
                msg = f"the slots did not {what} within {self.setup.timeout_s:g} s; run it again."
                raise EngineError(msg)
            time.sleep(0.0005)


def _run(setup: Setup, directory: Path, number: int) -> None:
    buffer = SharedTupleBuffer.open(directory / "tuple-buffer")
    board = Board(directory / "board", setup.slots, setup.assignment.key_groups)
    warm()
    Slot(number, buffer, board, setup.make_work(directory), setup.block).run()
