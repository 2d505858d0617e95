"""The coordinator: one set-up, subscales side by side and within limits, and nothing left behind."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from flows import GROUPS, OPERATOR, Request, Trial, arrivals, job, run, uniform_request
from signal_rules import busy, played

from headgate.core.assignment import spread
from headgate.migration.plan import Subscale, uniform
from headgate_lab.sim.dataflow.coordinator import Scaling, Timing
from headgate_lab.sim.dataflow.dataflow import Dataflow
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.methods.drrs import Drrs


def spans(log: EventLog) -> dict[int, tuple[float, float]]:
    """Return start and end of each step."""
    starts = {event.detail["step"]: event.at_s for event in log.of("launched")}
    return {e.detail["step"]: (starts[e.detail["step"]], e.at_s) for e in log.of("acknowledged")}


def test_subscales_run_side_by_side_in_one_operation() -> None:
    _, log = played(busy(slots=3, state_bytes=6000.0), Drrs(groups_min=1))
    found = list(spans(log).values())
    assert len(found) > 1
    assert any(a[0] < b[0] < a[1] for a in found for b in found)
    assert len(log.of("set up")) == 1
    assert len(log.of("released")) == 1


def test_no_slot_takes_part_in_more_than_two_subscales() -> None:
    trial = busy(slots=6, state_bytes=6000.0)
    for per_slot in (1, 2):
        _, log = played(trial, Drrs(groups_min=1, per_slot=per_slot))
        ends = {e.detail["step"]: e.detail["units"] for e in log.of("launched")}
        assert len(ends) > per_slot
        # Slot 0 is the source of all of them.
        running, most = 0, 0
        for event in log.of("launched", "acknowledged"):
            running += 1 if event.kind == "launched" else -1
            most = max(most, running)
        assert most == per_slot


def test_a_busy_slot_takes_part_in_one_subscale_at_a_time() -> None:
    trial = busy(slots=6, state_bytes=6000.0)
    # Slot 0 has more records than it can serve, so it serves all the time.
    for busy_max, wanted in ((0.9, 1), (1.5, 2)):
        _, log = played(trial, Drrs(groups_min=1, busy_max=busy_max))
        running, most = 0, 0
        for event in log.of("launched", "acknowledged"):
            running += 1 if event.kind == "launched" else -1
            most = max(most, running)
        assert most == wanted


def test_a_slot_of_a_fast_host_serves_in_proportion_faster() -> None:
    made = job(feed=arrivals(5, 50, 1.0, 40, 1), slots=3, cost_s=0.02, watermark_s=0.0)
    operators = tuple(
        replace(m, speeds=(2.0, 0.5)) if m.name == OPERATOR else m for m in made.operators
    )
    flow = Dataflow(replace(made, operators=operators))
    assert [slot.cost_s for slot in flow.slots[OPERATOR]] == [0.01, 0.04, 0.01]
    assert [s.cost_s for s in flow.add_slots(OPERATOR, 1)] == [0.04]


def test_the_slot_that_holds_fewest_groups_gets_the_first_subscale() -> None:
    # Slot 1 holds 3 groups, slot 2 none: the subscale to slot 2 goes first, though slot 1 is less.
    feed = arrivals(5, 100, 2.0, 40, 2)
    first = Request(0.1, (0, 0, 0, 0, 0, 1, 1, 1))
    second = Request(1.5, (0, 0, 0, 1, 2, 1, 1, 1))
    trial = Trial(job(feed=feed, slots=1), (first, second))
    _, log = played(trial, Drrs(groups_min=1, per_slot=1))
    launched = [event.detail["units"] for event in log.of("launched") if event.at_s >= 1.5]
    assert launched == [[4], [3]]


def test_subscales_are_launched_one_per_round() -> None:
    trial = replace(busy(slots=5, state_bytes=0.0), timing=Timing(round_s=0.3))
    _, log = played(trial, Drrs(groups_min=1))
    times = [event.at_s for event in log.of("launched")]
    assert len(times) > 2
    assert all(b - a >= 0.3 - 1e-9 for a, b in pairwise(times))


def test_the_plan_is_a_part_of_its_own() -> None:
    moves = {4: (0, 1), 5: (0, 1), 6: (0, 1), 7: (0, 1)}
    assert Drrs(groups_min=2).steps(moves) == [
        (Subscale((4, 5), 0, 1),),
        (Subscale((6, 7), 0, 1),),
    ]
    assert Drrs(division=False).steps(moves) == [(Subscale((4, 5, 6, 7), 0, 1),)]


def test_8_to_12_slots_of_128_groups_is_14_subscales_and_25_to_30_of_256_is_45() -> None:
    for slots, after, groups, wanted in ((8, 12, 128, 14), (25, 30, 256, 45)):
        old = spread(slots, groups)
        new = uniform(old, after)
        moves = {g: (old.slot_of[g], new.slot_of[g]) for g in old.moved(new)}
        assert len(Drrs().steps(moves)) == wanted


def test_nothing_is_left_once_the_last_subscale_is_done() -> None:
    flow, log = played(busy(slots=3))
    assert log.of("released")
    for slots in flow.slots.values():
        for slot in slots:
            assert slot.handler is None
            assert not slot.special
            assert not slot.paused
    after = [e for e in log if e.at_s > log.of("released")[0].at_s and e.kind != "served"]
    assert after == []


def test_without_a_request_no_event_is_added() -> None:
    still = run(busy(), None)
    flow = Dataflow(busy().job)
    Scaling(flow, OPERATOR, Drrs())
    flow.run()
    assert not flow.log.events
    assert flow.clock.now_s == still.clock.now_s
    assert [s for slot in flow.slots[OPERATOR] for s in slot.suspended_s] == []


def test_a_request_for_what_is_there_already_moves_nothing() -> None:
    flow = run(replace(busy(), requests=(Request(1.0, (0,) * GROUPS),)), Drrs())
    assert not flow.log.of("launched")
    assert flow.log.of("released")


def test_new_slots_run_after_what_it_takes_to_deploy_them() -> None:
    _, log = played(replace(busy(), timing=Timing(deploy_s=0.5)))
    assert log.of("set up")[0].at_s == 1.5


def test_the_same_trial_gives_the_same_events() -> None:
    def story() -> list[tuple[float, str, str]]:
        _, log = played(busy(slots=3))
        return [(event.at_s, event.kind, event.slot) for event in log]

    assert story() == story()


def test_requests_need_no_change_of_the_job() -> None:
    trial = Trial(busy().job, (uniform_request(1.0, 3), uniform_request(2.0, 1)))
    flow = run(trial, Drrs())
    assert flow.job == trial.job
