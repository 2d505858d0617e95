"""How a slot's quota is shared among the key groups that wait."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.quota import fair_shares

queues = st.lists(st.integers(1, 50), min_size=1, max_size=20)


@given(counts=queues, data=st.data())
def test_shares_are_fair(counts: list[int], data: st.DataObject) -> None:
    quota = data.draw(st.integers(0, sum(counts) - 1))
    shares = fair_shares(np.array(counts), quota)
    assert shares.sum() == quota
    assert (shares <= counts).all()
    unfinished = shares[shares < counts]
    # whoever still waits got as much as anybody, but for what could not be divided
    assert shares.max() <= unfinished.min() + 1


@given(counts=queues)
def test_a_small_queue_does_not_wait_for_a_hot_one(counts: list[int]) -> None:
    hot = [*counts, 10_000]
    shares = fair_shares(np.array(hot), 51 * len(hot))
    assert (shares[:-1] == counts).all()


def test_no_queue_starves_where_there_are_fewer_records_than_queues() -> None:
    counts, seen = np.full(8, 5), np.zeros(8, dtype=np.int64)
    for turn in range(4):
        seen += fair_shares(counts, 2, turn)
    assert seen.tolist() == [1] * 8


def test_the_odd_record_goes_to_the_first_and_moves_on_with_the_turn() -> None:
    counts = np.array([5, 5, 5])
    assert fair_shares(counts, 4).tolist() == [2, 1, 1]
    turns = [fair_shares(counts, 4, turn).tolist() for turn in range(4)]
    assert turns == [[2, 1, 1], [1, 2, 1], [1, 1, 2], [2, 1, 1]]
    assert fair_shares(np.array([1, 9, 9]), 6).tolist() == [1, 3, 2]
