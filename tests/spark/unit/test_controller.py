"""Changes, commands and the controller's thread, beside a job that does not run; no session is needed."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from headgate.checkpoint.command_files import Command, CommandFiles
from headgate.control.decision import NOTHING, Change, ChangeKind, Decision
from headgate.control.estimators.task_cost import FIXED_MS
from headgate.control.fleet.grant import Grant
from headgate.core.assignment import Assignment, spread
from headgate.core.errors import CheckpointError, ConfigError
from headgate.core.slo import parse_slo
from headgate.journal import (
    Applied,
    AssignmentChange,
    ControlAct,
    Decided,
    JournalWriter,
    NotReadyToDecide,
    OperatorInfo,
    Start,
)
from headgate.operators.counts import Binned, Counts
from headgate.operators.spec import NEVER_US
from headgate.report.finish import slo_state_text
from headgate.spark.job.assignment_request import AssignmentRequest, RequestState
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Ran, Report
from headgate.spark.steer.commands import FREEZE, Commands
from headgate.spark.steer.controller import ControlConfig, Controller, Cores
from headgate.spark.steer.operator_slots import OperatorSlots

GROUPS = 8
TWO_CORES = Cores(lambda: 2)


class Job:
    """What a query has beside its batches."""

    def __init__(  # noqa: PLR0913 - what differs between tests, by name
        self,
        path,
        policy=None,
        *,
        slots=2,
        advise=False,
        slot_rate=1_000.0,
        slo="mean < 1 s over 300 ms",
        parents=None,
        cores=TWO_CORES,
        windows_us=None,
    ):
        self.states = {name: OperatorState.fresh(slots, GROUPS) for name in ("a", *(parents or {}))}
        self.changes = Changes(self.states, slots_max=GROUPS)
        self.events = []
        self.controller, self.policy = None, policy
        if policy is not None:
            self.controller = Controller(
                ControlConfig(
                    (parse_slo(slo),), policy, 1, GROUPS, advise, windows_us=windows_us or {}
                ),
                JobConfig("job", key_groups=GROUPS, slot_rate=slot_rate, delta_ms=100.0),
                self.states,
                self.changes,
                self.events.append,
                budget_s=lambda: None,
                cores=cores,
                parents=parents or {},
            )
            self.controller.start()
        self.budgets = []
        (path / "headgate").mkdir(exist_ok=True)
        self.files = CommandFiles(path / "headgate")
        self.journal = path / "journal.jsonl"
        self.commands = Commands(
            self.files,
            self.changes,
            self.controller,
            self.events.append,
            self.journal,
            self.budgets.append,
        )
        self.began_ms = time.time() * 1e3

    def batch(self, number, ticks_late=None, results=None):
        """Commit a step of 400 ms in which each group got and finished two records.

        Operators that `ticks_late` names finish what came as many time slots before; `results` has what
        else the reports of an operator say.
        """
        for name, new in self.changes.put_in_force().items():
            self.controller.assigned(name, new)
        started_ms = self.began_ms + 400.0 * number
        tick = int(started_ms // 100) + 1
        reports = []
        for name, late in {"a": 1, **(ticks_late or {})}.items():
            for slot in range(self.states[name].assignment.slots):
                groups = np.array(self.states[name].assignment.groups_of(slot), dtype=np.int64)
                ones = np.ones(len(groups))
                ticks = np.full(len(groups), tick)
                arrivals = Binned(ticks, groups, 2 * ones, 0 * ones, 0 * ones)
                done = Binned(ticks + late, groups, 2 * ones, 200 * ones, 0 * ones)
                one = report(slot, Counts(arrivals, done), 2 * len(groups), name)
                where = Ran("host", started_ms, (tick + late) * 100.0, None)
                reports.append(replace(one, ran=where, **(results or {}).get(name, {})))
        self.controller.committed(reports, started_ms, started_ms)
        self.settle()

    def settle(self):
        """Wait until the controller has worked off what it was told, and run its cycle."""
        controller = self.controller
        assert wait_for(lambda: controller._events.empty() and not controller._due)
        done = threading.Event()
        controller._events.put(done.set)
        assert done.wait(10)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def report(slot, counts, served, operator="a"):
    return Report(
        step=0, attempt=1, operator=operator, slot=slot, token="t", consumed=(), groups={}, sections={},
        changelog=None, output=None, waiting=None, late=None, output_rows=0, late_rows=0,
        segments={}, taken={}, arrived=served, served=served, late_records=0, waiting_records=0,
        served_rows=served, touched_rows=0, served_by_group={}, histogram=((100.0, served),),
        latency_sum_ms=100.0 * served, latency_max_ms=100.0, watermark_us=0, holds_us=0,
        useful_ms=5.0, counts=counts, cpu_ms=4.9,
    )  # fmt: skip


class Grow:
    """Wants one slot more each time it is asked; says so once where it may not."""

    name = "grow"

    def __init__(self, upto=3):
        self.upto = upto
        self.observed = []

    def decide(self, observation):
        view = observation.operators["a"]
        self.observed.append(view)
        if view.slots >= self.upto:
            return NOTHING
        slots, epoch = view.slots + 1, view.assignment.epoch + 1
        new = Assignment(spread(slots, GROUPS).slot_of, slots, epoch)
        change = Change(ChangeKind.RESCALE, new, (*range(view.slots), None))
        return Decision({"a": change}, "more is better", "always", {"slots": float("inf")})

    def applied(self, operator, change, took_s):
        pass

    def slot_failed(self, operator, slot_id):
        pass


def wait_for(condition):
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


# --- changes -------------------------------------------------------------------------------------


def changes(slots=2):
    return Changes({"a": OperatorState.fresh(slots, GROUPS)}, slots_max=6)


def wanted(slots, epoch):
    new = Assignment(spread(slots, GROUPS).slot_of, slots, epoch)
    return AssignmentRequest(new, "policy", "", (0, 1, None), decided=True)


def test_a_policys_change_comes_into_force_at_the_next_boundary():
    c = changes()
    assert c.propose("a", wanted(3, epoch=1))
    assert c.assignment()["a"].slots == 2
    (new,) = c.put_in_force().values()
    assert (new.before.slots, new.assignment.slots, new.decided) == (2, 3, True)
    assert c.assignment()["a"].epoch == 1
    assert c.put_in_force() == {}


@pytest.mark.parametrize("why", ["out of date", "frozen", "a user has asked"])
def test_a_policys_change_is_refused_where_it_does_not_fit(why):
    c = changes()
    if why == "out of date":
        c.ask(c.scaled(4), "user")
        c.put_in_force()
    elif why == "frozen":
        c.freeze()
    else:
        c.ask(c.scaled(4), "user")
    assert not c.propose("a", wanted(3, epoch=1))


def test_a_user_overrules_what_a_policy_asked_for():
    c = changes()
    c.propose("a", wanted(3, epoch=1))
    c.ask(c.scaled(5), "user")
    (new,) = c.put_in_force().values()
    assert (new.assignment.slots, new.decided, new.survivors) == (
        5,
        False,
        (0, 1, None, None, None),
    )


def test_freezing_gives_up_what_was_asked_for_and_ends_by_itself():
    c = changes()
    c.ask(c.scaled(4), "user")
    c.freeze(time.time() + 3600)
    assert c.frozen
    assert c.put_in_force() == {}
    with pytest.raises(ConfigError, match="frozen"):
        c.ask(c.scaled(4), "user")
    c.freeze(time.time() - 1)
    assert not c.frozen


def test_nothing_is_decided_while_slots_are_frozen(tmp_path):
    policy = Grow(2)
    job = Job(tmp_path, policy)
    for number in range(4):
        job.batch(number)
    assert policy.observed
    job.commands.do(Command("freeze", "user"))
    asked = len(policy.observed)
    for number in range(4, 8):
        job.batch(number)
    assert len(policy.observed) == asked
    job.commands.do(Command("thaw", "user"))
    for number in range(8, 12):
        job.batch(number)
    assert len(policy.observed) > asked


def test_a_policy_sees_what_nobody_has_read_until_the_source_is_quiet(tmp_path):
    policy = Grow(2)
    job = Job(tmp_path, policy)
    job.controller.follow_sources(lambda: 7_000.0)
    for number in range(1, 9):
        job.batch(number)
    assert policy.observed[-1].backlog.sum() >= 7_000.0
    job.controller.quiet(job.began_ms + 400.0 * 9)
    job.settle()
    assert policy.observed[-1].backlog.sum() < 7_000.0
    job.controller.stop()


def test_no_floor_is_measured_while_records_wait_at_the_source(tmp_path):
    """They are ten minutes old, and slots that may read only a few of them are nearly idle."""
    job = Job(tmp_path, Grow(2), slo="mean < 5 s over 300 ms", slot_rate=None)
    job.controller.follow_sources(lambda: 7_000.0)
    for number in range(1, 31):
        job.batch(number, results={"a": {"latency_sum_ms": 600_000.0 * 4}})
    assert job.controller.state().floor_ms == 0.0
    job.controller.follow_sources(lambda: 0.0)
    for number in range(31, 61):
        job.batch(number)
    assert 0.0 < job.controller.state().floor_ms < 1_000.0
    job.controller.stop()


def scaled(job, slots, **arguments):
    return job.commands.do(Command("scale", "ops", "", {"slots": slots, **arguments}))


def batches(job, first, last):
    """Commit steps, and return the slots after each."""
    held = []
    for number in range(first, last + 1):
        job.batch(number)
        held.append(job.changes.newest("a").slots)
    return held


def test_slots_that_a_policy_may_change_are_said_to_be_so(tmp_path):
    """A number that somebody asked for was gone two batches later, without a word."""
    job = Job(tmp_path, Grow(5))
    told = scaled(job, 3)
    assert "policy grow may change that" in told
    assert "--hold 10min" in told
    (act,) = job.of(ControlAct)
    assert act.detail == told
    assert batches(job, 1, 12)[-1] == 5
    assert job.controller.state().held_until_ms is None
    job.controller.stop()


def test_slots_that_somebody_holds_are_no_policys_to_change(tmp_path):
    job = Job(tmp_path, Grow(5))
    until_s = time.time() + 600.0
    assert "3 slots, held until " in scaled(job, 3, hold_s=600.0)
    assert set(batches(job, 1, 12)) == {3}
    state = job.controller.state()
    assert state.held_until_ms == pytest.approx(until_s * 1e3, abs=60_000.0)
    assert "slots held until" in slo_state_text(asdict(state))
    # the policy is told that it has no choice, and what it wants all the same is refused
    assert job.policy.observed[-1].held
    assert (job.policy.observed[-1].slots_min, job.policy.observed[-1].slots_max) == (3, 3)
    assert any("somebody holds its 3 slots" in one.why for one in job.of(NotReadyToDecide))
    job.commands.do(Command("thaw", "ops"))
    assert batches(job, 13, 24)[-1] == 5
    assert job.files.held_until_s() == {}
    job.controller.stop()


def test_a_hold_ends_by_itself_and_with_the_next_scale(tmp_path):
    job = Job(tmp_path, Grow(5))
    scaled(job, 3, hold_s=600.0)
    scaled(job, 2)
    assert job.changes.holds() == {}
    job.changes.hold({"a": time.time() - 1.0})
    assert job.changes.holds() == {}
    assert batches(job, 1, 12)[-1] == 5
    job.controller.stop()


def test_a_hold_survives_a_restart(tmp_path):
    first = Job(tmp_path, Grow(5))
    scaled(first, 3, hold_s=600.0)
    first.controller.stop()
    second = Job(tmp_path, Grow(5), slots=3)
    second.commands.restore()
    assert set(batches(second, 1, 12)) == {3}
    second.controller.stop()
    second.files._files.put("control/held", b'{"a": "soon"}')
    third = Job(tmp_path, Grow(5), slots=3)
    third.commands.restore()
    assert any("hold the slots again" in (a.refused or "") for a in third.of(ControlAct))
    third.controller.stop()


def test_a_fleets_grant_waits_for_the_end_of_a_hold(tmp_path):
    job = Job(tmp_path, Grow(5))
    slots = OperatorSlots(job.changes, job.controller, job.events.append)
    scaled(job, 4, hold_s=600.0)
    job.batch(1)
    slots.limit(Grant({"a": 2}, "fleet", "others need them"))
    assert set(batches(job, 2, 12)) == {4}
    job.commands.do(Command("thaw", "ops"))
    assert batches(job, 13, 16)[-1] == 2
    job.controller.stop()


def test_a_hold_needs_a_policy_to_hold_off(tmp_path):
    job = Job(tmp_path, None)
    with pytest.raises(ConfigError, match="no policy that would change its slots"):
        scaled(job, 3, hold_s=600.0)
    assert scaled(job, 3) == "3 slots"


@pytest.mark.parametrize("overruled", [False, True])
def test_a_change_that_a_freeze_gives_up_is_not_waited_for(tmp_path, overruled):
    """Else the loop would wait for ever to hear that it is in force, and decide nothing any more."""
    job = Job(tmp_path, Grow(3))
    number = 0
    while not job.changes.pending:
        job.batch(number)
        number += 1
    if overruled:  # what the policy wanted is gone already, and the loop not told yet
        job.changes.ask(job.changes.scaled(5), "user")
    assert job.controller.state().state == "changing"
    job.commands.do(Command("freeze", "user"))
    job.batch(number)
    assert job.controller.state().state != "changing"
    assert job.changes.assignment()["a"].slots == 2
    assert not job.of(Applied)
    job.commands.do(Command("thaw", "user"))
    for more in range(4):
        job.batch(number + 1 + more)
    assert job.changes.assignment()["a"].slots == 3
    assert len(job.of(Applied)) == 1


def test_a_change_whose_migration_failed_is_not_waited_for(tmp_path):
    job = Job(tmp_path, Grow(3))
    number = 0
    while not job.changes.pending:
        job.batch(number)
        number += 1
    request = job.changes.requested("a")
    in_force = replace(request, assignment=job.changes.assignment()["a"], survivors=(0, 1))
    job.changes.moves("a", request)
    job.controller.assigned("a", replace(in_force, state=RequestState.MOVING))
    job.batch(number)
    assert not job.changes.pending
    job.changes.moved("a")
    job.controller.assigned("a", replace(in_force, state=RequestState.DROPPED))
    job.batch(number + 1)
    assert job.changes.pending, "the policy decides again"
    assert not job.of(Applied)


def test_a_slot_that_is_renumbered_takes_its_rate_along():
    state = OperatorState.fresh(3, GROUPS)
    state.rate_per_s = {0: 10.0, 1: 20.0, 2: 30.0}
    state.assign(Assignment((0,) * 4 + (1,) * 4, 2, 1), (2, 1))
    assert state.rate_per_s == {0: 30.0, 1: 20.0}


def test_slots_at_a_fixed_rate_get_what_the_time_since_the_last_step_allows():
    state = OperatorState.fresh(3, GROUPS)
    assert state.limited(1_000.0, 0.25) == [250] * 3
    assert state.limited(1_000.0, 60.0) == [10_000] * 3
    assert state.limited(1_000.0, 0.0) == [1] * 3


def served_steps(state, config, row_ms, steps, waiting=10**9):
    """Serve steps of slots whose rows cost so much; return what each took, ms, by step and slot."""
    took = []
    for _ in range(steps):
        quotas = state.quotas(config, cores=8, now_ms=0)
        took.append([])
        for slot, quota in enumerate(quotas):
            rows = min(quota, waiting)
            one = replace(report(slot, None, rows), useful_ms=FIXED_MS + rows * row_ms)
            state._learn_rate(one)
            took[-1].append(one.useful_ms)
    return took


@pytest.mark.parametrize("row_ms", [10.0, 1.0, 0.05])
def test_a_slot_that_has_served_nothing_stays_within_its_budget(row_ms):
    """Rows of 10 ms are as dear as a call of something remote; 100,000 of them would take minutes."""
    config, state = (
        JobConfig("job", key_groups=GROUPS, budget_s=2.0),
        OperatorState.fresh(2, GROUPS),
    )
    took = served_steps(state, config, row_ms, 3)
    assert max(max(step) for step in took) <= 2_000.0 + FIXED_MS
    assert min(took[-1]) > 1_900.0  # and by then they use it
    state.assign(Assignment(spread(3, GROUPS).slot_of, 3, 1), (0, 1, None))
    ((*_, of_new),) = served_steps(state, config, row_ms, 1)
    assert 1_900.0 < of_new <= 2_000.0 + FIXED_MS


def test_a_slot_that_had_no_rows_yet_is_given_what_the_others_serve():
    config, state = (
        JobConfig("job", key_groups=GROUPS, budget_s=1.0),
        OperatorState.fresh(3, GROUPS),
    )
    assert state.quotas(config, 8, 0) == [100] * 3
    for slot, rows in enumerate((100, 100, 0)):
        state._learn_rate(replace(report(slot, None, rows), useful_ms=FIXED_MS + rows))
    assert state.quotas(config, 8, 0) == [1_000] * 3


def test_slots_that_compute_stay_within_the_machines_cores_and_the_journal_says_why(tmp_path):
    # Spark runs eight at a time, but they share two cores
    job = Job(tmp_path, Grow(4), slots=1, slot_rate=None, cores=Cores(lambda: 8, machine=2))
    for number in range(8):
        job.batch(number)
    assert job.changes.newest("a").slots == 2
    refused = [event.why for event in job.of(NotReadyToDecide)][-1]
    assert refused.endswith(
        "it has 3 slots, the most is 2: the cores are the limit: slots compute for 98% of their "
        "time, and the machine has 2"
    )
    assert job.controller._loop.settings("a").slots_max == 2


def test_at_a_fixed_rate_and_where_cores_may_come_slots_are_not_limited(tmp_path):
    for number, given in enumerate(({"slot_rate": 1_000.0}, {"cores": Cores(lambda: 8)})):
        (tmp_path / str(number)).mkdir()
        made = {"slot_rate": None, "cores": Cores(lambda: 8, machine=2), **given}
        job = Job(tmp_path / str(number), Grow(4), slots=1, **made)
        for step in range(8):
            job.batch(step)
        assert job.changes.newest("a").slots == 4


# --- commands ------------------------------------------------------------------------------------


def test_a_file_is_carried_out_once_and_written_down(tmp_path):
    job = Job(tmp_path)
    request = job.files.ask(Command("scale", "ann", "INC-7", {"slots": 5}))
    job.commands.poll()
    job.commands.poll()
    assert job.changes.newest("a").slots == 5
    assert job.files.answer(request)["refused"] is None
    assert job.of(ControlAct) == [ControlAct("scale", "ann", "INC-7", "5 slots", None)]


def test_a_request_whose_answer_cannot_be_written_is_not_carried_out_again(tmp_path, monkeypatch):
    def full(request, refused, detail):
        raise CheckpointError("no space left")

    job = Job(tmp_path)
    job.files.ask(Command("scale", "ann", "", {"slots": 5}))
    monkeypatch.setattr(job.files, "write_answer", full)
    job.commands.poll()
    job.commands.poll()
    assert len(job.of(ControlAct)) == 1


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (Command("scale", "ann", "", {"slots": 99}), "exceeds slots max=8"),
        (Command("scale", "ann", "", {"slots": "4"}), "not a whole number"),
        (Command("scale", "ann", "", {"slots": 3, "operator": "b"}), 'unknown operator "b"'),
        (Command("scale", "ann", "", {"slots": 3, "operator": ["a"]}), "operator=['a'] is no name"),
        (
            Command("scale", "ann", "", {"slots": 3, "partitioning": {}}),
            "partitioning={} is no name",
        ),
        (Command("scale", "ann", "", {"slots": 3, "partitioning": 2}), "partitioning=2 is no name"),
        (Command("rollback", "ann", "", {"epoch": 4}), "epoch 4 is not known; use 0 to 0"),
        (Command("freeze", "ann", "", {"until_s": "soon"}), "is no time"),
    ],
)
def test_what_cannot_be_done_is_answered_with_the_reason(tmp_path, command, message):
    job = Job(tmp_path)
    job.journal.write_bytes(b"")
    request = job.files.ask(command)
    job.commands.poll()
    assert message in job.files.answer(request)["refused"]
    assert message in job.of(ControlAct)[0].refused


def test_a_query_that_was_frozen_starts_frozen(tmp_path, monkeypatch):
    Job(tmp_path).commands.do(Command("freeze", "user"))
    again = Job(tmp_path)
    again.commands.restore()
    assert again.changes.frozen
    again.commands.do(Command("thaw", "user"))
    third = Job(tmp_path)
    third.commands.restore()
    assert not third.changes.frozen
    monkeypatch.setenv(FREEZE, "1")
    third.commands.restore()
    assert third.changes.frozen


def test_rollback_goes_back_to_the_assignment_of_an_epoch(tmp_path):
    job = Job(tmp_path)
    for slots in (3, 5):
        job.changes.ask(job.changes.scaled(slots), "user")
        job.changes.put_in_force()
    of_epoch_1 = job.changes.at(1)["a"].slot_of
    job.commands.do(Command("rollback", "user", "", {"epoch": 1}))
    job.changes.put_in_force()
    assert job.changes.assignment()["a"].slot_of == of_epoch_1
    assert job.changes.epoch == 3


def test_rollback_reads_epochs_before_a_restart_from_the_journal(tmp_path):
    job = Job(tmp_path)
    job.states["a"].assignment = Assignment((1,) * GROUPS, 2, 7)
    job.changes = job.commands._changes = Changes(job.states, GROUPS)
    with JournalWriter(job.journal) as writer:
        writer.write(Start("j", "q", GROUPS, 4, operators=(OperatorInfo("a", ""),)))
        slot_of = (0, 1, 2) + (2,) * (GROUPS - 3)
        writer.write(AssignmentChange(3, 1, 4, 3, 9, 0, "x", operator="a", slot_of=slot_of))
    job.commands.do(Command("rollback", "user", "", {"epoch": 1}))
    assert job.changes.newest("a").slot_of == slot_of
    job.commands.do(Command("rollback", "user", "", {"epoch": 0}))
    assert job.changes.newest("a").slot_of == spread(4, GROUPS).slot_of


def test_of_many_changes_a_few_are_remembered_and_a_rollback_finds_the_others(tmp_path):
    job = Job(tmp_path)
    slot_of = {0: job.states["a"].assignment.slot_of}
    with JournalWriter(job.journal) as writer:
        slots = job.states["a"].assignment.slots
        writer.write(Start("j", "q", GROUPS, slots, operators=(OperatorInfo("a", ""),)))
        for step in range(200):
            job.changes.ask(job.changes.scaled(2 + step % 2), "user")
            (new,) = job.changes.put_in_force().values()
            after = new.assignment
            slot_of[after.epoch] = after.slot_of
            writer.write(
                AssignmentChange(
                    step,
                    after.epoch,
                    new.before.slots,
                    after.slots,
                    1,
                    0,
                    "x",
                    operator="a",
                    slot_of=after.slot_of,
                )
            )
    for epoch in (0, 1, 100, 199):
        job.commands.do(Command("rollback", "user", "", {"epoch": epoch}))
        assert job.changes.newest("a").slot_of == slot_of[epoch]
    assert len(job.changes._held) < 50


def test_an_operator_that_did_not_change_for_long_is_rolled_back_to_what_it_had():
    c = Changes({n: OperatorState.fresh(2, GROUPS) for n in "ab"}, slots_max=6)
    for step in range(200):
        c.ask(c.scaled(2 + step % 2, "a"), "user")
        c.put_in_force()
    assert c.at(190)["b"].slot_of == spread(2, GROUPS).slot_of


def test_requests_that_are_answered_are_forgotten(tmp_path):
    job = Job(tmp_path)
    for slots in range(1, GROUPS):
        job.files.ask(Command("scale", "ann", "", {"slots": slots}))
        job.commands.poll()
    job.commands.poll()
    assert not job.commands._answered


# --- the controller ------------------------------------------------------------------------------


def test_a_decision_is_carried_out_and_heard_of_when_it_is_in_force(tmp_path):
    policy = Grow()
    job = Job(tmp_path, policy)
    for number in range(8):
        job.batch(number)
    job.controller.stop()
    assert job.changes.assignment()["a"].slots == 3
    (decided,) = [d for d in job.controller.decisions() if d.acts]
    assert (decided.reason, decided.wishes[0].slots) == ("more is better", 3)
    assert decided.numbers == {"slots": None}
    assert [a.slots for a in job.of(Applied)] == [3]
    # the new slot is known, and nothing is decided on counters of the old epoch
    assert policy.observed[-1].slots == 3
    assert len(set(policy.observed[-1].slot_ids)) == 3


def test_advice_changes_nothing(tmp_path):
    policy = Grow()
    job = Job(tmp_path, policy, advise=True)
    for number in range(6):
        job.batch(number)
    job.controller.stop()
    assert not job.changes.pending
    assert [(d.acts, d.wishes[0].slots) for d in job.of(Decided)][:1] == [(False, 3)]


def test_the_state_tells_success_floor_and_cost(tmp_path):
    job = Job(tmp_path, Grow(upto=2))
    for number in range(30):
        job.batch(number)
    job.controller.stop()
    state = job.controller.state()
    assert state.success == 1.0
    assert state.windows > 0
    assert state.bound_ms == 1_000.0
    assert state.floor_ms == pytest.approx(100.0)
    assert state.loop_ms > 0.0
    assert job.controller.state().cycles == 0


def test_a_loop_that_fails_says_so_once_and_the_job_goes_on(tmp_path):
    class Broken(Grow):
        def decide(self, observation):
            raise RuntimeError("out of ideas")

    job = Job(tmp_path, Broken())
    for number in range(6):
        job.batch(number)
    job.controller.stop()
    told = [e.why for e in job.of(NotReadyToDecide) if "failed" in e.why]
    assert told == ["the control loop failed: RuntimeError: out of ideas"]


def test_another_slo_is_used_from_the_next_cycle_on(tmp_path):
    policy = Grow(upto=2)
    job = Job(tmp_path, policy)
    for number in range(6):
        job.batch(number)
    job.commands.do(Command("slo", "user", "", {"slos": ["mean < 3 s over 300 ms"]}))
    for number in range(6, 9):
        job.batch(number)
    job.controller.stop()
    assert {policy.observed[0].bound_s, policy.observed[-1].bound_s} == {1.0, 3.0}
    assert job.budgets == [pytest.approx(2.4)]


class Watch(Grow):
    """Wants nothing; keeps the bounds that it was shown."""

    def __init__(self):
        self.bounds_s = []

    def decide(self, observation):
        self.bounds_s.append({name: v.bound_s for name, v in observation.operators.items()})
        return NOTHING


@pytest.mark.filterwarnings("ignore:SLO")
def test_an_end_to_end_bound_is_shared_so_that_the_slower_operator_of_a_chain_gets_more(tmp_path):
    policy = Watch()
    slo = "end-to-end: mean < 2 s over 1 s"
    job = Job(tmp_path, policy, slo=slo, parents={"b": ("a",)})
    clock = iter(range(10_000))
    job.controller._now_s = lambda: float(next(clock))  # the bounds move every 10 s

    def batches(numbers):
        policy.bounds_s.clear()
        for number in numbers:
            job.batch(number, {"b": 12})
        return [bounds for bounds in policy.bounds_s if len(bounds) == 2]

    found = batches(range(24))
    assert found[0] == {"a": 1.0, "b": 1.0}
    assert all(sum(bounds.values()) == pytest.approx(2.0) for bounds in found)
    assert found[-1]["b"] > found[-1]["a"] + 0.1
    job.controller.judge_by([parse_slo("end-to-end: mean < 3 s over 1 s")])
    assert sum(batches(range(24, 28))[-1].values()) == pytest.approx(3.0)
    job.controller.stop()


@pytest.mark.filterwarnings("ignore:SLO")
def test_an_end_to_end_bound_is_shared_on_each_path_of_a_join_by_itself(tmp_path):
    # c joins what a and b put out, and each record goes through one of these
    parents = {"b": (), "c": ("a", "b")}
    policy = Watch()
    job = Job(tmp_path, policy, slo="end-to-end: mean < 2 s over 1 s", parents=parents)
    for number in range(6):
        job.batch(number, {"b": 1, "c": 1})
    job.controller.stop()
    full = [bounds for bounds in policy.bounds_s if len(bounds) == 3]
    assert full[0] == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_end_to_end_every_operator_of_a_chain_is_judged_from_the_source_on(tmp_path):
    # 100 ms to what a puts out, and 950 ms more to what b does: b alone would be within the bound
    job = Job(tmp_path, Watch(), slo="end-to-end: mean < 1 s over 300 ms", parents={"b": ("a",)})
    took = {"b": {"histogram": ((950.0, 8),), "latency_sum_ms": 8 * 950.0}}
    for number in range(6):
        job.batch(number, {"b": 2}, took)
    found = job.controller.state()
    assert found.by_operator == {"a": 1.0, "b": 0.0}
    assert (found.success, found.worst_operator) == (0.0, "b")
    job.controller.judge_by([parse_slo("end-to-end: mean < 1200 ms over 300 ms")])
    for number in range(6, 30):
        job.batch(number, {"b": 2}, took)
    assert job.controller.state().success > 0.5
    job.controller.stop()


def test_end_to_end_a_windows_result_is_charged_its_wait(tmp_path):
    windows = {"b": 10_000_000}
    slo = "end-to-end: mean < 1 s over 300 ms"
    job = Job(tmp_path, Watch(), slo=slo, parents={"b": ("a",)}, windows_us=windows)
    for number in range(6):
        # the newest record of the window came to b two seconds before its result is put out
        began_ms = job.began_ms + 400.0 * number
        waits = {"newest_ms": {0: {0: began_ms - 2000.0}}, "results": {0: {10_000_000: 5}}}
        job.batch(number, {"b": 2}, {"b": waits})
    found = job.controller.state()
    assert found.by_operator == {"a": 1.0, "b": 0.0}
    assert found.success == 0.0
    job.controller.stop()


def test_a_query_without_an_slo_cannot_get_one(tmp_path):
    with pytest.raises(ConfigError, match="started without an SLO"):
        Job(tmp_path).commands.do(Command("slo", "user", "", {"slos": ["1s over 1s"]}))


@pytest.mark.parametrize("text", ['{"until_s": 1' + "0" * 400 + "}", '{"until_s": 1e300}', "["])
def test_a_query_starts_although_its_note_of_a_freeze_is_damaged(tmp_path, text):
    Job(tmp_path).commands.do(Command("freeze", "user"))
    note = tmp_path / "headgate" / "control" / "frozen"
    note.write_text(text)
    again = Job(tmp_path)
    again.commands.restore()
    assert not again.changes.frozen
    (told,) = again.of(ControlAct)
    assert "frozen cannot be read" in told.refused
    assert "set aside as frozen.damaged" in told.refused
    assert not note.exists()


def test_a_request_that_cannot_be_read_is_noted_once(tmp_path):
    job = Job(tmp_path)
    request = job.files.ask(Command("freeze", "user"))
    (tmp_path / "headgate" / "control" / f"{request}.json").write_text("{")
    job.commands.poll()
    job.commands.poll()
    (told,) = job.of(ControlAct)
    assert (told.act, "cannot be read" in told.refused) == ("request", True)
    assert "cannot be read" in job.files.answer(request)["refused"]


def test_an_operator_that_has_seen_nothing_has_no_rows_and_nothing_due():
    state = OperatorState.fresh(2, 4)
    assert (state.rows, state.emitted_us) == ([0] * 4, [0] * 4)
    assert (state.steps, state.full_steps) == ([-1] * 4, [-1] * 4)
    assert (state.due_us, state.waiting_rows(), state.changed_rows) == (
        [int(NEVER_US)] * 4,
        0,
        None,
    )
