"""Executors are asked for before slots exceed cores, and given back after slots have left them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headgate.control.fleet.grant import Grant
from headgate.core.assignment import spread
from headgate.spark.cluster.following import ExecutorFollower, SharedNeeds
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState
from headgate.spark.jvm.executors import Executor

A, B, C = (Executor(str(i), f"node-{i}", cores=1) for i in range(3))


class FakePool:
    """A cluster with some executors free, each with one core."""

    def __init__(self, living: Sequence[Executor], free: Sequence[Executor] = ()) -> None:
        self.executors = list(living)
        self.free = list(free)
        self.asked: list[int] = []

    @property
    def cores(self) -> int:
        return sum(one.cores for one in self.executors)

    def living(self) -> list[Executor]:
        return sorted(self.executors)

    def request(self, total: int) -> bool:
        self.asked.append(total)
        while self.free and len(self.executors) < total:
            self.executors.append(self.free.pop(0))
        return True

    def give_back(self, executors: Sequence[Executor]) -> bool:
        self.executors = [one for one in self.executors if one not in executors]
        return True


class Later:
    """Runs what was started when told to, as a thread would some time."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def follower(
    pool: FakePool, needs: SharedNeeds | None = None, query: str = "q"
) -> tuple[ExecutorFollower, Later, list[Any], list[int]]:
    later, journal, warmed = Later(), [], []
    made = ExecutorFollower(
        pool,
        needs or SharedNeeds(),
        query,
        journal.append,
        lambda: warmed.append(pool.cores),
        start=later,
        sleep=lambda _: None,
    )
    return made, later, journal, warmed


def asked(made: ExecutorFollower, slots: int) -> bool:
    """Ask for a change to slots as a batch does; return whether it may come into force."""
    made.need(slots)
    return made.ready(slots)


def test_a_change_waits_until_the_executors_it_needs_are_there_and_warm() -> None:
    pool = FakePool([A], free=[B, C])
    made, later, journal, warmed = follower(pool)
    assert not asked(made, 3)
    assert not asked(made, 3), "asked once, not in every batch"
    later.run()
    assert asked(made, 3)
    assert (pool.asked, warmed) == ([3], [3])
    (event,) = journal
    assert (event.act, event.executors_before, event.executors_after) == ("asked", 1, 3)


def test_a_change_within_the_cores_asks_for_nothing() -> None:
    pool = FakePool([A, B])
    made, later, _, _ = follower(pool)
    assert asked(made, 2)
    assert (pool.asked, later.waiting) == ([], [])


def test_where_the_cluster_gives_none_slots_share_cores_and_it_is_said_once() -> None:
    pool = FakePool([A])
    made, later, journal, warmed = follower(pool)
    assert not asked(made, 3)
    with pytest.warns(UserWarning, match="gave 0 of 2 executors .* 3 slots share 1 cores; add"):
        later.run()
    assert asked(made, 3)
    assert asked(made, 4), "soon after a refusal nobody waits again"
    assert (warmed, journal[0].executors_after) == ([], 1)
    assert "share 1 cores" in journal[0].why


def test_where_an_executor_was_lost_meanwhile_nothing_is_warmed() -> None:
    pool = FakePool([A, B])
    pool.request = lambda total: bool(pool.executors.pop())  # type: ignore[method-assign]
    made, later, journal, warmed = follower(pool)
    assert not asked(made, 3)
    with pytest.warns(UserWarning, match="3 slots share 1 cores"):
        later.run()
    assert warmed == []
    assert (journal[0].executors_before, journal[0].executors_after) == (2, 1)


def test_executors_are_given_back_after_slots_have_left_them_and_those_from_the_start_stay() -> (
    None
):
    pool = FakePool([A], free=[B, C])
    made, later, journal, _ = follower(pool)
    asked(made, 3)
    later.run()
    made.settled(3, lambda: ["node-0", "node-1", "node-2"])
    later.run()
    assert pool.living() == [A, B, C]
    assert asked(made, 1)
    later.run()
    assert pool.living() == [A, B, C], "asked for, not yet in force: slots still run there"
    made.settled(1, lambda: ["node-1"])
    later.run()
    assert pool.living() == [B], "the host with the slot keeps its executor"
    assert [event.act for event in journal] == ["asked", "gave back"]
    assert journal[-1].why == "2 on node-2, 0 on node-0"


def test_what_the_user_configured_is_kept_and_what_exceeds_it_given_back_at_the_start() -> None:
    pool = FakePool([A, B, C])
    made, later, _, _ = follower(pool, SharedNeeds(floor=2))
    made.settled(1, lambda: ["node-0"])
    later.run()
    assert pool.living() == [A, B]


def test_executors_that_nobody_asked_for_stay() -> None:
    pool = FakePool([A, B, C])
    made, later, _, _ = follower(pool)
    made.settled(3, list)
    made.settled(1, list)
    later.run()
    assert pool.living() == [A, B, C]


def test_queries_of_one_application_share_its_executors() -> None:
    pool, needs = FakePool([A], free=[B, C]), SharedNeeds()
    first, later_1, _, _ = follower(pool, needs, "first")
    second, later_2, _, _ = follower(pool, needs, "second")
    first.settled(1, lambda: ["node-0"])
    later_1.run()
    assert not asked(second, 2), "the one core is the first query's"
    later_2.run()
    assert asked(second, 2)
    assert pool.living() == [A, B, C]
    second.settled(2, lambda: ["node-1", "node-2"])
    second.leave()
    later_2.run()
    assert pool.living() == [A]


def test_of_several_executors_on_a_used_host_one_stays() -> None:
    twins = [Executor("0", "node-0", 1), Executor("1", "node-0", 1), Executor("2", "node-1", 1)]
    needs = SharedNeeds(floor=1, slots={"q": 1}, hosts={"q": frozenset({"node-0"})})
    assert [one.id for one in needs.surplus(twins)] == ["2", "1"]


def test_a_change_that_waits_for_executors_is_not_pending_and_is_taken_when_they_are_there() -> (
    None
):
    states = {"one": OperatorState.fresh(1, 8)}
    pool = FakePool([A, B], free=[C])
    made, later, _, _ = follower(pool)
    changes = Changes(states, 8, made)
    changes.ask({"one": spread(3, 8)}, "user")
    assert not changes.pending
    assert changes.put_in_force() == {}
    assert changes.request("one").state is RequestState.WAITING
    assert (pool.asked, later.waiting) == ([], []), "questions ask nobody for anything"
    changes.arrange()
    later.run()
    assert changes.pending
    assert changes.request("one").state is RequestState.REQUESTED
    assert changes.put_in_force()["one"].assignment.slots == 3
    assert changes.request("one") is None


def test_no_warning_comes_where_all_was_given() -> None:
    made, later, _, _ = follower(FakePool([A], free=[B]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked(made, 2)
        later.run()


def test_a_cluster_that_cannot_be_asked_ends_no_query() -> None:
    class Broken(FakePool):
        def request(self, total: int) -> bool:
            msg = "no route"
            raise OSError(msg)

    made, later, _, _ = follower(Broken([A]))
    assert not asked(made, 2)
    with pytest.warns(UserWarning, match=r"asked for .* \(no route\); slots share"):
        later.run()
    assert asked(made, 2)


def test_a_query_that_has_ended_writes_nothing_more() -> None:
    pool = FakePool([A], free=[B])
    made, later, journal, _ = follower(pool)
    asked(made, 2)
    later.run()
    made.leave()
    later.run()
    assert pool.living() == [A]
    assert [event.act for event in journal] == ["asked"]


def test_the_last_executor_of_a_host_with_slots_stays_even_where_fewer_have_cores_enough() -> None:
    living = [Executor("0", "node-0", 2), Executor("1", "node-1", 2)]
    needs = SharedNeeds(floor=1, slots={"q": 2}, hosts={"q": frozenset({"node-0", "node-1"})})
    assert needs.executors(living) == 1
    assert needs.surplus(living) == []


def test_what_is_announced_comes_into_force_whatever_is_asked_since() -> None:
    """Records are on their way by it already."""
    states = {name: OperatorState.fresh(1, 8) for name in ("one", "two")}
    changes = Changes(states, 8)
    changes.ask({"one": spread(3, 8), "two": spread(2, 8)}, "user")
    assert changes.announce(kept=["two"]) == {"one": spread(3, 8)}
    changes.ask({"one": spread(4, 8)}, "user")
    assert changes.put_announced()["one"].assignment.slots == 3
    assert (changes.newest("one").slots, changes.newest("two").slots) == (4, 2)
    assert changes.pending
    assert changes.put_announced() == {}
    assert {name: one.assignment.slots for name, one in changes.put_in_force().items()} == {
        "one": 4,
        "two": 2,
    }
    assert not changes.pending


def test_a_freeze_gives_up_what_was_asked_for_but_not_what_is_announced() -> None:
    changes = Changes({name: OperatorState.fresh(1, 8) for name in ("one", "two")}, 8)
    changes.ask({"one": spread(3, 8)}, "user")
    changes.announce()
    changes.ask({"two": spread(3, 8)}, "user")
    assert changes.freeze() == ["two"]
    assert changes.put_announced()["one"].assignment.slots == 3
    assert not changes.pending


def test_what_is_announced_and_withdrawn_is_requested_as_before() -> None:
    changes = Changes({"one": OperatorState.fresh(1, 8)}, 8)
    changes.ask({"one": spread(3, 8)}, "user")
    changes.announce()
    changes.withdraw()
    assert changes.put_announced() == {}
    assert changes.pending
    assert changes.freeze() == ["one"]


def test_a_freeze_before_a_withdrawal_loses_no_request() -> None:
    """Who waits for it was told that it comes."""
    changes = Changes({"one": OperatorState.fresh(1, 8)}, 8)
    changes.ask({"one": spread(3, 8)}, "user")
    changes.announce()
    changes.ask({"one": spread(5, 8)}, "user")
    assert changes.freeze() == []
    changes.withdraw()
    assert changes.put_in_force()["one"].assignment.slots == 3
    assert not changes.pending


def test_what_is_asked_for_behind_an_announcement_knows_the_slots_that_come_into_force() -> None:
    changes = Changes({"one": OperatorState.fresh(4, 8)}, 8)
    changes.ask({"one": spread(2, 8)}, "user")
    changes.announce()
    changes.ask({"one": spread(3, 8)}, "user")
    assert changes.put_announced()["one"].survivors == (0, 1)
    assert changes.put_in_force()["one"].survivors == (0, 1, None)


def test_a_policy_proposes_nothing_while_a_grant_is_announced() -> None:
    changes = Changes({"one": OperatorState.fresh(4, 8)}, 8)
    changes.limit(Grant({"one": 2}, "fleet", ""))
    assert changes.announce()["one"].slots == 2
    held = changes.assignment()["one"]
    later = replace(spread(1, 8), epoch=held.epoch + 1)
    assert not changes.propose("one", AssignmentRequest(later, "policy", "", (0,)))
    assert changes.put_announced()["one"].assignment.slots == 2
