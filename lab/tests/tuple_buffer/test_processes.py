"""The shared tuple buffer among real processes, some of which are killed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from headgate.core.errors import ConfigError, ProtocolError, StateError
from headgate_lab.tuple_buffer import file
from headgate_lab.tuple_buffer.backoff import Backoff
from headgate_lab.tuple_buffer.layout import BufferShape
from headgate_lab.tuple_buffer.port import Entry
from headgate_lab.tuple_buffer.shared import SharedTupleBuffer

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

FORK = multiprocessing.get_context("fork")
SHAPE = BufferShape((("serial", "i8"), ("half", "f8")), capacity=500, sources_max=4, readers_max=6)
WAIT_S = 30.0
END = 10**9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "buffer"


def stream(source: int, count: int) -> np.ndarray:
    """Times of a source's records, with many equal ones."""
    return np.sort(np.random.default_rng(source).integers(0, count // 3, count))


def produce(path: Path, source: int, count: int) -> None:
    """Add a source's stream in blocks of random sizes, then say that it has ended."""
    buffer, random, at = SharedTupleBuffer.open(path), Random(source), 0
    times = stream(source, count)
    while at < count:
        block = slice(at, at + random.randrange(1, 200))
        serial = np.arange(count)[block]
        columns = {"serial": serial, "half": serial / 2}
        at += Backoff().until(lambda: buffer.add_block(times[block], columns, source), WAIT_S)  # noqa: B023
    assert Backoff().until(lambda: buffer.advance(END, source), WAIT_S)


def consume(buffer: SharedTupleBuffer, reader: int) -> tuple[list[np.ndarray], int]:
    """Return (time, source, serial) of all records until every source has ended."""
    parts, watermark, random = [], -1, Random(reader)
    while watermark < END:
        block = Backoff().until(lambda: buffer.get_block(reader, random.randrange(1, 300)), WAIT_S)
        assert block is not None, "nothing came any more"
        assert block.watermark >= watermark
        watermark = block.watermark
        assert (block.columns["half"] * 2 == block.columns["serial"]).all()
        parts.append(np.stack([block.times, block.sources, block.columns["serial"]]))
    return parts, watermark


def everything(path: Path, reader: int) -> np.ndarray:
    return np.concatenate(consume(SharedTupleBuffer.open(path), reader)[0], axis=1)


def expected(sources: int, count: int) -> np.ndarray:
    parts = [
        np.stack([stream(s, count), np.full(count, s), np.arange(count)]) for s in range(sources)
    ]
    whole = np.concatenate(parts, axis=1)
    return whole[:, np.lexsort((whole[2], whole[1], whole[0]))]


def start(target: Callable[..., None], *arguments: object) -> multiprocessing.Process:
    process = FORK.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def finished(*processes: multiprocessing.Process) -> None:
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0


def read_into(path: Path, reader: int, result: Path) -> None:
    np.save(result, everything(path, reader))


def test_all_readers_see_all_records_in_the_same_order(path):
    SharedTupleBuffer.create(path, SHAPE, range(3), range(2))
    results = [path.parent / f"{reader}.npy" for reader in range(2)]
    readers = [start(read_into, path, reader, results[reader]) for reader in range(2)]
    sources = [start(produce, path, source, 6000) for source in range(3)]
    finished(*sources, *readers)
    for result in results:
        assert (np.load(result) == expected(3, 6000)).all()


def test_a_process_that_shares_no_ancestor_can_use_it(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    program = (
        "import sys; from headgate_lab.tuple_buffer.shared import *;"
        "b = SharedTupleBuffer.open(sys.argv[1]); b.add(Entry(1, (7, 3.5)), 0)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert buffer.get(0) == Entry(1, (7, 3.5), 0)


def test_a_reader_killed_at_any_moment_harms_nobody_once_it_is_removed(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, range(2), [0])
    sources = [start(produce, path, source, 8000) for source in range(2)]
    random, parts, watermark = Random(1), [], -1
    for victim in range(1, 6):
        assert buffer.add_readers([victim], by=0)
        process = start(everything, path, victim)
        deadline = time.monotonic() + random.random() * 0.05
        while time.monotonic() < deadline and watermark < END:
            block = buffer.get_block(0, 100)
            if block is not None:
                parts.append(np.stack([block.times, block.sources, block.columns["serial"]]))
                watermark = block.watermark
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert buffer.remove_readers([victim], by=0)
    if watermark < END:
        parts += consume(buffer, 0)[0]
    finished(*sources)
    assert (np.concatenate(parts, axis=1) == expected(2, 8000)).all()


def test_of_a_killed_source_every_reader_sees_the_same_first_records(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, range(2), range(2))
    results = [path.parent / f"{reader}.npy" for reader in range(2)]
    readers = [start(read_into, path, reader, results[reader]) for reader in range(2)]
    victim = start(produce, path, 1, 10**6)
    times = stream(1, 10**6)
    while (added := int(buffer._control.head[1])) <= 1000:
        time.sleep(0.001)
        buffer.advance(int(times[added]), 0)
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert Backoff().until(lambda: buffer.advance(10**6, 0), WAIT_S)
    assert buffer.remove_sources([1], by=0)
    assert Backoff().until(lambda: buffer.advance(END, 0), WAIT_S)
    finished(*readers)
    first, second = (np.load(result) for result in results)
    assert (first == second).all()
    assert first.shape[1] > 1000
    assert (first[2] == np.arange(first.shape[1])).all()


def test_whoever_dies_in_the_middle_of_a_change_has_changed_nothing(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0, 1], [0, 1])

    def dies() -> None:
        with buffer._lock, buffer._change() as control:
            control.raw[:] = 255
            os.kill(os.getpid(), signal.SIGKILL)

    before = buffer._control.raw.copy()
    process = start(dies)
    process.join(WAIT_S)
    assert process.exitcode == -signal.SIGKILL
    assert (buffer._control.raw == before).all()
    assert buffer.add_readers([2], by=0), "the lock is free"
    assert buffer.add(Entry(1, (1, 0.5)), 0)


def test_of_many_processes_exactly_one_wins(path):
    SharedTupleBuffer.create(path, SHAPE, range(4), range(4))
    rounds = 20
    gate = FORK.Barrier(4)
    wins = [FORK.Array("i", 2 * rounds, lock=False) for _ in range(4)]

    def call(who: int) -> None:
        buffer = SharedTupleBuffer.open(path)
        changes = (buffer.add_readers, buffer.remove_readers)
        for turn in range(2 * rounds):
            gate.wait(WAIT_S)
            wins[who][turn] = changes[turn % 2]([4, 5], by=who)

    processes = [start(call, who) for who in range(4)]
    finished(*processes)
    total = np.sum([list(won) for won in wins], axis=0)
    assert (total == 1).all()


def test_two_processes_that_are_one_reader_share_its_records(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    buffer.add_block(np.arange(400), {"serial": np.arange(400), "half": np.arange(400) / 2}, 0)

    def take(result: Path) -> None:
        mine = SharedTupleBuffer.open(path)
        found = []
        while (entry := mine.get(0)) is not None:
            found.append(entry.values[0])
        np.save(result, np.array(found))

    results = [path.parent / f"{n}.npy" for n in range(2)]
    finished(*[start(take, result) for result in results])
    both = np.concatenate([np.load(result) for result in results])
    assert sorted(both) == list(range(400))


def test_a_child_of_a_fork_has_a_lock_of_its_own(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0, 1], [0])

    def add_all(source: int) -> None:
        for n in range(300):
            assert Backoff().until(lambda: buffer.add(Entry(n, (n, 0.0)), source), WAIT_S)  # noqa: B023

    finished(*[start(add_all, source) for source in (0, 1)])
    assert list(buffer._control.head[:2]) == [300, 300]


def test_a_full_buffer_slows_its_source_and_loses_nothing(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    source = start(produce, path, 0, 3000)
    parts = []
    watermark = -1
    while watermark < END:
        assert (buffer._control.head[0] - buffer._control.cursor[0, 0]) <= SHAPE.capacity
        block = Backoff().until(lambda: buffer.get_block(0, 50), WAIT_S)
        parts.append(block.columns["serial"])
        watermark = block.watermark
    finished(source)
    assert (np.concatenate(parts) == np.arange(3000)).all()


def test_a_block_ends_before_a_control_record(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    serial = np.arange(10)
    columns = {"serial": serial, "half": serial / 2}
    buffer.add_block(serial, columns, 0)
    buffer.reconfigure([1], [1] * SHAPE.key_groups)
    buffer.add_block(serial + 10, columns, 0)
    blocks = [buffer.get_block(0, 100) for _ in range(3)]
    assert [block.times.size for block in blocks] == [10, 0, 10]
    assert [block.control and block.control.number for block in blocks] == [None, 1, None]


def test_requests_beyond_what_is_kept_are_refused_until_readers_have_got_them(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    numbers = [buffer.reconfigure([n % 6], [0] * SHAPE.key_groups) for n in range(9)]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, None]
    assert buffer.add_stretch(Entry(1, (1, 0.5)), 0)
    assert buffer.reconfigure([0], [0] * SHAPE.key_groups) is None
    assert [buffer.get(0).control.number for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert buffer.reconfigure([0], [0] * SHAPE.key_groups) == 9


def test_the_file_is_this_users_alone_and_has_its_room(path):
    SharedTupleBuffer.create(path, SHAPE, [0], [0])
    found = path.stat()
    assert found.st_mode & 0o777 == 0o600
    assert found.st_blocks * 512 >= SHAPE.byte_count
    assert os.listdir(path.parent) == ["buffer"]
    path.chmod(0o644)
    with pytest.raises(StateError, match="open to others"):
        SharedTupleBuffer.open(path)


def test_what_is_no_tuple_buffer_is_refused(path):
    with pytest.raises(StateError, match="cannot be opened"):
        SharedTupleBuffer.open(path)
    path.write_bytes(b"something else")
    with pytest.raises(StateError, match="no tuple buffer"):
        SharedTupleBuffer.open(path)
    with pytest.raises(StateError, match="exists already"):
        SharedTupleBuffer.create(path, SHAPE, [0], [0])
    path.parent.chmod(0o755)
    with pytest.raises(StateError, match="open to others"):
        SharedTupleBuffer.create(path, SHAPE, [0], [0])


def test_a_buffer_without_room_leaves_nothing_behind(path, monkeypatch):
    def full(descriptor: int, byte_count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file, "allocate", full)
    with pytest.raises(StateError, match="No space left on device"):
        SharedTupleBuffer.create(path, SHAPE, [0], [0])
    assert os.listdir(path.parent) == []


def test_a_buffer_needs_a_source_and_a_reader_to_begin_with(path):
    for sources, readers, what in (([], [0], "source"), ([0], [], "reader")):
        with pytest.raises(ConfigError, match=f"needs a {what} to begin with"):
            SharedTupleBuffer.create(path, SHAPE, sources, readers)


def test_columns_that_do_not_fit_the_header_are_refused(path):
    wide = BufferShape(tuple((f"column_{n:040}", "i8") for n in range(100)), capacity=1)
    with pytest.raises(ConfigError, match="100 columns do not fit"):
        SharedTupleBuffer.create(path, wide, [0], [0])


def test_a_child_does_not_lock_a_file_that_took_the_old_ones_place(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    buffer.unlink()
    SharedTupleBuffer.create(path, SHAPE, [0], [0])

    def use() -> None:
        with pytest.raises(StateError, match="was replaced"):
            buffer.get(0)

    finished(start(use))


def test_joining_and_leaving_for_ever_before_a_reader_that_stands_still_is_refused(path):
    buffer = SharedTupleBuffer.create(path, BufferShape((), capacity=4), [0, 1], [0])
    assert buffer.add(Entry(0, ()), 0)

    def come_and_go() -> None:
        for _ in range(30):
            assert buffer.remove_sources([1], by=0)
            assert buffer.add_sources([1], by=0)

    with pytest.raises(ProtocolError, match="while a reader stood still"):
        come_and_go()
    assert buffer.add_readers([1], by=0), "what was refused has changed nothing"


def test_blocks_that_do_not_fit_are_refused(path):
    buffer = SharedTupleBuffer.create(path, SHAPE, [0], [0])
    times = np.array([1, 3, 2])
    columns = {"serial": times, "half": times}
    with pytest.raises(ProtocolError, match="record at 2 after one at 3"):
        buffer.add_block(times, columns, 0)
    with pytest.raises(ProtocolError, match="needs as many values"):
        buffer.add_block(times[:2], {"serial": times[:2]}, 0)
    with pytest.raises(ProtocolError, match="record of 1 values"):
        buffer.add(Entry(1, (1,)), 0)
    with pytest.raises(ConfigError, match="reader 6 does not fit this tuple buffer; use 0 to 5"):
        buffer.add_readers([6], by=0)
    with pytest.raises(ConfigError, match="mapping of 3 key groups"):
        buffer.reconfigure([0], [0, 0, 0])


@pytest.mark.parametrize(
    ("columns", "change", "message"),
    [
        ((("x", "O"),), {}, "column x is O"),
        ((("x", "i8"), ("x", "i4")), {}, "not distinct"),
        ((), {"capacity": 0}, "capacity=0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(columns, change, message):
    with pytest.raises(ConfigError, match=message):
        BufferShape(columns, **change)
