"""Whatever moves, and however, the answer is that of a run in which nothing moves (DRRS III)."""

from __future__ import annotations

import pytest
from flows import (
    COUPLED,
    DRRS,
    EXACT,
    GROUPS,
    OPERATOR,
    ORDERED,
    Request,
    Sums,
    Trial,
    answer,
    arrivals,
    job,
    name_of,
    out_of_order,
    placed,
    random_trial,
    run,
    uniform_request,
    with_running,
)
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.assignment import spread
from headgate.migration.plan import uniform
from headgate_lab.sim.dataflow.behaviours import Pass, Windows
from headgate_lab.sim.dataflow.channel import Network
from headgate_lab.sim.dataflow.coordinator import Method, Scaling
from headgate_lab.sim.dataflow.dataflow import Dataflow, Job, OperatorModel
from headgate_lab.sim.dataflow.methods.bounds import Unbound
from headgate_lab.sim.dataflow.methods.drrs import Drrs
from headgate_lab.sim.dataflow.methods.registry import METHODS, method

SEEDS = range(12)
BY_NAME = pytest.mark.parametrize("method", EXACT, ids=name_of)


def check(trial: Trial, method: Method) -> None:
    """Run a trial and compare the answer, the order, and where everything ended."""
    counted = with_running(trial)
    assert answer(run(trial, method)) == answer(run(trial, None))
    flow = run(counted, method)
    assert answer(flow) == answer(run(counted, None)) or method not in ORDERED
    assert method not in ORDERED or not out_of_order(flow)
    wanted = trial.requests[-1].slot_of
    assert placed(flow) == {unit: [wanted[unit // method.parts]] for unit in placed(flow)}
    assert len(placed(flow)) == len(wanted) * method.parts


@BY_NAME
def test_random_plans_loads_and_caches_leave_the_answer_as_it_is(method: Method) -> None:
    for seed in SEEDS:
        check(random_trial(seed), method)


@given(st.integers(min_value=1000, max_value=10**6), st.sampled_from(EXACT))
def test_so_does_any_other_seed(seed: int, method: Method) -> None:
    check(random_trial(seed), method)


def one(request: Request, **changes: object) -> Trial:
    feed = arrivals(3, 250, 2.0, 40, 2)
    return Trial(job(feed=feed, **changes), (request,))  # type: ignore[arg-type]


@BY_NAME
def test_scaling_to_one_slot(method: Method) -> None:
    check(one(uniform_request(0.8, 1), slots=4), method)


@BY_NAME
def test_scaling_to_a_slot_per_key_group(method: Method) -> None:
    check(one(uniform_request(0.8, GROUPS)), method)


@BY_NAME
def test_a_group_of_no_bytes(method: Method) -> None:
    check(one(uniform_request(0.8, 3), state_bytes=(0.0,) * GROUPS), method)


@BY_NAME
def test_a_group_that_takes_longer_than_every_cache_lasts(method: Method) -> None:
    # 20,000 bytes at 20,000 a second: a second, in which 120 records come for caches of 8.
    sizes = (0.0,) * 4 + (20_000.0,) + (0.0,) * 3
    check(one(uniform_request(0.8, 3), state_bytes=sizes), method)


@BY_NAME
def test_a_key_that_is_first_seen_during_the_migration(method: Method) -> None:
    feed = arrivals(3, 250, 2.0, 40, 2)
    first = {}
    for arrival in feed:
        for time_s, key in zip(arrival.times_s, arrival.keys, strict=True):
            first[key] = min(time_s, first.get(key, time_s))
    fresh = [key for key, time_s in first.items() if 0.1 < time_s < 0.3]
    assert fresh
    check(Trial(job(feed=feed), (uniform_request(0.1, 3),)), method)


@BY_NAME
@pytest.mark.parametrize("after_s", [0.001, 0.05, 0.2, 0.5, 1.0])
def test_a_second_request_at_any_time_of_the_first(method: Method, after_s: float) -> None:
    first = uniform_request(0.5, 4)
    second = Request(0.5 + after_s, (1, 0, 3, 2, 2, 0, 0, 1))
    check(Trial(one(first).job, (first, second)), method)


def test_what_the_first_request_had_not_launched_moves_once_at_most() -> None:
    trial = one(uniform_request(0.5, 6), slots=1)
    second = Request(0.55, (0, 0, 0, 0, 1, 1, 1, 1))
    flow = run(Trial(trial.job, (*trial.requests, second)), Drrs(groups_min=1))
    (dropped,) = flow.log.of("superseded")
    assert dropped.detail["dropped"] > 0
    launched = {u for e in flow.log.of("launched") if e.at_s < 0.55 for u in e.detail["units"]}
    left = [e.detail["unit"] for e in flow.log.of("left")]
    assert all(left.count(unit) <= 1 for unit in range(GROUPS) if unit not in launched)


def test_unbound_gives_a_wrong_answer_and_never_waits() -> None:
    trial = one(uniform_request(0.5, 4))
    flow = run(trial, Unbound())
    assert answer(flow) != answer(run(trial, None))
    assert not any(slot.suspended_s for slot in flow.slots[OPERATOR])


def chain() -> Job:
    """Windows per key, then a sum per key: two keyed operators next to each other."""
    return Job(
        (
            OperatorModel("source", 2, 0.0005, arrivals=arrivals(9, 250, 3.0, 40, 2)),
            OperatorModel(
                "count", 2, 0.006, Windows(1.0, 0.5), ("source",), GROUPS, (2000.0,) * GROUPS
            ),
            OperatorModel("sum", 2, 0.002, Sums(), ("count",), GROUPS, (4000.0,) * GROUPS),
            OperatorModel("sink", 1, 0.0, Pass(), ("sum",)),
        ),
        Network(0.003, 1e4, 8, 8, 2e4),
        watermark_s=0.3,
    )


def sums(flow: Dataflow) -> dict[int, object]:
    """Return what the second operator of the chain knows in the end."""
    return {k: v for s in flow.slots["sum"] for h in s.store.values() for k, v in h.values.items()}


@pytest.mark.parametrize("later_s", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("method", DRRS, ids=name_of)
def test_neighbours_that_scale_at_once_keep_the_answer(method: Method, later_s: float) -> None:
    still = Dataflow(chain())
    still.run()
    flow = Dataflow(chain())
    scalings = [Scaling(flow, name, method) for name in ("count", "sum")]
    for number, scaling in enumerate(scalings):
        target = uniform(spread(2, GROUPS), 4)
        flow.clock.after(1.0 + later_s * number, scaling.request, target)
    flow.run()
    assert sums(flow) == sums(still)
    assert not any(scaling.active for scaling in scalings)


def test_new_slots_have_the_channels_and_the_table_of_the_old_ones() -> None:
    flow = Dataflow(chain())
    for name in ("count", "sum"):
        scaling = Scaling(flow, name, Drrs())
        flow.clock.after(1.0, scaling.request, uniform(spread(2, GROUPS), 4))
    flow.run()
    edges = [slot.edge for slot in flow.slots["count"]]
    assert all(edge is not None and len(edge.channels) == 4 for edge in edges)
    assert len({tuple(edge.table) for edge in edges if edge is not None}) == 1
    assert all(len(slot.inputs) == 4 for slot in flow.slots["sum"])


def test_every_method_has_a_name_and_but_for_unbound_a_place_in_these_tests() -> None:
    names = {method(name).name for name in METHODS}
    assert names - {"unbound"} <= {found.name for found in (*EXACT, *COUPLED)}
