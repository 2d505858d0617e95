"""Runs trials with processes that are killed, suspended and resumed, on one key group's file.

One to three concurrent attempts run each batch. Each attempt serves its own number of the waiting
records, and is killed, suspended or resumed at random moments. The driver commits one of the finished
attempts, and goes on; the others may still be running. At the end the sums must be right.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headgate.checkpoint import changelog
from headgate.checkpoint.changelog import SectionRef
from headgate.core.errors import StateError
from headgate.tables.arena import ArenaStore
from headgate.tables.arena_file import ArenaFile
from headgate.tables.header import DIRTY, Header
from headgate.tables.heap import warm
from headgate.tables.lineage import build
from headgate.tables.ports import EMPTY_TOKEN, I64, Chain, Section, Table, TableLayout
from headgate.tables.table import BufferTable

LAYOUT = TableLayout(key_words=1, fresh=(0, 0))
GROUP = 0
BATCHES = 6
KEYS = 30
Opener = Callable[[Path], ArenaStore]

_CHUNK = 16
_PAUSE_S = 0.0006
_WATCH_S = 0.006
# Chosen so that most batches lose an attempt and few need a second round.
_DISTURBED = 0.35
_SIGNALS = (signal.SIGKILL, *3 * (signal.SIGSTOP,), *4 * (signal.SIGCONT,))
_REPORT = struct.Struct("<16sI")


def open_arena(directory: Path) -> ArenaStore:
    """Return the correct store."""
    return ArenaStore(directory, LAYOUT)


class IgnoresLineage(ArenaStore):
    """Breaks the protocol: compares the step's number in a token, not the whole token."""

    def _bring_table(
        self, file: ArenaFile, group: int, token: str, chain: Chain
    ) -> BufferTable | None:
        table = file.table
        assert table is not None
        if table.trusted() and table.token[:8] == token[:8]:
            return table
        return super()._bring_table(file, group, token, chain)


class TakesOver(ArenaStore):
    """Breaks the protocol: takes no lock, and restores a dirty table in the same file."""

    def acquire(self, group: int, token: str, chain: Chain) -> Table:
        """Return the table in the existing file, whoever uses it."""
        file = ArenaFile.open(f"{self._prefix}{group}")
        if file is None:
            return super().acquire(group, token, chain)
        header = Header(file.buffer)
        file.table = table = BufferTable(file, self._layout, header.geometry())
        file.nonce, self._held[group] = header.nonce, file
        if header.state == DIRTY or table.token != token:
            table.rows[...] = 0
            header.counts[:2] = 0
            header.seal(EMPTY_TOKEN, EMPTY_TOKEN)
            build(table, group, token, chain)
        return table


@dataclass
class Trial:
    """Runs a trial on one key group, with its waiting records and its committed history.

    Parameters
    ----------
    directory : path      Private to the trial.
    open_store : callable, directory -> store

    Attributes
    ----------
    sections : committed sections, oldest first
    waiting : int64[n, 2]    Key and amount of each record not yet served.
    given : int64[KEYS]      Sum of the amounts of all records, by key: the right answer.
    running : processes not known to have ended
    """

    directory: Path
    open_store: Opener
    seed: int
    sections: list[Section] = field(default_factory=list)
    waiting: I64 = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    given: I64 = field(default_factory=lambda: np.zeros(KEYS, dtype=np.int64))
    running: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def chain(self, token: str) -> list[Section]:
        """Return the sections after `token`."""
        found: list[Section] = []
        for section in reversed(self.sections):
            if section.token == token:
                break
            found.insert(0, section)
            if section.full:
                break
        return found

    @property
    def token(self) -> str:
        """Newest committed token."""
        return self.sections[-1].token if self.sections else EMPTY_TOKEN

    def run(self) -> bool:
        """Run all batches; return whether the sums are right."""
        try:
            for batch in range(BATCHES):
                self._receive()
                self._batch(batch)
            return self._right()
        finally:
            self._end_all()

    def _receive(self) -> None:
        count = self.random.randint(20, 120)
        fresh = np.array(
            [[self.random.randrange(KEYS), self.random.randint(1, 9)] for _ in range(count)]
        )
        np.add.at(self.given, fresh[:, 0], fresh[:, 1])
        self.waiting = np.concatenate((self.waiting, fresh))

    def _batch(self, batch: int) -> None:
        """Start attempts until one finishes; commit it."""
        last = batch == BATCHES - 1
        while True:
            readers = [self._start(batch, all_records=last) for _ in range(self._attempt_count())]
            finished = self._watch(readers)
            if finished is not None:
                token, served = finished
                self._commit(token)
                self.waiting = self.waiting[served:]
                return

    def _attempt_count(self) -> int:
        return self.random.choice((1, 1, 2, 3))

    def _commit(self, token: str) -> None:
        blob = (self.directory / f"{token}.changelog").read_bytes()
        full = (self.directory / f"{token}.full").exists()
        head = struct.Struct("<IIII").unpack(blob[:16])
        ref = SectionRef(0, head[0], 0, head[1], head[2], full, self.token, token)
        self.sections.append(changelog.decode(blob[16:], ref))

    def _start(self, batch: int, *, all_records: bool) -> tuple[int, int]:
        reader, writer = os.pipe()
        seed = self.random.randrange(1 << 30)
        process = os.fork()
        if process == 0:
            os.close(reader)
            _attempt(self, batch, seed, all_records, writer)
        os.close(writer)
        self.running.add(process)
        return process, reader

    def _watch(self, attempts: list[tuple[int, int]]) -> tuple[str, int] | None:
        """Disturb the attempts until one reports; return its token and the records served."""
        readers = {reader: process for process, reader in attempts}
        finished = None
        try:
            while readers and finished is None:
                self._disturb()
                ready, _, _ = select.select(list(readers), [], [], self.random.random() * _WATCH_S)
                for reader in ready:
                    report = os.read(reader, _REPORT.size)
                    del readers[reader]
                    if len(report) == _REPORT.size and finished is None:
                        token, served = _REPORT.unpack(report)
                        finished = token.hex(), served
        finally:
            for _, reader in attempts:
                os.close(reader)
        return finished

    def _disturb(self) -> None:
        """Kill, suspend or resume a running attempt, of this batch or an older one."""
        self._reap()
        if not self.running or self.random.random() > _DISTURBED:
            return
        process = self.random.choice(sorted(self.running))
        os.kill(process, self.random.choice(_SIGNALS))

    def _reap(self) -> None:
        for process in list(self.running):
            if os.waitpid(process, os.WNOHANG)[0]:
                self.running.discard(process)

    def _right(self) -> bool:
        # Old attempts run on while the answer is read: they must not be able to change it.
        for process in self.running:
            os.kill(process, signal.SIGCONT)
        store = self.open_store(self.directory / "operator")
        sums = np.zeros(KEYS, dtype=np.int64)
        try:
            table = store.acquire(GROUP, self.token, self.chain)
            time.sleep(_PAUSE_S)
            rows = table.rows[table.live()]
            np.add.at(sums, rows[:, 1] - 1, rows[:, 3])
            store.release(GROUP)
        except StateError:
            return False
        finally:
            store.close()
        return bool((sums == self.given).all())

    def _end_all(self) -> None:
        for process in self.running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        self.running.clear()


def _attempt(trial: Trial, batch: int, seed: int, all_records: bool, writer: int) -> None:
    """Serve the first waiting records, a random number, in this (forked) process; report, and exit."""
    code = 1
    try:
        chance = random.Random(seed)
        token = f"{batch + 1:08x}{chance.getrandbits(96):024x}"
        served = len(trial.waiting)
        if not all_records:
            served = chance.randint(1, served)
        store = trial.open_store(trial.directory / "operator")
        table = store.acquire(GROUP, trial.token, trial.chain)
        table.begin()
        for at in range(0, served, _CHUNK):
            records = trial.waiting[at : min(at + _CHUNK, served)]
            index = table.upsert(records[:, :1] + 1)
            time.sleep(_PAUSE_S * chance.random())
            np.add.at(table.rows[:, 3], index, records[:, 1])
        full = chance.random() < 0.2  # noqa: PLR2004 - chosen, not tuned
        _write_section(trial.directory, table.section(token, full=full))
        store.commit(GROUP, token)
        store.release(GROUP)
        os.write(writer, _REPORT.pack(bytes.fromhex(token), served))
        code = 0
    finally:
        os._exit(code)


def _write_section(directory: Path, section: Section) -> None:
    blob, refs = changelog.encode({GROUP: section})
    ref = refs[GROUP]
    head = struct.pack("<IIII", ref.row_count, ref.string_count, ref.first_string, 0)
    if section.full:
        (directory / f"{section.token}.full").touch()
    (directory / f"{section.token}.changelog").write_bytes(head + blob)


@contextmanager
def _directory() -> Iterator[Path]:
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="headgate-trial-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run_trials(count: int, seed: int, open_store: Opener = open_arena) -> list[int]:
    """Run `count` trials; return the seeds of those with wrong sums.

    A seed determines records and signals, but the operating system's scheduler decides on the moments, so
    that a seed does not repeat a trial exactly.
    """
    warm()
    wrong = []
    for number in range(seed, seed + count):
        with _directory() as directory:
            if not Trial(directory, open_store, number).run():
                wrong.append(number)
    return wrong
