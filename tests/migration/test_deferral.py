from __future__ import annotations

import json
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from headgate_lab.testing.deferral import Deferral, Entry

WATERMARK = -1


def queue(*groups: int) -> deque[Entry[int]]:
    """Return an input of records numbered from 0; WATERMARK is one."""
    entries = (Entry(None if g == WATERMARK else g, n) for n, g in enumerate(groups))
    return deque(entries)


def taken(deferral: Deferral[int], waiting: deque[Entry[int]], unready: set[int]) -> list[int]:
    found = []
    while (entry := deferral.take(waiting, unready)) is not None:
        found.append(entry.record)
    return found


def test_ready_groups_are_served_past_those_that_are_not() -> None:
    # input 1 2 1 2 W 2     group 1 is not ready
    # served  1   3         stops at W
    deferral, waiting = Deferral[int](200), queue(1, 2, 1, 2, WATERMARK, 2)
    assert taken(deferral, waiting, {1}) == [1, 3]
    assert [e.record for e in deferral.entries] == [0, 2]
    assert [e.record for e in waiting] == [4, 5]


def test_deferred_records_are_served_first_and_in_order_when_their_group_is_ready() -> None:
    deferral, waiting = Deferral[int](200), queue(1, 2, 1, WATERMARK, 1)
    taken(deferral, waiting, {1})
    assert taken(deferral, waiting, set()) == [0, 2, 3, 4]


def test_no_more_are_deferred_than_the_capacity() -> None:
    deferral, waiting = Deferral[int](2), queue(1, 1, 1, 2)
    assert taken(deferral, waiting, {1}) == []
    assert len(deferral.entries) == 2
    assert [e.record for e in waiting] == [2, 3]


def test_without_capacity_a_slot_with_an_unready_group_serves_nothing() -> None:
    deferral, waiting = Deferral[int](0), queue(2, 2)
    assert taken(deferral, waiting, {1}) == []
    assert taken(deferral, waiting, set()) == [0, 1]


def test_a_watermark_waits_for_an_unready_group_even_if_nothing_of_it_is_deferred() -> None:
    assert taken(Deferral(200), queue(WATERMARK), {1}) == []


def test_the_deferred_of_a_group_can_be_withdrawn_in_order() -> None:
    deferral, waiting = Deferral[int](200), queue(1, 3, 1)
    taken(deferral, waiting, {1, 3})
    assert [e.record for e in deferral.withdraw(1)] == [0, 2]
    assert [e.record for e in deferral.entries] == [1]


def test_what_is_deferred_survives_as_plain_data() -> None:
    deferral, waiting = Deferral[int](7), queue(1, 3, 1)
    taken(deferral, waiting, {1, 3})
    assert Deferral.from_dict(json.loads(json.dumps(deferral.to_dict()))) == deferral


@given(
    groups=st.lists(st.integers(WATERMARK, 4), max_size=40),
    turns=st.lists(st.sets(st.integers(0, 4)), max_size=5),
    capacity=st.integers(0, 6),
)
def test_order_within_a_group_and_around_a_watermark_never_changes(
    groups: list[int], turns: list[set[int]], capacity: int
) -> None:
    deferral, waiting = Deferral[int](capacity), queue(*groups)
    served = []
    for unready in [*turns, set()]:
        served += taken(deferral, waiting, unready)
        assert len(deferral.entries) <= capacity
    assert sorted(served) == list(range(len(groups)))
    for group in range(5):
        kept = [n for n in served if groups[n] in (group, WATERMARK)]
        assert kept == sorted(kept)
