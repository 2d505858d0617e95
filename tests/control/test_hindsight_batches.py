"""Rules that are judged in batches: what a slot more brings, and what it does not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from control_views import view

from headgate.control.batch_times import BatchTimes, TaskLog
from headgate.control.slots.following import FollowsRules
from headgate.control.slots.hindsight.batches import Cycle, VirtualBatches
from headgate.control.slots.hindsight.cost import RecordCost
from headgate.control.slots.hindsight.rules import Rules

GROUPS = 8
CYCLE_S = 1.0


def times(tasks: np.ndarray, **given: float) -> BatchTimes:
    fields = {"before_s": 0.15, "record_s": 0.0, "task_s": 0.02, "after_s": 0.07} | given
    return BatchTimes(
        budget_s=fields.pop("budget_s", math.inf),
        cores=int(fields.pop("cores", 64)),
        tasks=tasks,
        tasks_seen=len(tasks),
        **fields,
    )


def late(slots: int, batch: BatchTimes, records: float = 10.0, cycles: int = 60) -> float:
    """Return the share of groups' time that is late within 1 s, with so many slots all the time."""
    cost = RecordCost()
    cost.add(CYCLE_S, view([1.0] * GROUPS, batch=batch))
    worlds, held = VirtualBatches(1, GROUPS), np.full(1, slots, dtype=np.int64)
    packing = np.array([np.arange(GROUPS) * max(n, 1) // GROUPS for n in range(GROUPS + 1)])
    missed = 0.0
    for _ in range(cycles):
        cycle = Cycle(
            CYCLE_S, 1.0, np.arange(GROUPS), np.full(GROUPS, records), np.ones(GROUPS),
            np.full(1, float(slots)), np.full(1, float(slots)), 0.0, GROUPS, packing,
        )  # fmt: skip
        found, changed = worlds.play(cycle, batch, cost, 1.0, held, np.zeros(1))
        missed += float(found[0])
        assert changed[0] == 0.0
    return missed / (cycles * GROUPS)


def same(each_s: float) -> np.ndarray:
    return np.tile([10.0, each_s], (40, 1))


def test_batches_of_slots_that_keep_up_are_in_time() -> None:
    # 80 records of 10 ms a second are 0.8 slots: one has batches of 1.2 s, two have 0.4 s
    assert late(2, times(same(0.01))) == 0.0
    assert late(1, times(same(0.01))) > 0.5


def test_no_slot_more_helps_where_the_fixed_part_is_the_batch() -> None:
    slow = times(same(0.01), before_s=1.0)
    assert late(2, slow) == late(8, slow) == 1.0


def test_few_cores_share_the_work_of_all_slots() -> None:
    assert late(4, times(same(0.02))) == 0.0
    assert late(4, times(same(0.02), cores=1)) > 0.5


def test_one_dear_record_makes_all_groups_late_and_not_only_its_own() -> None:
    """A batch ends when its slowest slot has: 3 s of one record are waited for by everybody."""
    tasks = same(0.01)
    tasks[7, 1] += 0.3  # 3 s in a task of ten records, 1 of 400 records
    few = late(8, times(tasks))
    assert few > 0.1
    # eight groups, each its own slot: alone it would be an eighth of that
    assert late(8, times(same(0.01))) == 0.0


def test_a_slot_whose_task_was_dear_serves_less_of_what_waits_next() -> None:
    """Its quota is in records, by how long those of its last task took."""
    tasks = same(0.01)
    tasks[7, 1] += 0.06
    assert late(4, times(tasks)) == 0.0
    assert late(4, times(same(0.01), budget_s=0.1)) == 0.0
    assert late(4, times(tasks, budget_s=0.1)) > 0.0


def test_what_tasks_took_is_dealt_out_whole() -> None:
    tasks = np.array([[10.0, 0.01], [20.0, 0.05], [5.0, 0.002], [8.0, 0.01]])
    cost = RecordCost()
    cost.add(1.0, view([1.0] * GROUPS, batch=times(tasks)))
    total, dealt = 0.0, 0.0
    for _ in range(200):
        counts = np.array([1.0, 4.0, 2.0, 7.0])
        usual_s, more_s = cost.dealt(counts)
        assert (usual_s > 0.0).all()
        assert (more_s >= 0.0).all()
        total += float((counts * usual_s + more_s).sum())
        dealt += counts.sum()
    mean_s = (tasks[:, 0] * tasks[:, 1]).sum() / tasks[:, 0].sum()
    assert total / dealt == pytest.approx(mean_s, rel=0.02)


def test_the_dearest_of_ten_tasks_says_what_dear_records_add() -> None:
    cost = RecordCost()
    tasks = same(0.01)
    tasks[:8, 1] += 0.1
    cost.add(1.0, view([1.0] * GROUPS, batch=times(tasks)))
    assert cost.dear_s == pytest.approx(10 * 0.08, rel=0.05)


def test_longer_fixed_times_leave_more_to_spare() -> None:
    rules = Rules(8, 1.0, 1800.0, 0.1)
    spare = []
    for fixed_s in (0.01, 0.1, 0.2, 2.0):
        rules.expect_batches(fixed_s, 0.0, 1.0)
        spare.append(rules.spare)
    assert spare == sorted(spare)
    assert spare[0] == 0.1
    assert spare[2] == pytest.approx(1.0 / 0.7 - 1.0)


def test_a_slot_serves_for_its_budget_of_each_batch() -> None:
    batch = times(same(0.01))
    assert times(same(0.01), budget_s=0.8).stretch(1.0) == pytest.approx(1.04 / 0.8)
    # without one: for what is left of two thirds of the bound
    assert batch.stretch(1.0) == pytest.approx((2 / 3) / (2 / 3 - 0.24))
    assert batch.stretch(0.1) > 10.0


def test_the_newest_tasks_are_kept_in_order() -> None:
    log = TaskLog()
    for number in range(1, 301):
        log.add(1.0, float(number))
    log.add(0.0, 5.0)
    assert log.seen == 300
    assert log.newest()[:, 1].tolist() == [float(n) for n in range(45, 301)]


def slots_for_the_next_batch(
    batch_s: float, budget_s: float = math.inf, waiting: float = 0.0
) -> int:
    """Return the slots after a calm minute and one batch of 2.5 slots of work that took so long."""
    # 8 groups with 31.25 records/s of 10 ms; every record of the last batch came while it ran
    batch = times(same(0.01), budget_s=budget_s)
    law, arrived = None, np.zeros(GROUPS)
    for time_s, elapsed_s in [*((1.0 * n, 1.0) for n in range(1, 61)), (60.0 + batch_s, batch_s)]:
        arrived = arrived + 31.25 * elapsed_s
        now = view([31.25] * GROUPS, slots=4, batch=batch, bound_s=10.0, arrived=arrived,
                   backlog=waiting * (elapsed_s == batch_s))  # fmt: skip
        law = law or FollowsRules(now, 0.1)
        wanted = law.decide(time_s, now)
    return 4 if wanted is None else wanted.change.assignment.slots


def test_what_came_during_a_long_batch_is_served_within_a_third_of_the_bound() -> None:
    """Its records have no counter yet: 5.5 s of 2.5 slots want 5 slots to be served in 3.1 s."""
    assert slots_for_the_next_batch(1.0) == 4
    assert slots_for_the_next_batch(5.5) == 5
    assert slots_for_the_next_batch(9.0) == 8


def test_records_that_a_budget_leaves_are_served_in_the_next_batch_too() -> None:
    # 8 x 250 records of 10 ms are 20 s; four slots with 3 s each leave 8 s, besides 7.5 that come
    assert slots_for_the_next_batch(3.0, budget_s=3.0, waiting=250.0) == 6
    assert slots_for_the_next_batch(3.0, budget_s=6.0, waiting=250.0) == 4


@pytest.mark.parametrize(("floor_s", "wanted"), [(0.6, 0), (0.04, 6)])
def test_below_the_floor_what_waits_adds_no_slots(floor_s: float, wanted: int) -> None:
    batch = times(same(0.00004), before_s=0.4)
    options = {"bound_s": 0.05, "floor_s": floor_s, "slots_max": 4, "batch": batch}
    first = view([1.0] * GROUPS, 1250.0, slots=2, **options)
    law = FollowsRules(first, 0.1)
    law.decide(0.9, first)
    waiting = view([1.0] * GROUPS, 1250.0, slots=2, backlog=5.0, **options)
    assert law._room(waiting, 1) == wanted
