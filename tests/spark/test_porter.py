"""The porter's thread: what is brought first, what is tried again, and when it gives up."""

from __future__ import annotations

import threading
import time

import pytest

from headgate.spark.move import porter as porters
from headgate.spark.move.errand import Answer, Done
from headgate.spark.move.porter import Porter, StepHeads, Urgency

TOKEN = "1" * 32


class FakeErrands:
    """Does all it is asked, or what a test lets it do."""

    def __init__(self):
        self.asked = []
        self.problem = ""
        self.failures = 0
        self.elsewhere = False
        self.gate = threading.Event()
        self.gate.set()

    def run(self, work, slice_s):
        self.gate.wait(5)
        self.asked.append({host: list(orders) for host, orders in work.items()})
        if self.failures:
            self.failures -= 1
            raise RuntimeError("executor lost")
        answers = []
        for host, orders in work.items():
            if self.elsewhere:
                answers.append(Answer(host, "other", "arena-other"))
                continue
            done = tuple(Done(o, 100 if o.token else 0, self.problem) for o in orders)
            answers.append(Answer(host, host, f"arena-{host}", done))
        return answers


@pytest.fixture
def errands():
    return FakeErrands()


@pytest.fixture
def porter(errands, monkeypatch):
    monkeypatch.setattr(porters, "_PAUSE_S", 0.005)
    made = Porter(lambda: errands)
    made.committed(heads(3))
    yield made
    made.stop()


def heads(step, token=TOKEN):
    return StepHeads(step, {"op": ((token,) * 8, (step,) * 8)})


def eventually(condition):
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert condition()


def known(porter, host="a"):
    eventually(lambda: porter.knows([host]))


def test_a_host_is_asked_for_its_arena_once(porter, errands):
    assert not porter.knows(["a", "b"])
    eventually(lambda: porter.knows(["a", "b"]))
    assert porter.arenas(["b", "a"]) == ("arena-b", "arena-a")


def test_what_is_wanted_is_brought_and_counted(porter):
    known(porter)
    work = porter.want(("op", 4, "arena-a"), Urgency.PREFETCH)
    eventually(lambda: work.known_step == 3)
    assert work.moved_bytes == 100
    assert work.lag_steps(TOKEN, 9) == 0
    assert work.lag_steps("2" * 32, 5) == 2


def test_installs_come_before_prefetches(porter, errands):
    known(porter)
    errands.gate.clear()
    errands.asked.clear()
    porter.want(("op", 0, "arena-a"), Urgency.PREFETCH)
    time.sleep(0.05)  # the thread is at the gate with the first
    porter.want(("op", 1, "arena-a"), Urgency.PREFETCH)
    porter.want(("op", 2, "arena-a"), Urgency.INSTALL)
    errands.gate.set()
    eventually(lambda: len(errands.asked) > 1)
    assert [order.group for order in errands.asked[1]["a"]] == [2, 1]


def test_a_copy_that_waits_is_brought_on_once_it_is_some_steps_behind(porter, errands):
    known(porter)
    work = porter.want(("op", 4, "arena-a"), Urgency.PREFETCH)
    eventually(lambda: work.known_step == 3)
    porter.committed(heads(4, "2" * 32))
    time.sleep(0.05)
    assert work.known_step == 3
    porter.committed(heads(3 + porters.LAG_STEPS, "3" * 32))
    eventually(lambda: work.known_step == 3 + porters.LAG_STEPS)


def test_an_errand_that_fails_is_run_again(porter, errands):
    known(porter)
    errands.failures = 3
    work = porter.want(("op", 4, "arena-a"), Urgency.INSTALL)
    eventually(lambda: work.known_step == 3)
    assert not work.problem


def test_a_host_that_cannot_is_told_with_its_reason(porter, errands):
    known(porter)
    errands.problem = "no room"
    work = porter.want(("op", 4, "arena-a"), Urgency.INSTALL)
    eventually(lambda: work.problem == "no room")


def test_a_host_that_runs_no_task_is_waited_for_and_then_given_up(porter, errands, monkeypatch):
    known(porter)
    errands.elsewhere = True
    work = porter.want(("op", 4, "arena-a"), Urgency.INSTALL)
    eventually(lambda: len(errands.asked) > 5)
    assert not work.problem
    monkeypatch.setattr(porters, "_PATIENCE_S", 0.0)
    eventually(lambda: bool(work.problem))
    assert "host a" in work.problem


def test_a_table_is_dropped_once(porter, errands):
    known(porter)
    work = porter.want(("op", 4, "arena-a"), Urgency.DROP)
    eventually(lambda: work.dropped)
    assert errands.asked[-1]["a"][0].token == ""


def test_the_thread_ends_when_nothing_is_wanted(porter):
    known(porter)
    place = ("op", 4, "arena-a")
    work = porter.want(place, Urgency.PREFETCH)
    eventually(lambda: work.known_step == 3)
    porter.forget(place)
    eventually(lambda: porter._thread is None)
