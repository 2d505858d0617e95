"""What a record costs, against the truth: tasks are made of a known fixed cost and known records."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.control.estimators.task_cost import TaskCost, makespan_ms

BATCHES, WARM = 80, 12
"""Batches of a run, and those at its beginning that are not judged."""


def same(draw, records, mean_ms):
    return mean_ms * records


def rare(draw, records, mean_ms):
    """One record in a hundred costs a hundred times as much as the others."""
    dear = draw.binomial(records, 0.01)
    return mean_ms / 1.99 * (records - dear + 100 * dear)


def errors(
    *, slots=4, per_task=100, swing=0.3, fixed_ms=20.0, took_ms=same, drift=1.0, own=(), cold_ms=0.0
):
    """Relative errors of the cost of a record over twenty runs of four slots, 1 ms each in the mean.

    The load of each batch swings, tasks are 5 % off, and `own` multiplies what each slot's records cost.
    """
    found = []
    for seed in range(20):
        draw, cost = np.random.default_rng(seed), TaskCost()
        for batch in range(BATCHES):
            mean_ms = 1.0 + (drift - 1.0) * batch / BATCHES
            load = per_task * draw.lognormal(0.0, swing)
            tasks = []
            for slot in range(slots):
                mine_ms = mean_ms * (own[slot] if own else 1.0)
                records = int(draw.poisson(load))
                all_ms = fixed_ms + (took_ms(draw, records, mine_ms) if records else 0.0)
                cold = cold_ms if batch < 3 else 0.0
                tasks.append((slot, records, all_ms * draw.lognormal(0.0, 0.05) + cold))
            cost.add(tasks)
            if batch >= WARM:
                truth_ms = mean_ms * np.array(own or (1.0,) * slots)
                found += (cost.record_ms / truth_ms - 1.0).tolist()
    return np.array(found)


def median_and_p90(found):
    return np.quantile(np.abs(found), [0.5, 0.9])


@pytest.mark.parametrize(
    ("run", "median_max", "p90_max"),
    [
        # in brackets what a line through each slot's own tasks had: median and 90th percentile
        pytest.param({}, 0.02, 0.04, id="same"),  # (1.8 %, 4.7 %)
        pytest.param({"fixed_ms": 60.0}, 0.07, 0.12, id="fixed-60-ms"),  # (19 %, 26 %)
        pytest.param({"fixed_ms": 5.0}, 0.03, 0.05, id="fixed-5-ms"),  # (7.2 %, 11 %)
        pytest.param({"took_ms": rare}, 0.10, 0.25, id="rare"),  # (14 %, 33 %)
        pytest.param({"took_ms": rare, "per_task": 30}, 0.17, 0.45, id="few-rare"),  # (27 %, 61 %)
        pytest.param({"drift": 2.0}, 0.05, 0.11, id="drift"),  # (7.0 %, 12 %)
        pytest.param({"drift": 2.0, "took_ms": rare}, 0.11, 0.27, id="drift-rare"),  # (14 %, 34 %)
        pytest.param({"per_task": 5}, 0.05, 0.11, id="few-records"),  # (6.6 %, 16 %)
        pytest.param({"cold_ms": 500.0}, 0.03, 0.10, id="cold-start"),  # (3.1 %, 24 %)
        pytest.param({"own": (1, 2, 4, 0.5)}, 0.03, 0.09, id="own-costs"),  # (1.8 %, 4.7 %)
    ],
)
def test_the_cost_of_a_record_is_near_the_truth(run, median_max, p90_max):
    median, p90 = median_and_p90(errors(**run))
    assert (median <= median_max, p90 <= p90_max) == (True, True), (median, p90)


def test_what_a_record_costs_is_not_too_little_or_too_much_in_the_mean():
    for run in ({}, {"took_ms": rare}, {"fixed_ms": 5.0}):
        assert abs(errors(**run).mean()) < 0.05


def test_a_fixed_cost_that_no_task_tells_from_its_records_is_the_usual_one():
    cost = TaskCost()
    for _ in range(30):
        cost.add([(0, 100, 160.0)])  # 60 + 1 x 100, or 20 + 1.4 x 100
    assert (cost.fixed_ms, cost.record_ms[0]) == (pytest.approx(20.0), pytest.approx(1.4))


def test_the_slots_tell_the_fixed_cost_together():
    def after(slots):
        cost = TaskCost()
        for batch in range(20):
            loads = [(100, 150, 50, 200)[(batch // 7 + slot) % 4] for slot in range(4)][:slots]
            cost.add([(slot, n, 60.0 + n) for slot, n in enumerate(loads)])
        return cost.fixed_ms

    assert after(4) == pytest.approx(60.0, abs=5.0)
    assert abs(after(4) - 60.0) < abs(after(1) - 60.0)


def test_a_task_without_records_says_nothing_about_them():
    cost, other = TaskCost(), TaskCost()
    for records in (100, 300):
        cost.add([(0, records, 10.0 + records)])
        other.add([(0, records, 10.0 + records)])
        other.add([(0, 0, 1.0)])
    assert (other.fixed_ms, *other.record_ms) == (cost.fixed_ms, *cost.record_ms)


def test_nearly_empty_tasks_do_not_wash_out_what_full_ones_said():
    cost = TaskCost()
    cost.add([(0, 10_000, 120.0)])
    for batch in range(40):
        cost.add([(0, 5, (16.0, 20.0, 24.0, 20.0, 60.0)[batch % 5])])
    assert cost.record_ms[0] < 0.1  # and not 4, as five records in 20 ms would say


def test_a_new_slot_costs_what_the_others_do_until_it_has_served():
    cost = TaskCost()
    cost.widen(2)
    assert cost.record_ms.tolist() == [0.0, 0.0]
    for records in (100, 200, 300) * 3:
        cost.add([(0, records, 20.0 + records), (1, records, 20.0 + 3.0 * records)])
    cost.renumber((1, None))
    assert cost.record_ms == pytest.approx([3.0, 3.0], rel=0.05)
    cost.add([(1, 200, 120.0)])
    assert cost.record_ms[1] < 2.0


def test_differences_that_chance_explains_are_taken_for_chance():
    def apart(took_ms, own=()):
        draw, cost = np.random.default_rng(1), TaskCost()
        for _ in range(12):
            tasks = [(s, 50, 20 + took_ms(draw, 50, (own or (1, 1))[s])) for s in range(2)]
            cost.add(tasks)
        plain = cost._ratio[2] - cost.fixed_ms * cost._ratio[0]
        return np.ptp(cost.record_ms) / np.ptp(plain / cost._ratio[1])

    assert apart(rare) < 0.7
    assert apart(same, own=(1, 3)) > 0.95


def test_no_cost_is_below_zero():
    cost = TaskCost()
    for records, took_ms in ((1_000, 50.0), (2_000, 30.0), (3_000, 10.0)):
        cost.add([(0, records, took_ms)])
    assert cost.record_ms[0] > 0.0
    assert cost.fixed_ms >= 0.0


def test_tasks_take_turns_on_the_cores():
    # core 1: 40  40      core 2: 10 10 10 30
    assert makespan_ms([40.0, 10.0, 10.0, 10.0, 30.0, 40.0], 2) == 80.0
    assert makespan_ms([40.0, 10.0], 2) == 40.0
    assert makespan_ms([], 2) == 0.0
