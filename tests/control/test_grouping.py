"""Which replica takes which event: PSPS section IV-A."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.control.estimators.grouping import least_work, load_aware, round_robin, utilisation
from headgate_lab.sim.replicas.pool import shuffle


def per_event(
    events: int, load: list[float], step: float, cursor: int
) -> tuple[list[int], list[float], int]:
    """Algorithm 1 as printed, an event at a time; ``>= 1`` where the paper has ``= 1``."""
    load = list(load)
    chosen = []
    for _ in range(events):
        m = 0
        for j in range(len(load)):
            if load[j] < load[m]:
                m = j
        if load[m] >= 1.0:
            m = cursor
            cursor = (cursor + 1) % len(load)
        else:
            load[m] += step
        chosen.append(m)
    return chosen, load, cursor


@given(
    events=st.integers(0, 300),
    load=st.lists(st.floats(0.0, 1.0) | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8),
    step=st.floats(1e-4, 1.5) | st.sampled_from([0.0166, 0.1, 0.25, 0.5]),
    cursor=st.integers(0, 7),
)
def test_a_batch_goes_where_its_events_would_go_one_by_one(
    events: int, load: list[float], step: float, cursor: int
) -> None:
    cursor %= len(load)
    chosen, after, moved = per_event(events, load, step, cursor)
    batch = load_aware(events, np.array(load), step, cursor)
    assert batch.replica.tolist() == chosen
    assert batch.load.tolist() == after
    assert batch.cursor == moved


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    load=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5),
    step=st.floats(0.005, 0.2),
)
def test_several_batches_go_where_one_would(
    sizes: list[int], load: list[float], step: float
) -> None:
    whole = load_aware(sum(sizes), np.array(load), step)
    now, cursor, parts = np.array(load), 0, []
    for size in sizes:
        batch = load_aware(size, now, step, cursor)
        now, cursor = batch.load, batch.cursor
        parts += batch.replica.tolist()
    assert parts == whole.replica.tolist()


def test_a_new_replica_takes_events_until_it_is_as_loaded_as_the_others() -> None:
    batch = load_aware(6, np.array([0.4, 0.0]), 0.1)
    assert batch.replica.tolist() == [1, 1, 1, 1, 0, 1]


def test_equal_loads_are_served_in_turn() -> None:
    assert load_aware(6, np.zeros(3), 0.1).replica.tolist() == [0, 1, 2, 0, 1, 2]


def test_round_robin_starts_once_every_load_is_at_least_one() -> None:
    #  et = 16.6 ms, td = 1 s: 60 steps make 0.996, 61 make 1.0126; no load is ever exactly 1. The
    #  361st event is the first to push one over; all six are over after the 366th.
    batch = load_aware(361, np.zeros(6), 0.0166)
    assert batch.load.max() > 1.0 > batch.load.min()
    batch = load_aware(366, np.zeros(6), 0.0166)
    assert batch.load.min() > 1.0
    assert batch.cursor == 0
    more = load_aware(8, batch.load, 0.0166, batch.cursor)
    assert more.replica.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert (more.cursor, more.load.tolist()) == (2, batch.load.tolist())


def test_load_starts_each_interval_from_what_was_processed_in_the_last() -> None:
    used = utilisation(np.array([0.0, 30.0, 500.0]), event_s=0.0166, duration_s=1.0)
    assert used.tolist() == pytest.approx([0.0, 0.498, 1.0])


def test_round_robin_goes_on_where_it_stopped() -> None:
    first = round_robin(4, 3)
    assert first.replica.tolist() == [0, 1, 2, 0]
    assert round_robin(2, 3, first.cursor).replica.tolist() == [1, 2]


def test_shuffle_spreads_events_at_random_and_evenly_in_the_mean() -> None:
    taken = np.bincount(shuffle(8000, 4, np.random.default_rng(7)).replica, minlength=4)
    assert taken.sum() == 8000
    assert (abs(taken - 2000) < 200).all()
    assert len(set(taken.tolist())) > 1


def one_by_one(events: int, work: list[float], each: list[float]) -> list[int]:
    """Each event to the least work, an event at a time."""
    taken, chosen = [0] * len(work), []
    for _ in range(events):
        now = [w + n * e for w, n, e in zip(work, taken, each, strict=True)]
        chosen.append(now.index(min(now)))
        taken[chosen[-1]] += 1
    return chosen


@given(
    events=st.integers(0, 300),
    replicas=st.lists(
        st.tuples(st.floats(0.0, 50.0) | st.just(0.0), st.floats(1e-3, 2.0) | st.just(0.1)),
        min_size=1,
        max_size=8,
    ),
)
def test_a_batch_goes_to_the_least_work_as_its_events_would_one_by_one(
    events: int, replicas: list[tuple[float, float]]
) -> None:
    work, each = [w for w, _ in replicas], [e for _, e in replicas]
    batch = least_work(events, np.array(work), np.array(each))
    assert batch.replica.tolist() == one_by_one(events, work, each)


def test_a_slow_replica_gets_as_much_less_as_it_is_slower() -> None:
    batch = least_work(300, np.zeros(2), np.array([0.1, 0.2]))
    assert np.bincount(batch.replica).tolist() == [200, 100]
