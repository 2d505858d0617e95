"""Grants, without Spark: no job ever holds more than it is granted, nor all more than there is."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.control.fleet.grant import Grant
from headgate.control.fleet.ledger import Ledger
from headgate.core.assignment import rescale
from headgate.core.errors import ConfigError
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.changes import Changes
from headgate.spark.job.job import OperatorState

GROUPS = 12
SLOTS = st.integers(1, GROUPS)
JOBS = st.sampled_from(["a", "b", "c"])


class Job:
    """A query's changes of one operator, and the grant that it had when its last batch began."""

    def __init__(self, slots):
        self.changes = Changes({"op": OperatorState.fresh(slots, GROUPS)}, GROUPS)
        self.granted = slots

    @property
    def held(self):
        return self.changes.assignment()["op"].slots


class Budget(RuleBasedStateMachine):
    """Jobs that come, go, hang, decide for themselves and are scaled, under a ledger."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(16)
        self.jobs: dict[str, Job] = {}
        self.most = 16
        """What was taken at most since the budget suffices."""

    @property
    def held(self):
        return {name: {"op": job.held} for name, job in self.jobs.items()}

    def told(self, granted):
        for name, slots in granted.items():
            self.jobs[name].changes.limit(Grant(slots, "fleet"))

    @rule(name=JOBS, slots=SLOTS)
    def comes(self, name, slots):
        if name not in self.jobs:
            job = self.jobs[name] = Job(slots)
            others = self.ledger.taken({n: h for n, h in self.held.items() if n != name})
            self.told({name: self.ledger.enter(name, {"op": slots}, others)})
            job.changes.put_in_force()  # its first batch
            self.ledger.cut(sorted(self.jobs))

    @rule(name=JOBS)
    def goes(self, name):
        if self.jobs.pop(name, None):
            self.ledger.leave(name)

    @rule(name=JOBS, slots=SLOTS)
    def fleet_wants(self, name, slots):
        self.ledger.want({name: {"op": slots}})

    @rule()
    def settles(self):
        before = self.ledger.taken(self.held)
        changed = self.ledger.settle(self.held)
        self.told(changed)
        assert self.ledger.taken(self.held) <= max(before, self.ledger.budget)

    @rule(budget=st.integers(3, 24))
    def budget_changes(self, budget):
        self.ledger.budget = budget
        self.ledger.cut(sorted(self.jobs))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), slots=SLOTS)
    def policy_proposes(self, data, slots):
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        new = rescale(job.changes.assignment()["op"], slots)
        kept = tuple(slot if slot < job.held else None for slot in range(slots))
        job.changes.propose("op", AssignmentRequest(new, "policy", "", kept, decided=True))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), slots=SLOTS)
    def user_asks(self, data, slots):
        name = data.draw(st.sampled_from(sorted(self.jobs)))
        changes = self.jobs[name].changes
        granted = self.ledger.of(name)["op"]
        try:
            changes.ask(changes.scaled(slots, "op"), "user")
        except ConfigError:
            assert slots > granted
        else:
            assert slots <= granted

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def batch_begins(self, data):
        name = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs[name]
        job.changes.put_in_force()
        assert job.held <= self.ledger.of(name)["op"]

    @invariant()
    def nobody_will_hold_more_than_granted(self):
        for name, job in self.jobs.items():
            assert job.changes.newest("op").slots <= self.ledger.of(name)["op"]

    @invariant()
    def all_together_fit_unless_the_budget_shrank_meanwhile(self):
        granted = sum(slots["op"] for slots in self.ledger.granted.values())
        waits = any(self.ledger.waiting.values())
        assert waits or granted <= max(self.ledger.budget, len(self.jobs))


Budget.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBudget = Budget.TestCase


def test_a_wish_of_before_the_budget_shrank_does_not_undo_that():
    ledger = Ledger(16)
    ledger.enter("a", {"op": 4}, 0)
    ledger.budget = 3
    ledger.cut(["a"])
    ledger.want({"a": {"op": 4}})
    assert ledger.settle({"a": {"op": 4}}) == {"a": {"op": 3}}


def test_a_change_that_waits_for_its_boundary_is_dropped_when_its_slots_are_taken_back():
    changes = Changes({"op": OperatorState.fresh(2, GROUPS)}, GROUPS)
    changes.limit(Grant({"op": 6}))
    changes.ask(changes.scaled(6, "op"), "user")
    changes.limit(Grant({"op": 3}, "henge", "another is worth more"))
    (taken,) = changes.put_in_force().values()
    assert (taken.assignment.slots, taken.by, taken.reason) == (
        3,
        "henge",
        "another is worth more",
    )


def test_who_asks_while_a_split_is_put_in_force_sees_what_was_requested():
    changes = Changes({"op": OperatorState.fresh(2, GROUPS)}, GROUPS)
    changes.ask(changes.scaled(4, "op"), "user")
    request = changes.requested("op")
    changes.moves("op", request)
    assert changes.newest("op") == request.assignment


def test_a_policy_may_say_which_slots_go_until_the_boundary():
    changes = Changes({"op": OperatorState.fresh(4, GROUPS)}, GROUPS)
    changes.limit(Grant({"op": 2}, "henge"))
    mine = rescale(changes.assignment()["op"], 2)
    assert changes.propose(
        "op", AssignmentRequest(mine, "streamswitch", "merged", (0, 1), decided=True)
    )
    (taken,) = changes.put_in_force().values()
    assert taken.by == "streamswitch"


def test_a_frozen_job_gives_its_slots_up_when_it_thaws():
    changes = Changes({"op": OperatorState.fresh(4, GROUPS)}, GROUPS)
    changes.freeze()
    changes.limit(Grant({"op": 2}, "henge"))
    assert not changes.put_in_force()
    changes.thaw()
    changes.put_in_force()
    assert changes.assignment()["op"].slots == 2
