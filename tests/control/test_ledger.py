"""The budget of a fleet: who has how many slots, at all times."""

from __future__ import annotations

from headgate.control.fleet.ledger import Ledger


def ledger(budget=8, **held):
    made = Ledger(budget)
    for job, slots in held.items():
        made.enter(job, {"op": slots}, made.taken({}))
    return made


def test_a_job_keeps_what_it_comes_with_as_far_as_there_is_room():
    made = ledger(8, first=5, second=5)
    assert made.granted == {"first": {"op": 5}, "second": {"op": 3}}
    assert made.enter("third", {"op": 2, "next": 2}, 8) == {"op": 1, "next": 1}


def test_less_is_granted_at_once_and_more_only_into_what_was_given_up():
    made = ledger(8, a=4, b=4)
    made.want({"a": {"op": 2}, "b": {"op": 6}})
    assert made.settle({"a": {"op": 4}, "b": {"op": 4}}) == {"a": {"op": 2}}
    assert made.settle({"a": {"op": 4}, "b": {"op": 4}}) == {}
    assert made.waiting == {"b": {"op": 6}}
    assert made.settle({"a": {"op": 2}, "b": {"op": 4}}) == {"b": {"op": 6}}
    assert made.waiting == {}


def test_what_starting_jobs_will_have_is_kept_for_them():
    made = ledger(8, a=4)
    made.want({"a": {"op": 8}})
    assert made.settle({"a": {"op": 4}}, reserved=1) == {}
    assert made.settle({"a": {"op": 4}}) == {"a": {"op": 8}}


def test_a_job_that_ended_has_nothing():
    made = ledger(8, a=4, b=4)
    made.want({"b": {"op": 8}})
    made.leave("a")
    assert made.settle({"b": {"op": 4}}) == {"b": {"op": 8}}
    made.want({"a": {"op": 2}})
    assert made.settle({"b": {"op": 8}}) == {}


def test_a_job_that_hangs_with_more_than_its_grant_keeps_the_others_from_it():
    made = ledger(8, stuck=6, b=2)
    made.want({"stuck": {"op": 1}, "b": {"op": 7}})
    made.settle({"stuck": {"op": 6}, "b": {"op": 2}})
    assert made.of("b") == {"op": 2}
    assert made.give_up() == {"b": {"op": 7}}
    assert made.settle({"stuck": {"op": 1}, "b": {"op": 2}}) == {}


def test_a_smaller_budget_takes_from_the_first_named_and_leaves_each_operator_a_slot():
    made = ledger(10, cheap=5, dear=5)
    made.budget = 6
    made.cut(["cheap", "dear"])
    held = {"cheap": {"op": 5}, "dear": {"op": 5}}
    assert made.settle(held) == {"cheap": {"op": 1}}
    made.budget = 1
    made.cut(["cheap", "dear"])
    assert made.settle(held) == {"dear": {"op": 1}}


def test_a_refused_grant_falls_back_to_what_is_held():
    made = ledger(8, a=2)
    made.want({"a": {"op": 5}})
    made.settle({"a": {"op": 2}})
    made.keep("a", {"op": 2})
    assert made.of("a") == {"op": 2}
