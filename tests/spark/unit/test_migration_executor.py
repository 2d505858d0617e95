"""What each migration instruction becomes on Spark: groups held, routed, brought and dropped."""

from __future__ import annotations

import json

import pytest
from carried import GROUPS, HOSTS, Job
from fake_copy_thread import FakeCopyThread

from headgate.core.assignment import Assignment, spread
from headgate.migration import registry
from headgate.migration.events import Cause, Requested
from headgate.migration.instructions import Prefetch
from headgate.migration.plan import uniform
from headgate.spark.api.writer import Writer
from headgate.spark.move.copy_thread import OF_EPOCHS, Urgency
from headgate.spark.move.migration_executor import MigrationExecutor
from headgate.spark.settings.query_settings import QuerySettings


@pytest.mark.parametrize("name", [n for n in registry.names() if n != "shared"])
def test_every_strategy_ends_in_the_wanted_assignment_with_nothing_left(name):
    job = Job(name)
    job.run(at_once=1)
    assert job.state.assignment.slot_of == job.target.slot_of
    assert job.migration.unserved() == frozenset()
    assert job.copy_thread.works == {}
    assert job.migration._durable.held == job.migration._durable.inactive == set()


def test_with_subscale_no_group_is_ever_unserved():
    assert set(Job("subscale").run(at_once=2)) == {frozenset()}


def test_all_at_once_holds_what_moves_until_the_last_group_is_there():
    job = Job("all-at-once")
    unserved = job.run(at_once=1)
    between_hosts = {g for g in job.moving if HOSTS[job.target.slot_of[g]] == "b"}
    assert unserved[0] == frozenset(job.moving)
    assert all(between_hosts <= found for found in unserved[: len(between_hosts)])
    assert unserved[-1] == frozenset()


def test_fluid_holds_one_group_at_a_time():
    assert max(len(found) for found in Job("fluid").run()) == 1


def test_stop_restart_holds_every_group():
    assert Job("stop-restart").run(at_once=1)[2] == frozenset(range(GROUPS))


def test_on_demand_brings_the_group_first_that_records_wait_for():
    job = Job("on-demand")
    job.boundary()
    last = max(job.moving)
    job.state.backlog[last] = [["file", 0, 5, 0]]
    job.migration.committed(job.step - 1, 1.0)
    job.boundary()
    wanted = [g for (_, g, _), w in job.copy_thread.works.items() if w.urgency is Urgency.INSTALL]
    assert last in wanted


def to_a_slot_with_groups_of_its_own(strategy):
    return Job(strategy, target=spread(4, GROUPS).remap({0: 3}), slots=4)


def test_without_record_scheduling_a_slot_with_a_group_on_its_way_serves_nothing():
    job = to_a_slot_with_groups_of_its_own("subscale(scheduling=false, early_route=true)")
    assert job.boundary() == {0, *spread(4, GROUPS).groups_of(3)}


def test_with_record_scheduling_the_slot_serves_its_other_groups():
    assert to_a_slot_with_groups_of_its_own("subscale(early_route=true)").boundary() == {0}


def test_by_default_the_slot_serves_its_other_groups_however_many_records_it_defers():
    job = to_a_slot_with_groups_of_its_own("subscale(early_route=true)")
    job.state.backlog[0] = [["file", 0, 100_000, 0]]
    assert job.boundary() == {0}


def test_a_slot_that_has_deferred_as_many_records_as_it_may_serves_nothing_until_they_are_served():
    # deferred=8      batch  1   2     3      4            5
    # of group 0 wait        -   5   5 + 3   5 + 3         -
    # the slot serves its    yes yes  no     no, installed yes     other groups
    job = to_a_slot_with_groups_of_its_own("subscale(early_route=true, deferred=8)")
    everything = {0, *spread(4, GROUPS).groups_of(3)}
    assert job.boundary() == {0}
    job.state.backlog[0] = [["file", 0, 5, 0]]
    assert job.boundary() == {0}
    # what waits of a group that is ready is not deferred
    job.state.backlog[max(everything)] = [["file", 5, 100, 0]]
    assert job.boundary() == {0}
    job.state.backlog[0].append(["file", 105, 3, 0])
    assert job.boundary() == everything
    assert job.boundary() == everything
    job.copy_thread.work(job.state, job.step - 1)
    assert job.boundary() == frozenset()


def test_suspended_is_a_slot_that_has_records_waiting_and_serves_none_of_them():
    # slot 3 has groups 0 (on its way), 10 and 11; slots 1 and 2 have nothing to do: they are idle
    # batch        1     2       3          4          5
    # 0 waits      no    yes     yes        yes        yes
    # 11           -     -       served     waits      waits, 10 is served
    # suspended    no    2.0 s   no         0.5 s      no
    job = to_a_slot_with_groups_of_its_own("subscale(early_route=true)")

    def batch(took_s, *served):
        job.boundary()
        for group in served:
            job.state.steps[group] = job.step - 1
        job.migration.committed(job.step - 1, took_s)
        return job.migration.suspended_s

    assert batch(3.0) == 0.0
    job.state.backlog[0] = [["file", 0, 5, 0]]
    assert batch(2.0) == 2.0
    assert batch(3.0, 11) == 2.0
    job.state.backlog[11] = [["file", 5, 5, 0]]
    assert batch(0.5) == 2.5
    assert batch(3.0, 10) == 2.5


def test_the_bound_of_a_slot_outlives_the_driver():
    job = to_a_slot_with_groups_of_its_own("subscale(early_route=true, deferred=8)")
    job.boundary()
    job.state.backlog[0] = [["file", 0, 8, 0]]
    kept = json.loads(json.dumps(job.migration.to_dict()))
    resumed = MigrationExecutor.resumed("op", job.state, FakeCopyThread(), kept, job.passed.append)
    assert resumed.unserved() == {0, *spread(4, GROUPS).groups_of(3)}


def test_a_query_takes_the_bound():
    writer = Writer.__new__(Writer)
    writer.settings = QuerySettings()
    for strategy in ("subscale(deferred=3)", "subscale(scheduling=false)"):
        assert writer.migration(strategy).settings.migration == strategy


def test_a_group_is_not_routed_while_its_copy_lags_by_more_than_a_batch():
    job = Job("subscale")
    job.boundary()
    job.copy_thread.work(job.state, job.step - 3)
    job.state.tokens = [f"{g:032x}" for g in range(100, 100 + GROUPS)]
    job.boundary()
    assert "caught up" not in job.what()
    for work in job.copy_thread.works.values():
        work.known_step = job.step - 2
    job.boundary()
    assert "caught up" in job.what()


def test_in_epochs_a_copy_may_lag_by_more_of_them():
    job = Job("subscale")
    job.copy_thread.lags = OF_EPOCHS
    job.boundary()
    job.copy_thread.work(job.state, job.step - 3)
    job.state.tokens = [f"{g:032x}" for g in range(100, 100 + GROUPS)]
    for work in job.copy_thread.works.values():
        work.known_step = job.step - 1 - OF_EPOCHS.caught_up
    job.boundary()
    assert "caught up" in job.what()


def test_a_group_is_routed_only_once_no_task_has_its_file_open():
    job = Job("subscale")
    job.boundary()
    job.copy_thread.work(job.state, job.step - 1)
    moving = {g for _, g, _ in job.copy_thread.works}
    job.copy_thread.open = set(moving)
    job.boundary()
    assert job.state.assignment.slot_of[min(moving)] == spread(2, GROUPS).slot_of[min(moving)]
    job.copy_thread.open = set()
    job.run()


def caught_up(strategy="subscale(groups_min=2)"):
    """Return a job whose first subscale has caught up and waits to be routed, and its groups."""
    job = Job(strategy)
    job.boundary()
    job.copy_thread.work(job.state, job.step - 1)
    groups = {g for _, g, _ in job.copy_thread.works}
    job.copy_thread.open = set(groups)
    job.boundary()
    (first, *_) = [one for one in job.passed if one.what == "caught up"]
    return job, first.groups


def test_a_subscale_is_routed_when_the_last_of_its_groups_is():
    job, groups = caught_up()
    first, *others = groups
    assert others
    job.copy_thread.open = set(others)
    job.boundary()
    assert job.state.assignment.slot_of[first] == job.target.slot_of[first]
    assert groups not in job.routed()
    job.copy_thread.open = set()
    job.boundary()
    assert groups in job.routed()


def test_a_copy_that_fell_behind_again_is_brought_on_before_its_group_is_routed():
    job, groups = caught_up()
    job.copy_thread.open = set()
    job.state.tokens = [f"{g:032x}" for g in range(100, 100 + GROUPS)]
    for work in job.copy_thread.works.values():
        work.known_step = job.step - 10
    assert job.boundary() == frozenset()
    assert groups not in job.routed()
    for work in job.copy_thread.works.values():
        work.known_step = job.step - 1
    assert job.boundary() == frozenset()
    assert groups in job.routed()


def test_a_copy_that_never_keeps_up_does_not_keep_a_migration_from_ending():
    job, groups = caught_up()
    job.copy_thread.open = set()
    for work in job.copy_thread.works.values():
        work.known_step = job.step - 10
    for _ in range(20):
        job.state.tokens = [f"{job.step:016x}{g:016x}" for g in range(GROUPS)]
        job.boundary()
    assert all(job.state.assignment.slot_of[g] == job.target.slot_of[g] for g in groups)


def test_the_copy_that_the_old_host_keeps_is_dropped():
    job = Job("subscale")
    job.run()
    assert {host for host, _ in job.copy_thread.dropped} == {"a"}


def test_a_restart_goes_on_with_what_the_manifest_carries():
    for boundaries in range(1, 6):
        job = Job("all-at-once")
        for _ in range(boundaries):
            job.boundary()
            job.copy_thread.work(job.state, job.step - 1, 2)
        kept = json.loads(json.dumps(job.migration.to_dict()))
        job.copy_thread = FakeCopyThread()  # arenas are new, so nothing is there
        job.hosts = ("c", "c", "d", "d")
        job.migration = MigrationExecutor.resumed(
            "op", job.state, job.copy_thread, kept, job.passed.append
        )
        job.run(at_once=1)
        assert job.state.assignment.slot_of == job.target.slot_of
        assert job.migration.unserved() == frozenset()


@pytest.mark.parametrize("name", ["all-at-once", "stop-restart", "subscale(early_route=true)"])
def test_a_restart_serves_no_group_that_was_not_served_before_it(name):
    #  Their state is where it was not brought from yet: served now, they would begin anew.
    for boundaries in range(1, 6):
        job = Job(name)
        for _ in range(boundaries):
            job.boundary()
            job.copy_thread.work(job.state, job.step - 1, 1)
        before, kept = job.migration.unserved(), json.loads(json.dumps(job.migration.to_dict()))
        job.migration = MigrationExecutor.resumed(
            "op", job.state, FakeCopyThread(), kept, job.passed.append
        )
        assert job.migration.unserved() == before
        assert json.loads(json.dumps(job.migration.to_dict())) == kept
        assert before
        assert job.boundary() >= before


def test_a_restart_asks_at_once_for_what_was_not_answered():
    job = Job("subscale")
    while "installed" not in job.what():
        job.boundary()
        for work in job.copy_thread.works.values():
            if work.urgency is not Urgency.DROP:
                job.copy_thread.work(job.state, job.step - 1)
    kept = json.loads(json.dumps(job.migration.to_dict()))
    (number, *_) = [one.subscale for one in job.passed if one.what == "installed"]
    job.passed.clear()
    job.migration = MigrationExecutor.resumed(
        "op", job.state, FakeCopyThread(), kept, job.passed.append
    )
    job.boundary()
    assert number in [one.subscale for one in job.passed if one.what == "released"]


def test_a_second_request_replaces_the_first_at_every_step():
    for boundaries in range(5):
        job = Job("subscale")
        for _ in range(boundaries):
            job.boundary()
            job.copy_thread.work(job.state, job.step - 1, 2)
        if not job.migration.running:
            continue
        job.target = Assignment((0,) * GROUPS, 1, 5)
        job.migration.request(Requested(job.target, HOSTS, Cause.HAND))
        job.run(at_once=1)
        assert job.state.assignment.slot_of == job.target.slot_of
        assert job.copy_thread.works == {}


def test_a_lost_destination_is_replaced_by_where_its_slots_are_now():
    job = Job("subscale")
    job.boundary()
    job.copy_thread.work(job.state, job.step - 1, 2)
    job.hosts = ("a", "a", "c", "c")
    job.run(at_once=1)
    assert job.state.assignment.slot_of == job.target.slot_of
    assert job.migration.unserved() == frozenset()


def test_what_fails_three_times_goes_back_to_the_old_assignment():
    class FullPorter(FakeCopyThread):
        def work(self, state, step, count=99):
            super().work(state, step, 0)
            for (_, _, host), work in self.works.items():
                if host == "b":
                    work.problem = "the arena is full"

    job = Job("subscale", copy_thread=FullPorter())
    job.run()
    assert job.migration.protocol.failed == "the arena is full"
    assert job.state.assignment.slot_of == spread(2, GROUPS).slot_of


def test_the_journal_hears_of_each_subscale_in_order():
    job = Job("subscale")
    job.run(at_once=3)
    for number in {one.subscale for one in job.passed}:
        what = [one.what for one in job.passed if one.subscale == number]
        across = next(one for one in job.passed if one.subscale == number)
        if HOSTS[across.source] == HOSTS[across.destination]:
            assert what == ["started", "routed"]
        else:
            assert what == ["started", "caught up", "routed", "installed", "released"]
    assert max(one.moved_bytes for one in job.passed) > 0


@pytest.mark.parametrize(
    ("strategy", "boundaries"),
    [
        ("subscale", 5),
        ("subscale(per_host=8)", 2),
        ("subscale(division=false)", 2),
        ("all-at-once", 3),
        ("on-demand", 86),
        ("fluid", 285),
    ],
)
def test_how_many_batches_a_migration_takes_at_least(strategy, boundaries):
    # 111 of 128 groups, 64 of them to the other host, if every host task is back before its batch is
    job = Job(
        strategy, target=uniform(spread(8, 128), 12), slots=8, groups=128, hosts=("a", "b") * 6
    )
    assert len(job.run(boundaries=400)) - 1 == boundaries


def test_nothing_is_brought_to_a_host_that_has_gone():
    job = Job("subscale")
    job.boundary()
    wanted = dict(job.copy_thread.works)
    job.migration._bring(Prefetch(1, (0,), "gone"), 0, Urgency.PREFETCH)
    assert job.copy_thread.works == wanted
    assert "gone" not in str(job.migration.to_dict())
