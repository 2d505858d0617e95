"""The rules of DRRS's signals as checks: each raises AssertionError if it is broken.

One predecessor operator of two slots feeds `count`, which goes from one slot to two, as in figure 4 of
the paper: key groups 4 to 7 leave. Caches are full: more comes than one slot can serve.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flows import (
    DRRS,
    GROUPS,
    OPERATOR,
    Request,
    Running,
    Trial,
    answer,
    arrivals,
    job,
    random_trial,
    run,
    uniform_request,
    with_running,
)

from headgate_lab.sim.dataflow.behaviours import Pass, Windows
from headgate_lab.sim.dataflow.channel import Network
from headgate_lab.sim.dataflow.clock import Clock
from headgate_lab.sim.dataflow.coordinator import Step
from headgate_lab.sim.dataflow.dataflow import Arrivals, Dataflow, OperatorModel
from headgate_lab.sim.dataflow.elements import Record, Signal
from headgate_lab.sim.dataflow.eventlog import EventLog
from headgate_lab.sim.dataflow.handler import Handler, Verdict
from headgate_lab.sim.dataflow.methods.drrs import Drrs
from headgate_lab.sim.dataflow.methods.drrs_handler import Rerouting
from headgate_lab.sim.dataflow.slot import Channel, Slot

Rule = Callable[[], None]

LATENCY_S = 0.003
LEAVING = range(4, GROUPS)
SEEDS = range(8)


def busy(
    *, sources: int = 2, state_bytes: float = 2000.0, watermark_s: float = 0.0, slots: int = 2
) -> Trial:
    feed = arrivals(5, 260, 3.0, 40, sources)
    return Trial(
        job(
            feed=feed,
            behaviour=Running(),
            slots=1,
            network=Network(LATENCY_S, 1e4, 8, 8, 2e4),
            watermark_s=watermark_s,
            state_bytes=(state_bytes,) * GROUPS,
        ),
        (uniform_request(1.0, slots),),
    )


def played(trial: Trial, method: Drrs | None = None) -> tuple[Dataflow, EventLog]:
    log = EventLog(every_record=True)
    return run(trial, method or Drrs(), log=log), log


def signals_start_at_the_predecessors() -> None:
    """DR-01: not at the sources, of which these are fed."""
    trial = busy()
    source, count, sink = trial.job.operators
    between = OperatorModel("map", 2, 0.001, Pass(), ("source",))
    operators = (source, between, replace(count, parents=("map",)), sink)
    _, log = played(replace(trial, job=replace(trial.job, operators=operators)))
    sent = log.of("routed", "trigger", "confirm")
    assert sent
    assert {event.slot.split("/")[0] for event in sent} == {"map"}


def a_predecessor_routes_then_triggers_then_confirms() -> None:
    """DR-04, the order of the three."""
    _, log = played(busy())
    for slot in ("source/0", "source/1"):
        kinds = [event.kind for event in log.of("routed", "trigger", "confirm", slot=slot)]
        assert kinds == ["routed", "trigger", "confirm"]


def a_trigger_overtakes_everything() -> None:
    """DR-02: the migration starts a latency after the trigger, whatever waits in the caches."""
    _, log = played(busy())
    (started,) = log.of("started")
    first = min(log.of("trigger"), key=lambda event: event.at_s)
    record_s = 0.01  # one may be in service
    assert started.at_s - first.at_s <= LATENCY_S + record_s + 1e-9
    assert sum(first.at_s < e.at_s <= started.at_s for e in log.of("served")) <= 2


def only_the_first_trigger_starts_a_migration() -> None:
    """DR-02: two predecessors, two triggers, one start."""
    _, log = played(busy())
    assert len(log.of("started")) == 1
    assert len(log.of("ignored")) == 1


def a_confirm_overtakes_nothing_in_the_input_cache() -> None:
    """DR-03: what was under way or in the input cache is served, or sent on, before it is."""
    ahead: dict[str, list[Record]] = {}

    class Watched(Drrs):
        def overtake(self, old: Channel, new: Channel, step: Step, confirm: Signal) -> None:
            ahead[old.sender.name] = [
                element for element in (*old.arrived, *old.flying) if isinstance(element, Record)
            ]
            super().overtake(old, new, step, confirm)

    _, log = played(busy(), Watched())
    served = {
        (e.detail["key"], e.detail["origin"], e.detail["number"]): e for e in log.of("served")
    }
    assert any(ahead.values())
    for confirmed in log.of("confirmed"):
        for record in ahead[confirmed.detail["sender"]]:
            event = served[record.key, record.origin, record.number]
            assert event.slot == "count/1" or event.at_s <= confirmed.at_s + 1e-9


def a_confirm_overtakes_the_output_cache() -> None:
    """DR-03, DR-04: what it overtook of the groups that leave goes to the new slot, and is told."""
    _, log = played(busy())
    assert sum(event.detail["records"] for event in log.of("redirected")) > 0


def the_old_slot_serves_groups_that_wait_to_leave() -> None:
    """DR-05."""
    _, log = played(busy(state_bytes=8000.0))
    (started,) = log.of("started")
    last = max(log.of("left"), key=lambda event: event.at_s)
    waiting = [
        event
        for event in log.of("served", slot="count/0")
        if started.at_s < event.at_s < last.at_s and event.detail["unit"] in LEAVING
    ]
    assert waiting


def the_old_slot_sends_on_what_came_too_late_and_every_confirm() -> None:
    """DR-05."""
    _, log = played(busy(state_bytes=0.0))
    assert sum(event.detail["records"] for event in log.of("rerouted")) > 0
    assert len(log.of("confirmed")) == 2
    taken = {(e.detail["unit"], e.detail["sender"]) for e in log.of("confirm taken")}
    assert taken == {(unit, f"source/{index}") for unit in LEAVING for index in range(2)}


def rerouted_records_are_served_while_the_new_slot_is_suspended() -> None:
    """DR-06: before the confirms let the first record of the new stream through."""
    flow, log = played(busy(state_bytes=0.0), Drrs(scheduling=False, rerouting=Rerouting(1)))
    confirmed_s = min(event.at_s for event in log.of("confirm taken"))
    assert [e for e in log.of("served", slot="count/1") if e.at_s < confirmed_s]
    stretches = flow.slots[OPERATOR][1].suspended_s
    assert any(start < confirmed_s for start, _ in stretches)


def state_without_its_confirms_is_not_served() -> None:
    """DR-07: there first, active once every predecessor has confirmed."""
    trial = busy(state_bytes=0.0)
    late = replace(trial, job=replace(trial.job, command_s=(0.0, 0.4)))
    method = Drrs(scheduling=False)
    _, log = played(late, method)
    for unit in LEAVING:
        confirms = [e.at_s for e in log.of("confirm taken") if e.detail["unit"] == unit]
        installed = next(e.at_s for e in log.of("installed") if e.detail["unit"] == unit)
        assert installed < max(confirms)
    rerouted = sum(event.detail["records"] for event in log.of("rerouted"))
    last_s = max(event.at_s for event in log.of("confirm taken"))
    early = [e for e in log.of("served", slot="count/1") if e.at_s < last_s - 1e-9]
    assert len(early) <= rerouted


def each_channel_switches_with_its_own_confirm() -> None:
    """DR-08: source 0 confirms at once, source 1 much later; records of source 0 flow meanwhile."""
    trial = busy(state_bytes=0.0)
    late = replace(trial, job=replace(trial.job, command_s=(0.0, 0.4)))
    _, log = played(late)
    last_s = max(event.at_s for event in log.of("confirm taken"))
    between = [
        event
        for event in log.of("served", slot="count/1")
        if event.at_s < last_s and event.detail["origin"] == 0
    ]
    rerouted = sum(event.detail["records"] for event in log.of("rerouted"))
    assert len(between) > rerouted


def rerouted_records_fit_into_the_input_caches() -> None:
    """DR-10: what is under way has room there, too; with scheduling the buffer comes on top."""
    for seed, method in itertools.product(SEEDS, (Drrs(), Drrs(scheduling=False))):
        trial = random_trial(seed)
        flow = run(trial, method)
        room = trial.job.network.input_records * len(flow.slots["source"])
        room += method.records_max if method.scheduling else 0
        by_step: dict[int, int] = {}
        for event in flow.log.of("rerouted"):
            step = event.detail["step"]
            by_step[step] = by_step.get(step, 0) + event.detail["records"]
        assert all(count <= room for count in by_step.values())


def overtaken_watermarks_reach_both_streams() -> None:
    """DR-09: even the last watermark, with nothing behind it to make up for it."""
    trial = busy(watermark_s=0.3)
    source, count, sink = trial.job.operators
    operators = (source, replace(count, behaviour=Windows(1.0, 0.5)), sink)
    trial = replace(trial, job=replace(trial.job, operators=operators))
    still = run(trial, None)
    for early_s in (0.05, 0.1, 0.15, 0.2, 0.25):
        request = uniform_request(still.clock.now_s - early_s, 2)
        assert answer(run(replace(trial, requests=(request,)), Drrs())) == answer(still)


def suspended_is_a_slot_whose_every_reachable_record_waits() -> None:
    """DR-14: never while it serves, and it ends as soon as something can be served."""
    flow, log = played(busy(state_bytes=8000.0))
    for slot in flow.slots[OPERATOR]:
        assert all(start < end for start, end in slot.suspended_s)
        assert all(a[1] <= b[0] for a, b in pairwise(slot.suspended_s))
        for start, end in slot.suspended_s:
            inside = [e for e in log.of("served", slot=slot.name) if start + 1e-9 < e.at_s <= end]
            assert not inside
    assert flow.slots[OPERATOR][1].suspended_s


def suspended_is_at_every_moment_what_its_definition_says() -> None:
    """DR-14: neither more nor less, with scheduling and without, and nothing once it has ended."""
    trials = [busy(state_bytes=8000.0, slots=3), *map(random_trial, SEEDS)]
    for method in (Drrs(), Drrs(records_max=1), Drrs(scheduling=False)):
        moments = [moment for trial in trials for moment in suspended_moments(trial, method)]
        assert all(noted == defined for noted, defined in moments)
        assert {defined for _, defined in moments} == {True, False}


def suspended_moments(trial: Trial, method: Drrs) -> list[tuple[bool, bool]]:
    """Return after each event, by scaling slot, whether it counts as suspended, and whether it is."""
    scaling: dict[Slot, Handler] = {}
    found: list[tuple[bool, bool]] = []
    start, after = Handler.__init__, Clock.after

    def starts(self: Handler, slot: Slot, records_max: int = 0) -> None:
        start(self, slot, records_max)
        scaling[slot] = self

    def watched(action: Callable[..., None], *arguments: object) -> None:
        action(*arguments)
        for slot in scaling:
            ended_s = slot.suspended_s[-1][1] if slot.suspended_s else 0.0
            found.append((ended_s == float("inf"), is_suspended(slot)))

    def asks(self: Clock, delay_s: float, *action: Any) -> None:
        after(self, delay_s, watched, *action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "__init__", starts)
        patch.setattr(Clock, "after", asks)
        run(trial, method, checkpoint_s=1.2)
    return found


def is_suspended(slot: Slot) -> bool:
    """Return whether a slot could serve, and all it may reach, of which there is some, has to wait."""
    handler = slot.handler
    if not isinstance(handler, Handler) or slot.serving or slot.full or slot.paused or slot.special:
        return False
    fronts = [(c, c.arrived[0]) for c in slot.available if c.arrived and not c.blocked]
    if not handler.records_max:
        fronts = fronts[:1]
    held = [(c, record) for c, records in handler.deferred.items() for record in records]
    reached = [(c, front) for c, front in (*fronts, *held) if isinstance(front, Record)]
    waits = [handler.verdict(channel, record) is Verdict.WAIT for channel, record in reached]
    return not handler.ready and bool(waits) and all(waits)


def a_slot_that_nothing_waits_for_is_not_suspended() -> None:
    """DR-14: idle is not suspended. All records are of groups that stay, while others move."""
    trial = busy(state_bytes=8000.0)
    source = trial.job.operators[0]
    staying = tuple(
        Arrivals(feed.times_s, np.where(feed.keys % GROUPS < 4, feed.keys, feed.keys - 4))
        for feed in source.arrivals
    )
    operators = (replace(source, arrivals=staying), *trial.job.operators[1:])
    flow, log = played(replace(trial, job=replace(trial.job, operators=operators)))
    assert {event.detail["unit"] for event in log.of("installed")} == set(LEAVING)
    assert [slot.suspended_s for slot in flow.slots[OPERATOR]] == [[], []]


def the_reroute_buffer_goes_by_capacity_time_or_confirm() -> None:
    """DR-20."""
    trial = busy(state_bytes=0.0)
    _, one_by_one = played(trial, Drrs(rerouting=Rerouting(records=1)))
    _, with_confirms = played(trial, Drrs(rerouting=Rerouting(records=10**6, timeout_s=1e6)))
    _, by_time = played(trial, Drrs(rerouting=Rerouting(records=10**6, timeout_s=0.02)))
    flushes = [len(log.of("rerouted")) for log in (one_by_one, by_time, with_confirms)]
    assert flushes[0] > flushes[1] > flushes[2] == 2
    assert max(event.detail["records"] for event in one_by_one.of("rerouted")) <= 1


def every_seed_gives_the_answer_in_order() -> None:
    """DR-04 to DR-12 and DR-27: answers and order per key, with windows and with counts."""
    for seed in SEEDS:
        for method in DRRS:
            trial = random_trial(seed)
            assert answer(run(trial, method)) == answer(run(trial, None)), seed
            counted = with_running(trial)
            found = answer(run(counted, method))
            assert found == answer(run(counted, None)), seed


RULES: list[Rule] = [
    signals_start_at_the_predecessors,
    a_predecessor_routes_then_triggers_then_confirms,
    a_trigger_overtakes_everything,
    only_the_first_trigger_starts_a_migration,
    a_confirm_overtakes_nothing_in_the_input_cache,
    a_confirm_overtakes_the_output_cache,
    the_old_slot_serves_groups_that_wait_to_leave,
    the_old_slot_sends_on_what_came_too_late_and_every_confirm,
    rerouted_records_are_served_while_the_new_slot_is_suspended,
    state_without_its_confirms_is_not_served,
    each_channel_switches_with_its_own_confirm,
    rerouted_records_fit_into_the_input_caches,
    overtaken_watermarks_reach_both_streams,
    suspended_is_a_slot_whose_every_reachable_record_waits,
    suspended_is_at_every_moment_what_its_definition_says,
    a_slot_that_nothing_waits_for_is_not_suspended,
    the_reroute_buffer_goes_by_capacity_time_or_confirm,
    every_seed_gives_the_answer_in_order,
]


@dataclass(frozen=True)
class Served:
    """How many records came out, and how many after a later one of their source and key."""

    records: int
    reordered: int


def relaxed_answers() -> tuple[Served, Served]:
    """Return what a relaxed task and an ordinary one make of the same seeds."""
    found = []
    for relaxed in (True, False):
        values = [
            record.value
            for seed in SEEDS
            for _, record in run(
                with_running(random_trial(seed)), Drrs(relaxed=relaxed, groups_min=2)
            ).outputs()
        ]
        found.append(Served(len(values), sum(not value[2] for value in values)))
    return found[0], found[1]


def suspended_s(records_max: int) -> float:
    """Return how long the slots were suspended with a buffer of some size; 0: no scheduling."""
    trial = busy(state_bytes=6000.0, slots=3)
    requests = (Request(1.0, (0, 0, 0, 1, 1, 1, 2, 2)),)
    method = Drrs(scheduling=records_max > 0, records_max=records_max, groups_min=2)
    flow = run(replace(trial, requests=requests), method)
    return sum(end - start for slot in flow.slots[OPERATOR] for start, end in slot.suspended_s)
