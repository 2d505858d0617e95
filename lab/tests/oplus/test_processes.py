"""ScaleJoin by several slots on one buffer and one state: stepped in any order, then as processes."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.assignment import rescale, spread
from headgate.core.errors import EngineError
from headgate_lab.experiments.stretch.live import LiveJoin
from headgate_lab.oplus.board import Board, Epoch
from headgate_lab.oplus.join_state import COLUMNS, JoinShape, JoinState, JoinWork
from headgate_lab.oplus.processes import DUE_NS, Setup, Slot, SlotProcesses
from headgate_lab.tuple_buffer.layout import BufferShape
from headgate_lab.tuple_buffer.shared import SharedTupleBuffer

KEYS, SLOTS, REACH = 7, 4, 12
SHAPE = JoinShape(KEYS, 16, REACH)


class Inputs:
    """Records of two sources with small attributes, so that many pairs match."""

    def __init__(self, seed: int, count: int) -> None:
        draws = np.random.default_rng(seed)
        self.times = [np.sort(draws.integers(0, 90, count)) for _ in range(2)]
        self.first = [draws.integers(1, 40, count).astype(np.int32) for _ in range(2)]
        self.second = [draws.uniform(1, 40, count).astype(np.float32) for _ in range(2)]

    def pairs(self) -> tuple[int, int]:
        """Pairs within reach, and those of them that match, by a nested loop."""
        near = np.abs(self.times[0][:, None] - self.times[1]) <= REACH
        close = np.abs(self.first[0][:, None] - self.first[1]) <= SHAPE.width
        low, high = (self.second[1] + sign * np.float32(SHAPE.width) for sign in (-1, 1))
        close &= (self.second[0][:, None] >= low) & (self.second[0][:, None] <= high)
        return int(near.sum()), int((near & close).sum())


class Stage:
    """An operator whose slots take a step when they are told to."""

    def __init__(self, directory: Path, working: int) -> None:
        directory.chmod(0o700)
        shape = BufferShape((*COLUMNS, (DUE_NS, "i8")), 512, 2, SLOTS, KEYS)
        assignment = spread(working, KEYS)
        self.buffer = SharedTupleBuffer.create(
            directory / "tuple-buffer", shape, range(2), range(working)
        )
        self.state = JoinState.create(directory, SHAPE)
        self.board = Board.create(directory / "board", SLOTS, KEYS)
        slot_of = np.array(assignment.slot_of)
        self.board.write_epoch(Epoch(0, frozenset(range(working)), slot_of, 0))
        self.slots = [
            Slot(number, self.buffer, self.board, JoinWork(directory, SHAPE), 5)
            for number in range(SLOTS)
        ]

    def feed(self, inputs: Inputs, source: int, start: int, stop: int) -> None:
        columns = {
            "first": inputs.first[source][start:stop],
            "second": inputs.second[source][start:stop],
            DUE_NS: np.zeros(stop - start, np.int64),
        }
        assert (
            self.buffer.add_block(inputs.times[source][start:stop], columns, source) == stop - start
        )

    def work(self) -> list[int]:
        return self.board.rows["work"].sum(axis=0).tolist()

    def settle(self, dice: random.Random) -> None:
        """Step in any order until nobody can."""
        idle = 0
        while idle < 50:
            idle = 0 if dice.choice(self.slots).step() else idle + 1
        while any(slot.step() for slot in self.slots):
            pass


@given(st.integers(0, 10_000), st.integers(1, SLOTS))
def test_any_epochs_and_interleaving_find_the_pairs_of_a_nested_loop(
    tmp_path_factory: pytest.TempPathFactory, seed: int, working: int
) -> None:
    dice, inputs, count = random.Random(seed), Inputs(seed, 60), 60
    stage = Stage(tmp_path_factory.mktemp("stage"), working)
    fed, members, switches = [0, 0], set(range(working)), 0
    while min(fed) < count:
        source = 0 if fed[0] <= fed[1] else 1
        stop = min(fed[source] + dice.randint(1, 9), count)
        stage.feed(inputs, source, fed[source], stop)
        fed[source] = stop
        for _ in range(dice.randint(0, 30)):
            dice.choice(stage.slots).step()
        if dice.random() < 0.3 and min(fed) < count - 20:
            stage.settle(dice)
            if all(stage.board.rows["epoch"][list(members)] == switches):
                new = set(dice.sample(range(SLOTS), dice.randint(1, SLOTS)))
                slot_of = [dice.choice(sorted(new)) for _ in range(KEYS)]
                assert stage.buffer.reconfigure(new, slot_of) == switches + 1
                switches, members = switches + 1, members | new
    for source in (0, 1):
        stage.buffer.advance(10_000, source)
    stage.settle(dice)
    compared, matched, stored = stage.work()
    assert (compared, matched) == inputs.pairs()
    assert stored == 2 * count, "every record is stored by exactly one key"


def test_a_switch_changes_nothing_of_the_state_but_what_is_stored_meanwhile(tmp_path: Path) -> None:
    inputs, dice = Inputs(1, 60), random.Random(1)
    stage = Stage(tmp_path, 1)
    for source in (0, 1):
        stage.feed(inputs, source, 0, 40)
    stage.settle(dice)
    before, stored = stage.state.raw.copy(), stage.work()[2]
    stage.buffer.reconfigure({0, 1, 2}, [0, 1, 2, 0, 1, 2, 0])
    for source in (0, 1):
        stage.feed(inputs, source, 40, 44)
    stage.settle(dice)
    assert stage.board.all_switched(1, {0, 1, 2})
    changed = int((before != stage.state.raw).sum())
    record_bytes = 16 + 2 * 8  # with where stored records begin and end
    assert 0 < changed <= (stage.work()[2] - stored) * record_bytes + 2 * KEYS * 8


def test_the_record_that_triggers_a_switch_is_the_first_of_the_new_slot(tmp_path: Path) -> None:
    inputs, dice = Inputs(1, 20), random.Random(1)
    inputs.times = [np.arange(20), np.arange(20)]
    stage = Stage(tmp_path, 1)
    for source in (0, 1):
        stage.feed(inputs, source, 0, 10)
    stage.settle(dice)
    stage.buffer.reconfigure({0, 1}, [0, 1, 0, 1, 0, 1, 0])
    for source in (0, 1):
        stage.feed(inputs, source, 10, 14)
    stage.settle(dice)
    # gamma is 10, the time of the sources' next records: the new slot serves all later ones.
    old, new = stage.board.rows["served"][:2].tolist()
    assert old - new == 2 * 11


def test_slots_of_a_pool_do_nothing_until_they_are_connected(tmp_path: Path) -> None:
    inputs, dice = Inputs(2, 30), random.Random(2)
    stage = Stage(tmp_path, 2)
    for source in (0, 1):
        stage.feed(inputs, source, 0, 30)
    stage.settle(dice)
    served = stage.board.rows["served"].tolist()
    assert served[0] == served[1] > 0
    assert served[2:] == [0, 0]


def test_more_records_than_there_is_room_for_are_refused(tmp_path: Path) -> None:
    shape = JoinShape(1, 3, 1000)
    JoinState.create(tmp_path, shape)
    work = JoinWork(tmp_path, shape)
    inputs = Inputs(3, 8)
    block = type("Block", (), {
        "times": inputs.times[0], "sources": np.zeros(8, np.int64),
        "columns": {"first": inputs.first[0], "second": inputs.second[0]},
    })()  # fmt: skip
    with pytest.raises(ValueError, match="than there is room for"):
        work.serve(block, np.zeros(1, np.int64), 0, np.zeros(3, np.int64))


@pytest.mark.slow
def test_processes_switch_up_and_down_and_end() -> None:
    join = LiveJoin(slots=3, working=1, rate_per_s=400.0, window_s=2.0)
    with join.running() as (slots, state):
        assignment = slots.assignment
        for number in (3, 2):
            assignment = rescale(assignment, number)
            assert slots.reconfigure(assignment) > 0.0
        assert slots.assignment == assignment
        assert state.held >= join.filled
    assert not slots.path.exists()


@pytest.mark.slow
def test_a_slot_that_dies_ends_the_wait_with_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    make_work = partial(JoinWork, shape=SHAPE)  # there is no state file: every slot dies
    setup = Setup(2, spread(1, KEYS), COLUMNS, make_work)
    with pytest.raises(EngineError, match="did not start"), SlotProcesses(setup, tmp_path):
        pass
