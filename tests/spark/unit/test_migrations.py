"""From what is wanted to what is in force, with a copy thread that a test drives."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from fake_copy_thread import FakeCopyThread

from headgate.core.assignment import Assignment, spread
from headgate.migration.plan import uniform
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState
from headgate.spark.move import migrations
from headgate.spark.move.migrations import Migrations
from headgate.spark.move.placement import Placement
from headgate.spark.step.live import LiveJob

GROUPS = 12


class FakePlacement(Placement):
    """Two hosts, or as many as a test says."""

    def __init__(self, hosts=("a", "b")):
        self._host_of = {}
        self.hosts = hosts

    @property
    def active(self):
        return len(self.hosts) > 1

    def hosts_of(self, slots):
        return self._wishes(slots, self.hosts)


class Job:
    def __init__(self, slots=2, strategy="", hosts=("a", "b")):
        self.strategy = strategy
        self.states = {"op": OperatorState.fresh(slots, GROUPS)}
        self.state = self.states["op"]
        self.state.tokens = [f"{g:032x}" for g in range(1, GROUPS + 1)]
        self.placement = FakePlacement(hosts)
        self.step = 5
        self.lines = []
        self.start()

    def start(self):
        self.copy_thread = FakeCopyThread()
        self.changes = Changes(self.states, GROUPS)
        self.migrations = Migrations(
            self.states,
            self.changes,
            {"op": self.placement},
            self.copy_thread,
            self.strategy,
            self.lines.append,
        )

    def boundary(self):
        found = self.migrations.begin(self.step)
        self.migrations.committed(self.step)
        self.step += 1
        return found.get("op")

    def run(self, boundaries=60):
        for _ in range(boundaries):
            found = self.boundary()
            self.copy_thread.work(self.state, self.step - 1, 2)
            if found is not None and found.state is not RequestState.MOVING:
                return found
        raise AssertionError("still running")

    def said(self):
        return [line.what for line in self.lines if line.subscale is None]


def test_a_request_by_hand_ends_in_force_under_a_new_epoch():
    job = Job()
    job.changes.ask(job.changes.scaled(4), "user")
    final = job.run()
    assert job.state.assignment.slots == 4
    assert job.state.assignment.epoch > 0
    assert final.before == spread(2, GROUPS)
    assert job.said() == ["requested", "finished"]
    assert not job.migrations.running
    assert job.migrations.to_dict("op") is None


def test_once_a_migration_has_ended_a_policy_may_ask_for_the_next_one():
    job = Job()
    job.changes.ask(job.changes.scaled(4), "user")
    job.run()
    held = job.state.assignment
    assert job.changes.newest("op") == held
    new = Assignment(spread(3, GROUPS).slot_of, 3, held.epoch + 1)
    assert job.changes.propose("op", AssignmentRequest(new, "policy", "", (0, 1, 2), decided=True))


def test_on_the_way_to_fewer_slots_those_that_still_own_a_group_are_there_and_all_that_stay():
    job = Job(slots=4, strategy="subscale(groups_min=1, per_host=1)")
    job.changes.ask(job.changes.scaled(2), "user")
    seen = []
    for _ in range(40):
        found = job.boundary()
        seen.append(job.state.assignment.slots)
        assert seen[-1] > max(job.state.assignment.slot_of)
        assert seen[-1] >= 2
        job.copy_thread.work(job.state, job.step - 1, 1)
        if found is not None and found.state is not RequestState.MOVING:
            break
    assert (seen[0], seen[-1]) == (4, 2)


def test_on_one_host_nothing_is_governed_unless_a_strategy_is_asked_for():
    assert not Job(hosts=("a",)).migrations.governs("op")
    assert not Job(hosts=("a",), strategy="shared").migrations.governs("op")
    assert Job(hosts=("a",), strategy="all-at-once").migrations.governs("op")
    assert Job().migrations.governs("op")


def test_hosts_are_asked_for_when_a_query_begins_so_that_its_first_request_waits_for_no_answer():
    job = Job()
    job.boundary()
    assert job.copy_thread.asked == [["a", "b"]]
    for _ in range(5):
        job.boundary()
    assert job.copy_thread.asked == [["a", "b"]]


def test_on_one_host_nobody_is_asked():
    job = Job(hosts=("a",))
    job.boundary()
    assert job.copy_thread.asked == []


def test_a_request_waits_until_all_hosts_are_known():
    job = Job()
    job.copy_thread.reached = False
    job.changes.ask(job.changes.scaled(4), "user")
    assert job.boundary() is None
    assert job.changes.pending
    job.copy_thread.reached = True
    job.boundary()
    assert not job.changes.pending
    assert job.migrations.running


def test_a_strategy_that_cannot_is_refused_and_the_query_goes_on():
    job = Job(strategy="shared")
    job.changes.ask(job.changes.scaled(4), "user")
    assert job.boundary() is None
    assert job.said() == ["refused"]
    assert "share no memory" in job.lines[-1].why
    assert job.state.assignment == spread(2, GROUPS)
    new = Assignment(spread(3, GROUPS).slot_of, 3, 1)
    assert job.changes.propose("op", AssignmentRequest(new, "policy", "", (0, 1))), "it may ask"


def test_a_second_request_waits_where_the_first_cannot_be_superseded():
    job = Job(strategy="fluid")
    job.changes.ask(job.changes.scaled(4), "user")
    job.boundary()
    job.changes.ask(job.changes.scaled(1), "user")
    job.run()
    assert job.state.assignment.slots == 4
    job.run()
    assert job.state.assignment.slots == 1


def test_a_policy_does_not_disturb_a_migration():
    job = Job()
    job.changes.ask(job.changes.scaled(4), "user")
    job.boundary()
    held = job.state.assignment
    wanted = AssignmentRequest(
        Assignment(held.slot_of, held.slots, held.epoch + 1), "drs", "", (0, 1)
    )
    assert not job.changes.propose("op", wanted)


def test_a_slot_that_only_gets_another_number_stays_where_it_is():
    job = Job(slots=4)
    hosts = job.placement.hosts_of(4)
    before = job.state.assignment
    # slot 1 is given up for slot 0; slots 2 and 3 become 1 and 2
    new = tuple({0: 0, 1: 0, 2: 1, 3: 2}[slot] for slot in before.slot_of)
    wanted = AssignmentRequest(Assignment(new, 3, 1), "drs", "idle", (0, 2, 3), decided=True)
    assert job.changes.propose("op", wanted)
    final = job.run()
    moved = {g for line in job.lines if line.what == "started" for g in line.groups}
    assert moved == set(before.groups_of(1))
    assert job.state.assignment.slot_of == new
    assert job.placement.hosts_of(3) == [hosts[0], hosts[2], hosts[3]]
    assert final.survivors == (0, 2, 3)
    assert final.decided


def test_a_new_driver_goes_on_from_the_manifest():
    job = Job(strategy="all-at-once")
    job.changes.ask(job.changes.scaled(4), "user", "load")
    for _ in range(3):
        job.boundary()
    kept = json.loads(json.dumps(job.migrations.to_dict("op")))
    job.start()
    job.migrations.restore("op", kept)
    final = job.run()
    assert job.state.assignment.slots == 4
    assert (final.by, final.reason) == ("user", "load")


def test_a_new_driver_lets_no_policy_propose_over_a_migration():
    job = Job(strategy="all-at-once")
    job.changes.ask(job.changes.scaled(4), "user", "load")
    for _ in range(3):
        job.boundary()
    kept = json.loads(json.dumps(job.migrations.to_dict("op")))
    job.start()
    job.migrations.restore("op", kept)
    assert job.changes.newest("op").slots == 4
    held = job.state.assignment
    wanted = AssignmentRequest(
        Assignment(held.slot_of, held.slots, held.epoch + 1), "drs", "", (0, 1)
    )
    assert not job.changes.propose("op", wanted)


class Died(Exception):
    """What becomes of a driver that is killed."""


_SMALL = "groups_min=1, per_host=1"
_PREFETCHED = [f"subscale({_SMALL})"]
_HELD = [f"subscale(decoupling=false, {_SMALL})", "fluid"]


@pytest.mark.parametrize(
    ("stage", "strategy"),
    [
        *itertools.product(("started", "released"), (*_PREFETCHED, *_HELD)),
        *itertools.product(("routed", "installed"), (*_PREFETCHED, *_HELD, "all-at-once")),
        *itertools.product(("caught-up",), _PREFETCHED),
        *itertools.product(("held",), _HELD),
    ],
)
def test_a_driver_that_dies_in_any_stage_goes_on_from_the_manifest_before_it(
    stage, strategy, monkeypatch
):
    job = Job(strategy=strategy)
    job.changes.ask(job.changes.scaled(4, partitioning="uniform"), "user")
    kept = None

    def die(point, _count):
        if point == f"migration-{stage}" and kept is not None:
            raise Died

    def live():
        nonlocal kept
        for _ in range(60):
            if job.migrations.running:
                kept = json.dumps(job.migrations.to_dict("op")), copy.deepcopy(job.state)
            job.boundary()
            job.copy_thread.work(job.state, job.step - 1, 1)

    monkeypatch.setattr(migrations, "crash_point", die)
    with pytest.raises(Died):
        live()
    monkeypatch.undo()

    carried, job.state = kept
    job.states = {"op": job.state}
    job.start()  # whatever was on hosts, or being said to them, is gone
    job.migrations.restore("op", json.loads(carried))
    job.run()
    assert job.state.assignment.slot_of == uniform(spread(2, GROUPS), 4).slot_of
    assert job.state.held == frozenset()
    assert job.copy_thread.works == {}


def test_what_is_held_is_known_to_the_state():
    job = Job(strategy="stop-restart")
    job.changes.ask(job.changes.scaled(4), "user")
    job.boundary()
    assert job.state.held == frozenset(range(GROUPS))
    job.run()
    assert job.state.held == frozenset()


def test_executors_are_asked_for_the_slots_that_are_held_and_for_those_on_their_way():
    job = Job(strategy="all-at-once")
    live: Any = LiveJob(None, None, None, job.states, job.changes, None)
    job.changes.ask(job.changes.scaled(4), "user")
    assert (job.state.assignment.slots, live.slots_in_use("op")) == (2, 4)
    job.run()
    assert live.slots_in_use("op") == 4
    job.changes.ask(job.changes.scaled(1), "user")
    assert (job.state.assignment.slots, live.slots_in_use("op")) == (4, 4)
    job.run()
    assert live.slots_in_use("op") == 1


@pytest.mark.parametrize(
    "strategy",
    [
        "subscale",
        "subscale(groups_min=1, per_host=1)",
        "all-at-once",
        "fluid",
        "on-demand",
        "stop-restart",
    ],
)
@pytest.mark.parametrize("again", [None, 1, 3, 6])
def test_while_records_flow_owners_change_only_as_they_were_announced(strategy, again):
    job = Job(strategy=strategy)
    for slots in (4, 3, 5, 2):
        job.changes.ask(job.changes.scaled(slots), "user")
        for boundary in itertools.count():
            assert boundary < 100, "still running"
            if boundary == again:
                job.changes.ask(job.changes.scaled(slots), "user")
            before = job.state.assignment
            still = job.migrations.ending
            announced = {} if still else job.migrations.announce(job.step - 1)
            job.migrations.begin(job.step, still=still)
            job.migrations.committed(job.step)
            now = job.state.assignment
            if not still:
                told = announced.get("op", before)
                assert (now.slot_of, now.slots) == (told.slot_of, told.slots)
            job.step += 1
            job.copy_thread.work(job.state, job.step - 1, 2)
            if not job.migrations.running and not job.changes.pending:
                break
        assert job.state.assignment.slots == slots
    assert job.migrations.to_dict("op") is None


def test_steps_without_a_boundary_between_them_are_as_long_as_they_are(monkeypatch):
    job, now_s, took_s = Job(), itertools.count(), []
    job.changes.ask(job.changes.scaled(4), "user")
    while not job.migrations.running:
        job.boundary()
        job.copy_thread.work(job.state, job.step - 1, 2)
    monkeypatch.setattr(migrations.time, "monotonic", lambda: next(now_s))
    (migration,) = job.migrations._migrations.values()
    monkeypatch.setattr(migration, "committed", lambda _, batch_s: took_s.append(batch_s))
    job.migrations.begin(job.step)
    for step in range(3):
        job.migrations.committed(job.step + step)
    assert took_s == [1, 1, 1]


def test_a_split_of_a_key_group_is_in_force_at_once_and_says_so():
    job, before = Job(), spread(2, GROUPS)
    split = Assignment(before.slot_of, 2, 1, {3: (before.slot_of[3], 1 - before.slot_of[3])})
    assert job.changes.propose("op", AssignmentRequest(split, "policy", "", (0, 1), decided=True))
    final = job.boundary()
    assert final.state is RequestState.IN_FORCE
    assert (final.before, final.assignment) == (before, job.state.assignment)
    assert job.state.assignment.split == split.split
    assert not job.migrations.running


def test_a_request_that_takes_anothers_place_comes_from_what_was_before_both():
    job = Job(strategy="subscale(groups_min=1, per_host=1)")
    job.changes.ask(job.changes.scaled(4), "user")
    job.boundary()
    job.copy_thread.work(job.state, 5, 2)
    for _ in range(4):
        job.boundary()
    assert job.state.assignment != spread(2, GROUPS), "some groups have gone"
    job.changes.ask(job.changes.scaled(3), "user")
    final = job.run()
    assert job.said() == ["requested", "superseded", "finished"]
    assert (final.before, final.assignment.slots) == (spread(2, GROUPS), 3)


def test_a_migration_that_begins_knows_the_last_step_and_says_which_groups_move():
    job = Job(strategy="fluid")
    job.changes.ask(job.changes.scaled(4), "user")
    job.migrations.begin(job.step)
    assert job.copy_thread.heads.step == job.step - 1
    assert job.copy_thread.heads.of["op"] == (tuple(job.state.tokens), tuple(job.state.steps))
    first = job.lines[0]
    assert (first.what, first.step) == ("requested", job.step)
    assert first.strategy.startswith("fluid")
    target = job.changes.newest("op")
    assert set(first.groups) == set(spread(2, GROUPS).moved(target))
    assert first.groups
