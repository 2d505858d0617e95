"""Records of partitions come evenly where there is a backlog, and at once where there is none."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from headgate.spark.realtime.even_order import EvenOrder

Partition = tuple[str, int]


@dataclass(frozen=True)
class Made:
    of: int
    at: int

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.of

    def offset(self) -> int:
        return self.at


class Reading:
    """Partitions that a client brings in large pieces, one after the other."""

    def __init__(self, ends: dict[int, int], most: int) -> None:
        self.now_s = 0.0
        self.order = EvenOrder(most, lambda: self.now_s)
        self.starts: dict[Partition, int] = {("t", p): 0 for p in ends}
        self.ends: dict[Partition, int] = {("t", p): end for p, end in ends.items()}
        self.no_more: dict[Partition, int] = {}

    def bring(self, partition: int, start: int, stop: int) -> None:
        self.order.add(Made(partition, at) for at in range(start, stop))

    def polls_until_taken(self) -> int:
        polls = 1
        while not self.take():
            self.now_s += 0.02
            polls += 1
        return polls

    def take(self) -> list[tuple[int, int]]:
        found = self.order.take(self.starts, self.ends, self.no_more)
        for one in found:
            assert one.offset() >= self.starts["t", one.partition()], "in order, and once"
            self.starts["t", one.partition()] = one.offset() + 1
        return [(one.partition(), one.offset()) for one in found]


@pytest.mark.parametrize("seed", range(5))
def test_partitions_with_a_backlog_get_on_together(seed: int) -> None:
    rng = random.Random(seed)
    ends = {number: rng.randrange(1, 20_000) for number in range(4)}
    reading, brought, found = Reading(ends, 1000), dict.fromkeys(ends, 0), 0
    while found < sum(ends.values()):
        left = [p for p in ends if brought[p] < ends[p]]
        if left:
            partition = rng.choice(left)
            stop = min(brought[partition] + rng.randrange(1, 6000), ends[partition])
            reading.bring(partition, brought[partition], stop)
            brought[partition] = stop
        taken = len(reading.take())
        assert taken <= 1000 + len(ends)
        found += taken
        done = [reading.starts["t", p] / ends[p] for p in ends]
        # a share is rounded up: of a small partition that may be much of it
        assert max(done) - min(done) < 0.1 + 30 / min(ends.values())
    assert not reading.order.holds


def test_a_partition_from_which_nothing_comes_is_not_waited_for_again() -> None:
    reading = Reading({0: 10_000, 1: 1}, 1000)
    reading.bring(0, 0, 5000)
    assert reading.polls_until_taken() > 250
    assert len(reading.take()) == 1000
    reading.bring(1, 0, 1)
    assert (1, 0) in reading.take()


def test_a_partition_that_was_silent_and_got_on_is_waited_for_again() -> None:
    reading = Reading({0: 10_000, 1: 10_000}, 1000)
    reading.bring(0, 0, 5000)
    assert reading.polls_until_taken() > 50
    reading.starts["t", 1] = 5  # by a poll of few records
    assert reading.take() == []


def test_a_reader_that_was_kept_from_polling_has_not_waited() -> None:
    """As while the driver or a slot is stopped: what the others have comes with the next polls."""
    reading = Reading({0: 10_000, 1: 10_000}, 1000)
    reading.bring(0, 0, 5000)
    assert reading.take() == []
    reading.now_s += 70.0
    assert reading.take() == []
    reading.bring(1, 0, 5000)
    assert len(reading.take()) == 1000


def test_what_is_less_than_a_piece_comes_at_once_or_soon() -> None:
    reading = Reading({0: 100, 1: 100}, 1000)
    reading.bring(0, 0, 100)
    assert reading.take() == []
    reading.bring(1, 0, 100)
    assert len(reading.take()) == 200
    reading.no_more["t", 0] = reading.no_more["t", 1] = 100
    reading.ends["t", 0] = 150
    reading.ends["t", 1] = 150
    reading.bring(0, 100, 150)
    assert 1 < reading.polls_until_taken() < 10
    assert reading.starts["t", 0] == 150


@pytest.mark.parametrize("most", [50, 1000])
def test_records_that_are_known_are_waited_for_however_few_they_are(most: int) -> None:
    """Ten records may be an hour of event time: past it the watermark makes the others late."""
    reading = Reading({0: 100, 1: 10}, most)
    reading.bring(0, 0, 100)
    for _ in range(200):
        reading.now_s += 0.02
        assert reading.take() == []
    reading.bring(1, 0, 10)
    assert len(reading.take()) >= min(most, 110)


def test_a_partition_with_a_transaction_that_is_open_is_waited_for_less() -> None:
    reading = Reading({0: 10_000, 1: 10_000}, 1000)
    reading.bring(0, 0, 5000)
    reading.bring(1, 0, 20)
    reading.no_more["t", 1] = 20
    assert 90 < reading.polls_until_taken() < 110


def test_records_beyond_the_known_end_come_too() -> None:
    reading = Reading({0: 0}, 1000)
    reading.bring(0, 0, 80)
    assert len(reading.take()) == 80
    reading.bring(0, 200, 210)  # behind a gap
    assert len(reading.take()) == 10


@pytest.mark.parametrize("gap", [5_000, 900_000])
def test_offsets_without_records_keep_nothing_back(gap: int) -> None:
    """As retention, compaction and transactions that were given up leave them: wider than a share."""
    reading = Reading({0: 1_000_000, 1: 1_000_000}, 1000)
    for partition in (0, 1):
        reading.bring(partition, 0, 10)
        reading.bring(partition, gap, gap + 5000)
    found = 0
    while found < 8000:
        reading.now_s += 0.02
        taken = len(reading.take())
        assert taken, "there are records of all partitions"
        found += taken
