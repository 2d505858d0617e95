"""The loop's order of things, against an engine that only counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_engine import DELTA_S, FakeEngine

from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.observation import Observation
from headgate.control.policy import Policy
from headgate.control.registry import policy
from headgate.core.assignment import Assignment, rescale
from headgate.core.errors import ConfigError, ProtocolError
from headgate.loop.loop import ControlLoop, LoopState
from headgate.loop.settings import OperatorSettings

SETTINGS = OperatorSettings(bound_s=1.0, window_s=0.5, slots_max=8, floor_s=0.0)


class Restless:
    """A policy that changes something in every cycle, and remembers what it was told."""

    name = "restless"

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self.told: list[str] = []

    def decide(self, observation: Observation) -> Decision:
        self.seen.append(observation)
        view = observation.operators["op"]
        slots = 3 if view.slots == 2 else 2
        kept = tuple(s if s < view.slots else None for s in range(slots))
        change = Change(ChangeKind.RESCALE, rescale(view.assignment, slots), kept)
        return Decision({"op": change}, "Because.", "restless")

    def applied(self, operator: str, change: Change, took_s: float) -> None:
        self.told.append(f"applied after {took_s:.1f} s")

    def slot_failed(self, operator: str, slot_id: int) -> None:
        self.told.append(f"slot {slot_id} failed")


def loop_of(made: Policy, engine: FakeEngine, settings: OperatorSettings = SETTINGS) -> ControlLoop:
    return ControlLoop(made, engine, engine, engine, {"op": settings}, delta_s=DELTA_S)


def run(loop: ControlLoop, first: int, last: int) -> None:
    """Cycles number `first` to `last`, each at the end of its tick."""
    for cycle in range(first, last + 1):
        loop.cycle(cycle * DELTA_S)


def test_nothing_is_decided_between_decided_and_applied() -> None:
    # cycle   1 2 3 4 5   6 ........ 20    21
    #         not ready   decided          applied, in force
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    run(loop, 1, 20)
    assert len(restless.seen) == 1
    assert loop.state("op") is LoopState.CHANGING
    engine.finish(loop.applied, 2.0)
    decided, *rest = [line for line in engine.log if not line.startswith("not ready")]
    assert [decided, *rest] == ["decided", "apply", "applied after 1.5 s"]
    run(loop, 21, 21)
    assert len(restless.seen) == 2
    assert restless.seen[1].operators["op"].assignment == Assignment(engine.now.slot_of, 3, 1)


def test_a_change_may_be_in_force_before_apply_returns() -> None:
    engine = FakeEngine()
    loop = loop_of(Restless(), engine)
    begin = engine.apply

    def apply_at_once(operator: str, change: Change) -> None:
        begin(operator, change)
        engine.finish(loop.applied, 0.5)

    engine.apply = apply_at_once  # type: ignore[method-assign]
    run(loop, 1, 5)
    assert engine.now.slots == 3
    assert loop.state("op") is LoopState.STEADY


def test_a_policy_hears_when_its_change_is_in_force() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    run(loop, 1, 5)
    engine.finish(loop.applied, 0.8)
    assert restless.told == ["applied after 0.3 s"]


def test_a_change_that_was_given_up_leaves_the_way_free() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    run(loop, 1, 5)
    engine.applying = None
    loop.note_abandoned("op")
    run(loop, 6, 6)
    assert len(restless.seen) == 2
    assert restless.told == []


def test_a_cycle_with_missing_counters_decides_nothing_and_says_why_once() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    engine.missing = True
    run(loop, 1, 10)
    assert restless.seen == []
    assert loop.state("op") is LoopState.NOT_READY
    assert len(engine.log) == 1
    assert engine.log[0].startswith("not ready: the first sample, of tick 1, ")


def test_a_loop_is_not_ready_again_when_counters_go_missing_and_recovers() -> None:
    engine = FakeEngine()
    loop = loop_of(policy("static"), engine)
    run(loop, 1, 5)
    engine.missing = True
    run(loop, 6, 9)
    assert loop.state("op") is LoopState.NOT_READY
    engine.missing = False
    run(loop, 10, 10)
    assert loop.state("op") is LoopState.STEADY
    assert len(engine.log) == 2


def test_counters_of_an_older_assignment_decide_nothing() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    run(loop, 1, 4)
    stale = engine.collect
    engine.now, before = replace(engine.now, epoch=7), engine.now

    def of_before() -> dict:
        engine.now, held = before, engine.now
        samples = stale()
        engine.now = held
        return samples

    engine.collect = of_before  # type: ignore[method-assign]
    run(loop, 5, 6)
    assert restless.seen == []
    assert engine.log[-1] == "not ready: slots have measured assignment 0, and 7 is in force"


def test_a_new_bound_is_used_from_the_next_cycle_on() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    run(loop, 1, 5)
    loop.configure("op", replace(SETTINGS, bound_s=0.25, alert_s=0.02, slots_max=5))
    engine.finish(loop.applied, 0.55)
    run(loop, 6, 6)
    view = restless.seen[-1].operators["op"]
    assert (view.bound_s, view.alert_s, view.slots_max) == (0.25, 0.02, 5)
    assert loop.settings("op").bound_s == 0.25


def test_a_new_window_is_waited_for() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    run(loop, 1, 3)
    loop.configure("op", replace(SETTINGS, window_s=1.0))
    run(loop, 4, 9)
    assert restless.seen == []
    run(loop, 10, 14)
    assert [seen.operators["op"].window_s for seen in restless.seen] == [1.0]


def test_a_policy_is_told_of_a_slot_that_failed() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    loop.slot_failed("op", 1)
    assert restless.told == ["slot 1 failed"]


def test_a_slot_that_failed_during_a_change_leaves_the_change_on_its_way() -> None:
    engine = FakeEngine()
    loop = loop_of(Restless(), engine)
    run(loop, 1, 5)
    assert engine.applying is not None
    loop.slot_failed("op", 0)
    assert loop.state("op") is LoopState.CHANGING
    assert engine.applying.assignment.slots == 3
    loop.applied("op", 0.6)
    assert loop.state("op") is not LoopState.CHANGING


def test_a_frozen_loop_decides_nothing_until_its_time() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    loop.freeze(until_s=1.0)
    run(loop, 1, 9)
    assert restless.seen == []
    assert engine.log[-1] == "noted frozen"
    run(loop, 10, 10)
    assert len(restless.seen) == 1


def test_a_thawed_loop_decides_again() -> None:
    engine, restless = FakeEngine(), Restless()
    loop = loop_of(restless, engine)
    loop.freeze()
    run(loop, 1, 9)
    loop.thaw()
    run(loop, 10, 10)
    assert len(restless.seen) == 1


def test_advice_is_written_once_and_not_carried_out() -> None:
    engine = FakeEngine()
    loop = loop_of(Restless(), engine)
    loop.advise()
    run(loop, 1, 9)
    assert engine.applying is None
    assert [line for line in engine.log if "ready" not in line] == ["noted restless"]
    assert engine.decisions[0][1].changes
    assert not engine.decisions[0][2]
    loop.advise(False)
    run(loop, 10, 10)
    assert engine.applying is not None


class Wrong(Restless):
    """A policy whose changes are all spoilt in one way."""

    def __init__(self, **spoilt: object) -> None:
        super().__init__()
        self.spoilt = spoilt

    def decide(self, observation: Observation) -> Decision:
        change = super().decide(observation).changes["op"]
        return Decision({"op": replace(change, **self.spoilt)}, "Because.", "wrong")


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        ({"assignment": Assignment((0, 1, 2), 3, 1)}, "it has 3 key groups, the operator 8"),
        ({"assignment": Assignment((0,) * 8, 3, 5)}, "it has epoch 5, the next is 1"),
        ({"survivors": (0, 1)}, "it names 2 survivors for 3 slots"),
        ({"survivors": (0, 0, 1)}, "the survivors [0, 0, 1] are not different slots"),
        ({"survivors": (0, 1, 2)}, "the survivors [0, 1, 2] are not different slots"),
    ],
)
def test_a_decision_that_is_not_valid_is_refused(spoilt: dict, why: str) -> None:
    engine = FakeEngine()
    loop = loop_of(Wrong(**spoilt), engine)
    run(loop, 1, 5)
    assert engine.applying is None
    assert engine.log[-1].startswith(f"not ready: the policy's decision is refused: {why}")


def test_a_decision_beyond_the_most_slots_is_refused() -> None:
    engine = FakeEngine()
    run(loop_of(Restless(), engine, replace(SETTINGS, slots_max=2)), 1, 5)
    assert engine.log[-1].endswith("refused: it has 3 slots, the most is 2")


def test_a_decision_about_an_operator_that_was_not_observed_is_refused() -> None:
    class Elsewhere(Restless):
        def decide(self, observation: Observation) -> Decision:
            return Decision({"b": super().decide(observation).changes["op"]})

    engine = FakeEngine()
    run(loop_of(Elsewhere(), engine), 1, 5)
    assert engine.log[-1].endswith("it is about an operator that was not observed")


def test_what_does_nothing_is_written_only_when_its_rule_changes() -> None:
    class Rules(Restless):
        rules = iter(["", "good", "good", "moderate", "", "good"])

        def decide(self, observation: Observation) -> Decision:
            return Decision(rule=next(self.rules))

    engine = FakeEngine()
    run(loop_of(Rules(), engine), 1, 10)
    noted = [line for line in engine.log if line.startswith("noted")]
    assert noted == ["noted good", "noted moderate", "noted good"]


def test_a_cycle_returns_nothing_while_not_ready() -> None:
    assert loop_of(Restless(), FakeEngine()).cycle(0.1) is NOTHING


def test_no_change_can_end_that_did_not_begin() -> None:
    loop = loop_of(Restless(), FakeEngine())
    with pytest.raises(ProtocolError, match='no change of operator "op" is under way'):
        loop.applied("op", 1.0)


def test_an_unknown_operator_is_named_with_the_nearest() -> None:
    loop = loop_of(Restless(), FakeEngine())
    with pytest.raises(ConfigError, match=r'unknown operator "opp"; did you mean "op"\?'):
        loop.state("opp")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alert_s": 1.0}, "alert threshold 1 s does not lie between 0 and the latency bound 1 s"),
        ({"window_s": 0.0}, "window 0 s is too short"),
        ({"slots_min": 9}, "slots min=9 max=8 is out of range"),
        ({"floor_s": -1.0}, "floor -1 s is negative"),
    ],
)
def test_settings_out_of_range_are_refused(changed: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(SETTINGS, **changed)


# Whole stories.


def story(loop: ControlLoop, engine: FakeEngine, first: int, last: int) -> None:
    """As `run`; every change is in force 0.3 s after it was decided."""
    due = None
    for cycle in range(first, last + 1):
        loop.cycle(cycle * DELTA_S)
        if engine.applying is not None and due is None:
            due = cycle + 3
        if due == cycle:
            engine.finish(loop.applied, cycle * DELTA_S)
            due = None


def test_streamswitch_follows_the_load_up_and_down() -> None:
    engine = FakeEngine(groups=16, slots=1, rate=5.0)
    loop = loop_of(policy("streamswitch(0.2)"), engine)
    story(loop, engine, 1, 50)
    assert engine.now.slots == 1  # 80/s is all of (1 - 0.2) x 100/s, but no record is late
    engine.rate = 25.0
    story(loop, engine, 51, 300)
    assert engine.now.slots >= 6  # 400/s
    engine.rate = 2.0
    story(loop, engine, 301, 700)
    assert engine.now.slots == 1


def test_the_same_job_gives_the_same_decisions() -> None:
    def decisions() -> list[str]:
        engine = FakeEngine(groups=16, slots=1, rate=25.0)
        story(loop_of(policy("streamswitch"), engine), engine, 1, 200)
        return [decision.reason for _, decision, _ in engine.decisions]

    assert decisions() == decisions()


def test_an_end_to_end_bound_is_what_the_operators_have_together() -> None:
    class Pair(FakeEngine):
        def collect(self) -> dict:
            sample = super().collect()["op"]
            return {"a": sample, "b": sample}

    engine, shown = Pair(), []

    class Looks(Restless):
        def decide(self, observation: Observation) -> Decision:
            shown.append(observation)
            return NOTHING

    both = {"a": SETTINGS, "b": SETTINGS}
    loop = ControlLoop(
        Looks(),
        engine,
        engine,
        engine,
        both,
        delta_s=DELTA_S,
        parents={"b": ("a",)},
        end_to_end_s=3.0,
    )
    run(loop, 1, 6)
    assert [view.bound_s for view in shown[-1].operators.values()] == [1.5, 1.5]
    assert shown[-1].end_to_end_s == 3.0
    assert loop.bound_s("a") == 1.5


def test_a_bound_end_to_end_that_changes_is_split_anew_and_without_one_each_has_its_own() -> None:
    class Pair(FakeEngine):
        def collect(self) -> dict:
            sample = super().collect()["op"]
            return {"a": sample, "b": sample}

    class Idle(Restless):
        def decide(self, observation: Observation) -> Decision:
            return NOTHING

    engine = Pair()
    both = {"a": SETTINGS, "b": SETTINGS}
    loop = ControlLoop(
        Idle(),
        engine,
        engine,
        engine,
        both,
        delta_s=DELTA_S,
        parents={"b": ("a",)},
        end_to_end_s=3.0,
    )
    loop.bound_end_to_end(1.0)
    run(loop, 1, 6)
    assert [loop.bound_s(name) for name in both] == [0.5, 0.5]
    loop.bound_end_to_end(None)
    assert [loop.bound_s(name) for name in both] == [SETTINGS.bound_s, SETTINGS.bound_s]


# The floor.


class Late(FakeEngine):
    """A micro-batch engine: every completion shows 0.4 s later."""

    def __init__(self, **figures: float) -> None:
        super().__init__(**figures)  # type: ignore[arg-type]
        self.shown = [self._completed] * 4

    def collect(self) -> dict:
        sample = super().collect()["op"][0]
        self.shown.append(sample.completed)
        return {"op": [replace(sample, completed=self.shown.pop(0))]}


def test_the_floor_of_a_nearly_idle_job_is_measured() -> None:
    engine = Late(rate=1.0)
    loop = loop_of(policy("static"), engine, replace(SETTINGS, floor_s=None))
    assert loop.floor_s("op") == 0.0
    run(loop, 1, 40)
    assert loop.floor_s("op") == pytest.approx(0.4)
    assert loop.state("op") is LoopState.STEADY


def test_a_bound_below_two_floors_is_unreachable() -> None:
    engine = Late(rate=1.0)
    settings = replace(SETTINGS, bound_s=0.7, floor_s=None)
    loop = loop_of(policy("static"), engine, settings)
    run(loop, 1, 40)
    assert loop.state("op") is LoopState.UNREACHABLE
    loop.configure("op", replace(settings, bound_s=0.9))
    assert loop.state("op") is LoopState.STEADY


def test_with_its_floor_an_idle_micro_batch_job_comes_down_to_one_slot() -> None:
    engine = Late(rate=1.0, slots=4)
    loop = loop_of(policy("streamswitch"), engine, replace(SETTINGS, floor_s=None))
    story(loop, engine, 1, 100)
    assert engine.now.slots == 1


def test_without_its_floor_an_idle_micro_batch_job_never_scales_in() -> None:
    engine = Late(rate=1.0, slots=4)
    story(loop_of(policy("streamswitch"), engine), engine, 1, 100)
    assert engine.now.slots == 4


# --- a limit that is nobody's wish -----------------------------------------------------------------

LIMIT = "the cores are the limit: the machine has 2"


def limited(slots: int, most: int, rate: float) -> tuple[FakeEngine, ControlLoop]:
    settings = replace(SETTINGS, slots_max=most, limit=LIMIT)
    engine = FakeEngine(slots=slots, rate=rate)
    return engine, loop_of(policy("threshold"), engine, settings)


def test_a_policy_stays_within_the_slots_that_can_be_of_use_and_the_journal_says_why() -> None:
    engine, loop = limited(slots=2, most=2, rate=30.0)
    run(loop, 1, 30)
    assert "apply" not in engine.log
    assert engine.log.count("noted limit") == 1
    (told,) = (decision for _, decision, _ in engine.decisions if decision.rule == "limit")
    assert told.reason == f"op: {LIMIT}; more than 2 slots would serve no more."


def test_slots_that_are_there_already_are_no_reason_to_take_some_away() -> None:
    engine, loop = limited(slots=4, most=2, rate=70.0)
    run(loop, 1, 30)
    assert "apply" not in engine.log
    assert "noted limit" in engine.log


def test_a_limit_is_no_news_while_the_slots_suffice() -> None:
    engine, loop = limited(slots=2, most=2, rate=10.0)
    run(loop, 1, 30)
    assert "noted limit" not in engine.log


def test_a_policy_that_goes_beyond_the_limit_is_refused_with_its_reason() -> None:
    engine = FakeEngine()
    loop = loop_of(Restless(), engine, replace(SETTINGS, slots_max=2, limit=LIMIT))
    run(loop, 1, 30)
    assert engine.log[-1].endswith(f"it has 3 slots, the most is 2: {LIMIT}")
