"""DRRS's signals (III-A) where there are batches: what each of them is there, and that it is kept.

The record-level rules are in `lab/tests/dataflow/signal_rules.py`.
"""

from __future__ import annotations

import pyarrow as pa
from carried import GROUPS, Job
from fake_copy_thread import FakeCopyThread
from test_backlog import facts
from test_migrations import FakePlacement

from headgate.checkpoint.checkpoint import Checkpoint
from headgate.core.assignment import Assignment, spread
from headgate.migration.protocol import PATIENCE_BOUNDARIES
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState
from headgate.spark.move.copy_thread import Urgency
from headgate.spark.move.migrations import Migrations
from headgate.spark.worker.payloads import table_payload

MOVED = 0
"""The key group that goes to slot 3, on the other host."""


def one_group(strategy="subscale"):
    return Job(strategy, target=spread(4, GROUPS).remap({MOVED: 3}), slots=4)


def test_only_the_operator_that_scales_is_told_and_those_before_it_go_on():
    # DR-01: signals begin at the predecessors, not at the sources
    states = {name: OperatorState.fresh(2, GROUPS) for name in ("first", "second")}
    for state in states.values():
        state.tokens = [f"{g:032x}" for g in range(1, GROUPS + 1)]
    copy_thread, changes = FakeCopyThread(), Changes(states, GROUPS)
    placements = {name: FakePlacement() for name in states}
    migrations = Migrations(
        states, changes, placements, copy_thread, "stop-restart", lambda _: None
    )
    changes.ask(changes.scaled(4, "second"), "user")
    for step in range(5, 25):
        changed = migrations.begin(step)
        assert "first" not in changed
        assert states["first"].held == frozenset()
        assert {operator for operator, _, _ in copy_thread.works} <= {"second"}
        migrations.committed(step)
        copy_thread.work(states["second"], step, 1)
    assert states["first"].assignment == spread(2, GROUPS)
    assert states["second"].assignment.slots == 4


def test_the_trigger_acts_at_the_boundary_of_the_request_whatever_waits():
    # DR-02: a trigger overtakes all data
    job = one_group()
    job.state.backlog[MOVED] = [["file", 0, 100_000, 0]]
    job.boundary()
    (wanted,) = [(g, host, w.urgency) for (_, g, host), w in job.copy_thread.works.items()]
    assert wanted == (MOVED, "b", Urgency.PREFETCH)
    assert job.state.backlog[MOVED] == [["file", 0, 100_000, 0]]


def test_a_trigger_that_comes_again_starts_nothing_anew():
    # DR-02: the first one starts the migration, later ones are ignored
    job = one_group()
    job.boundary()
    (begun,) = job.copy_thread.works.values()
    begun.known_step = job.step - 9  # something of it is there
    job.state.tokens[MOVED] = "f" * 32
    for _ in range(PATIENCE_BOUNDARIES + 2):
        job.boundary()
    assert list(job.copy_thread.works.values()) == [begun]
    assert begun.known_step is not None
    assert job.what().count("started") == 1


def test_the_confirm_is_the_next_batchs_assignment_and_comes_after_the_trigger():
    # DR-03 and DR-04: trigger, table and confirm; what is under way ends under the old table
    job = one_group()
    before = job.state.assignment.slot_of
    job.boundary()
    assert job.copy_thread.works  # the trigger
    job.copy_thread.work(job.state, job.step - 1)
    # the copy is there, and the batch under way has the old table to its end
    assert job.state.assignment.slot_of == before
    job.boundary()
    assert job.state.assignment.slot_of[MOVED] == job.target.slot_of[MOVED]
    assert job.what()[:3] == ["started", "caught up", "routed"]


def test_what_waits_for_a_group_goes_to_its_new_slot_in_its_order(tmp_path):
    # DR-04 and DR-05: records that the confirm overtook reach the new target, order kept
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.open({})
    crc32 = {}
    for name, first in (("older", 0), ("newer", 100)):
        table = pa.table({"k": list(range(first, first + 10))})
        crc32[name] = table_payload(checkpoint, "backlog", name, table, inline_bytes=0).crc32
    job = one_group("all-at-once")
    job.state.backlog = {
        MOVED: [["older", 2, 2, 0], ["newer", 5, 1, 0]],
        1: [["newer", 0, 1, 0]],
    }

    def waiting(slot):
        told = facts(
            slot_of=job.state.assignment.slot_of,
            held=sorted(job.migration.unserved()),
            backlog={str(g): s for g, s in job.state.backlog.items()},
            waiting_crc32=crc32,
        )
        found = told.waiting(slot, checkpoint)
        return [] if found is None else found["k"].to_pylist()

    source, target = job.state.assignment.slot_of[MOVED], job.target.slot_of[MOVED]
    assert waiting(source) == [2, 3, 105, 100]
    job.run()
    assert waiting(source) == [100]
    assert waiting(target) == [2, 3, 105]


def test_the_old_slot_serves_the_groups_that_have_not_left():
    # DR-05
    job = Job("subscale(groups_min=1, per_host=1)")
    while job.migration.running:
        unserved = job.boundary()
        left = {g for one in job.passed if one.what == "routed" for g in one.groups}
        stays = set(job.moving) - left
        assert all(job.state.assignment.slot_of[g] == job.before.slot_of[g] for g in stays)
        assert not unserved & stays
        job.copy_thread.work(job.state, job.step - 1, 1)


def test_state_that_is_there_is_served_only_once_it_is_confirmed():
    # DR-07: the copy is there, the confirm is not; then the confirm is, and the copy is not
    job = one_group()
    job.boundary()
    job.copy_thread.work(job.state, job.step - 1)
    job.copy_thread.open = {MOVED}  # holds the confirm up
    job.boundary()
    assert job.state.assignment.slot_of[MOVED] == job.before.slot_of[MOVED]

    early = one_group("subscale(early_route=true)")
    unserved = early.boundary()
    assert early.state.assignment == Assignment(early.target.slot_of, 4, 1)
    assert unserved == {MOVED}
    assert early.boundary() == {MOVED}
    early.copy_thread.work(early.state, early.step - 1)
    assert early.boundary() == frozenset()
