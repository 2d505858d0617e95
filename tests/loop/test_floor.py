"""The floor is what a nearly idle job cannot go below."""

from __future__ import annotations

from headgate.loop.batch_floor import BatchFloor
from headgate.loop.floor import Floor


def test_the_floor_is_unknown_before_an_idle_cycle() -> None:
    floor = Floor()
    floor.add(0.2, utilisation=0.9)
    assert floor.value_s == 0.0


def test_the_floor_is_a_low_quantile_of_idle_cycles() -> None:
    floor = Floor()
    for hundredths in range(40, 60):
        floor.add(hundredths / 100, utilisation=0.1)
    floor.add(0.01, utilisation=0.9)
    assert floor.value_s == 0.42


def test_one_lucky_cycle_is_not_the_floor() -> None:
    floor = Floor()
    for latency_s in [0.4] * 20 + [0.0]:
        floor.add(latency_s, utilisation=0.1)
    assert floor.value_s == 0.4


def test_a_slower_engine_has_a_new_floor_after_a_while() -> None:
    floor = Floor()
    for latency_s in [0.4] * 200 + [0.8] * 128:
        floor.add(latency_s, utilisation=0.1)
    assert floor.value_s == 0.8


def test_a_cycle_whose_utilisation_is_not_known_does_not_count() -> None:
    floor = Floor()
    floor.add(0.2, utilisation=float("nan"))
    assert floor.value_s == 0.0


def test_the_floor_is_not_learnt_while_records_wait() -> None:
    """Slots at a fixed rate are hardly busy, and their queue grows: 5.93 s became the floor of that."""
    floor = Floor()
    for second in range(200):
        late_s = max(0.0, 0.1 * (second - 40))
        floor.add(0.4 + late_s, utilisation=0.1, waiting_s=late_s)
    assert floor.value_s < 1.0


def test_a_floor_from_what_batches_take_beside_slots_is_not_raised_by_what_waits() -> None:
    floor = BatchFloor()
    started_ms = 0.0
    for step in range(100):
        started_ms += 400.0 if step < 12 else 4000.0
        floor.add(started_ms, 5.0, busy_s=0.2, waiting=step >= 12)
    # half a period on average, and the batch: nothing of the 4 s
    assert floor.value_s <= 1.5 * 0.4


def test_nothing_is_learnt_while_more_than_a_batch_waits() -> None:
    """A job that starts with 160 s of input reads in long batches: 202 s became the floor of that."""
    floor = BatchFloor()
    for step in range(30):
        floor.add(135e3 * step, 200.0, busy_s=1.0, waiting=True, behind=True)
    assert floor.value_s == 0.0
    start_ms = 135e3 * 30
    for step in range(30):
        floor.add(start_ms + 500.0 * step, 0.6, busy_s=0.05, waiting=False)
    assert floor.value_s == 0.6


def test_records_older_than_two_batches_have_waited_though_nobody_counts_them() -> None:
    """A source that is read up to a limit does not always say what it holds."""
    floor, of_operator = BatchFloor(), Floor()
    for step in range(30):
        floor.add(500.0 * step, 160.0 - step, busy_s=0.05, waiting=False)
        of_operator.add(160.0 - step, utilisation=0.1, waiting_s=160.0, period_s=0.5)
    # what batches take beside slots is known all the same
    assert floor.value_s <= 1.5 * 0.5
    assert of_operator.value_s == 0.0
