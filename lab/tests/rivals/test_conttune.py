"""ContTune's two phases, on operators whose abilities are given."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from control_views import check, seen, view

from headgate.control.decision import Decision
from headgate.core.errors import ConfigError
from headgate_lab.rivals.conttune import ContTune

README = {
    1: 529573.16752, 2: 966817.36242, 4: 1829695.58, 6: 2535502.7616, 7: 2936888.579,
    8: 3118477.8826, 10: 3721099.1836, 13: 4624714.165666, 15: 4967828.2586, 20: 6350677.0454,
    21: 6465249.805, 25: 7089387.3074, 26: 7476391.84,
}  # fmt: skip
"""Processing ability of the map of Nexmark's Q1 by parallelism, from the authors' page."""


class Job:
    """A policy with an interval of two cycles, and the time."""

    def __init__(self, **parameters: Any) -> None:
        self.policy = ContTune(interval_s=1.0, **parameters)
        self.times = itertools.count()

    def look(self, chain: dict[str, tuple[str, ...]] | None = None, **views: Any) -> Decision:
        """Two cycles that see the same: an interval."""
        assert not self.policy.decide(seen(float(next(self.times)), chain, **views))
        observation = seen(float(next(self.times)), chain, **views)
        decision = self.policy.decide(observation)
        check(observation, decision)
        return decision


def at(slots: int, rate: float, mu: float = 100.0, backlog: float = 0.0, groups: int = 32) -> Any:
    """An operator with so many slots, `rate` and `backlog` evenly spread."""
    return view([rate / groups] * groups, mu, slots=slots, backlog=backlog / groups)


def pressed(slots: int, mu: float = 100.0) -> Any:
    """An operator that gets twice what it can do."""
    return at(slots, 2.0 * slots * mu, mu, backlog=10.0 * slots * mu)


def slots(decision: Decision) -> dict[str, int]:
    return {name: change.assignment.slots for name, change in decision.changes.items()}


# Big


def test_under_backpressure_every_operator_is_doubled_whatever_feeds_what() -> None:
    decision = Job().look({"b": ("a",)}, a=pressed(4), b=at(2, 150.0))
    assert slots(decision) == {"a": 8, "b": 4}
    assert decision.rule == "big"
    assert (
        decision.reason
        == "Big phase, backpressure at a in 100% of the time: a 4 -> 8, b 2 -> 4 slots."
    )
    assert decision.numbers == {"a.pressed": 1.0}


def test_big_goes_to_the_most_slots_there_ever_were_in_one_step_and_doubles_after_that() -> None:
    job = Job()
    assert not job.look(a=at(16, 1500.0), b=at(1, 80.0))
    # No more than there were: b has its most, a is what is short.
    assert slots(job.look(a=pressed(2), b=at(1, 80.0))) == {"a": 16}
    assert slots(job.look(a=pressed(16), b=at(1, 80.0))) == {"a": 32, "b": 2}


def test_an_operator_at_its_limit_makes_the_others_no_larger() -> None:
    job = Job()
    assert not job.look(a=at(4, 300.0), b=at(8, 700.0))
    full = replace(pressed(4), slots_max=4)
    assert not job.look(a=full, b=at(2, 150.0))


@pytest.mark.parametrize(("times", "rule"), [(1, "small"), (2, "big")])
def test_backpressure_in_less_than_a_tenth_of_the_time_is_none(times: int, rule: str) -> None:
    made = ContTune(interval_s=18.5)
    decisions = [
        made.decide(seen(float(t), a=pressed(2) if t < times else at(2, 20.0))) for t in range(20)
    ]
    assert not any(decisions[:-1])
    assert decisions[-1].rule == rule


def test_what_waits_is_no_backpressure_while_it_is_about_to_be_gone_but_nothing_is_taken() -> None:
    # 400/s can be done, 40/s arrive: 3,000 are gone in 8.3 s, 4,000 in 11.
    for waiting, big in ((3000.0, False), (4000.0, True)):
        decision = Job(drain_s=10.0).look(a=at(4, 40.0, backlog=waiting))
        assert slots(decision) == ({"a": 8} if big else {})


def test_one_slot_with_too_much_is_backpressure() -> None:
    skewed = view([150.0, *[10.0] * 7], slots=4)
    skewed = replace(skewed, backlog=skewed.group_rate * 2.0)
    assert slots(Job().look(a=skewed)) == {"a": 8}


# Small


def test_small_takes_slots_after_big_until_none_are_too_many_and_then_rests() -> None:
    job = Job(alpha=0)
    assert slots(job.look(a=pressed(2))) == {"a": 4}
    # 75 % of the ability: at rest this would be left alone.
    decision = job.look(a=at(4, 300.0))
    assert slots(decision) == {"a": 3}
    assert decision.rule == "small"
    assert decision.reason == (
        "Small phase: a gets 300 of the 400 records/s it can do, and by DS2's line fewer slots will "
        "do: 4 -> 3 slots."
    )
    assert decision.numbers == {"a.rate": 300.0, "a.ability": 400.0}
    assert not job.look(a=at(3, 300.0))
    # It has come to rest: not every change of the load begins a tuning.
    assert not job.look(a=at(3, 180.0))


def test_at_rest_an_operator_is_tuned_only_where_it_is_busy_to_less_than_low() -> None:
    for rate, wanted in ((225.0, {}), (175.0, {"a": 2})):
        assert slots(Job(low=0.5, alpha=0).look(a=at(4, rate))) == wanted


def test_operators_are_tuned_side_by_side() -> None:
    job = Job(alpha=0, low=1.0)
    decision = job.look({"b": ("a",)}, a=at(4, 150.0), b=at(8, 50.0), c=at(2, 150.0))
    assert slots(decision) == {"a": 2, "b": 1}


def test_small_never_adds_slots() -> None:
    # More arrives than can be done, and nothing waits yet.
    assert not Job(low=1.0).look(a=at(4, 500.0))


def test_the_load_that_is_left_is_target() -> None:
    assert slots(Job(alpha=0, target=1.0).look(a=at(4, 150.0))) == {"a": 2}
    assert slots(Job(alpha=0, target=0.5).look(a=at(4, 150.0))) == {"a": 3}


def test_what_was_tried_says_more_than_the_line() -> None:
    # 8 slots do 60/s each, and 350/s would be 6 of these; but 4 slots have done 360/s.
    job = Job(low=1.0)
    assert not job.look(a=at(4, 355.0, 90.0))
    decision = job.look(a=at(8, 350.0, 60.0))
    assert slots(decision) == {"a": 4}
    assert "a Gaussian process (nearest tried 0 off)" in decision.reason
    new = Job(low=1.0, alpha=0)
    assert slots(new.look(a=at(8, 350.0, 60.0))) == {"a": 6}


def test_the_authors_example_has_the_authors_answer() -> None:
    job = Job(low=1.0)
    for parallelism, ability in README.items():
        decision = job.look(a=at(parallelism, 4e6, ability / parallelism))
    assert slots(decision) == {"a": 11}


def test_a_straight_line_is_known_as_one() -> None:
    # With the first length scale 12 slots, between 8 and 16, would be expected to do far less.
    job = Job(low=1.0, alpha=4)
    for tried in (2, 4, 8):
        job.look(a=at(tried, 1150.0))
    assert slots(job.look(a=at(16, 1150.0))) == {"a": 12}


def test_far_from_what_was_tried_the_line_decides() -> None:
    # One observation, 1,600/s of 16 slots: the mean falls to 200/s with 11 slots, 5 from the next.
    one = at(16, 200.0)
    trusting, cautious = Job(alpha=5).look(a=one), Job(alpha=4).look(a=one)
    assert slots(trusting) == {"a": 11}
    assert slots(cautious) == {"a": 2}
    assert "DS2's line" in cautious.reason


def test_near_what_was_tried_steps_are_small() -> None:
    # Half the ability: the line would halve the slots.
    assert slots(Job(low=1.0).look(a=at(16, 800.0))) == {"a": 14}


@pytest.mark.parametrize("rate", [145.0, 155.0])
def test_the_mean_of_the_five_newest_observations_counts(rate: float) -> None:
    job = Job(alpha=0, low=1.0)
    for _ in range(9):
        assert slots(job.look(a=at(4, rate, 100.0))) == {"a": 2}
    # Slots are half as fast now; in the mean they do 90/s, 80/s, 70/s, 60/s, 50/s.
    found = [slots(job.look(a=at(4, rate, 50.0)))["a"] for _ in range(4)]
    assert found == [2, 2, 3, 3]


def test_what_was_seen_under_backpressure_counts_as_well() -> None:
    # That 4 slots do not do 350/s is known from when they had to, and 8 are not left for them.
    job = Job(low=1.0)
    job.look(a=at(4, 380.0, 75.0, backlog=4000.0))
    assert slots(job.look(a=at(8, 350.0, 60.0))) == {"a": 5}


def test_an_operator_whose_rate_nobody_knows_is_left_alone() -> None:
    assert not Job().look(a=at(4, 50.0, 0.0, backlog=500.0))


# looks


def test_an_interval_begins_anew_with_each_change() -> None:
    made = ContTune(interval_s=2.0)
    idle = at(4, 50.0)
    decision = [made.decide(seen(float(t), a=idle)) for t in range(3)][-1]
    made.decide(seen(3.0, a=idle))
    made.applied("a", decision.changes["a"], 0.5)
    assert [bool(made.decide(seen(float(t), a=idle))) for t in range(4, 7)] == [False, False, True]


def test_conttune_waits_until_the_whole_job_can_be_seen() -> None:
    made = ContTune(interval_s=1.0)
    for time_s in range(4):
        assert not made.decide(seen(float(time_s), {"b": ("a",)}, b=at(4, 50.0)))


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"interval_s": 0.0}, "interval_s"),
        ({"alpha": -1}, "alpha"),
        ({"low": 1.1}, "low"),
        ({"target": 0.0}, "target"),
        ({"target": 1.1}, "target"),
        ({"drain_s": 0.0}, "drain_s"),
    ],
)
def test_conttune_refuses_what_is_out_of_range(bad: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=f"conttune: {named}="):
        ContTune(**bad)  # type: ignore[arg-type]
