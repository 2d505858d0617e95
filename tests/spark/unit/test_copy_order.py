"""What the copy thread asks of hosts and how long it has patience, without its thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headgate.spark.move import copy_thread as module
from headgate.spark.move.copy_thread import OF_EPOCHS, CopyThread, Lags, StepHeads, Urgency
from headgate.spark.move.host_tasks import GroupOrder, OrderDone, TaskAnswer

TOKENS = tuple(f"{n:032x}" for n in range(100))


def heads(step: int = 3) -> StepHeads:
    return StepHeads(step, {"op": (TOKENS, tuple(range(100)))})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which a test moves."""
    time_s = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time_s[0]))
    return time_s


def thread(**arena_of: str) -> Any:
    made: Any = CopyThread(lambda: SimpleNamespace(run=lambda *_: []))
    made._wake = lambda: None
    made.arena_of = dict(arena_of)
    return made


def test_hosts_that_are_not_known_are_asked_for_and_no_others() -> None:
    made = thread(a="A")
    assert not made.knows(["a", "b"])
    assert made.knows(["a"]), "that of b is under way"
    assert made._choose(None) == {"b": []}


def test_the_most_urgent_come_first_and_no_more_than_an_errand_holds() -> None:
    made = thread(a="A", b="B")
    for group in range(70):
        made.want(("op", group, "A"), Urgency.PREFETCH)
    made.want(("op", 80, "A"), Urgency.INSTALL)
    made.want(("op", 81, "A"), Urgency.DROP)
    made.want(("op", 82, "B"), Urgency.DROP)
    made.want(("op", 83, "nowhere"), Urgency.INSTALL)
    asked = made._choose(heads())
    assert list(asked) == ["a", "b"]
    assert asked["a"][0] == GroupOrder("op", 80, TOKENS[80], 80)
    assert [order.group for order in asked["a"][1:]] == list(range(63))
    assert asked["b"] == [GroupOrder("op", 82)]
    assert made.busy("op", 80)
    assert not made.busy("op", 69), "it is for the next errand"
    assert not made.busy("other", 80)


def test_nothing_is_brought_before_a_step_is_committed() -> None:
    made = thread(a="A")
    made.want(("op", 1, "A"), Urgency.INSTALL)
    made.want(("op", 2, "A"), Urgency.DROP)
    assert made._choose(None) == {"a": [GroupOrder("op", 2)]}


@pytest.mark.parametrize(
    ("urgency", "known_step", "asked"),
    [
        (Urgency.PREFETCH, 8, False),
        (Urgency.PREFETCH, 7, True),
        (Urgency.INSTALL, 8, True),
        (Urgency.INSTALL, 9, False),
        (Urgency.PREFETCH, None, True),
    ],
)
def test_a_copy_is_brought_on_when_it_is_so_many_steps_behind(
    urgency: Urgency, known_step: int | None, asked: bool
) -> None:
    made = thread(a="A")
    work = made.want(("op", 1, "A"), urgency)
    work.known_step, work.token = known_step, "another"
    assert bool(made._choose(heads(9))) == asked
    work.token = TOKENS[1]
    assert bool(made._choose(heads(9))) == (known_step is None), "nobody has changed it"


def test_what_was_dropped_or_cannot_be_is_asked_for_no_more() -> None:
    made = thread(a="A")
    dropped = made.want(("op", 1, "A"), Urgency.DROP)
    failed = made.want(("op", 2, "A"), Urgency.INSTALL)
    dropped.dropped, failed.problem = True, "no room"
    assert made._choose(heads()) == {}
    made.want(("op", 2, "A"), Urgency.INSTALL)
    assert list(made._choose(heads())) == ["a"], "asked for anew"


def test_what_is_wanted_again_keeps_its_copy_and_what_is_to_go_does_not() -> None:
    made = thread(a="A")
    place = ("op", 1, "A")
    work = made.want(place, Urgency.PREFETCH)
    work.failures = 2
    assert made.want(place, Urgency.INSTALL) is work
    assert (work.urgency, work.failures) == (Urgency.INSTALL, 0)
    drop = made.want(place, Urgency.DROP)
    assert drop is not work
    assert made.want(place, Urgency.INSTALL) is not drop


def answer(order: GroupOrder, *, moved_bytes: int = 0, problem: str = "") -> TaskAnswer:
    return TaskAnswer("a", "a", "A", (OrderDone(order, moved_bytes, problem),))


def test_an_answer_counts_for_what_is_wanted_now() -> None:
    made = thread(a="A")
    work = made.want(("op", 1, "A"), Urgency.INSTALL)
    made._take(answer(GroupOrder("op", 1)), heads())
    assert (work.dropped, work.known_step) == (False, None), "a drop of before"
    made._take(answer(GroupOrder("op", 1, "token", 2), moved_bytes=10), heads())
    made._take(answer(GroupOrder("op", 1, "next", 3), moved_bytes=5), heads(4))
    assert (work.known_step, work.token, work.moved_bytes) == (4, "next", 15)
    drop = made.want(("op", 1, "A"), Urgency.DROP)
    made._take(answer(GroupOrder("op", 1, "token", 2)), heads())
    assert not drop.dropped, "a copy of before"
    made._take(answer(GroupOrder("op", 1)), heads())
    assert (drop.dropped, drop.known_step) == (True, None)
    made._take(answer(GroupOrder("op", 9, "token", 2)), heads())  # nobody wants it


def test_a_group_has_a_problem_when_it_has_failed_three_times_in_a_row() -> None:
    made = thread(a="A")
    work = made.want(("op", 1, "A"), Urgency.INSTALL)
    order = GroupOrder("op", 1, "token", 2)
    for problem in ("full", "full", "", "full", "full"):
        made._take(answer(order, problem=problem), heads())
    assert (work.failures, work.problem) == (2, "")
    made._take(answer(order, problem="still full"), heads())
    assert work.problem == "still full"


def test_a_host_is_given_up_after_a_minute_without_an_answer(now: list[float]) -> None:
    made = thread(a="A", b="B")
    here, there = (made.want(("op", 1, arena), Urgency.INSTALL) for arena in "AB")
    elsewhere = TaskAnswer("a", "b", "B")

    def missed(after_s: float) -> str:
        now[0] += after_s
        made._take(elsewhere, heads())
        return str(here.problem)

    assert missed(0) == ""
    assert missed(59) == ""
    made._take(answer(GroupOrder("op", 5, "t", 1)), heads())  # it is there after all
    assert missed(2) == ""
    assert missed(59.9) == ""
    assert missed(0.1) == "no task was run on host a"
    assert there.problem == ""
    here.problem = ""
    assert missed(1) == "", "and then it has a minute again"


def test_a_host_that_is_given_up_is_asked_for_only_by_who_needs_it(now: list[float]) -> None:
    made = thread()
    made.knows(["a"])
    made._take(TaskAnswer("a", "b", "B", problem="busy"), None)
    assert made._choose(None) == {"a": []}
    now[0] += 60
    made._take(TaskAnswer("a", "b", "B", problem="busy"), None)
    assert made._choose(None) == {}
    made.knows(["a"])
    assert made._choose(None) == {"a": []}


@pytest.mark.parametrize(("batch_s", "slice_s"), [(0.1, 0.1), (1.0, 0.5), (1.6, 0.8), (9.0, 1.0)])
def test_a_task_for_a_host_may_take_half_a_batch(
    batch_s: float, slice_s: float, now: list[float]
) -> None:
    slices: list[float] = []

    def run(_: Any, slice_s: float) -> list[Any]:
        slices.append(slice_s)
        return []

    made = CopyThread(lambda: SimpleNamespace(run=run))
    now[0] += batch_s
    made.committed(heads())
    made._run_host_tasks({"a": []})
    assert slices == [pytest.approx(slice_s)]


def test_a_task_that_fails_is_made_anew_and_its_reason_kept_short(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    makes: list[int] = []

    def run(*_: Any) -> Any:
        raise RuntimeError("lost " + "x" * 400 + "\nsecond line")

    def make() -> Any:
        makes.append(1)
        return SimpleNamespace(run=run)

    made: Any = CopyThread(make)
    made._wake, made.arena_of = (lambda: None), {"a": "A"}
    work = made.want(("op", 1, "A"), Urgency.INSTALL)
    assert made._run_host_tasks({"a": []}) == []
    now[0] += 60
    assert made._run_host_tasks({"a": []}) == []
    assert len(makes) == 2
    assert work.problem.startswith("RuntimeError: lost xxx")
    assert len(work.problem) == 300


def test_a_copy_of_epochs_may_be_further_behind() -> None:
    batches = Lags()
    assert (batches.caught_up, batches.served, batches.kept) == (1, 4, 2)
    assert (OF_EPOCHS.caught_up, OF_EPOCHS.served, OF_EPOCHS.kept) == (4, 12, 2)
