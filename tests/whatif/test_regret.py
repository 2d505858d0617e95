"""Which changes were regretted: hand-made runs in which it is plain."""

from __future__ import annotations

import numpy as np
from sim_jobs import NAME, SETTINGS, Scripted, change_to

from headgate.control.decision import Change
from headgate.core.assignment import Assignment, spread
from headgate.whatif.model import OperatorModel, ServiceTime
from headgate.whatif.oracle import Load
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import RecordedArrivals
from headgate_lab.sim.regret import Regrets, regrets

GROUPS = 8
LENGTH_S = 60.0


def of(rate_at: list[float], slots: int, script: list[tuple[float, Change]]) -> Regrets:
    """Return the regrets of a run: records per second by ten seconds, 0.1 s of work each."""
    arrival_s = np.concatenate(
        [10.0 * i + np.arange(0.0, 10.0, 1.0 / rate) for i, rate in enumerate(rate_at)]
    )
    groups = np.arange(len(arrival_s)) % GROUPS
    demand_s = np.full(len(arrival_s), 0.1)
    load = Load(arrival_s, groups, demand_s, GROUPS, LENGTH_S)
    job = SimulatedJob(
        {NAME: OperatorModel(ServiceTime(1.0), key_groups=GROUPS, slots=slots)},
        {NAME: RecordedArrivals(arrival_s, groups, demand_s, GROUPS)},
    )
    result = Simulation(job, Scripted(script), SETTINGS, seed=1).run(LENGTH_S)
    return regrets(result, NAME, load)


def fewer(before: Assignment, slots: int) -> Change:
    return change_to(before, [g % slots for g in range(GROUPS)], list(range(slots)))


def more(before: Assignment, slots: int) -> Change:
    survivors = [n if n < before.slots else None for n in range(slots)]
    return change_to(before, [g % slots for g in range(GROUPS)], survivors)


def test_a_scale_in_that_is_followed_by_late_records_is_regretted() -> None:
    change = (20.0, fewer(spread(4, GROUPS), 1))
    assert of([20.0] * 6, 4, [change]) == Regrets(1, 1, 0, 0, 0, 0)
    assert of([5.0] * 6, 4, [change]) == Regrets(1, 0, 0, 0, 0, 0)


def test_slots_that_come_when_the_burst_is_over_come_too_late() -> None:
    change = (20.0, more(spread(2, GROUPS), 4))
    burst = of([15.0, 15.0, 2.0, 2.0, 2.0, 2.0], 2, [change])
    rise = of([15.0, 15.0, 30.0, 30.0, 30.0, 30.0], 2, [change])
    assert burst == Regrets(0, 0, 1, 1, 0, 0)
    assert rise == Regrets(0, 0, 1, 0, 0, 0)


def test_a_move_after_which_its_groups_are_late_made_things_worse() -> None:
    heaped = change_to(spread(2, GROUPS), [0] * 7 + [1], [0, 1])
    assert of([15.0] * 6, 2, [(20.0, heaped)]) == Regrets(0, 0, 0, 0, 1, 1)
    swapped = change_to(spread(2, GROUPS), [1, 1, 1, 1, 0, 0, 0, 0], [0, 1])
    assert of([15.0] * 6, 2, [(20.0, swapped)]) == Regrets(0, 0, 0, 0, 1, 0)
