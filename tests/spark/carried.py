"""A migration between boundaries, driven by a test: executor, state, a copy thread without hosts."""

from __future__ import annotations

from fake_copy_thread import FakeCopyThread

from headgate.core.assignment import Assignment
from headgate.migration.events import Cause, Requested
from headgate.migration.plan import uniform
from headgate.migration.protocol import Migration
from headgate.spark.job.job import OperatorState
from headgate.spark.move.migration_executor import MigrationExecutor

GROUPS = 12
HOSTS = ("a", "a", "b", "b")


class Job:
    """A migration executor between boundaries, from two slots on one host to four slots on two."""

    def __init__(
        self, strategy, target=None, copy_thread=None, slots=2, groups=GROUPS, hosts=HOSTS
    ):
        self.state = OperatorState.fresh(slots, groups)
        self.state.tokens = [f"{g:032x}" for g in range(1, groups + 1)]
        self.before = self.state.assignment
        self.copy_thread = copy_thread or FakeCopyThread()
        self.passed = []
        self.step = 10
        self.hosts = hosts
        self.migration = MigrationExecutor(
            "op", self.state, self.copy_thread, Migration(self.state.assignment), self.passed.append
        )
        self.target = target or uniform(self.state.assignment, 4)
        self.migration.request(Requested(self.target, hosts, Cause.HAND, strategy=strategy))

    @property
    def moving(self):
        return self.before.moved(self.target)

    def boundary(self):
        """Pass one; return which groups are not served in the batch behind it."""
        owners = self.migration.pass_boundary(self.step, self.hosts)
        if owners is not None:
            self.state.assign(
                Assignment(tuple(owners), len(self.hosts), self.state.assignment.epoch + 1)
            )
        self.step += 1
        return self.migration.unserved()

    def run(self, at_once=999, boundaries=80):
        """Go on until it rests; return what was not served, batch by batch."""
        unserved = []
        for _ in range(boundaries):
            unserved.append(self.boundary())
            if not self.migration.running:
                return unserved
            self.migration.committed(self.step - 1, 1.0)
            self.copy_thread.work(self.state, self.step - 1, at_once)
        raise AssertionError("still running")

    def what(self):
        return [one.what for one in self.passed]

    def routed(self):
        """Return the groups of each subscale that was routed."""
        return [one.groups for one in self.passed if one.what == "routed"]
