"""A model cluster on a virtual clock: jobs whose latency and load follow from their slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headgate.control.fleet.henge import Henge, HengeParameters
from headgate.control.fleet.view import Action, FleetDecision, FleetJob, FleetOperator, FleetView
from headgate.core.utility import Intent, Metric, Utility

LATENCY_BELOW_1S = Intent(Metric.LATENCY, 1.0)


def constant(value: float) -> Callable[[int], float]:
    return lambda slots: value


def by_slots(work_s: float) -> Callable[[int], float]:
    """Latency that falls as slots are added: `work_s` with one slot, half of it with two."""
    return lambda slots: work_s / slots


@dataclass
class Job:
    """A job of one operator, `work`, behind a source; its SLO is a latency of 1 s."""

    latency_s: Callable[[int], float]
    capacity: Callable[[int], float] = field(default_factory=lambda: constant(0.6))
    priority: float = 10.0
    slots: int = 1
    slots_max: int = 1000
    input_rate: float = 100.0
    silent: bool = False

    def view(self) -> FleetJob:
        operators = {
            "source": FleetOperator(slots=5, capacity=0.1, source=True),
            "work": FleetOperator(
                slots=self.slots, capacity=self.capacity(self.slots), slots_max=self.slots_max
            ),
        }
        utility = Utility(self.priority, (LATENCY_BELOW_1S,))
        values = None if self.silent else (self.latency_s(self.slots),)
        return FleetJob(utility, values, operators, self.input_rate)


@dataclass
class Cluster:
    """Jobs under Henge; `run` plays rounds and keeps the decisions that did something."""

    jobs: dict[str, Job]
    parameters: HengeParameters = field(default_factory=lambda: HengeParameters(observe_s=0.0))
    slots_max: int = 1000
    congested: bool = False
    time_s: float = 0.0

    def __post_init__(self) -> None:
        self.henge = Henge(self.parameters)
        self.actions: list[tuple[float, FleetDecision]] = []
        self.rules: list[str] = []

    def view(self) -> FleetView:
        jobs = {name: job.view() for name, job in self.jobs.items()}
        return FleetView(self.time_s, jobs, self.slots_max, hosts_congested=int(self.congested))

    def round(self) -> FleetDecision:
        """Play one round: decide, carry out, let ten seconds pass."""
        decision = self.henge.decide(self.view())
        self.rules.append(decision.rule)
        if decision:
            self.actions.append((self.time_s, decision))
        for name, operators in decision.slots.items():
            self.jobs[name].slots = operators["work"]
        self.time_s += self.parameters.round_s
        return decision

    def run(self, rounds: int) -> list[tuple[float, FleetDecision]]:
        """Play rounds and return the actions of these."""
        before = len(self.actions)
        for _ in range(rounds):
            self.round()
        return self.actions[before:]

    def until_action(self, rounds_max: int = 1000) -> FleetDecision:
        """Play rounds until one acts."""
        for _ in range(rounds_max):
            decision = self.round()
            if decision:
                return decision
        msg = f"no action in {rounds_max} rounds; last rules {self.rules[-5:]}"
        raise AssertionError(msg)

    @property
    def utility(self) -> float:
        """Total utility now."""
        return sum(job.view().attained for job in self.jobs.values())


def kinds(actions: list[tuple[float, FleetDecision]]) -> list[Action]:
    return [decision.action for _, decision in actions]


def touched(actions: list[tuple[float, FleetDecision]]) -> list[str]:
    return [name for _, decision in actions for name in decision.slots]


def parameters(changes: Mapping[str, object] | None = None) -> HengeParameters:
    return replace(HengeParameters(observe_s=0.0), **(changes or {}))  # type: ignore[arg-type]
