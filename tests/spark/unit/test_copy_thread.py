"""The copy thread's thread: what is brought first, what is tried again, and when it gives up."""

from __future__ import annotations

import threading
import time

import pytest

from headgate.spark.move import copy_thread as copy_threads
from headgate.spark.move.copy_thread import CopyThread, StepHeads, Urgency
from headgate.spark.move.host_tasks import OrderDone, TaskAnswer

TOKEN = "1" * 32


class FakeHostTasks:
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
                answers.append(TaskAnswer(host, "other", "arena-other"))
                continue
            done = tuple(OrderDone(o, 100 if o.token else 0, self.problem) for o in orders)
            answers.append(TaskAnswer(host, host, f"arena-{host}", done))
        return answers


@pytest.fixture
def host_tasks():
    return FakeHostTasks()


@pytest.fixture
def copy_thread(host_tasks, monkeypatch):
    monkeypatch.setattr(copy_threads, "_PAUSE_S", 0.005)
    made = CopyThread(lambda: host_tasks)
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


def known(copy_thread, host="a"):
    eventually(lambda: copy_thread.knows([host]))


def test_a_host_is_asked_for_its_arena_once(copy_thread, host_tasks):
    assert not copy_thread.knows(["a", "b"])
    eventually(lambda: copy_thread.knows(["a", "b"]))
    assert copy_thread.arenas(["b", "a"]) == ("arena-b", "arena-a")


def test_what_is_wanted_is_brought_and_counted(copy_thread):
    known(copy_thread)
    work = copy_thread.want(("op", 4, "arena-a"), Urgency.PREFETCH)
    eventually(lambda: work.known_step == 3)
    assert work.moved_bytes == 100
    assert work.lag_steps(TOKEN, 9) == 0
    assert work.lag_steps("2" * 32, 5) == 2


def test_installs_come_before_prefetches(copy_thread, host_tasks):
    known(copy_thread)
    host_tasks.gate.clear()
    host_tasks.asked.clear()
    copy_thread.want(("op", 0, "arena-a"), Urgency.PREFETCH)
    time.sleep(0.05)  # the thread is at the gate with the first
    copy_thread.want(("op", 1, "arena-a"), Urgency.PREFETCH)
    copy_thread.want(("op", 2, "arena-a"), Urgency.INSTALL)
    host_tasks.gate.set()
    eventually(lambda: len(host_tasks.asked) > 1)
    assert [order.group for order in host_tasks.asked[1]["a"]] == [2, 1]


def test_a_copy_that_waits_is_brought_on_once_it_is_some_steps_behind(copy_thread, host_tasks):
    known(copy_thread)
    work = copy_thread.want(("op", 4, "arena-a"), Urgency.PREFETCH)
    eventually(lambda: work.known_step == 3)
    copy_thread.committed(heads(4, "2" * 32))
    time.sleep(0.05)
    assert work.known_step == 3
    copy_thread.committed(heads(3 + copy_threads.Lags().served, "3" * 32))
    eventually(lambda: work.known_step == 3 + copy_threads.Lags().served)


def test_an_errand_that_fails_is_run_again(copy_thread, host_tasks):
    known(copy_thread)
    host_tasks.failures = 3
    work = copy_thread.want(("op", 4, "arena-a"), Urgency.INSTALL)
    eventually(lambda: work.known_step == 3)
    assert not work.problem


def test_a_host_that_cannot_is_told_with_its_reason(copy_thread, host_tasks):
    known(copy_thread)
    host_tasks.problem = "no room"
    work = copy_thread.want(("op", 4, "arena-a"), Urgency.INSTALL)
    eventually(lambda: work.problem == "no room")
    assert work.failures == 3, "it was asked as often as that before"


def test_a_host_that_runs_no_task_is_waited_for_and_then_given_up(
    copy_thread, host_tasks, monkeypatch
):
    known(copy_thread)
    host_tasks.elsewhere = True
    work = copy_thread.want(("op", 4, "arena-a"), Urgency.INSTALL)
    eventually(lambda: len(host_tasks.asked) > 5)
    assert not work.problem
    monkeypatch.setattr(copy_threads, "_PATIENCE_S", 0.0)
    eventually(lambda: bool(work.problem))
    assert "host a" in work.problem


def test_a_table_is_dropped_once(copy_thread, host_tasks):
    known(copy_thread)
    work = copy_thread.want(("op", 4, "arena-a"), Urgency.DROP)
    eventually(lambda: work.dropped)
    assert host_tasks.asked[-1]["a"][0].token == ""


def test_the_thread_ends_when_nothing_is_wanted(copy_thread):
    known(copy_thread)
    place = ("op", 4, "arena-a")
    work = copy_thread.want(place, Urgency.PREFETCH)
    eventually(lambda: work.known_step == 3)
    copy_thread.forget(place)
    eventually(lambda: copy_thread._thread is None)
