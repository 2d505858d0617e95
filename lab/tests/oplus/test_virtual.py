"""Virtual shared-nothing: n instances at random epochs and interleavings give the answer of one."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from headgate.core.errors import ProtocolError
from headgate.operators.operator_plus import OperatorPlus, Record, Watermark, WindowType
from headgate_lab.oplus import library, virtual
from headgate_lab.oplus.reference import run
from headgate_lab.oplus.streams import merged
from headgate_lab.oplus.virtual import NEVER, SharedOperator
from headgate_lab.tuple_buffer.port import Entry

GROUPS = 8
INSTANCES = 5
END = 10_000


def count(record: Record) -> list[int]:
    return record.payload[0]


def echo(windows, record):
    return [1] * len(windows), [(windows[0].key, record.payload[1])]


OPERATORS = {
    "counts": library.aggregate(4, 10, count, lambda n, _: (n or 0) + 1, int),
    "single counts": library.single_aggregate(4, 10, count, len),
    "first and last": library.aggregate(
        4, 10, count, lambda s, r: (s[0] if s else r.payload[1], r.payload[1]), tuple
    ),
    "echo in several windows": OperatorPlus(
        4, 10, count, WindowType.MULTI, ("key", "serial"), inputs=2, update=echo
    ),
    "scale join": library.scale_join(12, GROUPS, lambda x, y: (x.payload[1] - y.payload[1]) % 3 == 0),
}  # fmt: skip


def streams_of(random: Random, sources: int, length: int, inputs: int = 1) -> list[list[Record]]:
    """Sorted streams with many equal times, keys in bags, and gaps longer than a window."""
    streams = []
    for source in range(sources):
        time, stream = -20, []
        for i in range(length):
            time += random.choice([0, 0, 1, 1, 2, 3, 25])
            keys = [random.randrange(12) for _ in range(random.randrange(4))]
            stream.append(Record(time, (keys, 1000 * source + i), source % inputs))
        streams.append(stream)
    return streams


def table(random: Random, instances: list[int]) -> list[int]:
    return [random.choice(instances) for _ in range(GROUPS)]


class Play:
    """One run: sources add, instances step, requests come, all in an order drawn from a seed."""

    def __init__(self, operator: OperatorPlus, seed: int, sources: int = 2, length: int = 25):
        self.random = random = Random(seed)
        self.streams = streams_of(random, sources, length, operator.inputs)
        start = random.randrange(1, INSTANCES)
        self.group = SharedOperator(
            operator,
            start,
            INSTANCES,
            table(random, list(range(start))),
            sources=range(sources),
            capacity=(random.choice([12, 1000]), 300),
        )
        self.output: list[Record] = []
        self._left: list[list[Record | Watermark]] = [[*s, Watermark(END)] for s in self.streams]

    def request(self) -> None:
        wanted = self.random.sample(range(INSTANCES), self.random.randrange(1, INSTANCES + 1))
        self.group.reconfigure(wanted, table(self.random, wanted))

    def turn(self) -> bool:
        """Let a random participant try; return whether anybody could do anything."""
        moves = [self._feed(s) for s in range(len(self._left))]
        moves += [instance.step for instance in self.group.instances]
        moves.append(self._drain)
        self.random.shuffle(moves)
        self.group.announce()
        return any(move() for move in moves)

    def finish(self, requests: int = 0) -> list[Record]:
        asked = 0
        while True:
            if asked < requests and self.random.random() < 0.08:
                self.request()
                asked += 1
            if not self.turn() and asked == requests:
                assert not any(self._left), "somebody waits for ever"
                return self.output

    def _feed(self, source: int):
        def feed() -> bool:
            left = self._left[source]
            if not left or not self.group.buffer_in.add_stretch(
                Entry(left[0].time, left[0]), source
            ):
                return False
            left.pop(0)
            return True

        return feed

    def _drain(self) -> bool:
        entry = self.group.buffer_out.get(0)
        if entry is None:
            return False
        if isinstance(entry.values, Record):
            self.output.append(entry.values)
        return True


def answers(records: list[Record]) -> Counter[object]:
    return Counter((r.time, repr(r.payload)) for r in records)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("seed", range(6))
def test_any_epochs_and_interleaving_give_the_answer_of_one_instance(name, seed):
    play = Play(OPERATORS[name], seed)
    output = play.finish(requests=4)
    expected = run(OPERATORS[name], [*merged(play.streams), Watermark(END)])
    assert answers(output) == answers(expected)
    # Lemmas 2 and 3: also what newly connected instances add comes in time order.
    assert [r.time for r in output] == sorted(r.time for r in output)
    assert expected, "a run without output proves nothing"
    assert any(instance.switches for instance in play.group.instances)


@pytest.mark.parametrize("seed", range(8))
def test_each_switch_happens_once_for_everybody_who_stays(seed):
    # Theorem 4: atomic and exactly once, with a copy of the control record from each of 3 sources.
    play = Play(OPERATORS["counts"], seed, sources=3, length=60)
    play.finish(requests=4)
    group = play.group
    for instance in group.instances:
        assert instance.switches == sorted(set(instance.switches))
    for events in (group.connected, group.disconnected):
        epochs = [epoch for epoch, _ in events]
        assert epochs == sorted(set(epochs))
    last = max((i.instance.epoch for i in group.instances), key=lambda epoch: epoch.number)
    assert last.number >= 2
    assert {group.instances[j].instance.epoch.number for j in last.instances} == {last.number}


def feed(group: SharedOperator, time: int, keys: list[int]) -> None:
    assert group.buffer_in.add_stretch(Entry(time, Record(time, (keys, time))), 0)


def settle(group: SharedOperator) -> list[Record]:
    while any([instance.step() for instance in group.instances]):
        pass
    output = []
    while (entry := group.buffer_out.get(0)) is not None:
        output += [entry.values] if isinstance(entry.values, Record) else []
    return output


def one_source(start: int, slot_of: list[int]) -> SharedOperator:
    return SharedOperator(OPERATORS["counts"], start, 4, slot_of)


def test_the_record_that_triggers_the_switch_is_served_once_by_the_new_owner():
    # Slip: by table 2 alone a new reader starts behind the trigger, and its count would be lost.
    group = one_source(1, [0] * GROUPS)
    feed(group, 0, [3])
    group.reconfigure([1], [1] * GROUPS)
    feed(group, 1, [3])  # carries the control record: gamma = 1
    feed(group, 2, [3])  # W = 2 > gamma
    feed(group, END, [])
    assert [(r.time, r.payload) for r in settle(group)] == [(2, (3, 2)), (6, (3, 3)), (10, (3, 3))]
    assert group.instances[1].switches == []
    assert group.state._writers[3] == (1, 1)


def test_a_switch_waits_for_a_watermark_above_gamma():
    group = one_source(1, [0] * GROUPS)
    group.reconfigure([0, 1], [0, 1] * (GROUPS // 2))
    feed(group, 5, [1])
    feed(group, 5, [1])
    settle(group)
    assert group.instances[0].gamma == 5
    assert group.instances[0].switches == []
    feed(group, 6, [1])
    settle(group)
    assert group.instances[0].switches == [1]


def test_slip_gamma_is_reset_so_that_the_barrier_is_entered_once():
    group = one_source(2, [0, 1] * (GROUPS // 2))
    assert all(instance.gamma == NEVER for instance in group.instances)
    group.reconfigure([0, 1], [1, 0] * (GROUPS // 2))
    for time in range(5):
        feed(group, time, [1])
    settle(group)
    assert [instance.switches for instance in group.instances] == [[1], [1], [], []]
    assert all(instance.gamma == NEVER for instance in group.instances)


def test_slip_a_swap_of_instances_at_equal_number_connects_and_disconnects():
    group = one_source(2, [0, 1] * (GROUPS // 2))
    group.reconfigure([0, 2], [0, 2] * (GROUPS // 2))
    for time in range(4):
        feed(group, time, [1])
    settle(group)
    assert group.connected == [(1, frozenset({2}))]
    assert group.disconnected == [(1, frozenset({1}))]
    assert group.instances[2].instance.epoch.instances == {0, 2}


def test_a_change_of_mapping_alone_moves_keys_and_nobody():
    group = one_source(2, [0, 1] * (GROUPS // 2))
    group.reconfigure([0, 1], [1, 0] * (GROUPS // 2))
    for time in range(4):
        feed(group, time, [1])
    settle(group)
    assert (group.connected, group.disconnected) == ([], [])
    assert group.state._writers[1] == (1, 0)


def test_a_second_request_waits_for_the_first():
    group = one_source(1, [0] * GROUPS)
    group.reconfigure([0, 1], [0, 1] * (GROUPS // 2))
    group.reconfigure([2], [2] * GROUPS)
    feed(group, 0, [1])
    settle(group)
    group.announce()
    assert len(group.buffer_in._requests) == 1
    feed(group, 1, [1])
    settle(group)
    group.announce()
    assert len(group.buffer_in._requests) == 2
    for time in range(2, 5):
        feed(group, time, [1])
    settle(group)
    assert group.instances[2].instance.epoch.number == 2
    assert group.disconnected == [(2, frozenset({0, 1}))]


def test_of_several_announced_epochs_the_latest_wins():
    group = one_source(1, [0] * GROUPS)
    group.buffer_in.reconfigure([0, 1], [1] * GROUPS)
    group.buffer_in.reconfigure([0, 3], [3] * GROUPS)
    for time in range(3):
        feed(group, time, [1])
    settle(group)
    assert group.instances[0].switches == [2]
    assert group.connected == [(2, frozenset({3}))]


def test_a_removed_instance_comes_back_from_the_pool():
    group = one_source(2, [0, 1] * (GROUPS // 2))
    for wanted in ([0], [0, 1]):
        group.reconfigure(wanted, [wanted[-1]] * GROUPS)
        for _ in range(4):
            feed(group, max(0, group.watermark) + 1, [1])
            settle(group)
    assert group.state._writers[1] == (2, 1)


def test_one_operators_output_buffer_is_the_next_ones_input_buffer():
    words = OPERATORS["counts"]
    totals = library.aggregate(20, 20, lambda r: ["all"], lambda n, r: (n or 0) + r.payload[1], int)
    streams = streams_of(Random(3), 1, 30)
    first = SharedOperator(words, 2, 2, [0, 1] * (GROUPS // 2), readers=(0, 1))
    second = SharedOperator(totals, 2, 2, [1, 0] * (GROUPS // 2), sources=(0, 1),
                            buffer_in=first.buffer_out)  # fmt: skip
    items = [*streams[0], Watermark(END)]
    for item in items:
        assert first.buffer_in.add(Entry(item.time, item), 0)
    output: list[Record] = []
    while any([i.step() for i in [*first.instances, *second.instances]]):
        output += settle(second)
    alone = run(totals, [*run(words, items), Watermark(END)])
    assert answers(output) == answers(alone)


def test_an_owner_that_ignores_the_epoch_is_caught_as_a_second_writer(monkeypatch):
    # The mutant: a switch that one instance takes and another does not.
    original = virtual.VirtualInstance._switch

    def forgets(self: virtual.VirtualInstance) -> bool:
        old = self.instance.epoch
        switched = original(self)
        if switched and self.number == 0:
            self.instance.epoch = old
        return switched

    monkeypatch.setattr(virtual.VirtualInstance, "_switch", forgets)
    group = one_source(2, [0] * GROUPS)
    group.reconfigure([0, 1], [1] * GROUPS)
    for time in range(4):
        feed(group, time, [1])
    with pytest.raises(ProtocolError, match="one writer per epoch"):
        settle(group)
