"""What every tuple buffer promises: STRETCH's table 2, in the heap and in shared memory alike."""

from __future__ import annotations

import threading
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.core.errors import ProtocolError
from headgate_lab.tuple_buffer.heap import HeapTupleBuffer
from headgate_lab.tuple_buffer.layout import BufferShape
from headgate_lab.tuple_buffer.port import Entry, TupleBuffer
from headgate_lab.tuple_buffer.shared import SharedTupleBuffer

GROUPS = 4


@pytest.fixture(params=["heap", "shared"])
def make(request, tmp_path):
    tmp_path.chmod(0o700)
    made: list[SharedTupleBuffer] = []

    def build(sources=(0,), readers=(0,), capacity=100) -> TupleBuffer:
        if request.param == "heap":
            return HeapTupleBuffer(sources, readers, capacity)
        shape = BufferShape((("value", "i8"),), capacity, 8, 8, GROUPS)
        made.append(SharedTupleBuffer.create(tmp_path / f"b{len(made)}", shape, sources, readers))
        return made[-1]

    yield build
    for buffer in made:
        buffer.unlink()
        buffer.close()


def add(buffer: TupleBuffer, source: int, *times: int) -> None:
    for time in times:
        assert buffer.add(Entry(time, (time,)), source)


def got(buffer: TupleBuffer, reader: int = 0) -> list[tuple[int, int]]:
    """Time and source of all that a reader can get."""
    found = []
    while (entry := buffer.get(reader)) is not None:
        found.append((entry.time, entry.source))
    return found


def times(buffer: TupleBuffer, reader: int = 0) -> list[int]:
    return [time for time, _ in got(buffer, reader)]


# add and get


def test_nothing_is_ready_until_every_source_has_added_something(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1, 2)
    assert got(buffer) == []
    add(buffer, 1, 3)
    assert got(buffer) == [(1, 0), (2, 0)]


def test_records_come_in_time_order_up_to_the_least_of_the_latest_times(make):
    buffer = make(sources=(0, 1, 2))
    add(buffer, 0, 1, 4, 9)
    add(buffer, 2, 3, 5)
    add(buffer, 1, 2, 7)
    assert got(buffer) == [(1, 0), (2, 1), (3, 2), (4, 0), (5, 2)]


def test_equal_times_come_by_source_and_wait_for_the_lower_ones(make):
    buffer = make(sources=(0, 1))
    add(buffer, 1, 5)
    add(buffer, 0, 5)
    # Source 0 may add another record at 5, which comes before source 1's.
    assert got(buffer) == [(5, 0)]
    add(buffer, 0, 5, 6)
    assert got(buffer) == [(5, 0), (5, 1)]


def test_a_single_sources_record_is_ready_at_once(make):
    buffer = make()
    add(buffer, 0, 5)
    assert got(buffer) == [(5, 0)]


def test_each_reader_gets_each_record_once_with_its_values(make):
    buffer = make(readers=(0, 1))
    buffer.add(Entry(1, (10,)), 0)
    for reader in (0, 1):
        entry = buffer.get(reader)
        assert (entry.time, entry.values, entry.source, entry.control) == (1, (10,), 0, None)
        assert buffer.get(reader) is None


def test_peek_shows_what_get_returns_next(make):
    buffer = make()
    assert buffer.peek(0) is None
    add(buffer, 0, 1, 2)
    assert buffer.peek(0) == buffer.peek(0) == buffer.get(0)
    assert buffer.peek(0).time == 2


def test_a_reader_that_is_not_connected_gets_nothing(make):
    buffer = make()
    add(buffer, 0, 1)
    assert buffer.get(5) is None
    assert buffer.peek(5) is None


def test_a_record_before_the_sources_latest_is_refused(make):
    buffer = make()
    add(buffer, 0, 5, 5)
    with pytest.raises(ProtocolError, match="source 0 added a record at 4 after one at 5"):
        buffer.add(Entry(4, (4,)), 0)


def test_a_record_of_somebody_who_is_no_source_is_refused(make):
    buffer = make()
    with pytest.raises(ProtocolError, match="3 is no source of this tuple buffer"):
        buffer.add(Entry(4, (4,)), 3)


def test_a_full_source_is_told_so_and_nothing_is_lost(make):
    buffer = make(readers=(0, 1), capacity=3)
    add(buffer, 0, 1, 2, 3)
    assert buffer.add(Entry(4, (4,)), 0) is False
    assert buffer.advance(4, 0) is False
    assert times(buffer, 0) == [1, 2, 3]
    assert buffer.add(Entry(4, (4,)), 0) is False, "reader 1 has not got them"
    assert buffer.get(1).time == 1
    add(buffer, 0, 4)
    assert times(buffer, 1) == [2, 3, 4]


def test_a_full_source_does_not_keep_another_from_adding(make):
    # Else two sources could wait for each other for ever.
    buffer = make(sources=(0, 1), capacity=2)
    add(buffer, 0, 1, 2)
    assert buffer.add(Entry(3, (3,)), 0) is False
    add(buffer, 1, 5)
    assert times(buffer) == [1, 2]


def test_records_go_round_the_ring_many_times(make):
    buffer = make(capacity=5)
    for start in range(0, 100, 5):
        add(buffer, 0, *range(start, start + 5))
        assert times(buffer) == list(range(start, start + 5))


# advance: dummy records


def test_a_silent_source_that_advances_lets_others_records_go(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1, 2, 3)
    assert buffer.advance(3, 1)
    assert times(buffer) == [1, 2, 3], "and the dummy itself is not returned"


def test_an_advance_that_goes_back_changes_nothing(make):
    buffer = make()
    add(buffer, 0, 5)
    assert buffer.advance(5, 0)
    assert buffer.advance(3, 0)
    add(buffer, 0, 5)
    assert times(buffer) == [5, 5]


def test_after_an_advance_an_earlier_record_is_refused(make):
    buffer = make()
    assert buffer.advance(10, 0)
    with pytest.raises(ProtocolError, match="at 9 after one at 10"):
        buffer.add(Entry(9, (9,)), 0)


# Readers come and go


def test_new_readers_get_what_the_caller_gets_next(make):
    buffer = make(readers=(0, 1))
    add(buffer, 0, 1, 2, 3)
    assert buffer.get(0).time == 1
    assert buffer.add_readers([2, 3], by=0) is True
    for reader in (0, 2, 3):
        assert times(buffer, reader) == [2, 3]
    assert times(buffer, 1) == [1, 2, 3]


def test_of_two_callers_one_adds_the_readers(make):
    buffer = make(readers=(0, 1))
    assert [buffer.add_readers([2], by=0), buffer.add_readers([2], by=1)] == [True, False]


def test_adding_readers_of_whom_some_are_there_adds_the_others(make):
    buffer = make(readers=(0, 1))
    assert buffer.add_readers([1, 2], by=0) is True
    add(buffer, 0, 1)
    assert times(buffer, 1) == times(buffer, 2) == [1]


def test_removed_readers_get_nothing_and_hold_nobody_up(make):
    buffer = make(readers=(0, 1), capacity=2)
    add(buffer, 0, 1, 2)
    assert times(buffer, 0) == [1, 2]
    assert buffer.remove_readers([1], by=0) is True
    assert buffer.remove_readers([1], by=0) is False
    assert buffer.get(1) is None
    add(buffer, 0, 3, 4)


def test_a_removed_reader_comes_back_where_the_caller_is(make):
    buffer = make(readers=(0, 1))
    add(buffer, 0, 1, 2, 3)
    buffer.remove_readers([1], by=0)
    assert times(buffer, 0) == [1, 2, 3]
    assert buffer.add_readers([1], by=0)
    add(buffer, 0, 4)
    assert times(buffer, 1) == [4]


def test_the_last_reader_cannot_be_removed(make):
    buffer = make(readers=(0, 1))
    with pytest.raises(ProtocolError, match="last readers of a tuple buffer"):
        buffer.remove_readers([0, 1], by=0)
    add(buffer, 0, 1)
    assert times(buffer, 0) == times(buffer, 1) == [1]


def test_a_caller_that_is_not_connected_changes_nothing(make):
    buffer = make(sources=(0, 1), readers=(0, 1))
    assert buffer.add_readers([2], by=3) is False
    assert buffer.remove_readers([1], by=3) is False
    assert buffer.add_sources([2], by=3) is False
    assert buffer.remove_sources([1], by=3) is False
    assert buffer.get(2) is None
    add(buffer, 1, 1)


def test_a_caller_may_remove_itself_among_others(make):
    buffer = make(readers=(0, 1, 2))
    assert buffer.remove_readers([0, 1], by=1) is True
    assert buffer.remove_readers([0, 1], by=0) is False


# Sources come and go


def test_a_new_source_starts_at_the_callers_latest_time_and_is_waited_for(make):
    buffer = make(sources=(0,))
    add(buffer, 0, 5)
    assert buffer.add_sources([1, 2], by=0) is True
    assert buffer.add_sources([1, 2], by=0) is False
    add(buffer, 0, 6)
    assert times(buffer) == [5], "6 waits for sources 1 and 2, whose dummies stand at 5"
    add(buffer, 1, 5, 9)
    add(buffer, 2, 8)
    assert got(buffer) == [(5, 1), (6, 0)]


def test_a_new_source_cannot_add_before_the_callers_latest_time(make):
    buffer = make(sources=(0,))
    add(buffer, 0, 5)
    buffer.add_sources([1], by=0)
    with pytest.raises(ProtocolError, match="at 4 after one at 5"):
        buffer.add(Entry(4, (4,)), 1)


def test_a_source_that_joined_later_is_behind_at_equal_times(make):
    # Even one with a lower number: a reader may be past the others' records of that time.
    buffer = make(sources=(3,))
    add(buffer, 3, 5)
    assert got(buffer) == [(5, 3)]
    buffer.add_sources([1], by=3)
    add(buffer, 1, 5, 6)
    add(buffer, 3, 5, 6)
    assert got(buffer) == [(5, 3), (5, 1), (6, 3)]


def test_what_a_leaving_source_added_becomes_ready_without_it(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1, 2, 3)
    add(buffer, 1, 1, 5)
    assert times(buffer) == [1, 1, 2, 3]
    assert buffer.remove_sources([0], by=1) is True
    assert buffer.remove_sources([0], by=1) is False
    assert times(buffer) == [5], "and the flush itself is not returned"
    with pytest.raises(ProtocolError, match="0 is no source"):
        buffer.add(Entry(9, (9,)), 0)


def test_a_source_that_never_added_holds_nobody_up_once_it_is_removed(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1)
    assert got(buffer) == []
    buffer.remove_sources([1], by=0)
    assert times(buffer) == [1]


def test_a_source_comes_back_while_what_it_had_added_is_still_unread(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1, 2)
    add(buffer, 1, 1, 2)
    buffer.remove_sources([1], by=0)
    add(buffer, 0, 4)
    assert buffer.add_sources([1], by=0) is True
    add(buffer, 1, 4, 7)
    add(buffer, 0, 6)
    assert got(buffer) == [(1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (6, 0)]


def test_a_source_that_comes_back_goes_on_where_it_had_left_off(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1)
    add(buffer, 1, 1, 9)
    buffer.remove_sources([1], by=0)
    assert buffer.add_sources([1], by=0)
    with pytest.raises(ProtocolError, match="at 8 after one at 9"):
        buffer.add(Entry(8, (8,)), 1)
    add(buffer, 0, 8)
    add(buffer, 1, 9)
    assert got(buffer) == [(1, 0), (1, 1), (8, 0)]


# Control queues


def test_control_records_come_before_the_sources_next_record_with_its_time(make):
    buffer = make(sources=(0, 1))
    add(buffer, 0, 1)
    add(buffer, 1, 2)
    assert buffer.reconfigure([0, 2], [0, 2, 2, 0]) == 1
    assert buffer.add_stretch(Entry(7, (7,)), 0)
    assert buffer.add_stretch(Entry(9, (9,)), 1)
    assert [buffer.get(0).time for _ in range(2)] == [1, 2]
    entry = buffer.get(0)
    assert (entry.time, entry.control.number, entry.control.instances) == (7, 1, {0, 2})
    assert entry.control.slot_of == (0, 2, 2, 0)
    assert buffer.get(0).values == (7,)
    assert buffer.get(0) is None


def test_every_source_puts_every_request_once_and_in_order(make):
    buffer = make(sources=(0,))
    buffer.reconfigure([0], [0] * GROUPS)
    buffer.reconfigure([1], [1] * GROUPS)
    for time in (1, 2):
        assert buffer.add_stretch(Entry(time, (time,)), 0)
    entries = [buffer.get(0) for _ in range(4)]
    assert [e.control and e.control.number for e in entries] == [1, 2, None, None]


def test_control_record_and_record_are_added_together_or_not_at_all(make):
    buffer = make(capacity=2)
    add(buffer, 0, 1)
    buffer.reconfigure([0], [0] * GROUPS)
    assert buffer.add_stretch(Entry(2, (2,)), 0) is False
    assert times(buffer) == [1]
    assert buffer.add_stretch(Entry(2, (2,)), 0)
    assert times(buffer) == [2, 2]


# Any interleaving


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.randoms(use_true_random=False))
def test_all_readers_see_the_same_order_whatever_the_interleaving(make, random: Random):
    streams = [sorted(random.choices(range(8), k=6)) for _ in range(3)]
    orders = []
    for _ in range(2):
        buffer = make(sources=(0, 1, 2), readers=(0, 1), capacity=7)
        left = [list(s) for s in streams]
        seen: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        while any(left):
            source = random.choice([s for s in range(3) if left[s]])
            add(buffer, source, left[source].pop(0))
            for reader in (0, 1):
                if random.random() < 0.3:
                    seen[reader] += got(buffer, reader)
        for source in range(2):
            buffer.remove_sources([source], by=2)
        assert buffer.advance(100, 2)
        for reader in (0, 1):
            seen[reader] += got(buffer, reader)
        orders += [seen[0], seen[1]]
    expected = sorted((t, s) for s, stream in enumerate(streams) for t in stream)
    assert orders == [expected] * 4


def test_of_many_concurrent_callers_exactly_one_wins(make):
    buffer = make(sources=(0, 1, 2, 3), readers=(0, 1, 2, 3))
    start = threading.Barrier(4)
    won: dict[str, list[bool]] = {"R": [], "r": [], "S": [], "s": []}

    def call(who: int) -> None:
        for name, change in (
            ("R", lambda: buffer.add_readers([5, 6], by=who)),
            ("r", lambda: buffer.remove_readers([5, 6], by=who)),
            ("S", lambda: buffer.add_sources([5, 6], by=who)),
            ("s", lambda: buffer.remove_sources([5, 6], by=who)),
        ):
            start.wait()
            won[name].append(change())
            start.wait()

    threads = [threading.Thread(target=call, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in won.values():
        assert sorted(results) == [False, False, False, True]


@pytest.mark.parametrize("seed", range(6))
def test_the_shared_buffer_answers_every_call_as_the_one_in_the_heap(tmp_path, seed):
    tmp_path.chmod(0o700)
    random = Random(seed)
    shape = BufferShape((("value", "i8"),), 6, 4, 4, GROUPS)
    heap = HeapTupleBuffer([0, 1], [0, 1], 6)
    shared = SharedTupleBuffer.create(tmp_path / "b", shape, [0, 1], [0, 1])
    latest = delivered = requests = 0
    for _ in range(600):
        who, others = random.randrange(4), random.sample(range(4), random.randrange(1, 3))
        latest += random.choice([0, 0, 1, 2])
        entry = Entry(latest, (random.randrange(100),))
        name, arguments = random.choice(
            [
                *[("add", (entry, who)), ("add_stretch", (entry, who)), ("advance", (latest, who))]
                * 2,
                *[("get", (who,)), ("peek", (who,))] * 8,
                ("add_readers", (others, who)),
                ("remove_readers", (others, who)),
                ("add_sources", (others, who)),
                (
                    "remove_sources",
                    ([s for s in others if s], who),
                ),  # else nobody is left to add one
                # Shared memory keeps eight, and then refuses; the heap never does.
                ("reconfigure", ([who], [who] * GROUPS)) if requests < 8 else ("get", (who,)),
            ]
        )
        answers = []
        for buffer in (heap, shared):
            try:
                answers.append(getattr(buffer, name)(*arguments))
            except ProtocolError as error:
                answers.append(str(error))
        requests += name == "reconfigure"
        assert answers[0] == answers[1], (name, arguments)
        delivered += isinstance(answers[0], Entry)
    assert delivered > 20
