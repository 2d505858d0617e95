"""A migration between boundaries, driven by a test: a carrier, a state, a porter without hosts."""

from __future__ import annotations

from fake_porter import FakePorter

from headgate.core.assignment import Assignment
from headgate.migration.events import Cause, Requested
from headgate.migration.plan import uniform
from headgate.migration.protocol import Migration
from headgate.spark.job.job import OperatorState
from headgate.spark.move.carrier import Carrier

GROUPS = 12
HOSTS = ("a", "a", "b", "b")


class Job:
    """A carrier between boundaries, from two slots on one host to four slots on two."""

    def __init__(self, strategy, target=None, porter=None, slots=2, groups=GROUPS, hosts=HOSTS):
        self.state = OperatorState.fresh(slots, groups)
        self.state.tokens = [f"{g:032x}" for g in range(1, groups + 1)]
        self.before = self.state.assignment
        self.porter = porter or FakePorter()
        self.passed = []
        self.step = 10
        self.hosts = hosts
        self.carrier = Carrier(
            "op", self.state, self.porter, Migration(self.state.assignment), self.passed.append
        )
        self.target = target or uniform(self.state.assignment, 4)
        self.carrier.request(Requested(self.target, hosts, Cause.HAND, strategy=strategy))

    @property
    def moving(self):
        return self.before.moved(self.target)

    def boundary(self):
        """Pass one; return which groups are not served in the batch behind it."""
        owners = self.carrier.pass_boundary(self.step, self.hosts)
        if owners is not None:
            self.state.assign(
                Assignment(tuple(owners), len(self.hosts), self.state.assignment.epoch + 1)
            )
        self.step += 1
        return self.carrier.unserved()

    def run(self, at_once=999, boundaries=80):
        """Go on until it rests; return what was not served, batch by batch."""
        unserved = []
        for _ in range(boundaries):
            unserved.append(self.boundary())
            if not self.carrier.running:
                return unserved
            self.carrier.committed(self.step - 1, 1.0)
            self.porter.work(self.state, self.step - 1, at_once)
        raise AssertionError("still running")

    def what(self):
        return [one.what for one in self.passed]

    def routed(self):
        """Return the groups of each subscale that was routed."""
        return [one.groups for one in self.passed if one.what == "routed"]
