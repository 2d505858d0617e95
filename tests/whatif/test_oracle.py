"""The oracle and the constants: against the simulator, and against every choice there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from headgate.control.slots.static import Static
from headgate.loop.settings import OperatorSettings
from headgate.whatif import oracle_kernels
from headgate.whatif.model import OperatorModel, ServiceTime
from headgate.whatif.oracle import (
    EPOCH_S,
    Constants,
    Load,
    Point,
    constant,
    oracle,
    slots_at,
    whole,
)
from headgate.whatif.result import RunResult
from headgate.whatif.simulation import SimulatedJob, Simulation
from headgate.workloads.arrivals import RecordedArrivals
from headgate_lab.sim.score import score

GROUPS = 8


def load(work_slots: list[float], rate_per_s: float = 20.0, seed: int = 1) -> Load:
    """Return a load that needs so many slots in each 10 s, on the average."""
    draw = np.random.default_rng(seed)
    length_s = EPOCH_S * len(work_slots)
    arrival_s = np.sort(draw.uniform(0.0, length_s, int(rate_per_s * length_s)))
    needed = np.array(work_slots)[(arrival_s / EPOCH_S).astype(int)]
    demand_s = needed / rate_per_s * draw.exponential(1.0, len(arrival_s))
    return Load(
        arrival_s, draw.integers(0, GROUPS, len(arrival_s)), demand_s, GROUPS, length_s, slots_max=6
    )


def simulated(given: Load, slots: int) -> RunResult:
    model = OperatorModel(ServiceTime(1.0), key_groups=GROUPS, slots=slots)
    stream = RecordedArrivals(given.arrival_s, given.groups, given.demand_s, GROUPS)
    settings = {"o": OperatorSettings(given.bound_s, given.window_s, given.slots_max)}
    job = SimulatedJob({"o": model}, {"o": stream})
    return Simulation(job, Static(), settings, seed=1).run(given.duration_s)


@pytest.mark.parametrize(("slots", "window_s"), [(1, 1.0), (2, 0.25), (5, 0.25), (2, 0.04)])
def test_a_constant_is_what_the_simulator_makes_of_static(slots: int, window_s: float) -> None:
    """Also where the window is no multiple of a tick, and where it is less than one."""
    given = replace(load([1.0, 2.5, 0.5, 3.0]), window_s=window_s)
    found = constant(given, slots)
    success = simulated(given, slots).success("o")
    assert (found.success, found.worst) == (success.mean, success.worst)
    assert found.slots == slots


def test_the_oracle_has_the_fewest_slots_of_all_choices() -> None:
    """Against every choice of up to four slots in each of four epochs."""
    given = replace(load([1.0, 2.6, 0.4, 1.5], seed=3), slots_max=4)
    choices = []
    for slots in product(range(1, 5), repeat=4):
        found = given.success(_done_s(given, slots))
        choices.append((found.mean, float(np.mean(slots))))
    for point in oracle(given)[:4]:
        fewest = min(slots for success, slots in choices if success >= point.success - 1e-12)
        assert point.slots <= fewest + 0.25


def _done_s(given: Load, slots: tuple[int, ...]) -> np.ndarray:
    done = np.full(len(given.arrival_s), np.inf)
    state = (np.zeros((5, 4)), np.zeros(5, dtype=np.int64), np.zeros(4))
    share = np.ones(len(done))
    oracle_kernels.run(
        0,
        4,
        np.array(slots),
        given.arrival_s,
        given.demand_s,
        share,
        EPOCH_S,
        given.bound_s,
        given.window_s,
        *state,
        done,
    )
    return done


def test_the_oracle_is_never_above_the_best_constant() -> None:
    given = load([1.0, 2.0, 0.2, 3.0, 1.0])
    points, constants = oracle(given), Constants(given)
    for success in (0.95, 0.99):
        assert slots_at(points, success) <= constants.best(success).slots


def test_the_best_constant_is_the_fewest_that_do_as_well() -> None:
    given = load([1.0, 2.0, 3.0, 1.0])
    constants = Constants(given)
    best = constants.best(0.9)
    assert best.success >= 0.9
    assert constants.at(round(best.slots) - 1).success < 0.9
    assert Constants(given).best(1.1) == max(
        (constants.at(n) for n in range(1, 7)), key=lambda p: (p.success, -p.slots)
    )


def test_whole_key_groups_lie_between_the_oracle_and_the_best_constant() -> None:
    """Three of eight groups bring most: a constant deals them by number, and no slot two at once."""
    given = load([2.4, 1.2, 2.4, 1.2], rate_per_s=60.0)
    draw = np.random.default_rng(2)
    shares = np.array([0.3, 0.3, 0.3, 0.02, 0.02, 0.02, 0.02, 0.02])
    given = replace(given, groups=draw.choice(GROUPS, len(given.groups), p=shares))
    found, constants = whole(given, 0.95), Constants(given)
    assert found.success >= 0.95
    assert slots_at(oracle(given), found.success) <= found.slots
    assert found.slots < constants.best(0.95).slots - 0.5
    never = whole(given, 1.1)
    assert never.success < 1.1
    assert never.success >= found.success


def test_the_score_of_a_constant_is_that_constant() -> None:
    given = replace(load([1.0, 2.0, 3.0, 1.0]), from_s=5.0)
    points = [Point(0.5, 0.1, 1.0), Point(1.0, 1.0, 2.0)]
    found = score(simulated(given, 5), "o", given, points, Constants(given))
    assert found.slots == 5.0
    assert found.success == constant(given, 5).success
    assert found.constant.success >= found.success
    assert found.to_oracle == 5.0 / np.interp(found.success, [0.5, 1.0], [1.0, 2.0])
    assert (found.changes_per_hour, found.lost_slot_s) == (0.0, 0.0)


def test_a_record_costs_what_its_source_says() -> None:
    arrival_s = np.array([0.0, 5.0])
    given = Load(arrival_s, np.array([0, 0]), np.array([0.1, 2.0]), GROUPS, 10.0)
    result = simulated(given, 1)
    assert result.operators["o"].latency_sum_s.sum() == pytest.approx(2.1)
